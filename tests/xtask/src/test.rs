//! `cargo xtask test`: everything that must hold, in stages, each with its time.

use crate::build;
use crate::host::{self, repository};
use crate::steps::{Failure, Outcome, Steps};
use std::process::Command;

/// The stages, in order.
const STAGES: &[&str] = &["tidy", "lint", "unit", "build", "stories"];

/// Runs all stages, or those named.
pub(crate) fn test(words: &[String]) -> Outcome {
    if let Some(unknown) = words.iter().find(|word| !STAGES.contains(&word.as_str())) {
        return Err(Failure::usage(&format!("no stage {unknown:?}"), &format!("the stages are: {}", STAGES.join(" "))));
    }
    host::need_root("tests install packages and run containers in namespaces of their own")?;
    let wanted = |stage: &str| words.is_empty() || words.iter().any(|word| word == stage);
    let mut steps = Steps::new();
    let outcome = stages(&mut steps, &wanted);
    println!("\ntimes:\n{}", steps.summary());
    outcome
}

fn stages(steps: &mut Steps, wanted: &dyn Fn(&str) -> bool) -> Outcome {
    host::check()?;
    steps.step("packages", host::packages)?;
    if wanted("tidy") {
        steps.step("tidy", crate::tidy::tidy)?;
        steps.step("format", || cargo(&["fmt", "--all", "--check"], "run: cargo fmt --all"))?;
    }
    if wanted("lint") {
        let words = ["clippy", "--workspace", "--all-targets", "--locked", "--", "--deny", "warnings"];
        steps.step("lint", || cargo(&words, "warnings are errors; the compiler's message is above"))?;
    }
    if wanted("build") {
        steps.step("programs", build::programs)?;
    } else if wanted("unit") {
        steps.step("programs for this host", build::builder)?;
    }
    if wanted("build") || wanted("unit") {
        steps.step("tools", build::tools_tree)?;
    }
    if wanted("unit") {
        steps.step("Python client", crate::python::client)?;
        let words = ["test", "--workspace", "--exclude", "tests-cluster", "--exclude", "tests-load", "--locked"];
        steps.step("unit, property and process tests", || cargo(&words, "the failing test is named above"))?;
    }
    if wanted("build") {
        build::everything(steps, &[])?;
    }
    if wanted("stories") {
        let words = [
            "test",
            "--package",
            "tests-cluster",
            "--package",
            "tests-load",
            "--locked",
            "--",
            "--test-threads=1",
            "--nocapture",
        ];
        steps.step("stories", || cargo(&words, "the failing story is named above, with its console's file"))?;
    }
    Ok(())
}

fn cargo(words: &[&str], cure: &str) -> Outcome {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let tools = host::workshop().join("tools/bin");
    let path = std::env::var("PATH").unwrap_or_default();
    command.args(words).current_dir(repository()).env("PATH", format!("{}:{path}", tools.display()));
    build::watched(command, cure)
}
