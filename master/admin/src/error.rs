//! Errors of the tool: what failed, why, and what to do.

use std::path::{Path, PathBuf};

/// A failure of the admin's tool.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A file could not be read or written.
    #[error("cannot {what} {}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A file or an argument does not hold what it should.
    #[error("{subject}: {why}\n  what to do: {cure}")]
    Input {
        subject: String,
        why: String,
        cure: String,
    },
    /// The master cannot be reached.
    #[error(
        "cannot connect to {endpoint}\n  what to do: check that the master machine is up (its console says `services started`), and the port"
    )]
    Connect {
        endpoint: String,
        #[source]
        source: std::io::Error,
    },
    /// The connection broke, no answer came in time, or what came is not HTTP.
    #[error("the connection to the master failed while {what}")]
    Http {
        what: &'static str,
        #[source]
        source: config_http::HttpError,
    },
    /// The master's answer is not of the expected form.
    #[error(
        "the master's answer to {what} is not understood: {why}\n  what to do: compare the versions of `pratique` and of the master's image"
    )]
    Answer { what: String, why: String },
    /// The master refused.
    #[error("the master refused {what} ({status}): {message}")]
    Refused {
        what: String,
        status: u16,
        message: String,
    },
    /// The takeover was sent to the master, and no answer came.
    #[error(
        "the master may have recorded the takeover, but its answer was lost\n  what to do: run this command again; if the master then says ALREADY_BOOTSTRAPPED, nobody can get its admin's certificate any more: power the machine off and make it anew"
    )]
    Unanswered {
        #[source]
        source: Box<Error>,
    },
    /// The master did not prove what it must.
    #[error("the master is NOT trusted: {code}: {message}")]
    Untrusted { code: String, message: String },
    /// The discovery endpoint failed or refused.
    #[error(
        "cannot {what}\n  what to do: check the endpoint's address, and that `discovery` runs there"
    )]
    Discovery {
        what: &'static str,
        #[source]
        source: master_bootstrap::ClientError,
    },
    /// Keys or certificates could not be made.
    #[error("cannot {what}")]
    Key {
        what: &'static str,
        #[source]
        source: rcgen::Error,
    },
    /// The certificate room refused.
    #[error("cannot {what}")]
    Ca {
        what: &'static str,
        #[source]
        source: master_ca::Error,
    },
    /// TLS could not be set up.
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
    /// The document has faults, already in full sentences.
    #[error("{0}")]
    Faults(String),
}

/// Shorthand of the tool.
pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether it may pass by itself: the master is coming up, restarts or has too much to do.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Http { .. } => true,
            Self::Refused { status, .. } => matches!(status, 429 | 503 | 504),
            Self::File { .. }
            | Self::Input { .. }
            | Self::Answer { .. }
            | Self::Unanswered { .. }
            | Self::Untrusted { .. }
            | Self::Discovery { .. }
            | Self::Key { .. }
            | Self::Ca { .. }
            | Self::Tls(_)
            | Self::Faults(_) => false,
        }
    }

    /// A file that could not be read or written.
    pub(crate) fn file(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { what, path, source }
    }

    /// An answer of the master that is not understood.
    pub(crate) fn answer(what: &str, why: &str) -> Self {
        Self::Answer {
            what: what.to_owned(),
            why: why.to_owned(),
        }
    }

    /// An input that does not hold what it should.
    pub(crate) fn input(
        subject: impl Into<String>,
        why: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Self::Input {
            subject: subject.into(),
            why: why.into(),
            cure: cure.into(),
        }
    }
}
