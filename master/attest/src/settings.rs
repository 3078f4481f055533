//! The part of the cluster's configuration that attestation needs.

use crate::configurations::Configurations;
use config_attest::release::ReleaseKey;
use config_certificates::EkIssuer;
use config_kube::CertificatePolicySpec;
use config_tpm::Digest;
use master_ca::attestor::Attestor;
use master_journal::VerdictLog;
use std::path::PathBuf;
use std::sync::Arc;

/// Configuration of the attestation service.
#[derive(Debug)]
pub struct AttestationConfig {
    /// The cluster's name.
    pub cluster: String,
    /// DNS names and IP addresses of the API server.
    pub api_names: Vec<String>,
    /// Keys that may sign image releases.
    pub release_keys: Vec<ReleaseKey>,
    /// Issuers of EK certificates that rules can name.
    pub ek_issuers: Vec<EkIssuer>,
    /// The rules from which the first `CertificatePolicy` is created.
    pub policy: CertificatePolicySpec,
    /// SHA-256 of the SubjectPublicKeyInfo of the API's certificate.
    pub server_spki: Digest,
    /// The bootstrap of the cluster.
    pub bootstrap: BootstrapConfig,
    /// Half-open joins at most, and as many renewals.
    pub exchanges: usize,
    /// The log of verdicts.
    pub log: Arc<VerdictLog>,
}

/// Configuration of the bootstrap, by which an admin takes over a fresh cluster.
#[derive(Debug, Clone)]
pub struct BootstrapConfig {
    /// SHA-256 of the SubjectPublicKeyInfo of the admin's key. `None`: a development master without
    /// a bootstrap.
    pub admin_key: Option<Digest>,
    /// File that records that the bootstrap took place.
    pub record: PathBuf,
    /// File for the roots' pins, which the agent of this machine reads.
    pub ca_pin: Option<PathBuf>,
    /// Client of the machine's TPM.
    pub attestor: Option<Attestor>,
    /// The machine's name in the configuration; empty where it has none.
    pub name: String,
    /// Addresses in the configuration.
    pub addresses: Vec<String>,
    /// The configurations with which the machine may boot; `None` for a master that does not run an
    /// image.
    pub configurations: Option<Configurations>,
}
