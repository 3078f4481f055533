//! The number of replicas that the usage of a resource asks for (upstream:
//! `replica_calculator.go`). Pure.
//!
//! The ratio of use to target gives the number; missing samples must not increase a change: pods
//! without samples count with the value that argues against the change, and so do pods that have
//! just started.

use super::metrics::{Sample, Samples, milli, requests};
use config_kube::k8s_openapi::api::core::v1::{Pod, PodCondition};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// How long after its start a pod's CPU use counts as that of starting (upstream:
/// `cpu-initialization-period`).
const CPU_INITIALIZATION_PERIOD: SignedDuration = SignedDuration::from_mins(5);
/// A pod that became unready this early has never been ready (upstream: `initial-readiness-delay`).
const INITIAL_READINESS_DELAY: SignedDuration = SignedDuration::from_secs(30);

/// The target of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Per cent of what pods request.
    Utilization(i32),
    /// A value for each pod, in thousandths.
    Average(i64),
}

/// By how much the ratio may differ from one without a change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Below one.
    pub down: f64,
    /// Above one.
    pub up: f64,
}

impl Tolerance {
    fn holds(self, ratio: f64) -> bool {
        1.0 - self.down <= ratio && ratio <= 1.0 + self.up
    }
}

/// A request for one resource's recommendation.
#[derive(Debug, Clone, Copy)]
pub struct MetricQuery<'a> {
    /// `cpu` or `memory`.
    pub resource: &'a str,
    /// Only this container of each pod.
    pub container: Option<&'a str>,
    /// The target.
    pub target: Target,
    /// The tolerance.
    pub tolerance: Tolerance,
}

/// What a metric asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proposal {
    /// Replicas.
    pub replicas: i32,
    /// Per cent of what pods request, where that is the target.
    pub utilization: Option<i32>,
    /// Average use of a pod, in thousandths.
    pub average: i64,
}

/// The use of all pods that have samples.
#[derive(Debug, Clone, Copy)]
struct Usage {
    ratio: f64,
    utilization: Option<i32>,
    average: i64,
}

#[expect(
    clippy::cast_precision_loss,
    reason = "upstream computes with the same floating-point numbers"
)]
const fn float(number: i64) -> f64 {
    number as f64
}

/// The next whole number; a number that is too large is the largest.
#[expect(clippy::cast_possible_truncation, reason = "the conversion saturates")]
const fn ceil(number: f64) -> i32 {
    number.ceil() as i32
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Pods by what their samples are worth.
#[derive(Debug, Default)]
struct Groups {
    ready: i64,
    unready: BTreeSet<String>,
    missing: BTreeSet<String>,
    ignored: BTreeSet<String>,
}

fn ready(pod: &Pod) -> Option<&PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|one| one.type_ == "Ready")
}

/// Whether a CPU sample is of a pod that is still starting.
fn is_initializing(pod: &Pod, sample: &Sample, now: Timestamp) -> bool {
    let started = pod
        .status
        .as_ref()
        .and_then(|status| Some(status.start_time.as_ref()?.0));
    let (Some(started), Some(ready)) = (started, ready(pod)) else {
        return true;
    };
    let changed = ready
        .last_transition_time
        .as_ref()
        .map_or(Timestamp::MIN, |time| time.0);
    let refused = ready.status == "False";
    // Checked: the kubelet writes the start time, and a broken one may write any.
    let begun = |wait| started.checked_add(wait).unwrap_or(Timestamp::MAX);
    if begun(CPU_INITIALIZATION_PERIOD) > now {
        let whole = changed.checked_add(sample.window).unwrap_or(Timestamp::MAX);
        refused || sample.at < whole
    } else {
        refused && begun(INITIAL_READINESS_DELAY) > changed
    }
}

fn group(pods: &[Pod], samples: &Samples, resource: &str, now: Timestamp) -> Groups {
    let mut groups = Groups::default();
    for pod in pods {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        if pod.metadata.deletion_timestamp.is_some() || phase == Some("Failed") {
            groups.ignored.insert(name);
        } else if phase.is_none_or(|phase| phase == "Pending") {
            groups.unready.insert(name);
        } else if let Some(sample) = samples.get(&name) {
            if resource == "cpu" && is_initializing(pod, sample, now) {
                groups.unready.insert(name);
            } else {
                groups.ready += 1;
            }
        } else {
            groups.missing.insert(name);
        }
    }
    groups
}

/// The use of pods that have samples, against the target.
fn usage(
    target: Target,
    samples: &Samples,
    requests: &BTreeMap<String, i64>,
) -> Result<Usage, String> {
    let (mut used, mut requested, mut known) = (0_i64, 0_i64, 0_i64);
    for (name, sample) in samples {
        match (target, requests.get(name)) {
            (Target::Utilization(_), None) => continue,
            (Target::Utilization(_), Some(request)) => {
                requested = requested.saturating_add(*request);
            }
            (Target::Average(_), _) => {}
        }
        used = used.saturating_add(sample.value);
        known += 1;
    }
    match target {
        Target::Utilization(_) if requested == 0 => {
            Err("no metrics returned matched known pods".to_owned())
        }
        Target::Utilization(wanted) => {
            let share = used.saturating_mul(100) / requested;
            Ok(Usage {
                ratio: float(share) / f64::from(wanted),
                utilization: Some(i32::try_from(share).unwrap_or(i32::MAX)),
                average: used / known.max(1),
            })
        }
        Target::Average(wanted) => {
            let average = used / known.max(1);
            Ok(Usage {
                ratio: float(average) / float(wanted),
                utilization: None,
                average,
            })
        }
    }
}

/// The number of replicas that a resource's use asks for.
///
/// # Errors
/// Why there is no such number, in upstream's words.
pub fn propose(
    query: &MetricQuery<'_>,
    current: i32,
    pods: &[Pod],
    mut samples: Samples,
    now: Timestamp,
) -> Result<Proposal, String> {
    if pods.is_empty() {
        return Err("no pods returned by selector while calculating replica count".to_owned());
    }
    let groups = group(pods, &samples, query.resource, now);
    samples.retain(|name, _| !groups.ignored.contains(name) && !groups.unready.contains(name));
    if samples.is_empty() {
        return Err("did not receive metrics for targeted pods (pods might be unready)".to_owned());
    }
    let requests = match query.target {
        Target::Utilization(_) => requests(pods, query.resource, query.container)?,
        Target::Average(_) => BTreeMap::new(),
    };
    let first = usage(query.target, &samples, &requests)?;
    let proposal = |replicas| Proposal {
        replicas,
        utilization: first.utilization,
        average: first.average,
    };
    let beginning = !groups.unready.is_empty() && first.ratio > 1.0;
    if !beginning && groups.missing.is_empty() {
        if query.tolerance.holds(first.ratio) {
            return Ok(proposal(current));
        }
        return Ok(proposal(ceil(first.ratio * float(groups.ready))));
    }
    assume_missing(
        query.target,
        first.ratio,
        &groups,
        &requests,
        &mut samples,
        now,
    );
    let second = usage(query.target, &samples, &requests)?.ratio;
    let turns = (first.ratio < 1.0 && second > 1.0) || (first.ratio > 1.0 && second < 1.0);
    if turns || query.tolerance.holds(second) {
        return Ok(proposal(current));
    }
    let replicas = ceil(second * float(count(samples.len())));
    let against = (second < 1.0 && replicas > current) || (second > 1.0 && replicas < current);
    Ok(proposal(if against { current } else { replicas }))
}

/// Gives pods without samples, and those that have just started, the value that argues against the
/// change.
fn assume_missing(
    target: Target,
    ratio: f64,
    groups: &Groups,
    requests: &BTreeMap<String, i64>,
    samples: &mut Samples,
    now: Timestamp,
) {
    let supposed = |value| Sample {
        value,
        at: now,
        window: SignedDuration::ZERO,
    };
    for name in &groups.missing {
        let value = match target {
            Target::Utilization(wanted) if ratio < 1.0 => {
                let request = requests.get(name).copied().unwrap_or_default();
                Some(request.saturating_mul(i64::from(wanted.max(100))) / 100)
            }
            Target::Average(wanted) if ratio < 1.0 => Some(wanted),
            Target::Utilization(_) => (ratio > 1.0).then_some(0),
            Target::Average(_) => Some(0),
        };
        if let Some(value) = value {
            samples.insert(name.clone(), supposed(value));
        }
    }
    if ratio > 1.0 {
        for name in &groups.unready {
            samples.insert(name.clone(), supposed(0));
        }
    }
}

/// The value of a quantity's text in thousandths, for a target.
pub(super) fn average_target(text: &str) -> Option<Target> {
    milli(text).map(Target::Average)
}
