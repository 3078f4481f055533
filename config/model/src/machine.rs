//! `kind = "machine"`: a machine's whole user-data.

use crate::cluster::{self, ClusterConfig};
use crate::defaults::{
    MAX_PODS, MAX_PODS_LIMIT, PARALLEL_IMAGE_PULLS, PARALLEL_IMAGE_PULLS_MAX, PIDS_MAX, PIDS_MIN,
    PIDS_PER_CONTAINER, RESERVED_CPU, RESERVED_EPHEMERAL_STORAGE, RESERVED_MEMORY,
};
use crate::discovery::{self, Discovery};
use crate::eviction::{self, Eviction};
use crate::fault::{FaultKind, Position, Sink};
use crate::format::{Endpoint, FormatError, NodeName, Pin};
use crate::host_path::{self, HostPath};
use crate::identity::{self, IssuedIdentity};
use crate::network::{self, Network};
use crate::raw::{RawDiscovery, RawMachineDocument, RawMaster, RawNode, RawReserved};
use crate::read::At;
use crate::registry::{self, Registries};
use crate::shutdown::{self, ShutdownGrace};
use crate::sysctl::Sysctls;
use config_kube::Amount;

/// Sources of user-data, by the names that are measured; the last six are metadata services.
pub const USER_DATA_SOURCES: [&str; 10] = [
    "nocloud",
    "smbios",
    "fw_cfg",
    "image",
    "ec2",
    "gce",
    "azure",
    "openstack",
    "hetzner",
    "digitalocean",
];

/// A machine: the name that it claims, its master, and its settings.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineConfig {
    /// The claimed name; the master decides by its inventory.
    pub name: Option<NodeName>,
    /// Whether it may request to join without a proof if it has no TPM.
    pub insecure_no_tpm: bool,
    /// The identity that an admin issued, for a machine that proves nothing itself.
    pub identity: Option<IssuedIdentity>,
    /// Its cluster.
    pub membership: Membership,
    /// Its network.
    pub network: Network,
    /// Sources of container images.
    pub registries: Registries,
    /// The settings of its node.
    pub node: NodeSettings,
    /// Kernel features that are enabled although they are off by default.
    pub kernel: KernelSettings,
}

impl MachineConfig {
    /// The location of its master, if its configuration contains it.
    pub fn master(&self) -> Option<&MasterLocation> {
        match &self.membership {
            Membership::Joins(location) => Some(location),
            Membership::Discovers(_) | Membership::Founds(_) => None,
        }
    }

    /// The cluster that it founds, if it is the first master.
    pub fn cluster(&self) -> Option<&ClusterConfig> {
        match &self.membership {
            Membership::Joins(_) | Membership::Discovers(_) => None,
            Membership::Founds(cluster) => Some(cluster),
        }
    }
}

/// How a machine belongs to a cluster: it joins a master (`[master]`), or one that it discovers
/// (`[discovery]`), or founds a cluster (`[cluster]`).
#[derive(Debug, Clone, PartialEq)]
pub enum Membership {
    /// It joins the cluster of this master.
    Joins(MasterLocation),
    /// It joins the master that a signed document names.
    Discovers(Discovery),
    /// It is the first master of this cluster.
    Founds(Box<ClusterConfig>),
}

/// The addresses of the master and the roots that identify it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterLocation {
    /// Addresses, tried in order; at least one.
    pub endpoints: Vec<Endpoint>,
    /// SHA-256 of the SubjectPublicKeyInfo of accepted root certificates; at least one.
    pub ca_pins: Vec<Pin>,
}

/// Kernel features that are enabled although they are off by default ([`config_machine::kernel`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelSettings {
    /// Whether processes may use io_uring.
    pub io_uring: bool,
}

/// The settings of the machine's node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSettings {
    /// Maximum number of pods.
    pub max_pods: u32,
    /// Resources reserved for the system: allocatable is capacity minus these.
    pub reserved: Reserved,
    /// Paths of the machine that pods may mount; none by default.
    pub host_paths: Vec<HostPath>,
    /// Whether containers may be privileged, and so root on the machine; false by default.
    pub privileged: bool,
    /// Kernel settings of their own namespaces that pods may choose beside the safe ones; none by
    /// default.
    pub unsafe_sysctls: Vec<Sysctls>,
    /// Manifests of static pods, as they were written (`config_static_pods`); none by default.
    pub static_pods: Vec<String>,
    /// Maximum number of processes and threads of a container.
    pub pids_per_container: u32,
    /// Maximum number of images that are pulled at the same time.
    pub max_parallel_image_pulls: u32,
    /// Time for pods to end when the machine is powered off or rebooted.
    pub shutdown: ShutdownGrace,
    /// When pods go because the machine runs out of something.
    pub eviction: Eviction,
}

/// Resources reserved for the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved {
    /// Processor time, in cores.
    pub cpu: Amount,
    /// Memory in bytes.
    pub memory: Amount,
    /// Disk of the state partition in bytes.
    pub ephemeral_storage: Amount,
}

/// Checks a machine document.
pub(crate) fn check(raw: RawMachineDocument, sink: &mut Sink<'_>) -> Option<MachineConfig> {
    let raw_machine = raw.machine.map(|machine| machine.value).unwrap_or_default();
    let name = raw_machine.name.and_then(|name| sink.parse(&name));
    let no_tpm = raw_machine.insecure_no_tpm.filter(|flag| flag.value);
    if let Some(flag) = &no_tpm {
        without_tpm(
            &flag.place,
            name.is_some(),
            raw.cluster.is_some(),
            raw.identity.is_some(),
            sink,
        );
    }
    let network = network::check(raw.network, sink);
    let registries = registry::check(raw.registries, raw.registry, sink);
    let node = node(raw.node, sink);
    let kernel = raw.kernel.map(|kernel| kernel.value).unwrap_or_default();
    let kernel = KernelSettings {
        io_uring: kernel.io_uring.is_some_and(|flag| flag.value),
    };
    let at_identity = raw.identity.as_ref().map(|identity| identity.place.clone());
    let identity = raw
        .identity
        .and_then(|identity| identity::check(identity, sink));
    if let Some(place) = at_identity {
        issued_to_whom(&place, name.is_some(), raw.cluster.is_some(), sink);
    }
    let parts = cluster::Parts {
        cluster: raw.cluster,
        rule: raw.rule,
        storage: raw.storage,
    };
    let membership = membership(raw.master.as_ref(), raw.discovery.as_ref(), parts, sink);
    let insecure_no_tpm = no_tpm.is_some();
    Some(MachineConfig {
        name,
        insecure_no_tpm,
        identity,
        membership: membership?,
        network,
        registries,
        node,
        kernel,
    })
}

/// Checks a machine without a TPM: it must join a master under a configured name, as no key
/// identifies it.
fn without_tpm(place: &Position, named: bool, founds: bool, issued: bool, sink: &mut Sink<'_>) {
    const FLAG: &str = "`insecure_no_tpm = true`";
    if founds {
        let suggestion = "a master on a host without a TPM needs no agent; a machine that is to be one needs a TPM";
        let found = format!("{FLAG} beside `[cluster]`");
        let expected = "a machine that joins: a master keeps the cluster's keys in its TPM";
        sink.suggest(
            FaultKind::Conflict,
            place,
            found,
            expected,
            Some(suggestion.to_owned()),
        );
    } else if issued {
        let suggestion = "take it out: with `[identity]` nothing is proven anyway";
        let found = format!("{FLAG} beside `[identity]`");
        sink.suggest(
            FaultKind::Conflict,
            place,
            found,
            "one of the two",
            Some(suggestion.to_owned()),
        );
    } else if !named && !sink.has_fault_at("machine.name") {
        let expected = "`name` under `[machine]`: without an endorsement key nothing else gives the machine a name";
        sink.fault(
            FaultKind::Missing,
            place,
            format!("{FLAG} of a machine without a name"),
            expected,
        );
    }
}

/// An issued identity belongs to a named node that joins a master.
fn issued_to_whom(place: &Position, named: bool, founds: bool, sink: &mut Sink<'_>) {
    if founds {
        sink.fault(
            FaultKind::Conflict,
            place,
            "`[identity]` beside `[cluster]`",
            "`[identity]` of a machine that joins",
        );
    } else if !named && !sink.has_fault_at("machine") {
        let expected = "`name` under `[machine]`: the node of the certificates";
        sink.fault(
            FaultKind::Missing,
            place,
            "`[identity]` of a machine without a name",
            expected,
        );
    }
}

/// Exactly one of `[master]`, `[discovery]` and `[cluster]`; all that are present are checked.
fn membership(
    master: Option<&At<RawMaster>>,
    discovery: Option<&At<RawDiscovery>>,
    parts: cluster::Parts,
    sink: &mut Sink<'_>,
) -> Option<Membership> {
    let founds = parts.cluster.is_some();
    let beside = |name: &str| {
        format!(
            "`[{name}]` beside `[{}]`",
            if founds { "cluster" } else { "master" }
        )
    };
    let extra = match (master, discovery) {
        (_, Some(discovery)) if founds || master.is_some() => {
            Some((&discovery.place, beside("discovery")))
        }
        (Some(master), None) if founds => Some((&master.place, beside("master"))),
        (_, _) => None,
    };
    if let Some((place, found)) = extra {
        let suggestion = "the first master has `[cluster]` only, every other machine `[master]` or `[discovery]` only";
        sink.suggest(
            FaultKind::Conflict,
            place,
            found,
            "one of the two",
            Some(suggestion.to_owned()),
        );
    }
    let cluster = if founds {
        cluster::check(parts, sink)
    } else {
        parts.refuse_without_cluster(sink);
        None
    };
    let joins = master
        .and_then(|master| location(master, sink))
        .map(Membership::Joins);
    let by_document = discovery
        .and_then(|section| discovery::check(section, sink))
        .map(Membership::Discovers);
    let named = ["master", "discovery", "cluster"]
        .into_iter()
        .any(|key| sink.has_fault_at(key));
    if master.is_none() && discovery.is_none() && !founds && !named {
        let expected = "`[master]` with `endpoints` and `ca_pins`, `[discovery]` with `uris` and `pins`, or `[cluster]` on \
                        the first master";
        let found = "neither `[master]` nor `[discovery]` nor `[cluster]`";
        sink.fault(FaultKind::Missing, &Position::default(), found, expected);
    }
    joins
        .or(by_document)
        .or_else(|| cluster.map(|cluster| Membership::Founds(Box::new(cluster))))
}

fn location(master: &At<RawMaster>, sink: &mut Sink<'_>) -> Option<MasterLocation> {
    let At { value: raw, place } = master;
    let endpoints = sink.required_list(
        raw.endpoints.as_ref(),
        place,
        "endpoints",
        "at least one address of the form https://HOST:PORT",
    );
    let ca_pins = sink.required_list(
        raw.ca_pins.as_ref(),
        place,
        "ca_pins",
        "at least one `sha256:…` of the cluster's root; `pratique bootstrap` prints it",
    );
    Some(MasterLocation {
        endpoints: endpoints?,
        ca_pins: ca_pins?,
    })
}

fn node(raw: Option<At<RawNode>>, sink: &mut Sink<'_>) -> NodeSettings {
    let raw = raw.map(|node| node.value).unwrap_or_default();
    let max_pods = raw
        .max_pods
        .as_ref()
        .and_then(|pods| sink.number(pods, &(1..=MAX_PODS_LIMIT.into())));
    let pids = raw
        .pids_per_container
        .as_ref()
        .and_then(|pids| sink.number(pids, &(PIDS_MIN..=PIDS_MAX)));
    let pulls = raw
        .max_parallel_image_pulls
        .as_ref()
        .and_then(|pulls| sink.number(pulls, &(1..=PARALLEL_IMAGE_PULLS_MAX)));
    let reserved: RawReserved = raw.reserved.map(|table| table.value).unwrap_or_default();
    NodeSettings {
        max_pods: max_pods.unwrap_or(MAX_PODS),
        reserved: Reserved {
            cpu: amount(reserved.cpu, RESERVED_CPU, sink),
            memory: amount(reserved.memory, RESERVED_MEMORY, sink),
            ephemeral_storage: amount(reserved.ephemeral_storage, RESERVED_EPHEMERAL_STORAGE, sink),
        },
        host_paths: host_path::check(raw.host_paths, sink),
        privileged: raw.privileged.is_some_and(|flag| flag.value),
        unsafe_sysctls: sink.parse_list(raw.unsafe_sysctls.as_ref()),
        static_pods: raw
            .static_pods
            .map(|list| list.value.into_iter().map(|text| text.value).collect())
            .unwrap_or_default(),
        pids_per_container: pids.unwrap_or(PIDS_PER_CONTAINER),
        max_parallel_image_pulls: pulls.unwrap_or(PARALLEL_IMAGE_PULLS),
        shutdown: shutdown::check(
            raw.shutdown_grace.as_ref(),
            raw.shutdown_grace_critical.as_ref(),
            raw.shutdown_grace_by_priority,
            sink,
        ),
        eviction: eviction::check(raw.eviction, sink),
    }
}

fn amount(text: Option<At<String>>, default: &str, sink: &mut Sink<'_>) -> Amount {
    let parse = |text: &str| {
        let parsed = text
            .parse::<Amount>()
            .ok()
            .filter(|amount| *amount >= Amount::ZERO);
        parsed.ok_or_else(|| {
            FormatError::new("a quantity of zero or more, such as `100m`, `1.5` or `256Mi`")
        })
    };
    let given = text.and_then(|text| sink.parsed(&text, parse(&text.value)));
    given.or_else(|| parse(default).ok()).unwrap_or_default()
}
