//! Computes at which addresses and ports services are called, and which endpoints answer there
//! (pure).

use crate::NAME_SERVER_PORT;
use crate::candidates::{EndpointPort, Near, candidates, endpoints, nearest, serving};
use crate::health::health_ports;
use crate::view::{HostPort, Key, Known, Objects, Port, Protocol, Service, Slice};
use agent_sys::netlink::Family;
use config_model::format::Cidr;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// Ports of a machine at which its own programs answer, on all of its addresses or the loopback
/// one: the kubelet, the master, the service proxy ([`crate::HEALTH_PORT`],
/// [`crate::STATUS_PORT`]), the DHCP client, and both links of the tunnel to other machines. No
/// service and no pod gets packets for these.
pub const MACHINE_PORTS: [(Protocol, u16); 7] = [
    (Protocol::Tcp, 10250),
    (Protocol::Tcp, 6443),
    (Protocol::Tcp, crate::HEALTH_PORT),
    (Protocol::Tcp, crate::STATUS_PORT),
    (Protocol::Udp, 68),
    (Protocol::Udp, 51_820),
    (Protocol::Udp, 51_821),
];

/// Where a service is called: a cluster IP, a node port, a load balancer's or an external address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Front {
    /// Address.
    pub address: IpAddr,
    /// Protocol.
    pub protocol: Protocol,
    /// Port.
    pub port: u16,
}

impl Front {
    /// Whether it takes UDP, whose flows have to be forgotten when endpoints change.
    pub(crate) fn is_datagram(&self) -> bool {
        self.protocol == Protocol::Udp
    }
}

/// How a front picks an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pick {
    /// Endpoints of the front's address family, sorted.
    pub endpoints: Vec<(IpAddr, u16)>,
    /// Seconds for which a client stays with one endpoint (`ClientIP` affinity); none without it.
    pub affinity: Option<u32>,
    /// The cluster IP's front, under which affinity remembers clients, so that all fronts of a
    /// service's port share it; none without affinity.
    pub own_front: Option<Front>,
    /// Whether the connection leaves with the node's own address, so that answers come back this
    /// way.
    pub as_node: bool,
    /// Whether packets without a local endpoint are dropped instead of rejected
    /// (externalTrafficPolicy: Local).
    pub silent: bool,
    /// The endpoints for callers on this node, where callers from elsewhere get local endpoints
    /// only (externalTrafficPolicy: Local); else empty.
    pub inside: Vec<(IpAddr, u16)>,
    /// UDP only: all endpoints that serve. Like a TCP connection, a flow stays with its endpoint
    /// while that serves, also where no new client would be sent there: by traffic policy, by
    /// hints, or because its pod terminates (upstream's rule).
    pub serving: Vec<(IpAddr, u16)>,
    /// Ranges that may call (`loadBalancerSourceRanges`); empty where everyone may.
    pub sources: Vec<Cidr>,
}

/// All fronts, and how each picks an endpoint.
pub type Fronts = BTreeMap<Front, Pick>;

/// The node whose callers are served.
#[derive(Debug, Clone, Copy)]
pub struct Here<'a> {
    /// Its name.
    pub node: &'a str,
    /// Its zone, if it has one.
    pub zone: Option<&'a str>,
    /// The addresses at which it answers for node ports.
    pub addresses: &'a [IpAddr],
    /// The addresses at which its name server answers, at [`NAME_SERVER_PORT`].
    pub name_servers: &'a [IpAddr],
}

/// The slices of each service, by its key.
fn by_service(slices: &Objects<Slice>) -> BTreeMap<Key, Vec<&Arc<Slice>>> {
    let mut behind: BTreeMap<Key, Vec<&Arc<Slice>>> = BTreeMap::new();
    for (key, slice) in slices {
        let namespace = key.namespace.clone();
        let name = slice.service.clone();
        behind
            .entry(Key { namespace, name })
            .or_default()
            .push(slice);
    }
    behind
}

/// All fronts of all services, as a node serves them.
pub fn fronts(services: &Objects<Service>, slices: &Objects<Slice>, here: Here<'_>) -> Fronts {
    let behind = by_service(slices);
    let (mut all, mut claimed) = (Fronts::new(), Vec::new());
    for (key, service) in services.iter().filter(|(_, service)| !service.foreign) {
        let slices = behind.get(key).map(Vec::as_slice).unwrap_or_default();
        for (source, front, pick) in of_service(service, slices, here) {
            match source {
                Source::Allocated => drop(all.entry(front).or_insert(pick)),
                Source::Claimed => claimed.push((front, pick)),
            }
        }
    }
    // An address that the control plane allocated to one service stays with it, also if another
    // claims it (externalIPs, a load balancer). Of two that claim one, the first by name has it.
    for (front, pick) in claimed {
        all.entry(front).or_insert(pick);
    }
    all
}

/// Who gave a front to its service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The control plane, which gives it to no other service: a cluster IP, a node port.
    Allocated,
    /// The service itself (externalIPs) or its load balancer.
    Claimed,
}

/// Most fronts of host ports: they go to the kernel in one message with those of all services.
pub(crate) const MOST_HOST_FRONTS: usize = 8192;

/// The host ports of this node's pods that are served, and whether there are more. A host port has
/// a front at each of the node's `addresses` and at loopback, which limits their number.
pub(crate) fn host_ports(
    known: &Known,
    addresses: usize,
) -> (impl Iterator<Item = &HostPort>, bool) {
    let most = MOST_HOST_FRONTS / (addresses + 1);
    let all = || known.host_ports.iter().flat_map(|(_, ports)| ports);
    (all().take(most), all().nth(most).is_some())
}

/// Adds the host ports of this node's pods. A front that a service or an earlier pod has is left to
/// it. A host port without `hostIP`, or with a loopback one, is served at loopback, too, for
/// programs of the machine.
pub fn add_host_ports(fronts: &mut Fronts, known: &Known, addresses: &[IpAddr]) {
    let health = health_ports(known.services.as_ref());
    let (ports, _) = host_ports(known, addresses.len());
    for port in ports {
        for (front, pick) in of_host_port(port, addresses, &health) {
            fronts.entry(front).or_insert(pick);
        }
    }
}

/// The fronts of a pod's host port. `health`: the health check ports of services, at which the node
/// itself answers.
pub(crate) fn of_host_port(
    port: &HostPort,
    addresses: &[IpAddr],
    health: &BTreeSet<u16>,
) -> Vec<(Front, Pick)> {
    let answered = port.protocol == Protocol::Tcp && health.contains(&port.port);
    let own = addresses.iter().copied().filter(|_| !answered);
    let asked = own.filter(|own| port.address.is_none_or(|address| address == *own));
    // The kernel forwards nothing to or from the loopback address of IPv6.
    let loopback = port.address.unwrap_or(Ipv4Addr::LOCALHOST.into());
    let loopback = Some(loopback).filter(|at| at.is_loopback() && at.is_ipv4());
    let at = asked.chain(loopback);
    let at = at.filter(|at| Family::of(*at) == Family::of(port.pod));
    let front = |address: IpAddr| {
        let front = Front {
            address,
            protocol: port.protocol,
            port: port.port,
        };
        let pick = Pick {
            endpoints: vec![(port.pod, port.pod_port)],
            // A pod has no route back to the machine's loopback address.
            as_node: address.is_loopback(),
            ..Pick::default()
        };
        (front, pick)
    };
    at.map(front).collect()
}

/// For each UDP front, by address and port, its endpoints.
pub type Datagrams = BTreeMap<(IpAddr, u16), BTreeSet<(IpAddr, u16)>>;

/// The UDP fronts whose endpoints changed, each with its new ones, those that only still serve
/// among them.
pub fn changed_datagrams(before: &Fronts, after: &Fronts) -> Datagrams {
    let all = before.keys().chain(after.keys());
    let ends = |fronts: &Fronts, front: &Front| {
        let pick = fronts.get(front)?;
        let ends = pick.endpoints.iter().chain(&pick.inside);
        let ends = ends.chain(&pick.serving);
        Some(ends.copied().collect::<BTreeSet<_>>())
    };
    all.filter(|front| front.is_datagram())
        .filter(|front| ends(before, front) != ends(after, front))
        .map(|front| {
            let now = ends(after, front).unwrap_or_default();
            ((front.address, front.port), now)
        })
        .collect()
}

/// The fronts of a service that has these slices.
pub(crate) fn of_service(
    service: &Service,
    slices: &[&Arc<Slice>],
    here: Here<'_>,
) -> Vec<(Source, Front, Pick)> {
    let mut all = Vec::new();
    for family in Family::BOTH {
        // A service has fronts of its own `ipFamilies` only, also at addresses of nodes and of load
        // balancers.
        if service.addresses.iter().any(|at| Family::of(*at) == family) {
            all.extend(of_family(family, service, slices, here));
        }
    }
    all
}

fn of_family(
    family: Family,
    service: &Service,
    slices: &[&Arc<Slice>],
    here: Here<'_>,
) -> Vec<(Source, Front, Pick)> {
    let mut all = Vec::new();
    // The name server's endpoints are those of this node, whatever EndpointSlices say.
    let slices = if service.name_server { &[][..] } else { slices };
    let by_port = endpoints(family, &service.ports, slices);
    for port in &service.ports {
        let of_port = by_port.get(&(&*port.name, port.protocol));
        let of_port = of_port.map(Vec::as_slice).unwrap_or_default();
        let own = Some(here.name_servers).filter(|_| service.name_server);
        let Ends {
            every,
            local,
            still,
        } = match own {
            Some(servers) => of_name_servers(family, servers),
            None => of_endpoints(of_port, here, port.protocol),
        };
        let pick = |local_only: bool, from_outside: bool| Pick {
            endpoints: if local_only { &local } else { &every }.clone(),
            affinity: service.affinity,
            own_front: own_front(family, service, port),
            as_node: from_outside && !local_only,
            silent: local_only && !every.is_empty(),
            inside: if from_outside && local_only {
                every.clone()
            } else {
                Vec::new()
            },
            serving: still.clone(),
            sources: Vec::new(),
        };
        let mut add = |source: Source, addresses: &[IpAddr], port_number: u16, pick: &Pick| {
            let own = addresses.iter().filter(|at| Family::of(**at) == family);
            let machines = MACHINE_PORTS.contains(&(port.protocol, port_number));
            let own = own.filter(|at| !machines || !here.addresses.contains(at));
            all.extend(own.map(|address| {
                let front = Front {
                    address: *address,
                    protocol: port.protocol,
                    port: port_number,
                };
                (source, front, pick.clone())
            }));
        };
        add(
            Source::Allocated,
            &service.addresses,
            port.port,
            &pick(service.internal_local, false),
        );
        let outside = pick(service.external_local, true);
        if let Some(node_port) = port.node_port {
            add(Source::Allocated, here.addresses, node_port, &outside);
        }
        // Load balancers first: an address that is also in `externalIPs` keeps the source ranges.
        let balanced = Pick {
            sources: sources(family, service, here.addresses),
            ..outside.clone()
        };
        add(Source::Claimed, &service.balancers, port.port, &balanced);
        add(Source::Claimed, &service.external, port.port, &outside);
    }
    all
}

/// The front of a service's cluster IP at this port, if it has affinity.
fn own_front(family: Family, service: &Service, port: &Port) -> Option<Front> {
    let mut own = service.addresses.iter();
    let own = own.find(|at| Family::of(**at) == family);
    let stays = own.filter(|_| service.affinity.is_some());
    stays.map(|address| Front {
        address: *address,
        protocol: port.protocol,
        port: port.port,
    })
}

/// The endpoints of a service's port.
struct Ends {
    /// For traffic policy `Cluster`: on any node, chosen by hints.
    every: Vec<(IpAddr, u16)>,
    /// For traffic policy `Local`: those on this node.
    local: Vec<(IpAddr, u16)>,
    /// UDP only: all that serve, for flows that were sent there before.
    still: Vec<(IpAddr, u16)>,
}

fn of_endpoints(of_port: &[EndpointPort<'_>], here: Here<'_>, protocol: Protocol) -> Ends {
    let near = nearest(of_port, here.node, here.zone);
    Ends {
        every: candidates(of_port, near),
        local: candidates(of_port, Near::Node(here.node)),
        still: match protocol {
            Protocol::Udp => serving(of_port),
            Protocol::Tcp => Vec::new(),
        },
    }
}

/// The node's own name servers, for every traffic policy.
fn of_name_servers(family: Family, servers: &[IpAddr]) -> Ends {
    let own = servers.iter().filter(|at| Family::of(**at) == family);
    let own: Vec<_> = own.map(|at| (*at, NAME_SERVER_PORT)).collect();
    Ends {
        every: own.clone(),
        local: own,
        still: Vec::new(),
    }
}

/// The ranges that may call a service's load balancer addresses. If they hold an address of this
/// node, the balancers' own addresses may call, too: where the node holds such an address, its
/// programs call from there (upstream's rule).
fn sources(family: Family, service: &Service, own: &[IpAddr]) -> Vec<Cidr> {
    let ranges = service.sources.iter();
    let ranges = ranges.filter(|range| Family::of(range.address) == family);
    let mut all: Vec<Cidr> = ranges.copied().collect();
    if all
        .iter()
        .any(|range| own.iter().any(|at| range.contains(*at)))
    {
        let balancers = service.balancers.iter();
        let balancers = balancers.filter(|at| Family::of(**at) == family);
        all.extend(balancers.map(|at| Cidr {
            address: *at,
            prefix: family.bits(),
        }));
    }
    all
}

#[cfg(test)]
#[path = "fronts_tests.rs"]
mod tests;
