//! One namespace's part of the nftables table, and the table of all parts (pure).

use crate::branch::{Content, Made, Side};
use crate::budget::{MAX_EFFORT, of_chain};
use crate::model::{Pod, Policy};
use crate::pods::Counted;
use crate::table::{Rules, Set, Table};
use agent_proxy::Key;
use agent_sys::netlink::filter::{Step, Verdict};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// The chain of pods whose namespace exceeds its share: it drops everything.
const CLOSED: &str = "closed";

/// A set that chains look up.
#[derive(Debug)]
pub(crate) struct Lookup {
    pub(crate) name: Arc<str>,
    pub(crate) content: Content,
    /// `None` before it is computed.
    pub(crate) set: Option<Arc<Set>>,
}

/// One namespace's part of the table. While it stays open, it is kept for the next tables: with the
/// same policies and pods of this node only its sets change.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// This node's pods in the namespace, and the policies there, from which it was computed.
    pub(crate) pods: Vec<(IpAddr, Arc<Pod>)>,
    pub(crate) policies: Vec<(Key, Arc<Policy>)>,
    pub(crate) made: BTreeMap<Key, Made>,
    /// The sets that chains look up, in the order of their rules, and their names.
    pub(crate) lookups: Vec<Lookup>,
    pub(crate) names: BTreeSet<Arc<str>>,
    /// The comparisons for the peers of the last of these sets.
    pub(crate) counted: Option<Counted>,
    /// Whether the sets are those of the present pods.
    pub(crate) is_filled: bool,
    pub(crate) chains: BTreeMap<Arc<str>, Arc<Rules>>,
    pub(crate) ingress: BTreeMap<IpAddr, Arc<str>>,
    pub(crate) egress: BTreeMap<IpAddr, Arc<str>>,
    /// Bytes of the kernel's message that sets and chains take, at most, and those of sets alone.
    pub(crate) bytes: usize,
    pub(crate) set_bytes: usize,
    /// Most bytes that it may take; beyond that, nothing more is added.
    pub(crate) limit: usize,
    /// Comparisons to compute it anew; beyond [`MAX_EFFORT`] no more are made.
    pub(crate) effort: usize,
    /// Those of them that find the pods of sets: they depend on the pods of the whole cluster.
    pub(crate) finding: usize,
    /// Whether it was not determined which pods its policies select: that takes too many
    /// comparisons.
    pub(crate) unselected: bool,
}

/// A table, and what is kept to compute the next one.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) table: Table,
    /// Namespaces that are not closed.
    pub(crate) parts: BTreeMap<String, Part>,
    /// Chains and sets of closed namespaces.
    pub(crate) made: BTreeMap<Key, Made>,
    pub(crate) sets: BTreeMap<Arc<str>, Arc<Set>>,
    /// Namespaces whose pods are closed, and the bytes that their policies take, at least.
    pub(crate) closed: BTreeMap<String, usize>,
    /// Those of them in which all pods are closed, not only selected ones.
    pub(crate) unselected: BTreeSet<String>,
    /// Bytes of the parts of closed namespaces that are kept for the next plan.
    kept: usize,
}

/// The rule at the end of a chain of pods.
pub(crate) fn drops() -> Vec<Step> {
    vec![Step::Count, Step::Verdict(Verdict::Drop)]
}

impl Part {
    /// Whether it was computed from these pods and policies.
    pub(crate) fn is_of(
        &self,
        pods: &[(IpAddr, &Arc<Pod>)],
        policies: &[(&Key, &Arc<Policy>)],
    ) -> bool {
        let mut pairs = self.pods.iter().zip(pods);
        let mut rules = self.policies.iter().zip(policies);
        self.pods.len() == pods.len()
            && self.policies.len() == policies.len()
            && pairs.all(|((at, pod), (other, now))| at == other && pod == *now)
            && rules.all(|((key, policy), (other, now))| key == *other && policy == *now)
    }

    /// Begins the next table with what is kept: its sets are still those of earlier pods.
    pub(crate) fn reopen(&mut self, limit: usize) {
        self.limit = limit;
        self.bytes -= self.set_bytes;
        self.set_bytes = 0;
        self.is_filled = false;
    }

    /// Replaces the comparisons that find the pods of its sets.
    pub(crate) fn set_finding(&mut self, finding: usize) {
        self.effort = (self.effort - self.finding).saturating_add(finding);
        self.finding = finding;
    }

    /// The sets that are computed, by name.
    pub(crate) fn sets(&self) -> impl Iterator<Item = (Arc<str>, Arc<Set>)> {
        let all = self.lookups.iter();
        all.filter_map(|one| Some((Arc::clone(&one.name), Arc::clone(one.set.as_ref()?))))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.bytes > self.limit || self.effort > MAX_EFFORT
    }

    pub(crate) fn add_chain(&mut self, name: &Arc<str>, rules: &Arc<Rules>) {
        if let Entry::Vacant(place) = self.chains.entry(Arc::clone(name)) {
            self.bytes += of_chain(rules);
            place.insert(Arc::clone(rules));
        }
    }
}

impl Plan {
    /// Closes a namespace, if it is still among the parts. Its part is kept for the next plan if
    /// all kept parts fit in a table. `whole`: most bytes of that.
    pub(crate) fn close(
        &mut self,
        namespace: String,
        parts: &mut BTreeMap<String, Part>,
        whole: usize,
    ) {
        let Some(part) = parts.remove(&namespace) else {
            return;
        };
        if self.kept.saturating_add(part.bytes) <= whole {
            self.kept += part.bytes;
            if part.is_filled {
                self.sets.extend(part.sets());
            }
            self.made.extend(part.made);
        }
        if part.unselected {
            self.unselected.insert(namespace.clone());
        }
        self.closed.insert(namespace, part.bytes);
    }

    /// Puts the parts of open namespaces into the table, all at once: that takes less time than
    /// one after the other.
    pub(crate) fn open(&mut self, parts: BTreeMap<String, Part>) {
        let chains = parts.values().flat_map(|part| &part.chains);
        let chains = chains.map(|(name, rules)| (Arc::clone(name), Arc::clone(rules)));
        self.table.chains = chains.collect();
        self.table.sets = parts.values().flat_map(Part::sets).collect();
        let ingress = parts.values().flat_map(|part| &part.ingress);
        let egress = parts.values().flat_map(|part| &part.egress);
        let copied = |(at, name): (&IpAddr, &Arc<str>)| (*at, Arc::clone(name));
        self.table.ingress = ingress.map(copied).collect();
        self.table.egress = egress.map(copied).collect();
        self.parts = parts;
    }
}

impl Table {
    /// Closes a pod in each direction that one of these policies concerns.
    pub(crate) fn close(&mut self, address: IpAddr, policies: &[(&Key, &Arc<Policy>)]) {
        let name = || Arc::<str>::from(CLOSED);
        for side in [Side::Ingress, Side::Egress] {
            if policies.iter().any(|(_, policy)| side.of(policy).is_some()) {
                let rules = || Arc::new(vec![drops()]);
                self.chains.entry(name()).or_insert_with(rules);
                match side {
                    Side::Ingress => self.ingress.insert(address, name()),
                    Side::Egress => self.egress.insert(address, name()),
                };
            }
        }
    }
}
