//! The node's cache of Services, EndpointSlices, ServiceCIDRs and Nodes, with the parts of each
//! object that it needs.

use config_kube::identity::{
    NAME_SERVER_PROXY, SERVICE_PROXY_LABEL, TUNNEL_ANNOTATION, TUNNEL_KEYS_ANNOTATION,
};
use config_kube::k8s_openapi::api::core::v1 as core;
use config_kube::k8s_openapi::api::discovery::v1::{EndpointHints, EndpointSlice};
use config_kube::k8s_openapi::api::networking::v1::ServiceCIDR;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use config_kube::taints::{SUSPECT, UNTRUSTED};
use config_model::format::Cidr;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::watch;

/// How long a client stays with an endpoint if the service sets no timeout (upstream's default).
const AFFINITY_SECONDS: u32 = 10_800;
/// The label of a slice that names its service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The address type of slices that hold host names instead of addresses.
const OF_NAMES: &str = "FQDN";
/// The label of a node that names its zone.
const ZONE: &str = "topology.kubernetes.io/zone";
/// The label of a service, or of its slices, for which nodes serve only DNS names (upstream's).
const NAMES_ALONE: &str = "service.kubernetes.io/headless";

/// Most ports of a service, and of a slice: upstream's API takes as many, and objects stored
/// earlier may have them.
const MOST_PORTS: usize = 20_000;
/// Most endpoints of a slice, and most nodes and zones in an endpoint's hints (the API's limits).
const MOST_ENDPOINTS: usize = 1000;
const MOST_HINTS: usize = 8;
/// Most addresses of a node, and ranges of pod addresses: a node writes its own status.
const MOST_OF_NODE: usize = 16;
/// Bytes that an object takes besides its own fields: its key, and its entries in maps and indexes.
const PLACES: usize = 256;

/// Namespace and name.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Namespace; empty if the kind has none.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// An object's key.
    pub fn of(meta: &ObjectMeta) -> Self {
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        }
    }
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// By its name; none for one that this proxy does not serve (SCTP).
    pub fn named(name: Option<&str>) -> Option<Self> {
        match name {
            None | Some("TCP") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some(_) => None,
        }
    }

    /// Its number (RFC 9293, RFC 768).
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

/// A port of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its name; empty where it is the only one.
    pub name: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub port: u16,
    /// Its node port, if it has one.
    pub node_port: Option<u16>,
}

/// A service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a field of the service's specification"
)]
pub struct Service {
    /// Its UID.
    pub uid: String,
    /// Its cluster IPs; none if it is headless or an `ExternalName`.
    pub addresses: Vec<IpAddr>,
    /// Whether its name resolves to its endpoints' addresses.
    pub headless: bool,
    /// The external name that its name is an alias of (`ExternalName`).
    pub external_name: Option<String>,
    /// Its `externalIPs`.
    pub external: Vec<IpAddr>,
    /// Its load balancers' addresses, except those in `ipMode: Proxy`.
    pub balancers: Vec<IpAddr>,
    /// The ranges from which those may be called (`loadBalancerSourceRanges`); empty if all may.
    pub sources: Vec<Cidr>,
    /// Its ports.
    pub ports: Vec<Port>,
    /// Its SCTP ports, which nodes do not serve, each by its index among all ports, its name and
    /// its number: pods' environment variables list all ports.
    pub sctp_ports: Vec<(usize, String, u16)>,
    /// Seconds for which a client stays with an endpoint (`ClientIP` affinity); `None` without it.
    pub affinity: Option<u32>,
    /// Whether callers inside of the cluster reach only endpoints on their node.
    pub internal_local: bool,
    /// Whether callers from outside reach only endpoints on the node that they called.
    pub external_local: bool,
    /// The port at which each node answers load balancers whether it has endpoints of its own
    /// (`healthCheckNodePort`); only of a load balancer's service with `external_local`.
    pub health_port: Option<u16>,
    /// Whether a label says that this proxy does not serve it.
    pub foreign: bool,
    /// Whether a label says that the node's own name server answers, wherever it is called.
    pub name_server: bool,
    /// Whether only its key, its UID and `foreign` are kept: it has too many ports, or its
    /// namespace exceeds its share of the memory for watched objects. It is not served.
    pub left_out: bool,
}

impl Service {
    /// Reads what the node needs of an object; one with more than 20,000 ports is left out.
    pub fn read(service: core::Service) -> Self {
        let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
        let too_many = ports.is_some_and(|ports| ports.len() > MOST_PORTS);
        let uid = service.metadata.uid.unwrap_or_default();
        if too_many {
            return Self::of_uid(uid);
        }
        let labels = service.metadata.labels.unwrap_or_default();
        let proxy = labels.get(SERVICE_PROXY_LABEL);
        let name_server = proxy.is_some_and(|name| name == NAME_SERVER_PROXY);
        let spec = service.spec.unwrap_or_default();
        let is_name = spec.type_.as_deref() == Some("ExternalName");
        let parse = |list: &Option<Vec<String>>| -> Vec<IpAddr> {
            let texts = list.iter().flatten();
            exact(texts.filter_map(|text| text.parse().ok()))
        };
        let balancers = service.status.and_then(|status| status.load_balancer);
        let balancers = balancers.and_then(|status| status.ingress);
        // An address in mode `Proxy` belongs to the balancer: nodes do not serve it.
        let served = balancers
            .iter()
            .flatten()
            .filter(|one| one.ip_mode.as_deref() != Some("Proxy"));
        let sources = spec.load_balancer_source_ranges.iter().flatten();
        let sources = sources.filter_map(|text| text.trim().parse().ok());
        let seconds = spec
            .session_affinity_config
            .and_then(|config| config.client_ip?.timeout_seconds);
        let affinity = (spec.session_affinity.as_deref() == Some("ClientIP")).then(|| {
            let seconds = seconds.and_then(|seconds| u32::try_from(seconds).ok());
            seconds.unwrap_or(AFFINITY_SECONDS)
        });
        let all_ports = spec.ports.iter().flatten().enumerate();
        let sctp_ports = all_ports.filter_map(|(place, port)| {
            let number = u16::try_from(port.port).ok()?;
            let is_sctp = port.protocol.as_deref() == Some("SCTP");
            is_sctp.then(|| (place, port.name.clone().unwrap_or_default(), number))
        });
        let external_local = spec.external_traffic_policy.as_deref() == Some("Local");
        let is_balanced = spec.type_.as_deref() == Some("LoadBalancer");
        Self {
            uid,
            addresses: if is_name {
                Vec::new()
            } else {
                parse(&spec.cluster_ips)
            },
            headless: spec.cluster_ip.as_deref() == Some("None"),
            external_name: spec.external_name.filter(|_| is_name),
            external: parse(&spec.external_ips),
            balancers: exact(served.filter_map(|one| one.ip.as_ref()?.parse().ok())),
            sources: exact(sources),
            ports: exact(spec.ports.iter().flatten().filter_map(port)),
            sctp_ports: exact(sctp_ports),
            affinity,
            internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            external_local,
            health_port: number(spec.health_check_node_port)
                .filter(|_| is_balanced && external_local),
            foreign: is_foreign(&labels),
            name_server,
            left_out: false,
        }
    }

    fn of_uid(uid: String) -> Self {
        Self {
            uid,
            left_out: true,
            ..Self::default()
        }
    }

    /// What is kept of it where it is left out.
    #[must_use]
    pub fn without_content(&self) -> Self {
        Self {
            foreign: self.foreign,
            ..Self::of_uid(self.uid.clone())
        }
    }

    /// Bytes of memory that it takes, about.
    pub fn bytes(&self) -> usize {
        let addresses = [&self.addresses, &self.external, &self.balancers];
        let addresses: usize = addresses.map(Vec::len).iter().sum();
        let ports = self.ports.iter().map(|port| port.name.len());
        let sctp = self.sctp_ports.iter().map(|(_, name, _)| name.len());
        let names = ports.chain(sctp);
        // Indexes hold the addresses again, as fronts.
        PLACES
            + size_of::<Self>()
            + self.uid.len()
            + self.external_name.as_ref().map_or(0, String::len)
            + 2 * addresses * size_of::<IpAddr>()
            + self.sources.len() * size_of::<Cidr>()
            + names
                .map(|length| size_of::<Port>() + length)
                .sum::<usize>()
    }
}

/// A list without room for more elements: usual lists have one or two, and a new `Vec` has room for
/// four.
fn exact<T>(elements: impl Iterator<Item = T>) -> Vec<T> {
    let mut list: Vec<T> = elements.collect();
    list.shrink_to_fit();
    list
}

/// Whether labels say that this proxy does not serve a service, or endpoints of one: another proxy
/// does, or only their DNS names are served.
fn is_foreign(labels: &BTreeMap<String, String>) -> bool {
    let proxy = labels.get(SERVICE_PROXY_LABEL);
    proxy.is_some_and(|name| name != NAME_SERVER_PROXY) || labels.contains_key(NAMES_ALONE)
}

fn port(port: &core::ServicePort) -> Option<Port> {
    Some(Port {
        name: port.name.clone().unwrap_or_default(),
        protocol: Protocol::named(port.protocol.as_deref())?,
        port: u16::try_from(port.port).ok()?,
        node_port: number(port.node_port),
    })
}

/// A port's number; `None` if it is 0 or out of range.
fn number(port: Option<i32>) -> Option<u16> {
    port.and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port > 0)
}

/// A port of a slice's endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlicePort {
    /// The name of the service's port.
    pub name: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// The endpoints' number.
    pub port: u16,
}

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address.
    pub address: IpAddr,
    /// Whether it takes connections.
    pub ready: bool,
    /// Whether it still serves, also while it terminates.
    pub serving: bool,
    /// Whether its pod terminates.
    pub terminating: bool,
    /// Its host name below the service's DNS name.
    pub hostname: Option<String>,
    /// Its node.
    pub node: Option<String>,
    /// The callers that should use it, to keep traffic near (KEP-2433, KEP-3015).
    pub hints: Option<Box<Hints>>,
}

impl Endpoint {
    /// Bytes of memory that it takes, about, with its entry in the index by address.
    fn bytes(&self) -> usize {
        let names = [&self.hostname, &self.node].into_iter().flatten();
        let hints = self.hints.iter();
        let hints = hints.flat_map(|hints| hints.nodes.iter().chain(&hints.zones));
        let hints = hints.map(|name| size_of::<String>() + name.len());
        2 * size_of::<Self>() + names.map(String::len).sum::<usize>() + hints.sum::<usize>()
    }
}

/// The callers that an endpoint is meant for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hints {
    /// Names of their nodes.
    pub nodes: Vec<String>,
    /// Their zones.
    pub zones: Vec<String>,
}

impl Hints {
    fn read(hints: EndpointHints) -> Option<Box<Self>> {
        let nodes = hints.for_nodes.into_iter().flatten();
        let zones = hints.for_zones.into_iter().flatten();
        let read = Self {
            nodes: exact(nodes.map(|node| node.name).take(MOST_HINTS)),
            zones: exact(zones.map(|zone| zone.name).take(MOST_HINTS)),
        };
        (read != Self::default()).then(|| Box::new(read))
    }
}

/// Endpoints of a service that have their ports in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// The service's name, in the slice's namespace.
    pub service: String,
    /// Ports.
    pub ports: Vec<SlicePort>,
    /// Endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Whether a label says that this proxy sends nobody to them; they still have DNS names.
    pub foreign: bool,
}

impl Slice {
    /// Reads what the node needs of an object; `None` if it names no service, holds host names
    /// (`FQDN`), or has longer lists than the API accepts.
    pub fn read(slice: EndpointSlice) -> Option<Self> {
        // A host name may look like an address, but the API has not validated it as one.
        if slice.address_type == OF_NAMES {
            return None;
        }
        let ports = slice.ports.as_ref().map_or(0, Vec::len);
        let endpoints = slice.endpoints.as_ref().map_or(0, Vec::len);
        if ports > MOST_PORTS || endpoints > MOST_ENDPOINTS {
            tracing::warn!(
                namespace = slice.metadata.namespace,
                name = slice.metadata.name,
                "an EndpointSlice has more ports or endpoints than the API accepts, and is left out"
            );
            return None;
        }
        let mut labels = slice.metadata.labels?;
        let service = labels.remove(SERVICE_NAME)?;
        let ports = slice.ports.into_iter().flatten().filter_map(|port| {
            Some(SlicePort {
                name: port.name.unwrap_or_default(),
                protocol: Protocol::named(port.protocol.as_deref())?,
                port: u16::try_from(port.port?).ok()?,
            })
        });
        let endpoints = slice.endpoints.into_iter().flatten().filter_map(|one| {
            let conditions = one.conditions.unwrap_or_default();
            let ready = conditions.ready.unwrap_or(true);
            let address: IpAddr = one.addresses.first()?.parse().ok()?;
            // An IPv4-mapped IPv6 address belongs to neither family (upstream's rule).
            (address.to_canonical() == address).then_some(())?;
            Some(Endpoint {
                address,
                ready,
                serving: conditions.serving.unwrap_or(ready),
                terminating: conditions.terminating.unwrap_or(false),
                hostname: one.hostname.filter(|name| !name.is_empty()),
                node: one.node_name,
                hints: one.hints.and_then(Hints::read),
            })
        });
        Some(Self {
            service,
            ports: exact(ports),
            endpoints: exact(endpoints),
            foreign: is_foreign(&labels),
        })
    }

    /// What is kept of it where it is left out.
    #[must_use]
    pub fn without_content(&self) -> Self {
        Self {
            service: self.service.clone(),
            ports: Vec::new(),
            endpoints: Vec::new(),
            foreign: self.foreign,
        }
    }

    /// Bytes of memory that it takes, about.
    pub fn bytes(&self) -> usize {
        let ports = self.ports.iter();
        let ports = ports.map(|port| size_of::<SlicePort>() + port.name.len());
        let endpoints = self.endpoints.iter().map(Endpoint::bytes);
        let lists = ports.sum::<usize>() + endpoints.sum::<usize>();
        PLACES + size_of::<Self>() + self.service.len() + lists
    }
}

/// The ranges of a ServiceCIDR: one, or one of each family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceRange(pub Vec<Cidr>);

impl ServiceRange {
    /// What the node needs of an object.
    pub fn read(object: ServiceCIDR) -> Self {
        let texts = object.spec.and_then(|spec| spec.cidrs);
        let texts = texts.iter().flatten();
        Self(texts.filter_map(|text| text.parse().ok()).collect())
    }
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// Its addresses of type `InternalIP`.
    pub addresses: Vec<IpAddr>,
    /// Its pod CIDRs.
    pub ranges: Vec<Cidr>,
    /// Whether its machine is trusted: the node has no taint that marks it as suspect or untrusted.
    pub trusted: bool,
    /// The public key of its tunnel's first link, signed by the node; the signature is not verified
    /// here.
    pub tunnel: Option<String>,
    /// The same for both links.
    pub tunnel_keys: Option<String>,
    /// Its zone, by its label.
    pub zone: Option<String>,
    /// Whether load balancers should send it no more clients: it is being deleted, or an autoscaler
    /// is about to remove its machine.
    pub leaving: bool,
}

/// The taint by which an autoscaler announces that it removes a machine (upstream's).
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Most bytes of an annotation with a tunnel's keys: a certificate and its intermediates.
const LONGEST_TUNNEL: usize = 16 * 1024;

impl Node {
    /// What other nodes need of an object.
    pub fn read(node: core::Node) -> Self {
        let status = node.status.unwrap_or_default();
        let (ranges, taints) = node
            .spec
            .map_or((None, None), |spec| (spec.pod_cidrs, spec.taints));
        let against = |taint: &core::Taint| [SUSPECT, UNTRUSTED].contains(&taint.key.as_str());
        let to_be_deleted = |taint: &core::Taint| taint.key == TO_BE_DELETED;
        let leaving = node.metadata.deletion_timestamp.is_some()
            || taints.iter().flatten().any(to_be_deleted);
        let zone = node
            .metadata
            .labels
            .and_then(|mut labels| labels.remove(ZONE));
        let mut marks = node.metadata.annotations.unwrap_or_default();
        let mut announced = |name: &str| {
            let text = marks.remove(name);
            text.filter(|text| text.len() <= LONGEST_TUNNEL)
        };
        let internal = status.addresses.into_iter().flatten();
        let internal = internal.filter(|address| address.type_ == "InternalIP");
        Self {
            addresses: internal
                .filter_map(|one| one.address.parse().ok())
                .take(MOST_OF_NODE)
                .collect(),
            ranges: ranges
                .into_iter()
                .flatten()
                .filter_map(|text| text.parse().ok())
                .take(MOST_OF_NODE)
                .collect(),
            trusted: !taints.iter().flatten().any(against),
            tunnel: announced(TUNNEL_ANNOTATION),
            tunnel_keys: announced(TUNNEL_KEYS_ANNOTATION),
            zone: zone.filter(|zone| !zone.is_empty()),
            leaving,
        }
    }
}

/// A pod's host port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// The node's address; `None`: all of its addresses.
    pub address: Option<IpAddr>,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub port: u16,
    /// The pod's address.
    pub pod: IpAddr,
    /// The pod's port.
    pub pod_port: u16,
}

impl HostPort {
    /// The host ports of a pod with this address.
    pub fn read(spec: &core::PodSpec, pod: IpAddr) -> Vec<Self> {
        if spec.host_network == Some(true) {
            return Vec::new();
        }
        // Of init containers only sidecars count.
        let beside = spec.init_containers.iter().flatten();
        let beside = beside.filter(|one| one.restart_policy.as_deref() == Some("Always"));
        let ports = spec.containers.iter().chain(beside);
        let ports = ports.flat_map(|container| container.ports.iter().flatten());
        let read = |port: &core::ContainerPort| {
            let address = port.host_ip.as_deref().unwrap_or_default();
            let address: Option<IpAddr> = match address {
                "" => None,
                text => Some(text.parse().ok()?),
            };
            let port_number = port.host_port.filter(|port| *port > 0)?;
            Some(Self {
                address: address.filter(|address| !address.is_unspecified()),
                protocol: Protocol::named(port.protocol.as_deref())?,
                port: u16::try_from(port_number).ok()?,
                pod,
                pod_port: u16::try_from(port.container_port).ok()?,
            })
        };
        ports.filter_map(read).collect()
    }
}

/// Objects of a kind. A change copies the map if the old one is still being read, so keys are
/// shared, too.
pub type Objects<T> = BTreeMap<Arc<Key>, Arc<T>>;

/// All that is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// Services; none before they were listed.
    pub services: Option<Objects<Service>>,
    /// Slices; none before they were listed.
    pub slices: Option<Objects<Slice>>,
    /// Namespaces whose slices are left out: they exceed their share of the memory for watched
    /// objects.
    pub slices_left_out: BTreeSet<String>,
    /// Ranges of services' addresses, by the names of ServiceCIDRs; none before they were listed.
    pub service_ranges: Option<BTreeMap<String, Arc<ServiceRange>>>,
    /// Nodes; none before they were listed.
    pub nodes: Option<BTreeMap<String, Arc<Node>>>,
    /// Names of namespaces; none before they were listed.
    pub namespaces: Option<BTreeSet<String>>,
    /// Host ports of this node's pods, with the pods' uids, in the order in which they were
    /// published.
    pub host_ports: Vec<(String, Vec<HostPort>)>,
    /// Whether these include the host ports of the pods that an earlier agent left.
    pub host_ports_listed: bool,
    /// Addresses of this node at which its DNS server answers.
    pub name_servers: Vec<IpAddr>,
}

impl Known {
    /// The zone of a node, once nodes are known and it has one.
    pub fn zone(&self, node: &str) -> Option<&str> {
        self.nodes.as_ref()?.get(node)?.zone.as_deref()
    }

    /// Whether an address is in a pod CIDR of a node or in a range of services' addresses, as far
    /// as these are known.
    pub fn is_in_cluster(&self, address: IpAddr) -> bool {
        let nodes = self.nodes.iter().flat_map(BTreeMap::values);
        let services = self.service_ranges.iter().flat_map(BTreeMap::values);
        let services = services.flat_map(|range| &range.0);
        let mut ranges = nodes.flat_map(|node| &node.ranges).chain(services);
        ranges.any(|range| range.contains(address))
    }

    /// Services and slices, once both are known.
    pub fn whole(&self) -> Option<Whole<'_>> {
        Some((self.services.as_ref()?, self.slices.as_ref()?))
    }
}

/// Services and slices.
pub type Whole<'a> = (&'a Objects<Service>, &'a Objects<Slice>);

/// The shared, watched cache; it keeps its content while the API server is unreachable.
#[derive(Debug, Clone)]
pub struct View<S = Known>(watch::Sender<Arc<S>>);

impl<S: Default> Default for View<S> {
    fn default() -> Self {
        Self(watch::Sender::new(Arc::default()))
    }
}

impl<S: Clone> View<S> {
    /// What is known now.
    pub fn now(&self) -> Arc<S> {
        Arc::clone(&self.0.borrow())
    }

    /// A receiver that is notified of changes.
    pub fn changes(&self) -> watch::Receiver<Arc<S>> {
        self.0.subscribe()
    }

    /// Replaces what is known.
    pub fn take(&self, known: Arc<S>) {
        self.0.send_replace(known);
    }

    /// Changes the view if `differs`; receivers are notified only then.
    pub fn change(&self, differs: impl FnOnce(&S) -> bool, change: impl FnOnce(&mut S)) {
        self.0.send_if_modified(|known| {
            let differs = differs(known);
            if differs {
                change(Arc::make_mut(known));
            }
            differs
        });
    }
}

impl View {
    /// Records that the host ports of the pods that an earlier agent left are published.
    pub fn host_ports_are_listed(&self) {
        self.change(
            |known| !known.host_ports_listed,
            |known| known.host_ports_listed = true,
        );
    }

    /// Replaces a pod's host ports; an empty list removes them. The pod keeps its place among the
    /// others.
    pub fn publish(&self, uid: &str, ports: &[HostPort]) {
        let place = |known: &Known| known.host_ports.iter().position(|(own, _)| own == uid);
        let had = |known: &Known| {
            let of_pod = place(known).and_then(|at| known.host_ports.get(at));
            of_pod.map(|(_, ports)| ports.clone()).unwrap_or_default()
        };
        self.change(
            |known| had(known) != ports,
            |known| match place(known) {
                Some(at) if ports.is_empty() => drop(known.host_ports.remove(at)),
                Some(at) => {
                    let of_pod = [(uid.to_owned(), ports.to_vec())];
                    drop(known.host_ports.splice(at..=at, of_pod));
                }
                None => known.host_ports.push((uid.to_owned(), ports.to_vec())),
            },
        );
    }
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
