//! Applies the cluster's services to nftables, and keeps them up to date.

use crate::earlier;
use crate::fronts::{self, Front, Fronts, Here};
use crate::health;
use crate::left_out::LeftOut;
use crate::ranges::{self, Ranges};
use crate::served::{Moves, Served};
use crate::status::{self, Freshness};
use crate::table::{self, Chains};
use crate::view::{Known, View};
use agent_sys::netlink::Family;
use agent_sys::netlink::connections::{Connections, Flow, MOST_FLOWS};
use agent_sys::netlink::filter::{Change, Filter};
use config_errors::chain;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Pause after the kernel refused a table, before the whole table is applied again.
const RETRY: Duration = Duration::from_secs(2);

/// How often conntrack entries are listed and deleted after a change: enough for the largest
/// connection table that a machine has.
const MOST_ROUNDS: usize = 128;

/// The service proxy of one node.
#[derive(Debug)]
pub struct Proxy {
    view: View,
    node: String,
    addresses: watch::Receiver<Vec<IpAddr>>,
    left_out: watch::Sender<LeftOut>,
}

/// The tables of services that this process has put into the network namespace of its thread.
#[derive(Debug, Default)]
pub struct Rules {
    served: Served,
    /// By family; absent where the kernel's table is unknown and has to be replaced.
    installed: BTreeMap<Family, InstalledTable>,
}

/// The kernel's table for a family.
#[derive(Debug)]
enum InstalledTable {
    /// No table: there is nothing to serve.
    Absent,
    /// A table with these chains, and with the ranges that belong to services only, once those are
    /// known.
    Present(Filter, Chains, Option<Ranges>),
    /// A table whose unused chains can't be removed.
    Crowded,
}

impl Rules {
    /// Applies what is known to the kernel, for the node of this name, which answers for node ports
    /// at these addresses: the difference, where the kernel's table is known, else the whole table.
    /// Does nothing before services and slices are known.
    ///
    /// # Errors
    /// If the kernel refuses; its table stays as it was, and the next call replaces all of it.
    pub fn apply(
        &mut self,
        known: &Arc<Known>,
        node: &str,
        addresses: &[IpAddr],
    ) -> Result<(), agent_sys::Error> {
        let Some(whole) = known.whole() else {
            return Ok(());
        };
        let here = Here {
            node,
            zone: known.zone(node),
            addresses,
            name_servers: &known.name_servers,
        };
        let mut moves = self.served.take(known, here);
        let ranges = |family| ranges::of_services(known, addresses, family);
        let families = Family::BOTH.into_iter();
        let lost: Vec<Family> = families
            .filter(|family| !self.lead(*family, &moves.of(*family), ranges(*family)))
            .collect();
        if !lost.is_empty() {
            // Whole tables take much memory: of the moves, only those of which flows are forgotten
            // are kept meanwhile.
            moves.before.retain(|front, _| front.is_datagram());
            moves.after.retain(|front, _| front.is_datagram());
            let mut all = self.served.all();
            for family in lost {
                let anew = matches!(self.installed.get(&family), Some(InstalledTable::Crowded));
                let own = take_family(&mut all, family);
                moves.before.extend(earlier(family));
                let datagrams = own.iter().filter(|(front, _)| front.is_datagram());
                let datagrams = datagrams.map(|(front, pick)| (*front, pick.clone()));
                moves.after.extend(datagrams);
                let table = install(family, own, ranges(family), anew);
                let table = table.inspect_err(|_| *self = Self::default())?;
                self.installed.insert(family, table);
            }
            tracing::info!(services = whole.0.len(), "applied Services to nftables");
        }
        forget(&moves);
        Ok(())
    }

    /// The services that are not served because their namespaces exceed their share.
    pub fn left_out(&self) -> LeftOut {
        self.served.left_out()
    }

    /// Applies a difference to the kernel; false if its table is unknown or was changed by others,
    /// so that it has to be replaced.
    fn lead(&mut self, family: Family, moves: &Moves, ranges: Option<Ranges>) -> bool {
        let (filter, chains, held) = match self.installed.get_mut(&family) {
            None | Some(InstalledTable::Crowded) => return false,
            Some(InstalledTable::Absent) => return is_nothing(&moves.after, ranges.as_ref()),
            Some(InstalledTable::Present(filter, chains, held)) => (filter, chains, held),
        };
        let mut changes = chains.lead(&moves.before, &moves.after);
        if let Some(ranges) = ranges.filter(|ranges| held.as_ref() != Some(ranges)) {
            changes.extend(table::service_ranges(&ranges));
            *held = Some(ranges);
        }
        if changes.is_empty() {
            return true;
        }
        let applied = filter.apply(&changes);
        if let Err(error) = &applied {
            // Another program has changed the table, so the difference does not apply.
            tracing::warn!(
                error = chain(error),
                "the Service nftables table differs; replacing it"
            );
            self.installed.remove(&family);
            return false;
        }
        if !chains.are_crowded() {
            return true;
        }
        // Removes unused chains only; a whole new table would lose the affinity of clients.
        let needed = table::entries(&take_family(&mut self.served.all(), family));
        let trimmed = filter.apply(&chains.trim(&needed));
        if let Err(error) = &trimmed {
            tracing::warn!(
                error = chain(error),
                "the Service nftables table differs; replacing it"
            );
            self.installed.insert(family, InstalledTable::Crowded);
        }
        trimmed.is_ok()
    }
}

/// The UDP fronts in the kernel's present table, which an earlier agent may have made: stale flows
/// are found by comparing them with the new ones.
fn earlier(family: Family) -> Fronts {
    let found = earlier::datagrams(family);
    found.unwrap_or_else(|error| {
        // A kernel without IPv6, for one: then there are no flows to look for.
        tracing::debug!(
            error = chain(&error),
            "cannot read the Service nftables table"
        );
        Fronts::new()
    })
}

/// Takes the fronts of a family out of all.
fn take_family(all: &mut Fronts, family: Family) -> Fronts {
    let is_own = |front: &Front| Family::of(front.address) == family;
    let fronts = std::mem::take(all).into_iter();
    let (own, others): (Fronts, Fronts) = fronts.partition(|(front, _)| is_own(front));
    *all = others;
    own
}

/// Replaces the whole table of a family; removes it if there is nothing to serve. With `anew`, no
/// element of an earlier table is kept, so that clients lose their affinity.
fn install(
    family: Family,
    fronts: Fronts,
    ranges: Option<Ranges>,
    anew: bool,
) -> Result<InstalledTable, agent_sys::Error> {
    let mut filter = Filter::open(family)?;
    if is_nothing(&fronts, ranges.as_ref()) {
        let removed = filter.apply(&table::none());
        // A kernel without IPv6 may have no tables for it.
        return match family {
            Family::V4 => removed.map(|()| InstalledTable::Absent),
            Family::V6 => Ok(InstalledTable::Absent),
        };
    }
    let wanted = table::entries(&fronts);
    drop(fronts);
    let with_ranges = |mut changes: Vec<Change>| {
        let known = ranges.iter();
        changes.extend(known.flat_map(|ranges| table::service_ranges(ranges)));
        changes
    };
    let whole_anew = || with_ranges(table::anew(family, &wanted));
    if anew {
        filter.apply(&whole_anew())?;
    } else if let Err(error) = filter.apply(&with_ranges(table::all(family, &wanted))) {
        // The table is of an earlier version, or another program has changed it.
        tracing::warn!(
            error = chain(&error),
            "the Service nftables table can't be kept; making it anew"
        );
        filter.apply(&whole_anew())?;
    }
    let chains = Chains::of(family, &wanted);
    Ok(InstalledTable::Present(filter, chains, ranges))
}

/// Whether no table is needed.
fn is_nothing(fronts: &Fronts, ranges: Option<&Ranges>) -> bool {
    fronts.is_empty() && ranges.is_none_or(Vec::is_empty)
}

impl Proxy {
    /// A proxy for the node of this name; `addresses` are those at which it answers for node ports.
    pub fn new(view: View, node: String, addresses: watch::Receiver<Vec<IpAddr>>) -> Self {
        Self {
            view,
            node,
            addresses,
            left_out: watch::Sender::default(),
        }
    }

    /// The services that the applied table leaves out.
    pub fn left_out(&self) -> watch::Receiver<LeftOut> {
        self.left_out.subscribe()
    }

    /// Applies every change, for ever. Until services, slices and host ports are known, the kernel
    /// keeps the table of the agent before this one. The health check ports of load balancers are
    /// answered meanwhile.
    pub async fn run(self) {
        let (view, node) = (self.view.clone(), self.node.clone());
        let freshness = Freshness::default();
        let status = status::serve(view.clone(), node.clone(), freshness.clone());
        let asked = health::Asked {
            view,
            node,
            left_out: self.left_out(),
            freshness: freshness.clone(),
        };
        let health = health::serve(asked, self.addresses.clone());
        tokio::join!(self.keep(freshness), health, status);
    }

    async fn keep(mut self, freshness: Freshness) {
        let mut changes = self.view.changes();
        let mut rules = Rules::default();
        loop {
            let known = Arc::clone(&changes.borrow_and_update());
            let addresses = self.addresses.borrow_and_update().clone();
            let node = self.node.clone();
            freshness.changed(Instant::now());
            if known.whole().is_some() && known.host_ports_listed {
                let mut held = std::mem::take(&mut rules);
                let apply = move || held.apply(&known, &node, &addresses).map(|()| held);
                let outcome = tokio::task::spawn_blocking(apply).await;
                match outcome {
                    Ok(Ok(now)) => {
                        rules = now;
                        let left_out = rules.left_out();
                        self.left_out.send_if_modified(|reported| {
                            let differs = *reported != left_out;
                            *reported = left_out;
                            differs
                        });
                        freshness.applied();
                    }
                    Ok(Err(error)) => {
                        tracing::error!(
                            error = chain(&error),
                            "cannot apply Services to nftables; trying again"
                        );
                        tokio::time::sleep(RETRY).await;
                        continue;
                    }
                    Err(error) => {
                        tracing::error!(error = chain(&error), "the service proxy panicked");
                    }
                }
            }
            tokio::select! {
                // Cancel-safe: both arms only wait. The addresses keep their last value once their
                // sender is gone.
                outcome = changes.changed() => if outcome.is_err() { return },
                Ok(()) = self.addresses.changed() => {}
            }
        }
    }
}

/// Deletes the conntrack entries of UDP flows to endpoints that their front no longer has: a client
/// that keeps sending would stay with the removed endpoint. TCP connections end by themselves.
fn forget(moves: &Moves) {
    let changed = fronts::changed_datagrams(&moves.before, &moves.after);
    if changed.is_empty() {
        return;
    }
    let forget = || {
        let mut connections = Connections::open()?;
        let stale = |flow: &Flow| {
            let ends = changed.get(&flow.called);
            ends.is_some_and(|ends| !ends.contains(&flow.answers))
        };
        for _ in 0..MOST_ROUNDS {
            let flows = connections.datagrams(&stale)?;
            for flow in &flows {
                connections.delete(flow)?;
            }
            if flows.len() < MOST_FLOWS {
                break;
            }
        }
        Ok(())
    };
    let outcome: Result<(), agent_sys::Error> = forget();
    if let Err(error) = outcome {
        tracing::warn!(
            error = chain(&error),
            "cannot delete UDP conntrack entries of removed endpoints"
        );
    }
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
