//! The name server over an agent's life: before the master answers, as an earlier agent left it.

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
    /// Who takes up snapshots, and leaves them.
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
    is_left: bool,
    /// Where it answers.
    own: watch::Sender<Vec<OwnAddress>>,
    machine: watch::Sender<Vec<IpAddr>>,
}

impl Names {
    /// The name server of a node, with what an earlier agent left of names. One that may not be
    /// used is logged, and names wait for the master.
    pub fn new(options: Options) -> Self {
        let left = Snapshot::left(&options.snapshot, &options.origin);
        let left = left.unwrap_or_else(|error| {
            tracing::warn!(
                path = %options.snapshot.display(),
                error = chain(&error),
                "cannot use the names that an earlier agent saved"
            );
            None
        });
        let answered = View::default();
        let is_left = left.is_some();
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
            is_left,
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

    /// Answers the machine's programs at these addresses, as they are at the time, until nobody
    /// tells them any more.
    pub async fn follow(&self, mut addresses: watch::Receiver<Vec<IpAddr>>) {
        loop {
            let now = addresses.borrow_and_update().clone();
            self.machine.send_replace(now);
            if addresses.changed().await.is_err() {
                return;
            }
        }
    }

    /// Serves until it is dropped, and leaves what the next agent needs for that.
    pub async fn run(&self) -> Infallible {
        tokio::select! {
            never = self.answer() => never,
            never = self.take_over() => never,
            never = self.leave() => never,
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
            // Cancel-safe: questions that are dropped are asked again. This holds the sender.
            tokio::select! {
                () = served => {}
                Ok(()) = own.changed() => {}
            }
        }
    }

    /// Answers by what the node knows, from when it knows all that an earlier agent did.
    async fn take_over(&self) -> Infallible {
        let mut changes = self.options.view.changes();
        let mut waits = self.is_left;
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

    /// Leaves what names are made of, soon after each change.
    async fn leave(&self) -> Infallible {
        let (mut changes, mut own) = (self.options.view.changes(), self.own.subscribe());
        let mut left: Option<Snapshot> = None;
        let mut logged = false;
        loop {
            let now = Snapshot {
                known: Arc::clone(&changes.borrow_and_update()),
                own: own.borrow_and_update().clone(),
            };
            let differs = |left: &Snapshot| left.own != now.own || differ(&left.known, &now.known);
            if is_whole(&now.known) && !now.own.is_empty() && left.as_ref().is_none_or(differs) {
                left = Some(now.clone());
                let (path, origin) = (self.options.snapshot.clone(), self.options.origin.clone());
                let leave = move || now.leave(&path, &origin);
                match tokio::task::spawn_blocking(leave).await {
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
            // Cancel-safe: both only wait. This holds the sender of one, and the view is there.
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
