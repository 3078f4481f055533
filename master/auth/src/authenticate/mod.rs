//! Authentication: by the connection's certificate, else by a token, else as the anonymous user.
//!
//! A token is looked up in the static list, then as a service account token, then as a bootstrap
//! token; an unknown token is refused even where an anonymous caller would be accepted. Tokens are
//! compared in constant time and appear in no message and no log.

mod accounts;
mod bearer;
mod bootstrap;
mod certificate;
mod claims;
mod credential;
mod impersonate;
mod issuer;
mod token_list;

use crate::nodes::Nodes;
pub use certificate::of_certificate;
pub use claims::{Claims, Private, Reference};
use config_errors::chain;
pub use credential::Identified;
use http::HeaderMap;
pub use impersonate::impersonate;
pub use issuer::{TokenIssuer, TokenKeyError};
use master_client::{BoxFuture, UserInfo};
use master_schema::error::{ApiError, Reason};
use master_store::Reader;
use std::sync::Arc;
pub use token_list::{TokenFileError, TokenList};

/// The client certificate of a connection, which the TLS layer has verified.
#[derive(Debug, Clone, Copy)]
pub enum ClientCertificate<'a> {
    /// The client sent none.
    Absent,
    /// It names no user.
    Nameless,
    /// It names a user.
    Of(&'a UserInfo),
}

/// Authenticates callers.
#[derive(Debug)]
pub struct Authenticator {
    tokens: TokenList,
    issuer: Option<Arc<TokenIssuer>>,
    reader: Arc<dyn Reader>,
    nodes: Arc<dyn Nodes>,
}

impl Authenticator {
    /// An authenticator by certificates, by the tokens of a list, by those of the issuer and by
    /// bootstrap tokens. Without an issuer it makes one with a key of this process, whose tokens
    /// end with it.
    pub fn new(
        tokens: TokenList,
        issuer: Option<Arc<TokenIssuer>>,
        reader: Arc<dyn Reader>,
        nodes: Arc<dyn Nodes>,
    ) -> Self {
        Self {
            tokens,
            issuer: issuer.or_else(|| TokenIssuer::ephemeral().map(Arc::new)),
            reader,
            nodes,
        }
    }

    /// The issuer of service account tokens; `None` if no key could be made.
    pub fn issuer(&self) -> Option<&Arc<TokenIssuer>> {
        self.issuer.as_ref()
    }

    /// Authenticates the caller of a request and removes its credentials from the headers.
    ///
    /// # Errors
    /// The credentials are invalid (`Unauthorized`), or an object that a token names cannot be
    /// read.
    pub fn caller<'a>(
        &'a self,
        headers: &'a mut HeaderMap,
        certificate: ClientCertificate<'a>,
    ) -> BoxFuture<'a, Result<UserInfo, ApiError>> {
        Box::pin(self.by_credentials(headers, certificate))
    }

    async fn by_credentials(
        &self,
        headers: &mut HeaderMap,
        certificate: ClientCertificate<'_>,
    ) -> Result<UserInfo, ApiError> {
        if let ClientCertificate::Of(user) = certificate {
            return Ok(user.clone());
        }
        let refused = || ApiError::new(Reason::Unauthorized, "Unauthorized");
        let found = match (bearer::token(headers), certificate) {
            (Some(wanted), _) => self.token(&wanted, &[]).await,
            (None, ClientCertificate::Absent) => return Ok(UserInfo::anonymous()),
            (None, ClientCertificate::Nameless | ClientCertificate::Of(_)) => return Err(refused()),
        };
        match found {
            Ok(Some(found)) => {
                bearer::forget(headers);
                Ok(found.user)
            }
            Ok(None) => Err(refused()),
            Err(error) if error.reason == Reason::Unauthorized => {
                tracing::debug!(error = chain(&error), "token refused");
                Err(refused())
            }
            Err(error) => Err(error),
        }
    }

    /// The user of a token; `None` if the token is unknown. It must be valid for one of
    /// `audiences`; if there are none, for one of the API's own.
    ///
    /// # Errors
    /// The token is known and invalid (`Unauthorized`, with the reason), or an object that it names
    /// cannot be read.
    pub fn token<'a>(
        &'a self,
        token: &'a str,
        audiences: &'a [String],
    ) -> BoxFuture<'a, Result<Option<Identified>, ApiError>> {
        Box::pin(self.look_up(token, audiences))
    }

    async fn look_up(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<Identified>, ApiError> {
        let issuer = self.issuer.as_deref();
        let own = issuer.map_or(&[][..], TokenIssuer::audiences);
        // Tokens that name no audience are valid for the API's own.
        let implied: Vec<String> = audiences
            .iter()
            .filter(|wanted| own.contains(wanted))
            .cloned()
            .collect();
        let fits = audiences.is_empty() || !implied.is_empty();
        if let Some(user) = self.tokens.find(token) {
            return Ok(fits.then_some(Identified {
                user,
                audiences: implied,
            }));
        }
        if let Some(issuer) = issuer {
            let accounts = accounts::Accounts {
                reader: &*self.reader,
                nodes: &*self.nodes,
                issuer,
            };
            if let Some(found) = accounts.find(token, audiences).await? {
                return Ok(Some(found));
            }
        }
        let user = bootstrap::find(&*self.reader, token).await?;
        Ok(user.filter(|_| fits).map(|user| Identified {
            user,
            audiences: implied,
        }))
    }
}
