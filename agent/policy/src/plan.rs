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
//!
//! The table is computed by namespace. One whose policies and pods of this node are those of the
//! last table keeps its chains; in its sets, only the addresses of changed pods are looked at.

use crate::branch::{Asked, Branch, Made, Side};
use crate::budget::{Budget, MAX_EFFORT, of_set};
use crate::model::{Labels, NamedPort, Pod, Policy, World};
use crate::name::named;
use crate::part::{Lookup, Part, Plan, drops};
use crate::places::Places;
use crate::pods::{PodIndex, Selected};
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
    places: Places,
    namespaces: BTreeMap<String, Arc<Labels>>,
    /// The parts of namespaces that are not closed.
    parts: BTreeMap<String, Part>,
    /// Chains and sets of the others.
    made: BTreeMap<Key, Made>,
    sets: BTreeMap<Arc<str>, Arc<Set>>,
    /// Namespaces whose policies exceed their share.
    closed: BTreeSet<String>,
}

impl Planner {
    /// One that has made no table yet.
    pub(crate) fn new(family: Family) -> Self {
        Self {
            family,
            places: Places::new(family),
            namespaces: BTreeMap::new(),
            parts: BTreeMap::new(),
            made: BTreeMap::new(),
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
        let changed = self.places.follow(world.pods.as_ref()?, own);
        let is_relabelled = self.namespaces != *namespaces;
        if is_relabelled {
            self.namespaces.clone_from(namespaces);
        }
        let mut maker = Maker {
            index: PodIndex {
                places: &self.places,
                namespaces,
                changed,
                is_relabelled,
            },
            family: self.family,
            kept: std::mem::take(&mut self.parts),
            sets: std::mem::take(&mut self.sets),
            before: std::mem::take(&mut self.made),
        };
        let Plan {
            table,
            parts,
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
        self.parts = parts;
        self.made = made;
        self.sets = sets;
        Some(table)
    }
}

#[cfg(test)]
impl Planner {
    fn remembered(&self) -> impl Iterator<Item = &Made> {
        let open = self.parts.values().flat_map(|part| part.made.values());
        open.chain(self.made.values())
    }

    /// How many chains of policies it remembers.
    pub(crate) fn branches(&self) -> usize {
        self.remembered().map(|made| made.branches.len()).sum()
    }

    /// How many sets these chains look up, and how many lists of peers those share.
    pub(crate) fn asked(&self) -> (usize, usize) {
        let branches = self.remembered().flat_map(|made| &made.branches);
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
    /// The parts of the last table. Those with the same policies and pods are kept.
    kept: BTreeMap<String, Part>,
    /// Other sets of the last table; they are still right, except for what has changed.
    sets: BTreeMap<Arc<str>, Arc<Set>>,
    /// Other chains of the last table; those still in use move to their namespace's part.
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
        let mut pods: BTreeMap<&str, Vec<(IpAddr, &Arc<Pod>)>> = BTreeMap::new();
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
            let part = self.part(namespace, pods, near(namespace), budget.of_one());
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
        plan.open(parts);
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

    /// A namespace's part without its sets: the last one if its policies and pods are the same.
    fn part(
        &mut self,
        namespace: &str,
        pods: &[(IpAddr, &Arc<Pod>)],
        near: &[(&Key, &Arc<Policy>)],
        limit: usize,
    ) -> Part {
        if let Some(mut part) = self.kept.remove(namespace) {
            if part.is_of(pods, near) {
                part.reopen(limit);
                if !self.index.is_same() {
                    let contents = part.lookups.iter().map(|one| &one.content);
                    let finding = self.index.effort_of(namespace, contents);
                    part.set_finding(finding);
                }
                // One that is over its limit is incomplete, so it is not the last one.
                if !part.is_over() {
                    return part;
                }
            }
            self.sets.extend(part.sets());
            self.before.extend(part.made);
        }
        self.outline(pods, near, limit)
    }

    /// Computes a namespace's part without its sets. A part that exceeds `limit` is incomplete.
    fn outline(
        &mut self,
        pods: &[(IpAddr, &Arc<Pod>)],
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
        let pods = pods.iter();
        part.pods = pods.map(|(at, pod)| (*at, Arc::clone(pod))).collect();
        let near = near.iter();
        part.policies = near
            .map(|(key, policy)| (Key::clone(key), Arc::clone(policy)))
            .collect();
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
        let mut branches = made.branches.iter();
        let place = branches.position(|one| one.is_for(side, &ports));
        let known = place.and_then(|place| made.branches.get(place));
        if known.is_none_or(|known| !part.chains.contains_key(&known.name)) {
            let writing = asked.entries.saturating_mul(WRITING);
            part.effort = part.effort.saturating_add(writing);
            if part.effort > MAX_EFFORT {
                return None;
            }
        }
        let place = place.unwrap_or_else(|| {
            let branch = Branch::new(family, key, rules, &asked.ends, side, &ports);
            made.branches.push(branch);
            made.branches.len() - 1
        });
        let branch = made.branches.get(place)?;
        for (name, content) in &branch.sets {
            if part.effort <= MAX_EFFORT && part.names.insert(Arc::clone(name)) {
                let counted = &mut part.counted;
                let effort = self.index.effort(namespace, content, counted);
                part.effort = part.effort.saturating_add(effort);
                part.finding = part.finding.saturating_add(effort);
                part.lookups.push(Lookup {
                    name: Arc::clone(name),
                    content: content.clone(),
                    set: None,
                });
            }
        }
        let (name, rules) = (Arc::clone(&branch.name), Arc::clone(&branch.rules));
        part.add_chain(&name, &rules);
        Some(name)
    }

    /// Computes the sets that a namespace's chains look up, until the part exceeds its limit.
    fn fill(&mut self, part: &mut Part, namespace: &str) {
        let mut selected = Selected::default();
        let mut lookups = std::mem::take(&mut part.lookups);
        for lookup in &mut lookups {
            let held = lookup.set.take();
            if part.is_over() {
                continue;
            }
            let held = held.or_else(|| self.sets.remove(&lookup.name));
            let content = &lookup.content;
            let set = self.index.set(namespace, content, held, &mut selected);
            let bytes = of_set(&set);
            part.bytes += bytes;
            part.set_bytes += bytes;
            lookup.set = Some(set);
        }
        part.lookups = lookups;
        part.is_filled = true;
    }
}
