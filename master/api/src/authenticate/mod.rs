//! Who asks: by the connection's certificate, else by a token, else nobody in particular.
//!
//! A token is looked up in the static list, then as a service account's, then as a bootstrap token; one that nobody knows
//! is refused even where a caller without any would be let through. Tokens are compared in constant time and appear in
//! no message and no log.

mod accounts;
mod bearer;
mod bootstrap;
pub(crate) mod certificate;
mod claims;
mod fixed;
pub(crate) mod impersonate;
mod issuer;

use crate::error::{ApiError, Reason};
use crate::peer::Peer;
use crate::server::ApiServer;
pub(crate) use claims::{Claims, Private, Reference};
pub use fixed::{TokenFileError, TokenList};
use http::HeaderMap;
pub use issuer::{TokenIssuer, TokenKeyError};
use master_client::{BoxFuture, UserInfo};

/// The key under which a caller's extra facts say by which credential he was known.
pub(crate) const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// Whom a token belongs to, and for which of the wanted audiences it is good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) user: UserInfo,
    pub(crate) audiences: Vec<String>,
}

/// A token that is not good, and why; the reason is told to those who may review tokens only.
fn bad(why: impl Into<String>) -> ApiError {
    ApiError::new(Reason::Unauthorized, why)
}

/// The caller of a request; its credentials are taken out of the headers.
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
        // A certificate without a name is nobody's.
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
            tracing::debug!(%error, "a token is refused");
            Err(refused())
        }
        Err(error) => Err(error),
    }
}

/// Whom a token belongs to; none where nobody knows it. `audiences` are those it must be good for (one of them is
/// enough); none: the API's own.
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
    // Tokens that name no audience are good for the API's own.
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
