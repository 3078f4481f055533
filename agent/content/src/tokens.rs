//! Service account tokens of a pod: asked for when they are needed, kept until most of their life
//! is over.
//!
//! A token is bound to its pod (KEP-1205): the master refuses it once the pod is gone.

use agent_api::{Api, JSON, post};
use agent_pods::is_plain;
use agent_runtime::PodRef;
use config_kube::k8s_openapi::api::authentication::v1::TokenRequest;
use config_kube::k8s_openapi::api::core::v1::{Pod, ServiceAccountTokenProjection};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt;

/// Lifetime of a token whose volume names none, in seconds (upstream's).
const LIFETIME: i64 = 3600;
/// A token is replaced at the latest after this time, however long it lives (upstream's).
const LONGEST_USE: SignedDuration = SignedDuration::from_hours(24);

/// The kind of a token; a pod has one token of each kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenKind {
    /// For whom it is; empty for the API server.
    audience: String,
    /// Seconds that it is asked for.
    seconds: i64,
}

impl From<&ServiceAccountTokenProjection> for TokenKind {
    fn from(source: &ServiceAccountTokenProjection) -> Self {
        let seconds = source.expiration_seconds.unwrap_or(LIFETIME);
        Self {
            audience: source.audience.clone().unwrap_or_default(),
            seconds,
        }
    }
}

/// A token, which its Debug form doesn't show.
#[derive(Clone)]
struct Token {
    text: String,
    /// When the next one is due.
    renew: Timestamp,
    expires: Timestamp,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("renew", &self.renew)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// A pod's tokens.
#[derive(Debug, Clone, Default)]
pub struct Tokens(BTreeMap<TokenKind, Token>);

impl Tokens {
    /// The token of a kind, while it is there.
    pub fn get(&self, kind: &TokenKind) -> Option<&str> {
        self.0.get(kind).map(|token| token.text.as_str())
    }

    /// Brings the tokens of these kinds up to date. One that is still good outlives a master that
    /// doesn't answer.
    ///
    /// # Errors
    /// The master gives no token of a kind of which none is good any more.
    pub async fn refresh(
        &mut self,
        kinds: Vec<TokenKind>,
        api: &dyn Api,
        pod: &Pod,
        id: &PodRef,
        now: Timestamp,
    ) -> Result<(), String> {
        self.0.retain(|kind, _| kinds.contains(kind));
        for kind in kinds {
            let known = self.0.get(&kind);
            if known.is_some_and(|token| now < token.renew) {
                continue;
            }
            let usable = known.is_some_and(|token| now < token.expires);
            match ask(&kind, api, pod, id, now).await {
                Ok(token) => drop(self.0.insert(kind, token)),
                Err(error) if usable => {
                    tracing::warn!(
                        pod = id.name,
                        error,
                        "cannot renew a service account token; trying again"
                    );
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

async fn ask(
    kind: &TokenKind,
    api: &dyn Api,
    pod: &Pod,
    id: &PodRef,
    now: Timestamp,
) -> Result<Token, String> {
    let account = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.service_account_name.as_deref())
        .unwrap_or("default");
    if !is_plain(account) {
        return Err(format!("{account:?} is no name of a service account"));
    }
    let audiences: Vec<&str> = Some(kind.audience.as_str())
        .filter(|audience| !audience.is_empty())
        .into_iter()
        .collect();
    let body = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {
            "audiences": audiences, "expirationSeconds": kind.seconds,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": id.name, "uid": id.uid},
        },
    });
    let path = format!(
        "/api/v1/namespaces/{}/serviceaccounts/{account}/token",
        id.namespace
    );
    let fault =
        |what: &str| format!("failed to fetch token of service account {account:?}: {what}");
    let answer: TokenRequest = post(api, path, JSON, &body)
        .await
        .map_err(|error| fault(&error.chain()))?;
    let status = answer
        .status
        .ok_or_else(|| fault("the answer carries none"))?;
    let (Some(text), Some(expires)) = (status.token, status.expiration_timestamp) else {
        return Err(fault("the answer carries none"));
    };
    Ok(Token {
        text,
        renew: renewal(now, expires.0),
        expires: expires.0,
    })
}

/// When a token that was issued now is replaced: at four fifths of its life (upstream's).
fn renewal(now: Timestamp, expires: Timestamp) -> Timestamp {
    let life = expires.duration_since(now);
    let most = SignedDuration::from_secs(life.as_secs() / 5 * 4);
    now.saturating_add(most.min(LONGEST_USE)).unwrap_or(expires)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_replaced_at_four_fifths_of_its_life_and_daily() {
        let now = Timestamp::UNIX_EPOCH;
        let after = |seconds| renewal(now, now + SignedDuration::from_secs(seconds)).as_second();
        assert_eq!(
            (after(600), after(3600), after(30 * 86_400)),
            (480, 2880, 86_400)
        );
        assert!(after(-5) <= 0, "one that is over is replaced at once");
    }
}
