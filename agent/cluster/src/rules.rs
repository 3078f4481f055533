//! The nftables table for pods (pure): one for each address family that pods have, applied whole at
//! the start and changed by single set elements afterwards.
//!
//! - `from-pods`: a packet from a pod's veth pair is dropped unless it carries the pod's own
//!   address, and a packet from elsewhere if it carries an address of this node's range: services
//!   admit callers from anywhere, and policies identify callers by their addresses. Packets to an
//!   address of the set `machines` go through the chain `to-machines`. Pods may not reach the
//!   machine's loopback addresses, although veth pairs accept those, so that the machine's own
//!   programs can call pods from there. Nor may they reach link-local addresses and those of cloud
//!   metadata services and agents, except for DNS (port 53): these hand out the identity and user-
//!   data of the machine that asks. Pods on the machine's network count as the machine here. DNS
//!   queries to the node's name server and its answers (`own-answers`) are not tracked, so that
//!   names are answered also when the connection table is full.
//! - `by-connection`: services lead to no address of the set `machines`, except for the machine's
//!   own programs. ICMP errors of pods go through the chain `errors`: the kernel, and with it every
//!   NetworkPolicy, judges an error by the connection of the packet that it quotes, never by its
//!   sender. So a pod may send errors only about its own connections, also to the machine. It may
//!   report "packet too large" only where the connection's addresses are not translated: the
//!   receiver then sends smaller packets to the address that it sees, on all connections.
//! - `through`: packets that fit no known connection are dropped, and so are untracked ones, since
//!   no policy would judge them. Pods may connect anywhere. New connections from outside to pods
//!   are dropped; established ones of a node are, too, as soon as it is no longer a peer. All other
//!   forwarding is dropped on a machine that serves nothing but Kubernetes.
//! - `in-the-clear`, where other machines are reached by a tunnel: packets to their pods leave by
//!   the tunnel or not at all. `from-pods` then accepts packets from their pods' addresses by the
//!   tunnel only, which has authenticated the sender.
//! - `into-the-tunnel`, there too: what the machine itself sends to their pods gets its address in
//!   its own pod range as the source.
//! - `to-dhcp-servers`: packets to DHCP servers outside of the cluster are dropped if a pod sends
//!   them or a service leads to them, before they would leave with the machine's address.
//! - `outside`: what pods send out of the cluster gets the machine's address, since routers outside
//!   have no route to a pod.
//!
//! Each packet is matched against each rule, and matching the name of its link costs more than a
//! comparison: so a rule begins with a cheap match that few packets pass, and rules that only some
//! addresses need are behind one lookup in a set.
//!
//! IPv6 neighbour discovery needs no rule: both ends of a veth pair have each other's Ethernet
//! address fixed and no link-local address, so neither has anything to ask, and what a pod
//! announces is dropped.

use crate::address::gateway;
use crate::machine_only::{loopback, machine_only, machines};
use crate::rule_steps::{
    DESTINATION_PORT, ICMP, ICMP_V6, OWN_LINK, SOURCE_PORT, TCP, TOO_LARGE, TOO_LARGE_V6, UDP,
    elsewhere, end, from_a_pod, has, mask, not_by, not_of_tunnel, of_names, of_tunnel,
    to_a_dhcp_server, to_a_pod,
};
use agent_proxy::table::{LEAVES_AS_NODE, POD_LINKS};
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::{
    ChainKind, Change, DESTINATION_CHANGED, ESTABLISHED_OR_RELATED, Hook, INVALID, NAME_BYTES, NEW,
    SOURCE_CHANGED, Step, Verdict, name_key,
};
use agent_sys::netlink::links::octets;
use config_model::format::Cidr;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The table.
pub const TABLE: &str = "pratique-pods";
/// The set of veth pairs and the addresses behind them.
pub const PODS: &str = "pods";
/// The set of addresses that only the machine may call, and the chain for packets to them.
const MACHINES: &str = "machines";
const TO_MACHINES: &str = "to-machines";
/// The chain that decides by the state of a packet's connection, and that for ICMP errors of pods.
const BY_CONNECTION: &str = "by-connection";
const ERRORS: &str = "errors";
/// The set of other nodes' addresses and ranges, each with its mask.
pub const PEERS: &str = "peers";
/// The names of the two WireGuard links to other machines' pods; both begin with [`TUNNEL`].
pub const TUNNELS: [&str; 2] = [TUNNEL, "pratique-wg1"];
/// The name of the first link of [`TUNNELS`], and the prefix of the other's.
pub const TUNNEL: &str = "pratique-wg";
/// Prefix of the names of pods' veth pairs.
pub const LINKS: &str = POD_LINKS;

/// Before connections are looked up, after fragments are joined (`NF_IP_PRI_RAW`).
const RAW: i32 = -300;
/// Just after destination NAT (`NF_IP_PRI_NAT_DST`).
const DESTINATION_CHOSEN: i32 = -99;
/// `NF_IP_PRI_FILTER` and `NF_IP_PRI_NAT_SRC`.
const FILTER: i32 = 0;
const SOURCE_NAT: i32 = 100;
/// Before any other source NAT: the first one decides.
const FIRST_SOURCE_NAT: i32 = SOURCE_NAT - 1;
/// nftables' data type of an interface's name, as programs show a set's keys.
const NAME_SHOWN_AS: u32 = 41;
/// The register after an interface name.
const BEHIND_NAME: u32 = 4;

/// nftables' data type of an address.
const fn shown_as(family: Family) -> u32 {
    match family {
        Family::V4 => 7,
        Family::V6 => 8,
    }
}

/// Bits of [`Step::LoadState`]: a packet for which the kernel looks up no connection; an ICMP error
/// about a packet of a connection.
const UNTRACKED: u32 = 64;
const RELATED: u32 = 4;

/// What a machine forwards, and by which links.
#[derive(Debug, Clone, Copy)]
pub struct Forwarding {
    /// The machine serves only Kubernetes: it forwards only packets of pods.
    pub kubernetes_only: bool,
    /// Peers are reached by [`TUNNELS`] only.
    pub tunnel: bool,
}

/// What the rules of one address family depend on.
struct Rules {
    family: Family,
    /// This node's ranges.
    own: Vec<Cidr>,
    /// The prefix lengths of peers' ranges.
    sizes: BTreeSet<u8>,
}

/// The whole table of a family, which replaces an earlier one in one batch. Addresses of the other
/// family are left out.
///
/// `ranges`: this node's ranges of pod addresses. `pods`: veth pairs and the addresses behind them.
/// `peers`: addresses of other nodes and their pods, which come to pods here unchanged.
pub fn all(
    family: Family,
    ranges: &[Cidr],
    pods: &BTreeMap<String, Vec<IpAddr>>,
    peers: &[Cidr],
    forwarding: Forwarding,
) -> Vec<Change> {
    let mut changes = frame(family);
    let keys = pods.iter().flat_map(|(link, all)| {
        let own = all.iter().filter(move |ip| Family::of(**ip) == family);
        own.map(move |ip| key(link, *ip))
    });
    let keys: Vec<Vec<u8>> = keys.collect();
    if !keys.is_empty() {
        changes.push(add(PODS, keys));
    }
    let of_family = |ranges: &[Cidr]| -> BTreeSet<Cidr> {
        let network = |range: &Cidr| Cidr {
            address: range.network(),
            prefix: range.prefix,
        };
        let all = ranges.iter().map(network);
        all.filter(|range| Family::of(range.address) == family)
            .collect()
    };
    let peers = of_family(peers);
    if !peers.is_empty() {
        let key = |range: &Cidr| [octets(range.address), mask(family, range.prefix)].concat();
        changes.push(add(PEERS, peers.iter().map(key).collect()));
    }
    let rules = Rules {
        family,
        own: of_family(ranges).into_iter().collect(),
        sizes: peers.iter().map(|range| range.prefix).collect(),
    };
    changes.extend(rules.out_of_pods());
    changes.extend(rules.names());
    changes.push(rules.led_by_services());
    changes.extend(rules.errors());
    if forwarding.tunnel {
        changes.extend(rules.of_the_tunnel());
    }
    changes.extend(rules.through(forwarding));
    if forwarding.tunnel {
        changes.extend(rules.as_the_node());
    }
    changes.extend(rules.to_dhcp_servers());
    changes.extend(rules.outside());
    changes
}

/// A new table with its chains, and with sets that have no elements yet.
fn frame(family: Family) -> Vec<Change> {
    let shown = shown_as(family);
    vec![
        // The first makes sure that there is one to remove.
        Change::AddTable(TABLE),
        Change::RemoveTable(TABLE),
        Change::AddTable(TABLE),
        Change::AddSet {
            table: TABLE,
            name: PODS.into(),
            shown_as: (NAME_SHOWN_AS << 6) | shown,
            length: u32::try_from(NAME_BYTES).unwrap_or_default() + family.bytes(),
        },
        Change::AddSet {
            table: TABLE,
            name: PEERS.into(),
            shown_as: (shown << 6) | shown,
            length: 2 * family.bytes(),
        },
        Change::AddRanges {
            table: TABLE,
            name: MACHINES.into(),
            ranges: machines(family),
        },
        Change::AddBranch {
            table: TABLE,
            name: TO_MACHINES.into(),
        },
        Change::AddBranch {
            table: TABLE,
            name: ERRORS.into(),
        },
        chain("from-pods", ChainKind::Filter, Hook::Prerouting, RAW),
        chain("own-answers", ChainKind::Filter, Hook::Output, RAW),
        chain(
            BY_CONNECTION,
            ChainKind::Filter,
            Hook::Prerouting,
            DESTINATION_CHOSEN,
        ),
        chain("through", ChainKind::Filter, Hook::Forward, FILTER),
        chain("outside", ChainKind::Nat, Hook::Postrouting, SOURCE_NAT),
    ]
}

/// Lets a pod's packets out of its veth pair, in the table of the address's family.
pub fn admit(link: &str, address: IpAddr) -> Change {
    add(PODS, vec![key(link, address)])
}

fn add(set: &'static str, keys: Vec<Vec<u8>>) -> Change {
    Change::AddElements {
        table: TABLE,
        set: set.into(),
        keys,
    }
}

/// The reverse of [`admit`].
pub fn dismiss(link: &str, address: IpAddr) -> Change {
    Change::RemoveElements {
        table: TABLE,
        set: PODS.into(),
        keys: vec![key(link, address)],
    }
}

fn key(link: &str, address: IpAddr) -> Vec<u8> {
    [name_key(link).as_slice(), &octets(address)].concat()
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

fn rule(chain: &'static str, parts: &[Vec<Step>]) -> Change {
    Change::AddRule {
        table: TABLE,
        chain: chain.into(),
        steps: parts.concat(),
    }
}

impl Rules {
    fn load(&self, offset: u32, to: u32) -> Step {
        Step::LoadNetwork {
            offset,
            length: self.family.bytes(),
            to,
        }
    }

    /// Matches packets whose address at `offset` is in a peer's range with a prefix of this length.
    fn of_a_peer(&self, offset: u32, prefix: u8) -> Vec<Step> {
        let mask = mask(self.family, prefix);
        let behind = self.family.bytes() / 4;
        vec![
            self.load(offset, 0),
            Step::Mask {
                of: 0,
                mask: mask.clone(),
            },
            // The mask itself is the second half of the key.
            self.load(offset, behind),
            Step::MaskAndFlip {
                of: behind,
                mask: vec![0; mask.len()],
                flip: mask,
            },
            Step::In(0, PEERS.into()),
        ]
    }

    /// Matches packets whose address at `offset` is in a range (`inside`), or is not.
    fn address_in(&self, offset: u32, range: Cidr, inside: bool) -> Vec<Step> {
        let network = octets(range.address);
        let compare = if inside {
            Step::Is(BEHIND_NAME, network)
        } else {
            Step::IsNot(BEHIND_NAME, network)
        };
        let whole = Step::Mask {
            of: BEHIND_NAME,
            mask: mask(self.family, range.prefix),
        };
        let part = (range.prefix < self.family.bits()).then_some(whole);
        let load = self.load(offset, BEHIND_NAME);
        [Some(load), part, Some(compare)]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Matches packets to one of [`machines`].
    fn to_machines(&self) -> Vec<Step> {
        vec![
            self.load(self.family.destination_offset(), BEHIND_NAME),
            Step::In(BEHIND_NAME, MACHINES.into()),
        ]
    }

    fn to(&self, range: Cidr) -> Vec<Step> {
        self.address_in(self.family.destination_offset(), range, true)
    }

    fn from(&self, range: Cidr) -> Vec<Step> {
        self.address_in(self.family.source_offset(), range, true)
    }

    fn out_of_pods(&self) -> Vec<Change> {
        let with = |parts: &[Vec<Step>]| rule(TO_MACHINES, parts);
        let foreign = vec![
            self.load(self.family.source_offset(), BEHIND_NAME),
            Step::NotIn(0, PODS.into()),
        ];
        let loopback = loopback(self.family);
        let mut rules = vec![
            rule("from-pods", &[from_a_pod(), foreign, end(Verdict::Drop)]),
            rule(
                "from-pods",
                &[
                    self.to_machines(),
                    vec![Step::Verdict(Verdict::Jump(TO_MACHINES.into()))],
                ],
            ),
            with(&[from_a_pod(), self.to(loopback), end(Verdict::Drop)]),
        ];
        for range in machine_only(self.family) {
            for protocol in [UDP, TCP] {
                let names = of_names(protocol, DESTINATION_PORT);
                let parts = [from_a_pod(), self.to(range), names, end(Verdict::Accept)];
                rules.push(with(&parts));
            }
            rules.push(with(&[from_a_pod(), self.to(range), end(Verdict::Drop)]));
        }
        rules.extend(self.own.iter().map(|range| {
            // Not even by a tunnel: these addresses are on this machine.
            let parts = [elsewhere(), self.from(*range), end(Verdict::Drop)];
            rule("from-pods", &parts)
        }));
        rules
    }

    /// The node's addresses in its ranges.
    fn own_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.own.iter().filter_map(|range| gateway(range).ok())
    }

    /// Leaves DNS queries of pods to the node's DNS server, and its answers, untracked.
    fn names(&self) -> Vec<Change> {
        let untracked = || vec![Step::Untracked];
        let of_server = |server: IpAddr| {
            let single = Cidr {
                address: server,
                prefix: self.family.bits(),
            };
            [UDP, TCP].into_iter().flat_map(move |protocol| {
                let questions = of_names(protocol, DESTINATION_PORT);
                let answers = of_names(protocol, SOURCE_PORT);
                let asked = [self.to(single), from_a_pod(), questions, untracked()];
                let replied = [self.from(single), to_a_pod(), answers, untracked()];
                [rule("from-pods", &asked), rule("own-answers", &replied)]
            })
        };
        self.own_addresses().flat_map(of_server).collect()
    }

    /// Drops packets that a service has translated to one of [`machines`]. Only the first packet of
    /// a connection is matched: pods must be able to answer the machine's own programs, which may
    /// call from a loopback address.
    fn led_by_services(&self) -> Change {
        let led = [
            has(Step::LoadState(0), NEW),
            has(Step::LoadStatus(0), DESTINATION_CHANGED),
            not_by(OWN_LINK),
            self.to_machines(),
            end(Verdict::Drop),
        ];
        rule(BY_CONNECTION, &led)
    }

    /// ICMP errors of pods: only those that quote a connection of the pod itself pass, and of these
    /// no "packet too large" if the connection's addresses are translated. Its receiver would store
    /// the smaller size for the machine's or the service's address, and so for all that share it.
    fn errors(&self) -> [Change; 5] {
        let (icmp, too_large) = match self.family {
            Family::V4 => (ICMP, TOO_LARGE),
            Family::V6 => (ICMP_V6, TOO_LARGE_V6),
        };
        let too_large = vec![
            Step::LoadTransport {
                offset: 0,
                length: u32::try_from(too_large.len()).unwrap_or_default(),
                to: 0,
            },
            Step::Is(0, too_large.to_vec()),
        ];
        let changed = has(Step::LoadStatus(0), SOURCE_CHANGED | DESTINATION_CHANGED);
        let errors = [
            has(Step::LoadState(0), RELATED | INVALID),
            vec![Step::LoadProtocol(0), Step::Is(0, vec![icmp])],
            from_a_pod(),
            vec![Step::Verdict(Verdict::Jump(ERRORS.into()))],
        ];
        let of_the_pod = |load_end: Step| {
            let key = [Step::LoadInName(0), load_end, Step::In(0, PODS.into())];
            [key.to_vec(), vec![Step::Verdict(Verdict::Accept)]]
        };
        [
            rule(BY_CONNECTION, &errors),
            rule(ERRORS, &[too_large, changed, end(Verdict::Drop)]),
            rule(ERRORS, &of_the_pod(Step::LoadClient(BEHIND_NAME))),
            rule(ERRORS, &of_the_pod(Step::LoadServer(BEHIND_NAME))),
            rule(ERRORS, &[end(Verdict::Drop)]),
        ]
    }

    /// Packets from and to other machines' pods: accepted by the tunnel only, sent by it only.
    fn of_the_tunnel(&self) -> Vec<Change> {
        let peers = self.sizes.iter().map(|prefix| {
            let from = self.of_a_peer(self.family.source_offset(), *prefix);
            let by_another = not_of_tunnel(Step::LoadInName(0));
            let parts = [elsewhere(), by_another, from, end(Verdict::Drop)];
            rule("from-pods", &parts)
        });
        let mut rules: Vec<Change> = peers.collect();
        rules.push(chain(
            "in-the-clear",
            ChainKind::Filter,
            Hook::Postrouting,
            FILTER,
        ));
        rules.extend(self.sizes.iter().map(|prefix| {
            let past_it = not_of_tunnel(Step::LoadOutName(0));
            let to = self.of_a_peer(self.family.destination_offset(), *prefix);
            rule("in-the-clear", &[past_it, to, end(Verdict::Drop)])
        }));
        rules
    }

    /// Source NAT for what the machine sends to other machines' pods, for itself or for a client of
    /// a node port: the source becomes its address in its own pod range, as peers accept no other.
    /// Both links have that address, and the rule names it: [`Step::Masquerade`] would end a
    /// connection as soon as its packets leave by the other link.
    fn as_the_node(&self) -> Vec<Change> {
        let name = "into-the-tunnel";
        let Some(address) = self.own_addresses().map(octets).next() else {
            return Vec::new();
        };
        let source = self.family.source_offset();
        // Loads a constant: the mask clears what was loaded, and the flip sets the address.
        let constant = Step::MaskAndFlip {
            of: 0,
            mask: vec![0; address.len()],
            flip: address,
        };
        let become_it = vec![
            self.load(source, 0),
            constant,
            Step::Count,
            Step::Source { address: 0 },
        ];
        let own = self.own.iter();
        let foreign = own.flat_map(|range| self.address_in(source, *range, false));
        let with = |when: Vec<Step>| {
            let leaves = of_tunnel(Step::LoadOutName(0));
            rule(name, &[leaves, when, become_it.clone()])
        };
        vec![
            chain(name, ChainKind::Nat, Hook::Postrouting, FIRST_SOURCE_NAT),
            with(foreign.collect()),
            with(has(Step::LoadMark(0), LEAVES_AS_NODE)),
        ]
    }

    fn through(&self, forwarding: Forwarding) -> Vec<Change> {
        let known = || has(Step::LoadState(0), ESTABLISHED_OR_RELATED);
        let way = |number| vec![Step::LoadDirection(0), Step::Is(0, vec![number])];
        let (of_the_client, of_the_server) = (way(0), way(1));
        let as_another = has(Step::LoadStatus(0), SOURCE_CHANGED);
        // Only the services' table gives connections another destination.
        let by_a_service = has(Step::LoadStatus(0), DESTINATION_CHANGED);
        let error = has(Step::LoadState(0), RELATED);
        let of_none = has(Step::LoadState(0), INVALID);
        // The kernel looks up no connection for some types of ICMPv6 (neighbours, routers, groups),
        // so that no NetworkPolicy judges them. They concern one link, and none is forwarded.
        let unjudged = || has(Step::LoadState(0), UNTRACKED);
        let accept = || vec![Step::Verdict(Verdict::Accept)];
        let with = |parts: &[Vec<Step>]| rule("through", parts);
        let of_peers = |prefix: &u8| self.of_a_peer(self.family.source_offset(), *prefix);
        // Established connections first, as nearly all packets belong to one. Answers to
        // masqueraded connections may come from anywhere, all else only from pods here and from
        // peers: packets of a removed peer are dropped on established connections, too.
        let mut rules = vec![
            with(&[known(), as_another, of_the_server, accept()]),
            with(&[known(), from_a_pod(), accept()]),
        ];
        let of_peers_known = |prefix| with(&[known(), of_peers(prefix), accept()]);
        rules.extend(self.sizes.iter().map(of_peers_known));
        rules.extend([
            // NAT does not translate an invalid packet: its receiver would reset a connection that
            // is alive.
            with(&[of_none, end(Verdict::Drop)]),
            with(&[unjudged(), from_a_pod(), end(Verdict::Drop)]),
            with(&[unjudged(), to_a_pod(), end(Verdict::Drop)]),
            with(&[from_a_pod(), accept()]),
            // Packets that a service has translated, to a peer's pod, from a client elsewhere.
            with(&[by_a_service, of_the_client, accept()]),
            // ICMP errors may come from any router.
            with(&[error, accept()]),
        ]);
        let of_peers_new = |prefix| with(&[to_a_pod(), of_peers(prefix), accept()]);
        rules.extend(self.sizes.iter().map(of_peers_new));
        rules.push(with(&[to_a_pod(), end(Verdict::Drop)]));
        if forwarding.tunnel {
            // This machine does not forward between other machines.
            let by_it = of_tunnel(Step::LoadInName(0));
            rules.push(with(&[by_it, end(Verdict::Drop)]));
        }
        if forwarding.kubernetes_only {
            rules.push(with(&[end(Verdict::Drop)]));
        }
        rules
    }

    /// A DHCP server answers the machine at one port, whatever the source port of the request (RFC
    /// 2131, section 4.1). If a pod's datagram left for the server with the machine's address and
    /// this port, the pod would get the server's answers, and the machine would lose its lease. A
    /// pod could also send requests about the lease in the machine's place.
    fn to_dhcp_servers(&self) -> Vec<Change> {
        if self.family == Family::V6 {
            return Vec::new();
        }
        let name = "to-dhcp-servers";
        let with = |when: Vec<Step>, what: Vec<Step>| rule(name, &[to_a_dhcp_server(), when, what]);
        let accept = || vec![Step::Verdict(Verdict::Accept)];
        let by_a_service = has(Step::LoadStatus(0), DESTINATION_CHANGED);
        // A service may lead the machine's programs to a server on the machine's network.
        let to_the_machine = vec![
            Step::LoadOutName(0),
            Step::Is(0, name_key(OWN_LINK).to_vec()),
        ];
        let mut rules = vec![
            chain(name, ChainKind::Nat, Hook::Postrouting, FIRST_SOURCE_NAT),
            with(to_a_pod(), accept()),
            with(to_the_machine, accept()),
        ];
        rules.extend(self.sizes.iter().map(|prefix| {
            let destination = self.family.destination_offset();
            with(self.of_a_peer(destination, *prefix), accept())
        }));
        let own = self.own.iter();
        rules.extend(own.map(|range| with(self.from(*range), end(Verdict::Drop))));
        rules.push(with(by_a_service, end(Verdict::Drop)));
        rules
    }

    fn outside(&self) -> Vec<Change> {
        let (source, destination) = (
            self.family.source_offset(),
            self.family.destination_offset(),
        );
        let leaves = self.own.iter();
        let leaves = leaves.flat_map(|range| self.address_in(destination, *range, false));
        let leaves: Vec<Step> = leaves.collect();
        // A pod that calls itself through a service would answer itself directly, without the node
        // to translate the addresses back.
        let to_itself = vec![
            Step::LoadOutName(0),
            self.load(source, BEHIND_NAME),
            Step::In(0, PODS.into()),
            Step::Count,
            Step::Masquerade,
        ];
        let mut rules = vec![rule("outside", &[to_itself])];
        rules.extend(self.sizes.iter().map(|prefix| {
            let to = self.of_a_peer(destination, *prefix);
            rule("outside", &[to, vec![Step::Verdict(Verdict::Accept)]])
        }));
        rules.extend(self.own.iter().map(|range| {
            let as_machine = vec![Step::Count, Step::Masquerade];
            rule("outside", &[self.from(*range), leaves.clone(), as_machine])
        }));
        rules
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
