//! Claims and encoding of service account tokens: JSON Web Tokens (RFC 7519) signed with ES256.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Issuer of non-expiring tokens, which secrets of type `kubernetes.io/service-account-token` hold.
pub(super) const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";

/// An object that a token is bound to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reference {
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) uid: String,
}

/// The claims under `kubernetes.io`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Private {
    pub(crate) namespace: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) node: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) pod: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) secret: Option<Reference>,
    pub(crate) serviceaccount: Reference,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) warnafter: Option<i64>,
}

/// The claims of a bound token. Times are seconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claims {
    #[serde(default, deserialize_with = "one_or_many")]
    pub(crate) aud: Vec<String>,
    pub(crate) exp: i64,
    pub(crate) iat: i64,
    pub(crate) iss: String,
    #[serde(default)]
    pub(crate) jti: String,
    #[serde(rename = "kubernetes.io")]
    pub(crate) kubernetes: Private,
    pub(crate) nbf: i64,
    pub(crate) sub: String,
}

/// The claims of a token in a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LegacyClaims {
    pub(crate) iss: String,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    pub(crate) namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    pub(crate) secret: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    pub(crate) account: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    pub(crate) uid: String,
    pub(crate) sub: String,
}

/// The claims of a verified token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TokenClaims {
    Bound(Box<Claims>),
    Legacy(Box<LegacyClaims>),
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Audience {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Audience::deserialize(deserializer)? {
        Audience::One(one) => vec![one],
        Audience::Many(many) => many,
    })
}

/// A parsed token, not verified.
#[derive(Debug)]
pub(super) struct Unverified<'a> {
    /// The header's algorithm.
    pub(super) alg: String,
    /// The header's key id; empty if absent.
    pub(super) kid: String,
    /// The signed part.
    pub(super) signed: &'a str,
    pub(super) signature: Vec<u8>,
    pub(super) payload: Value,
}

/// Bytes that a token may have.
const MAX_BYTES: usize = 16 << 10;

/// Parses a token; `None` if it has not the form of a JWT.
pub(super) fn parse(token: &str) -> Option<Unverified<'_>> {
    if token.len() > MAX_BYTES {
        return None;
    }
    let (signed, signature) = token.rsplit_once('.')?;
    let (header, payload) = signed.split_once('.')?;
    let json =
        |part: &str| serde_json::from_slice::<Value>(&URL_SAFE_NO_PAD.decode(part).ok()?).ok();
    let header = json(header)?;
    let text = |key: &str| {
        header
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
    Some(Unverified {
        alg: text("alg"),
        kid: text("kid"),
        signed,
        signature,
        payload: json(payload)?,
    })
}

/// The part of a new token that is signed.
pub(super) fn unsigned(kid: &str, claims: &impl Serialize) -> Option<String> {
    let header = serde_json::json!({"alg": "ES256", "kid": kid});
    let payload = serde_json::to_vec(claims).ok()?;
    Some(format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(header.to_string()),
        URL_SAFE_NO_PAD.encode(payload)
    ))
}
