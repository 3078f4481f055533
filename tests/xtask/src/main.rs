//! The only automation: `cargo xtask COMMAND`; [`Command`] lists them.
//!
//! It compiles in seconds and needs no system library; everything heavy is a program that it builds
//! and runs. Every command prints its steps with their times, and a failure names the step, the log
//! and what to do.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line program speaks to its user"
)]

mod bench;
mod build;
mod host;
mod map;
mod master;
mod mutants;
mod python;
mod rooms;
mod share;
mod soak;
mod source;
mod steps;
mod suite;
mod test;
mod tidy;
mod up;
mod verdicts;

use build::Profile;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Everything that is done to this repository: build, run, test, measure.
///
/// Each command installs what it needs (as root), prints its steps with their times, and says what
/// to do if a step fails.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Boot a master and workers in QEMU and run a pod, from a clone that has nothing built.
    Up {
        /// Number of workers, 1 to 4.
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=up::MAX_WORKERS))]
        workers: u8,
    },
    /// End the machines of `up`; their disks stay.
    Down {
        /// Remove their disks, too.
        #[arg(long)]
        wipe: bool,
    },
    /// Show the machines of `up`.
    Status,
    /// Pass all tests.
    Test {
        /// Stages to run in place of all; `tail` (every story in machines) runs by its name alone.
        #[arg(value_enum)]
        stages: Vec<test::Stage>,
    },
    /// Build both images into `.pratique/images`.
    Image {
        /// Refuse any package version but the lock file's.
        #[arg(long)]
        locked: bool,
    },
    /// Unpack the tools (QEMU, firmware, kubectl, …) into `.pratique/tools`.
    Tools,
    /// Run a master on this host, in the foreground.
    Master {
        /// Arguments of `master run`: `--config FILE --data DIR --listen ADDRESS`, …
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Check TOML documents.
    Check {
        /// The documents.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Measure, and print the figures of tests/FIGURES.md.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Look for cases that no fixed run has met yet.
    Soak(soak::Soak),
    /// Blind the verifier at each of its checks; the attacks must notice.
    Mutants {
        /// Only checks whose names contain one of these words.
        words: Vec<String>,
    },
    /// Check the architecture.
    Tidy,
    /// Show the rooms, what depends on what, and circles of files.
    Map,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\n{failure}");
            ExitCode::FAILURE
        }
    }
}

/// How programs and images are made to be shipped or measured: users get what the figures are of.
fn profile(command: &Command) -> Profile {
    if matches!(command, Command::Image { .. } | Command::Bench(_)) {
        Profile::Release
    } else {
        Profile::Quick
    }
}

fn run(command: Command) -> steps::Outcome {
    let profile = profile(&command);
    match command {
        Command::Up { workers } => up::up(workers, profile),
        Command::Down { wipe } => up::down(wipe),
        Command::Status => up::status(),
        Command::Test { stages } => test::test(&stages),
        Command::Image { locked } => build::image(locked, profile),
        Command::Tools => build::tools(),
        Command::Master { arguments } => master::run(&arguments),
        Command::Check { files } => master::check(&files),
        Command::Bench(what) => bench::bench(what, profile),
        Command::Soak(wish) => soak::soak(&wish),
        Command::Mutants { words } => mutants::mutants(&words),
        Command::Tidy => tidy::tidy(),
        Command::Map => map::map(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;
    use tests_harness::tools::Tools;

    #[test]
    fn every_command_and_argument_has_its_help() {
        Cli::command().debug_assert();
        assert_eq!(tests_guides::without_help(Cli::command()), [""; 0]);
    }

    #[test]
    fn every_command_line_in_a_document_is_understood() {
        let count = tests_guides::understood("cargo xtask", |words| Cli::try_parse_from(words));
        assert!(count.unwrap_or_else(|fault| panic!("{fault}")) > 10);
    }

    #[test]
    fn every_kubectl_line_in_a_document_names_what_the_kubectl_of_the_tests_has() {
        let tools = Tools::find(&host::repository()).unwrap();
        let count = tests_guides::kubectl::understood(|words| {
            let output = tools.command("kubectl").args(words).output();
            let output = output.map_err(|error| error.to_string())?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            if output.status.success() {
                Ok(text(&output.stdout))
            } else {
                Err(text(&output.stderr))
            }
        });
        assert!(count.unwrap_or_else(|fault| panic!("{fault}")) > 25);
    }

    #[test]
    fn images_of_users_are_those_that_the_figures_measure_and_compressed_hard() {
        let of = |line: &str| profile(&Cli::parse_from(line.split_whitespace()).command);
        for line in [
            "xtask image",
            "xtask image --locked",
            "xtask bench image",
            "xtask bench join",
            "xtask bench disk",
        ] {
            assert_eq!(build::compression(of(line)), ["release"; 2], "{line}");
        }
        for line in ["xtask up", "xtask test build"] {
            assert_eq!(build::compression(of(line)), ["dev"; 2], "{line}");
        }
    }

    #[test]
    fn a_command_line_is_understood_or_refused() {
        let parse = |line: &str| Cli::try_parse_from(line.split_whitespace());
        for line in [
            "xtask up --workers 4",
            "xtask test tidy tail",
            "xtask master --config c.toml --data d --listen 127.0.0.1:1",
            "xtask bench api --only objects,watch",
            "xtask bench disk rates --built",
            "xtask soak fuzz quote --minutes 1 --seed 7",
            "xtask image --locked",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        for line in [
            "xtask",
            "xtask up --workers 5",
            "xtask test nothing",
            "xtask down --wipes",
            "xtask soak nothing",
            "xtask soak histories --minutes soon",
            "xtask soak pods quote",
            "xtask check",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
