//! What can go wrong beside refusals, which are `config_attest::Refusal`.

use std::path::PathBuf;

/// A failure of the attestation service.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The record of the bootstrap could not be read or written.
    #[error("cannot {what} {}", path.display())]
    File {
        /// What was being done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The record of the bootstrap is not one.
    #[error("{} is damaged; restore the data folder", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// The log of verdicts holds something that no crash leaves behind.
    #[error(
        "the log of verdicts is damaged: {}, line {line}: {why}; keep the file for an inquiry, and move it out of the folder: \
         a new segment then begins, and `pratique verify` will tell of the gap",
        path.display()
    )]
    Verdicts {
        /// The segment.
        path: PathBuf,
        /// The line.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// The log of verdicts could not take a record.
    #[error("the log of verdicts takes no records now: see the master's log; is its disk full?")]
    VerdictsBusy,
    /// The API refused the service's own request.
    #[error("the API did not take {what}")]
    Api {
        /// What was written or read.
        what: &'static str,
        /// The cause.
        #[source]
        source: master_client::ApiError,
    },
    /// The CA did not issue.
    #[error("the CA did not issue")]
    Issue(#[source] master_ca::Error),
    /// The machine's TPM did not answer.
    #[error("the machine's TPM did not answer")]
    Attestor(#[source] master_ca::attestor::AttestorError),
    /// A blocking task broke off.
    #[error("a blocking call broke off")]
    Task(#[source] tokio::task::JoinError),
}
