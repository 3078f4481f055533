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

/// How long a pod without tolerations stays on a node that is not ready or unreachable. Admission
/// writes these tolerations into every pod, as upstream's does; only older pods have none.
const DEFAULT_TOLERATION: Duration = Duration::from_secs(300);

/// The controller. Its keys are pods. The time of a taint is its `timeAdded`, or else when a pod
/// was first seen with it: `kubectl taint` writes no time.
#[derive(Debug)]
pub struct TaintEviction {
    pods: Store<PodView>,
    nodes: Store<NodeView>,
    /// When pods were first seen on a node that has taints without a time.
    first_seen: Mutex<HashMap<Key, PodTime>>,
    /// When pods that may stay for a time are to be deleted.
    deadlines: Mutex<HashMap<Key, PodTime>>,
}

/// A remembered time of a pod.
#[derive(Debug)]
struct PodTime {
    /// The pod's UID: another pod may get the same name.
    uid: String,
    at: Timestamp,
}

/// A pod, and how long it may stay with the `NoExecute` taints of its node.
#[derive(Debug)]
pub struct Facts {
    key: Key,
    pod: Arc<PodView>,
    stay: Stay,
}

/// How long a pod may stay on its node.
#[derive(Debug)]
struct Stay {
    /// The remaining time; `None`: for ever.
    left: Option<Duration>,
    /// Whether the pod had a deadline before.
    had_deadline: bool,
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
            first_seen: Mutex::default(),
            deadlines: Mutex::default(),
        }
    }

    fn facts(&self, key: &Key, now: Now) -> Option<Facts> {
        let pod = self.pods.get(key);
        let node = pod
            .as_ref()
            .and_then(|pod| self.nodes.get(&Key::cluster(&pod.node)));
        let taints = node.as_deref().map(no_execute_taints).unwrap_or_default();
        let stay = self.note(key, pod.as_deref(), &taints, now.wall);
        Some(Facts {
            key: key.clone(),
            pod: pod?,
            stay,
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Step> {
        let Facts { key, pod, stay } = facts;
        let (key, uid) = (key.clone(), pod.uid.clone());
        match stay.left {
            None if stay.had_deadline => Plan::act(Step::CancelEviction { key, uid }),
            None => Plan::nothing(),
            Some(Duration::ZERO) => Plan::act(Step::Evict(Evict {
                key,
                uid,
                generation: pod.generation,
            })),
            Some(time) => Plan::wait(time),
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
    /// Notes when a pod was first seen with the taints of its node and when it is to be deleted,
    /// and returns how long it may stay. A pod that is gone is forgotten.
    fn note(&self, key: &Key, pod: Option<&PodView>, taints: &[Taint], now: Timestamp) -> Stay {
        let timeless = taints.iter().any(|taint| taint.time_added.is_none());
        let seen = self.note_first_seen(key, pod.filter(|_| timeless), now);
        let living = pod.filter(|pod| !is_over(pod));
        let by_taints = living.and_then(|pod| stays(pod, taints, seen, now));
        self.note_deadline(key, living, by_taints, now)
    }

    /// When a pod was first seen with taints that have no time: now, unless that was noted before.
    /// Without a `pod` the note is dropped.
    fn note_first_seen(&self, key: &Key, pod: Option<&PodView>, now: Timestamp) -> Timestamp {
        let seen = self.first_seen.lock();
        let mut seen = seen.unwrap_or_else(PoisonError::into_inner);
        let Some(pod) = pod else {
            seen.remove(key);
            return now;
        };
        match seen.get(key) {
            Some(known) if known.uid == pod.uid => known.at,
            Some(_) | None => {
                let uid = pod.uid.clone();
                seen.insert(key.clone(), PodTime { uid, at: now });
                now
            }
        }
    }

    /// Notes when a living pod is to be deleted, and returns how long it may stay. `by_taints` is
    /// how long the taints of its node let it stay; `None`: for ever. A taint that replaces another
    /// does not put a deadline off: a node may be not ready first, and then unreachable (upstream).
    fn note_deadline(
        &self,
        key: &Key,
        living: Option<&PodView>,
        by_taints: Option<Duration>,
        now: Timestamp,
    ) -> Stay {
        let deadlines = self.deadlines.lock();
        let mut deadlines = deadlines.unwrap_or_else(PoisonError::into_inner);
        let before = deadlines.remove(key);
        let Some(pod) = living else {
            return Stay {
                left: None,
                had_deadline: false,
            };
        };
        let before = before.filter(|known| known.uid == pod.uid);
        let before = before.map(|known| known.at);
        let Some(left) = by_taints else {
            return Stay {
                left: None,
                had_deadline: before.is_some(),
            };
        };
        let until = now.checked_add(left).unwrap_or(Timestamp::MAX);
        let until = before.map_or(until, |before| before.min(until));
        if before.is_some() || !left.is_zero() {
            let uid = pod.uid.clone();
            deadlines.insert(key.clone(), PodTime { uid, at: until });
        }
        let left = Duration::try_from(until.duration_since(now)).unwrap_or_default();
        Stay {
            left: Some(left),
            had_deadline: before.is_some(),
        }
    }
}

/// Records an event about this controller's action on a pod.
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

/// How long a pod may stay with these taints; `None`: for ever. `seen` is when it was first seen
/// with them, for those that have no time.
fn stays(pod: &PodView, taints: &[Taint], seen: Timestamp, now: Timestamp) -> Option<Duration> {
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
    // A pod that was bound after the taint was added has its time from then on.
    let came = pod.bound.or(pod.created);
    let since = came.map_or(since, |came| since.max(came));
    let passed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    Some(allowed.saturating_sub(passed))
}
