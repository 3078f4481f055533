//! Steps that a person watches: a line at the start, a time at the end, and failures that name log
//! and cure.

use std::fmt;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A failed step: what failed, where to look, what to do.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What failed.
    pub what: String,
    /// What to do.
    pub cure: String,
}

/// The result of a step.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with its cure.
    pub(crate) fn new(what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            cure: cure.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FAILED: {}", self.what)?;
        if self.cure.is_empty() {
            Ok(())
        } else {
            write!(f, "\n  -> {}", self.cure)
        }
    }
}

impl From<tests_harness::Error> for Failure {
    fn from(error: tests_harness::Error) -> Self {
        Self::new(tests_harness::chain(&error), "")
    }
}

/// Runs a program whose output the user sees.
pub(crate) fn watched(mut command: Command, cure: &str) -> Outcome {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(|error| Failure::new(format!("cannot start {program}: {error}"), cure))?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::new(
            format!("{program} failed ({status}); its output is above"),
            cure,
        ))
    }
}

/// Prints steps and keeps their times.
#[derive(Debug)]
pub(crate) struct Steps {
    start: Instant,
    times: Vec<(String, f64)>,
}

impl Steps {
    /// Starts the clock.
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            times: Vec::new(),
        }
    }

    /// Runs one step under its name.
    pub(crate) fn step<T>(&mut self, name: &str, task: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        println!("[{:>5.0} s] {name} …", self.start.elapsed().as_secs_f64());
        std::io::stdout().flush().ok();
        let begin = Instant::now();
        let outcome = task();
        let seconds = begin.elapsed().as_secs_f64();
        let verdict = if outcome.is_ok() { "done" } else { "FAILED" };
        println!(
            "[{:>5.0} s] {name}: {verdict} in {seconds:.1} s",
            self.start.elapsed().as_secs_f64()
        );
        self.times.push((name.to_owned(), seconds));
        outcome
    }

    /// The times of all steps, a line each.
    pub(crate) fn summary(&self) -> String {
        let lines: Vec<String> = self
            .times
            .iter()
            .map(|(name, seconds)| format!("  {seconds:>8.1} s  {name}\n"))
            .collect();
        lines.concat() + &format!("  {:>8.1} s  in all", self.start.elapsed().as_secs_f64())
    }
}
