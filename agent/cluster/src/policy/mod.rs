//! Network policies (`networking.k8s.io/v1`) for the pods of this node.
//!
//! Enter by [`Keeper`]: watches fill what it knows, [`Keeper::run`] is the task that puts it in force, and a pod waits for it
//! ([`Keeper::admit`]). [`model`] is what is read of the cluster's objects, [`plan`] makes of it what
//! the packet filter should hold, [`table`] the changes that bring it there; all three are pure.

mod keeper;
pub mod model;
pub mod plan;
pub mod table;

pub use keeper::Keeper;
pub use model::World;
pub use plan::Table;

use agent_sys::netlink::filter::Filter;
use std::sync::{Mutex, PoisonError};

/// Keeps the packet filter as policies say. Calls block for a few milliseconds.
#[derive(Debug, Default)]
pub struct Policies(Mutex<Option<Held>>);

/// The rules that the kernel has.
#[derive(Debug)]
struct Held {
    filter: Filter,
    table: Table,
}

impl Policies {
    /// Brings the kernel to this table in one transaction: by the difference where it is known what it holds, else as a
    /// whole. What an earlier agent left is in force until the first call.
    ///
    /// # Errors
    /// If the kernel refuses; then all is as before.
    pub fn apply(&self, wanted: Table) -> agent_sys::Result<()> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = held.as_mut() {
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
        *held = Some(Held {
            filter,
            table: wanted,
        });
        Ok(())
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
