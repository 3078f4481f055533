//! What the packet filter holds for pods (pure): one table of this agent's own, put in place as a whole at the start and
//! changed by single keys afterwards.
//!
//! - `from-pods`: what comes out of a pod's cable carries the pod's own address. The machine's loopback addresses are not for
//!   pods, although cables let the machine's own programs call from there. Link-local addresses and those at which
//!   clouds keep metadata and agents are not for pods, but for names (port 53): who may ask there is the machine, whose
//!   identity and user-data they hand out. Pods on the machine's network are the machine in this.
//! - `through`: what fits no connection that is known is dropped; pods may connect anywhere; connections from outside to pods are dropped; all other
//!   forwarding is dropped
//! - `in-the-clear`, where other machines are reached by a tunnel: what is for their pods leaves by the tunnel or not at all.
//!   `from-pods` then lets in what carries an address of a pod by the tunnel only, which has proved whose it is.
//! - `into-the-tunnel`, there too: what the machine sends as itself to their pods has its address in its range.
//! - `outside`: what leaves the cluster has the machine's address, since nobody there knows the way to a pod.

use crate::address::gateway;
use agent_proxy::table::LEAVES_AS_NODE;
use agent_sys::netlink::filter::{
    ChainKind, Change, DESTINATION_CHANGED, ESTABLISHED_OR_RELATED, Hook, INVALID, NAME_BYTES,
    Step, Verdict, name_key,
};
use config_model::format::Cidr;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

/// The table.
pub const TABLE: &str = "pratique-pods";
/// The set of cables and the addresses behind them.
pub const PODS: &str = "pods";
/// The set of other nodes' addresses and ranges, each with its mask.
pub const PEERS: &str = "peers";
/// Two IPv4 addresses, as programs show a set's keys.
const PEERS_SHOWN_AS: u32 = (7 << 6) | 7;
/// The links of the tunnel to other machines' pods, and what the names of both begin with.
pub const TUNNELS: [&str; 2] = [TUNNEL, "pratique-wg1"];
/// See [`TUNNELS`].
pub const TUNNEL: &str = "pratique-wg";
/// The link on which the machine speaks to itself.
const OWN_LINK: &str = "lo";
/// What the names of pods' cables begin with.
pub const LINKS: &str = "pod-";

/// Addresses outside of the cluster that only the machine may ask, but for names.
pub const MACHINE_ONLY: [(Ipv4Addr, u8, &str); 3] = [
    (
        Ipv4Addr::new(169, 254, 0, 0),
        16,
        "link-local addresses: metadata services of clouds",
    ),
    (
        Ipv4Addr::new(168, 63, 129, 16),
        32,
        "the host's agent on Azure",
    ),
    (
        Ipv4Addr::new(100, 100, 100, 200),
        32,
        "the metadata service of Alibaba Cloud",
    ),
];

/// Places in packets and numbers of protocols (RFC 791, RFC 768, RFC 9293).
const SOURCE: u32 = 12;
const DESTINATION: u32 = 16;
const DESTINATION_PORT: u32 = 2;
const TCP: u8 = 6;
const UDP: u8 = 17;
const DNS_PORT: u16 = 53;
/// Before connections are looked up, after fragments are joined (`NF_IP_PRI_RAW`).
const RAW: i32 = -300;
/// `NF_IP_PRI_FILTER` and `NF_IP_PRI_NAT_SRC`.
const FILTER: i32 = 0;
const SOURCE_NAT: i32 = 100;
/// Before any other change of sources: the first one decides.
const FIRST_SOURCE_NAT: i32 = SOURCE_NAT - 1;
/// nftables' data types of an interface's name and of an IPv4 address, as programs show a set's keys.
const SHOWN_AS: u32 = (41 << 6) | 7;
/// The register behind a name.
const BEHIND_NAME: u32 = 4;

/// The whole table, in place of an earlier one, in one batch.
///
/// `ranges`: this node's ranges of pod addresses. `pods`: cables and the addresses behind them. `peers`: addresses of other
/// nodes and their pods, which speak to pods here without a change of addresses. `alone`: the machine serves nothing but
/// Kubernetes, so that it passes on no other packets. `tunnel`: peers are reached by [`TUNNELS`] only.
pub fn all(
    ranges: &[Cidr],
    pods: &[(String, IpAddr)],
    peers: &[Cidr],
    alone: bool,
    tunnel: bool,
) -> Vec<Change> {
    let mut changes = vec![
        // The first makes sure that there is one to remove.
        Change::AddTable(TABLE),
        Change::RemoveTable(TABLE),
        Change::AddTable(TABLE),
        Change::AddSet {
            table: TABLE,
            name: PODS.into(),
            shown_as: SHOWN_AS,
            length: u32::try_from(NAME_BYTES + 4).unwrap_or_default(),
        },
        Change::AddSet {
            table: TABLE,
            name: PEERS.into(),
            shown_as: PEERS_SHOWN_AS,
            length: 8,
        },
        chain("from-pods", ChainKind::Filter, Hook::Prerouting, RAW),
        chain("through", ChainKind::Filter, Hook::Forward, FILTER),
        chain("outside", ChainKind::Nat, Hook::Postrouting, SOURCE_NAT),
    ];
    let keys: Vec<Vec<u8>> = pods
        .iter()
        .filter_map(|(link, ip)| key(link, *ip))
        .collect();
    if !keys.is_empty() {
        changes.push(Change::AddElements {
            table: TABLE,
            set: PODS.into(),
            keys,
        });
    }
    let peers: BTreeSet<(Ipv4Addr, u8)> = peers.iter().filter_map(network).collect();
    if !peers.is_empty() {
        changes.push(Change::AddElements {
            table: TABLE,
            set: PEERS.into(),
            keys: peers.iter().copied().map(peer_key).collect(),
        });
    }
    let sizes: BTreeSet<u8> = peers.iter().map(|(_, prefix)| *prefix).collect();
    changes.extend(from_pods());
    if tunnel {
        let own: Vec<(Ipv4Addr, u8)> = ranges.iter().filter_map(network).collect();
        changes.extend(of_the_tunnel(&own, &sizes));
    }
    changes.extend(through(&sizes, alone, tunnel));
    if tunnel {
        changes.extend(into_the_tunnel(ranges));
    }
    changes.extend(outside(ranges, &sizes));
    changes
}

/// A range's first address and prefix.
fn network(range: &Cidr) -> Option<(Ipv4Addr, u8)> {
    match range.network() {
        IpAddr::V4(network) => Some((network, range.prefix)),
        IpAddr::V6(_) => None,
    }
}

fn peer_key((network, prefix): (Ipv4Addr, u8)) -> Vec<u8> {
    let mut key = network.octets().to_vec();
    key.extend(mask(prefix).to_be_bytes());
    key
}

fn mask(prefix: u8) -> u32 {
    let host = 32_u32.saturating_sub(prefix.into());
    u32::MAX.checked_shl(host).unwrap_or(0)
}

/// Steps that hold for packets whose address at `offset` is of a peer whose range has a prefix of this length.
fn of_a_peer(offset: u32, prefix: u8) -> Vec<Step> {
    let mask = mask(prefix).to_be_bytes().to_vec();
    let load = |to| Step::LoadNetwork {
        offset,
        length: 4,
        to,
    };
    vec![
        load(0),
        Step::Mask {
            of: 0,
            mask: mask.clone(),
        },
        // The mask itself is the second half of the key.
        load(1),
        Step::MaskAndFlip {
            of: 1,
            mask: vec![0; 4],
            flip: mask,
        },
        Step::In(0, PEERS.into()),
    ]
}

/// Lets a pod's packets out of its cable.
pub fn admit(link: &str, address: IpAddr) -> Option<Change> {
    Some(Change::AddElements {
        table: TABLE,
        set: PODS.into(),
        keys: vec![key(link, address)?],
    })
}

/// The reverse.
pub fn dismiss(link: &str, address: IpAddr) -> Option<Change> {
    Some(Change::RemoveElements {
        table: TABLE,
        set: PODS.into(),
        keys: vec![key(link, address)?],
    })
}

fn key(link: &str, address: IpAddr) -> Option<Vec<u8>> {
    match address {
        IpAddr::V4(address) => Some([name_key(link).as_slice(), &address.octets()].concat()),
        IpAddr::V6(_) => None,
    }
}

fn chain(name: &'static str, kind: ChainKind, hook: Hook, priority: i32) -> Change {
    Change::AddChain {
        table: TABLE,
        name,
        kind,
        hook,
        priority,
    }
}

fn rule(chain: &'static str, steps: Vec<Step>) -> Change {
    Change::AddRule {
        table: TABLE,
        chain: chain.into(),
        steps,
    }
}

fn from_a_pod() -> Vec<Step> {
    vec![Step::LoadInName(0), Step::Is(0, LINKS.as_bytes().to_vec())]
}

fn load_address(offset: u32) -> Step {
    Step::LoadNetwork {
        offset,
        length: 4,
        to: BEHIND_NAME,
    }
}

/// Steps that hold for packets whose address at `offset` is in a range, or is not.
fn address_in(offset: u32, network: Ipv4Addr, prefix: u8, inside: bool) -> Vec<Step> {
    let mask = mask(prefix);
    let network = (u32::from(network) & mask).to_be_bytes().to_vec();
    let compare = if inside {
        Step::Is(BEHIND_NAME, network)
    } else {
        Step::IsNot(BEHIND_NAME, network)
    };
    vec![
        load_address(offset),
        Step::Mask {
            of: BEHIND_NAME,
            mask: mask.to_be_bytes().to_vec(),
        },
        compare,
    ]
}

fn end(verdict: Verdict) -> Vec<Step> {
    vec![Step::Count, Step::Verdict(verdict)]
}

fn from_pods() -> Vec<Change> {
    let with = |parts: &[Vec<Step>]| rule("from-pods", parts.concat());
    let foreign = vec![load_address(SOURCE), Step::NotIn(0, PODS.into())];
    let to_loopback = || address_in(DESTINATION, Ipv4Addr::LOCALHOST, 8, true);
    let mut rules = vec![
        with(&[from_a_pod(), foreign, end(Verdict::Drop)]),
        with(&[from_a_pod(), to_loopback(), end(Verdict::Drop)]),
    ];
    for (network, prefix, _) in MACHINE_ONLY {
        let to = || address_in(DESTINATION, network, prefix, true);
        for protocol in [UDP, TCP] {
            let names = vec![
                Step::LoadProtocol(0),
                Step::Is(0, vec![protocol]),
                Step::LoadTransport {
                    offset: DESTINATION_PORT,
                    length: 2,
                    to: 0,
                },
                Step::Is(0, DNS_PORT.to_be_bytes().to_vec()),
            ];
            rules.push(with(&[from_a_pod(), to(), names, end(Verdict::Accept)]));
        }
        rules.push(with(&[from_a_pod(), to(), end(Verdict::Drop)]));
    }
    rules
}

/// Steps that hold where the loaded name is that of one of the tunnel's links.
fn of_tunnel(load: Step) -> Vec<Step> {
    vec![load, Step::Is(0, TUNNEL.as_bytes().to_vec())]
}

fn not_of_tunnel(load: Step) -> Vec<Step> {
    vec![load, Step::IsNot(0, TUNNEL.as_bytes().to_vec())]
}

fn not_by(link: &str) -> Vec<Step> {
    vec![Step::LoadInName(0), Step::IsNot(0, name_key(link).to_vec())]
}

/// Pods' addresses come in by the tunnel, and packets for other machines' pods leave by it.
fn of_the_tunnel(own: &[(Ipv4Addr, u8)], peers: &BTreeSet<u8>) -> Vec<Change> {
    let elsewhere = || {
        let no_pod = vec![
            Step::LoadInName(0),
            Step::IsNot(0, LINKS.as_bytes().to_vec()),
        ];
        [no_pod, not_by(OWN_LINK)].concat()
    };
    let own = own.iter().map(|(network, prefix)| {
        // Not even by the tunnel: these addresses are on this machine.
        let steps = [
            elsewhere(),
            address_in(SOURCE, *network, *prefix, true),
            end(Verdict::Drop),
        ];
        rule("from-pods", steps.concat())
    });
    let mut rules: Vec<Change> = own.collect();
    rules.extend(peers.iter().map(|prefix| {
        let by_another = not_of_tunnel(Step::LoadInName(0));
        let from = [elsewhere(), by_another, of_a_peer(SOURCE, *prefix)];
        rule("from-pods", [from.concat(), end(Verdict::Drop)].concat())
    }));
    rules.push(chain(
        "in-the-clear",
        ChainKind::Filter,
        Hook::Postrouting,
        FILTER,
    ));
    rules.extend(peers.iter().map(|prefix| {
        let steps = [
            not_of_tunnel(Step::LoadOutName(0)),
            of_a_peer(DESTINATION, *prefix),
            end(Verdict::Drop),
        ];
        rule("in-the-clear", steps.concat())
    }));
    rules
}

/// What the machine itself sends to other machines' pods, or as itself for a client of a node's port, has its address in its
/// range of pods' addresses: others than those the peers take from nobody. Both links have that address, and the kernel is
/// told it: with [`Step::Masquerade`] a connection would end as soon as its packets leave by the other link.
fn into_the_tunnel(ranges: &[Cidr]) -> Vec<Change> {
    let name = "into-the-tunnel";
    let own = |range: &Cidr| match gateway(range) {
        Ok(IpAddr::V4(address)) => Some(address),
        Ok(IpAddr::V6(_)) | Err(_) => None,
    };
    let Some(address) = ranges.iter().find_map(own) else {
        return Vec::new();
    };
    let become_it = || {
        // A constant: what is loaded is masked away.
        let address = Step::MaskAndFlip {
            of: 0,
            mask: vec![0; 4],
            flip: address.octets().to_vec(),
        };
        vec![
            Step::LoadMark(0),
            address,
            Step::Count,
            Step::Source { address: 0 },
        ]
    };
    let networks = ranges.iter().filter_map(network);
    let foreign = networks.flat_map(|(network, prefix)| address_in(SOURCE, network, prefix, false));
    let mark = LEAVES_AS_NODE.to_ne_bytes().to_vec();
    let as_node = vec![
        Step::LoadMark(0),
        Step::Mask {
            of: 0,
            mask: mark.clone(),
        },
        Step::Is(0, mark),
    ];
    let with = |when: Vec<Step>| {
        let leaves = of_tunnel(Step::LoadOutName(0));
        rule(name, [leaves, when, become_it()].concat())
    };
    vec![
        chain(name, ChainKind::Nat, Hook::Postrouting, FIRST_SOURCE_NAT),
        with(foreign.collect()),
        with(as_node),
    ]
}

fn through(peers: &BTreeSet<u8>, alone: bool, tunnel: bool) -> Vec<Change> {
    let known = vec![
        Step::LoadState(0),
        Step::Mask {
            of: 0,
            mask: ESTABLISHED_OR_RELATED.to_ne_bytes().to_vec(),
        },
        Step::IsNot(0, vec![0; 4]),
    ];
    // Only the services' table gives connections another destination.
    let by_a_service = vec![
        Step::LoadStatus(0),
        Step::Mask {
            of: 0,
            mask: DESTINATION_CHANGED.to_ne_bytes().to_vec(),
        },
        Step::IsNot(0, vec![0; 4]),
    ];
    let accept = || vec![Step::Verdict(Verdict::Accept)];
    let to_a_pod = vec![Step::LoadOutName(0), Step::Is(0, LINKS.as_bytes().to_vec())];
    let with = |parts: &[Vec<Step>]| rule("through", parts.concat());
    let of_none = vec![
        Step::LoadState(0),
        Step::Mask {
            of: 0,
            mask: INVALID.to_ne_bytes().to_vec(),
        },
        Step::IsNot(0, vec![0; 4]),
    ];
    let mut rules = vec![
        // Such a packet's addresses are not changed back: its receiver would reset a connection that goes on.
        with(&[of_none, end(Verdict::Drop)]),
        with(&[from_a_pod(), accept()]),
        with(&[known, accept()]),
        with(&[by_a_service, accept()]),
    ];
    let of_peers = |prefix: &u8| with(&[to_a_pod.clone(), of_a_peer(SOURCE, *prefix), accept()]);
    rules.extend(peers.iter().map(of_peers));
    rules.push(with(&[to_a_pod.clone(), end(Verdict::Drop)]));
    if tunnel {
        // Other machines' pods have no way through this one.
        let by_it = of_tunnel(Step::LoadInName(0));
        rules.push(with(&[by_it, end(Verdict::Drop)]));
    }
    if alone {
        rules.push(with(&[end(Verdict::Drop)]));
    }
    rules
}

fn outside(ranges: &[Cidr], peers: &BTreeSet<u8>) -> Vec<Change> {
    let v4: Vec<(Ipv4Addr, u8)> = ranges
        .iter()
        .filter_map(|range| match range.address {
            IpAddr::V4(address) => Some((address, range.prefix)),
            IpAddr::V6(_) => None,
        })
        .collect();
    let leaves: Vec<Step> = v4
        .iter()
        .flat_map(|(network, prefix)| address_in(DESTINATION, *network, *prefix, false))
        .collect();
    let one = |(network, prefix): &(Ipv4Addr, u8)| {
        let from = address_in(SOURCE, *network, *prefix, true);
        let steps = [from, leaves.clone(), vec![Step::Count, Step::Masquerade]];
        rule("outside", steps.concat())
    };
    // A pod that reaches itself through a service would answer itself past the node.
    let to_itself = vec![
        Step::LoadOutName(0),
        load_address(SOURCE),
        Step::In(0, PODS.into()),
        Step::Count,
        Step::Masquerade,
    ];
    let to_a_peer = |prefix: &u8| {
        let steps = [
            of_a_peer(DESTINATION, *prefix),
            vec![Step::Verdict(Verdict::Accept)],
        ];
        rule("outside", steps.concat())
    };
    let mut rules = vec![rule("outside", to_itself)];
    rules.extend(peers.iter().map(to_a_peer));
    rules.extend(v4.iter().map(one));
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_sys::namespace::{Kind, in_new};
    use agent_sys::netlink::filter::Filter;

    fn pods(count: u8) -> Vec<(String, IpAddr)> {
        let pod = |number: u8| {
            (
                format!("{LINKS}{number}"),
                Ipv4Addr::new(10, 1, 0, number).into(),
            )
        };
        (2..count).map(pod).collect()
    }

    #[test]
    fn the_kernel_takes_the_table_again_and_again_and_single_pods() {
        let ranges = ["10.1.0.0/24".parse().unwrap()];
        in_new(&[Kind::Network], || {
            let mut filter = Filter::open()?;
            for (ranges, pods) in [
                (&ranges[..0], pods(0)),
                (&ranges, pods(0)),
                (&ranges, pods(250)),
            ] {
                let peers = ["10.1.1.0/24", "10.1.4.0/22", "192.0.2.7/32"];
                let peers = peers.map(|text| text.parse().unwrap());
                for alone in [false, true] {
                    for tunnel in [false, true] {
                        filter.apply(&all(ranges, &pods, &[], alone, tunnel))?;
                        filter.apply(&all(ranges, &pods, &peers, alone, tunnel))?;
                    }
                }
            }
            let ip = Ipv4Addr::new(10, 1, 0, 254).into();
            filter.apply(&[admit("pod-x", ip).unwrap()])?;
            filter.apply(&[dismiss("pod-x", ip).unwrap()])?;
            assert!(filter.apply(&[dismiss("pod-x", ip).unwrap()]).is_err());
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn only_a_machine_of_ours_drops_what_is_no_pods() {
        let last = |alone| match through(&BTreeSet::new(), alone, true).pop() {
            Some(Change::AddRule { steps, .. }) => steps,
            other => panic!("{other:?}"),
        };
        assert_eq!(last(true), end(Verdict::Drop));
        assert_ne!(last(false), end(Verdict::Drop));
    }
}
