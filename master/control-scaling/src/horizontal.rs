//! HorizontalPodAutoscalers: the controller, its reads and its writes.
//!
//! Each autoscaler is evaluated once in [`SYNC_PERIOD`]: the controller reads the target's scale,
//! pods and samples, decides, and writes the scale if it is unchanged since it was read. Resource
//! metrics come from `metrics.k8s.io` through the API; if the nodes report no figures of the pods,
//! the condition ScalingActive says so.

use crate::decide::{Condition, Fault, Observed, Reading, condition, decide, needs_metrics};
use crate::limits::Memory;
use crate::metrics::{self, Samples, samples};
use crate::replicas::{self, MetricQuery, Target, Tolerance, propose};
use config_kube::Amount;
use config_kube::k8s_openapi::api::autoscaling::v2::{
    HPAScalingRules, HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition,
    HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus, MetricSpec, MetricTarget,
};
use config_kube::k8s_openapi::api::core::v1::{ObjectReference, Pod};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::Timestamp;
use master_client::{
    ApiError, DynamicObject, Key, ListParams, ObjectPath, Patch, Reason, Resource, Severity, Store,
};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::writer::Writer;
use master_control_workloads::workload::condition::second;
use master_control_workloads::workload::kept::{Kept, controls, is_leaving};
use master_control_workloads::workload::make::{self, record_event};
use master_schema::registry::Kind;
use master_schema::selector::Selector;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two evaluations (upstream: `horizontal-pod-autoscaler-sync-period`).
const SYNC_PERIOD: Duration = Duration::from_secs(15);
/// The tolerance where none is given (upstream: `horizontal-pod-autoscaler-tolerance`).
const TOLERANCE: f64 = 0.1;
/// Pods that are read at once. All controllers run in one task: after each page the others get
/// their turn.
const PAGE: u32 = 100;

/// What the controller remembers of an autoscaler.
#[derive(Debug, Default)]
struct Known {
    uid: String,
    /// When it was evaluated last.
    evaluated_at: Option<Instant>,
    memory: Memory,
    /// The selector of its target's pods.
    selector: String,
}

/// The controller. Its keys are HorizontalPodAutoscalers.
#[derive(Debug)]
pub struct HorizontalAutoscalers {
    all: Store<Kept<HorizontalPodAutoscaler>>,
    known: Mutex<HashMap<Key, Known>>,
    /// Held while pods are read: one autoscaler at a time.
    reading: tokio::sync::Mutex<()>,
}

/// The pods of a target.
enum Pods {
    /// No other autoscaler has any of them.
    Own(Vec<Pod>),
    /// The other autoscalers that have some of them.
    Shared(Vec<String>),
}

/// An autoscaler, and when it was evaluated last.
#[derive(Debug)]
pub struct Facts {
    key: Key,
    uid: String,
    evaluated_at: Option<Instant>,
}

/// Evaluates the autoscaler with this key and UID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evaluate(pub Key, pub String);

impl Controller for HorizontalAutoscalers {
    const NAME: &'static str = "horizontal-pod-autoscaler";
    const RIGHTS: &'static [Right] = &[
        right(
            "autoscaling",
            "horizontalpodautoscalers",
            &["get", "list", "watch"],
        ),
        right("autoscaling", "horizontalpodautoscalers/status", &["patch"]),
        // Any kind with replicas can be a target, custom kinds too.
        right("*", "*/scale", &["get", "patch"]),
        right("", "pods", &["list"]),
        right("metrics.k8s.io", "pods", &["list"]),
        right("", "events", &["create", "patch"]),
    ];
    type Facts = Facts;
    type Action = Evaluate;

    fn new(setup: &mut Setup<'_>) -> Self {
        Self {
            all: setup.follow_keys(),
            known: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let found = self.all.get(key);
        let Some(found) = found.filter(|found| !is_leaving(&found.metadata)) else {
            self.known().remove(key);
            return None;
        };
        let uid = found.metadata.uid.clone().unwrap_or_default();
        let known = self.known();
        let same = known.get(key).filter(|known| known.uid == uid);
        Some(Facts {
            key: key.clone(),
            evaluated_at: same.and_then(|known| known.evaluated_at),
            uid,
        })
    }

    fn plan(facts: &Facts, now: Now) -> Plan<Evaluate> {
        let passed = facts
            .evaluated_at
            .map(|at| now.instant.saturating_duration_since(at));
        match passed.and_then(|passed| SYNC_PERIOD.checked_sub(passed)) {
            Some(left) if !left.is_zero() => Plan::wait(left),
            _ => Plan {
                actions: vec![Evaluate(facts.key.clone(), facts.uid.clone())],
                requeue: Some(SYNC_PERIOD),
            },
        }
    }

    async fn carry_out(
        &self,
        Evaluate(key, uid): Evaluate,
        writer: &Writer,
    ) -> Result<(), ApiError> {
        let Some(scaler) = self.all.get(&key) else {
            return Ok(());
        };
        if scaler.metadata.uid.as_deref() != Some(&uid) {
            return Ok(());
        }
        self.begin(&key, &uid, writer.now().instant);
        let about = make::reference(&controls(&scaler.0), &key.namespace);
        let mut report = Report {
            scaler: &scaler,
            status: scaler.status.clone().unwrap_or_default(),
            about,
            now: writer.now().wall,
        };
        self.evaluate(&key, &mut report, writer).await?;
        report.write(&key, &uid, writer).await
    }
}

/// The status that an evaluation writes, and the object of its events.
struct Report<'a> {
    scaler: &'a HorizontalPodAutoscaler,
    status: HorizontalPodAutoscalerStatus,
    about: ObjectReference,
    now: Timestamp,
}

impl Report<'_> {
    fn set(&mut self, condition: &Condition) {
        let status = if condition.holds { "True" } else { "False" };
        let all = self.status.conditions.get_or_insert_default();
        let known = all.iter().position(|one| one.type_ == condition.kind);
        let before = known.map(|at| all.remove(at));
        let since = before.filter(|one| one.status == status);
        let since = since.and_then(|one| one.last_transition_time);
        let new = HorizontalPodAutoscalerCondition {
            type_: condition.kind.to_owned(),
            status: status.to_owned(),
            reason: Some(condition.reason.to_owned()),
            message: Some(condition.message.clone()),
            last_transition_time: Some(since.unwrap_or_else(|| Time(second(self.now)))),
        };
        all.insert(known.unwrap_or(all.len()), new);
    }

    async fn warn(&self, writer: &Writer, reason: &str, message: String) {
        record_event(writer, &self.about, Severity::Warning, reason, message).await;
    }

    async fn rescaled(&mut self, to: i32, why: String, writer: &Writer) {
        let words = format!("the HPA controller was able to update the target scale to {to}");
        self.set(&condition("AbleToScale", true, "SucceededRescale", words));
        self.status.desired_replicas = to;
        self.status.last_scale_time = Some(Time(second(self.now)));
        let about = &self.about;
        record_event(writer, about, Severity::Normal, "SuccessfulRescale", why).await;
    }

    /// Writes the status where it differs.
    async fn write(self, key: &Key, uid: &str, writer: &Writer) -> Result<(), ApiError> {
        if self.scaler.status.as_ref() == Some(&self.status) {
            return Ok(());
        }
        let mut status = json!(self.status);
        if self.status.current_metrics.is_none() {
            status["currentMetrics"] = Value::Null;
        }
        let patch = Patch::Merge(json!({"metadata": {"uid": uid}, "status": status}));
        let written = writer.patch_status::<HorizontalPodAutoscaler>(key, &patch);
        written.await.map(drop)
    }
}

/// The target with its scale.
struct Scale {
    resource: Resource,
    name: String,
    version: String,
    replicas: i32,
    selector: String,
}

impl Scale {
    async fn read(
        namespace: &str,
        spec: &HorizontalPodAutoscalerSpec,
        writer: &Writer,
    ) -> Result<Self, ApiError> {
        let target = &spec.scale_target_ref;
        let version = target.api_version.as_deref().unwrap_or_default();
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let served = writer.client().resources();
        let found = served
            .into_iter()
            .find(|one| one.kind == target.kind && one.group == group);
        let Some(resource) = found else {
            let text = format!("no matches for kind {:?} in group {group:?}", target.kind);
            return Err(ApiError::new(Reason::NotFound, text));
        };
        let at = scale_of(namespace, &target.name);
        let DynamicObject(scale) = writer.client().part(&resource, at).await?;
        let scale = Value::Object(scale);
        let replicas = scale["spec"]["replicas"].as_i64().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(Self {
            name: target.name.clone(),
            version: text(&scale["metadata"]["resourceVersion"]),
            replicas: i32::try_from(replicas).unwrap_or(i32::MAX),
            selector: text(&scale["status"]["selector"]),
            resource,
        })
    }

    /// Sets the number of replicas, if the target is as it was read.
    async fn write(&self, namespace: &str, to: i32, writer: &Writer) -> Result<(), ApiError> {
        let patch =
            json!({"metadata": {"resourceVersion": self.version}, "spec": {"replicas": to}});
        let at = scale_of(namespace, &self.name);
        let patch = Patch::Merge(patch);
        let patched = writer.client().change(&self.resource, at, &patch);
        patched.await.map(drop)
    }
}

/// The scale of a target.
fn scale_of<'a>(namespace: &'a str, name: &'a str) -> ObjectPath<'a> {
    ObjectPath {
        namespace,
        name,
        subresource: Some("scale"),
    }
}

impl HorizontalAutoscalers {
    fn known(&self) -> MutexGuard<'_, HashMap<Key, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, key: &Key, uid: &str, now: Instant) {
        let mut all = self.known();
        let known = all.entry(key.clone()).or_default();
        if known.uid != uid {
            *known = Known {
                uid: uid.to_owned(),
                ..Known::default()
            };
        }
        known.evaluated_at = Some(now);
    }

    /// Calls `with` with what is known of an autoscaler.
    fn remember<T>(&self, key: &Key, with: impl FnOnce(&mut Known) -> T) -> T {
        with(self.known().entry(key.clone()).or_default())
    }

    async fn evaluate(
        &self,
        key: &Key,
        report: &mut Report<'_>,
        writer: &Writer,
    ) -> Result<(), ApiError> {
        let spec = &report.scaler.spec;
        let scale = match Scale::read(&key.namespace, spec, writer).await {
            Ok(scale) => scale,
            Err(error) => {
                self.remember(key, |known| known.selector.clear());
                let words = format!(
                    "the HPA controller was unable to get the target's current scale: {error}"
                );
                report.set(&condition("AbleToScale", false, FAILED_GET, words));
                report.warn(writer, FAILED_GET, error.to_string()).await;
                return Ok(());
            }
        };
        let observed = Observed {
            replicas: scale.replicas,
            readings: if needs_metrics(spec, scale.replicas) {
                self.read(key, spec, &scale, writer).await?
            } else {
                self.remember(key, |known| known.selector.clear());
                Ok(Vec::new())
            },
        };
        let decision = self.remember(key, |known| {
            decide(spec, &observed, &mut known.memory, writer.now().instant)
        });
        for condition in &decision.conditions {
            report.set(condition);
        }
        for (reason, message) in &decision.warnings {
            report.warn(writer, reason, message.clone()).await;
        }
        report.status.current_replicas = Some(scale.replicas);
        let shown: Option<Vec<_>> = serde_json::from_value(decision.current.clone().into()).ok();
        report.status.current_metrics = shown.filter(|shown| !shown.is_empty());
        let Some(to) = decision.replicas else {
            return Ok(());
        };
        if to == scale.replicas {
            report.status.desired_replicas = to;
            return Ok(());
        }
        let why = format!("New size: {to}; reason: {}", decision.reason);
        match scale.write(&key.namespace, to, writer).await {
            Ok(()) => {
                self.remember(key, |known| {
                    known
                        .memory
                        .scaled(scale.replicas, to, writer.now().instant);
                });
                report.rescaled(to, why, writer).await;
                Ok(())
            }
            // Another client scaled it in the meantime: the next evaluation reads its number.
            Err(error) if error.is_conflict() => Err(error),
            Err(error) => {
                let words =
                    format!("the HPA controller was unable to update the target scale: {error}");
                report.set(&condition("AbleToScale", false, "FailedUpdateScale", words));
                let why = format!("{why}; error: {error}");
                report.warn(writer, "FailedRescale", why).await;
                Ok(())
            }
        }
    }

    /// What each metric asks for.
    async fn read(
        &self,
        key: &Key,
        spec: &HorizontalPodAutoscalerSpec,
        scale: &Scale,
        writer: &Writer,
    ) -> Result<Result<Vec<Reading>, Condition>, ApiError> {
        let fault = |reason: &'static str, words: String| {
            Ok(Err(condition("ScalingActive", false, reason, words)))
        };
        if scale.selector.is_empty() {
            self.remember(key, |known| known.selector.clear());
            let words = "the HPA target's scale is missing a selector";
            return fault("InvalidSelector", words.to_owned());
        }
        let pods = match self.pods(key, &scale.selector, writer).await? {
            Pods::Own(pods) => pods,
            Pods::Shared(others) => {
                let words = format!(
                    "pods by selector {} are controlled by multiple HPAs: {}",
                    scale.selector,
                    others.join(", ")
                );
                return fault("AmbiguousSelector", words);
            }
        };
        let params = ListParams {
            labels: Some(scale.selector.clone()),
            ..ListParams::default()
        };
        let client = writer.client();
        let used = client
            .wholes(&metrics::served(), &key.namespace, &params)
            .await;
        let used = used
            .map(|list| list.items)
            .map_err(|error| unserved(&error));
        let metrics = spec.metrics.iter().flatten();
        let mut measured = Measured {
            pods: &pods,
            used: &used,
            samples: HashMap::new(),
            now: writer.now().wall,
        };
        let namespace = &key.namespace;
        let read = |metric| reading(metric, spec, namespace, scale.replicas, &mut measured);
        Ok(Ok(metrics.map(read).collect()))
    }

    /// Reads the pods of a target, until one is found that another autoscaler has: in one period
    /// the autoscalers of a namespace read each pod once, and beyond that a page each.
    async fn pods(&self, key: &Key, selector: &str, writer: &Writer) -> Result<Pods, ApiError> {
        let others = self.claim(key, selector);
        if !others.is_empty() {
            return Ok(Pods::Shared(others));
        }
        let _turn = self.reading.lock().await;
        let mut all = Vec::new();
        let mut next = None;
        loop {
            let params = ListParams {
                labels: Some(selector.to_owned()),
                limit: Some(PAGE),
                continue_token: next,
                ..ListParams::default()
            };
            let page = writer.client().list::<Pod>(key.namespace(), &params);
            let page = page.await?;
            let others = self.others(key, &page.items);
            if !others.is_empty() {
                return Ok(Pods::Shared(others));
            }
            all.extend(page.items);
            if page.continue_token.is_empty() {
                return Ok(Pods::Own(all));
            }
            next = Some(page.continue_token);
            // The API answers inside the process, so that nothing above needs to wait.
            tokio::task::yield_now().await;
        }
    }

    /// Notes an autoscaler's selector, and returns the other autoscalers of its namespace that have
    /// the same one. No pod is read to find them, so that many autoscalers of one target cost
    /// nothing.
    fn claim(&self, key: &Key, selector: &str) -> Vec<String> {
        let mut known = self.known();
        selector.clone_into(&mut known.entry(key.clone()).or_default().selector);
        let same = known.iter().filter(|(other, known)| {
            *other != key && other.namespace == key.namespace && known.selector == selector
        });
        let mut names: Vec<String> = same.map(|(other, _)| other.to_string()).collect();
        names.sort();
        names
    }

    /// Autoscalers of the same namespace whose targets have some of these pods.
    fn others(&self, key: &Key, pods: &[Pod]) -> Vec<String> {
        let known = self.known();
        let kind = Kind::of::<Pod>(true);
        // Replicas have the same labels, and autoscalers of one target the same selector.
        let labels = pods.iter().map(|pod| pod.metadata.labels.as_ref());
        let labels: BTreeSet<Option<&BTreeMap<String, String>>> = labels.collect();
        let labels = labels.into_iter();
        let alike: Vec<Value> = labels
            .map(|labels| json!({"metadata": {"labels": labels}}))
            .collect();
        let mut asked: HashMap<&str, bool> = HashMap::new();
        let mut has_some = |selector| {
            *asked.entry(selector).or_insert_with(|| {
                let parsed = Selector::parse(&kind, selector, "");
                parsed.is_ok_and(|parsed| alike.iter().any(|pod| parsed.matches(pod)))
            })
        };
        let near = known.iter().filter(|(other, known)| {
            *other != key && other.namespace == key.namespace && !known.selector.is_empty()
        });
        let mut names: Vec<String> = near
            .filter(|(_, known)| has_some(known.selector.as_str()))
            .map(|(other, _)| other.to_string())
            .collect();
        names.sort();
        names
    }
}

const FAILED_GET: &str = "FailedGetScale";

/// Why there are no samples, in upstream's words.
fn unserved(error: &ApiError) -> String {
    format!("unable to fetch metrics from resource metrics API: {error}")
}

fn tolerance(spec: &HorizontalPodAutoscalerSpec) -> Tolerance {
    let rules = spec.behavior.as_ref();
    let of = |rules: Option<&HPAScalingRules>| {
        let given = rules.and_then(|rules| rules.tolerance.as_ref());
        given.and_then(|given| share(&given.0)).unwrap_or(TOLERANCE)
    };
    Tolerance {
        down: of(rules.and_then(|rules| rules.scale_down.as_ref())),
        up: of(rules.and_then(|rules| rules.scale_up.as_ref())),
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "upstream compares with such a number too"
)]
fn share(text: &str) -> Option<f64> {
    let amount = text.parse::<Amount>().ok()?;
    Some(amount.nanos() as f64 / 1e9)
}

fn target(of: &MetricTarget) -> Option<Target> {
    let share = of.average_utilization.map(Target::Utilization);
    share.or_else(|| replicas::average_target(&of.average_value.as_ref()?.0))
}

/// What the pods of a target use.
struct Measured<'a> {
    pods: &'a [Pod],
    used: &'a Result<Vec<DynamicObject>, String>,
    /// By resource and container: many metrics can differ in their targets alone.
    samples: HashMap<(&'a str, Option<&'a str>), Samples>,
    now: Timestamp,
}

/// What one metric asks for.
fn reading<'a>(
    metric: &'a MetricSpec,
    spec: &HorizontalPodAutoscalerSpec,
    namespace: &str,
    current: i32,
    measured: &mut Measured<'a>,
) -> Reading {
    let (resource, container, wanted, reason) = match (&metric.resource, &metric.container_resource)
    {
        (Some(one), _) => (&one.name, None, &one.target, "FailedGetResourceMetric"),
        (None, Some(one)) => {
            let container = Some(one.container.as_str());
            (
                &one.name,
                container,
                &one.target,
                "FailedGetContainerResourceMetric",
            )
        }
        (None, None) => return Err(foreign(metric, namespace)),
    };
    let Some(target) = target(wanted) else {
        let message = "invalid resource metric source: neither an average utilization target nor an average value (usage) target was set";
        return Err(Fault {
            reason,
            message: message.to_owned(),
        });
    };
    let what = match target {
        Target::Utilization(_) => "utilization",
        Target::Average(_) => "usage",
    };
    let failed = |why: String| Fault {
        reason,
        message: format!("failed to get {resource} {what}: {why}"),
    };
    let unread = |why: &String| {
        failed(format!(
            "unable to get metrics for resource {resource}: {why}"
        ))
    };
    let used = measured.used.as_ref().map_err(unread)?;
    if used.is_empty() {
        let why = "no metrics returned from resource metrics API".to_owned();
        return Err(unread(&why));
    }
    let query = MetricQuery {
        resource,
        container,
        target,
        tolerance: tolerance(spec),
    };
    let known = measured.samples.entry((resource.as_str(), container));
    let samples = known
        .or_insert_with(|| samples(used, resource, container))
        .clone();
    propose(&query, current, measured.pods, samples, measured.now).map_err(failed)
}

/// The fault of a metric whose API the cluster does not serve.
fn foreign(metric: &MetricSpec, namespace: &str) -> Fault {
    const CUSTOM: &str = "unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered";
    let named = |name: Option<&String>| name.cloned().unwrap_or_default();
    let (reason, message) = match metric.type_.as_str() {
        "Pods" => {
            let name = named(metric.pods.as_ref().map(|one| &one.metric.name));
            (
                "FailedGetPodsMetric",
                format!("unable to get metric {name}: {CUSTOM}"),
            )
        }
        "Object" => {
            let name = named(metric.object.as_ref().map(|one| &one.metric.name));
            (
                "FailedGetObjectMetric",
                format!("unable to get metric {name}: {CUSTOM}"),
            )
        }
        "External" => {
            let name = named(metric.external.as_ref().map(|one| &one.metric.name));
            let why = "unable to fetch metrics from external metrics API: no external metrics API (external.metrics.k8s.io) registered";
            let message = format!("unable to get external metric {namespace}/{name}: {why}");
            ("FailedGetExternalMetric", message)
        }
        other => {
            let message = format!("unknown metric source type {other:?}");
            ("InvalidMetricSourceType", message)
        }
    };
    Fault { reason, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tolerance_is_read_for_its_direction() {
        let spec = json!({"maxReplicas": 5, "scaleTargetRef": {"kind": "Deployment", "name": "web"},
            "behavior": {"scaleUp": {"tolerance": "250m"}}});
        let spec: HorizontalPodAutoscalerSpec = serde_json::from_value(spec).unwrap_or_default();
        let found = format!("{:?}", tolerance(&spec));
        assert_eq!(found, "Tolerance { down: 0.1, up: 0.25 }");
    }

    #[test]
    fn autoscalers_of_one_target_are_found_without_its_pods() {
        let options = master_control::Options::default();
        let (scalers, _stores) = Setup::for_test::<HorizontalAutoscalers>(&options);
        let none: [String; 0] = [];
        assert_eq!(scalers.claim(&Key::new("shop", "a"), "app=web"), none);
        assert_eq!(scalers.claim(&Key::new("shop", "b"), "app=web"), ["shop/a"]);
        assert_eq!(scalers.claim(&Key::new("shop", "a"), "app=web"), ["shop/b"]);
        assert_eq!(scalers.claim(&Key::new("other", "a"), "app=web"), none);
        // One that has another target now has these pods no more.
        assert_eq!(scalers.claim(&Key::new("shop", "a"), "app=db"), none);
        assert_eq!(scalers.claim(&Key::new("shop", "b"), "app=web"), none);
    }

    #[test]
    fn a_page_of_pods_shows_the_autoscalers_with_other_words_for_them() {
        let options = master_control::Options::default();
        let (scalers, _stores) = Setup::for_test::<HorizontalAutoscalers>(&options);
        let own = Key::new("shop", "a");
        let none: [String; 0] = [];
        assert_eq!(scalers.claim(&own, "app=web"), none);
        assert_eq!(scalers.claim(&Key::new("shop", "b"), "app in (web)"), none);
        assert_eq!(scalers.claim(&Key::new("shop", "c"), "app=db"), none);
        let pod = json!({"metadata": {"name": "p", "labels": {"app": "web"}}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(scalers.others(&own, &[pod]), ["shop/b"]);
        assert_eq!(scalers.others(&own, &[]), none);
    }

    #[test]
    fn metrics_of_one_resource_read_its_samples_once() {
        let spec = HorizontalPodAutoscalerSpec::default();
        let metric = |share: i64| -> MetricSpec {
            let target = json!({"type": "Utilization", "averageUtilization": share});
            let metric = json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
            serde_json::from_value(metric).unwrap()
        };
        let metrics: Vec<MetricSpec> = (1..=100).map(metric).collect();
        let pod = json!({"metadata": {"name": "p"}, "timestamp": "2026-01-01T00:00:00Z",
            "containers": [{"name": "c", "usage": {"cpu": "1"}}]});
        let pod = DynamicObject(pod.as_object().cloned().unwrap());
        let used: Result<Vec<DynamicObject>, String> = Ok(vec![pod]);
        let mut measured = Measured {
            pods: &[],
            used: &used,
            samples: HashMap::new(),
            now: Timestamp::UNIX_EPOCH,
        };
        for metric in &metrics {
            let read = reading(metric, &spec, "shop", 1, &mut measured);
            assert!(read.is_err(), "there are no pods");
        }
        let known: Vec<&Samples> = measured.samples.values().collect();
        assert!(matches!(known.as_slice(), [only] if only.contains_key("p")));
    }
}
