//! What the packet filter holds for network policies (pure).
//!
//! Each packet that is passed on is judged by its connection: by the address that began it and by the address and port that
//! answer it, behind any change by a service, whichever way the packet goes. So a connection that is no longer allowed stops
//! in both directions with the change of the policy, and what was known before decides nothing.
//!
//! A map leads from the address of a pod of this node to the chain of what may come to it, another to the chain of where it
//! may go; pods without a policy for a direction are in none. Chains and the sets of addresses in them are named by what
//! they say, so that pods with the same policies share them, and a pod that comes or goes elsewhere changes elements of sets.

use super::model::{Labels, NamedPort, Peer, Pod, Policy, Ports, Rule, World, is_meant};
use agent_sys::netlink::filter::{Step, Verdict};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// A set of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Set {
    /// Keys of this length in bytes.
    Keys(u32, BTreeSet<Vec<u8>>),
    /// First and last addresses of ranges, in order; they do not touch.
    Ranges(Vec<(u32, u32)>),
}

/// What the table holds beside what never changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// Sets by name.
    pub sets: BTreeMap<String, Set>,
    /// Chains by name, with the steps of each rule.
    pub chains: BTreeMap<String, Vec<Vec<Step>>>,
    /// Pods of this node with policies for what comes to them, and their chains.
    pub ingress: BTreeMap<Ipv4Addr, String>,
    /// Those with policies for where they go.
    pub egress: BTreeMap<Ipv4Addr, String>,
    /// All pods of this node.
    pub known: BTreeSet<Ipv4Addr>,
}

/// Which end of the connection the pod of this node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// It answers.
    Ingress,
    /// It began.
    Egress,
}

/// The table for the pods of this node; none before pods, namespaces and policies are known.
///
/// `own`: the pods of this node, by address.
pub fn table(world: &World, own: &BTreeMap<Ipv4Addr, Arc<Pod>>) -> Option<Table> {
    let maker = Maker {
        pods: world.pods.as_ref()?,
        namespaces: world.namespaces.as_ref()?,
        own,
        table: Table::default(),
    };
    Some(maker.make(world.policies.as_ref()?))
}

/// Which policies select a pod, and its named ports.
type Alike<'a> = (Vec<*const Policy>, &'a [NamedPort]);
/// What may come, and where it may go.
type Chains = (Option<String>, Option<String>);

struct Maker<'a> {
    pods: &'a BTreeMap<String, Arc<Pod>>,
    namespaces: &'a BTreeMap<String, Arc<Labels>>,
    own: &'a BTreeMap<Ipv4Addr, Arc<Pod>>,
    table: Table,
}

/// Registers: an address, a protocol and a port, as keys of three parts hold them.
const ADDRESS: u32 = 0;
const PROTOCOL: u32 = 1;
const PORT: u32 = 2;

impl Maker<'_> {
    fn make(mut self, policies: &BTreeMap<(String, String), Arc<Policy>>) -> Table {
        let mut of_namespace: HashMap<&str, Vec<&Policy>> = HashMap::new();
        for policy in policies.values() {
            let own = of_namespace.entry(&policy.namespace).or_default();
            own.push(policy);
        }
        // Pods that the same policies select have the same rules, but for the numbers of their named ports.
        let mut alike: HashMap<Alike<'_>, Chains> = HashMap::new();
        for (address, pod) in self.own {
            self.table.known.insert(*address);
            let near = of_namespace.get(&*pod.namespace).into_iter().flatten();
            let of_it: Vec<&Policy> = near
                .copied()
                .filter(|policy| policy.selects.matches(&pod.labels))
                .collect();
            let same: Alike<'_> = (
                of_it.iter().copied().map(std::ptr::from_ref).collect(),
                &pod.ports,
            );
            let (ingress, egress) = alike
                .entry(same)
                .or_insert_with(|| {
                    let ingress = self.direction(pod, &of_it, Side::Ingress);
                    (ingress, self.direction(pod, &of_it, Side::Egress))
                })
                .clone();
            let table = &mut self.table;
            table.ingress.extend(ingress.map(|name| (*address, name)));
            table.egress.extend(egress.map(|name| (*address, name)));
        }
        self.table
    }

    /// The chain of a pod that these policies select; none where they say nothing of the direction.
    fn direction(&mut self, pod: &Pod, policies: &[&Policy], side: Side) -> Option<String> {
        let lists = policies.iter().filter_map(|policy| match side {
            Side::Ingress => policy.ingress.as_ref(),
            Side::Egress => policy.egress.as_ref(),
        });
        let lists: Vec<&Vec<Rule>> = lists.collect();
        if lists.is_empty() {
            return None;
        }
        let rules = lists.into_iter().flatten();
        let rules: Vec<Vec<Step>> = rules.flat_map(|rule| self.rule(pod, rule, side)).collect();
        Some(self.chain(rules))
    }

    /// The chain of these rules: what none of them lets through is dropped.
    fn chain(&mut self, mut rules: Vec<Vec<Step>>) -> String {
        let mut seen = BTreeSet::new();
        let mut digests = Vec::new();
        rules.retain(|rule| {
            let digest = digest(rule);
            let is_new = seen.insert(digest);
            digests.extend(is_new.then_some(digest));
            is_new
        });
        let name = named("chain", &digests);
        self.table.chains.entry(name.clone()).or_insert_with(|| {
            rules.push(vec![Step::Count, Step::Verdict(Verdict::Drop)]);
            rules
        });
        name
    }

    /// What a policy's rule lets through, as rules of the packet filter: one for each way to name the other end, times one
    /// for each port.
    fn rule(&mut self, pod: &Pod, rule: &Rule, side: Side) -> Vec<Vec<Step>> {
        let ends = self.ends(&pod.namespace, &rule.peers, side);
        let ports = rule.ports.iter();
        let mut all = Vec::new();
        for (protocol, ports) in ports.clone() {
            let numbers: Vec<(u16, u16)> = match (ports, side) {
                (Ports::All, _) => vec![(0, u16::MAX)],
                (Ports::Range(first, last), _) => vec![(*first, *last)],
                (Ports::Named(name), Side::Ingress) => named_ports(pod, name, *protocol)
                    .map(|port| (port, port))
                    .collect(),
                (Ports::Named(name), Side::Egress) => {
                    all.push(self.at_named(&pod.namespace, &rule.peers, name, *protocol));
                    continue;
                }
            };
            for (first, last) in numbers {
                all.extend(
                    ends.iter()
                        .map(|end| [end.clone(), at(*protocol, first, last)].concat()),
                );
            }
        }
        if rule.ports.is_empty() {
            all = ends;
        }
        all.into_iter()
            .map(|steps| [steps, vec![Step::Verdict(Verdict::Return)]].concat())
            .collect()
    }

    /// Steps that hold where the other end is one of these, in as many ways as it takes.
    fn ends(&mut self, namespace: &str, peers: &[Peer], side: Side) -> Vec<Vec<Step>> {
        if peers.is_empty() {
            return vec![Vec::new()];
        }
        let load = match side {
            Side::Ingress => Step::LoadClient(ADDRESS),
            Side::Egress => Step::LoadServer(ADDRESS),
        };
        let of_pods = |peer: &&Peer| matches!(peer, Peer::Pods { .. });
        let pods: Vec<Peer> = peers.iter().filter(of_pods).cloned().collect();
        let mut sets = Vec::new();
        if !pods.is_empty() {
            let name = named("pods", &format!("{namespace} {pods:?}"));
            if !self.table.sets.contains_key(&name) {
                let keys = self.addresses(namespace, &pods);
                let keys = keys.map(|(address, _)| address.octets().to_vec()).collect();
                self.table.sets.insert(name.clone(), Set::Keys(4, keys));
            }
            sets.push(name);
        }
        let ranges = blocks(peers);
        if !ranges.is_empty() {
            let name = named("block", &format!("{ranges:?}"));
            self.table.sets.insert(name.clone(), Set::Ranges(ranges));
            sets.push(name);
        }
        let steps = |name: String| vec![load.clone(), Step::In(ADDRESS, name.into())];
        sets.into_iter().map(steps).collect()
    }

    /// Pods that some of these mean, with their addresses; all pods where the list is empty.
    fn addresses<'b>(
        &'b self,
        namespace: &'b str,
        peers: &'b [Peer],
    ) -> impl Iterator<Item = (Ipv4Addr, &'b Pod)> {
        let away = self.pods.values();
        let away = away.flat_map(|pod| pod.addresses.iter().map(move |at| (*at, &**pod)));
        // The node knows the addresses of its own pods before the master does.
        let away = away.filter(|(at, _)| !self.own.contains_key(at));
        let own = self.own.iter().map(|(at, pod)| (*at, &**pod));
        away.chain(own).filter(move |(at, pod)| {
            let one = |peer| is_meant(peer, namespace, *at, Some(*pod), self.namespaces);
            peers.is_empty() || peers.iter().any(one)
        })
    }

    /// Steps that hold where the other end is one of these and its port has the name.
    fn at_named(&mut self, namespace: &str, peers: &[Peer], name: &str, protocol: u8) -> Vec<Step> {
        let set = named("ports", &format!("{namespace} {peers:?} {name} {protocol}"));
        let steps = vec![
            Step::LoadServer(ADDRESS),
            Step::LoadProtocol(PROTOCOL),
            Step::LoadServerPort(PORT),
            Step::In(ADDRESS, set.clone().into()),
        ];
        if self.table.sets.contains_key(&set) {
            return steps;
        }
        let key = |(at, pod): (Ipv4Addr, &Pod)| {
            let ports: Vec<u16> = named_ports(pod, name, protocol).collect();
            let keys = ports.into_iter().map(move |port| {
                let [high, low] = port.to_be_bytes();
                let mut key = at.octets().to_vec();
                key.extend([protocol, 0, 0, 0, high, low, 0, 0]);
                key
            });
            keys.collect::<Vec<_>>()
        };
        let keys = self.addresses(namespace, peers).flat_map(key).collect();
        self.table.sets.insert(set, Set::Keys(12, keys));
        steps
    }
}

fn named_ports(pod: &Pod, name: &str, protocol: u8) -> impl Iterator<Item = u16> {
    let of_it = pod.ports.iter();
    of_it
        .filter(move |port| port.name == name && port.protocol == protocol)
        .map(|port| port.port)
}

/// Steps that hold for these ports of a protocol.
fn at(protocol: u8, first: u16, last: u16) -> Vec<Step> {
    let mut steps = vec![
        Step::LoadProtocol(PROTOCOL),
        Step::Is(PROTOCOL, vec![protocol]),
    ];
    let bytes = |port: u16| port.to_be_bytes().to_vec();
    if first == last {
        steps.push(Step::LoadServerPort(PORT));
        steps.push(Step::Is(PORT, bytes(first)));
    } else if (first, last) != (0, u16::MAX) {
        steps.push(Step::LoadServerPort(PORT));
        steps.push(Step::AtLeast(PORT, bytes(first)));
        steps.push(Step::AtMost(PORT, bytes(last)));
    }
    steps
}

/// The ranges of all blocks of addresses, joined.
fn blocks(peers: &[Peer]) -> Vec<(u32, u32)> {
    let mut all = Vec::new();
    for peer in peers {
        let Peer::Block { cidr, except } = peer else {
            continue;
        };
        let holes: BTreeSet<(u32, u32)> = except.iter().filter_map(edges).collect();
        let Some((first, last)) = edges(cidr) else {
            continue;
        };
        let mut from = Some(first);
        for (hole, end) in holes {
            let Some(start) = from.filter(|start| *start <= last) else {
                break;
            };
            if let Some(before) = hole.checked_sub(1).filter(|before| start <= *before) {
                all.push((start, before.min(last)));
            }
            // Holes may lie in one another.
            from = end.checked_add(1).map(|next| next.max(start));
        }
        all.extend(
            from.filter(|start| *start <= last)
                .map(|start| (start, last)),
        );
    }
    all.sort_unstable();
    let mut joined: Vec<(u32, u32)> = Vec::new();
    for (from, to) in all {
        match joined.last_mut() {
            Some((_, end)) if from <= end.saturating_add(1) => *end = to.max(*end),
            _ => joined.push((from, to)),
        }
    }
    joined
}

/// First and last address of a range of IPv4.
fn edges(range: &config_model::format::Cidr) -> Option<(u32, u32)> {
    let IpAddr::V4(first) = range.network() else {
        return None;
    };
    let first = u32::from(first);
    let host = u32::MAX.checked_shr(range.prefix.into()).unwrap_or(0);
    Some((first, first | host))
}

/// A name that says what something is and differs by what it says. Authors of policies choose the content: two with one name
/// must not be found by search, so it has 128 bits of the digest.
fn named(kind: &str, content: &impl Hash) -> String {
    let digits = digest(content);
    let digits = digits.iter().take(16).map(|byte| format!("{byte:02x}"));
    format!("{kind}-{}", digits.collect::<String>())
}

fn digest(content: &impl Hash) -> [u8; 32] {
    let mut own = Digester(Sha256::new());
    content.hash(&mut own);
    own.0.finalize().into()
}

/// SHA-256 of what values say of themselves. Derived `Hash` tells lengths and variants, so that no two values say the same.
struct Digester(Sha256);

impl Hasher for Digester {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest: [u8; 32] = self.0.clone().finalize().into();
        digest.first_chunk().copied().map_or(0, u64::from_be_bytes)
    }
}
