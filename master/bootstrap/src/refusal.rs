//! Refusals of the endpoint, each with a code and an HTTP status.

use config_discovery::DocumentFault;
use http::StatusCode;
use std::time::Duration;

/// The reason why a request is refused.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refusal {
    /// The path or cluster does not exist, or no document is set.
    #[error("there is nothing here: no such path or cluster, or its master was not set yet")]
    Unknown,
    /// The path does not support the method.
    #[error("this path does not take this method")]
    Method,
    /// Creating a cluster requires the operator's token.
    #[error(
        "this endpoint makes clusters for those who have its operator's token: give it with --token-file"
    )]
    Token,
    /// The credential is wrong.
    #[error("this is not the credential of this cluster")]
    Credential,
    /// The body did not arrive in time.
    #[error("the request's body did not come in time")]
    Slow,
    /// The body is too large.
    #[error("the request's body is larger than {0} bytes")]
    TooLarge(usize),
    /// The body is malformed.
    #[error("the request is malformed: {0}")]
    Malformed(String),
    /// The address exceeds its rate.
    #[error("this address asks too often; next in {} s", .0.as_secs() + 1)]
    RateLimited(Duration),
    /// The limit of clusters is reached.
    #[error("this endpoint holds as many clusters as it may; its operator can raise --clusters")]
    Full,
    /// The store failed.
    #[error("this endpoint cannot write: {0}")]
    Store(String),
    /// The signed document is invalid.
    #[error("the signed document is not accepted: {0}")]
    Document(#[from] DocumentFault),
}

impl Refusal {
    /// The code: stable, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Method => "METHOD",
            Self::Token => "TOKEN",
            Self::Credential => "CREDENTIAL",
            Self::Slow => "SLOW",
            Self::TooLarge(_) => "TOO_LARGE",
            Self::Malformed(_) => "MALFORMED",
            Self::RateLimited(_) => "RATE_LIMITED",
            Self::Full => "FULL",
            Self::Store(_) => "STORE",
            Self::Document(fault) => fault.code(),
        }
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Unknown => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::Credential => StatusCode::FORBIDDEN,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge(_) | Self::Document(DocumentFault::TooLarge { .. }) => {
                StatusCode::PAYLOAD_TOO_LARGE
            }
            Self::RateLimited(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Full | Self::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Document(DocumentFault::GenerationBack { .. }) => StatusCode::CONFLICT,
            Self::Malformed(_)
            | Self::Document(
                DocumentFault::Malformed(_)
                | DocumentFault::PinUnknown { .. }
                | DocumentFault::Signature
                | DocumentFault::Version { .. }
                | DocumentFault::OtherCluster { .. }
                | DocumentFault::NotYetValid { .. }
                | DocumentFault::Expired { .. },
            ) => StatusCode::BAD_REQUEST,
        }
    }
}
