//! Writes the rules of one policy as nftables chains (pure): one for each side, and for each set of
//! named ports that pods selected by it have.
//!
//! A policy of a mebibyte may name thousands of peers and thousands of ports, and it allows each
//! pair of them. So nothing is computed for pairs: the sets of a rule share its peers, whose digest
//! is computed once, and beyond [`MAX_BYTES`] no rule is written.

use crate::blocks::blocks;
use crate::budget::MAX_BYTES;
use crate::model::{NamedPort, Pod, Policy, PolicyPeer, Ports, Rule};
use crate::name::named;
use crate::table::{Rules, Set};
use agent_proxy::Key;
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::{AddressRange, Step, Verdict};
use agent_sys::netlink::weight::of_rule;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

/// The register of an address.
const ADDRESS: u32 = 0;

/// Which end of the connection the pod of this node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Side {
    /// The server.
    Ingress,
    /// The client.
    Egress,
}

impl Side {
    /// A policy's rules for this direction; `None` if the policy does not concern it.
    pub(crate) fn of(self, policy: &Policy) -> Option<&[Rule]> {
        match self {
            Self::Ingress => policy.ingress.as_deref(),
            Self::Egress => policy.egress.as_deref(),
        }
    }
}

/// A policy, and the chains written for it.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) policy: Arc<Policy>,
    /// What the chains of each side are written from.
    pub(crate) asked: BTreeMap<Side, Asked>,
    pub(crate) branches: Vec<Branch>,
}

impl Made {
    /// Without chains yet.
    pub(crate) fn of(policy: &Arc<Policy>) -> Self {
        Self {
            policy: Arc::clone(policy),
            asked: BTreeMap::new(),
            branches: Vec::new(),
        }
    }
}

/// What is the same for all pods in a policy's rules for one side.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The peers of each rule, in order.
    pub(crate) ends: Vec<Ends>,
    /// Port names that each pod resolves by itself; those of other pods are in sets.
    names: BTreeSet<String>,
    /// The number of rules and of their ports: the work to write a chain.
    pub(crate) entries: usize,
}

impl Asked {
    /// Reads the rules of a policy in this namespace.
    pub(crate) fn of(family: Family, namespace: &str, rules: &[Rule], side: Side) -> Self {
        let names = rules.iter().flat_map(|rule| &rule.ports);
        let names = names.filter_map(|(_, ports)| match ports {
            Ports::Named(name) if side == Side::Ingress => Some(name.clone()),
            Ports::Named(_) | Ports::All | Ports::Range(..) => None,
        });
        let ends = rules.iter();
        let ends = ends.map(|rule| Ends::of(family, namespace, &rule.peers, side));
        Self {
            ends: ends.collect(),
            names: names.collect(),
            entries: rules.iter().map(|rule| 1 + rule.ports.len()).sum(),
        }
    }

    /// The named ports of a pod that the rules name.
    pub(crate) fn ports_of(&self, pod: &Pod) -> Vec<NamedPort> {
        let own = pod.ports.iter();
        let own = own.filter(|port| self.names.contains(&port.name));
        own.cloned().collect()
    }
}

/// Peers of a rule, with a digest of them and of the policy's namespace.
#[derive(Debug, Clone)]
pub(crate) struct Peers {
    pub(crate) digest: Arc<str>,
    pub(crate) list: Arc<[PolicyPeer]>,
    /// The ranges of the `ipBlock` peers.
    blocks: Arc<Set>,
}

impl Peers {
    fn of(family: Family, namespace: &str, list: Arc<[PolicyPeer]>) -> Self {
        Self {
            digest: named("peers", &(namespace, &list)),
            blocks: Arc::new(Set::Ranges(blocks(family, &list))),
            list,
        }
    }

    /// The ranges of the `ipBlock` peers, disjoint and in order.
    pub(crate) fn ranges(&self) -> &[AddressRange] {
        match &*self.blocks {
            Set::Ranges(ranges) => ranges,
            Set::Keys(..) => &[],
        }
    }

    /// Whether one of the blocks holds this address.
    pub(crate) fn holds(&self, address: IpAddr) -> bool {
        let ranges = self.ranges();
        let at = ranges.partition_point(|range| range.last < address);
        ranges.get(at).is_some_and(|range| range.first <= address)
    }
}

/// The peers of a rule, and how to match them.
#[derive(Debug)]
pub(crate) struct Ends {
    peers: Peers,
    /// Steps that match these peers; each list of steps becomes a rule.
    steps: Rules,
    /// The sets that the steps look up.
    sets: Vec<(Arc<str>, Content)>,
}

impl Ends {
    fn of(family: Family, namespace: &str, peers: &Arc<[PolicyPeer]>, side: Side) -> Self {
        let all = Peers::of(family, namespace, Arc::clone(peers));
        if peers.is_empty() {
            return Self {
                peers: all,
                steps: vec![Vec::new()],
                sets: Vec::new(),
            };
        }
        let load = match side {
            Side::Ingress => Step::LoadClient(ADDRESS),
            Side::Egress => Step::LoadServer(ADDRESS),
        };
        let is_pods = |peer: &&PolicyPeer| matches!(peer, PolicyPeer::Pods { .. });
        let pods = if peers.iter().all(|peer| is_pods(&peer)) {
            all.clone()
        } else {
            let pods = peers.iter().filter(is_pods).cloned();
            Peers::of(family, namespace, pods.collect())
        };
        let mut sets = Vec::new();
        if !pods.list.is_empty() {
            sets.push((named("pods", &pods.digest), Content::Pods(pods)));
        }
        if !all.ranges().is_empty() {
            // Of pairs, so that the set's name does not depend on the names of a type and its
            // fields.
            let pairs = all.ranges().iter().map(|range| (range.first, range.last));
            let name = named("block", &format!("{:?}", pairs.collect::<Vec<_>>()));
            sets.push((name, Content::Ranges(Arc::clone(&all.blocks))));
        }
        let steps = |(name, _): &(Arc<str>, Content)| {
            let set = name.to_string().into();
            vec![load.clone(), Step::In(ADDRESS, set)]
        };
        Self {
            peers: all,
            steps: sets.iter().map(steps).collect(),
            sets,
        }
    }
}

/// A policy's chain for one side of pods that have these of its named ports.
#[derive(Debug)]
pub(crate) struct Branch {
    side: Side,
    ports: Vec<NamedPort>,
    pub(crate) name: Arc<str>,
    pub(crate) rules: Arc<Rules>,
    /// In the order of the rules that look them up, so that those with the same peers are adjacent.
    pub(crate) sets: Vec<(Arc<str>, Content)>,
}

/// What a set holds.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// Addresses of pods that one of these peers selects; the list is not empty.
    Pods(Peers),
    /// Ports of this name and protocol of pods that one of these peers selects; of all pods if the
    /// list is empty.
    NamedPort(Peers, String, u8),
    /// These ranges.
    Ranges(Arc<Set>),
}

impl Content {
    /// The peers whose pods it holds.
    pub(crate) fn peers(&self) -> Option<&Peers> {
        match self {
            Self::Pods(peers) | Self::NamedPort(peers, ..) => Some(peers),
            Self::Ranges(_) => None,
        }
    }
}

impl Branch {
    /// Writes the chain of the policy of this key, with its `rules` for this side; `ends` has their
    /// peers, in order.
    pub(crate) fn new(
        family: Family,
        key: &Key,
        rules: &[Rule],
        ends: &[Ends],
        side: Side,
        ports: &[NamedPort],
    ) -> Self {
        let mut writer = Writer::new(family, side, ports);
        for (rule, ends) in rules.iter().zip(ends) {
            writer.rule(rule, ends);
        }
        Self {
            side,
            ports: ports.to_vec(),
            name: named("policy", &(key, side, ports)),
            rules: Arc::new(writer.written),
            sets: writer.sets,
        }
    }

    /// Whether it is the policy's chain for one side, for pods that have these of its named ports.
    pub(crate) fn is_for(&self, side: Side, ports: &[NamedPort]) -> bool {
        self.side == side && self.ports == ports
    }
}

/// Writes the rules of a policy.
struct Writer<'a> {
    family: Family,
    side: Side,
    /// The numbers of the named ports of the pods that the rules are for.
    ports: HashMap<(&'a str, u8), Vec<u16>>,
    /// The rules written so far: as a set, in order, and their bytes in the message.
    seen: HashSet<Vec<Step>>,
    written: Rules,
    bytes: usize,
    /// The sets that the rules look up.
    sets: Vec<(Arc<str>, Content)>,
}

impl<'a> Writer<'a> {
    /// One that has written nothing, for pods with these named ports.
    fn new(family: Family, side: Side, named: &'a [NamedPort]) -> Self {
        let mut ports: HashMap<(&str, u8), Vec<u16>> = HashMap::new();
        for port in named {
            let same = ports.entry((port.name.as_str(), port.protocol));
            same.or_default().push(port.port);
        }
        Self {
            family,
            side,
            ports,
            seen: HashSet::new(),
            written: Rules::new(),
            bytes: 0,
            sets: Vec::new(),
        }
    }

    /// Whether the rules exceed what a namespace can take: it is closed then, and the remaining
    /// rules are skipped.
    fn is_over(&self) -> bool {
        self.bytes > MAX_BYTES
    }

    /// Writes nftables rules for what a policy's rule allows: one for each pair of a way to match
    /// the peers and a range of ports.
    fn rule(&mut self, rule: &Rule, ends: &Ends) {
        let mut written = false;
        if rule.ports.is_empty() {
            written = self.at_ends(ends, &[]);
        }
        let mut seen = HashSet::new();
        for (protocol, ports) in &rule.ports {
            if self.is_over() {
                return;
            }
            if !seen.insert((*protocol, ports)) {
                continue;
            }
            let numbers = match (ports, self.side) {
                (Ports::All, _) => vec![(0, u16::MAX)],
                (Ports::Range(first, last), _) => vec![(*first, *last)],
                (Ports::Named(name), Side::Ingress) => {
                    let own = self.ports.get(&(name.as_str(), *protocol));
                    own.into_iter().flatten().map(|at| (*at, *at)).collect()
                }
                (Ports::Named(name), Side::Egress) => {
                    self.at_named(&ends.peers, name, *protocol);
                    continue;
                }
            };
            for (first, last) in numbers {
                let at = self.at(*protocol, first, last);
                written |= self.at_ends(ends, &at);
            }
        }
        if written {
            self.sets.extend(ends.sets.iter().cloned());
        }
    }

    /// Writes a rule for each way to match the peers, followed by these steps; true if any is new.
    fn at_ends(&mut self, ends: &Ends, steps: &[Step]) -> bool {
        let mut written = false;
        for end in &ends.steps {
            written |= self.write([end.as_slice(), steps].concat());
        }
        written
    }

    /// Writes a rule that matches the ports with this name of these peers.
    fn at_named(&mut self, peers: &Peers, name: &str, protocol: u8) {
        let set = named("ports", &(&*peers.digest, name, protocol));
        let steps = vec![
            Step::LoadServer(ADDRESS),
            Step::LoadProtocol(self.protocol()),
            Step::LoadServerPort(self.port()),
            Step::In(ADDRESS, set.to_string().into()),
        ];
        if self.write(steps) {
            let content = Content::NamedPort(peers.clone(), name.to_owned(), protocol);
            self.sets.push((set, content));
        }
    }

    /// Writes a rule that accepts what these steps match; false if it exists, or the rules are too
    /// many.
    fn write(&mut self, mut steps: Vec<Step>) -> bool {
        steps.push(Step::Verdict(Verdict::Accept));
        if self.is_over() || !self.seen.insert(steps.clone()) {
            return false;
        }
        self.bytes += of_rule(&steps);
        self.written.push(steps);
        true
    }

    /// The registers of a protocol and a port: keys of three parts have them behind the address.
    fn protocol(&self) -> u32 {
        ADDRESS + self.family.bytes() / 4
    }

    fn port(&self) -> u32 {
        self.protocol() + 1
    }

    /// Steps that match these ports of a protocol.
    fn at(&self, protocol: u8, first: u16, last: u16) -> Vec<Step> {
        let port = self.port();
        let mut steps = vec![
            Step::LoadProtocol(self.protocol()),
            Step::Is(self.protocol(), vec![protocol]),
        ];
        let bytes = |port: u16| port.to_be_bytes().to_vec();
        if first == last {
            steps.push(Step::LoadServerPort(port));
            steps.push(Step::Is(port, bytes(first)));
        } else if (first, last) != (0, u16::MAX) {
            steps.push(Step::LoadServerPort(port));
            steps.push(Step::AtLeast(port, bytes(first)));
            steps.push(Step::AtMost(port, bytes(last)));
        }
        steps
    }
}
