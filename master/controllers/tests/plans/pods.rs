//! Plans for pods of nodes that fall silent, are tainted or gone.

use super::{NOT_READY, Scene, UNREACHABLE, key, named, node, pod, taint};
use config_kube::k8s_openapi::api::core::v1::Toleration;
use jiff::{SignedDuration, Timestamp};
use master_control::controller::Plan;
use master_control::views::node::NodeView;
use master_control::views::pod::PodView;
use master_control_nodes::{pod_gc, pod_readiness, taint_eviction};
use std::time::Duration;

#[test]
fn pods_of_a_silent_node_are_not_known_to_be_ready() {
    let mut scene = Scene::<pod_readiness::PodReadiness>::new();
    scene.set(key("on-a"), pod("a"));
    scene.set(key("on-b"), pod("b"));
    assert_eq!(
        scene.set(named("a"), node("Unknown")),
        [key("on-a")],
        "the pods of a node that falls silent are planned"
    );
    scene.set(named("b"), node("False"));
    assert_eq!(
        scene.busy(&[&key("on-a"), &key("on-b")], 0),
        ["on-a"],
        "a kubelet that speaks says itself what is ready"
    );
}

fn toleration(key: &str, seconds: Option<i64>) -> Toleration {
    Toleration {
        key: Some(key.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        toleration_seconds: seconds,
        value: None,
    }
}

/// What taint eviction plans for a pod, `seconds` after the taint.
fn eviction_of(pod: PodView, key_of_taint: &str, seconds: u64) -> Plan<taint_eviction::Step> {
    let mut scene = Scene::<taint_eviction::TaintEviction>::new();
    scene.set(key("p"), pod);
    let mut bad = node("Unknown");
    bad.taints = vec![taint(key_of_taint, "NoExecute", scene.clock.1)];
    assert_eq!(scene.set(named("a"), bad), [key("p")]);
    scene.plan(&key("p"), seconds)
}

fn eviction(taint: &str, tolerations: Vec<Toleration>, seconds: u64) -> Plan<taint_eviction::Step> {
    let tolerant = PodView {
        tolerations: tolerations.into(),
        ..pod("a")
    };
    eviction_of(tolerant, taint, seconds)
}

#[test]
fn a_pod_stays_as_long_as_it_tolerates() {
    let gone = || {
        Plan::act(taint_eviction::Step::Evict(taint_eviction::Evict {
            key: key("p"),
            uid: "pod-uid".to_owned(),
            generation: 0,
        }))
    };
    assert_eq!(eviction("maintenance", vec![], 0), gone());
    assert_eq!(
        eviction("maintenance", vec![toleration("maintenance", None)], 9999),
        Plan::nothing()
    );
    let some_time = || vec![toleration("maintenance", Some(60))];
    assert_eq!(
        eviction("maintenance", some_time(), 20),
        Plan::wait(Duration::from_secs(40))
    );
    assert_eq!(eviction("maintenance", some_time(), 60), gone());
    assert_eq!(
        eviction("maintenance", vec![toleration("maintenance", Some(-1))], 0),
        gone()
    );
}

#[test]
fn a_taint_without_a_time_counts_from_when_it_was_seen() {
    let mut scene = Scene::<taint_eviction::TaintEviction>::new();
    let tolerant = PodView {
        tolerations: vec![toleration("maintenance", Some(60))].into(),
        ..pod("a")
    };
    scene.set(key("p"), tolerant.clone());
    let mut tainted = node("True");
    let mut timeless = taint("maintenance", "NoExecute", scene.clock.1);
    timeless.time_added = None;
    tainted.taints = vec![timeless];
    scene.set(named("a"), tainted.clone());
    let wait = |seconds| Plan::wait(Duration::from_secs(seconds));
    assert_eq!(scene.plan(&key("p"), 0), wait(60));
    assert_eq!(scene.plan(&key("p"), 20), wait(40));
    assert_eq!(scene.actions(&key("p"), 60).len(), 1);
    let other = PodView {
        uid: "other".to_owned(),
        ..tolerant
    };
    scene.set(key("p"), other);
    assert_eq!(scene.plan(&key("p"), 60), wait(60), "another pod");
    scene.set(named("a"), node("True"));
    let spared = taint_eviction::Step::CancelEviction {
        key: key("p"),
        uid: "other".to_owned(),
    };
    assert_eq!(scene.plan(&key("p"), 70), Plan::act(spared));
    assert_eq!(
        scene.plan(&key("p"), 71),
        Plan::nothing(),
        "that is reported once"
    );
    scene.set(named("a"), tainted);
    assert_eq!(scene.plan(&key("p"), 80), wait(60), "it is there anew");
}

#[test]
fn a_pod_that_comes_to_an_old_taint_has_its_time_from_then_on() {
    let late = PodView {
        created: Some(Timestamp::UNIX_EPOCH + SignedDuration::from_hours(500_001)),
        tolerations: vec![toleration("maintenance", Some(60))].into(),
        ..pod("a")
    };
    assert_eq!(
        eviction_of(late, "maintenance", 3600),
        Plan::wait(Duration::from_secs(60))
    );
}

/// Otherwise a pod that waited for a node for longer than it tolerates the taint would be deleted
/// when it is bound.
#[test]
fn a_pod_that_waited_for_its_node_has_its_time_from_when_it_was_bound() {
    let hours = |hours| Some(Timestamp::UNIX_EPOCH + SignedDuration::from_hours(hours));
    let waited = PodView {
        created: hours(400_000),
        bound: hours(500_001),
        tolerations: vec![toleration("maintenance", Some(60))].into(),
        ..pod("a")
    };
    assert_eq!(
        eviction_of(waited, "maintenance", 3620),
        Plan::wait(Duration::from_secs(40))
    );
}

#[test]
fn the_first_toleration_of_a_taint_counts() {
    let (for_ever, briefly) = (
        || toleration("maintenance", None),
        || toleration("maintenance", Some(30)),
    );
    let wait = Plan::wait(Duration::from_secs(30));
    assert_eq!(
        eviction("maintenance", vec![for_ever(), briefly()], 0),
        Plan::nothing()
    );
    assert_eq!(
        eviction("maintenance", vec![briefly(), for_ever()], 0),
        wait
    );
    let another = toleration("other", Some(1));
    assert_eq!(
        eviction("maintenance", vec![another, briefly()], 0),
        wait,
        "it tolerates another taint"
    );
}

/// As when a kubelet first reports its node as not ready, and then falls silent.
#[test]
fn a_taint_in_the_place_of_another_one_puts_nothing_off() {
    let mut scene = Scene::<taint_eviction::TaintEviction>::new();
    let tolerations = [NOT_READY, UNREACHABLE, "maintenance"];
    let times = [Some(60), Some(60), Some(10)];
    let tolerations = tolerations.iter().zip(times);
    let tolerations = tolerations.map(|(key, seconds)| toleration(key, seconds));
    let tolerant = PodView {
        tolerations: tolerations.collect(),
        ..pod("a")
    };
    scene.set(key("p"), tolerant);
    let start = scene.clock.1;
    let tainted = |keys: &[&str], seconds| {
        let since = start + SignedDuration::from_secs(seconds);
        let taints = keys.iter().map(|key| taint(key, "NoExecute", since));
        let mut bad = node("Unknown");
        bad.taints = taints.collect();
        bad
    };
    let wait = |seconds| Plan::wait(Duration::from_secs(seconds));
    scene.set(named("a"), tainted(&[NOT_READY], 0));
    assert_eq!(scene.plan(&key("p"), 0), wait(60));
    scene.set(named("a"), tainted(&[UNREACHABLE], 40));
    assert_eq!(scene.plan(&key("p"), 40), wait(20));
    scene.set(named("a"), tainted(&[UNREACHABLE, "maintenance"], 42));
    assert_eq!(scene.plan(&key("p"), 42), wait(10), "one may hurry it on");
    assert_eq!(scene.actions(&key("p"), 52).len(), 1);
    scene.set(named("a"), node("True"));
    assert_eq!(scene.actions(&key("p"), 53).len(), 1, "it is spared");
    scene.set(named("a"), tainted(&[UNREACHABLE], 54));
    assert_eq!(scene.plan(&key("p"), 54), wait(60), "it is there anew");
}

#[test]
fn a_pod_without_tolerations_stays_five_minutes_on_a_silent_node() {
    assert_eq!(
        eviction(UNREACHABLE, vec![], 299),
        Plan::wait(Duration::from_secs(1))
    );
    assert_eq!(eviction(UNREACHABLE, vec![], 300).actions.len(), 1);
    let not_a_moment = vec![toleration(UNREACHABLE, Some(0))];
    assert_eq!(eviction(UNREACHABLE, not_a_moment, 0).actions.len(), 1);
}

#[test]
fn a_pod_that_is_going_or_ended_is_left_alone() {
    let going = PodView {
        deleted: Some(Timestamp::UNIX_EPOCH),
        ..pod("a")
    };
    let ended = PodView {
        phase: "Succeeded".into(),
        ..pod("a")
    };
    for pod in [going, ended] {
        assert_eq!(eviction_of(pod, "maintenance", 0), Plan::nothing());
    }
}

#[test]
fn pods_of_a_node_that_is_gone_go_after_a_while() {
    let mut scene = Scene::<pod_gc::PodGc>::new();
    scene.set(named("a"), node("True"));
    scene.set(key("here"), pod("a"));
    scene.set(key("orphan"), pod("gone"));
    let collected = |scene: &Scene<pod_gc::PodGc>, seconds| {
        scene.busy(&[&key("here"), &key("orphan")], seconds)
    };
    assert_eq!(collected(&scene, 0), [""; 0]);
    assert_eq!(collected(&scene, 39), [""; 0]);
    assert_eq!(collected(&scene, 60), ["orphan"]);
    assert_eq!(scene.set(named("gone"), node("True")), [key("orphan")]);
    assert_eq!(collected(&scene, 80), [""; 0]);
    let keys = scene.stand.remove::<NodeView>(&named("gone"));
    assert_eq!(keys, [key("orphan")]);
    assert_eq!(collected(&scene, 100), [""; 0], "the wait starts anew");
    scene.set(named("gone"), node("True"));
    scene.stand.remove::<NodeView>(&named("gone"));
    let waits = "also where it was there between two plans";
    assert_eq!(collected(&scene, 141), [""; 0], "{waits}");
}

#[test]
fn deleted_pods_without_a_kubelet_are_removed_at_once() {
    let mut scene = Scene::<pod_gc::PodGc>::new();
    let mut off = node("Unknown");
    let start = scene.clock.1;
    off.taints = vec![taint(
        "node.kubernetes.io/out-of-service",
        "NoExecute",
        start,
    )];
    scene.set(named("off"), off);
    scene.set(named("silent"), node("Unknown"));
    let deleted = |node: &str| PodView {
        deleted: Some(start),
        ..pod(node)
    };
    scene.set(key("unbound"), deleted(""));
    scene.set(key("on-dead"), deleted("off"));
    scene.set(key("on-silent"), deleted("silent"));
    scene.set(key("pending"), pod(""));
    let keys = ["on-dead", "on-silent", "pending", "unbound"].map(key);
    assert_eq!(scene.busy(&keys.each_ref(), 0), ["on-dead", "unbound"]);
}

#[test]
fn evicted_pods_and_then_the_oldest_of_too_many_ended_ones_are_deleted() {
    let mut scene = Scene::<pod_gc::PodGc>::new();
    scene.set(named("a"), node("True"));
    let mut last = Vec::new();
    for index in 0..12_503_i64 {
        let created = Some(scene.clock.1 - SignedDuration::from_secs(index));
        // The youngest was evicted by its kubelet.
        let evicted = index == 0;
        let ended = PodView {
            phase: if evicted { "Failed" } else { "Succeeded" }.into(),
            evicted,
            created,
            ..pod("a")
        };
        last = scene.set(key(&format!("p{index:05}")), ended);
    }
    let first = ["p00000", "p12502", "p12501"];
    assert_eq!(last[1..], first.map(key), "those are planned");
    let keys = ["p00000", "p12502", "p12501", "p12500", "p00001"].map(key);
    assert_eq!(scene.busy(&keys.each_ref(), 0), first);
}
