//! One repository at one registry: requests with the proof that the registry asks for.
//!
//! Guarantees: a credential goes to the registry's own host, and to a token service only if that is
//! on the same host or the configuration names its host; never over plain http; never in answer to
//! what another host says, such as the target of a redirect. A token is asked for the one
//! repository and for pulling, whatever scope the registry's challenge names. Each request is
//! answered by at most one challenge, so that a registry that always says 401 ends it.

use crate::credential::{Credential, Secret, basic, bearer};
use crate::http::{ChosenBy, Http, HttpError, Reply, Scheme, address, origin};
use config_http::{Challenge, percent};
use http::StatusCode;
use http::header::WWW_AUTHENTICATE;
use serde::Deserialize;
use std::fmt::Write as _;
use tokio::sync::Mutex;

/// Longest answer of a token service.
const MAX_TOKEN: usize = 64 * 1024;
/// Longest document in which a registry says why it refuses.
const MAX_REASON: usize = 16 * 1024;
/// Longest code of such a reason.
const MAX_CODE: usize = 64;

/// One repository at one registry.
#[derive(Debug)]
pub(crate) struct Session {
    http: Http,
    /// Scheme and host.
    base: String,
    /// The repository's path.
    repository: String,
    /// The credential, if there is one.
    credential: Option<Credential>,
    /// Hosts with their ports to which the credential may go beside the registry's own.
    token_hosts: Vec<String>,
    /// The `Authorization` that was taken last.
    header: Mutex<Option<Secret>>,
}

/// The answer of a token service (distribution specification, "Token Authentication"; RFC 6749,
/// 5.1).
#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

/// Why a registry refuses (OCI distribution specification, "Error Codes").
#[derive(Deserialize)]
struct Reasons {
    errors: Vec<Reason>,
}

#[derive(Deserialize)]
struct Reason {
    code: String,
}

impl Session {
    pub(crate) fn new(
        http: Http,
        base: String,
        repository: String,
        credential: Option<Credential>,
        token_hosts: Vec<String>,
    ) -> Self {
        Self {
            http,
            base,
            repository,
            credential,
            token_hosts,
            header: Mutex::new(None),
        }
    }

    /// Asks for `path` below the repository; an answer is 200.
    pub(crate) async fn get(&self, path: &str, accept: &'static str) -> Result<Reply, HttpError> {
        let url = format!("{}/v2/{}/{path}", self.base, self.repository);
        let mut answered = false;
        loop {
            let header = self.header.lock().await.clone();
            let reply = self
                .http
                .get(&url, accept, header.as_ref(), ChosenBy::Name)
                .await?;
            let status = reply.answer.status();
            if status == StatusCode::OK {
                return Ok(reply);
            }
            if status != StatusCode::UNAUTHORIZED || !reply.at_home || answered {
                return Err(refusal(reply).await);
            }
            answered = true;
            let headers = reply.answer.headers().get_all(WWW_AUTHENTICATE).iter();
            let challenges: Vec<Challenge> = headers
                .filter_map(|value| Challenge::read(value.to_str().ok()?))
                .collect();
            let bearer = challenges
                .iter()
                .find(|one| matches!(one, Challenge::Bearer { .. }));
            let Some(challenge) = bearer.or(challenges.first()) else {
                return Err(refusal(reply).await);
            };
            let header = self.answer(challenge).await?;
            *self.header.lock().await = Some(header);
        }
    }

    /// The `Authorization` that a challenge asks for.
    async fn answer(&self, challenge: &Challenge) -> Result<Secret, HttpError> {
        let own = origin(&address(&self.base)?).1;
        match (challenge, &self.credential) {
            (_, Some(_)) if !self.base.starts_with("https://") => Err(HttpError::Unauthorized(
                format!("{own} asks for a credential, which is never sent over plain http"),
            )),
            (_, Some(Credential::RegistryToken(token))) => Ok(bearer(token)),
            (Challenge::Basic, Some(Credential::Password { username, password })) => {
                Ok(basic(username, password))
            }
            (Challenge::Basic, Some(Credential::IdentityToken(_))) => Err(HttpError::Unauthorized(
                format!("{own} takes a name and a password, and there is an identity token"),
            )),
            (Challenge::Basic, None) => Err(HttpError::Unauthorized(format!(
                "{own} asks for a name and a password, and there are none"
            ))),
            (
                Challenge::Bearer {
                    realm,
                    service,
                    scope,
                },
                credential,
            ) => {
                self.token(
                    &own,
                    realm,
                    service.as_deref(),
                    scope.as_deref(),
                    credential.as_ref(),
                )
                .await
            }
        }
    }

    /// A token of the service that the registry names.
    async fn token(
        &self,
        own: &str,
        realm: &str,
        service: Option<&str>,
        scope: Option<&str>,
        credential: Option<&Credential>,
    ) -> Result<Secret, HttpError> {
        let at = address(realm)?;
        let (scheme, host) = origin(&at);
        if scheme == Scheme::Plain && (credential.is_some() || !self.http.may_be_plain(&host)) {
            return Err(HttpError::Plain {
                host: own.to_owned(),
                to: host,
            });
        }
        if credential.is_some() && host != own && !self.token_hosts.contains(&host) {
            return Err(HttpError::Unauthorized(format!(
                "{own} wants the credential to go to {host}, which is not among `token_hosts` of its `[[registry]]`"
            )));
        }
        let chosen = if host == own {
            ChosenBy::Name
        } else {
            ChosenBy::Registry
        };
        let query = self.query(service, scope);
        let reply = match credential {
            Some(Credential::IdentityToken(token)) => {
                let form = format!(
                    "grant_type=refresh_token&client_id=pratique&{query}&refresh_token={}",
                    percent::encode(token.reveal())
                );
                self.http
                    .post_form(realm, &Secret::new(form), chosen)
                    .await?
            }
            Some(Credential::Password { username, password }) => {
                self.ask(realm, &query, Some(&basic(username, password)), chosen)
                    .await?
            }
            Some(Credential::RegistryToken(_)) | None => {
                self.ask(realm, &query, None, chosen).await?
            }
        };
        if reply.answer.status() != StatusCode::OK {
            let error = refusal(reply).await;
            let who = if credential.is_some() {
                "the credential"
            } else {
                "a caller without credential"
            };
            return Err(HttpError::Unauthorized(format!(
                "the token service refuses {who}: {error}"
            )));
        }
        let body = reply.collect(MAX_TOKEN).await?;
        let token = usable_token(&body).ok_or_else(|| {
            HttpError::Unauthorized(format!(
                "the token service {host} gave no token that can be used"
            ))
        })?;
        Ok(bearer(&token))
    }

    async fn ask(
        &self,
        realm: &str,
        query: &str,
        authorization: Option<&Secret>,
        chosen: ChosenBy,
    ) -> Result<Reply, HttpError> {
        let glue = if realm.contains('?') { '&' } else { '?' };
        self.http
            .get(
                &format!("{realm}{glue}{query}"),
                "application/json",
                authorization,
                chosen,
            )
            .await
    }

    /// What the token is for: this repository, and pulling. A word without colons is a scope of the
    /// service's own, which gives no right to a repository by name.
    fn query(&self, service: Option<&str>, scope: Option<&str>) -> String {
        let mut query = String::new();
        if let Some(service) = service {
            // Writing to a String cannot fail.
            write!(query, "service={}&", percent::encode(service)).ok();
        }
        let wanted = format!("repository:{}:pull", self.repository);
        let scope = scope
            .filter(|scope| !scope.contains(':') && !scope.is_empty())
            .unwrap_or(&wanted);
        query + "scope=" + &percent::encode(scope)
    }
}

/// The token in the answer of a token service; `None` where there is none that can be used. Why is
/// not said: errors of the parser quote secrets.
pub(crate) fn usable_token(answer: &[u8]) -> Option<Secret> {
    let answer: Token = serde_json::from_slice(answer).ok()?;
    let token = answer
        .token
        .filter(|token| !token.is_empty())
        .or(answer.access_token)
        .map(Secret::new);
    token.filter(|token| {
        !token.reveal().is_empty() && token.reveal().bytes().all(|b| b.is_ascii_graphic())
    })
}

/// The first code in a document with which a registry refuses, if it can be shown.
pub(crate) fn code(document: &[u8]) -> Option<String> {
    let reasons: Reasons = serde_json::from_slice(document).ok()?;
    let code = reasons.errors.into_iter().next()?.code;
    let plain = code.len() <= MAX_CODE && code.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    plain.then_some(code)
}

/// The registry's refusal, with its code where it gives one.
async fn refusal(reply: Reply) -> HttpError {
    let (host, status, at_home) = (reply.host.clone(), reply.answer.status(), reply.at_home);
    let body = if at_home {
        reply.collect(MAX_REASON).await.unwrap_or_default()
    } else {
        bytes::Bytes::new()
    };
    let code = code(&body)
        .map(|code| format!(" ({code})"))
        .unwrap_or_default();
    HttpError::Refused { host, status, code }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Named;
    use std::sync::Arc;

    fn session() -> Session {
        let http = Http::new(rustls::RootCertStore::empty(), Arc::new(Named::default()));
        Session::new(
            http,
            "https://registry.example".into(),
            "team/app".into(),
            None,
            Vec::new(),
        )
    }

    #[test]
    fn a_token_is_asked_for_pulling_this_repository_and_nothing_else() {
        let session = session();
        let own = "service=a%26scope%3Db&scope=repository%3Ateam%2Fapp%3Apull";
        assert_eq!(
            session.query(Some("a&scope=b"), Some("repository:other/app:pull,push")),
            own
        );
        assert_eq!(
            session.query(None, None),
            "scope=repository%3Ateam%2Fapp%3Apull"
        );
        assert_eq!(session.query(None, Some("aws")), "scope=aws");
        assert_eq!(
            session.query(None, Some("registry:catalog:*")),
            "scope=repository%3Ateam%2Fapp%3Apull"
        );
    }
}
