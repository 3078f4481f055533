//! The PodDisruptionBudget controller: counts how many of an application's pods may be evicted now.
//!
//! The eviction API lowers the budget's counter and notes the pod in `disruptedPods` in the same
//! write (`master/verbs`). This controller counts, and removes the note when the pod is being
//! deleted. Its writes have the resource version that they were planned for, so that neither
//! overwrites the other.

use crate::workload::amount::{Round, amount};
use crate::workload::condition::second;
use crate::workload::kept::{Kept, controller, owner_key};
use crate::workload::make::record_event;
use crate::workload::pod::{OwnedPod, Owner};
use crate::workload::replicas::Replicated;
use config_kube::k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use config_kube::k8s_openapi::api::core::v1::{ObjectReference, ReplicationController};
use config_kube::k8s_openapi::api::policy::v1::{
    PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus,
};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use config_kube::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use config_kube::label_selector;
use jiff::Timestamp;
use master_client::{
    ApiError, Delta, Entries, Index, Key, Lookup, Object, Patch, Severity, Store, View,
};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::version;
use master_control::writer::Writer;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time after which a pod whose eviction was granted counts again if it was not deleted (upstream).
const FORGOTTEN_AFTER: Duration = Duration::from_secs(120);

static PODS: Index<OwnedPod> = Index::new("namespace", |key, _| vec![key.namespace.clone()]);
static BUDGETS: Index<Budget> = Index::new("namespace", |key, _| vec![key.namespace.clone()]);

/// A budget. It keeps its resource version: the eviction API writes its status as well.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Budget {
    /// UID.
    pub uid: String,
    /// Resource version.
    pub version: String,
    /// Generation.
    pub generation: i64,
    /// Its spec.
    pub spec: PodDisruptionBudgetSpec,
    /// The status that was written last.
    pub status: PodDisruptionBudgetStatus,
}

impl View for Budget {
    type Object = PodDisruptionBudget;

    fn read(budget: PodDisruptionBudget) -> Self {
        Self {
            version: version(&budget.metadata),
            generation: budget.metadata.generation.unwrap_or_default(),
            uid: budget.metadata.uid.unwrap_or_default(),
            spec: budget.spec.unwrap_or_default(),
            status: budget.status.unwrap_or_default(),
        }
    }
}

impl Budget {
    /// Whether it protects pods with these labels. An empty selector protects all, an absent one
    /// none.
    fn protects(&self, pod: &OwnedPod) -> bool {
        let selector = self.spec.selector.as_ref();
        selector.is_some_and(|selector| label_selector::selects(selector, &pod.labels))
    }
}

/// The controller. Its keys are budgets.
#[derive(Debug)]
pub struct DisruptionBudgets {
    budgets: Store<Budget>,
    pods: Lookup<OwnedPod>,
    replica_sets: Store<Kept<ReplicaSet>>,
    controllers: Store<Kept<ReplicationController>>,
    deployments: Store<Kept<Deployment>>,
    stateful_sets: Store<Kept<StatefulSet>>,
    /// When this process first saw each granted eviction, by the monotonic clock: the wall clock
    /// may be set.
    granted: Mutex<HashMap<Key, Granted>>,
}

/// Evictions by pod: when they were granted, and when this process first saw that.
type Granted = BTreeMap<String, (Timestamp, Instant)>;

/// A budget with the pods that it protects.
#[derive(Debug)]
pub struct Facts {
    /// Its key.
    pub key: Key,
    /// The budget.
    pub budget: Arc<Budget>,
    /// The pods.
    pub pods: Entries<OwnedPod>,
    /// The sum of the replicas that their owners want, or why it is not known.
    pub scale: Result<i32, String>,
    /// For how long this process has known that a pod's eviction was granted.
    pub granted: BTreeMap<String, Duration>,
}

/// An action on a budget.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Writes its status, if the budget is still at this resource version.
    Status(Key, String, Box<PodDisruptionBudgetStatus>),
    /// Records an event about the budget with this UID.
    Event(Key, String, News),
}

/// An event to record.
#[derive(Debug, Clone, PartialEq)]
pub struct News {
    /// Its type.
    pub severity: Severity,
    /// The event's reason.
    pub reason: &'static str,
    /// The event's message.
    pub message: String,
}

impl News {
    fn normal(reason: &'static str, message: String) -> Self {
        Self {
            severity: Severity::Normal,
            reason,
            message,
        }
    }

    fn warning(reason: &'static str, message: String) -> Self {
        Self {
            severity: Severity::Warning,
            reason,
            message,
        }
    }
}

impl Controller for DisruptionBudgets {
    const NAME: &'static str = "disruption-controller";
    const COMPONENT: &'static str = "controllermanager";
    const RIGHTS: &'static [Right] = &[
        right("policy", "poddisruptionbudgets", &["get", "list", "watch"]),
        right("policy", "poddisruptionbudgets/status", &["patch"]),
        right("", "pods", &["list", "watch"]),
        right("", "replicationcontrollers", &["list", "watch"]),
        right("apps", "replicasets", &["list", "watch"]),
        right("apps", "deployments", &["list", "watch"]),
        right("apps", "statefulsets", &["list", "watch"]),
        right("", "events", &["create", "patch"]),
    ];
    type Facts = Facts;
    type Action = Action;

    fn new(setup: &mut Setup<'_>) -> Self {
        let budgets: Store<Budget> = setup.follow_keys();
        let near = budgets.index(&BUDGETS);
        let protecting = near.clone();
        let pods: Store<OwnedPod> = setup.follow(move |delta: &Delta<OwnedPod>, keys| {
            let sides = [&delta.before, &delta.after];
            for (key, budget) in protecting.get(&delta.key.namespace) {
                if sides.into_iter().flatten().any(|pod| budget.protects(pod)) {
                    keys.push((*key).clone());
                }
            }
        });
        Self {
            pods: pods.index(&PODS),
            replica_sets: scaled(setup, &near, ReplicaSet::wanted),
            controllers: scaled(setup, &near, ReplicationController::wanted),
            deployments: scaled(setup, &near, deployed),
            stateful_sets: scaled(setup, &near, stateful),
            budgets,
            granted: Mutex::default(),
        }
    }

    fn facts(&self, key: &Key, now: Now) -> Option<Facts> {
        let budget = self.budgets.get(key);
        let granted = self.granted(key, budget.as_deref(), now.instant);
        let budget = budget?;
        let mut pods = self.pods.get(&key.namespace);
        pods.retain(|(_, pod)| budget.protects(pod));
        Some(Facts {
            key: key.clone(),
            scale: self.scale(&pods),
            granted,
            budget,
            pods,
        })
    }

    fn plan(facts: &Facts, now: Now) -> Plan<Action> {
        let Count {
            status,
            missed,
            wake,
        } = count(facts, now.wall);
        let mut all: Vec<News> = Vec::new();
        for pod in missed {
            let message = format!(
                "Pod {pod} was expected by PDB {} to be deleted but it wasn't",
                facts.key
            );
            all.push(News::warning("NotDeleted", message));
        }
        let changes = status != facts.budget.status;
        if changes {
            all.extend(news(facts));
        }
        let event = |news| Action::Event(facts.key.clone(), facts.budget.uid.clone(), news);
        let mut actions: Vec<Action> = all.into_iter().map(event).collect();
        if changes {
            let version = facts.budget.version.clone();
            actions.push(Action::Status(facts.key.clone(), version, Box::new(status)));
        }
        Plan {
            actions,
            requeue: wake,
        }
    }

    async fn carry_out(&self, action: Action, writer: &Writer) -> Result<(), ApiError> {
        match action {
            Action::Status(key, version, status) => {
                // Where this is not the planned version, the master refuses the write.
                let budget = self.budgets.get(&key).unwrap_or_default();
                let status = patch(&budget.status, &status);
                let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
                let patch = Patch::Merge(patch);
                let written = writer.patch_status::<PodDisruptionBudget>(&key, &patch);
                written.await.map(drop)
            }
            Action::Event(key, uid, news) => {
                let about = ObjectReference {
                    api_version: Some("policy/v1".to_owned()),
                    kind: Some("PodDisruptionBudget".to_owned()),
                    namespace: Some(key.namespace),
                    name: Some(key.name),
                    uid: Some(uid),
                    ..ObjectReference::default()
                };
                record_event(writer, &about, news.severity, news.reason, news.message).await;
                Ok(())
            }
        }
    }
}

/// The whole status as a merge patch (RFC 7386). It names pods that left `disruptedPods`: a merge
/// keeps members that it does not name.
fn patch(before: &PodDisruptionBudgetStatus, status: &PodDisruptionBudgetStatus) -> Value {
    let mut value = json!(status);
    let all = before.disrupted_pods.iter().flatten();
    let left = all.map(|(name, _)| (name.clone(), Value::Null));
    match value.get_mut("disruptedPods") {
        Some(Value::Object(pods)) => {
            let left: Vec<_> = left.filter(|(name, _)| !pods.contains_key(name)).collect();
            pods.extend(left);
        }
        _ => value["disruptedPods"] = Value::Null,
    }
    value
}

fn deployed(deployment: &Deployment) -> i32 {
    let spec = deployment.spec.as_ref();
    spec.and_then(|spec| spec.replicas).unwrap_or(1)
}

fn stateful(set: &StatefulSet) -> i32 {
    let spec = set.spec.as_ref();
    spec.and_then(|spec| spec.replicas).unwrap_or(1)
}

/// Follows a kind of owner; changes of its objects' replicas concern the budgets of the namespace.
fn scaled<T>(setup: &mut Setup<'_>, near: &Lookup<Budget>, wanted: fn(&T) -> i32) -> Store<Kept<T>>
where
    T: Object + PartialEq + std::fmt::Debug + Sync,
{
    let near = near.clone();
    setup.follow(move |delta: &Delta<Kept<T>>, keys| {
        if delta.differs(|object| wanted(&object.0)) {
            let budgets = near.keys(&delta.key.namespace);
            keys.extend(budgets.iter().map(|key| (**key).clone()));
        }
    })
}

impl DisruptionBudgets {
    /// For how long this process has known of each eviction in a budget's status.
    fn granted(
        &self,
        key: &Key,
        budget: Option<&Budget>,
        now: Instant,
    ) -> BTreeMap<String, Duration> {
        let mut all = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        let before = all.remove(key).unwrap_or_default();
        let named = budget.and_then(|budget| budget.status.disrupted_pods.as_ref());
        let since = |(pod, at): (&String, &Time)| {
            let known = before.get(pod).filter(|(known, _)| *known == at.0);
            (pod.clone(), (at.0, known.map_or(now, |(_, since)| *since)))
        };
        let own: Granted = named.into_iter().flatten().map(since).collect();
        let passed = |since: &Instant| now.saturating_duration_since(*since);
        let times = own.iter();
        let times = times
            .map(|(pod, (_, since))| (pod.clone(), passed(since)))
            .collect();
        if !own.is_empty() {
            all.insert(key.clone(), own);
        }
        times
    }

    /// The sum of the replicas that the owners of these pods want. Pods without an owner add
    /// nothing (upstream).
    fn scale(&self, pods: &Entries<OwnedPod>) -> Result<i32, String> {
        let mut seen = BTreeSet::new();
        let mut sum = 0_i32;
        for (key, pod) in pods {
            let Some(owner) = &pod.owner else { continue };
            if !seen.insert(owner.uid.clone()) {
                continue;
            }
            let at = owner_key(&key.namespace, &owner.name);
            let wanted = match owner.kind.as_str() {
                "ReplicaSet" => {
                    let Some(set) = self.replica_sets.get(&at) else {
                        return Err(unowned(&key.name));
                    };
                    match controller(&set.metadata).filter(|owner| owner.kind == "Deployment") {
                        Some(owner) if !seen.insert(owner.uid.clone()) => continue,
                        Some(owner) => {
                            let at = owner_key(&key.namespace, &owner.name);
                            self.deployments.get(&at).map(|found| deployed(&found))
                        }
                        None => Some(set.wanted()),
                    }
                }
                "ReplicationController" => self.controllers.get(&at).map(|found| found.wanted()),
                "StatefulSet" => self.stateful_sets.get(&at).map(|found| stateful(&found)),
                _ => return Err(unscaled(owner)),
            };
            let wanted = wanted.ok_or_else(|| unowned(&key.name))?;
            sum = sum.saturating_add(wanted);
        }
        Ok(sum)
    }
}

/// The number of expected pods, and how many of them must be healthy.
fn demand(facts: &Facts) -> Result<(i32, i32), String> {
    let spec = &facts.budget.spec;
    let there = i32::try_from(facts.pods.len()).unwrap_or(i32::MAX);
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => {
            let expected = facts.scale.clone()?;
            let missing = amount(most, expected, Round::Up);
            Ok((expected, expected.saturating_sub(missing).max(0)))
        }
        (None, Some(IntOrString::Int(least))) => Ok((there, *least)),
        (None, Some(share)) => {
            let expected = facts.scale.clone()?;
            Ok((expected, amount(share, expected, Round::Up)))
        }
        (None, None) => Ok((0, 0)),
    }
}

/// Events about why a budget cannot be counted. They are recorded when its status changes (upstream
/// records them at every sync).
fn news(facts: &Facts) -> Vec<News> {
    let spec = &facts.budget.spec;
    let by_scale = spec.max_unavailable.is_some()
        || matches!(spec.min_available, Some(IntOrString::String(_)));
    let mut news = Vec::new();
    if facts.pods.is_empty() {
        let text = "No matching pods found".to_owned();
        news.push(News::normal("NoPods", text));
    }
    if let Err(fault) = demand(facts) {
        let text = format!("Failed to calculate the number of expected pods: {fault}");
        news.push(News::warning("CalculateExpectedPodCountFailed", text));
    } else if by_scale && facts.pods.iter().any(|(_, pod)| pod.owner.is_none()) {
        let text = format!(
            "Pods selected by this PodDisruptionBudget (selector: {}) were found to be unmanaged. As a result, the status of \
             the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please \
             set \".spec.minAvailable\" field of the PDB to an integer value.",
            json!(spec.selector)
        );
        news.push(News::warning("UnmanagedPods", text));
    }
    news
}

fn unowned(pod: &str) -> String {
    format!("found no controllers for pod {pod:?}")
}

/// Upstream's message about an owner without a number of replicas.
fn unscaled(owner: &Owner) -> String {
    let (version, kind) = (&owner.api_version, &owner.kind);
    let plural = format!("{}s", kind.to_ascii_lowercase());
    let resource = match version.split_once('/') {
        None => plural,
        Some((group @ ("apps" | "batch"), _)) => format!("{plural}.{group}"),
        Some(_) => return format!("no matches for kind {kind:?} in version {version:?}"),
    };
    format!("{resource} does not implement the scale subresource")
}

/// A budget's pods, counted.
struct Count {
    status: PodDisruptionBudgetStatus,
    /// Pods whose eviction was granted long ago, and that were not deleted.
    missed: Vec<String>,
    /// When to count again, although nothing changes.
    wake: Option<Duration>,
}

fn count(facts: &Facts, now: Timestamp) -> Count {
    let before = &facts.budget.status;
    let mut noted = BTreeMap::new();
    let mut wake: Option<Duration> = None;
    let mut missed = Vec::new();
    let mut healthy = 0;
    for (key, pod) in facts.pods.iter().filter(|(_, pod)| pod.deleted.is_none()) {
        let named = before.disrupted_pods.as_ref();
        if let Some(granted) = named.and_then(|all| all.get(&key.name)) {
            let known = facts.granted.get(&key.name).copied().unwrap_or_default();
            let left = FORGOTTEN_AFTER.saturating_sub(known);
            if !left.is_zero() {
                noted.insert(key.name.clone(), granted.clone());
                wake = Some(wake.map_or(left, |wake| wake.min(left)));
                continue;
            }
            missed.push(key.name.clone());
        }
        healthy += i32::from(pod.ready.is_some() && !pod.ended());
    }
    let (expected, wanted, fault) = match demand(facts) {
        Ok((expected, wanted)) => (expected, wanted, None),
        Err(fault) => {
            let known = (before.expected_pods, before.desired_healthy);
            (
                known.0.unwrap_or_default(),
                known.1.unwrap_or_default(),
                Some(fault),
            )
        }
    };
    let allowed = if expected <= 0 || fault.is_some() {
        0
    } else {
        healthy.saturating_sub(wanted).max(0)
    };
    let status = PodDisruptionBudgetStatus {
        conditions: Some(vec![condition(facts, fault, allowed, now)]),
        current_healthy: Some(healthy),
        desired_healthy: Some(wanted),
        disrupted_pods: (!noted.is_empty()).then_some(noted),
        disruptions_allowed: Some(allowed),
        expected_pods: Some(expected),
        observed_generation: Some(facts.budget.generation),
    };
    Count {
        status,
        missed,
        wake,
    }
}

/// The condition `DisruptionAllowed`, which keeps its time while its status is the same.
fn condition(facts: &Facts, fault: Option<String>, allowed: i32, now: Timestamp) -> Condition {
    let (says, reason) = match (&fault, allowed) {
        (Some(_), _) => ("False", "SyncFailed"),
        (None, 0) => ("False", "InsufficientPods"),
        (None, _) => ("True", "SufficientPods"),
    };
    let mut known = facts.budget.status.conditions.iter().flatten();
    let since = known
        .find(|one| one.type_ == "DisruptionAllowed")
        .filter(|one| one.status == says)
        .map(|one| one.last_transition_time.clone());
    Condition {
        type_: "DisruptionAllowed".to_owned(),
        status: says.to_owned(),
        reason: reason.to_owned(),
        message: fault.unwrap_or_default(),
        observed_generation: Some(facts.budget.generation),
        last_transition_time: since.unwrap_or_else(|| Time(second(now))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_forgets_each_pod_that_is_no_longer_disrupted() {
        let status = |pods: Value| -> PodDisruptionBudgetStatus {
            serde_json::from_value(json!({"disruptedPods": pods})).unwrap()
        };
        let at = "2026-01-01T00:00:00Z";
        let both = status(json!({"a": at, "b": at}));
        let names = |now: &PodDisruptionBudgetStatus| patch(&both, now)["disruptedPods"].clone();
        assert_eq!(
            names(&status(json!({"a": at, "c": at}))),
            json!({"a": at, "b": null, "c": at})
        );
        assert_eq!(names(&status(Value::Null)), Value::Null);
    }
}
