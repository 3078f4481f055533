//! What travels between node and master: JSON bodies, with base64 for bytes and hex for digests.
//! WIRE.md describes all of it.
//!
//! Holding one of these types proves only that its fields are within their limits.

use crate::code::Code;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_tpm::CredentialBlob;
use config_tpm::Digest;
use config_tpm::digest::is_lower_hex;
use config_tpm::eventlog::MAX_EVENT_LOG;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

pub use crate::shape::parse;

/// The protocol's name, in every hello.
pub const PROTOCOL: &str = "cloud-verify/v1";
/// The protocol's name at the first master's bootstrap.
pub const BOOTSTRAP_PROTOCOL: &str = "pratique bootstrap/v1";

/// `POST`: [`Hello`] → [`Challenge`].
pub const SESSIONS_PATH: &str = "/attest/v1/sessions";
/// `POST` over mTLS: [`Hello`] → [`Challenge`].
pub const RENEWALS_PATH: &str = "/attest/v1/renewals";
/// `GET`: [`BootstrapHello`].
pub const BOOTSTRAP_HELLO_PATH: &str = "/bootstrap/v1/hello";
/// `POST`: [`Challenge`] → [`Proof`].
pub const BOOTSTRAP_CHALLENGE_PATH: &str = "/bootstrap/v1/challenge";
/// `POST`: [`BootstrapAdmit`] → [`BootstrapAdmitted`].
pub const BOOTSTRAP_ADMIT_PATH: &str = "/bootstrap/v1/admit";

/// Label and length of the TLS exporter (RFC 9266): 32 bytes with an empty context.
pub const EXPORTER_LABEL: &[u8] = b"EXPORTER-Channel-Binding";

/// Largest hello body, in bytes.
pub const MAX_HELLO_BODY: usize = 32 * 1024;
/// Largest body of the admin's statement about the first master, in bytes.
pub const MAX_ADMIT_BODY: usize = 64 * 1024;
/// Largest evidence body, in bytes.
pub const MAX_EVIDENCE_BODY: usize = 512 * 1024;
/// Largest number of claimed addresses.
pub const MAX_ADDRESSES: usize = 16;
/// Largest claimed name or address, in bytes (a DNS name).
pub const MAX_CLAIM: usize = 253;
/// Longest label of a configuration event, in bytes.
pub const MAX_LABEL: usize = 64;
/// How long a challenge may be answered, in seconds.
pub const SESSION_SECONDS: u64 = 30;

/// The path of a session's evidence: `POST` [`Evidence`] → [`Certificates`].
pub fn evidence_path(sessions: &str, session: &SessionId) -> String {
    format!("{sessions}/{session}/evidence")
}

/// The session inside an evidence path under `sessions` ([`SESSIONS_PATH`] or [`RENEWALS_PATH`]).
pub fn session_of_path(sessions: &str, path: &str) -> Option<SessionId> {
    path.strip_prefix(sessions)?
        .strip_prefix('/')?
        .strip_suffix("/evidence")?
        .parse()
        .ok()
}

/// Bytes of at most `MAX`, base64 in JSON (standard alphabet, padded).
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Blob<const MAX: usize>(Vec<u8>);

/// The first words of [`TooLong`], by which it is recognized inside a JSON parser's error.
const TOO_LONG: &str = "longer than a field may be";

/// More bytes than the field may hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{TOO_LONG}: {len} bytes, at most {max}")]
pub struct TooLong {
    /// The number of bytes.
    pub len: usize,
    /// The number allowed.
    pub max: usize,
}

/// The code for bytes that [`parse`] refuses: `TOO_LARGE` for a field over its limit, else
/// `MALFORMED`.
pub fn code_of(error: &serde_json::Error) -> Code {
    // Other errors quote the sender's text, but none begins with it.
    if error.to_string().starts_with(TOO_LONG) {
        Code::TooLarge
    } else {
        Code::Malformed
    }
}

impl<const MAX: usize> Blob<MAX> {
    /// Takes bytes within the limit.
    ///
    /// # Errors
    /// [`TooLong`] where there are more bytes than `MAX`.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, TooLong> {
        let bytes = bytes.into();
        if bytes.len() > MAX {
            Err(TooLong {
                len: bytes.len(),
                max: MAX,
            })
        } else {
            Ok(Self(bytes))
        }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl<const MAX: usize> AsRef<[u8]> for Blob<MAX> {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl<const MAX: usize> fmt::Debug for Blob<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({})", STANDARD.encode(&self.0))
    }
}

impl<const MAX: usize> Serialize for Blob<MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de, const MAX: usize> Deserialize<'de> for Blob<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        if text.len() > MAX.div_ceil(3) * 4 {
            return Err(D::Error::custom(TooLong {
                len: text.len() / 4 * 3,
                max: MAX,
            }));
        }
        let bytes = STANDARD.decode(text.as_bytes()).map_err(D::Error::custom)?;
        Self::new(bytes).map_err(D::Error::custom)
    }
}

/// A session's name: 16 random bytes, 32 hex digits in text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

/// Text that is no session id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a session id: expected 32 lower-case hex digits")]
pub struct NotASession;

impl std::str::FromStr for SessionId {
    type Err = NotASession;

    fn from_str(text: &str) -> Result<Self, NotASession> {
        let mut bytes = [0; 16];
        match hex::decode_to_slice(text, &mut bytes) {
            Ok(()) if is_lower_hex(text) => Ok(Self(bytes)),
            Ok(()) | Err(_) => Err(NotASession),
        }
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for SessionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SessionId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A public area: the bytes of a `TPMT_PUBLIC` (TPM 2.0 part 2, 12.2.4), without a size before
/// them.
pub type PublicArea = Blob<1024>;
/// A DER certificate or certificate request.
pub type Der = Blob<8192>;

/// The public areas of a machine's keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Keys {
    /// Endorsement key.
    pub ek: PublicArea,
    /// Attestation key.
    pub ak: PublicArea,
    /// Node key.
    pub nk: PublicArea,
    /// DER certificate of the endorsement key, from the TPM's NV, without padding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ek_certificate: Option<Der>,
}

/// What a node claims about itself. The master believes none of it; Q covers all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Claims {
    /// Node name; empty: the one in the inventory.
    pub name: String,
    /// `worker` or `master`; empty: the one in the inventory.
    pub role: String,
    /// IP addresses.
    pub addresses: Vec<String>,
    /// Instance id of the platform.
    pub instance: String,
    /// Id of the image.
    pub image: String,
    /// Whether its configuration allows privileged pods. Left out if it does not, and by older
    /// agents, which don't know the field. The agent is part of the image: if the image is proved,
    /// this claim is what the measured configuration says.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub privileged_pods: bool,
}

/// Step 1: the node's claims, its public keys, and the hash of its certificate requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hello {
    /// Always [`PROTOCOL`].
    pub protocol: String,
    /// Its keys.
    pub keys: Keys,
    /// Hash over both certificate requests ([`csr_hash`]).
    pub csr_hash: Digest,
    /// Claims.
    pub claims: Claims,
}

/// A credential for TPM2_ActivateCredential, each without the size of its TPM2B.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Credential {
    /// `TPM2B_ID_OBJECT.credential`.
    pub id_object: Blob<256>,
    /// `TPM2B_ENCRYPTED_SECRET.secret`.
    pub encrypted_secret: Blob<512>,
}

impl TryFrom<CredentialBlob> for Credential {
    type Error = TooLong;

    fn try_from(made: CredentialBlob) -> Result<Self, TooLong> {
        Ok(Self {
            id_object: Blob::new(made.id_object)?,
            encrypted_secret: Blob::new(made.encrypted_secret)?,
        })
    }
}

/// Step 2: nonce, credential and registers that the evidence must answer, and the time limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Challenge {
    /// The session.
    pub session: SessionId,
    /// Fresh for each session.
    pub nonce: Digest,
    /// Wraps the secret S to the EK, for the AK only.
    pub credential: Credential,
    /// Registers to quote, ascending, of the SHA-256 bank.
    pub pcrs: Vec<u8>,
    /// Seconds until the session ends.
    pub expires_in_seconds: u64,
}

/// What the prover put into Q, so that a mismatch can be named. It proves nothing by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Transcript {
    /// The challenge's nonce.
    pub nonce: Digest,
    /// Hash over both certificate requests.
    pub csr_hash: Digest,
    /// Hash of the claims.
    pub claims_hash: Digest,
    /// SHA-256 of the SubjectPublicKeyInfo that the server showed (at bootstrap: of the root).
    pub server_spki: Digest,
    /// TLS exporter.
    pub exporter: Digest,
}

/// A `TPMS_ATTEST` and the `TPMT_SIGNATURE` over it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Signed {
    /// `TPMS_ATTEST`, without a size before it.
    pub attest: Blob<1024>,
    /// `TPMT_SIGNATURE`.
    pub signature: Blob<512>,
}

/// The record of the one configuration event, as init leaves it in /run/pratique/config-event.json.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigEvent {
    /// Always 13.
    pub pcr: u8,
    /// Source: `nocloud`, `smbios`, …; 1 to [`MAX_LABEL`] printable ASCII bytes without spaces.
    #[serde(deserialize_with = "label")]
    pub label: String,
    /// Length of the configuration in bytes.
    pub length: u64,
    /// [`config_tpm::pcr::config_event_digest`].
    pub digest: Digest,
}

/// Refuses a label of another form as a malformed message, which has no consequence for the
/// Machine.
fn label<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let label = String::deserialize(deserializer)?;
    if (1..=MAX_LABEL).contains(&label.len()) && label.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(label)
    } else {
        Err(serde::de::Error::custom(
            "expected a label of 1 to 64 printable ASCII bytes",
        ))
    }
}

/// What a TPM attests about its machine, for one Q.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Proof {
    /// What the prover put into Q.
    pub transcript: Transcript,
    /// HMAC-SHA-256(S, Q).
    pub mac: Digest,
    /// TPM2_Quote with extraData Q.
    pub quote: Signed,
    /// TPM2_Certify of NK by AK with qualifyingData Q.
    pub certify: Signed,
    /// Register values of the SHA-256 bank, by index.
    pub pcrs: BTreeMap<u8, Digest>,
    /// The firmware's event log, as the kernel exposes it.
    pub event_log: Blob<MAX_EVENT_LOG>,
    /// The configuration event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_event: Option<ConfigEvent>,
}

/// Step 3: the proof, and the requests whose hash was announced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Evidence {
    /// The proof.
    pub proof: Proof,
    /// Request for the client certificate (key NK).
    pub client_csr: Der,
    /// Request for the kubelet API's serving certificate.
    pub serving_csr: Der,
}

/// Step 5: the node's certificates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Certificates {
    /// The node's name.
    pub node_name: String,
    /// PEM: client certificate, then intermediates.
    pub client: String,
    /// PEM: serving certificate, then intermediates.
    pub serving: String,
    /// PEM: the cluster's root certificates.
    pub roots: String,
    /// Unix seconds at which both certificates end.
    pub not_after: u64,
    /// Seconds after which the node should renew.
    pub renew_after_seconds: u64,
}

/// The answer to a refused caller, with a 4xx or 503 status, and to one that waits for a person,
/// with 202.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// Refusal code; a string, so that an older node can show a newer code.
    pub code: String,
    /// For a person.
    pub message: String,
    /// With `NAME_ASSIGNED`: the node's name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
}

/// The first master's root certificate, keys and claims, for the admin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BootstrapHello {
    /// Always [`BOOTSTRAP_PROTOCOL`].
    pub protocol: String,
    /// The cluster's name.
    pub cluster: String,
    /// DER of the cluster's root certificate.
    pub root: Der,
    /// Its keys; absent on a host without a TPM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<Keys>,
    /// Claims.
    pub claims: Claims,
}

/// The admin accepts the master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BootstrapAdmit {
    /// DER of the request for the admin's certificate, signed by the admin's key.
    pub admin_csr: Der,
    /// Exact JSON bytes of the `config_attest::bootstrap::AdminStatement` that the admin signed.
    pub statement: Blob<16384>,
    /// DER ECDSA signature over the statement by the admin's key.
    pub signature: Blob<256>,
}

/// The answer to the admin: its certificate, and what nodes pin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BootstrapAdmitted {
    /// PEM: admin certificate, then intermediates.
    pub certificate: String,
    /// PEM: the cluster's root certificates.
    pub roots: String,
    /// `sha256:<hex>` of the root's SubjectPublicKeyInfo, as nodes pin it.
    pub ca_pin: String,
}

/// Hash over both certificate requests: SHA-256(u32 length ‖ client ‖ u32 length ‖ serving),
/// lengths big-endian.
pub fn csr_hash(client: &[u8], serving: &[u8]) -> Digest {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes();
    Digest::of_parts(&[&length(client), client, &length(serving), serving])
}

impl Claims {
    /// Hash of the claims: SHA-256 over name, role, instance and image, the number of addresses,
    /// each address, and a byte 1 if pods may be privileged. Each text has its length before it;
    /// lengths and number are u32, big-endian.
    pub fn hash(&self) -> Digest {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes();
        let put = |bytes: &mut Vec<u8>, text: &str| {
            bytes.extend_from_slice(&number(text.len()));
            bytes.extend_from_slice(text.as_bytes());
        };
        let mut bytes = Vec::new();
        for text in [&self.name, &self.role, &self.instance, &self.image] {
            put(&mut bytes, text);
        }
        bytes.extend_from_slice(&number(self.addresses.len()));
        for address in &self.addresses {
            put(&mut bytes, address);
        }
        if self.privileged_pods {
            bytes.push(1);
        }
        Digest::of(&bytes)
    }

    /// Whether every claim is within its limit and printable.
    pub fn within_limits(&self) -> bool {
        let good = |text: &String| {
            text.len() <= MAX_CLAIM && text.bytes().all(|byte| byte.is_ascii_graphic())
        };
        [&self.name, &self.role, &self.instance, &self.image]
            .into_iter()
            .all(good)
            && self.addresses.len() <= MAX_ADDRESSES
            && self.addresses.iter().all(good)
    }
}
