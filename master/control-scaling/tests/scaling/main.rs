//! HorizontalPodAutoscalers: upstream's formula by upstream's cases, bounds and windows by its
//! documentation, and the results at the API.

#![allow(
    clippy::unwrap_used,
    clippy::needless_pass_by_value,
    reason = "tests may stop at the first surprise, and cases are written in place"
)]

mod cluster;
mod selectors;

use cluster::{Cluster, eventually};
use config_kube::k8s_openapi::api::apps::v1::Deployment;
use config_kube::k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec,
};
use config_kube::k8s_openapi::api::core::v1::Pod;
use jiff::{SignedDuration, Timestamp};
use master_control_scaling::{
    Fault, Memory, MetricQuery, Observed, Proposal, Sample, Samples, Target, Tolerance, decide,
    propose,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

fn now() -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_hours(500_000)
}

fn ask(target: Target) -> MetricQuery<'static> {
    MetricQuery {
        resource: "cpu",
        container: None,
        target,
        tolerance: Tolerance { down: 0.1, up: 0.1 },
    }
}

/// A pod that began an hour ago and requests one CPU, by a letter: ready, unready from its
/// beginning, failed, being deleted, pending.
fn pod(number: usize, letter: char, request: &str) -> Pod {
    let hour = now() - SignedDuration::from_hours(1);
    let phase = match letter {
        'f' => "Failed",
        'p' => "Pending",
        _ => "Running",
    };
    let ready = if letter == 'u' { "False" } else { "True" };
    let deleted = (letter == 'd').then(|| now().to_string());
    let requests = if request.is_empty() {
        json!({})
    } else {
        json!({"cpu": request})
    };
    serde_json::from_value(json!({
        "metadata": {"name": format!("p{number}"), "deletionTimestamp": deleted},
        "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]},
        "status": {"phase": phase, "startTime": hour.to_string(),
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": hour.to_string()}]},
    }))
    .unwrap()
}

fn samples(levels: &[i64]) -> Samples {
    let window = SignedDuration::from_secs(30);
    let sample = |value| Sample {
        value,
        at: now(),
        window,
    };
    let named = levels.iter().enumerate();
    named
        .map(|(number, value)| (format!("p{number}"), sample(*value)))
        .collect()
}

/// Pods by their letters, levels of the first of them in thousandths, the target in per cent, the
/// number now; and what is expected: the number, the use in per cent.
type Case = (
    &'static str,
    &'static [i64],
    i32,
    i32,
    Result<(i32, i32), &'static str>,
);

/// Cases of upstream's `replica_calculator_test.go`, with its numbers.
const CASES: &[(&str, Case)] = &[
    ("scale up", ("rrr", &[300, 500, 700], 30, 3, Ok((5, 50)))),
    (
        "unready pods scale up less",
        ("urr", &[300, 500, 700], 30, 3, Ok((4, 60))),
    ),
    (
        "unready pods stop it",
        ("ruu", &[400, 500, 700], 30, 3, Ok((3, 40))),
    ),
    (
        "failed pods are ignored",
        ("rrff", &[500, 700], 30, 2, Ok((4, 60))),
    ),
    (
        "deleted pods are ignored",
        ("rrdd", &[500, 700], 30, 2, Ok((4, 60))),
    ),
    (
        "pending pods scale up less",
        ("rrrp", &[300, 500, 700], 30, 4, Ok((5, 50))),
    ),
    (
        "scale down",
        ("rrrrr", &[100, 300, 500, 250, 250], 50, 5, Ok((3, 28))),
    ),
    (
        "unready pods are ignored",
        ("rrruu", &[100, 300, 500, 250, 250], 50, 5, Ok((2, 30))),
    ),
    (
        "within the tolerance",
        ("rrr", &[1010, 1030, 1020], 100, 3, Ok((3, 102))),
    ),
    (
        "missing, as it should be",
        ("rr", &[1000], 100, 2, Ok((2, 100))),
    ),
    ("missing, above", ("rr", &[1900], 100, 2, Ok((2, 190)))),
    ("missing, below", ("rr", &[600], 100, 2, Ok((2, 60)))),
    (
        "missing and unready, no change",
        ("urr", &[100, 450], 50, 3, Ok((3, 45))),
    ),
    (
        "missing and unready, up",
        ("urr", &[100, 2000], 50, 3, Ok((4, 200))),
    ),
    (
        "missing and unready, down",
        ("urrr", &[100, 100, 100], 50, 4, Ok((3, 10))),
    ),
    (
        "no pods",
        (
            "",
            &[],
            50,
            1,
            Err("no pods returned by selector while calculating replica count"),
        ),
    ),
    (
        "all unready",
        (
            "uu",
            &[100, 100],
            50,
            2,
            Err("did not receive metrics for targeted pods (pods might be unready)"),
        ),
    ),
];

#[test]
fn upstreams_cases_give_upstreams_results() {
    for (name, (letters, levels, target, current, expected)) in CASES {
        let pods = letters.chars().enumerate();
        let pods: Vec<Pod> = pods
            .map(|(number, letter)| pod(number, letter, "1"))
            .collect();
        let ask = ask(Target::Utilization(*target));
        let found = propose(&ask, *current, &pods, samples(levels), now());
        let found = found.map(|found| (found.replicas, found.utilization.unwrap_or_default()));
        assert_eq!(found, expected.map_err(str::to_owned), "{name}");
    }
}

#[test]
fn a_container_without_a_request_has_no_utilization_and_has_an_average() {
    let pods = [pod(0, 'r', "1"), pod(1, 'r', "")];
    let share = propose(
        &ask(Target::Utilization(50)),
        2,
        &pods,
        samples(&[1, 1]),
        now(),
    );
    let words = "missing request for cpu in container c of Pod p1";
    assert_eq!(share, Err(words.to_owned()));
    let average = propose(
        &ask(Target::Average(100)),
        2,
        &pods,
        samples(&[200, 400]),
        now(),
    );
    let expected = Proposal {
        replicas: 6,
        utilization: None,
        average: 300,
    };
    assert_eq!(average, Ok(expected));
}

#[test]
fn a_container_metric_compares_with_that_containers_request_alone() {
    let with_sidecar = |number| {
        let mut pod = pod(number, 'r', "1");
        let sidecar = json!({"name": "sidecar", "resources": {"requests": {"cpu": "3"}}});
        let containers = &mut pod.spec.as_mut().unwrap().containers;
        containers.push(serde_json::from_value(sidecar).unwrap());
        pod
    };
    let pods = [with_sidecar(0), with_sidecar(1)];
    // The container, and of two pods that use one CPU each against half of what is requested: the
    // number, the use in per cent.
    let table = [
        (Some("c"), (4, 100)),
        (Some("sidecar"), (2, 33)),
        (None, (1, 25)),
    ];
    for (container, expected) in table {
        let ask = MetricQuery {
            container,
            ..ask(Target::Utilization(50))
        };
        let found = propose(&ask, 2, &pods, samples(&[1000, 1000]), now()).unwrap();
        assert_eq!(
            (found.replicas, found.utilization.unwrap()),
            expected,
            "{container:?}"
        );
    }
}

#[test]
fn each_direction_has_its_tolerance() {
    // Tolerances down and up, the use of each of ten pods in per cent of the target, and their
    // number then.
    let table = [
        (0.1, 0.1, 120, 12),
        (0.1, 0.3, 120, 10),
        (0.1, 0.3, 140, 14),
        (0.1, 0.3, 80, 8),
        (0.3, 0.1, 80, 10),
        (0.3, 0.1, 60, 6),
        (0.0, 0.0, 101, 11),
    ];
    let pods: Vec<Pod> = (0..10).map(|number| pod(number, 'r', "1")).collect();
    for (down, up, used, expected) in table {
        let ask = MetricQuery {
            tolerance: Tolerance { down, up },
            ..ask(Target::Utilization(100))
        };
        let found = propose(&ask, 10, &pods, samples(&[used * 10; 10]), now());
        assert_eq!(found.unwrap().replicas, expected, "{down} {up} {used}");
    }
}

#[test]
fn the_usage_of_a_starting_pod_is_ignored() {
    let mut young = pod(1, 'r', "1");
    let minute = now() - SignedDuration::from_mins(1);
    let status = young.status.as_mut().unwrap();
    status.start_time.as_mut().unwrap().0 = minute;
    let since = &mut status.conditions.as_mut().unwrap()[0].last_transition_time;
    since.as_mut().unwrap().0 = now() - SignedDuration::from_secs(10);
    let young = [pod(0, 'r', "1"), young];
    let old = [pod(0, 'r', "1"), pod(1, 'r', "1")];
    // The window of the young pod's sample begins before it was ready: its 4 CPUs are those of its
    // beginning.
    let [young, old] = [young, old].map(|pods| {
        let levels = samples(&[500, 4000]);
        let found = propose(&ask(Target::Utilization(50)), 2, &pods, levels, now());
        found.unwrap().replicas
    });
    assert_eq!((young, old), (2, 9));
}

proptest! {
    /// With all pods ready and known, the number is upstream's documented formula: ceil(current *
    /// use / target).
    #[test]
    fn complete_metrics_follow_the_documented_formula(
        levels in proptest::collection::vec(1_i64..5000, 1..30), target in 1_i32..200,
    ) {
        let current = i32::try_from(levels.len()).unwrap();
        let pods: Vec<Pod> = (0..levels.len()).map(|number| pod(number, 'r', "1")).collect();
        let found = propose(&ask(Target::Utilization(target)), current, &pods, samples(&levels), now()).unwrap();
        let used = levels.iter().sum::<i64>() * 100 / (1000 * i64::from(current));
        prop_assert_eq!(found.utilization.map(i64::from), Some(used));
        let target = i64::from(target);
        let exact = (i64::from(current) * used + target - 1) / target;
        let near = (used * 10 - target * 10).abs() <= target;
        let expected = if near { i64::from(current) } else { exact };
        // Upstream's floating-point numbers may lie above an exact whole.
        let found = i64::from(found.replicas);
        let on_edge = (used * 10 - target * 10).abs() == target;
        prop_assert!(on_edge || found == expected || found == expected + 1, "{} {}", found, expected);
        prop_assert!(on_edge || found == expected || i64::from(current) * used % target == 0);
    }

    /// Missing samples or readiness never move the number further than the known samples ask for.
    #[test]
    fn missing_metrics_never_increase_a_change(
        pods in proptest::collection::vec((prop_oneof![Just('r'), Just('u'), Just('p'), Just('m')], 1_i64..3000), 1..20),
        target in 1_i32..200,
    ) {
        let made = |(number, (letter, _)): (usize, &(char, i64))| pod(number, *letter, "1");
        let all: Vec<Pod> = pods.iter().enumerate().map(made).collect();
        let current = i32::try_from(pods.len()).unwrap();
        let mut known = samples(&pods.iter().map(|(_, level)| *level).collect::<Vec<_>>());
        known.retain(|name, _| pods[name[1..].parse::<usize>().unwrap()].0 != 'm');
        let ask = ask(Target::Utilization(target));
        if let Ok(found) = propose(&ask, current, &all, known, now()) {
            let used = found.utilization.unwrap();
            prop_assert!(found.replicas <= current || used > target);
            prop_assert!(found.replicas >= current || used < target);
        }
    }
}

fn spec(least: i32, most: i32, behavior: Value) -> HorizontalPodAutoscalerSpec {
    serde_json::from_value(json!({
        "minReplicas": least, "maxReplicas": most, "behavior": behavior,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "metrics": [{"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": 50}}}],
    }))
    .unwrap()
}

/// An autoscaler's decisions over time.
struct Scaler {
    spec: HorizontalPodAutoscalerSpec,
    memory: Memory,
    start: Instant,
    replicas: i32,
}

impl Scaler {
    fn new(replicas: i32, spec: HorizontalPodAutoscalerSpec) -> Self {
        Self {
            spec,
            memory: Memory::default(),
            start: Instant::now(),
            replicas,
        }
    }

    /// Decides at a time; metrics ask for a number. The replicas that there are then, and the
    /// reasons of conditions.
    fn at(&mut self, seconds: u64, wanted: i32) -> (i32, Vec<&'static str>) {
        let now = self.start + Duration::from_secs(seconds);
        let reading = Ok(Proposal {
            replicas: wanted,
            utilization: None,
            average: 0,
        });
        let observed = Observed {
            replicas: self.replicas,
            readings: Ok(vec![reading]),
        };
        let decision = decide(&self.spec, &observed, &mut self.memory, now);
        let to = decision.replicas.unwrap();
        self.memory.scaled(self.replicas, to, now);
        self.replicas = to;
        (
            to,
            decision.conditions.iter().map(|one| one.reason).collect(),
        )
    }
}

#[test]
fn without_a_behaviour_it_doubles_at_most_and_shrinks_after_five_minutes() {
    let mut scaler = Scaler::new(1, spec(1, 30, Value::Null));
    let within = ["ValidMetricFound", "ReadyForNewScale", "DesiredWithinRange"];
    let fast = ["ValidMetricFound", "ReadyForNewScale", "ScaleUpLimit"];
    assert_eq!(scaler.at(0, 100), (4, fast.to_vec()));
    assert_eq!(scaler.at(15, 100), (8, fast.to_vec()));
    assert_eq!(scaler.at(30, 100).0, 16);
    let most = ["ValidMetricFound", "ReadyForNewScale", "TooManyReplicas"];
    assert_eq!(scaler.at(45, 100), (30, most.to_vec()));
    let stable = ["ValidMetricFound", "ScaleDownStabilized", "TooManyReplicas"];
    assert_eq!(scaler.at(60, 10), (30, stable.to_vec()));
    assert_eq!(scaler.at(344, 10).0, 30);
    assert_eq!(scaler.at(345, 10), (10, within.to_vec()));
    let few = ["ValidMetricFound", "ReadyForNewScale", "TooFewReplicas"];
    assert_eq!(scaler.at(1000, 0), (1, few.to_vec()));
}

#[test]
fn policies_bound_the_change_within_their_periods_as_documented() {
    // The documentation's example: 4 pods or a tenth in a minute, whichever is more, from 80 down
    // to 10.
    let down = json!({"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 60}, {"type": "Percent", "value": 10, "periodSeconds": 60}]});
    let mut scaler = Scaler::new(80, spec(1, 100, json!({"scaleDown": down})));
    let found: Vec<i32> = (0..6).map(|minute| scaler.at(minute * 61, 10).0).collect();
    assert_eq!(found, [72, 64, 57, 51, 45, 40]);
    // Within the period no further pod is removed.
    assert_eq!(scaler.at(5 * 61 + 30, 10).0, 40);
    assert_eq!(scaler.at(6 * 61, 10).0, 36);

    let up = json!({"stabilizationWindowSeconds": 0, "selectPolicy": "Min", "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15}, {"type": "Percent", "value": 100, "periodSeconds": 15}]});
    let mut scaler = Scaler::new(2, spec(1, 100, json!({"scaleUp": up})));
    assert_eq!(
        [0, 15, 30].map(|second| scaler.at(second, 50).0),
        [4, 8, 12]
    );
    let off = json!({"scaleDown": {"selectPolicy": "Disabled"}});
    let mut scaler = Scaler::new(5, spec(1, 100, off));
    assert_eq!(scaler.at(9999, 1).0, 5);
}

#[test]
fn windows_hold_back_both_ways() {
    let rules = |seconds: i32| json!({"stabilizationWindowSeconds": seconds, "policies": [{"type": "Pods", "value": 100, "periodSeconds": 1}]});
    let behavior = json!({"scaleUp": rules(60), "scaleDown": rules(120)});
    let mut scaler = Scaler::new(5, spec(1, 100, behavior));
    assert_eq!(
        scaler.at(0, 10),
        (
            5,
            vec![
                "ValidMetricFound",
                "ScaleUpStabilized",
                "DesiredWithinRange"
            ]
        )
    );
    assert_eq!(scaler.at(59, 10).0, 5);
    assert_eq!(scaler.at(61, 10).0, 10);
    assert_eq!(
        scaler.at(62, 3),
        (
            10,
            vec![
                "ValidMetricFound",
                "ScaleDownStabilized",
                "DesiredWithinRange"
            ]
        )
    );
    assert_eq!(scaler.at(182, 3).0, 3);
}

#[test]
fn failing_metrics_never_scale_down_and_are_reported() {
    let mut both = spec(1, 10, Value::Null);
    let metrics = both.metrics.as_mut().unwrap();
    metrics.push(metrics[0].clone());
    let fault = || Fault {
        reason: "FailedGetResourceMetric",
        message: "why".to_owned(),
    };
    let reading = |replicas| {
        Ok(Proposal {
            replicas,
            utilization: None,
            average: 0,
        })
    };
    let decided = |first, second| {
        let observed = Observed {
            replicas: 4,
            readings: Ok(vec![first, second]),
        };
        decide(&both, &observed, &mut Memory::default(), Instant::now())
    };
    let none = decided(Err(fault()), reading(2));
    assert_eq!(none.replicas, None);
    let active = none
        .conditions
        .iter()
        .find(|one| one.kind == "ScalingActive")
        .unwrap();
    let words = "the HPA was unable to compute the replica count: why";
    assert_eq!(
        (active.holds, active.reason, active.message.as_str()),
        (false, "FailedGetResourceMetric", words)
    );
    let message = "invalid metrics (1 invalid out of 2), first error is: failed to get cpu resource metric value: why";
    assert!(
        none.warnings
            .contains(&("FailedComputeMetricsReplicas", message.to_owned()))
    );
    assert_eq!(decided(reading(6), Err(fault())).replicas, Some(6));
    assert_eq!(decided(Err(fault()), Err(fault())).replicas, None);
}

#[test]
fn bounds_precede_metrics_and_zero_replicas_disable_scaling() {
    for (replicas, expected) in [(0, 0), (1, 2), (9, 7)] {
        let observed = Observed {
            replicas,
            readings: Ok(Vec::new()),
        };
        let found = decide(
            &spec(2, 7, Value::Null),
            &observed,
            &mut Memory::default(),
            Instant::now(),
        );
        assert_eq!(found.replicas, Some(expected), "{replicas}");
    }
}

fn conditions(scaler: &HorizontalPodAutoscaler) -> Vec<(String, String, String)> {
    let all = scaler.status.clone().unwrap_or_default().conditions;
    let all = all.unwrap_or_default().into_iter();
    all.map(|one| (one.type_, one.status, one.reason.unwrap_or_default()))
        .collect()
}

async fn says(cluster: &Cluster, wanted: (&str, &str, &str)) {
    let wanted = (
        wanted.0.to_owned(),
        wanted.1.to_owned(),
        wanted.2.to_owned(),
    );
    eventually(&format!("it says {wanted:?}"), || async {
        let said = conditions(&cluster.get("web").await);
        if said.contains(&wanted) {
            Ok(())
        } else {
            Err(format!("{said:?}"))
        }
    })
    .await;
}

async fn until_there_are(cluster: &Cluster, numbers: &[i32]) {
    eventually(&format!("there are {numbers:?}"), || async {
        let found: Deployment = cluster.get("web").await;
        match found.spec.and_then(|spec| spec.replicas) {
            Some(number) if numbers.contains(&number) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_autoscaler_follows_usage_and_reports_missing_metrics() {
    let used = Arc::new(AtomicI64::new(-1));
    let cluster = Cluster::using(&used).await;
    let container = json!({"name": "c", "image": "registry.example/c:1", "resources": {"requests": {"cpu": "100m"}}});
    let _made: Deployment = cluster.create(json!({"metadata": {"namespace": "default", "name": "web"}, "spec": {
        "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"nodeName": cluster::NODE, "containers": [container]}}}})).await;
    let window = json!({"scaleDown": {"stabilizationWindowSeconds": 20}});
    let scaler =
        json!({"metadata": {"namespace": "default", "name": "web"}, "spec": spec(1, 5, window)});
    let _made: HorizontalPodAutoscaler = cluster.create(scaler.clone()).await;
    says(
        &cluster,
        ("ScalingActive", "False", "FailedGetResourceMetric"),
    )
    .await;
    let found: HorizontalPodAutoscaler = cluster.get("web").await;
    let said = found.status.unwrap().conditions.unwrap();
    let active = said
        .iter()
        .find(|one| one.type_ == "ScalingActive")
        .unwrap();
    let words = "the HPA was unable to compute the replica count: failed to get cpu utilization: unable to get metrics for \
                 resource cpu: no metrics returned from resource metrics API";
    assert_eq!(active.message.as_deref(), Some(words));
    let events = cluster.reasons().await;
    assert!(
        events.contains("FailedComputeMetricsReplicas")
            && events.contains("FailedGetResourceMetric"),
        "{events:?}"
    );

    // The next look sees that every pod uses twice what it should: 2 become 4.
    used.store(100, Ordering::Relaxed);
    until_there_are(&cluster, &[4, 5]).await;
    says(&cluster, ("ScalingActive", "True", "ValidMetricFound")).await;
    eventually("the event", || async {
        let events = cluster.reasons().await;
        if events.contains("SuccessfulRescale") {
            Ok(())
        } else {
            Err(format!("{events:?}"))
        }
    })
    .await;

    // And then a fifth of what it should: one is enough, once the window has passed.
    used.store(10, Ordering::Relaxed);
    until_there_are(&cluster, &[1]).await;

    let missing = json!({"metadata": {"namespace": "default", "name": "none"}, "spec": {
        "maxReplicas": 2, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "none"}}});
    let _made: HorizontalPodAutoscaler = cluster.create(missing).await;
    eventually("the condition of a target that is not there", || async {
        let said = conditions(&cluster.get("none").await);
        let wanted = (
            "AbleToScale".to_owned(),
            "False".to_owned(),
            "FailedGetScale".to_owned(),
        );
        if said == [wanted] {
            Ok(())
        } else {
            Err(format!("{said:?}"))
        }
    })
    .await;
}

#[test]
fn changes_may_be_as_large_as_there_are() {
    let policies = json!([{"type": "Pods", "value": i32::MAX, "periodSeconds": 1800}]);
    let behavior = json!({"scaleUp": {"policies": policies}, "scaleDown": {"policies": policies}});
    let (mut memory, now) = (Memory::default(), Instant::now());
    for _ in 0..3 {
        memory.scaled(0, i32::MAX, now);
        memory.scaled(i32::MAX, 0, now);
    }
    let spec = spec(1, i32::MAX, behavior);
    assert_eq!(memory.limit(&spec, 1, i32::MAX, now).replicas, i32::MAX);
    memory.limit(&spec, i32::MAX, 1, now);
}
