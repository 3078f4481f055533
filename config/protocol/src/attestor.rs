//! The attestor socket: how the master asks the agent of its own machine, which holds the TPM.
//!
//! A Unix stream socket that only root may use. Each connection carries one [`Request`] and its
//! answer, each one line of JSON ending in a newline. The answer is the operation's
//! ([`HelloAnswer`], [`EvidenceAnswer`], [`SealAnswer`], [`UnsealAnswer`], [`StatusAnswer`]) or a
//! [`Refused`].

use crate::wire::{Blob, Challenge, Claims, Keys, Problem, Proof};
use config_tpm::Digest;
use serde::{Deserialize, Serialize};

/// Longest line in either direction, in bytes.
pub const MAX_LINE: usize = 1024 * 1024;
/// Most bytes that are sealed at once.
pub const MAX_SEAL: usize = 16 * 1024;

/// A request to the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "op",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum Request {
    /// Whether the TPM can be used.
    Status,
    /// The machine's keys and claims, for [`crate::wire::BootstrapHello`].
    Hello,
    /// A proof for the admin's challenge ([`crate::Purpose::Bootstrap`]; no other purpose is
    /// served).
    Evidence(Box<EvidenceRequest>),
    /// Seals bytes to this TPM, for the boots that this machine's release key approved.
    Seal {
        /// The secret.
        data: Blob<MAX_SEAL>,
    },
    /// Opens what [`Request::Seal`] gave.
    Unseal {
        /// The sealed blob.
        sealed: Blob<{ 2 * MAX_SEAL }>,
        /// Whether it was sealed before boot policies existed; it is opened once, to be sealed
        /// again with one.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unbound: bool,
    },
}

/// What a proof must cover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvidenceRequest {
    /// In the place of the hash of a node's requests: SHA-256 of the root certificate's DER.
    pub csr_hash: Digest,
    /// The claims of the hello.
    pub claims: Claims,
    /// The admin's challenge.
    pub challenge: Challenge,
    /// SHA-256 of the root's `SubjectPublicKeyInfo`.
    pub server_spki: Digest,
    /// Exporter of the TLS connection on which the challenge came.
    pub exporter: Digest,
}

impl Request {
    /// The operation's name.
    pub fn op(&self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Hello => "hello",
            Self::Evidence(_) => "evidence",
            Self::Seal { .. } => "seal",
            Self::Unseal { .. } => "unseal",
        }
    }
}

/// To [`Request::Status`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StatusAnswer {
    /// Whether the TPM can be used.
    pub ready: bool,
    /// The lowest image version (SVN) that can open what is sealed now; absent if any boot on this
    /// machine can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<u64>,
}

/// To [`Request::Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HelloAnswer {
    /// The keys.
    pub keys: Keys,
    /// The claims.
    pub claims: Claims,
}

/// To [`Request::Evidence`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvidenceAnswer {
    /// The proof.
    pub proof: Proof,
}

/// To [`Request::Seal`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SealAnswer {
    /// The sealed blob.
    pub sealed: Blob<{ 2 * MAX_SEAL }>,
}

/// To [`Request::Unseal`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UnsealAnswer {
    /// The secret.
    pub data: Blob<MAX_SEAL>,
}

/// To any request that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refused {
    /// A code and an explanation: `FORBIDDEN` for a caller that is not root, `MALFORMED` for bytes
    /// that are no request, `TOO_LARGE` for a request over its limit, `TPM` if the TPM refused, and
    /// the codes of [`refusal`].
    pub error: Problem,
}

/// Codes for a refusal to seal or unseal.
pub mod refusal {
    /// The machine has no approvals of a release key, and its agent is not configured to seal
    /// without.
    pub const NO_APPROVALS: &str = "NO_APPROVALS";
    /// The release key did not approve what was booted.
    pub const NOT_APPROVED: &str = "NOT_APPROVED";
    /// The seal's floor is one for which the image is not approved: the image is older, or newer by
    /// 32 versions.
    pub const FLOOR: &str = "FLOOR";
    /// The seal is for images of another release key.
    pub const OTHER_RELEASE_KEY: &str = "OTHER_RELEASE_KEY";
    /// The seal has no boot policy, and the request asks for one.
    pub const UNBOUND: &str = "UNBOUND";
    /// The seal has a boot policy, and the request asks for none, or nothing approves this boot.
    pub const BOUND: &str = "BOUND";
    /// The seal is of another TPM, or was altered.
    pub const NOT_SEALED_HERE: &str = "NOT_SEALED_HERE";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_lines_of_json_with_an_op() {
        let request = Request::Seal {
            data: Blob::new(*b"abc").unwrap(),
        };
        let line = serde_json::to_string(&request).unwrap();
        assert_eq!(line, r#"{"op":"seal","data":"YWJj"}"#);
        assert_eq!(serde_json::from_str::<Request>(&line).unwrap(), request);
        assert_eq!(
            serde_json::to_string(&Request::Hello).unwrap(),
            r#"{"op":"hello"}"#
        );
        assert!(serde_json::from_str::<Request>(r#"{"op":"sign"}"#).is_err());
        let unseal = r#"{"op":"unseal","sealed":"YWJj"}"#;
        let request: Request = serde_json::from_str(unseal).unwrap();
        assert!(matches!(request, Request::Unseal { unbound: false, .. }));
        assert_eq!(serde_json::to_string(&request).unwrap(), unseal);
    }
}
