//! Computes the nftables table for NetworkPolicies (pure).
//!
//! Each forwarded packet is judged by its connection: by the client's address and the server's
//! address and port, as they are after any translation by a service, in both directions. So when a
//! policy changes, a connection that is no longer allowed stops in both directions, even if it was
//! established before.
//!
//! One map leads from the address of a pod of this node to its ingress chain, another one to its
//! egress chain; a pod without a policy for a direction is not in that map. Such a chain jumps to
//! the chains of the policies that select the pod, one after the other, and drops what none of them
//! accepts.
//!
//! A pod's chain is named after the policies that it jumps to, so that pods with the same policies
//! share it. A policy's chain is named after the policy, and a set after what selects its
//! addresses: if a policy changes, the rules of its chain are replaced, and if a pod is added or
//! removed, only elements of sets change.

use crate::branch::{Asked, Branch, Made, Side};
use crate::budget::{Budget, MAX_EFFORT, of_set};
use crate::model::{Labels, NamedPort, Pod, Policy, World};
use crate::name::named;
use crate::part::{Part, Plan, drops};
use crate::pods::{PodAddresses, PodIndex, Selected, places};
use crate::table::{Rules, Set, Table};
use agent_proxy::Key;
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::{Step, Verdict};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// Cost, in comparisons, of matching one policy's selector with one pod, and of writing one port of
/// a rule.
const SELECTING: usize = 4;
const WRITING: usize = 8;

/// Computes tables of one family. A table depends only on the world and the node's pods: what is
/// kept of the last one only saves work for policies and pods that have not changed.
#[derive(Debug)]
pub(crate) struct Planner {
    family: Family,
    made: BTreeMap<Key, Made>,
    places: PodAddresses,
    namespaces: BTreeMap<String, Arc<Labels>>,
    sets: BTreeMap<Arc<str>, Arc<Set>>,
    /// Namespaces whose policies exceed their share.
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

    /// The table for the pods of this node; `None` before pods, namespaces and policies are known.
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
            index: PodIndex::new(self.family, &self.places, &places, namespaces),
            family: self.family,
            sets,
            before: std::mem::take(&mut self.made),
        };
        let Plan {
            table,
            made,
            sets,
            closed,
            ..
        } = maker.make(policies, own);
        for (namespace, bytes) in &closed {
            if !self.closed.contains(namespace) {
                tracing::warn!(
                    namespace,
                    bytes,
                    "the NetworkPolicies of this namespace exceed its share of the nftables table, or of the time to compute it; the pods that they select receive and send nothing: use fewer peers and ports"
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

    /// How many sets these chains look up, and how many lists of peers those share.
    pub(crate) fn asked(&self) -> (usize, usize) {
        let branches = self.made.values().flat_map(|made| &made.branches);
        let sets: Vec<_> = branches.flat_map(|one| &one.sets).collect();
        let peers = sets.iter().filter_map(|(_, content)| content.peers());
        let lists: BTreeSet<_> = peers.map(|peers| peers.list.as_ptr()).collect();
        (sets.len(), lists.len())
    }
}

/// Which policies select a pod, and its named ports.
type Alike<'a> = (Vec<&'a Key>, &'a [NamedPort]);
/// The ingress chain and the egress chain of a pod.
type Chains = (Option<Arc<str>>, Option<Arc<str>>);

struct Maker<'a> {
    index: PodIndex<'a>,
    family: Family,
    /// Sets of the last table that are still right, except for the addresses that have changed.
    sets: BTreeMap<Arc<str>, Arc<Set>>,
    /// What the last table was computed from; what is still in use moves to its namespace's part.
    before: BTreeMap<Key, Made>,
}

/// Policies of a namespace, by key.
type Policies<'a> = Vec<(&'a Key, &'a Arc<Policy>)>;

/// The policies that select a pod.
fn selecting<'a>(policies: &[(&'a Key, &'a Arc<Policy>)], pod: &Pod) -> Policies<'a> {
    let policies = policies.iter().copied();
    policies
        .filter(|(_, policy)| policy.selects.matches(&pod.labels))
        .collect()
}

impl Maker<'_> {
    /// Computes the table, namespace by namespace; those that exceed their share are closed.
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
        let mut parts: BTreeMap<String, Part> = BTreeMap::new();
        let mut plan = Plan::default();
        plan.table.known = own.keys().copied().filter(of_family).collect();
        let mut budget = Budget::new(plan.table.known.len());
        for (namespace, pods) in &pods {
            let part = self.outline(pods, near(namespace), budget.of_one());
            let (bytes, effort) = (part.bytes, part.effort);
            parts.insert((*namespace).to_owned(), part);
            let strained = budget.strain(namespace, effort);
            let large = budget.outline(namespace, bytes);
            for namespace in strained.into_iter().chain(large) {
                plan.close(namespace, &mut parts, budget.whole());
            }
        }
        // One after the other, so that memory never holds much more than fits.
        for namespace in parts.keys().cloned().collect::<Vec<_>>() {
            let bytes = parts.get_mut(&namespace).map(|part| {
                self.fill(part, &namespace);
                part.bytes
            });
            for namespace in budget.take(&namespace, bytes.unwrap_or_default()) {
                plan.close(namespace, &mut parts, budget.whole());
            }
        }
        for part in parts.into_values() {
            plan.open(part);
        }
        plan.sets.extend(plan.table.sets.clone());
        for namespace in plan.closed.keys() {
            let all = near(namespace);
            for (address, pod) in pods.get(&**namespace).into_iter().flatten() {
                if plan.unselected.contains(namespace) {
                    plan.table.close(*address, all);
                } else {
                    plan.table.close(*address, &selecting(all, pod));
                }
            }
        }
        plan
    }

    /// Computes a namespace's part without its sets. A part that exceeds `limit` is incomplete.
    fn outline(
        &mut self,
        pods: &[(IpAddr, &Pod)],
        near: &[(&Key, &Arc<Policy>)],
        limit: usize,
    ) -> Part {
        let selectors = near.iter().map(|(_, policy)| policy.selects.effort());
        let selecting_all = selectors.sum::<usize>().saturating_mul(pods.len());
        let mut part = Part {
            limit,
            effort: selecting_all.saturating_mul(SELECTING),
            ..Part::default()
        };
        if part.is_over() {
            part.unselected = true;
            return part;
        }
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
        // Forget the chains that no pod uses any more.
        for made in part.made.values_mut() {
            let chains = &part.chains;
            made.branches.retain(|one| chains.contains_key(&one.name));
        }
        part
    }

    /// The chain of a pod that these policies select; `None` if they do not concern the direction.
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

    /// Adds the chain of a policy for such pods, with its sets, to the part, and returns its name;
    /// `None` if the policy does not concern the direction, or the part exceeds its limit.
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
        let (family, namespace) = (self.family, &policy.namespace);
        let asked = made.asked.entry(side);
        let asked = asked.or_insert_with(|| Asked::of(family, namespace, rules, side));
        let ports = asked.ports_of(pod);
        let name = Branch::name_of(key, side, &ports);
        if !part.chains.contains_key(&name) {
            let writing = asked.entries.saturating_mul(WRITING);
            part.effort = part.effort.saturating_add(writing);
            if part.effort > MAX_EFFORT {
                return None;
            }
        }
        let mut branches = made.branches.iter();
        let place = branches.position(|one| one.name == name);
        let place = place.unwrap_or_else(|| {
            let branch = Branch::new(family, name, rules, &asked.ends, side, &ports);
            made.branches.push(branch);
            made.branches.len() - 1
        });
        let branch = made.branches.get(place)?;
        for (name, content) in &branch.sets {
            if part.effort <= MAX_EFFORT && part.names.insert(Arc::clone(name)) {
                let counted = &mut part.counted;
                let effort = self.index.effort(namespace, content, counted);
                part.effort = part.effort.saturating_add(effort);
                part.asked.push((Arc::clone(name), content.clone()));
            }
        }
        let (name, rules) = (Arc::clone(&branch.name), Arc::clone(&branch.rules));
        part.add_chain(&name, &rules);
        Some(name)
    }

    /// Computes the sets that a namespace's chains look up, until the part exceeds its limit.
    fn fill(&mut self, part: &mut Part, namespace: &str) {
        let mut selected = Selected::default();
        for (name, content) in std::mem::take(&mut part.asked) {
            if part.is_over() {
                break;
            }
            let held = self.sets.remove(&name);
            let set = self.index.set(namespace, &content, held, &mut selected);
            part.bytes += of_set(&set);
            part.sets.insert(name, set);
        }
    }
}
