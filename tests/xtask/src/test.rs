//! `cargo xtask test`: everything that must hold, in stages, each with its time.

use crate::build::{self, Profile};
use crate::host::{self, repository};
use crate::steps::{Outcome, Steps, watched};
use std::path::Path;
use std::process::Command;

/// The stages of `cargo xtask test`, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Stage {
    /// The architecture and the formatting.
    Tidy,
    /// The linter, which compiles every test.
    Lint,
    /// Unit, property and process tests.
    Unit,
    /// Programs, tools and images.
    Build,
    /// Process stories, load and stories in machines.
    Stories,
    /// Every story in machines, with those that the attacks show by processes, too. Only by its name.
    Tail,
}

/// Rooms whose tests are the last stage.
const STORIES: &[&str] = &["tests/cluster", "tests/load"];

/// Test programs that run beside each other.
const AT_ONCE: usize = 2;

/// Runs all stages, or those named.
pub(crate) fn test(wanted: &[Stage]) -> Outcome {
    host::need_root("tests install packages and run containers in namespaces of their own")?;
    let wanted = |stage| (wanted.is_empty() && stage != Stage::Tail) || wanted.contains(&stage);
    let mut steps = Steps::new();
    let outcome = stages(&mut steps, &wanted);
    println!("\ntimes:\n{}", steps.summary());
    outcome
}

fn stages(steps: &mut Steps, wanted: &dyn Fn(Stage) -> bool) -> Outcome {
    host::check()?;
    steps.step("packages", host::packages)?;
    if wanted(Stage::Tidy) {
        steps.step("tidy", crate::tidy::tidy)?;
        steps.step("format", || {
            cargo(&["fmt", "--all", "--check"], "run: cargo fmt --all")
        })?;
    }
    let programs = if wanted(Stage::Lint)
        || wanted(Stage::Unit)
        || wanted(Stage::Stories)
        || wanted(Stage::Tail)
    {
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
    if wanted(Stage::Build) {
        steps.step("programs", || build::programs(Profile::Quick))?;
    } else if wanted(Stage::Unit) {
        steps.step("programs for this host", build::builder)?;
    }
    if wanted(Stage::Build) || wanted(Stage::Unit) {
        steps.step("tools", build::tools_tree)?;
    }
    if wanted(Stage::Unit) {
        steps.step("Python client", crate::python::client)?;
        steps.step("unit, property and process tests", || {
            crate::suite::run(&units.iter().collect::<Vec<_>>(), &[], AT_ONCE)
        })?;
    }
    if wanted(Stage::Build) {
        build::other_parts(steps, Profile::Quick, false)?;
    }
    if wanted(Stage::Stories) {
        // Programs that need the whole machine run last and alone.
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
    if wanted(Stage::Tail) {
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
    watched(command, cure)
}
