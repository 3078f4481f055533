//! The CSI drivers that are registered on this machine: those with a socket in the registration
//! folder that identify themselves as a kind that the node supports.
//!
//! The folder is read every second. Pods can write to it, so at most [`MAX_NAMES`] names are read,
//! and a plugin that hangs or answers nonsense is asked again after growing pauses. A driver whose
//! socket disappears is no longer registered.

use crate::driver::{Driver, fits, identify, notify, registration};
use crate::paths::{DriverOptions, REGISTRATION};
use agent_api::{Api, get};
use agent_sys::beneath::{Beneath, Links};
use config_errors::chain;
use config_kube::k8s_openapi::api::core::v1::Node;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Between two looks at the folder.
const PERIOD: Duration = Duration::from_secs(1);
/// Most names in the folder that are looked at, and so most drivers.
const MAX_NAMES: usize = 64;
/// Pauses before a plugin that was refused is asked again: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

/// Device and inode number of a socket.
type Id = (u64, u64);

/// The drivers that are registered, by name.
#[derive(Debug)]
pub(crate) struct Registry {
    options: DriverOptions,
    api: Arc<dyn Api>,
    drivers: RwLock<BTreeMap<String, Known>>,
    /// Drivers came or went.
    pub(crate) changed: Notify,
}

/// A registered driver and the name of the socket by which it registered.
#[derive(Debug, Clone)]
struct Known {
    driver: Arc<Driver>,
    socket: String,
}

/// A socket that was seen.
#[derive(Debug)]
struct SeenSocket {
    id: Id,
    /// When the plugin is asked again; `None` while it is being asked, and once it is registered.
    again: Option<Instant>,
    pause: Duration,
}

/// The outcome of a plugin's registration.
struct Attempt {
    socket: String,
    id: Id,
    outcome: Result<(), String>,
}

impl Registry {
    pub(crate) fn new(options: DriverOptions, api: Arc<dyn Api>) -> Self {
        Self {
            options,
            api,
            drivers: RwLock::default(),
            changed: Notify::new(),
        }
    }

    /// A registered driver by its name.
    pub(crate) fn driver(&self, name: &str) -> Option<Arc<Driver>> {
        let drivers = self.drivers.read().unwrap_or_else(PoisonError::into_inner);
        drivers.get(name).map(|known| known.driver.clone())
    }

    /// All registered drivers.
    pub(crate) fn all(&self) -> Vec<Arc<Driver>> {
        let drivers = self.drivers.read().unwrap_or_else(PoisonError::into_inner);
        drivers.values().map(|known| known.driver.clone()).collect()
    }

    /// Looks for plugins until it is dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut seen: BTreeMap<String, SeenSocket> = BTreeMap::new();
        let mut attempts: JoinSet<Attempt> = JoinSet::new();
        loop {
            self.look(&mut seen, &mut attempts);
            tokio::select! {
                // Cancel-safe: a set's join loses nothing when dropped, and the folder is read anew
                // in the next turn.
                Some(done) = attempts.join_next(), if !attempts.is_empty() => {
                    if let Ok(done) = done {
                        self.note(&mut seen, done);
                    }
                }
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
    }

    /// Compares the folder with the known sockets; identifies plugins that are new, or due again.
    fn look(
        self: &Arc<Self>,
        seen: &mut BTreeMap<String, SeenSocket>,
        attempts: &mut JoinSet<Attempt>,
    ) {
        let there = sockets(&self.options.data);
        seen.retain(|socket, known| {
            let stays = there.get(socket) == Some(&known.id);
            if !stays {
                self.forget(socket);
            }
            stays
        });
        for (socket, id) in there {
            let known = seen.entry(socket.clone()).or_insert(SeenSocket {
                id,
                again: Some(Instant::now()),
                pause: FIRST_PAUSE,
            });
            if known.again.is_some_and(|at| at <= Instant::now()) {
                known.again = None;
                let registry = self.clone();
                attempts.spawn(async move {
                    let outcome = registry.try_to_register(&socket).await;
                    Attempt {
                        socket,
                        id,
                        outcome,
                    }
                });
            }
        }
    }

    fn note(&self, seen: &mut BTreeMap<String, SeenSocket>, done: Attempt) {
        let Attempt {
            socket,
            id,
            outcome,
        } = done;
        let Some(known) = seen.get_mut(&socket).filter(|known| known.id == id) else {
            // The socket went meanwhile; another one of its name is registered on its own.
            if outcome.is_ok() && !seen.contains_key(&socket) {
                self.forget(&socket);
            }
            return;
        };
        match outcome {
            Ok(()) => tracing::info!(socket, "CSI driver registered"),
            Err(error) => {
                tracing::warn!(socket, error, "CSI driver not registered");
                known.again = Some(Instant::now() + known.pause);
                known.pause = (known.pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// Registers a plugin, and reports the result to it.
    async fn try_to_register(&self, socket: &str) -> Result<(), String> {
        let at = registration(&self.options.data, socket);
        let outcome = match identify(&at, self.options.call_limit).await {
            Ok(driver) => self.register(socket, driver).await,
            Err(reason) => Err(reason),
        };
        let fault = outcome.as_ref().err().map(String::as_str);
        if let Err(error) = notify(&at, fault).await {
            tracing::debug!(
                socket,
                error = chain(&error),
                "cannot report the registration's result to the plugin"
            );
        }
        outcome
    }

    async fn register(&self, socket: &str, driver: Driver) -> Result<(), String> {
        if !driver.topology.is_empty() {
            let path = format!("/api/v1/nodes/{}", self.options.node);
            let node: Node = get(&*self.api, path).await.map_err(|error| error.chain())?;
            fits(&driver.topology, &node)?;
        }
        let mut drivers = self.drivers.write().unwrap_or_else(PoisonError::into_inner);
        let other = drivers
            .get(&driver.name)
            .filter(|known| known.socket != socket);
        if let Some(other) = other {
            return Err(format!(
                "{} is registered already, by {}",
                driver.name, other.socket
            ));
        }
        let known = Known {
            driver: Arc::new(driver),
            socket: socket.to_owned(),
        };
        drivers.insert(known.driver.name.clone(), known);
        drop(drivers);
        self.changed.notify_one();
        Ok(())
    }

    /// The driver that registered by a socket is gone.
    fn forget(&self, socket: &str) {
        let mut drivers = self.drivers.write().unwrap_or_else(PoisonError::into_inner);
        let before = drivers.len();
        drivers.retain(|_, known| known.socket != socket);
        if drivers.len() < before {
            tracing::info!(socket, "CSI driver is gone");
            self.changed.notify_one();
        }
    }
}

/// The sockets in the registration's folder, by name. Links are none.
fn sockets(data: &Path) -> BTreeMap<String, Id> {
    let folder = Beneath::root(data).and_then(|data| data.dir(Path::new(REGISTRATION)));
    let Ok(folder) = folder else {
        return BTreeMap::new();
    };
    let names = folder.names(MAX_NAMES).unwrap_or_default();
    let found = names.into_iter().filter_map(|name| {
        let place = folder.handle(Path::new(&name), Links::Refused).ok()?;
        let name = name.into_string().ok()?;
        place.is_socket().then(|| (name, place.id()))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_sockets_of_the_folder_itself_count() {
        let dir = tempfile::tempdir().unwrap();
        assert!(sockets(dir.path()).is_empty());
        let folder = dir.path().join(REGISTRATION);
        std::fs::create_dir(&folder).unwrap();
        let _own = UnixListener::bind(folder.join("a.sock")).unwrap();
        let _other = UnixListener::bind(dir.path().join("b.sock")).unwrap();
        std::os::unix::fs::symlink("../b.sock", folder.join("link.sock")).unwrap();
        std::fs::write(folder.join("file.sock"), "").unwrap();
        let names: Vec<String> = sockets(dir.path()).into_keys().collect();
        assert_eq!(names, ["a.sock"]);
    }
}
