//! Decides which nodes are WireGuard peers, and with which address ranges (pure).

use agent_sys::netlink::Family;
use agent_sys::netlink::wireguard::{Change, Key, MAX_RANGES, Range, Tunnel};
use config_model::format::Cidr;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::slots::KEEPALIVE;
use crate::peers::is_routed;

/// The parts of a node that the tunnel needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    /// Its name.
    pub(crate) name: String,
    /// Its addresses, the most important first, as the node itself reports them. A wrong one harms
    /// only that node: packets to it are encrypted for its key.
    pub(crate) addresses: Vec<IpAddr>,
    /// Its ranges of pod addresses, which the master gives.
    pub(crate) ranges: Vec<Cidr>,
    /// The keys of its links that it proved to be its own; none if its machine is not trusted.
    pub(crate) keys: [Option<Key>; 2],
}

/// A node that may be a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// Its address outside of the tunnel.
    pub(crate) address: IpAddr,
    /// The addresses behind it.
    pub(crate) ranges: Vec<Range>,
    /// The keys of its links.
    pub(crate) keys: [Option<Key>; 2],
}

/// All other nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Members {
    /// Those that may be peers, by their names.
    pub(crate) peers: BTreeMap<String, Member>,
    /// Ranges that are routed into the tunnel, also those of nodes that are no peers: packets to
    /// their pods must not leave unencrypted.
    pub(crate) routes: BTreeSet<Range>,
    /// Nodes whose pods are not reached though they are trusted, and why.
    pub(crate) refused: BTreeMap<String, &'static str>,
}

/// A peer of one link: where it is, and the addresses behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) endpoint: SocketAddr,
    pub(crate) ranges: Vec<Range>,
}

/// Peers, routes and refusals, as the node `own` sees them.
pub(crate) fn members(own: &str, nodes: &[Node]) -> Members {
    let (here, others): (Vec<&Node>, Vec<&Node>) = nodes.iter().partition(|node| node.name == own);
    let taken: Vec<Cidr> = here.iter().flat_map(|node| node.ranges.clone()).collect();
    let addresses: Vec<IpAddr> = here
        .iter()
        .flat_map(|node| node.addresses.clone())
        .collect();
    let is_foreign = |range: &Cidr| {
        is_routed(range)
            && !taken.iter().any(|own| overlap(own, range))
            && !addresses.iter().any(|address| range.contains(*address))
    };
    let mut members = Members::default();
    for node in &others {
        let ranges = node.ranges.iter().filter(|range| is_foreign(range));
        members.routes.extend(ranges.map(network));
    }
    let mut lengths: BTreeMap<Family, BTreeSet<u8>> = BTreeMap::new();
    for range in &members.routes {
        let of_family = lengths.entry(Family::of(range.address)).or_default();
        of_family.insert(range.prefix);
    }
    let shared = shared(others.iter().flat_map(|node| &node.ranges));
    let holder = |range: &Cidr| !shared.contains(&network(range));
    let mut keys: BTreeMap<Key, usize> = BTreeMap::new();
    for key in nodes.iter().flat_map(|node| node.keys).flatten() {
        *keys.entry(key).or_default() += 1;
    }
    for node in &others {
        if node.keys == [None, None] {
            continue;
        }
        let ranges = node
            .ranges
            .iter()
            .filter(|range| is_foreign(range) && holder(range));
        let ranges: Vec<Range> = ranges.map(network).take(MAX_RANGES).collect();
        // A range has one peer in WireGuard, and the last that was given it wins: a range or a key
        // that two nodes claim must go to neither.
        let mut own = node.keys.iter().flatten();
        let refusal = if own.any(|key| keys.get(key) != Some(&1)) {
            Some("one of its keys is published more than once")
        } else if ranges.is_empty() {
            Some("it has no range of pod addresses of its own")
        } else {
            None
        };
        match (refusal, address(node, &members.routes, &lengths)) {
            (None, Some(address)) => {
                let member = Member {
                    address,
                    ranges,
                    keys: node.keys,
                };
                members.peers.insert(node.name.clone(), member);
            }
            (refusal, _) => {
                let why = refusal.unwrap_or("it has no address outside of the pods' ranges");
                members.refused.insert(node.name.clone(), why);
            }
        }
    }
    members
}

/// A range as WireGuard has it, with the first address of its network.
fn network(range: &Cidr) -> Range {
    Range {
        address: range.network(),
        prefix: range.prefix,
    }
}

/// Whether two ranges have an address in common.
fn overlap(one: &Cidr, other: &Cidr) -> bool {
    one.contains(other.network()) || other.contains(one.network())
}

/// The ranges that overlap another one of these. Two prefixes that overlap contain one another, so
/// in sorted order the ranges that contain the next one form a stack (`open`), and only its top
/// needs to be marked: those below it were marked when the
/// range above them came.
fn shared<'a>(ranges: impl Iterator<Item = &'a Cidr>) -> BTreeSet<Range> {
    let mut sorted: Vec<Range> = ranges.map(network).collect();
    sorted.sort_unstable();
    let mut shared = BTreeSet::new();
    let mut open: Vec<Range> = Vec::new();
    for range in sorted {
        while open.pop_if(|other| !holds(*other, range.address)).is_some() {}
        if let Some(holder) = open.last() {
            shared.extend([*holder, range]);
        }
        open.push(range);
    }
    shared
}

fn holds(range: Range, other: IpAddr) -> bool {
    let Range { address, prefix } = range;
    Cidr { address, prefix }.contains(other)
}

/// The node's endpoint: its first IPv4 address, else its first. An address within the tunnel's
/// routes cannot be one. `lengths` has the prefix lengths of the routes by family, so that a few
/// look-ups find whether a route contains an address.
fn address(
    node: &Node,
    routes: &BTreeSet<Range>,
    lengths: &BTreeMap<Family, BTreeSet<u8>>,
) -> Option<IpAddr> {
    let inside = |address: IpAddr| {
        let mut own = lengths.get(&Family::of(address)).into_iter().flatten();
        own.any(|prefix| {
            let prefix = *prefix;
            routes.contains(&network(&Cidr { address, prefix }))
        })
    };
    let mut outside = node.addresses.iter().filter(|address| !inside(**address));
    let first = outside.clone().find(|address| address.is_ipv4());
    first.or_else(|| outside.next()).copied()
}

/// The changes that give a link of the kernel its planned peers. `endpoints`: those that were set
/// last; the kernel's present ones may differ, as WireGuard follows a peer that moves.
pub(crate) fn differences(
    seen: &Tunnel,
    endpoints: &BTreeMap<Key, SocketAddr>,
    peers: &BTreeMap<Key, Peer>,
) -> Vec<Change> {
    let gone = seen.peers.keys().filter(|key| !peers.contains_key(*key));
    let mut changes: Vec<Change> = gone.map(|key| Change::Remove(*key)).collect();
    for (key, peer) in peers {
        let has = seen.peers.get(key);
        let same = has.is_some_and(|has| set(&has.ranges) == set(&peer.ranges));
        let stays = endpoints.get(key) == Some(&peer.endpoint);
        if !same || !stays {
            changes.push(Change::Put {
                key: *key,
                endpoint: Some(peer.endpoint).filter(|_| !stays || has.is_none()),
                ranges: peer.ranges.clone(),
                keepalive: KEEPALIVE,
            });
        }
    }
    changes
}

/// The ranges as a set, for comparisons.
pub(crate) fn set(ranges: &[Range]) -> BTreeSet<Range> {
    ranges.iter().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(name: &str, address: &str, ranges: &[&str], key: Option<u8>) -> Node {
        Node {
            name: name.to_owned(),
            addresses: vec![address.parse().unwrap()],
            ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
            keys: [key.map(|byte| [byte; 32]), key.map(|byte| [byte + 100; 32])],
        }
    }

    fn own() -> Node {
        node("own", "192.0.2.1", &["10.1.0.0/24"], Some(1))
    }

    fn of(others: &[Node]) -> Members {
        members("own", &[&[own()], others].concat())
    }

    /// The peers of the first link.
    fn peers(members: &Members) -> BTreeMap<Key, Peer> {
        let peer = |member: &Member| {
            let endpoint = SocketAddr::new(member.address, 51_820);
            let ranges = member.ranges.clone();
            Some((member.keys[0]?, Peer { endpoint, ranges }))
        };
        members.peers.values().filter_map(peer).collect()
    }

    fn keys(members: &Members) -> Vec<u8> {
        peers(members).keys().map(|key| key[0]).collect()
    }

    #[test]
    fn a_trusted_node_is_a_peer_with_its_ranges_and_no_others() {
        let a = node("a", "192.0.2.2", &["10.1.1.0/24"], Some(2));
        let planned = of(&[a]);
        let peer = &planned.peers["a"];
        assert_eq!(peer.address, "192.0.2.2".parse::<IpAddr>().unwrap());
        assert_eq!(peer.ranges, [network(&"10.1.1.0/24".parse().unwrap())]);
        assert_eq!(
            planned.refused.len() + planned.peers.len() + planned.routes.len(),
            2
        );
    }

    #[test]
    fn ranges_of_both_families_are_behind_one_peer() {
        let both = ["10.1.1.0/24", "fd00:0:0:1::/64"];
        let planned = of(&[node("a", "192.0.2.2", &both, Some(2))]);
        let ranges = &planned.peers["a"].ranges;
        let ranges: Vec<String> = ranges
            .iter()
            .map(|range| format!("{}/{}", range.address, range.prefix))
            .collect();
        assert_eq!(ranges, both);
        assert_eq!(planned.routes.len(), 2);
    }

    #[test]
    fn an_untrusted_node_is_no_peer_and_its_ranges_stay_routed() {
        let planned = of(&[node("a", "192.0.2.2", &["10.1.1.0/24"], None)]);
        assert!(planned.peers.is_empty() && planned.refused.is_empty());
        assert_eq!(planned.routes.len(), 1);
    }

    #[test]
    fn a_range_or_key_that_two_nodes_claim_is_given_to_neither() {
        let honest = node("a", "192.0.2.2", &["10.1.1.0/24"], Some(2));
        let third = node("c", "192.0.2.4", &["10.1.3.0/24"], Some(4));
        let with = |ranges: &[&str], key: u8| {
            let greedy = node("b", "192.0.2.3", ranges, Some(key));
            of(&[honest.clone(), greedy, third.clone()])
        };
        assert_eq!(keys(&with(&["10.1.1.128/25"], 3)), [4], "a part of a's");
        // It overlaps this node's range, too, so that it is not even considered.
        let meets = with(&["10.1.0.0/22"], 3);
        assert_eq!(keys(&meets), [0_u8; 0], "all of them");
        assert_eq!(keys(&with(&["10.1.2.0/24"], 2)), [4], "a's key");
        assert_eq!(keys(&with(&["10.1.2.0/24"], 1)), [2, 4], "this node's key");
        assert_eq!(
            keys(&with(&["10.1.0.0/24"], 3)),
            [2, 4],
            "this node's range"
        );
        assert_eq!(
            keys(&with(&["192.0.2.0/24"], 3)),
            [2, 4],
            "this node's address"
        );
        assert_eq!(keys(&with(&["0.0.0.0/0"], 3)), [0_u8; 0], "everything");
    }

    #[test]
    fn a_node_address_in_a_pod_range_is_no_endpoint() {
        let planned = of(&[
            node("a", "192.0.2.2", &["10.1.1.0/24"], Some(2)),
            node("b", "10.1.1.7", &["10.1.2.0/24"], Some(3)),
        ]);
        assert_eq!(keys(&planned), [2]);
        assert_eq!(
            planned.refused["b"],
            "it has no address outside of the pods' ranges"
        );
    }

    /// The kernel, as WireGuard treats peers: a range has one holder, the last that was given it.
    fn apply(tunnel: &mut Tunnel, endpoints: &mut BTreeMap<Key, SocketAddr>, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Remove(key) => {
                    tunnel.peers.remove(&key);
                    endpoints.remove(&key);
                }
                Change::Put {
                    key,
                    endpoint,
                    ranges,
                    ..
                } => {
                    for other in tunnel.peers.values_mut() {
                        other.ranges.retain(|range| !ranges.contains(range));
                    }
                    tunnel.peers.entry(key).or_default().ranges = ranges;
                    endpoints.extend(endpoint.map(|endpoint| (key, endpoint)));
                }
                Change::Wake { .. } => {}
            }
        }
    }

    fn any_node() -> impl Strategy<Value = Node> {
        let range =
            (0_u8..6, 23_u8..26).prop_map(|(third, prefix)| format!("10.1.{third}.0/{prefix}"));
        let ranges = proptest::collection::vec(range, 0..3);
        let key = proptest::option::of(1_u8..7);
        (0_u8..6, 1_u8..9, ranges, key).prop_map(|(name, address, ranges, key)| {
            let ranges: Vec<&str> = ranges.iter().map(String::as_str).collect();
            let address = format!("192.0.2.{address}");
            node(&format!("n{name}"), &address, &ranges, key)
        })
    }

    #[test]
    fn a_key_of_either_link_belongs_to_one_node() {
        let a = node("a", "192.0.2.2", &["10.1.1.0/24"], Some(2));
        let mut b = node("b", "192.0.2.3", &["10.1.2.0/24"], Some(3));
        b.keys = [Some([3; 32]), Some([2; 32])];
        assert_eq!(keys(&of(&[a, b.clone()])), [0_u8; 0]);
        b.keys = [Some([3; 32]), Some([3; 32])];
        assert_eq!(keys(&of(&[b])), [0_u8; 0]);
    }

    /// Nodes by their names, as a list has them.
    fn any_nodes() -> impl Strategy<Value = Vec<Node>> {
        proptest::collection::vec(any_node(), 0..7).prop_map(|nodes| {
            let named = nodes.into_iter().map(|node| (node.name.clone(), node));
            named.collect::<BTreeMap<_, _>>().into_values().collect()
        })
    }

    proptest! {
        #[test]
        fn step_by_step_and_at_once_give_the_same(steps in proptest::collection::vec(any_nodes(), 1..6)) {
            let (mut tunnel, mut endpoints) = (Tunnel::default(), BTreeMap::new());
            for nodes in &steps {
                let planned = peers(&of(nodes));
                let changes = differences(&tunnel, &endpoints, &planned);
                apply(&mut tunnel, &mut endpoints, changes);
                prop_assert!(differences(&tunnel, &endpoints, &planned).is_empty());
            }
            let (mut fresh, mut fresh_endpoints) = (Tunnel::default(), BTreeMap::new());
            let planned = peers(&of(steps.last().unwrap()));
            let changes = differences(&fresh, &fresh_endpoints, &planned);
            apply(&mut fresh, &mut fresh_endpoints, changes);
            prop_assert_eq!((tunnel, endpoints), (fresh, fresh_endpoints));
        }

        #[test]
        fn a_range_is_shared_where_it_overlaps_another_one(ranges in proptest::collection::vec((0_u8..8, 21_u8..26, any::<bool>()), 0..9)) {
            let range = |(third, prefix, v6): (u8, u8, bool)| Cidr {
                address: if v6 { IpAddr::from([0xfd00, third.into(), 0, 0, 0, 0, 0, 0]) } else { IpAddr::from([10, 1, third, 0]) },
                prefix,
            };
            let ranges: Vec<Cidr> = ranges.into_iter().map(range).collect();
            let found = shared(ranges.iter());
            for (at, range) in ranges.iter().enumerate() {
                let mut others = ranges.iter().enumerate().filter(|(other, _)| *other != at);
                let overlaps = others.any(|(_, other)| overlap(range, other));
                prop_assert_eq!(found.contains(&network(range)), overlaps);
            }
        }

        #[test]
        fn peers_are_trusted_and_their_ranges_are_theirs_alone(nodes in any_nodes()) {
            let planned = of(&nodes);
            let mut given: Vec<Range> = own().ranges.iter().map(network).collect();
            for (key, peer) in &peers(&planned) {
                let holders: Vec<&Node> = nodes.iter().filter(|node| node.keys.contains(&Some(*key))).collect();
                prop_assert_eq!(holders.len(), 1);
                for range in &peer.ranges {
                    prop_assert!(holders[0].ranges.iter().any(|own| network(own) == *range));
                    for other in &given {
                        prop_assert!(!holds(*range, other.address) && !holds(*other, range.address));
                    }
                    prop_assert!(planned.routes.contains(range));
                    given.push(*range);
                }
            }
        }
    }
}
