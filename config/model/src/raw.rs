//! The keys of all documents, as written: all optional, with types, formats not checked yet.
//! `version` and `kind` are read before ([`HEAD`]).

use crate::fault::{Place, Sink};
use crate::read::{At, Entries, Read, raw, wrong_type};
use crate::registry::Secret;
use toml::de::DeValue;

/// Keys of every document.
pub(crate) const HEAD: &[&str] = &["version", "kind"];

/// A list of strings.
pub(crate) type Texts = Vec<At<String>>;

raw!(
    /// `kind = "machine"`
    RawMachineDocument {
        machine: RawMachine,
        master: RawMaster,
        identity: RawIdentity,
        discovery: RawDiscovery,
        cluster: RawCluster,
        network: RawNetwork,
        registries: RawRegistries,
        registry: Vec<At<RawRegistry>>,
        node: RawNode,
        kernel: RawMachineKernel,
        rule: Vec<At<RawRule>>,
        storage: RawStorage,
    }
);
raw!(
    /// `kind = "cluster"`
    RawClusterDocument {
        cluster: RawCluster,
        rule: Vec<At<RawRule>>,
        storage: RawStorage,
    }
);
raw!(
    /// `kind = "image"`
    RawImageDocument { image: RawImage, kernel: RawKernel, packages: RawPackages }
);
raw!(
    /// `kind = "policy"`
    RawPolicyDocument { policy: RawPolicy, rule: Vec<At<RawRule>> }
);

raw!(
    /// `[machine]`
    RawMachine { name: String, insecure_no_tpm: bool }
);
raw!(
    /// `[master]`
    RawMaster { endpoints: Texts, ca_pins: Texts }
);
raw!(
    /// `[identity]`
    RawIdentity {
        certificate: String,
        serving_certificate: String,
        roots: String,
        ek: String,
        public: String,
        private: String,
        seed: String,
        insecure_plaintext_key: bool,
        key: String,
    }
);
raw!(
    /// `[discovery]`
    RawDiscovery { uris: Texts, pins: Texts, min_generation: i64, insecure_trust_on_first_use: bool }
);
raw!(
    /// `[network]`
    RawNetwork { interface: Vec<At<RawInterface>>, nameservers: Texts, ntp: Texts, pod_routes: String }
);
raw!(
    /// `[[network.interface]]`
    RawInterface { name: String, mac: String, addresses: Texts, gateway: String, dhcp: bool, mtu: i64 }
);
raw!(
    /// `[registries]`
    RawRegistries { default: String, ca: String }
);
raw!(
    /// `[[registry]]`
    RawRegistry {
        host: String,
        mirrors: Texts,
        mirrors_only: bool,
        insecure: bool,
        ca: String,
        token_hosts: Texts,
        username: String,
        password: Secret,
        identity_token: Secret,
        registry_token: Secret,
    }
);
raw!(
    /// `[node]`
    RawNode {
        max_pods: i64,
        reserved: RawReserved,
        host_paths: Vec<At<RawHostPathEntry>>,
        privileged: bool,
        pids_per_container: i64,
    }
);
raw!(
    /// An element of `node.host_paths` as a table
    RawHostPath { path: String, writable: bool }
);
raw!(
    /// `[node.reserved]`
    RawReserved { cpu: String, memory: String, ephemeral_storage: String }
);
raw!(
    /// `[cluster]`
    RawCluster {
        name: String,
        admin_key: String,
        api_names: Texts,
        service_cidr: String,
        pod_cidrs: Texts,
        node_cidr_mask_ipv4: i64,
        node_cidr_mask_ipv6: i64,
        node_ports: String,
        api: RawApi,
        release_key: Vec<At<RawReleaseKey>>,
        ek_issuer: Vec<At<RawEkIssuer>>,
    }
);
raw!(
    /// `[cluster.api]`
    RawApi {
        authorization: Texts,
        client_cas: String,
        token_file: String,
        issuer: String,
        audiences: Texts,
        admission: RawAdmission,
        limits: RawApiLimits,
    }
);
raw!(
    /// `admission` of the API
    RawAdmission { enable: Texts, disable: Texts }
);
raw!(
    /// `limits` of the API
    RawApiLimits { reads: i64, writes: i64, watches: i64, exchanges: i64 }
);
raw!(
    /// `[[cluster.release_key]]`
    RawReleaseKey { name: String, public_key: String }
);
raw!(
    /// `[[cluster.ek_issuer]]`
    RawEkIssuer { name: String, certificates: String }
);
raw!(
    /// `[storage]`
    RawStorage { engine: String }
);
raw!(
    /// `[policy]`
    RawPolicy { name: String }
);
raw!(
    /// `[[rule]]`
    RawRule {
        name: String,
        signers: Texts,
        policy: String,
        ek: RawRuleEk,
        images: RawRuleImages,
        events: RawRuleEvents,
        config: RawRuleConfig,
        certificate: RawRuleCertificate,
        queue: RawRuleQueue,
        insecure_no_tpm: bool,
        node: RawRuleNode,
    }
);
raw!(
    /// `node` of a rule
    RawRuleNode { labels: Entries<String>, taints: Texts, registers_itself: bool }
);
raw!(
    /// `queue` of a rule
    RawRuleQueue { expires: String, max_waiting: i64 }
);
raw!(
    /// `ek` of a rule
    RawRuleEk { issuers: Texts, hashes: String, require: String, min_firmware: Entries<String> }
);
raw!(
    /// `images` of a rule
    RawRuleImages { release_keys: Texts, min_svn: i64, max_concurrent: i64 }
);
raw!(
    /// `events` of a rule
    RawRuleEvents { secure_boot: bool, allow_unknown: bool }
);
raw!(
    /// `config` of a rule
    RawRuleConfig { measured: bool, digests: String, privileged_pods: String }
);
raw!(
    /// `certificate` of a rule
    RawRuleCertificate { ttl: String, sans: String, roles: Texts }
);
raw!(
    /// `[image]`
    RawImage { role: String, id: String, svn: i64, metadata: String }
);
raw!(
    /// `[kernel]` of an image
    RawKernel { flavour: String, lockdown: String, cmdline_extra: String }
);
raw!(
    /// `[kernel]` of a machine
    RawMachineKernel { io_uring: bool }
);
raw!(
    /// `[packages]`
    RawPackages { extra: Texts }
);

/// An element of `node.host_paths`: a path, or a table with further settings.
#[derive(Debug, Default)]
pub(crate) struct RawHostPathEntry(pub(crate) RawHostPath);

impl Read for RawHostPathEntry {
    fn read(value: &DeValue<'_>, place: &Place, sink: &mut Sink<'_>) -> Option<Self> {
        match value {
            DeValue::String(text) => {
                let path = At {
                    value: text.to_string(),
                    place: place.clone(),
                };
                Some(Self(RawHostPath {
                    path: Some(path),
                    writable: None,
                }))
            }
            DeValue::Table(_) => RawHostPath::read(value, place, sink).map(Self),
            DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_) => wrong_type(
                value,
                place,
                "a path in quotes, or a table with `path`",
                sink,
            ),
        }
    }
}
