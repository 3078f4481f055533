//! Errors of the service. Refusals of machines are `config_attest::Refusal`.

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
    /// The record of the bootstrap cannot be parsed.
    #[error("{} is damaged; restore the data folder", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// The log of verdicts failed.
    #[error(transparent)]
    Journal(#[from] master_journal::Error),
    /// The API refused the service's own request.
    #[error("the API request for {what} failed")]
    Api {
        /// What was written or read.
        what: &'static str,
        /// The cause.
        #[source]
        source: master_client::ApiError,
    },
    /// The CA did not issue a certificate.
    #[error("the CA did not issue a certificate")]
    Issue(#[source] master_ca::Error),
    /// The machine's TPM did not answer.
    #[error("the machine's TPM did not answer")]
    Attestor(#[source] master_ca::attestor::AttestorError),
    /// A blocking task panicked or was cancelled.
    #[error("a blocking task panicked or was cancelled")]
    Task(#[source] tokio::task::JoinError),
}
