//! Node lifecycle: a node whose kubelet is silent becomes `Unknown`, and what is wrong with a node shows as taints.
//!
//! Silence is measured by the master's own monotonic clock from the last *change* of lease or heartbeat that was seen, so
//! that a node's wrong clock neither hides nor causes it, and a master that starts gives everybody the whole time.

use crate::driver::{Controller, Now, Plan};
use crate::observe::{Kind, NodeFacts, Observed};
use crate::write::Write;
use config_kube::k8s_openapi::api::core::v1::{NodeCondition, Taint};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use config_kube::taints::{
    NO_EXECUTE, NO_SCHEDULE, NOT_READY, PRESSURES, UNREACHABLE, UNSCHEDULABLE, UNTRUSTED,
};
use jiff::Timestamp;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Silence after which a node is not ready: four leases of ten seconds missed.
pub(crate) const GRACE: Duration = Duration::from_secs(40);
/// Time for a new node's kubelet to speak at all (upstream: 60 s).
const STARTUP_GRACE: Duration = Duration::from_secs(60);
/// Between two nodes that are emptied of pods (upstream: 0.1 a second): time to notice that the fault is the master's.
const EVICTION_PACE: Duration = Duration::from_secs(10);
/// The same in a large cluster of which most is silent (upstream: 0.01 a second).
const DISRUPTED_PACE: Duration = Duration::from_secs(100);
/// Nodes of a large cluster (upstream).
const LARGE: usize = 50;
/// What the kubelet reports and nobody knows any more once it is silent.
const REPORTED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The last sign of life of a node.
#[derive(Debug, Clone, PartialEq)]
struct Sign {
    lease: Option<Timestamp>,
    heartbeat: Option<Timestamp>,
    seen: Instant,
}

/// The controller's memory.
#[derive(Debug)]
pub(crate) struct NodeLifecycle {
    grace: Duration,
    signs: HashMap<String, Sign>,
    last_emptied: Option<Instant>,
}

impl Controller for NodeLifecycle {
    fn name(&self) -> &'static str {
        "node-lifecycle"
    }

    fn follows(&self) -> &'static [Kind] {
        &[Kind::Node, Kind::Lease, Kind::Pod]
    }

    fn plan(&mut self, observed: &Observed, now: Now) -> Plan {
        self.signs
            .retain(|name, _| observed.nodes.contains_key(name));
        let mut plan = Plan::default();
        for (name, node) in &observed.nodes {
            let lease = observed.leases.get(name).copied().flatten();
            let silence = self.silence(name, node, lease, now.instant);
            let grace = if node.condition("Ready").is_some() {
                self.grace
            } else {
                self.grace.max(STARTUP_GRACE)
            };
            if silence < grace {
                plan.again_in(grace.saturating_sub(silence));
            } else {
                plan.writes.extend(silent(name, node, lease, now.wall));
            }
            let unheard = node
                .condition("Ready")
                .is_some_and(|ready| ready.status == "Unknown");
            // An Untrusted machine's kubelet is not heard either: what it last said of its pods is nothing to route by.
            if unheard || has(node, UNTRUSTED, NO_EXECUTE) {
                let stale = observed.pods_on(name).filter(|(_, pod)| pod.ready);
                let stale = stale.map(|(key, pod)| Write::PodNotReady {
                    key: key.clone(),
                    uid: pod.uid.clone(),
                });
                plan.writes.extend(stale);
            }
        }
        self.taint(observed, now, &mut plan);
        plan
    }
}

impl NodeLifecycle {
    /// A controller that gives nodes this much silence.
    pub(crate) fn new(grace: Duration) -> Self {
        Self {
            grace,
            signs: HashMap::new(),
            last_emptied: None,
        }
    }

    /// How long nothing was heard of a node.
    fn silence(
        &mut self,
        name: &str,
        node: &NodeFacts,
        lease: Option<Timestamp>,
        now: Instant,
    ) -> Duration {
        let ready = node.condition("Ready");
        let heartbeat = ready
            .and_then(|ready| ready.last_heartbeat_time.as_ref())
            .map(|time| time.0);
        match self.signs.get_mut(name) {
            Some(sign) if (sign.lease, sign.heartbeat) == (lease, heartbeat) => {
                return now.saturating_duration_since(sign.seen);
            }
            Some(sign) => {
                *sign = Sign {
                    lease,
                    heartbeat,
                    seen: now,
                }
            }
            None => drop(self.signs.insert(
                name.to_owned(),
                Sign {
                    lease,
                    heartbeat,
                    seen: now,
                },
            )),
        }
        Duration::ZERO
    }

    /// Taints by what is known of each node; those that empty a node of pods one after another.
    fn taint(&mut self, observed: &Observed, now: Now, plan: &mut Plan) {
        let pace = pace(observed);
        for (name, node) in &observed.nodes {
            let key = match node.status("Ready") {
                "True" => None,
                "Unknown" if node.condition("Ready").is_some() => Some(UNREACHABLE),
                _ => Some(NOT_READY),
            };
            let empty_already = key.is_some_and(|key| has(node, key, NO_EXECUTE));
            let due = match (key, pace) {
                (None, _) | (_, Pace::Never) => false,
                (Some(_), Pace::Halt) => empty_already,
                (Some(_), Pace::Every(pace)) => {
                    let next = self.last_emptied.map_or(now.instant, |last| last + pace);
                    let wait = next.saturating_duration_since(now.instant);
                    if !empty_already && !wait.is_zero() {
                        plan.again_in(wait);
                    }
                    empty_already || wait.is_zero()
                }
            };
            let wanted = wanted(node, key, due, now.wall);
            if wanted != node.taints {
                if due && !empty_already {
                    self.last_emptied = Some(now.instant);
                }
                plan.writes.push(Write::NodeTaints {
                    node: name.clone(),
                    version: node.version.clone(),
                    taints: wanted,
                });
            }
        }
    }
}

/// How fast nodes may be emptied of pods (upstream: full and partial disruption).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// One in this time.
    Every(Duration),
    /// No more than those that are being emptied: too many fail at once.
    Halt,
    /// Not even these: it is likelier that the master is cut off than that all nodes fail.
    Never,
}

fn pace(observed: &Observed) -> Pace {
    let all = observed.nodes.len();
    let ready = observed
        .nodes
        .values()
        .filter(|node| node.status("Ready") == "True")
        .count();
    let bad = all - ready;
    let most = bad > 2 && bad * 100 >= all * 55;
    match (ready, most) {
        (0, _) => Pace::Never,
        (_, false) => Pace::Every(EVICTION_PACE),
        (_, true) if all > LARGE => Pace::Every(DISRUPTED_PACE),
        (_, true) => Pace::Halt,
    }
}

fn has(node: &NodeFacts, key: &str, effect: &str) -> bool {
    node.taints
        .iter()
        .any(|taint| taint.key == key && taint.effect == effect)
}

/// The taints that a node should have: other people's as they are, ours by its condition.
fn wanted(node: &NodeFacts, bad: Option<&str>, empty: bool, now: Timestamp) -> Vec<Taint> {
    let pressures = PRESSURES
        .iter()
        .filter(|(kind, _)| node.status(kind) == "True" && node.condition(kind).is_some());
    let mut ours: Vec<(&str, &str)> = pressures.map(|(_, key)| (*key, NO_SCHEDULE)).collect();
    if node.cordoned {
        ours.push((UNSCHEDULABLE, NO_SCHEDULE));
    }
    if let Some(key) = bad {
        ours.push((key, NO_SCHEDULE));
        if empty {
            ours.push((key, NO_EXECUTE));
        }
    }
    let managed = |taint: &Taint| {
        let no_schedule = taint.effect == NO_SCHEDULE
            && (PRESSURES.iter().any(|(_, key)| *key == taint.key) || taint.key == UNSCHEDULABLE);
        no_schedule || taint.key == NOT_READY || taint.key == UNREACHABLE
    };
    let stays = |taint: &&Taint| {
        !managed(taint) || ours.contains(&(taint.key.as_str(), taint.effect.as_str()))
    };
    let mut taints: Vec<Taint> = node.taints.iter().filter(stays).cloned().collect();
    let missing = ours.iter().filter(|(key, effect)| !has(node, key, effect));
    taints.extend(missing.map(|(key, effect)| Taint {
        key: (*key).to_owned(),
        effect: (*effect).to_owned(),
        value: None,
        time_added: Some(Time(now)),
    }));
    taints
}

/// The write that says that a node is silent, if it doesn't say so yet.
fn silent(name: &str, node: &NodeFacts, lease: Option<Timestamp>, now: Timestamp) -> Option<Write> {
    let known = |kind: &str| {
        node.condition(kind)
            .is_none_or(|condition| condition.status != "Unknown")
    };
    let condition = |kind: &str| {
        let before = node.condition(kind);
        let (reason, message) = match before {
            Some(_) => ("NodeStatusUnknown", "Kubelet stopped posting node status."),
            None => (
                "NodeStatusNeverUpdated",
                "Kubelet never posted node status.",
            ),
        };
        NodeCondition {
            type_: kind.to_owned(),
            status: "Unknown".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_heartbeat_time: before
                .and_then(|before| before.last_heartbeat_time.clone())
                .or(node.created.map(Time)),
            last_transition_time: Some(Time(now)),
        }
    };
    let conditions: Vec<NodeCondition> = REPORTED
        .iter()
        .filter(|kind| known(kind))
        .map(|kind| condition(kind))
        .collect();
    let tell = node.status("Ready") != "Unknown" || node.condition("Ready").is_none();
    (!conditions.is_empty()).then(|| Write::NodeSilent {
        node: name.to_owned(),
        uid: node.uid.clone(),
        version: node.version.clone(),
        lease,
        conditions,
        tell,
    })
}
