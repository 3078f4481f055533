//! Every default and limit of the documents, each with its reason.

use std::time::Duration;

/// Bytes of a document: the space that cloud metadata services and SMBIOS strings give to
/// user-data.
pub const MAX_DOCUMENT_BYTES: usize = 64 * 1024;
/// Nesting of tables and arrays; documents need five levels, the rest lets mistakes get a good
/// message.
pub const MAX_DEPTH: usize = 16;
/// Faults that are listed; more would scroll the first ones off a console.
pub const MAX_FAULTS: usize = 50;
/// Characters of an excerpt of the document in a fault: it fits a line of a console.
pub const MAX_EXCERPT: usize = 100;
/// Elements of a list in a document (endpoints, addresses, rules …): far above real use, and limits
/// the work of cross checks.
pub const MAX_LIST: usize = 256;

/// The document version that this program writes and reads.
pub const VERSION: i64 = 1;

/// Pods of a node where `node.max_pods` is not given: upstream's default.
pub const MAX_PODS: u32 = 110;
/// Largest `node.max_pods`: addresses of a /22 of the pod network, upstream's tested limit is
/// below.
pub const MAX_PODS_LIMIT: u32 = 1000;
/// Processes and threads of a container where `node.pids_per_container` is not given: more than
/// large Java programs have, and an eighth of the kernel's smallest global limit, so that a fork
/// bomb leaves the machine able to act.
pub const PIDS_PER_CONTAINER: u32 = 4096;
/// Smallest `node.pids_per_container`: below it the runtime and ordinary shells fail.
pub const PIDS_MIN: i64 = 64;
/// Largest `node.pids_per_container`: the kernel's own limit of all processes (`PID_MAX_LIMIT` on
/// 64 bits).
pub const PIDS_MAX: i64 = 4_194_304;
/// Images that a node pulls at the same time where `node.max_parallel_image_pulls` is not given:
/// enough that a slow registry keeps no other waiting, and few enough that each, with its three
/// layers at a time, gets on.
pub const PARALLEL_IMAGE_PULLS: u32 = 5;
/// Largest `node.max_parallel_image_pulls`: each holds connections and files.
pub const PARALLEL_IMAGE_PULLS_MAX: i64 = 100;
/// How long a condition of pressure stays where `node.eviction.transition` is not given:
/// upstream's.
pub const EVICTION_TRANSITION: Duration = Duration::from_secs(300);
/// Longest grace at a soft threshold where `node.eviction.max_pod_grace` is not given: upstream's,
/// the least that a pod may have.
pub const EVICTION_MAX_POD_GRACE: Duration = Duration::ZERO;
/// Time for all pods to end with the machine where `node.shutdown_grace` is not given. Clouds
/// switch a machine off by force after two minutes or less (Google Compute Engine: 90 s), and its
/// file systems must be unmounted before that.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(60);
/// The part of it that critical pods have where `node.shutdown_grace_critical` is not given: that
/// of upstream's guide.
pub const SHUTDOWN_GRACE_CRITICAL: Duration = Duration::from_secs(10);
/// Largest `node.shutdown_grace`: init waits so long for an agent that hangs.
pub const SHUTDOWN_GRACE_MAX: Duration = config_machine::end::LONGEST_GRACE;
/// CPU kept for the system: init, agent and containerd idle below it.
pub const RESERVED_CPU: &str = "100m";
/// Memory kept for the system: containerd with its shims and the agent, measured with room.
pub const RESERVED_MEMORY: &str = "256Mi";
/// Disk kept for the system on the state partition: logs, and images in the making.
pub const RESERVED_EPHEMERAL_STORAGE: &str = "512Mi";

/// Registry of image names without a host: users expect `nginx` to come from there.
pub const DEFAULT_REGISTRY: &str = "docker.io";

/// Default name of a cluster.
pub const CLUSTER_NAME: &str = "pratique";
/// Default range of cluster IPs: kubeadm's, so that manifests written for it fit.
pub const SERVICE_CIDR: &str = "10.96.0.0/12";
/// Default range of pods' addresses: that of most guides for kubeadm, apart from [`SERVICE_CIDR`].
pub const POD_CIDR: &str = "10.244.0.0/16";
/// Default prefix of a node's part of an IPv4 range: upstream's; 253 pods.
pub const NODE_CIDR_MASK_IPV4: u8 = 24;
/// Default prefix of a node's part of an IPv6 range: upstream's.
pub const NODE_CIDR_MASK_IPV6: u8 = 64;
/// Most bits that a node's part may be longer than its range: upstream's limit, 65,536 nodes.
pub const NODE_CIDRS_BITS: u8 = 16;
/// How often each WireGuard key is renewed: a key that leaks lets its holder read a day at most.
pub const WIREGUARD_KEY_PERIOD: Duration = Duration::from_secs(24 * 60 * 60);
/// Shortest such time: a new key has to prove itself with every node first, which takes up to three
/// minutes.
pub const WIREGUARD_KEY_PERIOD_MIN: Duration = Duration::from_secs(5 * 60);
/// Longest such time: beyond it `never` says what is meant.
pub const WIREGUARD_KEY_PERIOD_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Default range of node ports: upstream's, above well-known ports and below the kernel's range for
/// outgoing connections.
pub const NODE_PORTS: &str = "30000-32767";

/// Concurrent reads: upstream's default.
pub const API_READS: u32 = 400;
/// Concurrent writes: upstream's default.
pub const API_WRITES: u32 = 200;
/// Open watches: ten of each of 2,000 nodes; each costs some kilobytes.
pub const API_WATCHES: u32 = 20_000;
/// Attestation exchanges in progress: each holds some 4 KiB for 30 s at most; a rack of 2,000 may
/// reboot at once.
pub const API_EXCHANGES: u32 = 4096;
/// Largest of these limits: beyond it memory runs out first.
pub const API_LIMIT_MAX: i64 = 1_000_000;

/// Lifetime of node certificates: short enough that a silent node expires soon; renewed at a third.
pub const CERTIFICATE_TTL: Duration = Duration::from_secs(30 * 60);
/// Shortest lifetime of node certificates: below it a renewal may not finish on a busy machine.
pub const CERTIFICATE_TTL_MIN: Duration = Duration::from_secs(30);
/// Longest lifetime of node certificates: a proof older than a day says too little.
pub const CERTIFICATE_TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Shortest time that a request waits for a person: below it no one can react.
pub const QUEUE_WAIT_MIN: Duration = Duration::from_secs(10);
/// Longest time that a request waits for a person: upstream drops undecided requests after a day.
pub const QUEUE_WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Most requests that may wait at once: more than a person would read, and each is an object.
pub const QUEUE_MAX_WAITING: i64 = 10_000;
/// Taints that a rule sets on a Node: each is checked for every pod.
pub const MAX_NODE_TAINTS: usize = 32;
/// Default of the minimum security version number: the first release's.
pub const MIN_SVN: u64 = 1;

/// Bytes of the additional kernel command line: the kernel accepts 2048, and the image build needs
/// the rest.
pub const MAX_CMDLINE: usize = 1024;
/// Bytes of a kernel module's name (`MODULE_NAME_LEN` of the kernel, less the NUL).
pub const MAX_MODULE_NAME: usize = 55;
/// Shortest maximum transmission unit: IPv6 needs it (RFC 8200, section 5).
pub const MTU_MIN: u16 = 1280;
/// Longest maximum transmission unit: jumbo frames.
pub const MTU_MAX: u16 = 9216;
