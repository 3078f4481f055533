//! Follows nodes, their keys and their trust into the kernel's tunnel.

use super::Device;
use super::plan::{Node, Plan, plan};
use crate::{Error, Sandboxes};
use agent_proxy::{Known, Node as Seen, View};
use agent_sys::netlink::wireguard::Key;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// Pause after the kernel refused.
const RETRY: Duration = Duration::from_secs(1);
/// How often it is looked whether a certificate has ended, and whether one that did not count does now.
const LOOK: Duration = Duration::from_secs(10);

/// A key that a node has proved to have published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proven {
    /// The key.
    pub key: Key,
    /// Unix seconds at which the proof ends.
    pub not_after: u64,
}

/// Judges what the named node published; else why it proves nothing.
pub type Verify = dyn Fn(&str, &str) -> Result<Proven, String> + Send + Sync;

/// Keeps the tunnel.
pub struct Keeper {
    /// The node's sandboxes.
    pub sandboxes: Arc<Sandboxes>,
    /// What is known of the nodes.
    pub view: View,
    /// This node's name.
    pub own: String,
    /// Judges what other nodes published.
    pub verify: Arc<Verify>,
    /// Told this node's key, to publish it.
    pub key: watch::Sender<Option<Key>>,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper")
            .field("own", &self.own)
            .finish_non_exhaustive()
    }
}

/// What was judged: by node, the text and its verdict.
#[derive(Debug, Default)]
struct Judged(BTreeMap<String, (String, Result<Proven, String>)>);

impl Judged {
    /// The key of a node that counts at `now`. A text that counted is not judged again, since time takes only its end from it.
    fn key(&mut self, name: &str, node: &Seen, verify: &Verify, now: u64) -> Option<Key> {
        let Some(text) = node.tunnel.as_ref().filter(|_| node.trusted) else {
            self.0.remove(name);
            return None;
        };
        let known = self.0.get(name).filter(|(old, _)| old == text);
        if known.is_none_or(|(_, verdict)| verdict.is_err()) {
            let verdict = verify(name, text);
            if let Err(reason) = &verdict
                && known.is_none_or(|(_, old)| *old != verdict)
            {
                tracing::warn!(
                    node = name,
                    reason,
                    "a node's WireGuard key is not accepted"
                );
            }
            self.0.insert(name.to_owned(), (text.clone(), verdict));
        }
        let (_, verdict) = self.0.get(name)?;
        let proven = verdict.as_ref().ok()?;
        (now < proven.not_after).then_some(proven.key)
    }

    /// The nodes with the keys that count at `now`; none before they are known.
    fn nodes(&mut self, known: &Known, verify: &Verify, now: u64) -> Option<Vec<Node>> {
        let nodes = known.nodes.as_ref()?;
        self.0.retain(|name, _| nodes.contains_key(name));
        let read = |(name, node): (&String, &Arc<Seen>)| Node {
            name: name.clone(),
            addresses: node.addresses.clone(),
            ranges: node.ranges.clone(),
            key: self.key(name, node, verify, now),
        };
        Some(nodes.iter().map(read).collect())
    }
}

impl Keeper {
    /// Keeps the tunnel, for ever; to be begun once the node has a range of pod addresses.
    pub async fn run(self) {
        let mut changes = self.view.changes();
        let device = Arc::new(Mutex::new(Device::default()));
        let mut judged = Judged::default();
        let (mut done, mut told): (Option<Plan>, String) = (None, String::new());
        loop {
            let known = Arc::clone(&changes.borrow_and_update());
            let nodes = judged.nodes(&known, &*self.verify, now());
            let planned = nodes.map(|nodes| plan(&self.own, &nodes));
            let planned = planned.filter(|planned| done.as_ref() != Some(planned));
            let mut pause = LOOK;
            if let Some(planned) = planned {
                match self.put(&device, &planned).await {
                    Ok(key) => {
                        tell(done.as_ref(), &planned);
                        (done, told) = (Some(planned), String::new());
                        self.key
                            .send_if_modified(|old| old.replace(key) != Some(key));
                    }
                    Err(reason) => {
                        pause = RETRY;
                        if told != reason {
                            tracing::error!(reason, "cannot set up WireGuard; trying again");
                            told = reason;
                        }
                    }
                }
            }
            // Cancel-safe: both arms only wait.
            tokio::select! {
                outcome = changes.changed() => if outcome.is_err() {
                    return;
                },
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn put(&self, device: &Arc<Mutex<Device>>, planned: &Plan) -> Result<Key, String> {
        let sandboxes = Arc::clone(&self.sandboxes);
        let (device, planned) = (Arc::clone(device), planned.clone());
        let put = move || {
            let mut device = device.lock().unwrap_or_else(PoisonError::into_inner);
            sandboxes.give_tunnel(&mut device, &planned)
        };
        let outcome = tokio::task::spawn_blocking(put).await;
        outcome
            .map_err(|error| error.to_string())?
            .map_err(|error: Error| error.chain())
    }
}

/// Logs added and removed peers, and the nodes that were rejected.
fn tell(before: Option<&Plan>, planned: &Plan) {
    let had = |key: &Key| before.is_some_and(|before| before.peers.contains_key(key));
    let new = planned.peers.keys().filter(|key| !had(key)).count();
    let gone = before.map_or(0, |before| {
        let gone = |key: &&Key| !planned.peers.contains_key(*key);
        before.peers.keys().filter(gone).count()
    });
    let peers = planned.peers.len();
    tracing::info!(peers, new, gone, "updated WireGuard peers");
    for (node, reason) in &planned.refused {
        if before.is_none_or(|before| before.refused.get(node) != Some(reason)) {
            tracing::warn!(
                node,
                reason,
                "a node is no WireGuard peer; its pods are unreachable"
            );
        }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn seen(tunnel: Option<&str>, trusted: bool) -> Seen {
        Seen {
            trusted,
            tunnel: tunnel.map(str::to_owned),
            ..Seen::default()
        }
    }

    #[test]
    fn a_key_counts_while_its_machine_is_trusted_and_its_proof_lives() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let verify = |name: &str, text: &str| {
            ASKED.fetch_add(1, Ordering::Relaxed);
            let proven = Proven {
                key: [7; 32],
                not_after: 100,
            };
            (text == "good" && name == "a")
                .then_some(proven)
                .ok_or_else(|| "no".to_owned())
        };
        let mut judged = Judged::default();
        let mut key = |name: &str, node: &Seen, now| judged.key(name, node, &verify, now);
        assert_eq!(key("a", &seen(Some("good"), true), 99), Some([7; 32]));
        assert_eq!(key("a", &seen(Some("good"), true), 99), Some([7; 32]));
        assert_eq!(
            ASKED.load(Ordering::Relaxed),
            1,
            "a text that counts is judged once"
        );
        assert_eq!(
            key("a", &seen(Some("good"), true), 100),
            None,
            "it has ended"
        );
        assert_eq!(key("a", &seen(Some("bad"), true), 99), None, "another text");
        assert_eq!(key("a", &seen(Some("good"), false), 99), None, "no trust");
        assert_eq!(key("a", &seen(None, true), 99), None, "nothing published");
        assert_eq!(
            key("b", &seen(Some("good"), true), 99),
            None,
            "another's text"
        );
        assert_eq!(key("a", &seen(Some("good"), true), 99), Some([7; 32]));
    }
}
