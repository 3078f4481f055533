//! SHA-256 digests, as values and as text.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;

/// A SHA-256 digest. In JSON it is 64 lower-case hex digits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

/// Text that is not a SHA-256 digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a SHA-256 digest: expected 64 hex digits, optionally after `sha256:`")]
pub struct NotADigest;

impl Digest {
    /// A register's value before anything is measured into it.
    pub const ZERO: Self = Self([0; 32]);

    /// SHA-256 of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// SHA-256 of parts, one after the other.
    pub fn of_parts(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    /// From exactly 32 bytes.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// 64 hex digits.
    pub fn to_hex(&self) -> String {
        hex::encode(self.0)
    }

    /// `sha256:` and 64 hex digits, as API objects and TOML write it.
    pub fn to_text(&self) -> String {
        format!("sha256:{}", self.to_hex())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl FromStr for Digest {
    type Err = NotADigest;

    /// Takes 64 hex digits with or without `sha256:` before them.
    fn from_str(text: &str) -> Result<Self, NotADigest> {
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        let mut bytes = [0; 32];
        match hex::decode_to_slice(digits, &mut bytes) {
            Ok(()) => Ok(Self(bytes)),
            Err(_) => Err(NotADigest),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl From<[u8; 32]> for Digest {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_hex())
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        // Programs write digests in this form only.
        if !is_lower_hex(&text) {
            return Err(serde::de::Error::custom(
                "expected 64 lower-case hex digits",
            ));
        }
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Whether text is of lower-case hex digits only.
pub fn is_lower_hex(text: &str) -> bool {
    text.bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        let digest = Digest::of(b"abc");
        assert_eq!(
            digest.to_hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(digest.to_text().parse(), Ok(digest));
        assert_eq!(digest.to_hex().parse(), Ok(digest));
        assert_eq!("sha256:00".parse::<Digest>(), Err(NotADigest));
        let json = |text: String| serde_json::from_str::<Digest>(&format!("{text:?}")).is_ok();
        assert!(
            json(digest.to_hex())
                && !json(digest.to_hex().to_uppercase())
                && !json(digest.to_text())
        );
        assert_eq!(Digest::of_parts(&[b"a", b"", b"bc"]), digest);
    }
}
