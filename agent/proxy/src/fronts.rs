//! Where the services of a cluster are called, and which endpoints answer there (pure).

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
/// [`crate::STATUS_PORT`]), what hears servers of DHCP, and both links of the tunnel to other
/// machines. What is for these goes to no pod.
pub const MACHINE_PORTS: [(Protocol, u16); 7] = [
    (Protocol::Tcp, 10250),
    (Protocol::Tcp, 6443),
    (Protocol::Tcp, crate::HEALTH_PORT),
    (Protocol::Tcp, crate::STATUS_PORT),
    (Protocol::Udp, 68),
    (Protocol::Udp, 51_820),
    (Protocol::Udp, 51_821),
];

/// Where a service is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Front {
    /// Address.
    pub address: IpAddr,
    /// Protocol.
    pub protocol: Protocol,
    /// Port.
    pub port: u16,
}

/// How a front picks an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pick {
    /// Endpoints, in order, of the front's family.
    pub endpoints: Vec<(IpAddr, u16)>,
    /// Seconds for which a client stays with one.
    pub affinity: Option<u32>,
    /// The front of the service's own address, under which clients that stay are remembered; the
    /// front itself where there is none. All fronts of a port of a service have the same.
    pub own_front: Option<Front>,
    /// Whether the connection leaves with the node's own address, so that answers come back this
    /// way.
    pub as_node: bool,
    /// Whether packets without a local endpoint are dropped instead of rejected
    /// (externalTrafficPolicy: Local).
    pub silent: bool,
    /// The endpoints for this node's pods and own programs, where callers from elsewhere reach none
    /// but those of this node; empty where there is no such difference.
    pub inside: Vec<(IpAddr, u16)>,
    /// Of a front of datagrams: the endpoints to which clients go on to send that are there,
    /// whether or not others come to them. As connections of TCP do, such a flow stays while its
    /// endpoint serves, whatever policies, hints and the way out of its pod are (upstream's rule).
    pub serving: Vec<(IpAddr, u16)>,
    /// Ranges whose callers alone may come; empty where all may.
    pub sources: Vec<Cidr>,
}

/// What the packet filter should hold.
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
    // What the control plane gave to one service alone stays that one's, whatever addresses another
    // says are its own. Of two that say so the first by name has it.
    for (front, pick) in claimed {
        all.entry(front).or_insert(pick);
    }
    all
}

/// From where a service has a front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// From the control plane, which gives it to no other: a cluster IP, a node port.
    Allocated,
    /// It names the address itself, or its load balancer does.
    Claimed,
}

/// Most fronts of ports of the node that its pods have: they share the message of all services.
pub(crate) const MOST_HOST_FRONTS: usize = 8192;

/// The ports of the node that its pods have, as many as a node serves at this many addresses of its
/// own and the loopback one, and whether there are more.
pub(crate) fn host_ports(
    known: &Known,
    addresses: usize,
) -> (impl Iterator<Item = &HostPort>, bool) {
    let most = MOST_HOST_FRONTS / (addresses + 1);
    let all = || known.host_ports.iter().flat_map(|(_, ports)| ports);
    (all().take(most), all().nth(most).is_some())
}

/// Adds the ports of the node that its pods have; what a service or an earlier pod has stays
/// theirs. The machine's own programs find them at its loopback address, too, where the pod asks
/// for that one or for all.
pub fn add_host_ports(fronts: &mut Fronts, known: &Known, addresses: &[IpAddr]) {
    let health = health_ports(known.services.as_ref());
    let (ports, _) = host_ports(known, addresses.len());
    for port in ports {
        for (front, pick) in of_host_port(port, addresses, &health) {
            fronts.entry(front).or_insert(pick);
        }
    }
}

/// The fronts of a port of the node. `health`: ports at which load balancers ask for endpoints of
/// this node; the node itself answers there.
pub(crate) fn of_host_port(
    port: &HostPort,
    addresses: &[IpAddr],
    health: &BTreeSet<u16>,
) -> Vec<(Front, Pick)> {
    let answered = port.protocol == Protocol::Tcp && health.contains(&port.port);
    let own = addresses.iter().copied().filter(|_| !answered);
    let asked = own.filter(|own| port.address.is_none_or(|address| address == *own));
    // The kernel passes on nothing that is for the loopback address of IPv6.
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
            // A pod has no way to answer a loopback address.
            as_node: address.is_loopback(),
            ..Pick::default()
        };
        (front, pick)
    };
    at.map(front).collect()
}

/// Endpoints by address and port, for fronts of datagrams.
pub type Datagrams = BTreeMap<(IpAddr, u16), BTreeSet<(IpAddr, u16)>>;

/// The endpoints of fronts of datagrams that lead elsewhere than before, with those that still
/// serve.
pub fn changed_datagrams(before: &Fronts, after: &Fronts) -> Datagrams {
    let all = before.keys().chain(after.keys());
    let ends = |fronts: &Fronts, front: &Front| {
        let pick = fronts.get(front)?;
        let ends = pick.endpoints.iter().chain(&pick.inside);
        let ends = ends.chain(&pick.serving);
        Some(ends.copied().collect::<BTreeSet<_>>())
    };
    all.filter(|front| front.protocol == Protocol::Udp)
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
        // A service is at addresses of its families alone, also at those that nodes and others give
        // it.
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
    // Its endpoints are the node's own, whatever slices say.
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
        // First: an address that is a balancer's as well as one that the service names itself is
        // open to these callers alone.
        let balanced = Pick {
            sources: sources(family, service, here.addresses),
            ..outside.clone()
        };
        add(Source::Claimed, &service.balancers, port.port, &balanced);
        add(Source::Claimed, &service.external, port.port, &outside);
    }
    all
}

/// The front of a service's own address at this port, where its clients stay with endpoints.
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

/// Where a port of a service leads.
struct Ends {
    /// Callers of this node.
    every: Vec<(IpAddr, u16)>,
    /// Those who are to reach endpoints of this node alone.
    local: Vec<(IpAddr, u16)>,
    /// Datagrams of callers who were led there before.
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

/// The node's own name servers, wherever a caller is.
fn of_name_servers(family: Family, servers: &[IpAddr]) -> Ends {
    let own = servers.iter().filter(|at| Family::of(**at) == family);
    let own: Vec<_> = own.map(|at| (*at, NAME_SERVER_PORT)).collect();
    Ends {
        every: own.clone(),
        local: own,
        still: Vec::new(),
    }
}

/// Whose callers may come to a service's balancers. The node's own programs come from a balancer's
/// address where the node has it, and may where the node's own address may (upstream's rule).
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
