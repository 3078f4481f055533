//! The loop: follows pods and nodes, decides, writes.

use crate::NAME;
use crate::choose::choose;
use crate::node::NodeInfo;
use crate::queue::{Queue, Waiting};
use crate::request::{Demand, PodRequest};
use crate::snapshot::{PodKey, Snapshot};
use crate::words::Unschedulable;
use config_kube::k8s_openapi::api::core::v1::{Binding, Node, ObjectReference, Pod};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use master_client::{
    ApiError, Change, Client, Follower, Happening, ListParams, Patch, Recent, Recorder, Severity,
};
use serde_json::json;
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

/// Settings of the loop.
#[derive(Debug, Clone)]
pub struct Options {
    /// Concurrent writes (binds, conditions).
    pub in_flight: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { in_flight: 64 }
    }
}

/// Schedules until `shutdown` resolves, and then drops writes in progress: each is a single request
/// that was executed or was not.
pub async fn run(client: Client, options: Options, shutdown: impl Future<Output = ()> + Send) {
    let demands = Recent::default();
    let read = move |pod: Pod| Seen::of(&pod, &demands);
    let mut pods = Follower::reading(client.clone(), None, ListParams::default(), read);
    let mut nodes = Follower::reading(client.clone(), None, ListParams::default(), |node: Node| {
        NodeInfo::of(&node)
    });
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
    /// It waits for a node.
    Waits(Box<PodRequest>),
    /// It has no node, and this scheduler must not place it (yet); its UID.
    NotOurs(String),
}

impl Seen {
    fn of(pod: &Pod, demands: &Recent<Demand>) -> Self {
        Self {
            key: PodKey::of(pod),
            state: State::of(pod, demands),
        }
    }
}

impl State {
    fn of(pod: &Pod, demands: &Recent<Demand>) -> Self {
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
        let ours = spec
            .and_then(|spec| spec.scheduler_name.as_deref())
            .is_none_or(|name| name.is_empty() || name == NAME);
        let gated = spec
            .and_then(|spec| spec.scheduling_gates.as_ref())
            .is_some_and(|gates| !gates.is_empty());
        if !ours || gated || pod.metadata.deletion_timestamp.is_some() {
            return Self::NotOurs(request.uid);
        }
        Self::Waits(Box::new(request))
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
}

struct Scheduler {
    client: Client,
    recorder: Arc<Recorder>,
    snapshot: Snapshot,
    queue: Queue,
    pods_listed: bool,
    nodes_listed: bool,
    overflowed: bool,
}

impl Scheduler {
    fn new(client: Client) -> Self {
        Self {
            recorder: Arc::new(Recorder::new(client.clone(), NAME)),
            client,
            snapshot: Snapshot::default(),
            queue: Queue::default(),
            pods_listed: false,
            nodes_listed: false,
            overflowed: false,
        }
    }

    /// Whether decisions can be made: only once pods and nodes are listed completely.
    fn ready(&self) -> bool {
        self.pods_listed && self.nodes_listed && self.queue.is_ready()
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
                self.nodes_listed = true;
                self.queue.cluster_changed(Instant::now());
            }
            Change::Set(node) => {
                if self.snapshot.set_node(node) {
                    self.queue.cluster_changed(Instant::now());
                }
            }
            Change::Deleted(node) => self.snapshot.remove_node(node.name()),
        }
    }

    fn pod_changed(&mut self, change: Change<Seen>) {
        let freed = match change {
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
                for pod in pods {
                    self.pod_set(pod);
                }
                self.pods_listed = true;
                true
            }
            Change::Set(pod) => self.pod_set(pod),
            Change::Deleted(pod) => self.pod_gone(&pod.key),
        };
        if freed {
            self.queue.cluster_changed(Instant::now());
        }
    }

    fn pod_gone(&mut self, key: &PodKey) -> bool {
        self.queue.remove(key);
        self.snapshot.remove(key)
    }

    /// Applies a pod; returns whether resources became free.
    fn pod_set(&mut self, pod: Seen) -> bool {
        let Seen { key, state } = pod;
        match state {
            State::Ended => return self.pod_gone(&key),
            State::On(node, request) => {
                self.queue.remove(&key);
                self.snapshot.place(*request, &node);
            }
            State::NotOurs(uid) if !self.snapshot.holds(&key, &uid) => self.queue.remove(&key),
            State::Waits(request) if !self.snapshot.holds(&key, &request.uid) => {
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
            State::NotOurs(_) | State::Waits(_) => {}
        }
        false
    }

    /// Decides for the next pod and returns the write that follows.
    fn step(&mut self) -> Option<BoxFuture<'static, Outcome>> {
        let (waiting, seen) = self.queue.take()?;
        let now = Instant::now();
        match choose(&waiting.request, &self.snapshot) {
            Ok(placement) => {
                tracing::debug!(
                    pod = %waiting.request.key, node = placement.node, feasible = placement.feasible,
                    waited_ms = waiting.age(now).as_millis(), "binding"
                );
                self.snapshot
                    .assume(waiting.request.clone(), &placement.node);
                Some(self.bind(waiting, placement.node))
            }
            Err(why) => {
                self.queue.unschedulable(&waiting.request.key, seen, now);
                Some(self.report(waiting, &why))
            }
        }
    }

    fn bind(&self, waiting: Waiting, node: String) -> BoxFuture<'static, Outcome> {
        let (client, recorder) = (self.client.clone(), Arc::clone(&self.recorder));
        Box::pin(async move {
            let PodRequest {
                key,
                uid,
                not_weighed,
                ..
            } = waiting.request;
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
            if result.is_ok() && !not_weighed.is_empty() {
                let message = format!(
                    "{} was not weighed: this scheduler does not support it yet",
                    not_weighed.join(", ")
                );
                record(
                    &recorder,
                    &about,
                    Severity::Warning,
                    "PreferenceIgnored",
                    "Binding",
                    message,
                )
                .await;
            }
            Outcome::Bind { key, uid, result }
        })
    }

    /// Writes the condition and the event that say why a pod is pending.
    fn report(&mut self, waiting: Waiting, why: &Unschedulable) -> BoxFuture<'static, Outcome> {
        let PodRequest { key, uid, .. } = waiting.request;
        let message = why.to_string();
        let news = self.queue.report(&key, &message);
        let (client, recorder) = (self.client.clone(), Arc::clone(&self.recorder));
        Box::pin(async move {
            let about = subject(&key, &uid);
            if news {
                let patch = unscheduled(&uid, &message);
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
            Outcome::ConditionWritten
        })
    }

    fn written(&mut self, outcome: Outcome) {
        let Outcome::Bind { key, uid, result } = outcome else {
            return;
        };
        match result {
            Ok(()) => self.queue.bound(&key, &uid),
            Err(error) => {
                self.snapshot.forget(&key, &uid);
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

/// The condition of an unschedulable pod; with the UID as precondition, as another pod may have the
/// name by now.
fn unscheduled(uid: &str, message: &str) -> Patch {
    Patch::Strategic(json!({
        "metadata": {"uid": uid},
        "status": {"conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
            "lastProbeTime": null, "lastTransitionTime": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }]},
    }))
}
