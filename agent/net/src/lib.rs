//! Brings the machine's network up: addresses, routes and names from its configuration or DHCP.
//!
//! Enter at [`run`]: one future, to be spawned by its owner and ended by dropping it (what is
//! configured stays). It looks for the interfaces that the configuration names (none named: every
//! Ethernet card), sets them up over rtnetlink, keeps DHCP leases alive, writes the resolver's
//! file, and publishes what the machine has in a watch channel. Inside, one DHCP driver for each
//! interface runs in the same task and reports leases over a bounded channel; nothing else is
//! spawned.
//!
//! [`errand`] is the other way in: one host is reached for a while, before there is a
//! configuration.
//!
//! Decisions are pure: [`dhcp`] (a client as event and time in, packets and leases out), [`plan`]
//! (which interface gets what), [`resolver`]. IPv6 addresses come from the configuration or from
//! the kernel's own router discovery.

pub mod dhcp;
mod driver;
pub mod errand;
mod error;
mod link;
pub mod plan;
pub mod resolver;
mod wire;

use config_errors::chain;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use config_model::network::Network;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use crate::dhcp::Lease;
pub use crate::error::NetError;
use crate::link::Netlink;
use crate::plan::Setup;

/// How often interfaces are looked for until all are there, and the resolver's file is tried again.
const SCAN: Duration = Duration::from_millis(500);
/// How often a machine that has what it needs looks for further cards, and for interfaces that were
/// removed and came back.
const RESCAN: Duration = Duration::from_secs(30);
/// Lease changes on their way; each driver waits for room.
const CHANGES: usize = 16;

/// What to set up.
#[derive(Debug, Clone)]
pub struct Task {
    /// The checked configuration.
    pub network: Network,
    /// The name to give to DHCP servers.
    pub host_name: Option<String>,
    /// The resolver's file to write, `/run/pratique/resolv.conf` on a machine of ours.
    pub resolver_file: PathBuf,
}

/// An address of the machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// The interface's name.
    pub interface: String,
    /// The address.
    pub ip: IpAddr,
    /// Bits of its network.
    pub prefix: u8,
}

/// What the machine has now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether everything asked for is there (with DHCP on every card: at least one lease).
    pub ready: bool,
    /// All addresses set up here, fixed ones first in the configuration's order.
    pub addresses: Vec<Address>,
    /// Name servers in use.
    pub nameservers: Vec<IpAddr>,
    /// Time servers that DHCP gave.
    pub ntp: Vec<IpAddr>,
}

/// A lease came or was lost.
struct Change {
    /// The interface's index.
    index: u32,
    /// None where it was lost.
    lease: Option<Lease>,
}

/// Sets the network up and keeps it so, until dropped. Errors are those that no retry can cure.
///
/// Cancel-safe: dropping it leaves addresses, routes and the resolver's file as they are.
///
/// # Errors
/// The kernel's netlink socket cannot be opened or is closed.
pub async fn run(task: Task, status: watch::Sender<Status>) -> Result<Infallible, NetError> {
    let (connection, netlink) = Netlink::open()?;
    let keeper = Keeper {
        task,
        status,
        netlink,
        setups: BTreeMap::new(),
        leases: BTreeMap::new(),
        unwritten: false,
    };
    // Both arms only end in an error; whichever is dropped holds nothing half-done but an
    // unanswered request.
    tokio::select! {
        () = connection => Err(NetError::Closed),
        result = keeper.keep() => result,
    }
}

struct Keeper {
    task: Task,
    status: watch::Sender<Status>,
    netlink: Netlink,
    setups: BTreeMap<u32, Setup>,
    leases: BTreeMap<u32, Lease>,
    /// Whether the resolver's file is still to be written, as that failed.
    unwritten: bool,
}

impl Keeper {
    async fn keep(mut self) -> Result<Infallible, NetError> {
        self.netlink.loopback_up().await?;
        let (sender, mut changes) = mpsc::channel::<Change>(CHANGES);
        let mut drivers: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
        let mut next_scan = Instant::now();
        loop {
            // Cancel-safe: the time, a received change and a driver's end are each taken whole or
            // not at all, and the drivers stay in their set.
            tokio::select! {
                () = sleep_until(next_scan) => {
                    for setup in self.scan().await {
                        if setup.dhcp {
                            let drive = driver::drive(setup.link.clone(), self.task.host_name.clone(), sender.clone());
                            drivers.push(drive.boxed());
                        }
                    }
                    self.publish();
                    next_scan = Instant::now() + self.pause();
                }
                Some(Change { index, lease }) = changes.recv() => {
                    self.change(index, lease).await;
                    self.publish();
                    next_scan = next_scan.min(Instant::now() + self.pause());
                }
                Some(()) = drivers.next(), if !drivers.is_empty() => {}
            }
        }
    }

    /// Whether every interface that the configuration names was found. Without names, cards may
    /// always come.
    fn complete(&self) -> bool {
        !self.task.network.dhcp_everywhere()
            && self.setups.len() >= self.task.network.interfaces.len()
    }

    /// How long to wait before the next look.
    fn pause(&self) -> Duration {
        let has_all = self.complete() || self.status.borrow().ready;
        if has_all && !self.unwritten {
            RESCAN
        } else {
            SCAN
        }
    }

    /// Looks for interfaces that are not set up yet, and sets them up. One that was removed and
    /// came back has another index.
    async fn scan(&mut self) -> Vec<Setup> {
        let links = match self.netlink.links().await {
            Ok(links) => links,
            Err(error) => {
                tracing::warn!(
                    error = chain(&error),
                    "cannot list interfaces; trying again"
                );
                return Vec::new();
            }
        };
        self.setups
            .retain(|index, _| links.iter().any(|link| link.index == *index));
        self.leases
            .retain(|index, _| links.iter().any(|link| link.index == *index));
        let mut done = Vec::new();
        for setup in plan::missing(&self.task.network, links, &self.setups) {
            match self.netlink.set_up(&setup).await {
                Ok(()) => {
                    tracing::info!(
                        interface = setup.link.name,
                        dhcp = setup.dhcp,
                        "interface is up"
                    );
                    self.setups.insert(setup.link.index, setup.clone());
                    done.push(setup);
                }
                // It may have gone between the look and the set-up; it is tried again.
                Err(error) => {
                    tracing::warn!(
                        interface = setup.link.name,
                        error = chain(&error),
                        "interface can't be set up yet"
                    );
                }
            }
        }
        done
    }

    async fn change(&mut self, index: u32, lease: Option<Lease>) {
        let old = self.leases.remove(&index);
        if let Some(old) =
            old.filter(|old| lease.as_ref().is_none_or(|new| new.address != old.address))
            && let Err(error) = self.netlink.remove_lease(index, &old).await
        {
            tracing::warn!(address = %old.address, error = chain(&error), "an expired address can't be removed");
        }
        let Some(lease) = lease else { return };
        if let Err(error) = self.netlink.apply_lease(index, &lease).await {
            tracing::warn!(address = %lease.address, error = chain(&error), "a leased address can't be set");
            return;
        }
        if let Err(error) = self.netlink.apply_route(index, &lease).await {
            // The lease is kept: hosts on the same segment are reachable without a default route.
            tracing::warn!(gateway = ?lease.gateway, error = chain(&error), "the default route of a lease can't be set");
        }
        tracing::info!(address = %lease.address, prefix = lease.prefix, server = %lease.server, "DHCP lease applied");
        self.leases.insert(index, lease);
    }

    fn publish(&mut self) {
        let status = self.status_now();
        let text = resolver::file(&status.nameservers);
        let is_new = *self.status.borrow() != status;
        if !is_new && !self.unwritten {
            return;
        }
        let written = resolver::write(&self.task.resolver_file, &text);
        self.unwritten = written.is_err();
        if !is_new {
            return;
        }
        if let Err(error) = written {
            tracing::warn!(
                error = chain(&error),
                "cannot write resolv.conf; trying again"
            );
        }
        self.status.send_replace(status);
    }

    fn status_now(&self) -> Status {
        let fixed = self.setups.values().flat_map(|setup| {
            let name = &setup.link.name;
            setup.addresses.iter().map(|cidr| Address {
                interface: name.clone(),
                ip: cidr.address,
                prefix: cidr.prefix,
            })
        });
        let on_loan = self.leases.iter().filter_map(|(index, lease)| {
            let interface = self.setups.get(index)?.link.name.clone();
            Some(Address {
                interface,
                ip: lease.address.into(),
                prefix: lease.prefix,
            })
        });
        let leases: Vec<&Lease> = self.leases.values().collect();
        let given = leases
            .iter()
            .flat_map(|lease| lease.nameservers.iter().copied().map(IpAddr::from));
        let nameservers =
            resolver::choose(self.task.network.nameservers.iter().copied().chain(given));
        let ntp = leases
            .iter()
            .flat_map(|lease| lease.ntp.iter().copied().map(IpAddr::from))
            .collect();
        let waiting = self
            .setups
            .values()
            .filter(|setup| setup.dhcp && !self.leases.contains_key(&setup.link.index));
        let ready = if self.task.network.dhcp_everywhere() {
            !self.leases.is_empty()
        } else {
            self.complete() && waiting.count() == 0
        };
        Status {
            ready,
            addresses: fixed.chain(on_loan).collect(),
            nameservers,
            ntp,
        }
    }
}
