//! PodDisruptionBudgets.

use crate::{Scene, at, kept, key, pod_of};
use config_kube::k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use config_kube::k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use master_client::View;
use master_control::controller::{Controller as _, Now};
use master_control_workloads::disruption_budget::{Action, Budget, DisruptionBudgets};
use master_control_workloads::workload::kept::Kept;
use master_control_workloads::workload::pod::OwnedPod;
use serde_json::{Value, json};
use std::time::Duration;

type Budgets = Scene<DisruptionBudgets>;

fn budget(spec: Value, status: Value) -> Budget {
    let mut budget = json!({
        "metadata": {"namespace": "default", "name": "b", "uid": "b-uid", "generation": 2, "resourceVersion": "7"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}}, "status": status,
    });
    for (field, value) in spec.as_object().unwrap() {
        budget["spec"][field] = value.clone();
    }
    let budget: PodDisruptionBudget = serde_json::from_value(budget).unwrap();
    Budget::read(budget)
}

/// A Deployment of `replicas`, with `ready` ready and `cold` not ready pods.
fn application(scene: &mut Budgets, replicas: i32, ready: usize, cold: usize) {
    let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": true});
    let deployment: Kept<Deployment> = kept(
        json!({"metadata": {"namespace": "default", "name": "web", "uid": "d"},
        "spec": {"replicas": replicas, "selector": {}, "template": {}}}),
    );
    scene.stand.set(key("web"), deployment);
    let set: Kept<ReplicaSet> = kept(
        json!({"metadata": {"namespace": "default", "name": "web-1", "uid": "web-1-uid",
        "ownerReferences": [owner]}, "spec": {"replicas": 1, "selector": {}}}),
    );
    scene.stand.set(key("web-1"), set);
    for number in 0..ready + cold {
        let name = format!("p{number}");
        let pod = OwnedPod {
            ready: (number < ready).then(|| at(0)),
            ..pod_of("ReplicaSet", "web-1", &name)
        };
        scene.stand.set(key(&name), pod);
    }
}

fn status(scene: &Budgets, seconds: u64) -> PodDisruptionBudgetStatus {
    let plan = scene.plan(&key("b"), seconds);
    let written = plan.actions.into_iter().find_map(|action| match action {
        Action::Status(_, version, status) => {
            assert_eq!(version, "7", "it has the version that was planned for");
            Some(*status)
        }
        Action::Event(..) => None,
    });
    written.expect("a status")
}

fn numbers(status: &PodDisruptionBudgetStatus) -> [i32; 4] {
    let number = |number: Option<i32>| number.unwrap();
    [
        number(status.expected_pods),
        number(status.desired_healthy),
        number(status.current_healthy),
        number(status.disruptions_allowed),
    ]
}

#[test]
fn as_many_disruptions_are_allowed_as_pods_are_healthy_beyond_the_wanted() {
    // Spec; replicas, ready and cold pods; expected, desired, healthy, allowed.
    let table = [
        (json!({"minAvailable": 2}), (3, 3, 0), [3, 2, 3, 1]),
        (json!({"minAvailable": 3}), (3, 2, 1), [3, 3, 2, 0]),
        (json!({"maxUnavailable": 1}), (3, 3, 0), [3, 2, 3, 1]),
        (json!({"maxUnavailable": 1}), (5, 3, 0), [5, 4, 3, 0]),
        (json!({"maxUnavailable": "30%"}), (7, 7, 0), [7, 4, 7, 3]),
        (json!({"minAvailable": "50%"}), (7, 7, 0), [7, 4, 7, 3]),
        (json!({"maxUnavailable": 9}), (3, 2, 1), [3, 0, 2, 2]),
        (json!({"minAvailable": 0}), (0, 0, 0), [0, 0, 0, 0]),
    ];
    for (spec, (replicas, ready, cold), expected) in table {
        let mut scene = Budgets::new();
        application(&mut scene, replicas, ready, cold);
        scene.stand.set(key("b"), budget(spec.clone(), json!({})));
        let status = status(&scene, 0);
        assert_eq!(numbers(&status), expected, "{spec}");
        let condition = &status.conditions.unwrap()[0];
        let says = if expected[3] > 0 {
            "SufficientPods"
        } else {
            "InsufficientPods"
        };
        assert_eq!(
            (condition.reason.as_str(), status.observed_generation),
            (says, Some(2))
        );
    }
}

#[test]
fn a_disrupted_pod_counts_as_unhealthy_until_its_entry_expires() {
    let mut scene = Budgets::new();
    application(&mut scene, 3, 3, 0);
    let noted = json!({"disruptedPods": {"p0": at(0).to_string(), "gone": at(0).to_string()}});
    scene
        .stand
        .set(key("b"), budget(json!({"minAvailable": 2}), noted));
    let plan = scene.plan(&key("b"), 0);
    assert_eq!(plan.requeue, Some(Duration::from_secs(120)));
    let plan = scene.plan(&key("b"), 20);
    assert_eq!(plan.requeue, Some(Duration::from_secs(100)));
    let found = status(&scene, 20);
    assert_eq!(numbers(&found), [3, 2, 2, 0]);
    let noted: Vec<_> = found.disrupted_pods.unwrap().into_keys().collect();
    assert_eq!(noted, ["p0"]);
    let late = scene.plan(&key("b"), 121);
    assert!(matches!(&late.actions[0], Action::Event(_, _, news) if news.reason == "NotDeleted"));
    assert_eq!(numbers(&status(&scene, 121)), [3, 2, 3, 1]);
    // A pod that is being deleted is not healthy, and needs no entry.
    let going = OwnedPod {
        deleted: Some(at(30)),
        ..pod_of("ReplicaSet", "web-1", "p0")
    };
    assert_eq!(scene.stand.set(key("p0"), going), [key("b")]);
    let found = status(&scene, 20);
    assert_eq!(
        (numbers(&found), found.disrupted_pods),
        ([3, 2, 2, 0], None)
    );
}

#[test]
fn a_set_clock_ends_no_entry_of_disrupted_pods() {
    let mut scene = Budgets::new();
    application(&mut scene, 3, 3, 0);
    let noted = json!({"disruptedPods": {"p0": at(0).to_string()}});
    let spec = json!({"minAvailable": 2});
    scene.stand.set(key("b"), budget(spec, noted));
    for hours in [0, 3, -3] {
        let now = Now {
            instant: scene.start,
            wall: at(hours * 3600),
        };
        let facts = scene.controller.facts(&key("b"), now).unwrap();
        let plan = DisruptionBudgets::plan(&facts, now);
        let Some(Action::Status(_, _, status)) = plan.actions.last() else {
            unreachable!("{plan:?}");
        };
        assert_eq!(numbers(status), [3, 2, 2, 0], "{hours}");
    }
}

#[test]
fn a_budget_with_an_unknown_number_of_pods_allows_no_disruption() {
    for (version, kind, words) in [
        (
            "apps/v1",
            "DaemonSet",
            "daemonsets.apps does not implement the scale subresource",
        ),
        (
            "batch/v1",
            "Job",
            "jobs.batch does not implement the scale subresource",
        ),
        (
            "v1",
            "Node",
            "nodes does not implement the scale subresource",
        ),
        (
            "example.com/v1",
            "Well",
            "no matches for kind \"Well\" in version \"example.com/v1\"",
        ),
        (
            "apps/v1",
            "StatefulSet",
            "found no controllers for pod \"p\"",
        ),
    ] {
        let mut scene = Budgets::new();
        scene
            .stand
            .set(key("b"), budget(json!({"maxUnavailable": 1}), json!({})));
        let mut pod = pod_of(kind, "web", "p");
        let owner = pod.owner.as_mut().unwrap();
        std::sync::Arc::make_mut(owner).api_version = version.to_owned();
        scene.stand.set(key("p"), pod);
        let plan = scene.plan(&key("b"), 0);
        let message = plan.actions.iter().find_map(|action| match action {
            Action::Event(_, _, news) => Some(news.message.as_str()),
            Action::Status(..) => None,
        });
        let expected = format!("Failed to calculate the number of expected pods: {words}");
        assert_eq!(message, Some(expected.as_str()));
        let status = status(&scene, 0);
        let condition = &status.conditions.unwrap()[0];
        assert_eq!(
            (
                condition.reason.as_str(),
                condition.message.as_str(),
                status.disruptions_allowed
            ),
            ("SyncFailed", words, Some(0))
        );
    }
}

#[test]
fn an_event_says_once_why_a_budget_protects_nothing() {
    let reasons = |scene: &Budgets| {
        let actions = scene.plan(&key("b"), 0).actions.into_iter();
        let found = actions.filter_map(|action| match action {
            Action::Event(_, _, news) => Some(news.reason),
            Action::Status(..) => None,
        });
        found.collect::<Vec<_>>()
    };
    let mut scene = Budgets::new();
    let set = |scene: &mut Budgets, spec: Value, status: Value| {
        scene.stand.set(key("b"), budget(spec, status));
    };
    let share = || json!({"maxUnavailable": 1});
    set(&mut scene, share(), json!({}));
    assert_eq!(reasons(&scene), ["NoPods"]);
    let written = json!(status(&scene, 0));
    set(&mut scene, share(), written);
    assert_eq!(reasons(&scene), [""; 0], "not again while nothing changes");
    let alone = OwnedPod {
        owner: None,
        ..pod_of("ReplicaSet", "web", "p")
    };
    scene.stand.set(key("p"), alone);
    assert_eq!(reasons(&scene), ["UnmanagedPods"]);
    set(&mut scene, json!({"minAvailable": 1}), json!({}));
    assert_eq!(reasons(&scene), [""; 0], "a number counts every pod");
    set(&mut scene, share(), json!({}));
    scene.stand.set(key("q"), pod_of("DaemonSet", "web", "q"));
    assert_eq!(reasons(&scene), ["CalculateExpectedPodCountFailed"]);
}

#[test]
fn a_changed_scale_is_noticed_by_the_budgets_of_its_namespace() {
    let mut scene = Budgets::new();
    scene
        .stand
        .set(key("b"), budget(json!({"maxUnavailable": 1}), json!({})));
    let deployment: Kept<Deployment> = kept(
        json!({"metadata": {"name": "web"}, "spec": {"replicas": 3, "selector": {}, "template": {}}}),
    );
    assert_eq!(scene.stand.set(key("web"), deployment), [key("b")]);
    let stranger = OwnedPod {
        labels: std::sync::Arc::default(),
        ..pod_of("ReplicaSet", "x", "x")
    };
    assert_eq!(scene.stand.set(key("x"), stranger), []);
}

#[test]
fn no_number_in_a_budget_or_its_workload_makes_the_controllers_panic() {
    let mut scene = Budgets::new();
    for name in ["one", "two"] {
        let set: Kept<ReplicaSet> = kept(
            json!({"metadata": {"namespace": "default", "name": name, "uid": format!("{name}-uid")},
            "spec": {"replicas": i32::MAX, "selector": {}}}),
        );
        scene.stand.set(key(name), set);
        scene
            .stand
            .set(key(&format!("{name}-p")), pod_of("ReplicaSet", name, name));
    }
    // The latest possible time.
    let granted = json!({"disruptedPods": {"one-p": "9999-12-30T21:59:59Z"}});
    scene.stand.set(
        key("b"),
        budget(json!({"maxUnavailable": i32::MAX}), granted),
    );
    assert_eq!(numbers(&status(&scene, 1)), [i32::MAX, 0, 1, 1]);
}
