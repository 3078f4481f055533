//! Network policies (`networking.k8s.io/v1`) for the pods of this node.
//!
//! Enter by [`Keeper`]: watches fill what it knows, [`Keeper::run`] is the task that puts it in
//! force, and a pod waits for it ([`Keeper::admit`]). [`model`] is what is read of the cluster's
//! objects, [`plan`] makes of it what the packet filter should hold, within a budget that
//! namespaces share, [`table`] the changes that bring it there; all are pure.

mod blocks;
mod budget;
mod keeper;
pub mod model;
mod name;
mod part;
pub mod plan;
pub mod table;

pub use keeper::{Keeper, name_namespaces};
pub use model::World;
pub use plan::Table;

use agent_sys::netlink::Family;
use agent_sys::netlink::filter::Filter;
use model::Pod;
use plan::Planner;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Keeps the packet filter as policies say. Calls block for a few milliseconds.
#[derive(Debug, Default)]
pub struct Policies(Mutex<BTreeMap<Family, State>>);

/// What is kept of a family: a table holds addresses of one.
#[derive(Debug)]
struct State {
    planner: Planner,
    /// None before the first table.
    held: Option<Installed>,
}

/// The rules that the kernel has.
#[derive(Debug)]
struct Installed {
    filter: Filter,
    table: Table,
}

impl Policies {
    /// Brings the kernel to what the world says for the pods of this node, by address, in one
    /// transaction: by the difference where it is known what it holds, else as a whole. What an
    /// earlier agent left is in force until the first call that does so. False where pods,
    /// namespaces or policies are not known yet.
    ///
    /// `families`: those of which pods of this node have addresses. Each has a table of its own and
    /// a transaction of its own.
    ///
    /// # Errors
    /// If the kernel refuses; then all is as before for that family and those behind it.
    pub fn follow(
        &self,
        families: &BTreeSet<Family>,
        world: &World,
        own: &BTreeMap<IpAddr, Arc<Pod>>,
    ) -> agent_sys::Result<bool> {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for family in families {
            let state = states.entry(*family).or_insert_with(|| State {
                planner: Planner::new(*family),
                held: None,
            });
            let Some(wanted) = state.planner.table(world, own) else {
                return Ok(false);
            };
            state.apply(*family, wanted)?;
        }
        Ok(true)
    }
}

impl State {
    fn apply(&mut self, family: Family, wanted: Table) -> agent_sys::Result<()> {
        if let Some(held) = self.held.as_mut() {
            let changes = table::difference(&held.table, &wanted);
            if changes.is_empty() {
                return Ok(());
            }
            match held.filter.apply(&changes) {
                Ok(()) => {
                    held.table = wanted;
                    return Ok(());
                }
                // Another hand changed the table.
                Err(error) => {
                    tracing::warn!(%error, "the NetworkPolicy nftables table differs; replacing it");
                }
            }
        }
        let mut filter = Filter::open(family)?;
        filter.apply(&table::all(family, &wanted))?;
        self.held = Some(Installed {
            filter,
            table: wanted,
        });
        Ok(())
    }
}

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod changes_tests;
#[cfg(test)]
mod kernel_tests;
#[cfg(test)]
mod tests;
