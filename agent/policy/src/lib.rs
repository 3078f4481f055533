//! NetworkPolicies (`networking.k8s.io/v1`) for the pods of this node, as rules of nftables.
//!
//! Enter by [`PolicyKeeper`]: watches fill its view of the cluster, the task [`PolicyKeeper::run`]
//! puts the policies in force, and a new pod waits for that ([`PolicyKeeper::admit`]). The task
//! [`name_namespaces`] passes the names of namespaces on to the node's DNS server.
//!
//! [`Policies::follow`] is one step of [`PolicyKeeper::run`]. Three pure parts: [`model`] has the
//! parts of the cluster's objects that matter, `plan` computes the nftables table from them, within
//! a budget of bytes and of comparisons that namespaces share, and `table` computes the changes to
//! the kernel's table.
//!
//! Of the pod network (`agent-cluster`) it needs the addresses of this node's pods
//! ([`Sandboxes::addresses`](agent_cluster::Sandboxes::addresses)), the prefix of their links'
//! names (a pod's packets are dropped until its policies are known), and arithmetic of addresses.
//! The pod network needs nothing of policies: they have a table of their own, and a packet passes
//! both.

mod blocks;
mod branch;
mod budget;
mod keeper;
pub mod model;
mod name;
mod part;
mod places;
mod plan;
mod pods;
mod table;

pub use keeper::{PolicyKeeper, name_namespaces};
pub use model::World;

use agent_sys::netlink::Family;
use agent_sys::netlink::filter::Filter;
use config_errors::chain;
use model::Pod;
use plan::Planner;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use table::Table;

/// Applies NetworkPolicies to nftables. Calls block for a few milliseconds.
#[derive(Debug, Default)]
pub struct Policies(Mutex<BTreeMap<Family, State>>);

/// The state of one family: an nftables set holds addresses of one family only.
#[derive(Debug)]
struct State {
    planner: Planner,
    /// The kernel's table; `None` before this agent's first one.
    installed: Option<Installed>,
}

/// The table that the kernel has, and the way to change it.
#[derive(Debug)]
struct Installed {
    filter: Filter,
    table: Table,
}

impl Policies {
    /// Puts the policies of `world` in force for this node's pods (`own`, by address): changes the
    /// kernel's table by the difference if its content is known, else replaces it. What an earlier
    /// agent left stays in force until then. False if pods, namespaces or policies are not known
    /// yet.
    ///
    /// `families`: those in which pods of this node have addresses. Each has a table of its own and
    /// one transaction.
    ///
    /// # Errors
    /// The kernel refuses; then that family and the ones after it keep their tables.
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
                installed: None,
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
    /// Makes the kernel's table the wanted one: by the difference, else as a whole.
    fn apply(&mut self, family: Family, wanted: Table) -> agent_sys::Result<()> {
        if let Some(installed) = self.installed.as_mut() {
            let changes = table::difference(&installed.table, &wanted);
            if changes.is_empty() {
                return Ok(());
            }
            match installed.filter.apply(&changes) {
                Ok(()) => {
                    installed.table = wanted;
                    return Ok(());
                }
                // Another program has changed the table, so the difference does not apply.
                Err(error) => {
                    tracing::warn!(
                        error = chain(&error),
                        "the NetworkPolicy nftables table differs; replacing it"
                    );
                }
            }
        }
        let mut filter = Filter::open(family)?;
        filter.apply(&table::all(family, &wanted))?;
        self.installed = Some(Installed {
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
