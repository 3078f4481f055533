//! `cargo xtask soak verdicts`: what the test command runs, round after round on one tree. Each
//! round must pass.

use crate::build::{self, Profile};
use crate::host;
use crate::share::Share;
use crate::steps::{Outcome, Steps};
use crate::suite::{self, AT_ONCE};
use crate::{python, test};
use std::time::{Duration, Instant};

/// Which programs, and how much of the machine they get.
#[derive(Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Verdicts {
    /// Stories in machines, too.
    #[arg(long)]
    machines: bool,
    /// Per cent of the processors' time that the programs get together. Containers that they start
    /// are not held back.
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(5..=100))]
    processor: u8,
}

/// Builds what the test command builds, and runs its programs until the time is over, one round at
/// least.
pub(crate) fn verdicts(wish: &Verdicts, minutes: u64) -> Outcome {
    host::need_root("tests run containers in namespaces of their own")?;
    let mut steps = Steps::new();
    steps.step("packages", host::packages)?;
    let programs = steps.step("lint and compile", suite::compile)?;
    steps.step("programs", || build::programs(Profile::Quick))?;
    steps.step("tools", build::tools_tree)?;
    steps.step("Python packages", python::packages)?;
    if wish.machines {
        build::other_parts(&mut steps, Profile::Quick, false)?;
    }
    let parts = test::parts(programs);
    let _share = (wish.processor < 100)
        .then(|| Share::take(wish.processor))
        .transpose()?;
    let begun = Instant::now();
    for round in 1_u32.. {
        suite::run_quietly(&parts.units, &[], AT_ONCE)?;
        suite::run_quietly(&parts.processes, test::ALONE, AT_ONCE)?;
        let mut passed = parts.units.len() + parts.processes.len();
        if wish.machines {
            suite::run_quietly(&parts.machines, test::ALONE, AT_ONCE)?;
            passed += parts.machines.len();
        }
        let seconds = begun.elapsed().as_secs_f64();
        println!("[{seconds:>6.0} s] round {round}: {passed} test programs passed");
        if begun.elapsed() >= Duration::from_secs(minutes * 60) {
            break;
        }
    }
    Ok(())
}
