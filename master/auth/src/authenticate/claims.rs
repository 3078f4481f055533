//! Claims and encoding of service account tokens: JSON Web Tokens (RFC 7519) signed with ES256.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Issuer of non-expiring tokens, which secrets of type `kubernetes.io/service-account-token` hold.
pub(super) const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";

/// An object that a token is bound to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    /// Its name.
    pub name: String,
    /// Its uid; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// The claims under `kubernetes.io`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Private {
    /// The namespace of the account and of all that the token is bound to.
    pub namespace: String,
    /// The node that the token is bound to, or that its pod runs on.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node: Option<Reference>,
    /// The pod that the token is bound to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pod: Option<Reference>,
    /// The secret that the token is bound to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub secret: Option<Reference>,
    /// The service account.
    pub serviceaccount: Reference,
    /// When the token should have been replaced.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub warnafter: Option<i64>,
}

/// The claims of a bound token. Times are seconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// The audiences.
    #[serde(default, deserialize_with = "one_or_many")]
    pub aud: Vec<String>,
    /// When the token expires.
    pub exp: i64,
    /// When it was issued.
    pub iat: i64,
    /// The URL of the issuer.
    pub iss: String,
    /// The id of the token.
    #[serde(default)]
    pub jti: String,
    /// What the token is bound to.
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: Private,
    /// Before this time the token is not valid.
    pub nbf: i64,
    /// The name of the user.
    pub sub: String,
}

/// The claims of a token in a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LegacyClaims {
    pub(super) iss: String,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    pub(super) namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    pub(super) secret: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    pub(super) account: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    pub(super) uid: String,
    pub(super) sub: String,
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

/// Parses a token; `None` if it does not have the form of a JWT.
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
