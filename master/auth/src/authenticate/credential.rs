//! Types that all authenticators share.

use master_client::UserInfo;
use master_schema::error::{ApiError, Reason};

/// The key in a user's extra under which the server names the credential that was used.
pub(super) const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// The user of a token, and the requested audiences for which it is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identified {
    /// The user.
    pub user: UserInfo,
    /// The audiences; empty if none were requested.
    pub audiences: Vec<String>,
}

/// The error for an invalid token; only callers of TokenReview see the reason.
pub(super) fn bad(why: impl Into<String>) -> ApiError {
    ApiError::new(Reason::Unauthorized, why)
}
