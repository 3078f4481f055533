//! Node lifecycle: a node whose kubelet is silent becomes `Unknown`, and a node's bad conditions
//! become taints.
//!
//! Silence is measured by the master's monotonic clock from the last *change* of the lease or
//! heartbeat that was seen. So a node's wrong clock neither hides nor causes it, and after a start
//! of the master every node has the full grace period.

use config_kube::identity::NODE_LEASE_NAMESPACE;
use config_kube::k8s_openapi::api::coordination::v1::Lease;
use config_kube::k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use config_kube::taints::{
    NO_EXECUTE, NO_SCHEDULE, NOT_READY, PRESSURES, UNREACHABLE, UNSCHEDULABLE,
};
use jiff::{SignedDuration, Timestamp};
use master_client::{ApiError, Delta, Key, Lookup, NewEvent, Patch, Scope, Severity, Store, View};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::node::{
    BY_READY, BY_ZONE, BY_ZONE_READY, NodeView, counted, zone_ready,
};
use master_control::writer::Writer;
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for a new node's kubelet to report at all (upstream: 60 s).
const STARTUP_GRACE: Duration = Duration::from_secs(60);
/// Nodes older than this get no event `RegisteredNode`: they were registered before this process
/// started.
const MAX_REGISTRATION_AGE: SignedDuration = SignedDuration::from_mins(1);
/// Time between the evictions of two nodes of a zone (upstream: 0.1 a second), so that few are
/// evicted if the fault is the master's.
const EVICTION_INTERVAL: Duration = Duration::from_secs(10);
/// The same in a large zone in which most nodes are silent (upstream: 0.01 a second).
const DISRUPTED_EVICTION_INTERVAL: Duration = Duration::from_secs(100);
/// A zone with more nodes is large (upstream: `large-cluster-size-threshold`).
const LARGE_ZONE_THRESHOLD: usize = 50;
/// The conditions that the kubelet reports, which become unknown once it is silent.
const KUBELET_CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The lease that a kubelet renews.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseView {
    /// When it was renewed last.
    pub renewed: Option<Timestamp>,
}

impl View for LeaseView {
    type Object = Lease;

    fn scope() -> Scope {
        Scope {
            namespace: Some(NODE_LEASE_NAMESPACE),
            fields: None,
        }
    }

    fn read(lease: Lease) -> Self {
        Self {
            renewed: renewed(&lease),
        }
    }
}

fn renewed(lease: &Lease) -> Option<Timestamp> {
    let time = lease.spec.as_ref()?.renew_time.as_ref();
    time.map(|time| time.0)
}

/// The last sign of life of a node.
#[derive(Debug)]
struct LastSeen {
    lease: Option<Timestamp>,
    heartbeat: Option<Timestamp>,
    seen: Instant,
}

/// The memory of the controller.
#[derive(Debug, Default)]
struct Memory {
    /// The UIDs of nodes by their names.
    known: HashMap<String, String>,
    last_seen: HashMap<String, LastSeen>,
    /// When the last node of each zone was evicted.
    last_evicted: HashMap<Arc<str>, Instant>,
}

/// The controller. Its keys are nodes.
#[derive(Debug)]
pub struct NodeLifecycle {
    grace: Duration,
    nodes: Store<NodeView>,
    zones: Zones,
    leases: Store<LeaseView>,
    memory: Mutex<Memory>,
}

/// A Node that exists, or one that was deleted.
#[derive(Debug)]
pub enum Facts {
    /// The Node exists.
    Present(Present),
    /// The Node existed before.
    Gone(Identity),
}

/// A node's name and UID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// A node, how long it has been silent, and whether its pods may be evicted.
#[derive(Debug)]
pub struct Present {
    name: String,
    /// Whether to record the event `RegisteredNode`.
    is_new: bool,
    node: Arc<NodeView>,
    lease: Option<Timestamp>,
    silence: Duration,
    grace: Duration,
    eviction: Eviction,
}

/// Whether the pods of a node that is not ready may be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Eviction {
    /// They may be evicted, or are being evicted.
    Allowed,
    /// Not before this time has passed: another node of the zone is evicted first.
    After(Duration),
    /// They stay.
    NotAllowed,
}

/// A write to a node.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// Records the event `RegisteredNode`.
    Registered(Identity),
    /// Records the event `RemovingNode`.
    Removed(Identity),
    /// It was silent for too long: sets these conditions to `Unknown`.
    Silent(Box<Silent>),
    /// Sets its taints.
    Taints {
        /// The node.
        node: String,
        /// Its resource version: not written if it changed.
        version: String,
        /// All its taints.
        taints: Vec<Taint>,
    },
}

/// A node that was silent for too long.
#[derive(Debug, PartialEq)]
pub struct Silent {
    /// The node.
    pub node: String,
    /// Its UID.
    pub uid: String,
    /// Its resource version: not written if it changed.
    pub version: String,
    /// The lease's renew time that was seen: not written if there is a newer one.
    pub lease: Option<Timestamp>,
    /// The conditions.
    pub conditions: Vec<NodeCondition>,
    /// Whether to record an event.
    pub record_event: bool,
}

impl Controller for NodeLifecycle {
    const NAME: &'static str = "node-lifecycle";
    const COMPONENT: &'static str = "node-controller";
    const RIGHTS: &'static [Right] = &[
        right("", "nodes", &["list", "watch", "patch"]),
        right("", "nodes/status", &["patch"]),
        right("coordination.k8s.io", "leases", &["get", "list", "watch"]),
        right("", "events", &["create", "patch"]),
    ];
    type Facts = Facts;
    type Action = Action;

    fn new(setup: &mut Setup<'_>) -> Self {
        let zones = Zones::of(&setup.read());
        let (seen, last) = (zones.clone(), Mutex::default());
        let nodes = setup.follow(move |delta: &Delta<NodeView>, keys| {
            keys.push((*delta.key).clone());
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            keys.extend(seen.concerned(delta, &mut last));
        });
        Self {
            grace: setup.options().node_grace,
            nodes,
            zones,
            leases: setup.follow(|delta, keys| keys.push(Key::cluster(&delta.key.name))),
            memory: Mutex::default(),
        }
    }

    fn facts(&self, key: &Key, now: Now) -> Option<Facts> {
        let name = key.name.clone();
        let Some(node) = self.nodes.get(key) else {
            let mut memory = self.memory();
            memory.last_seen.remove(&name);
            let uid = memory.known.remove(&name)?;
            return Some(Facts::Gone(Identity { name, uid }));
        };
        let lease = self.leases.get(&Key::new(NODE_LEASE_NAMESPACE, &name));
        let lease = lease.and_then(|lease| lease.renewed);
        let grace = if node.condition("Ready").is_some() {
            self.grace
        } else {
            self.grace.max(STARTUP_GRACE)
        };
        let mut memory = self.memory();
        let silence = silence(&mut memory.last_seen, &name, &node, lease, now.instant);
        // A node that is yet to be marked silent is not evicted yet.
        let eviction = if silence < grace || node.is_unreachable() {
            self.eviction(&mut memory, &node, now.instant)
        } else {
            Eviction::NotAllowed
        };
        let known = memory.known.insert(name.clone(), node.uid.clone());
        drop(memory);
        let age = node.created.map(|created| now.wall.duration_since(created));
        let is_young = age.is_some_and(|age| age < MAX_REGISTRATION_AGE);
        Some(Facts::Present(Present {
            is_new: is_young && known.as_ref() != Some(&node.uid),
            name,
            node,
            lease,
            silence,
            grace,
            eviction,
        }))
    }

    fn plan(facts: &Facts, now: Now) -> Plan<Action> {
        let facts = match facts {
            Facts::Gone(node) => return Plan::act(Action::Removed(node.clone())),
            Facts::Present(present) => present,
        };
        let mut plan = Plan::nothing();
        if facts.is_new {
            plan.actions.push(Action::Registered(Identity {
                name: facts.name.clone(),
                uid: facts.node.uid.clone(),
            }));
        }
        if facts.silence < facts.grace {
            plan.requeue_in(facts.grace.saturating_sub(facts.silence));
        } else if let Some(silent) = silent(facts, now.wall) {
            // The taints follow from these conditions, in the next plan.
            return Plan::act(Action::Silent(Box::new(silent)));
        }
        let node = &facts.node;
        if let Eviction::After(time) = facts.eviction {
            plan.requeue_in(time);
        }
        let evict = facts.eviction == Eviction::Allowed;
        let taints = wanted(node, not_ready_taint(node), evict, now.wall);
        if taints != node.taints {
            plan.actions.push(Action::Taints {
                node: facts.name.clone(),
                version: node.version.clone(),
                taints,
            });
        }
        plan
    }

    async fn carry_out(&self, action: Action, writer: &Writer) -> Result<(), ApiError> {
        match action {
            Action::Registered(node) => {
                let text = format!("Registered Node {} in Controller", node.name);
                record(writer, &node, "RegisteredNode", "Registering", &text).await;
                Ok(())
            }
            Action::Removed(node) => {
                let text = format!("Removing Node {} from Controller", node.name);
                record(writer, &node, "RemovingNode", "Removing", &text).await;
                Ok(())
            }
            Action::Silent(silent) => write_silent(writer, &silent).await,
            Action::Taints {
                node,
                version,
                taints,
            } => {
                let patch =
                    json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
                let (key, patch) = (Key::cluster(&node), Patch::Merge(patch));
                writer.patch::<Node>(&key, &patch).await.map(drop)
            }
        }
    }
}

impl NodeLifecycle {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a node's pods may be evicted: the nodes of a zone are evicted one after another.
    /// Notes the time if they may.
    fn eviction(&self, memory: &mut Memory, node: &NodeView, now: Instant) -> Eviction {
        if not_ready_taint(node).is_none() {
            return Eviction::NotAllowed;
        }
        // Either taint: one takes the place of the other at once (upstream), as the pods would get
        // their whole time anew if there were none in between.
        let mut taints = [NOT_READY, UNREACHABLE].into_iter();
        let already = taints.any(|key| node.has_taint(key, NO_EXECUTE));
        match self.zones.pace(&node.zone) {
            Pace::Halt | Pace::Every(_) if already => Eviction::Allowed,
            Pace::Halt | Pace::Never => Eviction::NotAllowed,
            Pace::Every(pace) => {
                let last = memory.last_evicted.get(&node.zone);
                let next = last.map_or(now, |last| *last + pace);
                let wait = next.saturating_duration_since(now);
                if wait.is_zero() {
                    let zones = &mut memory.last_evicted;
                    zones.retain(|zone, _| self.zones.has(zone));
                    zones.insert(Arc::clone(&node.zone), now);
                    Eviction::Allowed
                } else {
                    Eviction::After(wait)
                }
            }
        }
    }
}

/// How long a node has been silent.
fn silence(
    last_seen: &mut HashMap<String, LastSeen>,
    name: &str,
    node: &NodeView,
    lease: Option<Timestamp>,
    now: Instant,
) -> Duration {
    let ready = node.condition("Ready");
    let heartbeat = ready
        .and_then(|ready| ready.last_heartbeat_time.as_ref())
        .map(|time| time.0);
    if let Some(last) = last_seen.get(name)
        && (last.lease, last.heartbeat) == (lease, heartbeat)
    {
        return now.saturating_duration_since(last.seen);
    }
    let last = LastSeen {
        lease,
        heartbeat,
        seen: now,
    };
    last_seen.insert(name.to_owned(), last);
    Duration::ZERO
}

/// The taint of a node that is not ready.
fn not_ready_taint(node: &NodeView) -> Option<&'static str> {
    match node.status("Ready") {
        "True" => None,
        _ if node.is_unreachable() => Some(UNREACHABLE),
        _ => Some(NOT_READY),
    }
}

/// How fast the nodes of a zone may be evicted (upstream: full and partial disruption). Nodes with
/// the label `node.kubernetes.io/exclude-disruption` are not counted, but evicted as others are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// One node in this time.
    Every(Duration),
    /// No further nodes: too many fail at once.
    Halt,
    /// No nodes, and evictions end: the master is more likely cut off than all nodes failed.
    Never,
}

/// Ready nodes per zone.
#[derive(Debug, Clone)]
struct Zones {
    health: Lookup<NodeView>,
    members: Lookup<NodeView>,
    parts: Lookup<NodeView>,
}

/// The states of the zones for which nodes were last queued.
#[derive(Debug, Default)]
struct ZoneStates {
    none_ready: bool,
    paces: HashMap<Arc<str>, Pace>,
}

impl Zones {
    fn of(nodes: &Store<NodeView>) -> Self {
        Self {
            health: nodes.index(&BY_READY),
            members: nodes.index(&BY_ZONE),
            parts: nodes.index(&BY_ZONE_READY),
        }
    }

    fn has(&self, zone: &str) -> bool {
        self.members.count(zone) > 0
    }

    fn none_ready(&self) -> bool {
        self.health.count(&counted("True")) == 0
    }

    fn pace(&self, zone: &str) -> Pace {
        let all = self.members.count(&counted(zone));
        let ready = self.parts.count(&counted(&zone_ready(zone, "True")));
        let bad = all.saturating_sub(ready);
        // If all nodes of a zone fail, its power did, as long as other zones are ready.
        let most = ready > 0 && bad > 2 && bad * 100 >= all * 55;
        if self.none_ready() {
            Pace::Never
        } else if !most {
            Pace::Every(EVICTION_INTERVAL)
        } else if all > LARGE_ZONE_THRESHOLD {
            Pace::Every(DISRUPTED_EVICTION_INTERVAL)
        } else {
            Pace::Halt
        }
    }

    /// The nodes that are not ready, in each zone whose pace this change of a node changes.
    fn concerned(&self, delta: &Delta<NodeView>, queued: &mut ZoneStates) -> Vec<Key> {
        let none_ready = self.none_ready();
        let bad = ["False", "Unknown"];
        let mut keys = Vec::new();
        if std::mem::replace(&mut queued.none_ready, none_ready) != none_ready {
            keys.extend(bad.iter().flat_map(|status| self.health.keys(status)));
        }
        for node in [&delta.before, &delta.after].into_iter().flatten() {
            let (zone, pace) = (&node.zone, self.pace(&node.zone));
            let before = if self.has(zone) {
                queued.paces.insert(Arc::clone(zone), pace)
            } else {
                queued.paces.remove(zone)
            };
            if before != Some(pace) {
                let bad = bad.iter().map(|status| zone_ready(zone, status));
                keys.extend(bad.flat_map(|value| self.parts.keys(&value)));
            }
        }
        keys.sort();
        keys.dedup();
        keys.iter().map(|key| (**key).clone()).collect()
    }
}

/// The taints that a node should have: this controller's by its conditions, all others unchanged.
fn wanted(node: &NodeView, bad: Option<&str>, evict: bool, now: Timestamp) -> Vec<Taint> {
    let pressures = PRESSURES
        .iter()
        .filter(|(kind, _)| node.status(kind) == "True" && node.condition(kind).is_some());
    let mut ours: Vec<(&str, &str)> = pressures.map(|(_, key)| (*key, NO_SCHEDULE)).collect();
    if node.cordoned {
        ours.push((UNSCHEDULABLE, NO_SCHEDULE));
    }
    if let Some(key) = bad {
        ours.push((key, NO_SCHEDULE));
        if evict {
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
    let missing = ours
        .iter()
        .filter(|(key, effect)| !node.has_taint(key, effect));
    taints.extend(missing.map(|(key, effect)| Taint {
        key: (*key).to_owned(),
        effect: (*effect).to_owned(),
        value: None,
        time_added: Some(Time(now)),
    }));
    taints
}

/// Records an event about a Node that was registered or removed.
async fn record(writer: &Writer, node: &Identity, reason: &str, action: &str, text: &str) {
    let event = NewEvent {
        severity: Severity::Normal,
        reason,
        action,
        message: format!("Node {} event: {text}", node.name),
    };
    writer.recorder().record(&about(node), &event).await;
}

/// A reference to a node, for events.
fn about(node: &Identity) -> Node {
    let metadata = ObjectMeta {
        name: Some(node.name.clone()),
        uid: Some(node.uid.clone()),
        ..ObjectMeta::default()
    };
    Node {
        metadata,
        ..Node::default()
    }
}

/// The conditions that mark a node as silent, if it is not marked yet.
fn silent(facts: &Present, now: Timestamp) -> Option<Silent> {
    let node = &facts.node;
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
    let conditions: Vec<NodeCondition> = KUBELET_CONDITIONS
        .iter()
        .filter(|kind| known(kind))
        .map(|kind| condition(kind))
        .collect();
    (!conditions.is_empty()).then(|| Silent {
        node: facts.name.clone(),
        uid: node.uid.clone(),
        version: node.version.clone(),
        lease: facts.lease,
        conditions,
        record_event: !node.is_unreachable(),
    })
}

/// Marks a node as silent, after a last read of its lease from the API.
async fn write_silent(writer: &Writer, silent: &Silent) -> Result<(), ApiError> {
    let name = silent.node.as_str();
    let lease: Option<Lease> = writer
        .client()
        .get_opt(Some(NODE_LEASE_NAMESPACE), name)
        .await?;
    if lease.as_ref().and_then(renewed) != silent.lease {
        return Ok(());
    }
    let patch = json!({
        "metadata": {"resourceVersion": silent.version}, "status": {"conditions": silent.conditions},
    });
    let key = Key::cluster(name);
    let patch = Patch::Strategic(patch);
    writer.patch_status::<Node>(&key, &patch).await?;
    tracing::warn!(
        node = name,
        "no Lease renewal within the grace period; marked the node NotReady"
    );
    if silent.record_event {
        let about = about(&Identity {
            name: name.to_owned(),
            uid: silent.uid.clone(),
        });
        let event = NewEvent {
            severity: Severity::Normal,
            reason: "NodeNotReady",
            action: "MarkingNotReady",
            message: format!("Node {name} status is now: NodeNotReady"),
        };
        writer.recorder().record(&about, &event).await;
    }
    Ok(())
}
