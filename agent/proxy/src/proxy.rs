//! Keeps the packet filter as the view says.

use crate::health;
use crate::table::{self, Entries, Fronts, Here};
use crate::view::{Known, View};
use agent_sys::netlink::connections::{Connections, Flow};
use agent_sys::netlink::filter::Filter;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Pause after the kernel refused, before the whole table is tried anew.
const RETRY: Duration = Duration::from_secs(2);

/// The service proxy of one node.
#[derive(Debug)]
pub struct Proxy {
    view: View,
    node: String,
    addresses: Vec<IpAddr>,
}

/// What the kernel holds.
#[derive(Debug)]
struct Held {
    filter: Filter,
    entries: Entries,
    fronts: Fronts,
}

impl Proxy {
    /// A proxy for the node of this name, which answers for node ports at these addresses.
    pub fn new(view: View, node: String, addresses: Vec<IpAddr>) -> Self {
        Self {
            view,
            node,
            addresses,
        }
    }

    /// Applies every change, for ever. Before services and slices are known, the kernel keeps what it has: that of an agent
    /// before this one serves on. Load balancers are told meanwhile which services have endpoints here.
    pub async fn run(self) {
        let (view, node) = (self.view.clone(), self.node.clone());
        let health = health::serve(view, node, self.addresses.clone());
        tokio::join!(self.keep(), health);
    }

    async fn keep(self) {
        let mut changes = self.view.changes();
        let mut held: Option<Held> = None;
        loop {
            let known = Arc::clone(&changes.borrow_and_update());
            let (node, addresses) = (self.node.clone(), self.addresses.clone());
            let before = held.take();
            let apply = move || apply(before, &known, &node, &addresses);
            let outcome = tokio::task::spawn_blocking(apply).await;
            match outcome {
                Ok(Ok(now)) => held = now,
                Ok(Err(error)) => {
                    let reason = error.to_string();
                    tracing::error!(reason, "cannot apply Services to nftables; trying again");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
                Err(error) => tracing::error!(%error, "the service proxy panicked"),
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Brings the kernel from what it holds to what is known: by the difference where that is known, else the whole table.
fn apply(
    held: Option<Held>,
    known: &Known,
    node: &str,
    addresses: &[IpAddr],
) -> Result<Option<Held>, agent_sys::Error> {
    let Some(whole) = known.whole() else {
        return Ok(held);
    };
    let here = Here {
        node,
        zone: known.zone(node),
        addresses,
    };
    let mut fronts = table::fronts(whole, here);
    table::add_host_ports(&mut fronts, &known.host_ports, addresses);
    let wanted = table::entries(&fronts);
    let mut before = Fronts::new();
    if let Some(mut held) = held {
        let changes = table::difference(&held.entries, &wanted);
        if changes.is_empty() {
            return Ok(Some(held));
        }
        match held.filter.apply(&changes) {
            Ok(()) => {
                forget(&held.fronts, &fronts);
                held.entries = table::merged(&held.entries, wanted);
                held.fronts = fronts;
                return Ok(Some(held));
            }
            // Another hand changed the table.
            Err(error) => {
                tracing::warn!(%error, "the Service nftables table differs; replacing it");
            }
        }
        before = held.fronts;
    }
    let mut filter = Filter::open()?;
    filter.apply(&table::all(&wanted))?;
    forget(&before, &fronts);
    let services = known
        .services
        .as_ref()
        .map_or(0, std::collections::BTreeMap::len);
    tracing::info!(services, "applied Services to nftables");
    Ok(Some(Held {
        filter,
        entries: wanted,
        fronts,
    }))
}

/// Forgets flows of datagrams that lead elsewhere than their front leads now: a client that goes on to send would not reach
/// another endpoint. Connections of TCP end by themselves.
fn forget(before: &Fronts, after: &Fronts) {
    let changed = table::changed_datagrams(before, after);
    if changed.is_empty() {
        return;
    }
    let forget = || {
        let mut connections = Connections::open()?;
        let stale = |flow: &Flow| {
            let ends = changed.get(&flow.called);
            ends.is_some_and(|ends| !ends.contains(&flow.answers))
        };
        let flows = connections.datagrams(&stale)?;
        flows
            .iter()
            .try_for_each(|flow| connections.forget(flow).map(drop))
    };
    let outcome: Result<(), agent_sys::Error> = forget();
    if let Err(error) = outcome {
        tracing::warn!(%error, "cannot delete UDP conntrack entries of removed endpoints");
    }
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
