//! Why the node has no answer from its master, or no identity.

use crate::prover::ProveError;
use config_protocol::wire::TooLong;
use std::io;
use std::time::Duration;

/// Longest code that is shown.
const CODE_LIMIT: usize = 64;
/// Longest message that is shown.
const MESSAGE_LIMIT: usize = 1024;

/// Shortest and longest wait between two requests while a person must decide.
const QUEUE_BOUNDS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// A failed exchange with the master.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No master was named.
    #[error("no master's address is known")]
    NoEndpoint,
    /// TCP failed.
    #[error("{endpoint} cannot be reached")]
    Connect {
        /// The master's address.
        endpoint: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// TLS failed; most often because the server is not the pinned master.
    #[error("{endpoint} is not a master that the pins allow, or TLS failed with it")]
    Handshake {
        /// The master's address.
        endpoint: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The server's certificate is not valid at this machine's time.
    #[error(
        "by this machine's clock ({now}) the certificate of {endpoint} {why}: set the machine's clock, or name time servers in its user-data ([network] ntp); if the clock is right, the master's is not"
    )]
    Clock {
        /// The master's address.
        endpoint: String,
        /// This machine's time.
        now: String,
        /// How it is not valid.
        why: &'static str,
    },
    /// The server shows no root that is pinned.
    #[error("{endpoint} is not a master that the pins allow: {why}")]
    NotPinned {
        /// The master's address.
        endpoint: String,
        /// What it showed, what is pinned, and what to do.
        why: String,
    },
    /// TLS could not be set up.
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
    /// A request could not be formed.
    #[error("a request cannot be formed")]
    Request(#[source] http::Error),
    /// HTTP failed, or the connection under it.
    #[error("the exchange with the master failed")]
    Exchange(#[source] hyper_util::client::legacy::Error),
    /// HTTP failed on the enrolment's connection.
    #[error("the connection to the master failed")]
    Connection(#[source] config_http::HttpError),
    /// The body of an answer could not be read.
    #[error("the master's answer cannot be read")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The body of an answer was too large.
    #[error("the master's answer is longer than {0} bytes")]
    TooLarge(usize),
    /// A line of a watch was too long.
    #[error("a line of the master's answer is longer than {0} bytes")]
    LongLine(usize),
    /// No answer came in time.
    #[error("the master did not answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The TPM failed.
    #[error("a TPM command failed")]
    Tpm(#[from] agent_tpm::Error),
    /// The proof could not be made.
    #[error("the machine cannot prove what it is")]
    Prove(#[from] ProveError),
    /// A certificate request could not be made.
    #[error("a certificate request cannot be made")]
    Csr(#[source] rcgen::Error),
    /// A request is larger than the protocol allows.
    #[error("a certificate request is too long for the protocol")]
    TooLong(#[source] TooLong),
    /// A message could not be encoded.
    #[error("a message cannot be encoded")]
    Encode(#[source] serde_json::Error),
    /// The answer is not what the protocol says.
    #[error("the master's answer violates the protocol")]
    Decode(#[source] serde_json::Error),
    /// The answer is neither a success nor a refusal.
    #[error("the master answered {0} without a reason")]
    Status(http::StatusCode),
    /// The server showed no key.
    #[error("the master showed no certificate that can be read")]
    NoServerKey,
    /// The master refused.
    #[error("{code}: {message}")]
    Refused {
        /// Its code, printable.
        code: String,
        /// Its message, printable.
        message: String,
    },
    /// The machine proved itself, and a person must decide.
    #[error("{message}")]
    Queued {
        /// The master's message, printable.
        message: String,
        /// When to come back.
        after: Duration,
    },
    /// The machine claims no name, and the inventory has one for it.
    #[error("the master knows this machine as {0}")]
    Named(String),
    /// The certificates that the master gave cannot be used.
    #[error("the master's certificates cannot be used: {0}")]
    Certificates(&'static str),
    /// The identity that an admin issued cannot be used.
    #[error("the issued identity cannot be used: {0}; issue a new one with `pratique issue`")]
    Issued(String),
    /// The certificates that an admin issued have ended.
    #[error(
        "the issued certificates ended {days} days ago, by this machine's clock: issue new ones with `pratique issue` and give the machine that user-data"
    )]
    IssuedExpired {
        /// Whole days since.
        days: u64,
    },
    /// No thread could be started for a TPM command or a look-up of a name.
    #[error("the machine starts no thread for the enrolment: it has too many, or no memory")]
    Thread(#[source] io::Error),
    /// A thread was ended.
    #[error("a thread ended before its result")]
    Ended(#[source] tokio::sync::oneshot::error::RecvError),
}

impl Error {
    /// A refusal; the master's text is cleaned and cut to one line of a console.
    pub(crate) fn refused(code: &str, message: &str) -> Self {
        Self::Refused {
            code: clean(code, CODE_LIMIT),
            message: clean(message, MESSAGE_LIMIT),
        }
    }

    /// A person must decide; the wait that the master asks for is limited to [`QUEUE_BOUNDS`].
    pub(crate) fn queued(message: &str, after_seconds: Option<u64>) -> Self {
        let (least, most) = QUEUE_BOUNDS;
        let after = Duration::from_secs(after_seconds.unwrap_or_default()).clamp(least, most);
        Self::Queued {
            message: clean(message, MESSAGE_LIMIT),
            after,
        }
    }
}

fn clean(text: &str, limit: usize) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(limit)
        .collect()
}
