//! Facts about the cluster that do not change while the process runs: its configuration and its
//! keys.

use crate::reference::ReferenceValues;
use crate::settings::AttestationConfig;
use config_attest::verifier::Reference;
use config_certificates::EkIssuer;
use config_kube::CertificatePolicySpec;
use config_protocol::Channel;
use config_tpm::Digest;
use master_listener::Peer;

/// The configuration as the verifier and the policies need it.
#[derive(Debug)]
pub(crate) struct ClusterFacts {
    cluster: String,
    api_names: Vec<String>,
    issuers: Vec<EkIssuer>,
    admin_key: Option<Digest>,
    server_spki: Digest,
    release_keys: Vec<String>,
}

impl ClusterFacts {
    pub(crate) fn new(config: &AttestationConfig) -> Self {
        let release_keys = config.release_keys.iter();
        Self {
            cluster: config.cluster.clone(),
            api_names: config.api_names.clone(),
            issuers: config.ek_issuers.clone(),
            admin_key: config.bootstrap.admin_key,
            server_spki: config.server_spki,
            release_keys: release_keys.map(|key| key.name().to_owned()).collect(),
        }
    }

    /// The TLS connection as both ends know it; `None` where it has no exporter, as before TLS 1.3.
    pub(crate) fn channel(&self, peer: &Peer) -> Option<Channel> {
        Some(Channel {
            server_spki: self.server_spki,
            exporter: Digest(peer.exporter?),
        })
    }

    /// The verifier's view of these facts and the reference values.
    pub(crate) fn reference<'a>(&'a self, values: &'a ReferenceValues) -> Reference<'a> {
        Reference {
            inventory: &values.machines,
            rule: &values.rule,
            issuers: &self.issuers,
            releases: &values.releases,
            api_names: &self.api_names,
            cluster: &self.cluster,
            admin_key: self.admin_key,
        }
    }

    /// Names in a policy that the configuration does not define, as sentences: they match nothing.
    pub(crate) fn unknown_names(&self, spec: &CertificatePolicySpec) -> Vec<String> {
        let mut unknown = Vec::new();
        for rule in &spec.rules {
            let issuers = rule
                .ek
                .issuers
                .iter()
                .filter(|name| !self.issuers.iter().any(|one| one.name() == **name));
            unknown.extend(issuers.map(|name| {
                format!(
                    "rule `{}`: ek.issuers: no [[cluster.ek_issuer]] is named `{name}`",
                    rule.name
                )
            }));
            let keys = rule
                .images
                .release_keys
                .iter()
                .filter(|name| !self.release_keys.contains(name));
            unknown.extend(keys.map(|name| {
                format!(
                    "rule `{}`: images.releaseKeys: no [[cluster.release_key]] is named `{name}`",
                    rule.name
                )
            }));
        }
        unknown
    }
}
