//! The name server over an agent's life: until the master answers, it serves the names that an
//! earlier agent saved.

use crate::server::{Settings, serve};
use crate::snapshot::{Origin, OwnAddress, Snapshot};
use agent_proxy::{Known, View};
use config_errors::chain;
use config_model::stub_domain::StubDomain;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Delay before the server is started again after a failure.
const RETRY: Duration = Duration::from_secs(5);
/// Least time between two snapshots.
const PAUSE: Duration = Duration::from_secs(5);

/// What the name server of a node needs from the start on.
#[derive(Debug)]
pub struct Options {
    /// What the node knows of the cluster, once it does.
    pub view: View,
    /// The snapshot's file, in a folder of root's alone and in memory.
    pub snapshot: PathBuf,
    /// The boot and the node whose snapshots are loaded and saved.
    pub origin: Origin,
    /// The machine's other addresses.
    pub machine: Vec<IpAddr>,
    /// The machine's own resolver file, for names that are not the cluster's.
    pub resolv_conf: PathBuf,
    /// Domains whose names other servers know.
    pub stub_domains: Vec<StubDomain>,
}

/// The name server of a node.
#[derive(Debug)]
pub struct Names {
    options: Options,
    /// What is answered.
    answered: View,
    /// Whether it is an earlier agent's until the master has sent the whole.
    is_from_snapshot: bool,
    /// Where it answers.
    own: watch::Sender<Vec<OwnAddress>>,
    machine: watch::Sender<Vec<IpAddr>>,
}

impl Names {
    /// The name server of a node, with what an earlier agent left of names. One that may not be
    /// used is logged, and names wait for the master.
    pub fn new(options: Options) -> Self {
        let left = Snapshot::load(&options.snapshot, &options.origin);
        let left = left.unwrap_or_else(|error| {
            tracing::warn!(
                path = %options.snapshot.display(),
                error = chain(&error),
                "cannot use the names that an earlier agent saved"
            );
            None
        });
        let answered = View::default();
        let is_from_snapshot = left.is_some();
        let own = left.map(|left| {
            tracing::info!(
                services = left.known.services.as_ref().map(BTreeMap::len),
                "answering names from an earlier agent's snapshot until the master is reached"
            );
            answered.take(left.known);
            left.own
        });
        Self {
            answered,
            is_from_snapshot,
            own: watch::Sender::new(own.unwrap_or_default()),
            machine: watch::Sender::new(options.machine.clone()),
            options,
        }
    }

    /// What the node knows of the cluster.
    pub fn view(&self) -> View {
        self.options.view.clone()
    }

    /// Answers at these addresses of the node, each the questions of a range, and no longer at the
    /// previous ones.
    pub fn serve_at(&self, own: &[OwnAddress]) {
        self.own.send_if_modified(|before| {
            let differs = before != own;
            if differs {
                own.clone_into(before);
            }
            differs
        });
    }

    /// Follows the machine's addresses, whose programs are answered; returns once the sender of
    /// the addresses is gone.
    pub async fn follow(&self, mut addresses: watch::Receiver<Vec<IpAddr>>) {
        loop {
            let now = addresses.borrow_and_update().clone();
            self.machine.send_replace(now);
            if addresses.changed().await.is_err() {
                return;
            }
        }
    }

    /// Serves until it is dropped, and saves snapshots for the next agent.
    pub async fn run(&self) -> Infallible {
        tokio::select! {
            never = self.answer() => never,
            never = self.take_over() => never,
            never = self.save_snapshots() => never,
        }
    }

    async fn answer(&self) -> Infallible {
        let mut own = self.own.subscribe();
        loop {
            let at = own.borrow_and_update().clone();
            let served = async {
                if at.is_empty() {
                    return std::future::pending().await;
                }
                let settings = Settings {
                    addresses: at.iter().map(|own| own.address).collect(),
                    clients: at.iter().map(|own| own.range).collect(),
                    own: self.machine.subscribe(),
                    resolv_conf: self.options.resolv_conf.clone(),
                    stub_domains: self.options.stub_domains.clone(),
                };
                if let Err(error) = serve(settings, self.answered.clone()).await {
                    tracing::error!(
                        error = chain(&error),
                        "cannot serve cluster DNS; trying again"
                    );
                }
                tokio::time::sleep(RETRY).await;
            };
            // Cancel-safe: questions that are dropped are asked again. `changed` does not fail, as
            // `self` holds the sender.
            tokio::select! {
                () = served => {}
                Ok(()) = own.changed() => {}
            }
        }
    }

    /// Answers by what the node knows; where there is a snapshot, only once the node knows all of
    /// which names are made.
    async fn take_over(&self) -> Infallible {
        let mut changes = self.options.view.changes();
        let mut waits = self.is_from_snapshot;
        loop {
            let known = Arc::clone(&changes.borrow_and_update());
            waits = waits && !is_whole(&known);
            if !waits {
                self.answered.take(known);
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Saves a snapshot soon after each change.
    async fn save_snapshots(&self) -> Infallible {
        let (mut changes, mut own) = (self.options.view.changes(), self.own.subscribe());
        let mut saved: Option<Snapshot> = None;
        let mut logged = false;
        loop {
            let now = Snapshot {
                known: Arc::clone(&changes.borrow_and_update()),
                own: own.borrow_and_update().clone(),
            };
            let differs =
                |saved: &Snapshot| saved.own != now.own || differ(&saved.known, &now.known);
            if is_whole(&now.known) && !now.own.is_empty() && saved.as_ref().is_none_or(differs) {
                saved = Some(now.clone());
                let (path, origin) = (self.options.snapshot.clone(), self.options.origin.clone());
                let save = move || now.save(&path, &origin);
                match tokio::task::spawn_blocking(save).await {
                    Ok(Ok(())) => logged = false,
                    Ok(Err(error)) => {
                        if !std::mem::replace(&mut logged, true) {
                            tracing::warn!(
                                path = %self.options.snapshot.display(),
                                error = chain(&error),
                                "cannot save the cluster's names for the next agent"
                            );
                        }
                    }
                    Err(error) => {
                        tracing::error!(error = chain(&error), "saving names panicked");
                    }
                }
                tokio::time::sleep(PAUSE).await;
            }
            // Cancel-safe: both only wait, and neither fails: `self` holds both senders.
            tokio::select! {
                Ok(()) = changes.changed() => {}
                Ok(()) = own.changed() => {}
            }
        }
    }
}

/// Whether all is known of which names are made.
fn is_whole(known: &Known) -> bool {
    known.whole().is_some() && known.namespaces.is_some()
}

/// Whether names may differ. Objects that stay are the same ones, so that this costs little.
fn differ(one: &Known, other: &Known) -> bool {
    one.services != other.services
        || one.slices != other.slices
        || one.namespaces != other.namespaces
}

#[cfg(test)]
#[path = "life_tests.rs"]
mod tests;
