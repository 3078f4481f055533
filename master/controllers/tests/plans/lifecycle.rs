//! Plans for nodes that fall silent: taints, evictions of zones, and conditions.

use super::{NOT_READY, Scene, UNREACHABLE, condition, named, node, taint};
use config_kube::k8s_openapi::api::core::v1::{NodeCondition, Taint};
use jiff::{SignedDuration, Timestamp};
use master_client::Key;
use master_control::views::node::NodeView;
use master_control_nodes::node_lifecycle::{Action, Identity, LeaseView, NodeLifecycle, Silent};
use std::time::Duration;

type Nodes = Scene<NodeLifecycle>;

fn renew(scene: &mut Nodes, name: &str, time: Timestamp) {
    let renewed = Some(time);
    scene.set(Key::new("kube-node-lease", name), LeaseView { renewed });
}

fn silent(scene: &Nodes, name: &str, seconds: u64) -> Option<Silent> {
    let mut actions = scene.actions(&named(name), seconds).into_iter();
    actions.find_map(|action| match action {
        Action::Silent(silent) => Some(*silent),
        Action::Taints { .. } | Action::Registered(_) | Action::Removed(_) => None,
    })
}

/// Keys and effects of the taints that are written to a node.
fn taints(scene: &Nodes, name: &str, seconds: u64) -> Option<Vec<String>> {
    let text = |taint: Taint| format!("{}:{}", taint.key, taint.effect);
    let mut actions = scene.actions(&named(name), seconds).into_iter();
    actions.find_map(|action| match action {
        Action::Taints { taints, .. } => Some(taints.into_iter().map(text).collect()),
        Action::Silent(_) | Action::Registered(_) | Action::Removed(_) => None,
    })
}

#[test]
fn a_node_is_silent_after_forty_seconds_without_a_change_and_not_before() {
    let mut scene = Nodes::new();
    let start = scene.clock.1;
    for name in ["a", "b"] {
        scene.set(named(name), node("True"));
        renew(&mut scene, name, start);
        assert!(silent(&scene, name, 0).is_none());
    }
    renew(&mut scene, "b", start + SignedDuration::from_secs(30));
    assert!(silent(&scene, "b", 30).is_none());
    let before = scene.plan(&named("a"), 39);
    assert!(before.actions.is_empty());
    assert_eq!(
        before.requeue,
        Some(Duration::from_secs(1)),
        "it is planned again when the time is over"
    );
    assert!(silent(&scene, "b", 40).is_none());
    let silence = silent(&scene, "a", 40).expect("it was silent");
    assert_eq!(
        (
            silence.lease,
            silence.version.as_str(),
            silence.record_event
        ),
        (Some(start), "7", true)
    );
    let ready = silence.conditions.iter().find(|own| own.type_ == "Ready");
    let ready = ready.expect("its condition is written");
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_deref()),
        ("Unknown", Some("NodeStatusUnknown"))
    );
    assert_eq!(
        silence.conditions.len(),
        4,
        "pressures are not known any more either"
    );
}

#[test]
fn one_event_records_a_node_that_is_registered_and_one_that_is_removed() {
    let mut scene = Nodes::new();
    let new = |created: i64| NodeView {
        created: Some(scene.clock.1 - SignedDuration::from_secs(created)),
        ..node("True")
    };
    let (old, young) = (new(3600), new(1));
    let identity = || Identity {
        name: "a".to_owned(),
        uid: "uid".to_owned(),
    };
    scene.set(named("a"), old);
    assert_eq!(
        scene.actions(&named("a"), 0),
        [],
        "it was there before this process"
    );
    scene.stand.remove::<NodeView>(&named("a"));
    assert_eq!(scene.actions(&named("a"), 0), [Action::Removed(identity())]);
    assert_eq!(scene.actions(&named("a"), 0), []);
    scene.set(named("a"), young);
    assert_eq!(
        scene.actions(&named("a"), 0),
        [Action::Registered(identity())]
    );
    assert_eq!(scene.actions(&named("a"), 0), []);
}

#[test]
fn a_wrong_clock_on_the_node_changes_nothing() {
    let mut scene = Nodes::new();
    scene.set(named("a"), node("True"));
    for second in (0..200).step_by(10) {
        let wrong = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second);
        renew(&mut scene, "a", wrong);
        let second = u64::try_from(second).expect("a positive number");
        assert!(
            silent(&scene, "a", second).is_none(),
            "its lease changes: it lives, in 1970"
        );
    }
    assert!(silent(&scene, "a", 230).is_some());
}

#[test]
fn a_new_node_gets_a_startup_grace_period() {
    let mut scene = Nodes::new();
    scene.set(named("a"), NodeView::default());
    assert!(silent(&scene, "a", 0).is_none());
    assert!(silent(&scene, "a", 59).is_none());
    let silence = silent(&scene, "a", 60).expect("it never spoke");
    let never = |own: &NodeCondition| own.reason.as_deref() == Some("NodeStatusNeverUpdated");
    assert!(silence.conditions.iter().all(never));
}

#[test]
fn conditions_become_taints_and_other_peoples_taints_stay() {
    let mut scene = Nodes::new();
    let mut sick = node("True");
    sick.conditions.push(condition("MemoryPressure", "True"));
    sick.conditions.push(condition("DiskPressure", "Unknown"));
    sick.cordoned = true;
    let start = scene.clock.1;
    sick.taints = vec![
        taint("gpu", "NoSchedule", start),
        taint(NOT_READY, "NoSchedule", start),
    ];
    scene.set(named("a"), sick);
    scene.set(named("b"), node("True"));
    let wanted = [
        "gpu:NoSchedule",
        "node.kubernetes.io/memory-pressure:NoSchedule",
        "node.kubernetes.io/unschedulable:NoSchedule",
    ];
    assert_eq!(taints(&scene, "a", 0).expect("they change"), wanted);
    assert_eq!(
        taints(&scene, "b", 0),
        None,
        "nothing to write where nothing changes"
    );
}

#[test]
fn nodes_are_evicted_one_after_another() {
    let mut scene = Nodes::new();
    scene.set(named("bad-1"), node("Unknown"));
    scene.set(named("bad-2"), node("False"));
    scene.set(named("good"), node("True"));
    let both = |key: &str| vec![format!("{key}:NoSchedule"), format!("{key}:NoExecute")];
    assert_eq!(
        taints(&scene, "bad-1", 0).expect("its turn"),
        both(UNREACHABLE)
    );
    let second = scene.plan(&named("bad-2"), 0);
    assert_eq!(second.requeue, Some(Duration::from_secs(10)));
    assert_eq!(
        taints(&scene, "bad-2", 0).expect("it is marked"),
        [format!("{NOT_READY}:NoSchedule")]
    );
    assert_eq!(
        taints(&scene, "bad-2", 10).expect("its turn"),
        both(NOT_READY)
    );
}

fn emptied(start: Timestamp) -> NodeView {
    let mut bad = node("Unknown");
    bad.taints = vec![
        taint(UNREACHABLE, "NoSchedule", start),
        taint(UNREACHABLE, "NoExecute", start),
    ];
    bad
}

#[test]
fn no_node_is_evicted_when_none_is_ready() {
    let mut scene = Nodes::new();
    let bad = emptied(scene.clock.1);
    scene.set(named("a"), bad);
    scene.set(named("b"), node("Unknown"));
    let marked = [format!("{UNREACHABLE}:NoSchedule")];
    assert_eq!(taints(&scene, "a", 0).expect("it is taken back"), marked);
    assert_eq!(taints(&scene, "b", 0).expect("it is marked"), marked);
}

#[test]
fn when_most_nodes_fail_at_once_no_more_are_emptied() {
    let mut scene = Nodes::new();
    let bad = emptied(scene.clock.1);
    scene.set(named("a"), bad);
    scene.set(named("b"), node("Unknown"));
    scene.set(named("c"), node("Unknown"));
    scene.set(named("d"), node("True"));
    assert_eq!(taints(&scene, "a", 0), None, "it stays as it is");
    assert_eq!(
        taints(&scene, "b", 0).expect("it is marked"),
        [format!("{UNREACHABLE}:NoSchedule")]
    );
}

#[test]
fn a_node_that_is_being_emptied_goes_on_without_a_turn_when_its_taint_is_replaced() {
    let mut scene = Nodes::new();
    let start = scene.clock.1;
    let both = |key: &str| ["NoSchedule", "NoExecute"].map(|effect| format!("{key}:{effect}"));
    let emptied = |status: &str, key: &str| {
        let mut bad = node(status);
        bad.taints = ["NoSchedule", "NoExecute"]
            .map(|effect| taint(key, effect, start))
            .to_vec();
        bad
    };
    scene.set(named("first"), node("False"));
    scene.set(named("good"), node("True"));
    scene.set(named("silent"), emptied("Unknown", NOT_READY));
    assert_eq!(
        taints(&scene, "first", 0).expect("its turn"),
        both(NOT_READY)
    );
    let replaced = taints(&scene, "silent", 0).expect("its taint is replaced");
    assert_eq!(replaced, both(UNREACHABLE));
    // Also where no more nodes are emptied.
    for name in ["third", "fourth"] {
        scene.set(named(name), node("Unknown"));
    }
    scene.set(named("silent"), emptied("False", UNREACHABLE));
    let replaced = taints(&scene, "silent", 0).expect("its taint is replaced");
    assert_eq!(replaced, both(NOT_READY));
}

fn placed(zone: &str, node: NodeView) -> NodeView {
    NodeView {
        zone: zone.into(),
        ..node
    }
}

#[test]
fn a_zone_that_fails_as_a_whole_is_emptied_and_others_have_turns_of_their_own() {
    let mut scene = Nodes::new();
    for name in ["a-1", "a-2", "a-3"] {
        scene.set(named(name), placed("a", node("Unknown")));
    }
    scene.set(named("b-1"), placed("b", node("Unknown")));
    scene.set(named("b-2"), placed("b", node("True")));
    let both = ["NoSchedule", "NoExecute"].map(|effect| format!("{UNREACHABLE}:{effect}"));
    for name in ["a-1", "b-1"] {
        assert_eq!(taints(&scene, name, 0).expect("its turn"), both, "{name}");
    }
    let next = scene.plan(&named("a-2"), 0);
    assert_eq!(next.requeue, Some(Duration::from_secs(10)));
}

#[test]
fn a_zone_of_which_most_fails_holds_up_no_other() {
    let mut scene = Nodes::new();
    for name in ["a-1", "a-2", "a-3"] {
        scene.set(named(name), placed("a", node("Unknown")));
    }
    scene.set(named("a-4"), placed("a", node("True")));
    scene.set(named("b-1"), placed("b", node("Unknown")));
    let marked = [format!("{UNREACHABLE}:NoSchedule")];
    assert_eq!(taints(&scene, "a-1", 0).expect("it is marked"), marked);
    assert_eq!(taints(&scene, "b-1", 0).expect("its turn").len(), 2);
}

#[test]
fn a_node_that_is_excluded_from_disruption_says_nothing_about_its_zone() {
    let mut scene = Nodes::new();
    for name in ["a-1", "a-2", "a-3"] {
        scene.set(named(name), placed("a", node("Unknown")));
    }
    let excluded = |ready| NodeView {
        excluded: true,
        ..placed("a", node(ready))
    };
    scene.set(named("a-4"), excluded("True"));
    let marked = [format!("{UNREACHABLE}:NoSchedule")];
    let of = taints(&scene, "a-1", 0).expect("it is marked");
    assert_eq!(of, marked, "no counted node is ready");
    scene.set(named("b-1"), placed("b", node("True")));
    assert_eq!(taints(&scene, "a-1", 0).expect("its turn").len(), 2);
    scene.set(named("a-5"), excluded("Unknown"));
    let turn = taints(&scene, "a-5", 10).expect("its turn");
    assert_eq!(turn.len(), 2, "it is evicted all the same");
}

#[test]
fn a_node_that_changes_concerns_others_only_where_the_pace_changes() {
    let mut scene = Nodes::new();
    scene.set(named("bad"), node("Unknown"));
    let keys = scene.set(named("good"), node("True"));
    assert_eq!(
        keys,
        [named("good"), named("bad")],
        "now nodes may be emptied"
    );
    assert_eq!(scene.set(named("other"), node("True")), [named("other")]);
}
