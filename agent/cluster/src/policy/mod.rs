//! Network policies (`networking.k8s.io/v1`) for the pods of this node.
//!
//! Enter by [`Keeper`]: watches fill what it knows, [`Keeper::run`] is the task that puts it in force, and a pod waits for it
//! ([`Keeper::admit`]). [`model`] is what is read of the cluster's objects, [`plan`] makes of it what
//! the packet filter should hold, within a budget that namespaces share, [`table`] the changes that bring it there; all are pure.

mod budget;
mod keeper;
pub mod model;
mod name;
mod part;
pub mod plan;
pub mod table;

pub use keeper::Keeper;
pub use model::World;
pub use plan::Table;

use agent_sys::netlink::filter::Filter;
use model::Pod;
use plan::Planner;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

/// Keeps the packet filter as policies say. Calls block for a few milliseconds.
#[derive(Debug, Default)]
pub struct Policies(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    planner: Planner,
    /// None before the first table.
    held: Option<Held>,
}

/// The rules that the kernel has.
#[derive(Debug)]
struct Held {
    filter: Filter,
    table: Table,
}

impl Policies {
    /// Brings the kernel to what the world says for the pods of this node, by address, in one transaction: by the difference
    /// where it is known what it holds, else as a whole. What an earlier agent left is in force until the first call that
    /// does so. False where pods, namespaces or policies are not known yet.
    ///
    /// # Errors
    /// If the kernel refuses; then all is as before.
    pub fn follow(
        &self,
        world: &World,
        own: &BTreeMap<Ipv4Addr, Arc<Pod>>,
    ) -> agent_sys::Result<bool> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(wanted) = state.planner.table(world, own) else {
            return Ok(false);
        };
        state.apply(wanted).map(|()| true)
    }
}

impl State {
    fn apply(&mut self, wanted: Table) -> agent_sys::Result<()> {
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
        let mut filter = Filter::open()?;
        filter.apply(&table::all(&wanted))?;
        self.held = Some(Held {
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
mod tests;
