//! What the packet filter holds for network policies (pure).
//!
//! Each packet that is passed on is judged by its connection: by the address that began it and by
//! the address and port that answer it, behind any change by a service, whichever way the packet
//! goes. So a connection that is no longer allowed stops in both directions with the change of the
//! policy, and what was known before decides nothing.
//!
//! A map leads from the address of a pod of this node to the chain of what may come to it, another
//! to the chain of where it may go; pods without a policy for a direction are in none. Such a chain
//! asks the chains of the policies that select the pod, one after the other, and drops what none of
//! them accepts.
//!
//! A chain of pods is named by the policies that it asks, so that pods with the same policies share
//! it. A policy's chain is named by the policy, and a set by what selects its addresses: a policy
//! that changes has its rules exchanged where they are, and a pod that comes or goes changes
//! elements of sets.

use crate::branch::{Branch, Content, Made, Side, named_ports, ports_in_use};
use crate::budget::{Budget, of_set};
use crate::model::{Labels, NamedPort, Pod, Policy, PolicyPeer, World, is_meant};
use crate::name::named;
use crate::part::{Part, Plan, drops};
use crate::table::{Rules, Set, Table};
use agent_proxy::Key;
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::{Step, Verdict};
use agent_sys::netlink::links::octets;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// An address and a pod that has it.
type PodAddress = (IpAddr, Arc<Pod>);
/// Sorted by address. Two pods may have one address for a while, as their updates from the master
/// arrive at different times.
type PodAddresses = Vec<PodAddress>;

/// Makes tables of one family. A table follows from the world and the node's pods alone: what is
/// kept of the last one only saves the work for policies and pods that have not changed.
#[derive(Debug)]
pub(crate) struct Planner {
    family: Family,
    made: BTreeMap<Key, Made>,
    places: PodAddresses,
    namespaces: BTreeMap<String, Arc<Labels>>,
    sets: BTreeMap<Arc<str>, Arc<Set>>,
    /// Namespaces whose policies take too much.
    closed: BTreeSet<String>,
}

impl Planner {
    /// One that has made no table yet.
    pub(crate) fn new(family: Family) -> Self {
        Self {
            family,
            made: BTreeMap::new(),
            places: PodAddresses::new(),
            namespaces: BTreeMap::new(),
            sets: BTreeMap::new(),
            closed: BTreeSet::new(),
        }
    }

    /// The table for the pods of this node; none before pods, namespaces and policies are known.
    ///
    /// `own`: the pods of this node, by address, of both families.
    pub(crate) fn table(
        &mut self,
        world: &World,
        own: &BTreeMap<IpAddr, Arc<Pod>>,
    ) -> Option<Table> {
        let policies = world.policies.as_ref()?;
        let namespaces = world.namespaces.as_ref()?;
        let places = places(self.family, world.pods.as_ref()?, own);
        let mut sets = std::mem::take(&mut self.sets);
        if self.namespaces != *namespaces {
            self.namespaces.clone_from(namespaces);
            sets.clear();
        }
        let mut maker = Maker {
            index: PodIndex {
                changed: changed(&self.places, &places),
                places: &places,
                namespaces,
            },
            family: self.family,
            sets,
            before: std::mem::take(&mut self.made),
        };
        let Plan {
            table,
            made,
            sets,
            closed,
        } = maker.make(policies, own);
        for (namespace, bytes) in &closed {
            if !self.closed.contains(namespace) {
                tracing::warn!(
                    namespace,
                    bytes,
                    "the namespace's NetworkPolicies take too much of the packet filter: what they select gets and sends nothing"
                );
            }
        }
        self.closed = closed.into_keys().collect();
        self.made = made;
        self.places = places;
        self.sets = sets;
        Some(table)
    }
}

#[cfg(test)]
impl Planner {
    /// How many chains of policies it remembers.
    pub(crate) fn branches(&self) -> usize {
        self.made.values().map(|made| made.branches.len()).sum()
    }
}

/// All pods with addresses of a family. The node knows the addresses of its own pods before the
/// master does.
fn places(
    family: Family,
    pods: &BTreeMap<String, Arc<Pod>>,
    own: &BTreeMap<IpAddr, Arc<Pod>>,
) -> PodAddresses {
    let away = pods.values();
    let away = away.flat_map(|pod| pod.addresses.iter().map(move |at| (at, pod)));
    let away = away.filter(|(at, _)| !own.contains_key(at));
    let all = away.chain(own);
    let all = all.filter(|(at, _)| Family::of(**at) == family);
    let mut places: PodAddresses = all.map(|(at, pod)| (*at, Arc::clone(pod))).collect();
    places.sort_by_key(|(at, _)| *at);
    places
}

/// Addresses at which there are other pods than before, in order.
fn changed(mut before: &[PodAddress], mut after: &[PodAddress]) -> Vec<IpAddr> {
    let mut all = Vec::new();
    loop {
        let both = before.iter().zip(after);
        let same = both.take_while(|(one, other)| one == other).count();
        let next = |places: &[PodAddress]| places.get(same).map(|(at, _)| *at);
        let Some(at) = next(before).into_iter().chain(next(after)).min() else {
            return all;
        };
        all.push(at);
        before = behind(before, same, at);
        after = behind(after, same, at);
    }
}

/// The places behind an address; the first `from` are not behind it.
fn behind(places: &[PodAddress], from: usize, address: IpAddr) -> &[PodAddress] {
    let rest = places.get(from..).unwrap_or_default();
    let count = rest.partition_point(|(at, _)| *at <= address);
    rest.get(count..).unwrap_or_default()
}

fn pods_at(places: &[PodAddress], address: IpAddr) -> &[PodAddress] {
    let from = places.partition_point(|(at, _)| *at < address);
    let rest = places.get(from..).unwrap_or_default();
    let count = rest.partition_point(|(at, _)| *at == address);
    rest.get(..count).unwrap_or_default()
}

/// Which policies select a pod, and its named ports.
type Alike<'a> = (Vec<&'a Key>, &'a [NamedPort]);
/// What may come, and where it may go.
type Chains = (Option<Arc<str>>, Option<Arc<str>>);

/// What is known of pods.
struct PodIndex<'a> {
    places: &'a [PodAddress],
    /// Addresses at which there were other pods when the last table was made.
    changed: Vec<IpAddr>,
    namespaces: &'a BTreeMap<String, Arc<Labels>>,
}

struct Maker<'a> {
    index: PodIndex<'a>,
    family: Family,
    /// Sets of the last table that are still right, except for the addresses that have changed.
    sets: BTreeMap<Arc<str>, Arc<Set>>,
    /// What the last table was made of; what is still in use moves to its namespace's part.
    before: BTreeMap<Key, Made>,
}

/// Policies of a namespace, by key.
type Policies<'a> = Vec<(&'a Key, &'a Arc<Policy>)>;

/// Those that select a pod.
fn selecting<'a>(policies: &[(&'a Key, &'a Arc<Policy>)], pod: &Pod) -> Policies<'a> {
    let policies = policies.iter().copied();
    policies
        .filter(|(_, policy)| policy.selects.matches(&pod.labels))
        .collect()
}

impl Maker<'_> {
    /// The table, namespace by namespace; those that take too much are closed.
    fn make(
        &mut self,
        policies: &BTreeMap<Key, Arc<Policy>>,
        own: &BTreeMap<IpAddr, Arc<Pod>>,
    ) -> Plan {
        let mut of_namespace: HashMap<&str, Policies<'_>> = HashMap::new();
        for (key, policy) in policies {
            let own = of_namespace.entry(&policy.namespace).or_default();
            own.push((key, policy));
        }
        let mut pods: BTreeMap<&str, Vec<(IpAddr, &Pod)>> = BTreeMap::new();
        let of_family = |address: &IpAddr| Family::of(*address) == self.family;
        for (address, pod) in own.iter().filter(|(address, _)| of_family(address)) {
            let near = pods.entry(&pod.namespace).or_default();
            near.push((*address, pod));
        }
        let near = |namespace: &str| of_namespace.get(namespace).map_or(&[][..], Vec::as_slice);
        let (mut parts, mut plan) = (BTreeMap::new(), Plan::default());
        plan.table.known = own.keys().copied().filter(of_family).collect();
        let mut budget = Budget::new(plan.table.known.len());
        // Bytes of closed namespaces of which the parts are kept for the next plan, and not made
        // anew.
        let mut kept = 0;
        for (namespace, pods) in &pods {
            let part = self.part(pods, near(namespace), budget.of_one());
            let closed = budget.take(namespace, part.bytes);
            parts.insert((*namespace).to_owned(), part);
            for (namespace, bytes) in closed {
                let part = parts.remove(&namespace).unwrap_or_default();
                if kept + bytes <= budget.whole() {
                    kept += bytes;
                    plan.made.extend(part.made);
                    plan.sets.extend(part.sets);
                }
                plan.closed.insert(namespace, bytes);
            }
        }
        for part in parts.into_values() {
            plan.open(part);
        }
        plan.sets.extend(plan.table.sets.clone());
        for namespace in plan.closed.keys() {
            for (address, pod) in pods.get(&**namespace).into_iter().flatten() {
                let policies = selecting(near(namespace), pod);
                plan.table.close(*address, &policies);
            }
        }
        plan
    }

    /// What a namespace needs for its pods, or more than the limit of it.
    fn part(
        &mut self,
        pods: &[(IpAddr, &Pod)],
        near: &[(&Key, &Arc<Policy>)],
        limit: usize,
    ) -> Part {
        let mut part = Part {
            limit,
            ..Part::default()
        };
        // Pods that the same policies select have the same rules, except for the numbers of their
        // named ports.
        let mut alike: HashMap<Alike<'_>, Chains> = HashMap::new();
        for (address, pod) in pods {
            let of_it = selecting(near, pod);
            let same: Alike<'_> = (of_it.iter().map(|(key, _)| *key).collect(), &pod.ports);
            let (ingress, egress) = alike
                .entry(same)
                .or_insert_with(|| {
                    let ingress = self.direction(&mut part, pod, &of_it, Side::Ingress);
                    (
                        ingress,
                        self.direction(&mut part, pod, &of_it, Side::Egress),
                    )
                })
                .clone();
            part.ingress.extend(ingress.map(|name| (*address, name)));
            part.egress.extend(egress.map(|name| (*address, name)));
        }
        // Branches that no pod asks any more are forgotten.
        for made in part.made.values_mut() {
            let chains = &part.chains;
            made.branches.retain(|one| chains.contains_key(&one.name));
        }
        part
    }

    /// The chain of a pod that these policies select; none where they say nothing of the direction.
    fn direction(
        &mut self,
        part: &mut Part,
        pod: &Pod,
        policies: &[(&Key, &Arc<Policy>)],
        side: Side,
    ) -> Option<Arc<str>> {
        let mut branches: Vec<Arc<str>> = Vec::new();
        for (key, policy) in policies {
            branches.extend(self.branch(part, key, policy, pod, side));
        }
        if branches.is_empty() || part.is_over() {
            return None;
        }
        let name = named("chain", &branches);
        if !part.chains.contains_key(&name) {
            let ask = |branch: &Arc<str>| {
                let branch = branch.to_string().into();
                vec![Step::Verdict(Verdict::Jump(branch))]
            };
            let mut rules: Rules = branches.iter().map(ask).collect();
            rules.push(drops());
            part.add_chain(&name, &Arc::new(rules));
        }
        Some(name)
    }

    /// The chain of a policy for such pods, put into the part with its sets; none where it says
    /// nothing of the direction.
    fn branch(
        &mut self,
        part: &mut Part,
        key: &Key,
        policy: &Arc<Policy>,
        pod: &Pod,
        side: Side,
    ) -> Option<Arc<str>> {
        let rules = side.of(policy)?;
        if part.is_over() {
            return None;
        }
        if !part.made.contains_key(key) {
            let (key, made) = self
                .before
                .remove_entry(key)
                .filter(|(_, made)| made.policy == *policy)
                .unwrap_or_else(|| (key.clone(), Made::of(policy)));
            part.made.insert(key, made);
        }
        let made = part.made.get_mut(key)?;
        let ports = ports_in_use(rules, pod, side);
        let mut branches = made.branches.iter();
        let place = branches.position(|one| one.side == side && one.ports == ports);
        let place = place.unwrap_or_else(|| {
            made.branches
                .push(Branch::new(self.family, key, rules, side, ports));
            made.branches.len() - 1
        });
        let branch = made.branches.get(place)?;
        for (name, content) in &branch.sets {
            // The namespace is closed.
            if part.bytes > part.limit {
                break;
            }
            if let Entry::Vacant(place) = part.sets.entry(Arc::clone(name)) {
                let held = self.sets.remove(name);
                let set = self
                    .index
                    .set(self.family, &policy.namespace, content, held);
                part.bytes += of_set(&set);
                place.insert(set);
            }
        }
        let (name, rules) = (Arc::clone(&branch.name), Arc::clone(&branch.rules));
        part.add_chain(&name, &rules);
        Some(name)
    }
}

impl PodIndex<'_> {
    /// The set. `held`: that of the last table.
    fn set(
        &self,
        family: Family,
        namespace: &str,
        content: &Content,
        held: Option<Arc<Set>>,
    ) -> Arc<Set> {
        let length = match content {
            Content::Ranges(ranges) => return Arc::clone(ranges),
            Content::Pods(_) => family.bytes(),
            Content::NamedPort(..) => family.bytes() + 8,
        };
        let keys = |places| self.keys(namespace, content, places);
        let Some(mut set) = held else {
            return Arc::new(Set::Keys(length, keys(self.places)));
        };
        for address in &self.changed {
            let Set::Keys(_, held) = &*set else { continue };
            let octets = octets(*address);
            let had = held.range(octets.clone()..);
            let had = had.take_while(|key| key.starts_with(&octets)).cloned();
            let had: BTreeSet<Vec<u8>> = had.collect();
            let has = keys(pods_at(self.places, *address));
            if had != has
                && let Set::Keys(_, held) = Arc::make_mut(&mut set)
            {
                for key in &had {
                    held.remove(key);
                }
                held.extend(has);
            }
        }
        set
    }

    /// The keys of some pods in a set.
    fn keys(&self, namespace: &str, content: &Content, places: &[PodAddress]) -> BTreeSet<Vec<u8>> {
        let meant = |peers: &[PolicyPeer], (at, pod): &PodAddress| {
            let one = |peer| is_meant(peer, namespace, *at, Some(&**pod), self.namespaces);
            peers.is_empty() || peers.iter().any(one)
        };
        match content {
            Content::Pods(peers) => {
                let those = places.iter().filter(|place| meant(peers, place));
                those.map(|(at, _)| octets(*at)).collect()
            }
            Content::NamedPort(peers, name, protocol) => {
                let those = places.iter().filter(|place| meant(peers, place));
                let keys = those.flat_map(|(at, pod)| {
                    let ports = named_ports(&pod.ports, name, *protocol);
                    ports.map(|port| {
                        let [high, low] = port.to_be_bytes();
                        let mut key = octets(*at);
                        key.extend([*protocol, 0, 0, 0, high, low, 0, 0]);
                        key
                    })
                });
                keys.collect()
            }
            Content::Ranges(_) => BTreeSet::new(),
        }
    }
}
