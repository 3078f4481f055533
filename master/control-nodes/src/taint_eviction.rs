//! Taint eviction: deletes pods on nodes whose `NoExecute` taints they don't tolerate, or tolerate
//! only for a time.

use crate::disruption::{Disruption, EndingPod, disrupt};
use crate::followed::pods_and_nodes;
use config_kube::k8s_openapi::api::core::v1::{Pod, Taint};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use config_kube::taints::{NO_EXECUTE, NOT_READY, UNREACHABLE, tolerates};
use jiff::Timestamp;
use master_client::{ApiError, DeleteParams, Key, NewEvent, Severity, Store};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::node::NodeView;
use master_control::views::pod::PodView;
use master_control::writer::Writer;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a pod without tolerations stays on a node that is not ready or silent (upstream's
/// admission writes these tolerations into every pod; a pod without them is older).
const DEFAULT_TOLERATION: Duration = Duration::from_secs(300);

/// The controller. Its keys are pods. The time of a taint is written on the node, or is when the
/// pod was seen with it first: `kubectl taint` writes none.
#[derive(Debug)]
pub struct TaintEviction {
    pods: Store<PodView>,
    nodes: Store<NodeView>,
    /// Of pods whose nodes have taints without a time: UID, and when that was seen first.
    seen: Mutex<HashMap<Key, (String, Timestamp)>>,
    /// Of pods that are to be deleted after a time: UID, and when.
    waiting: Mutex<HashMap<Key, (String, Timestamp)>>,
}

/// A pod, and what the `NoExecute` taints of its node mean for it.
#[derive(Debug)]
pub struct Facts {
    key: Key,
    pod: Arc<PodView>,
    /// How long the pod may stay; none: for ever.
    left: Option<Duration>,
    /// Whether it was to be deleted when this was last asked.
    waited: bool,
}

/// An action on a pod.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Deletes it.
    Evict(Evict),
    /// Records an event that it stays after all.
    CancelEviction {
        /// The object's key.
        key: Key,
        /// Its UID.
        uid: String,
    },
}

/// The pod gets an event with the reason, and is deleted.
#[derive(Debug, PartialEq, Eq)]
pub struct Evict {
    /// The object's key.
    pub key: Key,
    /// Its UID.
    pub uid: String,
    /// The generation of its spec.
    pub generation: i64,
}

impl Controller for TaintEviction {
    const NAME: &'static str = "taint-eviction";
    const COMPONENT: &'static str = "taint-eviction-controller";
    const RIGHTS: &'static [Right] = &[
        right("", "pods", &["list", "watch", "delete"]),
        right("", "pods/status", &["patch"]),
        right("", "nodes", &["list", "watch"]),
        right("", "events", &["create", "patch"]),
    ];
    type Facts = Facts;
    type Action = Step;

    fn new(setup: &mut Setup<'_>) -> Self {
        let (pods, nodes) = pods_and_nodes(setup, no_execute_taints);
        Self {
            pods,
            nodes,
            seen: Mutex::default(),
            waiting: Mutex::default(),
        }
    }

    fn facts(&self, key: &Key, now: Now) -> Option<Facts> {
        let pod = self.pods.get(key);
        let node = pod
            .as_ref()
            .and_then(|pod| self.nodes.get(&Key::cluster(&pod.node)));
        let taints = node.as_deref().map(no_execute_taints).unwrap_or_default();
        let uid = pod.as_ref().map(|pod| pod.uid.as_str());
        let timeless = taints.iter().any(|taint| taint.time_added.is_none());
        let seen = self.seen(key, uid.filter(|_| timeless), now.wall);
        let stays = |pod: &PodView| stays(pod, (&taints, seen), now.wall);
        let living = pod.as_deref().filter(|pod| !is_over(pod));
        let (left, waited) = self.left(key, living, living.and_then(stays), now.wall);
        Some(Facts {
            key: key.clone(),
            pod: pod?,
            left,
            waited,
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Step> {
        let Facts {
            key,
            pod,
            left,
            waited,
        } = facts;
        let (key, uid) = (key.clone(), pod.uid.clone());
        match left {
            None if *waited => Plan::act(Step::CancelEviction { key, uid }),
            None => Plan::nothing(),
            Some(Duration::ZERO) => Plan::act(Step::Evict(Evict {
                key,
                uid,
                generation: pod.generation,
            })),
            Some(time) => Plan::wait(*time),
        }
    }

    async fn carry_out(&self, step: Step, writer: &Writer) -> Result<(), ApiError> {
        let pod = match step {
            Step::Evict(pod) => pod,
            Step::CancelEviction { key, uid } => {
                let message = format!("Cancelling deletion of Pod {key}");
                record_event(writer, &key, &uid, message).await;
                return Ok(());
            }
        };
        let disruption = Disruption {
            reason: "DeletionByTaintManager",
            message: "Taint manager: deleting due to NoExecute taint",
        };
        let ending = EndingPod {
            key: &pod.key,
            uid: &pod.uid,
            generation: pod.generation,
        };
        disrupt(writer, &ending, &disruption).await?;
        let message = format!("Marking for deletion Pod {}", pod.key);
        record_event(writer, &pod.key, &pod.uid, message).await;
        let params = DeleteParams::of(pod.uid);
        writer.delete::<Pod>(&pod.key, &params).await
    }
}

impl TaintEviction {
    /// When a pod was first seen with taints that have no time. Without a `uid` the pod is
    /// forgotten.
    fn seen(&self, key: &Key, uid: Option<&str>, now: Timestamp) -> Timestamp {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(uid) = uid else {
            seen.remove(key);
            return now;
        };
        match seen.get(key) {
            Some((known, since)) if known == uid => *since,
            Some(_) | None => {
                seen.insert(key.clone(), (uid.to_owned(), now));
                now
            }
        }
    }

    /// How long a living pod may stay that may stay so long by the taints of its node, and whether
    /// it was to be deleted after a time already. That time is not put off by a taint which takes
    /// the place of the first one: a node is not ready, and then unreachable (upstream).
    fn left(
        &self,
        key: &Key,
        living: Option<&PodView>,
        by_taints: Option<Duration>,
        now: Timestamp,
    ) -> (Option<Duration>, bool) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let before = waiting.remove(key);
        let Some(pod) = living else {
            return (None, false);
        };
        let before = before.filter(|(uid, _)| *uid == pod.uid);
        let before = before.map(|(_, until)| until);
        let Some(left) = by_taints else {
            return (None, before.is_some());
        };
        let until = now.checked_add(left).unwrap_or(Timestamp::MAX);
        let until = before.map_or(until, |before| before.min(until));
        if before.is_some() || !left.is_zero() {
            waiting.insert(key.clone(), (pod.uid.clone(), until));
        }
        let left = Duration::try_from(until.duration_since(now)).unwrap_or_default();
        (Some(left), before.is_some())
    }
}

/// Records an event with what this controller does to a pod.
async fn record_event(writer: &Writer, key: &Key, uid: &str, message: String) {
    let metadata = ObjectMeta {
        namespace: Some(key.namespace.clone()),
        name: Some(key.name.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectMeta::default()
    };
    let about = Pod {
        metadata,
        ..Pod::default()
    };
    let event = NewEvent {
        severity: Severity::Normal,
        reason: "TaintManagerEviction",
        action: "Evicting",
        message,
    };
    writer.recorder().record(&about, &event).await;
}

/// Whether a pod is deleted already, or has ended.
fn is_over(pod: &PodView) -> bool {
    pod.deleted.is_some() || pod.ended()
}

/// The `NoExecute` taints of a node.
fn no_execute_taints(node: &NodeView) -> Vec<Taint> {
    let taints = node.taints.iter();
    taints
        .filter(|taint| taint.effect == NO_EXECUTE)
        .cloned()
        .collect()
}

/// How long a pod may stay; `None`: for ever.
fn stays(pod: &PodView, taints: (&[Taint], Timestamp), now: Timestamp) -> Option<Duration> {
    let (taints, seen) = taints;
    let each = taints.iter();
    each.filter_map(|taint| stays_with(pod, taint, seen, now))
        .min()
}

fn stays_with(pod: &PodView, taint: &Taint, seen: Timestamp, now: Timestamp) -> Option<Duration> {
    let ours = taint.key == NOT_READY || taint.key == UNREACHABLE;
    let mut tolerations = pod.tolerations.iter();
    let allowed = match tolerations.find(|toleration| tolerates(toleration, taint)) {
        // Upstream: of those that tolerate a taint the first counts; without a time, for ever.
        Some(toleration) => {
            let seconds = toleration.toleration_seconds?;
            Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
        }
        None if ours && !pod.mirror => DEFAULT_TOLERATION,
        None => Duration::ZERO,
    };
    let since = taint.time_added.as_ref().map_or(seen, |time| time.0);
    // A pod that came to the taint has its time from then on.
    let came = pod.bound.or(pod.created);
    let since = came.map_or(since, |came| since.max(came));
    let passed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    Some(allowed.saturating_sub(passed))
}
