//! The services that a node does not serve, because their namespaces exceed their share of the
//! nftables table, or of the memory for watched objects (pure; see [`crate::budget`]).

use crate::view::Key;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most services that are named for a namespace that is left out: those that take most.
pub(crate) const MOST_NAMED: usize = 8;

/// What a node leaves out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// The namespaces, each with the services that take most, the largest first.
    pub(crate) namespaces: BTreeMap<String, Vec<Arc<Key>>>,
    /// Services that are served whatever their namespaces take.
    pub(crate) spared: BTreeSet<Arc<Key>>,
}

impl LeftOut {
    /// Whether a service is left out.
    pub fn has(&self, service: &Key) -> bool {
        self.namespaces.contains_key(&service.namespace) && !self.spared.contains(service)
    }

    /// The services to blame in namespaces that were served before, a limited number of each.
    pub fn new_since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a Arc<Key>> {
        let new = self.namespaces.iter();
        let new = new.filter(move |(namespace, _)| !before.namespaces.contains_key(*namespace));
        new.flat_map(|(_, services)| services)
    }
}
