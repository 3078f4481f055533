//! The keys of all documents, as written: all optional, with checked types and unchecked formats.
//! `version` and `kind` are read first ([`HEAD`]).

use crate::fault::{Position, Sink};
use crate::read::{At, Entries, Read, raw, wrong_type};
use crate::secret::Secret;
use crate::shape::Shape;
use toml::de::DeValue;

/// Keys of every document.
pub(crate) const HEAD: &[&str] = &["version", "kind"];

/// A list of strings.
pub(crate) type Texts = Vec<At<String>>;

raw!(
    /// `kind = "machine"`
    RawMachineDocument {
        /// This machine.
        machine: RawMachine,
        /// The master that it joins.
        master: RawMaster,
        /// An identity that an admin issued to it, instead of a proof (`pratique issue` writes it).
        identity: RawIdentity,
        /// Where it finds the signed document that names its master, instead of `[master]`.
        discovery: RawDiscovery,
        /// The cluster that it founds, if it is the first master.
        cluster: RawCluster,
        /// Its network; without it, DHCP on every Ethernet interface.
        network: RawNetwork,
        /// What holds for all registries.
        registries: RawRegistries,
        /// One registry of container images; several are allowed.
        registry: Vec<At<RawRegistry>>,
        /// Its node.
        node: RawNode,
        /// Kernel features that are off by default.
        kernel: RawMachineKernel,
        /// A rule about certificate requests, in the first master's document; several are allowed, and the first that names the signer decides.
        rule: Vec<At<RawRule>>,
        /// Where the first master keeps the cluster's state.
        storage: RawStorage,
    }
);
raw!(
    /// `kind = "cluster"`
    RawClusterDocument {
        /// The cluster.
        cluster: RawCluster,
        /// A rule about certificate requests; several are allowed, and the first that names the signer decides. Without any, every request is refused.
        rule: Vec<At<RawRule>>,
        /// Where the cluster's state is kept.
        storage: RawStorage,
    }
);
raw!(
    /// `kind = "image"`
    RawImageDocument {
        /// The image.
        image: RawImage,
        /// Its kernel.
        kernel: RawKernel,
        /// Its packages.
        packages: RawPackages,
    }
);
raw!(
    /// `kind = "policy"`
    RawPolicyDocument {
        /// The object.
        policy: RawPolicy,
        /// A rule; several are allowed, and the first that names the signer decides.
        rule: Vec<At<RawRule>>,
    }
);

raw!(
    /// `[machine]`
    RawMachine {
        /// The name that it claims; the inventory decides whether it may have it. A first master needs one. Default: the name that the inventory has for its endorsement key, or `node-` and the start of that key's hash.
        name: String,
        /// Whether it may ask to join without any proof if it has no TPM. Default: false.
        insecure_no_tpm: bool,
    }
);
raw!(
    /// `[master]`
    RawMaster {
        /// URLs `https://HOST:PORT` of the master, tried in order; at least one.
        endpoints: Texts,
        /// SHA-256 of the SubjectPublicKeyInfo of accepted root certificates, `sha256:` and 64 hex digits; at least one.
        ca_pins: Texts,
    }
);
raw!(
    /// `[identity]`
    RawIdentity {
        /// Client certificate chain up to the root, PEM.
        certificate: String,
        /// Serving certificate chain for the same key, PEM.
        serving_certificate: String,
        /// The cluster's root certificates, PEM; they must be pinned.
        roots: String,
        /// SHA-256 of the endorsement key to which the private key is wrapped.
        ek: String,
        /// TPMT_PUBLIC of the private key, base64.
        public: String,
        /// Contents of its TPM2B_PRIVATE, base64.
        private: String,
        /// Contents of its TPM2B_ENCRYPTED_SECRET, base64.
        seed: String,
        /// Whether `key` may hold the private key unencrypted. Default: false.
        insecure_plaintext_key: bool,
        /// The private key in the clear, PKCS#8 PEM.
        key: String,
    }
);
raw!(
    /// `[discovery]`
    RawDiscovery {
        /// URLs of the document, `http://HOST/v1/clusters/ID` or https, tried in order; at least one.
        uris: Texts,
        /// SHA-256 of the SubjectPublicKeyInfo of keys that may sign the document.
        pins: Texts,
        /// Lowest accepted generation of the document. Default: 0.
        min_generation: i64,
        /// Whether the first key that is seen is trusted if `pins` is not given. Default: false.
        insecure_trust_on_first_use: bool,
    }
);
raw!(
    /// `[network]`
    RawNetwork {
        /// An interface; several are allowed, and only these are brought up. Default: DHCP on every Ethernet interface.
        interface: Vec<At<RawInterface>>,
        /// Addresses of name servers, before those from DHCP.
        nameservers: Texts,
        /// Time servers (SNTP), in place of those from DHCP.
        ntp: Texts,
        /// A domain whose names other servers know; several are allowed, and of those that hold a name the longest counts. Default: none.
        stub_domain: Vec<At<RawStubDomain>>,
        /// How pods of other nodes are reached. `wireguard`: by a tunnel between trusted machines; `plain`: by routes, without encryption; `none`: not at all. Default: `wireguard`.
        pod_routes: String,
        /// How often the preferred one of a node's two WireGuard links changes, and the other one's key is renewed: {WIREGUARD_KEY_PERIOD_MIN} to {WIREGUARD_KEY_PERIOD_MAX}, or `never`; the same for all machines. Default: `{WIREGUARD_KEY_PERIOD}`.
        wireguard_key_period: String,
    }
);
raw!(
    /// `[[network.stub_domain]]`
    RawStubDomain {
        /// The domain; names below it are meant, too.
        domain: String,
        /// Addresses of its name servers, asked in order for pods; one to three.
        servers: Texts,
    }
);
raw!(
    /// `[[network.interface]]`
    RawInterface {
        /// The kernel's name of the interface; this or `mac`.
        name: String,
        /// Its hardware address; this or `name`.
        mac: String,
        /// Static addresses with their prefix length, such as `192.168.77.11/24`.
        addresses: Texts,
        /// Address of the default gateway.
        gateway: String,
        /// Whether to use DHCP. Default: true if `addresses` is empty.
        dhcp: bool,
        /// Maximum transmission unit in bytes, {MTU_MIN} to {MTU_MAX}. Default: the device's.
        mtu: i64,
    }
);
raw!(
    /// `[registries]`
    RawRegistries {
        /// The registry of image names without a host. Default: `{DEFAULT_REGISTRY}`.
        default: String,
        /// Roots of trust for all registries beside those of the image, PEM.
        ca: String,
    }
);
raw!(
    /// `[[registry]]`
    RawRegistry {
        /// The registry's host as image names have it, with its port if it has one.
        host: String,
        /// URLs of mirrors, asked in order before the registry.
        mirrors: Texts,
        /// Whether the registry itself is never asked. Default: false.
        mirrors_only: bool,
        /// Whether mirrors may be http; without a mirror, the registry itself. Default: false.
        insecure: bool,
        /// Roots of trust for this registry and its mirrors, PEM.
        ca: String,
        /// Hosts of token services, beside its own, to which credentials for it may go.
        token_hosts: Texts,
        /// The machine's user name there; with `password`.
        username: String,
        /// The password; with `username`.
        password: Secret,
        /// An OAuth 2.0 refresh token, instead of name and password.
        identity_token: Secret,
        /// A bearer token, instead of name and password.
        registry_token: Secret,
    }
);
raw!(
    /// `[node]`
    RawNode {
        /// Largest number of pods, up to {MAX_PODS_LIMIT}. Default: {MAX_PODS}.
        max_pods: i64,
        /// Resources kept for the system: what pods may have is the capacity without these.
        reserved: RawReserved,
        /// Files and folders of the machine that pods may mount as hostPath, with all below. A string is read-only. Default: none.
        host_paths: Vec<At<RawHostPathEntry>>,
        /// Whether privileged containers may run, which are root on this machine. Default: false.
        privileged: bool,
        /// Kernel settings (sysctls) of their own namespaces that pods may choose beside the safe ones, `*` at the end for all that begin so. Default: none.
        unsafe_sysctls: Texts,
        /// Manifests (YAML or JSON) of pods that this machine runs by itself, with or without a master. Default: none.
        static_pods: Texts,
        /// Largest number of processes and threads of a container, {PIDS_MIN} to {PIDS_MAX}. Default: {PIDS_PER_CONTAINER}.
        pids_per_container: i64,
        /// Largest number of images that are pulled at the same time, 1 to {PARALLEL_IMAGE_PULLS_MAX}; others wait. Default: {PARALLEL_IMAGE_PULLS}.
        max_parallel_image_pulls: i64,
        /// Time for all pods to end when the machine is powered off or rebooted, a second to {SHUTDOWN_GRACE_MAX}. Default: {SHUTDOWN_GRACE}.
        shutdown_grace: String,
        /// The last part of that time, which critical pods have: they end after all others. Default: {SHUTDOWN_GRACE_CRITICAL}, or a sixth of a `shutdown_grace` that is given.
        shutdown_grace_critical: String,
        /// In place of both: the time of each group of pods by the lowest priority in it, as text; groups end one after another, the lowest first. A pod below all is in the first. Together at most {SHUTDOWN_GRACE_MAX}. Default: the groups of priority 0 and 2000000000, by the two keys above.
        shutdown_grace_by_priority: Entries<String>,
        /// When pods go because the machine runs out of something.
        eviction: RawEviction,
    }
);
raw!(
    /// `[node.eviction]`
    RawEviction {
        /// A threshold below which the node is under pressure; several are allowed. Default: `memory.available` `100Mi`, `nodefs.available` `10%`, `nodefs.inodesFree` `5%`, `imagefs.available` `15%`, `imagefs.inodesFree` `5%`, `pid.available` `500`; each holds where no hard threshold of its signal is given.
        threshold: Vec<At<RawThreshold>>,
        /// How much more than a threshold is freed once pods go, as values by signal. Default: nothing.
        minimum_reclaim: Entries<String>,
        /// Longest time to end of pods that go for a soft threshold; no pod has less than a second. Default: {EVICTION_MAX_POD_GRACE}.
        max_pod_grace: String,
        /// How long the Node's condition stays after the signal has recovered. Default: {EVICTION_TRANSITION}.
        transition: String,
    }
);
raw!(
    /// `[[node.eviction.threshold]]`
    RawThreshold {
        /// `memory.available`, `nodefs.available`, `nodefs.inodesFree`, `imagefs.available`, `imagefs.inodesFree` or `pid.available`.
        signal: String,
        /// How much must be left: a quantity, or per cent of the capacity; `0%` is no threshold.
        value: String,
        /// For how long less may be left before pods go. Without it the threshold is hard: they go at once.
        grace: String,
    }
);
raw!(
    /// An element of `node.host_paths` as a table
    RawHostPath {
        /// Absolute path on the machine.
        path: String,
        /// Whether pods may write there. Default: false.
        writable: bool,
    }
);
raw!(
    /// `[node.reserved]`
    RawReserved {
        /// Processor time as a quantity of Kubernetes. Default: `{RESERVED_CPU}`.
        cpu: String,
        /// Memory. Default: `{RESERVED_MEMORY}`.
        memory: String,
        /// Disk of the state partition. Default: `{RESERVED_EPHEMERAL_STORAGE}`.
        ephemeral_storage: String,
    }
);
raw!(
    /// `[cluster]`
    RawCluster {
        /// Name in certificates and kubeconfigs. Default: `{CLUSTER_NAME}`.
        name: String,
        /// SHA-256 of the SubjectPublicKeyInfo of the admin's key, the only one that can take the cluster over at bootstrap (`pratique admin-key`).
        admin_key: String,
        /// Names and addresses in the API server's certificate beside those of the machine.
        api_names: Texts,
        /// Range of the services' cluster addresses, or one of IPv4 and one of IPv6, of which services have the first unless they ask for the other or both; pods need a range of the same family. Default: `{SERVICE_CIDR}`.
        service_cidr: OneOrMore,
        /// Ranges of which each node gets a part for its pods: one of IPv4, one of IPv6, or both, of which a pod's first address has the first; `[]` if something else assigns them. Default: `["{POD_CIDR}"]`.
        pod_cidrs: Texts,
        /// Prefix length of a node's part of the IPv4 range. Default: {NODE_CIDR_MASK_IPV4}.
        node_cidr_mask_ipv4: i64,
        /// Prefix length of a node's part of the IPv6 range. Default: {NODE_CIDR_MASK_IPV6}.
        node_cidr_mask_ipv6: i64,
        /// Range of node ports. Default: `{NODE_PORTS}`.
        node_ports: String,
        /// How the API authenticates, authorizes, admits and limits.
        api: RawApi,
        /// A name by which pods ask for the scheduler; several are allowed. `default-scheduler` is there without one.
        scheduler: Vec<At<RawScheduler>>,
        /// A key that signs accepted images; several are allowed.
        release_key: Vec<At<RawReleaseKey>>,
        /// An issuer of EK certificates; several are allowed.
        ek_issuer: Vec<At<RawEkIssuer>>,
    }
);
raw!(
    /// `[cluster.api]`
    RawApi {
        /// Authorization modes in order: `Node`, `RBAC`, `AlwaysAllow`. Default: `["Node", "RBAC"]`.
        authorization: Texts,
        /// Further authorities whose client certificates count, PEM.
        client_cas: String,
        /// Absolute path of a file of fixed tokens: `token,user,uid,"group1,group2"`.
        token_file: String,
        /// Issuer of service accounts' tokens. Default: the cluster's own name for its API.
        issuer: String,
        /// Audiences of these tokens beside their issuer.
        audiences: Texts,
        /// Admission plugins on and off.
        admission: RawAdmission,
        /// Requests at once; further ones get 429.
        limits: RawApiLimits,
    }
);
raw!(
    /// `admission` of the API
    RawAdmission {
        /// Plugins to enable beside the default ones, by upstream's names.
        enable: Texts,
        /// Plugins to disable.
        disable: Texts,
    }
);
raw!(
    /// `limits` of the API
    RawApiLimits {
        /// Requests that read. Default: {API_READS}.
        reads: i64,
        /// Requests that write. Default: {API_WRITES}.
        writes: i64,
        /// Open watches. Default: {API_WATCHES}.
        watches: i64,
        /// Attestation exchanges of joins, and as many again of renewals. Default: {API_EXCHANGES}.
        exchanges: i64,
    }
);
raw!(
    /// `[[cluster.scheduler]]`
    RawScheduler {
        /// What pods say in `spec.schedulerName`.
        name: String,
        /// How the use of a node's resource becomes a score: `LeastAllocated`, `MostAllocated`, `RequestedToCapacityRatio`. Default: `LeastAllocated`.
        strategy: String,
        /// The score, 0 to 10, at a used per cent, for `RequestedToCapacityRatio`: `[[0, 0], [100, 10]]` fills nodes one after another.
        shape: Vec<At<Vec<At<i64>>>>,
        /// Resources that count, and how much each does, 1 to 100. Default: `cpu = 1, memory = 1`.
        resources: Entries<i64>,
    }
);
raw!(
    /// `[[cluster.release_key]]`
    RawReleaseKey {
        /// Name that rules use.
        name: String,
        /// The public key, PEM.
        public_key: String,
    }
);
raw!(
    /// `[[cluster.ek_issuer]]`
    RawEkIssuer {
        /// Name that rules use.
        name: String,
        /// Roots and intermediates, PEM.
        certificates: String,
    }
);
raw!(
    /// `[storage]`
    RawStorage {
        /// `embedded`: in the master's process. The default, and the only one yet.
        engine: String,
    }
);
raw!(
    /// `[policy]`
    RawPolicy {
        /// Name of the `CertificatePolicy`; the one that decides is `cluster`, any other is a draft. Default: `cluster`.
        name: String,
    }
);
raw!(
    /// `[[rule]]`
    RawRule {
        /// Name of the rule, shown with its verdicts.
        name: String,
        /// Names of the signers whose requests it decides.
        signers: Texts,
        /// `cloud-verify`, `queue`, `always-reject` or `insecure-always-approve`.
        policy: String,
        /// What the endorsement key must be.
        ek: RawRuleEk,
        /// What the booted image must be.
        images: RawRuleImages,
        /// What the firmware may have measured.
        events: RawRuleEvents,
        /// What the configuration must be.
        config: RawRuleConfig,
        /// What is issued.
        certificate: RawRuleCertificate,
        /// How requests wait for a person.
        queue: RawRuleQueue,
        /// Whether machines without a TPM are admitted, with `queue` or `insecure-always-approve`. Default: false.
        insecure_no_tpm: bool,
        /// Labels and taints of its machines' Nodes.
        node: RawRuleNode,
    }
);
raw!(
    /// `node` of a rule
    RawRuleNode {
        /// Labels that the master keeps on the Nodes.
        labels: Entries<String>,
        /// Taints that it keeps there: `key=value:Effect` or `key:Effect`; at most {MAX_NODE_TAINTS}.
        taints: Texts,
        /// Whether a node makes its own Node object. Default: false for machines, true for other kubelets.
        registers_itself: bool,
    }
);
raw!(
    /// `queue` of a rule
    RawRuleQueue {
        /// How long a request waits, such as `8h`, {QUEUE_WAIT_MIN} to {QUEUE_WAIT_MAX}. Default: a day.
        expires: String,
        /// How many wait at once, up to {QUEUE_MAX_WAITING}. Default: 100.
        max_waiting: i64,
    }
);
raw!(
    /// `ek` of a rule
    RawRuleEk {
        /// Names of `[[cluster.ek_issuer]]` entries to one of which the EK certificate leads.
        issuers: Texts,
        /// `inventory` (a Machine lists the key) or `any`. Default: `inventory`.
        hashes: String,
        /// `all` of issuers and hashes, or `any` one of them. Default: `all`.
        require: String,
        /// Lowest version of the TPM's firmware for each issuer, such as `{ infineon = "7.85.4555.0" }`.
        min_firmware: Entries<String>,
    }
);
raw!(
    /// `images` of a rule
    RawRuleImages {
        /// Names of `[[cluster.release_key]]` entries, one of which signed the release.
        release_keys: Texts,
        /// Lowest security version number. Default: {MIN_SVN}.
        min_svn: i64,
        /// How many images are accepted besides the newest of their role, by security version and build time. Default: all.
        max_concurrent: i64,
    }
);
raw!(
    /// `events` of a rule
    RawRuleEvents {
        /// Whether Secure Boot must be on. Default: true.
        secure_boot: bool,
        /// Whether events of unknown types are accepted. Default: false.
        allow_unknown: bool,
    }
);
raw!(
    /// `config` of a rule
    RawRuleConfig {
        /// Whether the configuration must be measured. Default: true.
        measured: bool,
        /// `inventory` (the Machine names the digest) or `any`. Default: `inventory`.
        digests: String,
        /// `allow` or `refuse` machines whose user-data sets `[node] privileged = true`. Default: `refuse`.
        privileged_pods: String,
    }
);
raw!(
    /// `certificate` of a rule
    RawRuleCertificate {
        /// Lifetime, {CERTIFICATE_TTL_MIN} to {CERTIFICATE_TTL_MAX}; renewed at a third. Default: {CERTIFICATE_TTL}.
        ttl: String,
        /// Where addresses and names come from: `inventory` or `claims`. Default: `inventory` under `cloud-verify`, else `claims`.
        sans: String,
        /// Roles of images that the rule admits: `worker`, `master`. Default: `["worker"]`.
        roles: Texts,
    }
);
raw!(
    /// `[image]`
    RawImage {
        /// `worker` or `master`. Default: both are built.
        role: String,
        /// Name of the image. Default: the build makes one.
        id: String,
        /// Security version number. Default: the build's argument.
        svn: i64,
        /// Metadata service that its machines may ask for user-data: `auto`, `off`, or a service's name such as `ec2`. Default: `auto`, what the firmware indicates.
        metadata: String,
        /// What a worker's encrypted state belongs to: `machine`, or `user-data` for the machine with the user-data that made it. Default: `machine`.
        state: String,
    }
);
raw!(
    /// `[kernel]` of an image
    RawKernel {
        /// `cloud` (virtual machines) or `full` (hardware, too). Default: `cloud`.
        flavour: String,
        /// `confidentiality` or `integrity`. Default: `confidentiality`.
        lockdown: String,
        /// Additional kernel arguments, measured with the rest; at most {MAX_CMDLINE} bytes.
        cmdline_extra: String,
        /// Modules that the running system loads, in this order, each after those that it needs. Default: those of the flavour, in [cloud.toml](../../image/build/cloud.toml) or [full.toml](../../image/build/full.toml).
        modules: Texts,
        /// Modules that find and open the root, loaded before all others. Default: those of the flavour, in the same files.
        initrd_modules: Texts,
    }
);
raw!(
    /// `[kernel]` of a machine
    RawMachineKernel {
        /// Whether processes may use io_uring. Default: false.
        io_uring: bool,
    }
);
raw!(
    /// `[packages]`
    RawPackages {
        /// Debian packages to add to the root.
        extra: Texts,
    }
);

/// One string, or an array of them.
#[derive(Debug, Default)]
pub(crate) struct OneOrMore(pub(crate) Texts);

impl Read for OneOrMore {
    fn shape() -> Shape {
        Shape::Scalar("string or array of strings")
    }

    fn read(value: &DeValue<'_>, place: &Position, sink: &mut Sink<'_>) -> Option<Self> {
        match value {
            DeValue::String(text) => Some(Self(vec![At {
                value: text.to_string(),
                place: place.clone(),
            }])),
            DeValue::Array(_) => Texts::read(value, place, sink).map(Self),
            DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Table(_) => wrong_type(
                value,
                place,
                "a string in quotes, or an array of them",
                sink,
            ),
        }
    }
}

/// An element of `node.host_paths`: a path, or a table with further settings.
#[derive(Debug, Default)]
pub(crate) struct RawHostPathEntry(pub(crate) RawHostPath);

impl Read for RawHostPathEntry {
    fn shape() -> Shape {
        Shape::Either("string", RawHostPath::TABLE)
    }

    fn read(value: &DeValue<'_>, place: &Position, sink: &mut Sink<'_>) -> Option<Self> {
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
