//! Runs fuzz targets for a given time; see the library's documentation.

use clap::Parser;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;
use tests_fuzz::run::{Until, corpus, keep, run};
use tests_fuzz::targets;

/// Mutates golden inputs and feeds every decoder of bytes from outside.
#[derive(Debug, Parser)]
struct Arguments {
    /// Targets whose names contain one of these; all where none is given.
    targets: Vec<String>,
    /// Seconds for each target.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Seed of the mutations; the same seed gives the same cases.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let wanted = |name: &str| {
        arguments.targets.is_empty()
            || arguments
                .targets
                .iter()
                .any(|part| name.contains(part.as_str()))
    };
    let mut out = std::io::stdout().lock();
    let mut code = ExitCode::SUCCESS;
    let all = match targets::all() {
        Ok(all) => all,
        Err(error) => {
            writeln!(out, "the corpus cannot be read: {error}").ok();
            return ExitCode::FAILURE;
        }
    };
    for target in all.iter().filter(|target| wanted(target.name)) {
        let line = match run(
            target,
            arguments.seed,
            Until::Elapsed(Duration::from_secs(arguments.seconds)),
        ) {
            Ok(cases) => format!("{}: {cases} cases, nothing found", target.name),
            Err(finding) => {
                code = ExitCode::FAILURE;
                match keep(&corpus(), &finding) {
                    Ok(file) => format!("FOUND {finding}\n  kept as {}", file.display()),
                    Err(error) => format!("FOUND {finding}\n  not kept: {error}"),
                }
            }
        };
        if writeln!(out, "{line}").is_err() {
            return ExitCode::FAILURE;
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_line_in_a_guide_is_understood() {
        let count = tests_guides::understood("cargo run -p tests-fuzz --", |words| {
            Arguments::try_parse_from(words)
        });
        assert!(count.unwrap_or_else(|fault| panic!("{fault}")) >= 2);
    }
}
