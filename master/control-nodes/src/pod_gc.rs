//! Pod garbage collection: deletes pods that no kubelet will delete (their node is gone or out of
//! service, or they never had one), and surplus ended pods.

use crate::disruption::{Disruption, EndingPod, fail};
use crate::followed::pods_of_node;
use config_kube::k8s_openapi::api::core::v1::{Node, Pod};
use config_kube::taints::OUT_OF_SERVICE;
use jiff::Timestamp;
use master_client::{ApiError, DeleteParams, Delta, Key, Lookup, Store, View};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::node::NodeView;
use master_control::views::pod::{BY_NODE, PodView};
use master_control::writer::Writer;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many ended pods are kept for inspection (upstream's default).
const MAX_ENDED_PODS: usize = 12_500;
/// How long a node must be gone before its pods are deleted: it may register again (upstream: 40
/// s).
const QUARANTINE: Duration = Duration::from_secs(40);
/// How many ended pods beyond the limit are planned at one change.
const MAX_KEYS_PER_CHANGE: usize = 64;

/// Ended pods that are not being deleted, in the order of their deletion.
type Ended = Arc<Mutex<BTreeSet<(Rank, Key)>>>;

/// The order in which ended pods are deleted: first those that their kubelet evicted, then the
/// oldest.
type Rank = (bool, Option<Timestamp>);

/// Since when nodes to which pods are bound are gone.
type Gone = Arc<Mutex<HashMap<Arc<str>, Instant>>>;

/// The controller. Its keys are pods.
#[derive(Debug)]
pub struct PodGc {
    pods: Store<PodView>,
    on_node: Lookup<PodView>,
    nodes: Store<NodeView>,
    ended: Ended,
    gone: Gone,
}

/// A pod and the facts about its end.
#[derive(Debug)]
pub struct Facts {
    key: Key,
    pod: Arc<PodView>,
    /// For how long its node has been gone; `None` if it has no node or the node exists.
    orphaned: Option<Duration>,
    /// Whether its node is out of service.
    off: bool,
    /// Whether it is one of the ended pods beyond the limit.
    spare: bool,
}

/// Deletes the pod at once.
#[derive(Debug, PartialEq, Eq)]
pub struct Collect {
    /// The object's key.
    pub key: Key,
    /// Its UID.
    pub uid: String,
    /// The generation of its spec.
    pub generation: i64,
    /// The state of its node that must still be true, if any.
    pub if_node: Option<NodeState>,
    /// Whether it has not ended: its phase is set to `Failed` first, as no kubelet will report its
    /// end and its owner may wait for that.
    pub unended: bool,
}

/// The state of a node for which its pods are collected.
#[derive(Debug, PartialEq, Eq)]
pub enum NodeState {
    /// The node of this name is gone.
    Gone(String),
    /// It is out of service.
    Off(String),
}

impl Controller for PodGc {
    const NAME: &'static str = "pod-gc";
    const RIGHTS: &'static [Right] = &[
        right("", "pods", &["list", "watch", "delete"]),
        right("", "pods/status", &["patch"]),
        right("", "nodes", &["get", "list", "watch"]),
    ];
    type Facts = Facts;
    type Action = Collect;

    fn new(setup: &mut Setup<'_>) -> Self {
        let ended = Ended::default();
        let followed = Arc::clone(&ended);
        let pods: Store<PodView> = setup.follow(move |delta, keys| {
            keys.push((*delta.key).clone());
            keys.extend(count_ended(&followed, delta));
        });
        let on_node = pods.index(&BY_NODE);
        let gone = Gone::default();
        let (known, concerned) = (Arc::clone(&gone), pods_of_node(on_node.clone(), is_off));
        let nodes = setup.follow(move |delta: &Delta<NodeView>, keys| {
            if delta.after.is_some() {
                // At each change: the node may be gone again before any of its pods is planned.
                let mut gone = known.lock().unwrap_or_else(PoisonError::into_inner);
                gone.remove(&*delta.key.name);
            }
            concerned(delta, keys);
        });
        Self {
            pods,
            on_node,
            nodes,
            ended,
            gone,
        }
    }

    fn facts(&self, key: &Key, now: Now) -> Option<Facts> {
        let pod = self.pods.get(key)?;
        let node = self.nodes.get(&Key::cluster(&pod.node));
        let orphaned = self.orphaned(&pod, node.is_some(), now.instant);
        Some(Facts {
            key: key.clone(),
            orphaned,
            off: node.is_some_and(|node| is_off(&node)),
            spare: pod.ended() && self.is_spare(key, &pod),
            pod,
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Collect> {
        let pod = &facts.pod;
        let collect = |if_node| Collect {
            key: facts.key.clone(),
            uid: pod.uid.clone(),
            generation: pod.generation,
            if_node,
            unended: !pod.ended(),
        };
        if let Some(time) = facts.orphaned {
            let left = QUARANTINE.saturating_sub(time);
            return if left.is_zero() {
                Plan::act(collect(Some(NodeState::Gone(pod.node.to_string()))))
            } else {
                Plan::wait(left)
            };
        }
        let leaves = pod.deleted.is_some();
        if facts.spare || leaves && pod.node.is_empty() {
            return Plan::act(collect(None));
        }
        let off = (leaves && facts.off).then(|| NodeState::Off(pod.node.to_string()));
        off.map(|off| collect(Some(off))).into()
    }

    async fn carry_out(&self, pod: Collect, writer: &Writer) -> Result<(), ApiError> {
        if let Some(state) = &pod.if_node
            && !state.holds(writer).await?
        {
            return Ok(());
        }
        if pod.unended {
            let disruption = Disruption {
                reason: "DeletionByPodGC",
                message: "PodGC: node no longer exists",
            };
            let is_gone = matches!(pod.if_node, Some(NodeState::Gone(_)));
            let disruption = is_gone.then_some(&disruption);
            let ending = EndingPod {
                key: &pod.key,
                uid: &pod.uid,
                generation: pod.generation,
            };
            fail(writer, &ending, disruption).await?;
        }
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::of(pod.uid)
        };
        writer.delete::<Pod>(&pod.key, &params).await
    }
}

impl NodeState {
    /// Whether it is still so, read from the API: a node may have come back, and its pods run
    /// again.
    async fn holds(&self, writer: &Writer) -> Result<bool, ApiError> {
        let (Self::Gone(name) | Self::Off(name)) = self;
        let node = writer.client().get_opt::<Node>(None, name).await?;
        Ok(match self {
            Self::Gone(_) => node.is_none(),
            Self::Off(_) => node.is_some_and(|node| is_off(&NodeView::read(node))),
        })
    }
}

impl PodGc {
    /// For how long a pod's node has been gone. A node is forgotten once it comes back or has no
    /// pods.
    fn orphaned(&self, pod: &PodView, there: bool, now: Instant) -> Option<Duration> {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        if pod.node.is_empty() || there {
            gone.remove(&pod.node);
            return None;
        }
        if !gone.contains_key(&pod.node) {
            gone.retain(|node, _| self.on_node.count(node) > 0);
        }
        let since = *gone.entry(Arc::clone(&pod.node)).or_insert(now);
        Some(now.saturating_duration_since(since))
    }

    fn is_spare(&self, key: &Key, pod: &PodView) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = ended.len().saturating_sub(MAX_ENDED_PODS);
        let last = spare.checked_sub(1).and_then(|last| ended.iter().nth(last));
        pod.deleted.is_none() && last.is_some_and(|last| (rank(pod), key) <= (last.0, &last.1))
    }
}

fn rank(pod: &PodView) -> Rank {
    (!pod.evicted, pod.created)
}

/// Updates the set of ended pods; returns the first of those beyond the limit.
fn count_ended(ended: &Ended, delta: &Delta<PodView>) -> Vec<Key> {
    let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
    let counts = |pod: &PodView| pod.ended() && pod.deleted.is_none();
    if let Some(before) = delta.before.as_deref().filter(|pod| counts(pod)) {
        ended.remove(&(rank(before), (*delta.key).clone()));
    }
    if let Some(after) = delta.after.as_deref().filter(|pod| counts(pod)) {
        ended.insert((rank(after), (*delta.key).clone()));
    }
    let spare = ended
        .len()
        .saturating_sub(MAX_ENDED_PODS)
        .min(MAX_KEYS_PER_CHANGE);
    ended
        .iter()
        .take(spare)
        .map(|(_, key)| key.clone())
        .collect()
}

fn is_off(node: &NodeView) -> bool {
    let marked = node.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE);
    marked && node.status("Ready") != "True"
}
