//! `cargo xtask test`: everything that must hold, in stages, each with its time.

use crate::build::{self, Profile};
use crate::host::{self, repository};
use crate::steps::{Failure, Outcome, Steps};
use std::path::Path;
use std::process::Command;

/// The stages, in order.
const STAGES: &[&str] = &["tidy", "lint", "unit", "build", "stories"];

/// The stage that runs only where it is named.
const TAIL: &str = "tail";

/// Rooms whose tests are the last stage.
const STORIES: &[&str] = &["tests/cluster", "tests/load"];

/// Test programs that run beside each other.
const AT_ONCE: usize = 2;

/// Runs all stages, or those named.
pub(crate) fn test(words: &[String]) -> Outcome {
    if let Some(unknown) = words
        .iter()
        .find(|word| !STAGES.contains(&word.as_str()) && *word != TAIL)
    {
        let stages = format!("the stages are: {}, and {TAIL}", STAGES.join(" "));
        return Err(Failure::usage(&format!("no stage {unknown:?}"), &stages));
    }
    host::need_root("tests install packages and run containers in namespaces of their own")?;
    let wanted =
        |stage: &str| (words.is_empty() && stage != TAIL) || words.iter().any(|word| word == stage);
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
        steps.step("format", || {
            cargo(&["fmt", "--all", "--check"], "run: cargo fmt --all")
        })?;
    }
    let programs = if wanted("lint") || wanted("unit") || wanted("stories") || wanted(TAIL) {
        steps.step("lint and compile", crate::suite::compile)?
    } else {
        Vec::new()
    };
    // Stories and load tests need images, or run for long, or are alone on the machine.
    let (stories, units): (Vec<_>, Vec<_>) = programs.into_iter().partition(|program| {
        STORIES
            .iter()
            .any(|room| program.package == Path::new(room))
    });
    if wanted("build") {
        steps.step("programs", || build::programs(Profile::Quick))?;
    } else if wanted("unit") {
        steps.step("programs for this host", build::builder)?;
    }
    if wanted("build") || wanted("unit") {
        steps.step("tools", build::tools_tree)?;
    }
    if wanted("unit") {
        steps.step("Python client", crate::python::client)?;
        steps.step("unit, property and process tests", || {
            crate::suite::run(&units.iter().collect::<Vec<_>>(), &[], AT_ONCE)
        })?;
    }
    if wanted("build") {
        build::other_parts(steps, Profile::Quick, &[])?;
    }
    if wanted("stories") {
        // Whoever needs the whole machine comes last and alone.
        let (machines, processes): (Vec<_>, Vec<_>) = stories
            .iter()
            .partition(|program| program.name == "stories");
        let words = ["--test-threads=1", "--nocapture"];
        steps.step("process stories and load", || {
            crate::suite::run(&processes, &words, AT_ONCE)
        })?;
        steps.step("stories in machines", || {
            crate::suite::run(&machines, &words, 1)
        })?;
    }
    if wanted(TAIL) {
        let all: Vec<_> = stories
            .iter()
            .filter(|program| program.name == "stories")
            .collect();
        steps.step("stories, every one", || {
            crate::suite::run(&all, &["--nocapture", "--include-ignored"], 1)
        })?;
    }
    Ok(())
}

fn cargo(words: &[&str], cure: &str) -> Outcome {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(words).current_dir(repository());
    build::watched(command, cure)
}
