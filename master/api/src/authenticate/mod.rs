//! Authentication: by the connection's certificate, else by a token, else as the anonymous user.
//!
//! A token is looked up in the static list, then as a service account token, then as a bootstrap
//! token; an unknown token is refused even where an anonymous caller would be accepted. Tokens are
//! compared in constant time and appear in no message and no log.

mod accounts;
mod bearer;
mod bootstrap;
pub(crate) mod certificate;
mod claims;
mod fixed;
pub(crate) mod impersonate;
mod issuer;

use crate::peer::Peer;
use crate::server::ApiServer;
pub(crate) use claims::{Claims, Private, Reference};
pub use fixed::{TokenFileError, TokenList};
use http::HeaderMap;
pub use issuer::{TokenIssuer, TokenKeyError};
use master_client::{BoxFuture, UserInfo};
use master_schema::error::{ApiError, Reason};

/// The key in a user's extra under which the server names the credential that was used.
pub(crate) const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// The user of a token, and the requested audiences for which it is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) user: UserInfo,
    pub(crate) audiences: Vec<String>,
}

/// The error for an invalid token; only callers of TokenReview see the reason.
fn bad(why: impl Into<String>) -> ApiError {
    ApiError::new(Reason::Unauthorized, why)
}

/// Authenticates the caller of a request and removes its credentials from the headers.
pub(crate) fn caller<'a>(
    api: &'a ApiServer,
    headers: &'a mut HeaderMap,
    peer: &'a Peer,
) -> BoxFuture<'a, Result<UserInfo, ApiError>> {
    Box::pin(by_credentials(api, headers, peer))
}

async fn by_credentials(
    api: &ApiServer,
    headers: &mut HeaderMap,
    peer: &Peer,
) -> Result<UserInfo, ApiError> {
    if let Some(user) = peer.user() {
        return Ok(user.clone());
    }
    let refused = || ApiError::new(Reason::Unauthorized, "Unauthorized");
    let found = match bearer::token(headers) {
        Some(wanted) => token(api, &wanted, &[]).await,
        // A certificate without a common name names no user.
        None if peer.certificates.is_empty() => return Ok(UserInfo::anonymous()),
        None => return Err(refused()),
    };
    match found {
        Ok(Some(found)) => {
            bearer::forget(headers);
            Ok(found.user)
        }
        Ok(None) => Err(refused()),
        Err(error) if error.reason == Reason::Unauthorized => {
            tracing::debug!(%error, "token refused");
            Err(refused())
        }
        Err(error) => Err(error),
    }
}

/// The user of a token; `None` if the token is unknown. It must be valid for one of `audiences`; if
/// there are none, for one of the API's own.
pub(crate) fn token<'a>(
    api: &'a ApiServer,
    token: &'a str,
    audiences: &'a [String],
) -> BoxFuture<'a, Result<Option<Found>, ApiError>> {
    Box::pin(look_up(api, token, audiences))
}

async fn look_up(
    api: &ApiServer,
    token: &str,
    audiences: &[String],
) -> Result<Option<Found>, ApiError> {
    let issuer = api.inner.issuer.as_deref();
    let own = issuer.map_or(&[][..], TokenIssuer::audiences);
    // Tokens that name no audience are valid for the API's own.
    let implied: Vec<String> = audiences
        .iter()
        .filter(|wanted| own.contains(wanted))
        .cloned()
        .collect();
    let fits = audiences.is_empty() || !implied.is_empty();
    if let Some(user) = api.inner.options.tokens.find(token) {
        return Ok(fits.then_some(Found {
            user,
            audiences: implied,
        }));
    }
    if let Some(issuer) = issuer
        && let Some(found) = accounts::find(api, issuer, token, audiences).await?
    {
        return Ok(Some(found));
    }
    let user = bootstrap::find(api, token).await?;
    Ok(user.filter(|_| fits).map(|user| Found {
        user,
        audiences: implied,
    }))
}
