//! One namespace's part of the nftables table, and the table of all parts (pure).

use crate::branch::{Content, Made, Side};
use crate::budget::{MAX_EFFORT, of_chain};
use crate::model::Policy;
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

/// One namespace's part of the table.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) made: BTreeMap<Key, Made>,
    /// The sets that chains look up, in the order of their rules, and their names.
    pub(crate) asked: Vec<(Arc<str>, Content)>,
    pub(crate) names: BTreeSet<Arc<str>>,
    /// The comparisons for the peers of the last of these sets.
    pub(crate) counted: Option<Counted>,
    pub(crate) sets: BTreeMap<Arc<str>, Arc<Set>>,
    pub(crate) chains: BTreeMap<Arc<str>, Arc<Rules>>,
    pub(crate) ingress: BTreeMap<IpAddr, Arc<str>>,
    pub(crate) egress: BTreeMap<IpAddr, Arc<str>>,
    /// Bytes of the kernel's message that sets and chains take, at most.
    pub(crate) bytes: usize,
    /// Most bytes that it may take; beyond that, nothing more is added.
    pub(crate) limit: usize,
    /// Comparisons to compute it anew; beyond [`MAX_EFFORT`] no more are made.
    pub(crate) effort: usize,
    /// Whether it was not determined which pods its policies select: that takes too many
    /// comparisons.
    pub(crate) unselected: bool,
}

/// A table, and what is kept to compute the next one.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) table: Table,
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
            self.made.extend(part.made);
            self.sets.extend(part.sets);
        }
        if part.unselected {
            self.unselected.insert(namespace.clone());
        }
        self.closed.insert(namespace, part.bytes);
    }

    /// Puts a namespace's part into the table.
    pub(crate) fn open(&mut self, part: Part) {
        self.made.extend(part.made);
        self.table.sets.extend(part.sets);
        self.table.chains.extend(part.chains);
        self.table.ingress.extend(part.ingress);
        self.table.egress.extend(part.egress);
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
