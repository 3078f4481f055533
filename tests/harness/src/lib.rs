//! Machines for tests and for `cargo xtask up`: QEMU with firmware and a software TPM, networks
//! between them, and the processes beside them.
//!
//! Everything is synchronous and waits for conditions ([`wait::eventually`]). A process is ended
//! only by the identity recorded at its start ([`process::Owned`]), so that two harnesses, or a
//! harness and its user, can share a host; and all of them end with the process that started them
//! ([`lifetime`]). Enter by [`machine::Machine`].

#![allow(
    clippy::missing_errors_doc,
    reason = "in what tests share every error ends the test that meets it, and its text is for the reader of that test"
)]

pub mod cluster;
pub mod demo;
pub mod disk;
pub mod engine;
pub mod folder;
pub mod lifetime;
pub mod machine;
pub mod metadata;
pub mod oci;
pub mod pace;
pub mod port;
pub mod process;
pub mod programs;
pub mod qmp;
pub mod registry;
pub mod screen;
mod stall;
pub mod swtpm;
pub mod tap;
pub mod time;
pub mod tools;
pub mod tpm;
pub mod wait;
pub mod xts;

/// Errors around a machine; every message names the file to look at.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("{what} {path}")]
    File {
        /// What was being done.
        what: &'static str,
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A program could not be started.
    #[error("cannot start {program}")]
    Start {
        /// The program.
        program: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A program ended with a fault.
    #[error("{program} failed ({status}); its output:\n{output}")]
    Failed {
        /// The program.
        program: String,
        /// How it ended.
        status: String,
        /// The end of what it printed.
        output: String,
    },
    /// A condition did not come about in time.
    #[error("waited {seconds} s for {what}; {hint}")]
    Timeout {
        /// The condition.
        what: String,
        /// How long.
        seconds: u64,
        /// Where to look.
        hint: String,
    },
    /// The machine's kernel or firmware stopped.
    #[error("{machine} stopped: {line}; its console is in {console} and ends with\n{last}")]
    Stopped {
        /// The machine.
        machine: String,
        /// The console line that shows it.
        line: String,
        /// The console's file.
        console: String,
        /// The console's last lines.
        last: String,
    },
    /// QEMU's monitor refused.
    #[error("QEMU's monitor refused {command}: {answer}")]
    Monitor {
        /// The command.
        command: String,
        /// Its answer.
        answer: String,
    },
    /// Something a user must do first.
    #[error("{0}")]
    Missing(String),
}

/// The result of everything here.
pub type Result<T> = std::result::Result<T, Error>;

/// An error with its causes, one line.
pub use config_errors::chain;

/// Maps an I/O error to [`Error::File`].
pub fn file_error(
    what: &'static str,
    path: &std::path::Path,
) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.display().to_string();
    move |source| Error::File { what, path, source }
}
