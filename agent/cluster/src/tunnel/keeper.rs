//! The task that keeps the kernel's WireGuard peers equal to the trusted nodes and their published
//! keys.

use super::Device;
use super::plan::{Members, Node, members};
use super::slots::{Clock, Memory, Plan, Renewal, delay, plan};
use crate::rules::TUNNELS;
use crate::{Error, Sandboxes};
use agent_proxy::{Known, Node as Seen, View};
use agent_sys::netlink::wireguard::Key;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::time::Instant;

/// Pause after the kernel refused a change.
const RETRY: Duration = Duration::from_secs(1);
/// How often the kernel's state is read even if no node has changed: sessions age, certificates
/// end, and keys that were refused may be valid by now.
const LOOK: Duration = Duration::from_secs(5);
/// Least time between two plans: it bounds the work that nodes can cause by publishing all the
/// time.
const PACE: Duration = Duration::from_millis(100);
/// Pause after packets were moved to the other link, so that those under way still arrive.
const UNDER_WAY: Duration = Duration::from_millis(500);

/// The signed texts of a node's annotations, not verified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Announced {
    /// Only the key of its first link, as older versions read and publish it.
    pub first: Option<String>,
    /// The keys of both links.
    pub both: Option<String>,
}

/// A node's keys, with the proof that it published them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proven {
    /// The keys of its links; an older version has no second one.
    pub keys: [Option<Key>; 2],
    /// Unix seconds at which the proof ends.
    pub not_after: u64,
}

/// Verifies the texts of the named node; the error says why they prove no key.
pub type Verify = dyn Fn(&str, &Announced) -> Result<Proven, String> + Send + Sync;

/// Keeps the tunnel to the other nodes.
pub struct Keeper {
    /// The node's sandboxes.
    pub sandboxes: Arc<Sandboxes>,
    /// The cluster's nodes.
    pub view: View,
    /// This node's name.
    pub own: String,
    /// Verifies the texts of other nodes.
    pub verify: Arc<Verify>,
    /// Time after which each of this node's two keys is renewed; the two renewals are half of it
    /// apart. `None` keeps the keys until the reboot.
    pub period: Option<Duration>,
    /// Receives this node's keys, to be published.
    pub keys: watch::Sender<Option<[Key; 2]>>,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper")
            .field("own", &self.own)
            .finish_non_exhaustive()
    }
}

/// The last verification of each node's texts, by node.
#[derive(Debug, Default)]
struct VerifiedKeys(BTreeMap<String, Verdict>);

/// The result of one verification.
#[derive(Debug)]
struct Verdict {
    of: Announced,
    /// When, in Unix seconds.
    at: u64,
    outcome: Result<Proven, String>,
}

impl Verdict {
    /// Whether the verification need not be repeated. Valid texts are verified once: they only
    /// expire, at `not_after`. Others are tried again after [`LOOK`], as there may be a new root.
    fn stands(&self, now: u64) -> bool {
        let again = self.at + LOOK.as_secs();
        self.outcome.is_ok() || (self.at..again).contains(&now)
    }
}

impl VerifiedKeys {
    /// The keys of a node that are valid at `now` (Unix seconds).
    fn keys(&mut self, name: &str, node: &Seen, verify: &Verify, now: u64) -> [Option<Key>; 2] {
        let (first, both) = (&node.tunnel, &node.tunnel_keys);
        if !node.trusted || (first, both) == (&None, &None) {
            self.0.remove(name);
            return [None; 2];
        }
        let known = self.0.get(name);
        let known = known.filter(|known| (&known.of.first, &known.of.both) == (first, both));
        if known.is_none_or(|known| !known.stands(now)) {
            let announced = Announced {
                first: first.clone(),
                both: both.clone(),
            };
            let outcome = verify(name, &announced);
            if let Err(error) = &outcome
                && known.is_none_or(|old| old.outcome != outcome)
            {
                tracing::warn!(
                    node = name,
                    error,
                    "a node's WireGuard keys are not accepted"
                );
            }
            let verdict = Verdict {
                of: announced,
                at: now,
                outcome,
            };
            self.0.insert(name.to_owned(), verdict);
        }
        let verdict = self.0.get(name);
        let proven = verdict.and_then(|verdict| verdict.outcome.as_ref().ok());
        let proven = proven.filter(|proven| now < proven.not_after);
        proven.map_or([None; 2], |proven| proven.keys)
    }

    /// The nodes with their keys that are valid at `now`; `None` before any node is known.
    fn nodes(&mut self, known: &Known, verify: &Verify, now: u64) -> Option<Vec<Node>> {
        let nodes = known.nodes.as_ref()?;
        self.0.retain(|name, _| nodes.contains_key(name));
        let read = |(name, node): (&String, &Arc<Seen>)| Node {
            name: name.clone(),
            addresses: node.addresses.clone(),
            ranges: node.ranges.clone(),
            keys: self.keys(name, node, verify, now),
        };
        Some(nodes.iter().map(read).collect())
    }
}

/// State between two steps.
#[derive(Debug, Default)]
struct State {
    device: Device,
    memory: Memory,
}

/// What was logged last, so that each change is logged once.
#[derive(Debug, Default)]
struct Logged {
    members: Members,
    waits: Option<String>,
    failure: Option<String>,
}

impl Keeper {
    /// Keeps the tunnel until it is dropped; to be started once the node has a pod CIDR.
    pub async fn run(self) {
        let mut changes = self.view.changes();
        let state = Arc::new(Mutex::new(State::default()));
        let mut verified = VerifiedKeys::default();
        let mut logged = Logged::default();
        // The nodes of the last plan, and when the kernel is read again even if none has changed.
        let (mut done, mut next): (Option<Vec<Node>>, Instant) = (None, Instant::now() + LOOK);
        loop {
            let known = Arc::clone(&changes.borrow_and_update());
            let nodes = verified.nodes(&known, &*self.verify, now());
            if let Some(nodes) = nodes
                && (done.as_ref() != Some(&nodes) || Instant::now() >= next)
            {
                // Members depend only on the nodes, not on the time.
                let members = if done.as_ref() == Some(&nodes) {
                    logged.members.clone()
                } else {
                    members(&self.own, &nodes)
                };
                let outcome = self.step(&state, members.clone()).await;
                let plan = outcome.as_ref().map(|(plan, _)| plan);
                let pause = logged.log(members, plan);
                done = outcome.is_ok().then_some(nodes);
                next = Instant::now() + pause;
                if let Ok((_, keys)) = outcome {
                    self.keys
                        .send_if_modified(|old| old.replace(keys) != Some(keys));
                }
                tokio::time::sleep(PACE).await;
            }
            // Cancel-safe: both arms only wait.
            tokio::select! {
                outcome = changes.changed() => if outcome.is_err() {
                    return;
                },
                () = tokio::time::sleep_until(next.max(Instant::now() + RETRY / 10)) => {}
            }
        }
    }

    /// Reads the kernel's state, plans, and carries out the plan.
    async fn step(
        &self,
        state: &Arc<Mutex<State>>,
        members: Members,
    ) -> Result<(Plan, [Key; 2]), String> {
        let (sandboxes, state) = (Arc::clone(&self.sandboxes), Arc::clone(state));
        let period = self.period.map(|period| period.as_secs());
        let clock = Clock {
            now: now(),
            period,
            delay: period.map_or(0, |period| delay(&self.own, period)),
        };
        let step = move || {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            let State { device, memory } = &mut *state;
            sandboxes.keep_tunnel(device, |seen| plan(&members, seen, clock, memory))
        };
        let outcome = tokio::task::spawn_blocking(step).await;
        outcome
            .map_err(|error| error.to_string())?
            .map_err(|error: Error| error.chain())
    }
}

impl Logged {
    /// Logs what is new; returns the pause until the next step.
    fn log(&mut self, members: Members, outcome: Result<&Plan, &String>) -> Duration {
        let plan = match outcome {
            Ok(plan) => plan,
            Err(error) => {
                if self.failure.as_ref() != Some(error) {
                    tracing::error!(error, "cannot set up WireGuard; trying again");
                    self.failure = Some(error.clone());
                }
                return RETRY;
            }
        };
        self.failure = None;
        if members.peers != self.members.peers {
            let (now, before) = (&members.peers, &self.members.peers);
            let new = now.keys().filter(|name| !before.contains_key(*name));
            let gone = before.keys().filter(|name| !now.contains_key(*name));
            let (peers, new, gone) = (now.len(), new.count(), gone.count());
            tracing::info!(peers, new, gone, "updated WireGuard peers");
        }
        for (node, reason) in &members.refused {
            if self.members.refused.get(node) != Some(reason) {
                tracing::warn!(
                    node,
                    reason,
                    "a node is no WireGuard peer; its pods are unreachable"
                );
            }
        }
        self.members = members;
        let waits = match &plan.renewal {
            Renewal::Waits(node) => Some(node.clone()),
            Renewal::Due(slot) => {
                tracing::info!(link = *slot.of(&TUNNELS), "renewed a WireGuard key");
                None
            }
            Renewal::NotDue => None,
        };
        if let Some(node) = waits
            .as_ref()
            .filter(|node| self.waits.as_ref() != Some(*node))
        {
            tracing::info!(
                node,
                "a WireGuard key is renewed once this node is reached by the other link"
            );
        }
        self.waits = waits;
        if plan.moving { UNDER_WAY } else { LOOK }
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
        let verify = |name: &str, announced: &Announced| {
            ASKED.fetch_add(1, Ordering::Relaxed);
            let proven = Proven {
                keys: [Some([7; 32]), None],
                not_after: 100,
            };
            (announced.first.as_deref() == Some("good") && name == "a")
                .then_some(proven)
                .ok_or_else(|| "no".to_owned())
        };
        let mut verified = VerifiedKeys::default();
        let mut key = |name: &str, node: &Seen, now| verified.keys(name, node, &verify, now)[0];
        assert_eq!(key("a", &seen(Some("good"), true), 99), Some([7; 32]));
        assert_eq!(key("a", &seen(Some("good"), true), 99), Some([7; 32]));
        assert_eq!(
            ASKED.load(Ordering::Relaxed),
            1,
            "a text that counts is verified once"
        );
        assert_eq!(
            key("a", &seen(Some("good"), true), 100),
            None,
            "it has ended"
        );
        assert_eq!(key("a", &seen(Some("bad"), true), 99), None, "another text");
        let asked = ASKED.load(Ordering::Relaxed);
        assert_eq!(key("a", &seen(Some("bad"), true), 103), None);
        assert_eq!(ASKED.load(Ordering::Relaxed), asked, "a bad one is, too");
        assert_eq!(key("a", &seen(Some("bad"), true), 104), None);
        let again = "for some seconds";
        assert_eq!(ASKED.load(Ordering::Relaxed), asked + 1, "{again}");
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
