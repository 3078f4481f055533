//! Signs and verifies service account tokens and publishes the public keys.

use super::claims::{self, Claims, LEGACY_ISSUER, LegacyClaims, TokenClaims};
use super::credential::bad;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use master_schema::error::{ApiError, Reason};
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair,
    UnparsedPublicKey,
};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// Issuer if the configuration names none.
const DEFAULT_URL: &str = "https://kubernetes.default.svc.cluster.local";
/// DER prefix of a P-256 public key, before the point (RFC 5480).
const SPKI_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// Bytes of an uncompressed point.
const POINT: usize = 65;
/// Verified signatures in the cache; when it is full, it is emptied.
const CACHED: usize = 4096;

/// A key cannot be used for tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenKeyError {
    /// The signing key is invalid.
    #[error("the service accounts' signing key is no P-256 key in PKCS#8: {0}")]
    Signing(String),
    /// A retired public key is invalid.
    #[error("retired service account key number {0} is no P-256 public key")]
    Retired(usize),
}

#[derive(Debug)]
struct PublicKey {
    kid: String,
    point: [u8; POINT],
}

impl PublicKey {
    fn new(point: &[u8]) -> Option<Self> {
        let point: [u8; POINT] = point
            .try_into()
            .ok()
            .filter(|point: &[u8; POINT]| point[0] == 4)?;
        let spki: Vec<u8> = SPKI_PREFIX.iter().chain(&point).copied().collect();
        Some(Self {
            kid: URL_SAFE_NO_PAD.encode(digest(&SHA256, &spki)),
            point,
        })
    }

    fn of_spki(spki: &[u8]) -> Option<Self> {
        Self::new(spki.strip_prefix(&SPKI_PREFIX)?)
    }

    fn jwk(&self) -> Value {
        let (x, y) = self.point[1..].split_at(32);
        json!({
            "use": "sig", "kty": "EC", "kid": self.kid, "crv": "P-256", "alg": "ES256",
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        })
    }
}

/// The issuer of service account tokens: one signing key, and the public keys of all tokens that
/// are still valid.
pub struct TokenIssuer {
    url: String,
    audiences: Vec<String>,
    key: EcdsaKeyPair,
    /// The first belongs to the signing key.
    public: Vec<PublicKey>,
    random: SystemRandom,
    verified: Mutex<HashMap<[u8; 32], TokenClaims>>,
}

impl fmt::Debug for TokenIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenIssuer")
            .field("url", &self.url)
            .field("public", &self.public)
            .finish_non_exhaustive()
    }
}

impl TokenIssuer {
    /// An issuer of a URL (`None`: `https://kubernetes.default.svc.cluster.local`), whose tokens
    /// are valid for `audiences` beside the URL. `signing` is a P-256 key in PKCS#8; `retired` are
    /// the public keys (SubjectPublicKeyInfo) of tokens that are still valid.
    ///
    /// # Errors
    /// A key is not a P-256 key in the expected encoding.
    pub fn new(
        url: Option<&str>,
        audiences: &[String],
        signing: &[u8],
        retired: &[Vec<u8>],
    ) -> Result<Self, TokenKeyError> {
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, signing, &random)
            .map_err(|rejected| TokenKeyError::Signing(rejected.to_string()))?;
        let own = PublicKey::new(key.public_key().as_ref())
            .ok_or_else(|| TokenKeyError::Signing("its point is not of this curve".to_owned()))?;
        let mut public = vec![own];
        for (number, spki) in retired.iter().enumerate() {
            let key = PublicKey::of_spki(spki).ok_or(TokenKeyError::Retired(number + 1))?;
            if public.iter().all(|known| known.kid != key.kid) {
                public.push(key);
            }
        }
        let url = url.unwrap_or(DEFAULT_URL).to_owned();
        let others = audiences
            .iter()
            .filter(|audience| **audience != url)
            .cloned();
        let audiences = std::iter::once(url.clone()).chain(others).collect();
        Ok(Self {
            url,
            audiences,
            key,
            public,
            random,
            verified: Mutex::default(),
        })
    }

    /// An issuer with a key that exists only in this process, for servers that are given none.
    pub(crate) fn ephemeral() -> Option<Self> {
        let key =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
                .ok()?;
        Self::new(None, &[], key.as_ref(), &[]).ok()
    }

    /// The audiences of the API itself; the issuer's URL is the first.
    pub fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// The issuer's URL, as in the claim `iss`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The public keys (RFC 7517).
    pub fn keys(&self) -> Value {
        json!({ "keys": self.public.iter().map(PublicKey::jwk).collect::<Vec<_>>() })
    }

    /// The OpenID Connect Discovery document, for clients of other trust domains.
    pub fn discovery(&self) -> Value {
        json!({
            "issuer": self.url, "jwks_uri": format!("{}/openid/v1/jwks", self.url.trim_end_matches('/')),
            "response_types_supported": ["id_token"], "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        })
    }

    fn sign(&self, claims: &impl Serialize) -> Result<String, ApiError> {
        let fail = || ApiError::new(Reason::InternalError, "the token cannot be signed");
        let kid = self
            .public
            .first()
            .map(|key| key.kid.as_str())
            .unwrap_or_default();
        let text = claims::unsigned(kid, claims).ok_or_else(fail)?;
        let signature = self
            .key
            .sign(&self.random, text.as_bytes())
            .map_err(|_opaque| fail())?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Signs a token with these claims.
    ///
    /// # Errors
    /// The token cannot be encoded or signed.
    pub fn issue(&self, claims: &Claims) -> Result<String, ApiError> {
        self.sign(claims)
    }

    /// A token that does not expire, for a secret of type `kubernetes.io/service-account-token`. It
    /// is valid while that secret holds it and the service account is the same.
    ///
    /// # Errors
    /// The token cannot be encoded or signed.
    pub fn legacy_token(
        &self,
        namespace: &str,
        secret: &str,
        account: &str,
        uid: &str,
    ) -> Result<String, ApiError> {
        self.sign(&LegacyClaims {
            iss: LEGACY_ISSUER.to_owned(),
            namespace: namespace.to_owned(),
            secret: secret.to_owned(),
            account: account.to_owned(),
            uid: uid.to_owned(),
            sub: format!("system:serviceaccount:{namespace}:{account}"),
        })
    }

    /// The claims of a token of this issuer; `None` for tokens of other issuers. An `Err` says that
    /// the token claims to be this issuer's, but its signature is wrong or it cannot be parsed. The
    /// caller checks whether the claims still hold.
    pub(super) fn verify(&self, token: &str) -> Result<Option<TokenClaims>, ApiError> {
        let hash: [u8; 32] = digest(&SHA256, token.as_bytes())
            .as_ref()
            .try_into()
            .unwrap_or_default();
        let known = self
            .verified
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&hash)
            .cloned();
        if known.is_some() {
            return Ok(known);
        }
        let Some(unverified) = claims::parse(token) else {
            return Ok(None);
        };
        let issuer = unverified
            .payload
            .get("iss")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        if issuer != self.url && issuer != LEGACY_ISSUER {
            return Ok(None);
        }
        if unverified.alg != "ES256" {
            return Err(bad(
                "the service account token is signed by another algorithm than the issuer's",
            ));
        }
        let named: Vec<&PublicKey> = self
            .public
            .iter()
            .filter(|key| key.kid == unverified.kid)
            .collect();
        // Anyone may send tokens, and to verify a signature costs time: a token that names a key is
        // verified with that key alone.
        let keys = if unverified.kid.is_empty() {
            self.public.iter().collect()
        } else {
            named
        };
        let good = keys.into_iter().any(|key| {
            let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key.point);
            key.verify(unverified.signed.as_bytes(), &unverified.signature)
                .is_ok()
        });
        if !good {
            return Err(bad(
                "the service account token's signature is not the issuer's",
            ));
        }
        let unreadable = |_error| bad("the service account token's claims cannot be read");
        let read = if issuer == LEGACY_ISSUER {
            TokenClaims::Legacy(serde_json::from_value(unverified.payload).map_err(unreadable)?)
        } else {
            TokenClaims::Bound(serde_json::from_value(unverified.payload).map_err(unreadable)?)
        };
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if verified.len() >= CACHED {
            verified.clear();
        }
        verified.insert(hash, read.clone());
        Ok(Some(read))
    }
}
