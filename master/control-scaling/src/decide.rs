//! The decision of an autoscaler, from its specification, the current scale and the number that
//! each metric asks for. Pure over its memory.

use super::limits::{Explanation, Limited, Memory};
use super::metrics::quantity;
use super::replicas::Proposal;
use config_kube::k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscalerSpec, MetricSpec};
use serde_json::{Value, json};
use std::time::Instant;

/// A condition to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Its type.
    pub kind: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// Why, in one CamelCase word.
    pub reason: &'static str,
    /// For a person.
    pub message: String,
}

/// The number of replicas that a metric proposes, or why it proposes none.
pub type Reading = Result<Proposal, Fault>;

/// Why a metric cannot be evaluated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The reason of condition and event.
    pub reason: &'static str,
    /// For a person.
    pub message: String,
}

/// The observed state of the target.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// The desired number of replicas.
    pub replicas: i32,
    /// What each metric of the specification asks for, in its order; or what was wrong with the
    /// target's selector.
    pub readings: Result<Vec<Reading>, Condition>,
}

/// The decision: replicas, conditions and warnings.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Replicas that the target is to have; none where nothing could be decided.
    pub replicas: Option<i32>,
    /// Why the number changes.
    pub reason: String,
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// Metrics as the status shows them.
    pub current: Vec<Value>,
    /// Warnings for people: reason and message.
    pub warnings: Vec<(&'static str, String)>,
}

/// A condition.
pub(super) fn condition(
    kind: &'static str,
    holds: bool,
    reason: &'static str,
    message: impl Into<String>,
) -> Condition {
    Condition {
        kind,
        holds,
        reason,
        message: message.into(),
    }
}

/// Whether metrics decide: the target is neither switched off nor out of its bounds.
pub fn needs_metrics(spec: &HorizontalPodAutoscalerSpec, replicas: i32) -> bool {
    let least = spec.min_replicas.unwrap_or(1);
    !(replicas == 0 && least != 0) && (least..=spec.max_replicas).contains(&replicas)
}

/// Decides how many replicas the target is to have.
pub fn decide(
    spec: &HorizontalPodAutoscalerSpec,
    observed: &Observed,
    memory: &mut Memory,
    now: Instant,
) -> Decision {
    memory.begin(observed.replicas, now);
    let mut decision = Decision {
        replicas: Some(observed.replicas),
        reason: String::new(),
        conditions: vec![condition(
            "AbleToScale",
            true,
            "SucceededGetScale",
            "the HPA controller was able to get the target's current scale",
        )],
        current: Vec::new(),
        warnings: Vec::new(),
    };
    if needs_metrics(spec, observed.replicas) {
        by_metrics(spec, observed, memory, now, &mut decision);
    } else {
        by_bounds(spec, observed.replicas, &mut decision);
    }
    decision
}

fn by_bounds(spec: &HorizontalPodAutoscalerSpec, replicas: i32, decision: &mut Decision) {
    let least = spec.min_replicas.unwrap_or(1);
    if replicas == 0 {
        decision.conditions.push(condition(
            "ScalingActive",
            false,
            "ScalingDisabled",
            "scaling is disabled since the replica count of the target is zero",
        ));
    } else if replicas > spec.max_replicas {
        decision.replicas = Some(spec.max_replicas);
        "Current number of replicas above Spec.MaxReplicas".clone_into(&mut decision.reason);
    } else {
        decision.replicas = Some(least);
        "Current number of replicas below Spec.MinReplicas".clone_into(&mut decision.reason);
    }
}

/// What the metrics ask for together.
struct Proposals<'a> {
    /// The largest count that a metric asks for, and that metric's name.
    best: Option<(i32, String)>,
    /// The first metric that can't be read, and how a message names it.
    first_fault: Option<(&'a Fault, String)>,
    faults: usize,
}

/// Reads what each metric asks for, and notes it in the decision.
fn proposals<'a>(
    metrics: &[MetricSpec],
    readings: &'a [Reading],
    decision: &mut Decision,
) -> Proposals<'a> {
    let mut all = Proposals {
        best: None,
        first_fault: None,
        faults: 0,
    };
    for (metric, reading) in metrics.iter().zip(readings) {
        match reading {
            Ok(proposal) => {
                decision.current.push(shown(metric, proposal));
                let most = all.best.as_ref().map(|(most, _)| *most);
                if most.is_none_or(|most| proposal.replicas > most) {
                    all.best = Some((proposal.replicas, name(metric)));
                }
            }
            Err(fault) => {
                all.faults += 1;
                let message = fault.message.clone();
                decision.warnings.push((fault.reason, message));
                all.first_fault
                    .get_or_insert_with(|| (fault, wrapped(metric, &fault.message)));
            }
        }
    }
    all
}

fn by_metrics(
    spec: &HorizontalPodAutoscalerSpec,
    observed: &Observed,
    memory: &mut Memory,
    now: Instant,
    decision: &mut Decision,
) {
    let metrics = spec.metrics.as_deref().unwrap_or_default();
    let readings = match &observed.readings {
        Ok(readings) => readings,
        Err(condition) => {
            decision
                .warnings
                .push((condition.reason, condition.message.clone()));
            decision.conditions.push(condition.clone());
            decision.replicas = None;
            return;
        }
    };
    let Proposals {
        best,
        first_fault,
        faults,
    } = proposals(metrics, readings, decision);
    if let Some((fault, message)) = &first_fault {
        let message = format!(
            "invalid metrics ({faults} invalid out of {}), first error is: {message}",
            metrics.len()
        );
        // A missing metric might ask for more: without it the target is not scaled down.
        let unsafe_ = best
            .as_ref()
            .is_none_or(|(most, _)| *most < observed.replicas);
        if unsafe_ {
            let words = format!(
                "the HPA was unable to compute the replica count: {}",
                fault.message
            );
            decision
                .conditions
                .push(condition("ScalingActive", false, fault.reason, words));
            decision
                .warnings
                .push(("FailedComputeMetricsReplicas", message));
            decision.replicas = None;
            return;
        }
    }
    let (wanted, metric) = best.unwrap_or_default();
    let words = format!("the HPA was able to successfully calculate a replica count from {metric}");
    decision
        .conditions
        .push(condition("ScalingActive", true, "ValidMetricFound", words));
    let limited = memory.limit(spec, observed.replicas, wanted, now);
    bound(&limited, decision);
    if wanted > observed.replicas {
        decision.reason = format!("{metric} above target");
    } else if wanted < observed.replicas {
        "All metrics below target".clone_into(&mut decision.reason);
    }
}

fn bound(limited: &Limited, decision: &mut Decision) {
    let Explanation { reason, message } = limited.able;
    decision
        .conditions
        .retain(|condition| condition.kind != "AbleToScale");
    decision
        .conditions
        .push(condition("AbleToScale", true, reason, message));
    let Explanation { reason, message } = limited.why;
    let held = limited.limited;
    decision
        .conditions
        .push(condition("ScalingLimited", held, reason, message));
    decision.replicas = Some(limited.replicas);
}

/// Whether the target of a metric is a share of requests.
fn is_share(metric: &MetricSpec) -> bool {
    let resource = metric.resource.as_ref().map(|one| &one.target);
    let container = metric.container_resource.as_ref().map(|one| &one.target);
    resource
        .or(container)
        .is_some_and(|target| target.average_utilization.is_some())
}

/// A metric's name in messages.
fn name(metric: &MetricSpec) -> String {
    let (resource, what) = match (&metric.resource, &metric.container_resource) {
        (Some(one), _) => (&one.name, "resource"),
        (None, Some(one)) => (&one.name, "container resource"),
        (None, None) => return metric.type_.clone(),
    };
    if is_share(metric) {
        format!("{resource} {what} utilization (percentage of request)")
    } else {
        format!("{resource} {what}")
    }
}

/// A fault with the metric that it is of.
fn wrapped(metric: &MetricSpec, message: &str) -> String {
    let what = match (&metric.resource, &metric.container_resource) {
        (Some(one), _) => format!("{} resource metric", one.name),
        (None, Some(one)) => format!("{} container metric", one.name),
        (None, None) => format!("{} metric", metric.type_.to_lowercase()),
    };
    format!("failed to get {what} value: {message}")
}

/// A metric as the status shows it.
fn shown(metric: &MetricSpec, proposal: &Proposal) -> Value {
    let mut current = json!({"averageValue": quantity(proposal.average)});
    if let Some(share) = proposal.utilization {
        current["averageUtilization"] = share.into();
    }
    match (&metric.resource, &metric.container_resource) {
        (Some(one), _) => {
            json!({"type": "Resource", "resource": {"name": one.name, "current": current}})
        }
        (None, Some(one)) => json!({"type": "ContainerResource", "containerResource": {
            "name": one.name, "container": one.container, "current": current}}),
        (None, None) => json!({"type": metric.type_}),
    }
}
