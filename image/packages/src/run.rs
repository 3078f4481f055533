//! Runs a program and keeps its output if it fails.

use std::process::{Command, Stdio};

/// How much of a failed program's output an error carries, in bytes.
const KEPT: usize = 2000;

/// A program that could not be run, or that failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It could not be started.
    #[error("cannot start `{program}`; install it or put it in PATH")]
    Start {
        /// The program's name.
        program: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// It ended with an error.
    #[error("`{program}` failed ({status}): {output}")]
    Failed {
        /// The program's name.
        program: String,
        /// Exit status.
        status: String,
        /// The end of what it wrote.
        output: String,
    },
}

/// Runs a command to its end and returns its standard output.
///
/// # Errors
/// When it can't be started or exits with a status other than 0; the end of its output is in the
/// error.
pub fn output(command: &mut Command) -> Result<Vec<u8>, RunError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let done = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| RunError::Start {
            program: program.clone(),
            source,
        })?;
    if done.status.success() {
        return Ok(done.stdout);
    }
    let mut output = String::from_utf8_lossy(&done.stdout).into_owned();
    output.push_str(&String::from_utf8_lossy(&done.stderr));
    let from = output.len().saturating_sub(KEPT);
    let from = (from..output.len())
        .find(|i| output.is_char_boundary(*i))
        .unwrap_or(0);
    Err(RunError::Failed {
        program,
        status: done.status.to_string(),
        output: output[from..].trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_carries_what_the_program_said() {
        let error = output(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("why"), "{error}");
        assert!(error.to_string().contains('3'), "{error}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = output(&mut Command::new("no-such-program")).unwrap_err();
        assert!(error.to_string().contains("no-such-program"));
    }
}
