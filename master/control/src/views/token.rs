//! Bootstrap tokens: until when they count, and whether they sign.

use crate::views::uid;
use config_kube::k8s_openapi::api::core::v1::Secret;
use jiff::Timestamp;
use master_client::{Scope, View};
use std::fmt;

/// The namespace of bootstrap tokens.
pub const NAMESPACE: &str = "kube-system";
/// Which secrets they are.
const TYPE: &str = "bootstrap.kubernetes.io/token";
/// How names of their secrets begin.
const PREFIX: &str = "bootstrap-token-";

/// A bootstrap token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenView {
    /// UID of its secret.
    pub uid: String,
    /// When it expires; `None`: never.
    pub expires: Option<Timestamp>,
    /// The key with which it signs, if it may sign.
    pub signing: Option<SigningToken>,
}

/// A token that may sign. Its secret part is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningToken {
    /// The public part.
    pub id: String,
    /// The secret part.
    pub secret: String,
}

impl fmt::Debug for SigningToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningToken")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl View for TokenView {
    type Object = Secret;

    fn scope() -> Scope {
        Scope {
            namespace: Some(NAMESPACE),
            fields: Some(format!("type={TYPE}")),
        }
    }

    fn read(secret: Secret) -> Self {
        Self {
            uid: uid(&secret.metadata),
            expires: expires(&secret),
            signing: signing(&secret),
        }
    }
}

/// When a token expires. A time that cannot be read is over, as for authentication (upstream).
fn expires(secret: &Secret) -> Option<Timestamp> {
    let text = secret.data.as_ref()?.get("expiration")?;
    let text = std::str::from_utf8(&text.0).ok().map(str::trim);
    match text {
        Some("") => None,
        Some(time) => Some(time.parse().unwrap_or(Timestamp::UNIX_EPOCH)),
        None => Some(Timestamp::UNIX_EPOCH),
    }
}

/// The token of a secret, where it is one that may sign.
fn signing(secret: &Secret) -> Option<SigningToken> {
    let data = secret.data.as_ref()?;
    let text = |key: &str| {
        let value = data.get(key);
        value
            .and_then(|value| std::str::from_utf8(&value.0).ok())
            .unwrap_or_default()
    };
    let (id, own) = (text("token-id"), text("token-secret"));
    let named = secret.metadata.name.as_deref()?.strip_prefix(PREFIX) == Some(id);
    let formed = id.len() == 6
        && id
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let signs = text("usage-bootstrap-signing") == "true";
    (named && formed && signs && !own.is_empty()).then(|| SigningToken {
        id: id.to_owned(),
        secret: own.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::k8s_openapi::ByteString;
    use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    #[test]
    fn a_time_that_cannot_be_read_is_over() {
        let read = |time: Option<&[u8]>| {
            let data = time.map(|time| ("expiration".to_owned(), ByteString(time.to_vec())));
            let secret = Secret {
                data: Some(data.into_iter().collect()),
                ..Secret::default()
            };
            TokenView::read(secret).expires
        };
        assert_eq!([None, Some(b"".as_slice())].map(read), [None; 2]);
        let time = "2100-01-01T00:00:00Z";
        assert_eq!(read(Some(time.as_bytes())), time.parse::<Timestamp>().ok());
        for time in [b"some day".as_slice(), b"\xff".as_slice()] {
            assert_eq!(read(Some(time)), Some(Timestamp::UNIX_EPOCH));
        }
    }

    #[test]
    fn only_tokens_that_may_sign_do() {
        let secret = |name: &str, id: &str, usage: &str| {
            let data = [
                ("token-id", id),
                ("token-secret", "0123456789abcdef"),
                ("usage-bootstrap-signing", usage),
            ];
            let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
            let data = data
                .into_iter()
                .map(|(key, value)| (key.to_owned(), bytes(value)))
                .collect();
            let metadata = ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            };
            Secret {
                data: Some(data),
                metadata,
                ..Secret::default()
            }
        };
        assert!(signing(&secret("bootstrap-token-abcdef", "abcdef", "true")).is_some());
        assert!(signing(&secret("bootstrap-token-abcdef", "abcdef", "false")).is_none());
        assert!(signing(&secret("bootstrap-token-other1", "abcdef", "true")).is_none());
        assert!(signing(&secret("bootstrap-token-ABC", "ABC", "true")).is_none());
        let shown = signing(&secret("bootstrap-token-abcdef", "abcdef", "true"));
        assert!(!format!("{shown:?}").contains("0123456789abcdef"));
    }
}
