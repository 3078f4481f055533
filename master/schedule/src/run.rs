//! The loop: follows pods and nodes, decides, writes.

mod storage;

use crate::choose::{choose, choose_on};
use crate::event::{Event, Held};
use crate::key::PodKey;
use crate::node::NodeInfo;
use crate::plugins::Plugins;
use crate::preempt::{Budget, Budgets, NoPreemption, Preemption, preempt};
use crate::profile::Profile;
use crate::queue::{Queue, Waiting};
use crate::request::{Demand, PodRequest};
use crate::snapshot::Snapshot;
use crate::storage::Bindings;
use crate::terms::Labels;
use crate::words::Unschedulable;
use config_kube::k8s_openapi::api::core::v1::{Binding, Namespace, Node, ObjectReference, Pod};
use config_kube::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use master_client::{
    ApiError, Change, Client, DeleteParams, Follower, Happening, ListParams, Patch, Recent,
    Recorder, Severity,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

/// Settings of the loop.
#[derive(Debug, Clone)]
pub struct Options {
    /// Concurrent writes (binds, conditions).
    pub in_flight: usize,
    /// The profiles, each with a name of its own. Pods that name none of them are another scheduler's.
    pub profiles: Vec<Arc<Profile>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            in_flight: 64,
            profiles: vec![Profile::usual()],
        }
    }
}

/// Schedules until `shutdown` resolves, and then drops writes in progress: each is a single request
/// that was executed or was not.
pub async fn run(client: Client, options: Options, shutdown: impl Future<Output = ()> + Send) {
    let (demands, profiles) = (Recent::default(), options.profiles.clone());
    let read = move |pod: Pod| Seen::of(&pod, &profiles, &demands);
    let mut pods = Follower::reading(client.clone(), None, ListParams::default(), read);
    let mut nodes = Follower::reading(client.clone(), None, ListParams::default(), |node: Node| {
        NodeInfo::of(&node)
    });
    let mut namespaces = Follower::reading(
        client.clone(),
        None,
        ListParams::default(),
        |one: Namespace| {
            let labels = one.metadata.labels.unwrap_or_default();
            (one.metadata.name.unwrap_or_default(), labels)
        },
    );
    let mut budgets = Follower::reading(
        client.clone(),
        None,
        ListParams::default(),
        |budget: PodDisruptionBudget| Budget::of(&budget),
    );
    let mut claims = storage::follow(&client);
    let mut volumes = storage::follow(&client);
    let mut classes = storage::follow(&client);
    let mut limits = storage::follow(&client);
    let mut scheduler = Scheduler::new(client);
    let mut writes: FuturesUnordered<BoxFuture<'static, Outcome>> = FuturesUnordered::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let wake = scheduler.queue.wake(Instant::now());
        let sleep = tokio::time::sleep_until(wake.unwrap_or_else(far).into());
        let ready = scheduler.ready() && writes.len() < options.in_flight;
        // All arms are cancel-safe: followers and streams keep what they have not returned, the
        // others hold nothing.
        tokio::select! {
            () = &mut shutdown => return,
            change = nodes.next() => scheduler.node_changed(change),
            change = budgets.next() => scheduler.budget_changed(change),
            change = claims.next() => scheduler.claim_changed(change),
            change = volumes.next() => scheduler.volume_changed(change),
            change = classes.next() => scheduler.class_changed(change),
            change = limits.next() => scheduler.limits_changed(change),
            change = namespaces.next() => scheduler.namespace_changed(change),
            change = pods.next() => scheduler.pod_changed(change),
            Some(outcome) = writes.next() => scheduler.written(outcome),
            () = sleep => {}
            () = std::future::ready(()), if ready => writes.extend(scheduler.step()),
        }
        if scheduler.overflowed && scheduler.queue.is_empty() {
            scheduler.overflowed = false;
            pods.relist();
        }
    }
}

/// The scheduler's view of a pod.
struct Seen {
    key: PodKey,
    state: State,
}

/// The scheduling state of a pod.
enum State {
    /// It has ended and uses nothing.
    Ended,
    /// It is on a node.
    On(String, Box<PodRequest>),
    /// It waits for a node; the one on which others end for it (`status.nominatedNodeName`).
    Waits(Box<PodRequest>, Option<String>),
    /// It has no node, and this scheduler must not place it (yet); its UID.
    NotOurs(String),
}

impl Seen {
    fn of(pod: &Pod, profiles: &[Arc<Profile>], demands: &Recent<Demand>) -> Self {
        Self {
            key: PodKey::of(pod),
            state: State::of(pod, profiles, demands),
        }
    }
}

impl State {
    fn of(pod: &Pod, profiles: &[Arc<Profile>], demands: &Recent<Demand>) -> Self {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return Self::Ended;
        }
        let mut request = PodRequest::of(pod);
        request.demand = demands.one(request.demand);
        let spec = pod.spec.as_ref();
        if let Some(node) = spec
            .and_then(|spec| spec.node_name.as_deref())
            .filter(|name| !name.is_empty())
        {
            return Self::On(node.to_owned(), Box::new(request.settled()));
        }
        let asked = spec.and_then(|spec| spec.scheduler_name.as_deref());
        let asked = asked.filter(|name| !name.is_empty()).unwrap_or(crate::NAME);
        let profile = profiles.iter().find(|profile| profile.name == asked);
        let gated = spec
            .and_then(|spec| spec.scheduling_gates.as_ref())
            .is_some_and(|gates| !gates.is_empty());
        let leaving = pod.metadata.deletion_timestamp.is_some();
        let Some(profile) = profile.filter(|_| !gated && !leaving) else {
            return Self::NotOurs(request.uid);
        };
        request.profile = Arc::clone(profile);
        let status = pod.status.as_ref();
        let nominated = status.and_then(|status| status.nominated_node_name.clone());
        let nominated = nominated.filter(|name| !name.is_empty());
        Self::Waits(Box::new(request), nominated)
    }
}

fn far() -> Instant {
    Instant::now() + std::time::Duration::from_secs(3600)
}

/// The result of a write.
enum Outcome {
    /// A bind was answered.
    Bind {
        key: PodKey,
        uid: String,
        result: Result<(), ApiError>,
    },
    /// A pod's condition was written.
    ConditionWritten,
    /// What a claim needs to get its volume was written, or not.
    Claimed {
        result: Result<(), ApiError>,
        bindings: Bindings,
    },
}

/// What is followed, and must be listed completely before decisions are made.
const FOLLOWED: [&str; 8] = [
    "pods",
    "nodes",
    "namespaces",
    "budgets",
    "claims",
    "volumes",
    "classes",
    "limits",
];

struct Scheduler {
    client: Client,
    /// By the names of the profiles that pods have named.
    recorders: BTreeMap<String, Arc<Recorder>>,
    snapshot: Snapshot,
    budgets: Budgets,
    queue: Queue,
    /// What has been listed, of [`FOLLOWED`].
    listed: BTreeSet<&'static str>,
    overflowed: bool,
}

impl Scheduler {
    fn new(client: Client) -> Self {
        Self {
            client,
            recorders: BTreeMap::new(),
            snapshot: Snapshot::default(),
            budgets: Budgets::new(),
            queue: Queue::default(),
            listed: BTreeSet::new(),
            overflowed: false,
        }
    }

    /// The one in whose name events of a pod are written: its profile's.
    fn recorder(&mut self, pod: &PodRequest) -> Arc<Recorder> {
        let name = &pod.profile.name;
        if let Some(known) = self.recorders.get(name) {
            return Arc::clone(known);
        }
        let recorder = Arc::new(Recorder::new(self.client.clone(), name.clone()));
        self.recorders.insert(name.clone(), Arc::clone(&recorder));
        recorder
    }

    /// Whether decisions can be made: only once all that is followed is listed completely.
    fn ready(&self) -> bool {
        self.listed.len() == FOLLOWED.len() && self.queue.is_ready()
    }

    /// Wakes the pods that an event helps.
    fn wake(&mut self, event: &Event) {
        let snapshot = &self.snapshot;
        let hearing = Plugins::hearing(event.kind());
        self.queue
            .cluster_changed(Instant::now(), hearing, |pod, refusing| {
                refusing.wake(pod, event, snapshot)
            });
    }

    fn budget_changed(&mut self, change: Change<Budget>) {
        match change {
            Change::Listed(all) => {
                let all = all.into_iter().map(|budget| (budget.key.clone(), budget));
                self.budgets = all.collect();
                self.listed.insert("budgets");
            }
            Change::Set(budget) => drop(self.budgets.insert(budget.key.clone(), budget)),
            Change::Deleted(gone) => drop(self.budgets.remove(&PodKey::from(gone.key))),
        }
    }

    fn namespace_changed(&mut self, change: Change<(String, Labels)>) {
        let changed = match change {
            Change::Listed(all) => {
                let names: BTreeSet<String> = all.iter().map(|(name, _)| name.clone()).collect();
                self.snapshot.retain_namespaces(|name| names.contains(name));
                for (name, labels) in all {
                    self.snapshot.set_namespace(name, labels);
                }
                self.listed.insert("namespaces");
                true
            }
            Change::Set((name, labels)) => self.snapshot.set_namespace(name, labels),
            Change::Deleted(gone) => {
                self.snapshot.remove_namespace(&gone.key.name);
                false
            }
        };
        if changed {
            self.wake(&Event::Namespace);
        }
    }

    fn node_changed(&mut self, change: Change<NodeInfo>) {
        match change {
            Change::Listed(nodes) => {
                let names: BTreeSet<_> = nodes.iter().map(NodeInfo::name).collect();
                let gone: Vec<_> = self
                    .snapshot
                    .nodes()
                    .filter(|name| !names.contains(*name))
                    .map(str::to_owned)
                    .collect();
                for name in &gone {
                    self.snapshot.remove_node(name);
                }
                for node in nodes {
                    self.snapshot.set_node(node);
                }
                self.listed.insert("nodes");
                self.wake(&Event::Anything);
            }
            Change::Set(node) => {
                if self.snapshot.set_node(node.clone()) {
                    self.wake(&Event::Node(node));
                }
            }
            Change::Deleted(gone) => self.snapshot.remove_node(&gone.key.name),
        }
    }

    fn pod_changed(&mut self, change: Change<Seen>) {
        let event = match change {
            Change::Listed(pods) => {
                let keys: BTreeSet<PodKey> = pods.iter().map(|pod| pod.key.clone()).collect();
                let gone = self
                    .snapshot
                    .settled()
                    .into_iter()
                    .filter(|key| !keys.contains(key));
                for key in gone {
                    self.snapshot.remove(&key);
                }
                self.queue.retain(&keys);
                self.snapshot.retain_reserved(|key| keys.contains(key));
                for pod in pods {
                    self.pod_set(pod);
                }
                self.listed.insert("pods");
                Some(Event::Anything)
            }
            Change::Set(pod) => self.pod_set(pod),
            Change::Deleted(gone) => self.pod_gone(&PodKey::from(gone.key)),
        };
        if let Some(event) = event {
            self.wake(&event);
        }
    }

    fn pod_gone(&mut self, key: &PodKey) -> Option<Event> {
        self.queue.remove(key);
        self.snapshot.release(key);
        self.snapshot.remove(key).map(Event::Left)
    }

    /// Applies a pod; returns what may help others.
    fn pod_set(&mut self, pod: Seen) -> Option<Event> {
        let Seen { key, state } = pod;
        match state {
            State::Ended => return self.pod_gone(&key),
            State::On(node, request) => {
                self.queue.remove(&key);
                self.snapshot.release(&key);
                let held = Held(Arc::clone(&request.demand));
                if self.snapshot.place(*request, &node) {
                    return Some(Event::Placed(held));
                }
            }
            State::NotOurs(uid) if !self.snapshot.holds(&key, &uid) => {
                self.queue.remove(&key);
                self.snapshot.release(&key);
            }
            State::Waits(request, nominated) if !self.snapshot.holds(&key, &request.uid) => {
                self.nominated(&request, nominated.as_deref());
                if !self.queue.push(*request, Instant::now()) && !self.overflowed {
                    self.overflowed = true;
                    let waiting = self.queue.len();
                    tracing::warn!(
                        waiting,
                        "the queue is full: further pods are added as these are placed"
                    );
                }
            }
            // It is about to appear on the node where it was assumed.
            State::NotOurs(_) | State::Waits(..) => {}
        }
        None
    }

    /// Keeps the place again on which others end for a pod that is new here: this process may have begun after they were asked to.
    /// From then on its own decisions count.
    fn nominated(&mut self, request: &PodRequest, node: Option<&str>) {
        if !self.queue.knows(&request.key, &request.uid) {
            self.snapshot.release(&request.key);
            if let Some(node) = node {
                self.snapshot.reserve(request.clone(), node);
            }
        }
    }

    /// Decides for the next pod and returns the write that follows.
    fn step(&mut self) -> Option<BoxFuture<'static, Outcome>> {
        let (waiting, seen) = self.queue.take()?;
        let now = Instant::now();
        let kept = self.snapshot.reserved_for(&waiting.request.key);
        let reserved = self.snapshot.take_reserved(&waiting.request);
        let there = kept.and_then(|node| choose_on(&waiting.request, &self.snapshot, node));
        let decision = there.map_or_else(|| choose(&waiting.request, &self.snapshot), Ok);
        self.snapshot.restore_reserved(reserved);
        match decision {
            Ok(placement) => {
                if let Some(bindings) = self.snapshot.bindings(&waiting.request, &placement.node) {
                    return self.claim(&waiting, &placement.node, bindings, seen);
                }
                tracing::debug!(
                    pod = %waiting.request.key, node = placement.node, feasible = placement.feasible,
                    waited_ms = waiting.age(now).as_millis(), "binding"
                );
                self.snapshot.release(&waiting.request.key);
                placement.assume(waiting.request.clone(), &mut self.snapshot);
                // The API shows it there later, which is no news then.
                self.wake(&Event::Placed(Held(Arc::clone(&waiting.request.demand))));
                Some(self.bind(waiting, placement.node))
            }
            Err(why) => {
                let refusing = why.refusing();
                let preemption = self.preempt(&waiting.request, &why);
                let lost_place =
                    kept.is_some() && self.snapshot.reserved_for(&waiting.request.key).is_none();
                self.queue
                    .unschedulable(&waiting.request.key, refusing, seen, now);
                Some(self.report(waiting, &why, preemption, lost_place))
            }
        }
    }

    /// The pods that are to end for one that fits nowhere; none where their end cannot help.
    fn preempt(
        &mut self,
        pod: &PodRequest,
        why: &Unschedulable,
    ) -> Option<Result<Preemption, NoPreemption>> {
        match why {
            Unschedulable::NotYet(_) | Unschedulable::NoNodes => return None,
            Unschedulable::Nowhere { .. } if !pod.may_preempt => {
                return Some(Err(NoPreemption::Never));
            }
            Unschedulable::Nowhere { nodes, .. } => {
                let (nodes, helpless) = (*nodes, *nodes);
                return Some(Err(NoPreemption::Nowhere { nodes, helpless }));
            }
            Unschedulable::NoneFits { .. } => {}
        }
        if let Some(node) = self.snapshot.release(&pod.key)
            && self.snapshot.awaits_ends(&node, pod.priority)
        {
            self.snapshot.reserve(pod.clone(), &node);
            return Some(Err(NoPreemption::Waits));
        }
        let reserved = self.snapshot.take_reserved(pod);
        let found = preempt(pod, &mut self.snapshot, &self.budgets);
        self.snapshot.restore_reserved(reserved);
        if let Ok(preemption) = &found {
            // Less important pods must not take the place before it is free.
            self.snapshot.reserve(pod.clone(), &preemption.node);
        }
        Some(found)
    }

    fn bind(&mut self, waiting: Waiting, node: String) -> BoxFuture<'static, Outcome> {
        let (client, recorder) = (self.client.clone(), self.recorder(&waiting.request));
        Box::pin(async move {
            let PodRequest { key, uid, .. } = waiting.request;
            let about = subject(&key, &uid);
            let binding = Binding {
                metadata: about.metadata.clone(),
                target: ObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Node".to_owned()),
                    name: Some(node.clone()),
                    ..ObjectReference::default()
                },
            };
            let answer = client
                .create_subresource::<Pod>(Some(&key.namespace), &key.name, "binding", &binding)
                .await;
            let result = answer.map(drop);
            if result.is_ok() {
                let message = format!("Successfully assigned {key} to {node}");
                record(
                    &recorder,
                    &about,
                    Severity::Normal,
                    "Scheduled",
                    "Binding",
                    message,
                )
                .await;
            }
            Outcome::Bind { key, uid, result }
        })
    }

    /// Writes the condition and the event that say why a pod is pending, and ends the pods that make room for it. No node is
    /// nominated any more for one that has lost its place.
    fn report(
        &mut self,
        waiting: Waiting,
        why: &Unschedulable,
        preemption: Option<Result<Preemption, NoPreemption>>,
        lost_place: bool,
    ) -> BoxFuture<'static, Outcome> {
        let recorder = self.recorder(&waiting.request);
        let PodRequest { key, uid, .. } = waiting.request;
        let mut message = why.to_string();
        let preemption = match preemption {
            Some(Err(none)) => {
                message = format!("{message} preemption: {none}");
                None
            }
            Some(Ok(preemption)) => Some(preemption),
            None => None,
        };
        let news = self.queue.report(&key, &message) || preemption.is_some() || lost_place;
        let client = self.client.clone();
        Box::pin(async move {
            let about = subject(&key, &uid);
            if news {
                let nominated = match &preemption {
                    Some(preemption) => Nominated::Node(&preemption.node),
                    None if lost_place => Nominated::Nowhere,
                    None => Nominated::AsBefore,
                };
                let patch = unscheduled(&uid, &message, nominated);
                let written = client
                    .patch_status::<Pod>(Some(&key.namespace), &key.name, &patch)
                    .await;
                if let Err(error) = written {
                    tracing::debug!(pod = %key, %error, "cannot write the condition");
                }
            }
            record(
                &recorder,
                &about,
                Severity::Warning,
                "FailedScheduling",
                "Scheduling",
                message,
            )
            .await;
            if let Some(preemption) = preemption {
                make_room(&client, &recorder, &uid, preemption).await;
            }
            Outcome::ConditionWritten
        })
    }

    fn written(&mut self, outcome: Outcome) {
        let (key, uid, result) = match outcome {
            Outcome::Bind { key, uid, result } => (key, uid, result),
            Outcome::Claimed { result, bindings } => return self.claimed(result, &bindings),
            Outcome::ConditionWritten => return,
        };
        match result {
            Ok(()) => self.queue.bound(&key, &uid),
            Err(error) => {
                if let Some(held) = self.snapshot.forget(&key, &uid) {
                    self.wake(&Event::Left(held));
                }
                if error.is_not_found() {
                    tracing::debug!(pod = %key, "pod was deleted before it was bound");
                } else {
                    tracing::warn!(pod = %key, %error, "cannot bind; trying again");
                }
                // A deleted pod leaves the queue by its own event.
                self.queue.failed(&key, Instant::now());
            }
        }
    }
}

async fn record(
    recorder: &Recorder,
    pod: &Pod,
    severity: Severity,
    reason: &str,
    action: &str,
    message: String,
) {
    recorder
        .record(
            pod,
            &Happening {
                severity,
                reason,
                action,
                message,
            },
        )
        .await;
}

/// The part of a pod that an event's reference needs.
fn subject(key: &PodKey, uid: &str) -> Pod {
    let metadata = ObjectMeta {
        namespace: Some(key.namespace.clone()),
        name: Some(key.name.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectMeta::default()
    };
    Pod {
        metadata,
        ..Pod::default()
    }
}

/// Ends the victims of a preemption. What fails is tried again with the pod that needs the room.
async fn make_room(client: &Client, recorder: &Recorder, preemptor: &str, preemption: Preemption) {
    let Preemption { node, victims, .. } = preemption;
    for (key, uid) in victims {
        let about = subject(&key, &uid);
        let name = recorder.component();
        let message = format!("{name}: preempting to accommodate a higher priority pod");
        let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": message, "lastProbeTime": null, "lastTransitionTime": now()});
        let patch = Patch::Strategic(
            json!({"metadata": {"uid": uid}, "status": {"conditions": [condition]}}),
        );
        let marked = client
            .patch_status::<Pod>(Some(&key.namespace), &key.name, &patch)
            .await;
        let params = DeleteParams::of(uid);
        let ended = match marked {
            Ok(_) => {
                client
                    .delete::<Pod>(Some(&key.namespace), &key.name, &params)
                    .await
            }
            Err(error) => Err(error),
        };
        match ended {
            Ok(()) => {
                let message = format!("Preempted by pod {preemptor} on node {node}");
                record(
                    recorder,
                    &about,
                    Severity::Normal,
                    "Preempted",
                    "Preempting",
                    message,
                )
                .await;
            }
            Err(error) => tracing::debug!(pod = %key, %error, "cannot preempt a pod"),
        }
    }
}

fn now() -> String {
    jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}

/// What a pod's status says of the node on which others end for it.
#[derive(Debug, Clone, Copy)]
enum Nominated<'a> {
    AsBefore,
    Node(&'a str),
    Nowhere,
}

/// The condition of an unschedulable pod, and the node that is being made free for it; with the UID as precondition, as
/// another pod may have the name by now.
fn unscheduled(uid: &str, message: &str, nominated: Nominated<'_>) -> Patch {
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
        "lastProbeTime": null, "lastTransitionTime": now(),
    });
    let mut status = json!({"conditions": [condition]});
    match nominated {
        Nominated::AsBefore => {}
        Nominated::Node(node) => status["nominatedNodeName"] = node.into(),
        Nominated::Nowhere => status["nominatedNodeName"] = Value::Null,
    }
    Patch::Strategic(json!({"metadata": {"uid": uid}, "status": status}))
}
