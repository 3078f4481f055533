//! `cargo xtask test`: everything that must hold, in stages, each with its time.

use crate::build::{self, Profile};
use crate::host::{self, repository};
use crate::steps::{Outcome, Steps, watched};
use crate::suite::{self, AT_ONCE, Lane, Program};
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
    /// Every story in machines, with those that other tests show by processes, too. Only by its
    /// name.
    Tail,
}

/// Rooms whose tests are the last stage.
const STORIES: &[&str] = &["tests/cluster", "tests/load"];

/// Programs of stories run one test after another, and show what they do.
pub(crate) const ALONE: &[&str] = &["--test-threads=1", "--nocapture"];

/// The test programs, by the stage that runs them.
pub(crate) struct Parts {
    /// Unit, property and process tests.
    pub(crate) units: Vec<Program>,
    /// Process stories and load.
    pub(crate) processes: Vec<Program>,
    /// Stories in machines, which need the whole machine and run last and alone.
    pub(crate) machines: Vec<Program>,
}

/// Sorts programs into stages. Stories and load tests need images, or run for long, or are alone on
/// the machine.
pub(crate) fn parts(programs: Vec<Program>) -> Parts {
    let is_story = |program: &Program| {
        let rooms = STORIES.iter().map(Path::new);
        rooms.into_iter().any(|room| program.package == room)
    };
    let (stories, units): (Vec<_>, Vec<_>) = programs.into_iter().partition(is_story);
    let (machines, processes) = stories
        .into_iter()
        .partition(|program| program.name == "stories");
    Parts {
        units,
        processes,
        machines,
    }
}

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
        steps.step("lint and compile", suite::compile)?
    } else {
        Vec::new()
    };
    let parts = parts(programs);
    if wanted(Stage::Build) {
        steps.step("programs", || build::programs(Profile::Quick))?;
    } else if wanted(Stage::Unit) {
        steps.step("programs for this host", build::builder)?;
    }
    if wanted(Stage::Build) || wanted(Stage::Unit) {
        steps.step("tools", build::tools_tree)?;
    }
    if wanted(Stage::Unit) || wanted(Stage::Stories) {
        steps.step("Python packages", crate::python::packages)?;
    }
    if wanted(Stage::Unit) {
        steps.step("unit, property and process tests", || {
            suite::run(&[Lane {
                programs: &parts.units,
                words: &[],
                at_once: AT_ONCE,
            }])
        })?;
    }
    if wanted(Stage::Build) {
        build::other_parts(steps, Profile::Quick, false)?;
    }
    if wanted(Stage::Stories) {
        // Process tests wait for containers most of the time, machines mostly compute.
        steps.step("stories: processes and load beside machines", || {
            let processes = Lane {
                programs: &parts.processes,
                words: ALONE,
                at_once: AT_ONCE,
            };
            suite::run(&[processes, machines(&parts.machines, ALONE)])
        })?;
    }
    if wanted(Stage::Tail) {
        steps.step("stories, every one", || {
            let words = &["--nocapture", "--include-ignored"];
            suite::run(&[machines(&parts.machines, words)])
        })?;
    }
    Ok(())
}

fn machines<'a>(programs: &'a [Program], words: &'a [&'a str]) -> Lane<'a> {
    Lane {
        programs,
        words,
        at_once: 1,
    }
}

fn cargo(words: &[&str], cure: &str) -> Outcome {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(words).current_dir(repository());
    watched(command, cure)
}
