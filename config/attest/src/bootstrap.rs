//! The first master: the admin attests it with the verifier that later attests nodes, and signs
//! what was found.
//!
//! The roles are reversed: the master is the prover and the admin's tool opens the session. In Q
//! the root certificate stands where a node's requests stand (CSR hash = SHA-256 of the root's DER;
//! server key = the root's SubjectPublicKeyInfo), so the TPM vouches for the root.

use crate::sessions::Opening as _;
use crate::verdict::{Checks, Refusal, Verdict};
use crate::verifier::{
    AttestedMachine, CheckedHello, Pending, Reference, admit_bootstrap, check_proof, refusal,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_kube::Machine;
use config_kube::machine::{AdminVerdict, Counters, ProvenConfig, ProvenImage};
use config_protocol::wire::{BOOTSTRAP_PROTOCOL, BootstrapHello, Proof};
use config_protocol::{Channel, Code};
use config_tpm::Digest;
use config_tpm::Entropy;
use p256::ecdsa::signature::{Signer as _, Verifier as _};
use p256::ecdsa::{DerSignature, SigningKey, VerifyingKey};
use p256::pkcs8::{DecodePublicKey as _, EncodePublicKey as _};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// The only version of a statement.
pub const STATEMENT_VERSION: u32 = 1;

/// What the admin signs about the first master. The exact JSON bytes are signed and kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdminStatement {
    /// [`STATEMENT_VERSION`].
    pub version: u32,
    /// The cluster's name.
    pub cluster: String,
    /// Name of the master's Machine.
    pub machine: String,
    /// Name of the master's Node.
    pub node_name: String,
    /// Addresses of the master.
    pub addresses: Vec<String>,
    /// SHA-256 of the SubjectPublicKeyInfo of the cluster's root.
    pub root_spki: Digest,
    /// Base64 of the SubjectPublicKeyInfo DER of the admin's key.
    pub admin_key: String,
    /// Unix seconds.
    pub time: u64,
    /// What the TPM proved; absent for a master without a TPM, which the admin accepted knowingly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proved: Option<ProvedMaster>,
}

/// What the first master's TPM proved to the admin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProvedMaster {
    /// SHA-256 of the EK's SubjectPublicKeyInfo.
    pub ek_hash: Digest,
    /// Hex of the AK's Name.
    pub ak_name: String,
    /// The image.
    pub image: ProvenImage,
    /// The configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<ProvenConfig>,
    /// Learned registers.
    pub pinned_pcrs: BTreeMap<String, String>,
    /// Counters.
    pub counters: Counters,
}

/// A root certificate as the master showed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// SHA-256 of its DER.
    pub hash: Digest,
    /// SHA-256 of its SubjectPublicKeyInfo: what nodes pin.
    pub spki: Digest,
}

impl Root {
    /// From DER: a self-signed CA.
    pub fn from_der(der: &[u8]) -> Option<Self> {
        let (rest, certificate) = X509Certificate::from_der(der).ok()?;
        let ca = certificate
            .basic_constraints()
            .ok()
            .flatten()
            .is_some_and(|constraints| constraints.value.ca);
        // Self-signed: nodes pin this key, so no other key may stand above it.
        let own = certificate.subject().as_raw() == certificate.issuer().as_raw()
            && config_certificates::x509::verifies(
                &certificate.signature_algorithm.algorithm.to_id_string(),
                certificate.public_key().raw,
                certificate.tbs_certificate.as_ref(),
                &certificate.signature_value.data,
            );
        (rest.is_empty() && ca && own).then(|| Self {
            hash: Digest::of(der),
            spki: Digest::of(certificate.public_key().raw),
        })
    }

    /// The channel of the exchange: the root stands for the server's key.
    pub fn channel(&self, exporter: Digest) -> Channel {
        Channel {
            server_spki: self.spki,
            exporter,
        }
    }
}

/// Step 2 by the admin: `reference` holds one Machine with the EK that the admin knows, the release
/// keys and releases. `exporter` is of the TLS connection on which the hello came.
///
/// # Errors
/// A refusal that names the first check that failed: the protocol, the cluster, the keys' form, the
/// Machine, the root.
pub fn check_hello(
    hello: &BootstrapHello,
    reference: &Reference<'_>,
    exporter: Digest,
    now: u64,
) -> Result<(CheckedHello, Root), Box<Refusal>> {
    let mut checks = Checks::default();
    let good = hello.protocol == BOOTSTRAP_PROTOCOL;
    let protocol = checks.must(
        "protocol",
        Code::ProtocolVersion,
        good,
        BOOTSTRAP_PROTOCOL,
        &hello.protocol,
    );
    let cluster = protocol.and_then(|()| {
        let same = hello.cluster == reference.cluster;
        checks.must(
            "cluster",
            Code::BootstrapVerdict,
            same,
            reference.cluster,
            &hello.cluster,
        )
    });
    let none = config_protocol::wire::Claims::default();
    if let Err(stop) = cluster {
        return Err(refusal(stop, checks, None, &none));
    }
    let Some(root) = Root::from_der(hello.root.as_bytes()) else {
        let stop = checks.fail(
            "root",
            Code::BootstrapRoot,
            "a self-signed CA certificate",
            "another",
        );
        return Err(refusal(stop, checks, None, &none));
    };
    let Some(keys) = &hello.keys else {
        let stop = checks.fail(
            "keys",
            Code::EkTemplate,
            "a TPM's keys",
            "none: the master has no TPM",
        );
        return Err(refusal(stop, checks, None, &none));
    };
    // In place of the hash of a node's requests, so that Q, and by it the TPM, covers the root.
    let admitted = admit_bootstrap(
        keys,
        &hello.claims,
        root.hash,
        reference,
        &root.channel(exporter),
        now,
    )?;
    Ok((admitted, root))
}

/// The admin's challenge. One exchange on one connection, so there is no table of sessions.
///
/// # Errors
/// A refusal where the endorsement key cannot take a credential.
pub fn challenge(
    admitted: CheckedHello,
    rng: &mut impl Entropy,
) -> Result<(Pending, config_protocol::wire::Challenge), Box<Refusal>> {
    admitted.challenge(rng)
}

/// Step 4 by the admin.
///
/// # Errors
/// A refusal: anonymous up to the check of possession, proven after it.
pub fn check(
    pending: Pending,
    proof: &Proof,
    reference: &Reference<'_>,
    root: &Root,
    exporter: Digest,
    now: u64,
) -> Result<AttestedMachine, Box<Refusal>> {
    check_proof(pending, proof, reference, &root.channel(exporter), now)
}

/// What was proved, for the statement, with every check for the admin to read.
pub fn proved(attested: &AttestedMachine) -> (ProvedMaster, Verdict) {
    let clock = attested.clock_info();
    let proved = ProvedMaster {
        ek_hash: attested.ek_hash(),
        ak_name: attested.ak_name(),
        image: attested.image().cloned().unwrap_or_default(),
        config: attested.config().cloned(),
        pinned_pcrs: attested
            .pinned_pcrs()
            .iter()
            .map(|(pcr, value)| (pcr.to_string(), value.to_hex()))
            .collect(),
        counters: Counters {
            reset_count: clock.reset_count,
            restart_count: clock.restart_count,
            clock: clock.clock,
            safe: clock.safe,
        },
    };
    let verdict = attested.verdict();
    (proved, verdict)
}

/// Why a statement is not the admin's.
#[derive(Debug, thiserror::Error)]
pub enum StatementError {
    /// Not base64, not JSON of the documented form, or another version.
    #[error("the statement is not of the documented form")]
    Malformed,
    /// Signed by another key than the configured one, or not at all.
    #[error("the statement is not signed by the admin's key")]
    Signature,
}

impl AdminStatement {
    /// The exact bytes to sign, with the signature. Sets `admin_key`.
    ///
    /// # Errors
    /// [`StatementError::Malformed`] where the key or the statement cannot be encoded.
    pub fn sign(mut self, key: &SigningKey) -> Result<(Vec<u8>, Vec<u8>), StatementError> {
        let spki = key
            .verifying_key()
            .to_public_key_der()
            .map_err(|_unencodable| StatementError::Malformed)?;
        self.version = STATEMENT_VERSION;
        self.admin_key = STANDARD.encode(spki.as_bytes());
        let bytes = serde_json::to_vec(&self).map_err(|_unencodable| StatementError::Malformed)?;
        let signature: DerSignature = key.sign(&bytes);
        Ok((bytes, signature.as_bytes().to_vec()))
    }

    /// Verifies a statement by the key whose SubjectPublicKeyInfo has the hash `admin_key`.
    ///
    /// # Errors
    /// [`StatementError::Malformed`] where the bytes are no statement of this version;
    /// [`StatementError::Signature`] where another key than `admin_key` signed them.
    pub fn open(
        bytes: &[u8],
        signature: &[u8],
        admin_key: &Digest,
    ) -> Result<Self, StatementError> {
        let statement: Self =
            config_protocol::wire::parse(bytes).map_err(|_bad_json| StatementError::Malformed)?;
        let spki = STANDARD
            .decode(&statement.admin_key)
            .map_err(|_bad_base64| StatementError::Malformed)?;
        if statement.version != STATEMENT_VERSION {
            return Err(StatementError::Malformed);
        }
        // The key comes with the statement, from the master: only the pinned hash makes it the
        // admin's.
        let verified = Digest::of(&spki) == *admin_key
            && p256::PublicKey::from_public_key_der(&spki).is_ok_and(|key| {
                DerSignature::from_bytes(signature).is_ok_and(|signature| {
                    VerifyingKey::from(key).verify(bytes, &signature).is_ok()
                })
            });
        if verified {
            Ok(statement)
        } else {
            Err(StatementError::Signature)
        }
    }
}

/// As a Machine's status keeps a signed statement.
pub fn to_admin_verdict(statement: &[u8], signature: &[u8]) -> AdminVerdict {
    AdminVerdict {
        verdict: STANDARD.encode(statement),
        signature: STANDARD.encode(signature),
    }
}

/// From a Machine's status.
///
/// # Errors
/// As [`AdminStatement::open`]; [`StatementError::Malformed`] also where a field is not Base64.
pub fn from_admin_verdict(
    verdict: &AdminVerdict,
    admin_key: &Digest,
) -> Result<AdminStatement, StatementError> {
    let decode = |text: &String| {
        STANDARD
            .decode(text)
            .map_err(|_bad_base64| StatementError::Malformed)
    };
    AdminStatement::open(
        &decode(&verdict.verdict)?,
        &decode(&verdict.signature)?,
        admin_key,
    )
}

/// The configuration digest that the admin attested for this Machine, if the Machine is the first
/// master.
pub(crate) fn attested_config(machine: &Machine, reference: &Reference<'_>) -> Option<Digest> {
    let status = machine.status.as_ref()?;
    let statement = from_admin_verdict(
        status.admin_verdict.as_ref()?,
        reference.admin_key.as_ref()?,
    )
    .ok()?;
    // The same admin key may have signed statements for other clusters and machines.
    let same = statement.cluster == reference.cluster
        && Some(&statement.machine) == machine.metadata.name.as_ref();
    statement
        .proved
        .filter(|_| same)?
        .config?
        .digest
        .parse()
        .ok()
}
