//! The rules of one policy, as chains of the packet filter (pure): one for each side, and for each
//! set of named ports that pods selected by it have.

use crate::blocks::blocks;
use crate::budget::MAX_BYTES;
use crate::model::{NamedPort, Pod, Policy, PolicyPeer, Ports, Rule};
use crate::name::named;
use crate::table::{Rules, Set};
use agent_proxy::Key;
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::{Step, Verdict};
use agent_sys::netlink::weight::of_rule;
use std::collections::HashSet;
use std::sync::Arc;

/// The register of an address.
const ADDRESS: u32 = 0;

/// Which end of the connection the pod of this node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    /// It answers.
    Ingress,
    /// It began.
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

/// What was made of a policy.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) policy: Arc<Policy>,
    pub(crate) branches: Vec<Branch>,
}

impl Made {
    /// Nothing yet.
    pub(crate) fn of(policy: &Arc<Policy>) -> Self {
        Self {
            policy: Arc::clone(policy),
            branches: Vec::new(),
        }
    }
}

/// A policy's chain for one side of pods that have these of its named ports.
#[derive(Debug)]
pub(crate) struct Branch {
    pub(crate) side: Side,
    pub(crate) ports: Vec<NamedPort>,
    pub(crate) name: Arc<str>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) sets: Vec<(Arc<str>, Content)>,
}

/// What a set holds.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// Addresses of pods that some of these mean; there are some.
    Pods(Vec<PolicyPeer>),
    /// Ports of this name and protocol at pods that some of these mean, or at all pods where there
    /// are none.
    NamedPort(Vec<PolicyPeer>, String, u8),
    /// These ranges.
    Ranges(Arc<Set>),
}

impl Branch {
    /// The chain of a policy whose rules for this side are these.
    pub(crate) fn new(
        family: Family,
        key: &Key,
        rules: &[Rule],
        side: Side,
        ports: Vec<NamedPort>,
    ) -> Self {
        let name = named("policy", &(key, side, &ports));
        let mut writer = Writer {
            family,
            namespace: &key.namespace,
            side,
            ports: &ports,
            sets: Vec::new(),
        };
        let (mut seen, mut bytes) = (HashSet::new(), 0);
        let written = rules.iter().flat_map(|rule| writer.rule(rule));
        // What comes behind one rule too many is not looked at: the namespace is closed.
        let written = written
            .filter(|rule| seen.insert(rule.clone()))
            .take_while(|rule| {
                let is_open = bytes <= MAX_BYTES;
                bytes += of_rule(rule);
                is_open
            });
        let written: Rules = written.collect();
        let sets = writer.sets;
        Self {
            side,
            name,
            rules: Arc::new(written),
            sets,
            ports,
        }
    }
}

/// Writes the rules of a policy.
struct Writer<'a> {
    family: Family,
    namespace: &'a str,
    side: Side,
    /// The named ports of the pods that the rules are for.
    ports: &'a [NamedPort],
    /// The sets that the rules ask.
    sets: Vec<(Arc<str>, Content)>,
}

impl Writer<'_> {
    /// What a policy's rule lets through, as rules of the packet filter: one for each way to name
    /// the other end, times one for each port.
    fn rule(&mut self, rule: &Rule) -> Rules {
        let ends = self.ends(&rule.peers);
        let mut all = Vec::new();
        for (protocol, ports) in &rule.ports {
            let numbers: Vec<(u16, u16)> = match (ports, self.side) {
                (Ports::All, _) => vec![(0, u16::MAX)],
                (Ports::Range(first, last), _) => vec![(*first, *last)],
                (Ports::Named(name), Side::Ingress) => named_ports(self.ports, name, *protocol)
                    .map(|port| (port, port))
                    .collect(),
                (Ports::Named(name), Side::Egress) => {
                    all.push(self.at_named(&rule.peers, name, *protocol));
                    continue;
                }
            };
            for (first, last) in numbers {
                all.extend(
                    ends.iter()
                        .map(|end| [end.clone(), self.at(*protocol, first, last)].concat()),
                );
            }
        }
        if rule.ports.is_empty() {
            all = ends;
        }
        all.into_iter()
            .map(|steps| [steps, vec![Step::Verdict(Verdict::Accept)]].concat())
            .collect()
    }

    /// Steps that hold where the other end is one of these, in as many ways as it takes.
    fn ends(&mut self, peers: &[PolicyPeer]) -> Rules {
        if peers.is_empty() {
            return vec![Vec::new()];
        }
        let load = match self.side {
            Side::Ingress => Step::LoadClient(ADDRESS),
            Side::Egress => Step::LoadServer(ADDRESS),
        };
        let of_pods = |peer: &&PolicyPeer| matches!(peer, PolicyPeer::Pods { .. });
        let pods: Vec<PolicyPeer> = peers.iter().filter(of_pods).cloned().collect();
        let mut sets = Vec::new();
        if !pods.is_empty() {
            let name = named("pods", &format!("{} {pods:?}", self.namespace));
            sets.push((name, Content::Pods(pods)));
        }
        let ranges = blocks(self.family, peers);
        if !ranges.is_empty() {
            // Of pairs, so that the set's name does not follow from the names of a type and fields.
            let pairs = ranges.iter().map(|range| (range.first, range.last));
            let name = named("block", &format!("{:?}", pairs.collect::<Vec<_>>()));
            sets.push((name, Content::Ranges(Arc::new(Set::Ranges(ranges)))));
        }
        let steps = |(name, _): &(Arc<str>, Content)| {
            let set = name.to_string().into();
            vec![load.clone(), Step::In(ADDRESS, set)]
        };
        let steps = sets.iter().map(steps).collect();
        self.sets.extend(sets);
        steps
    }

    /// Steps that hold where the other end is one of these and its port has the name.
    fn at_named(&mut self, peers: &[PolicyPeer], name: &str, protocol: u8) -> Vec<Step> {
        let content = format!("{} {peers:?} {name} {protocol}", self.namespace);
        let set = named("ports", &content);
        let steps = vec![
            Step::LoadServer(ADDRESS),
            Step::LoadProtocol(self.protocol()),
            Step::LoadServerPort(self.port()),
            Step::In(ADDRESS, set.to_string().into()),
        ];
        let content = Content::NamedPort(peers.to_vec(), name.to_owned(), protocol);
        self.sets.push((set, content));
        steps
    }

    /// The registers of a protocol and a port: keys of three parts have them behind the address.
    fn protocol(&self) -> u32 {
        ADDRESS + self.family.bytes() / 4
    }

    fn port(&self) -> u32 {
        self.protocol() + 1
    }

    /// Steps that hold for these ports of a protocol.
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

/// The named ports of a pod that rules for what comes to it ask for; those of other pods are in
/// sets.
pub(crate) fn ports_in_use(rules: &[Rule], pod: &Pod, side: Side) -> Vec<NamedPort> {
    let asks = |port: &NamedPort| {
        let mut ports = rules.iter().flat_map(|rule| &rule.ports);
        ports.any(|(_, ports)| matches!(ports, Ports::Named(name) if *name == port.name))
    };
    let of_it = pod.ports.iter().filter(|_| side == Side::Ingress);
    of_it.filter(|port| asks(port)).cloned().collect()
}

pub(crate) fn named_ports(
    ports: &[NamedPort],
    name: &str,
    protocol: u8,
) -> impl Iterator<Item = u16> {
    ports
        .iter()
        .filter(move |port| port.name == name && port.protocol == protocol)
        .map(|port| port.port)
}
