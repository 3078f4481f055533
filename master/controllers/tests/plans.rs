//! What each controller plans for a key, by what is in its stores and the time: no API, no waiting.

use config_kube::k8s_openapi::api::core::v1::{NodeCondition, Taint, Toleration};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::{SignedDuration, Timestamp};
use master_client::{Key, View};
use master_control::controller::{Controller, Now, Plan};
use master_control::options::Options;
use master_control::setup::{Setup, Stand};
use master_control::views::account::AccountView;
use master_control::views::namespace::NamespaceView;
use master_control::views::node::NodeView;
use master_control::views::pod::PodView;
use master_control::views::request::RequestView;
use master_control::views::token::{SigningToken, TokenView};
use master_control_cluster::{
    account_tokens, aggregation, bootstrap_signer, bootstrap_tokens, event_ttl, in_use, namespace,
    quota, root_ca, service_account,
};
use master_control_network::service_ranges;
use master_control_nodes::{
    approver, csr_cleaner, node_lifecycle, pod_gc, pod_readiness, taint_eviction,
};
use serde_json::json;
use std::time::{Duration, Instant};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

struct Clock(Instant, Timestamp);

impl Clock {
    fn new() -> Self {
        Self(
            Instant::now(),
            Timestamp::UNIX_EPOCH + SignedDuration::from_hours(500_000),
        )
    }

    fn after(&self, seconds: u64) -> Now {
        let passed = Duration::from_secs(seconds);
        let wall = SignedDuration::try_from(passed).expect("a short time");
        Now {
            instant: self.0 + passed,
            wall: self.1 + wall,
        }
    }
}

/// A controller with its stores and a clock.
struct Scene<C> {
    controller: C,
    stand: Stand,
    clock: Clock,
}

impl<C: Controller> Scene<C> {
    fn new() -> Self {
        Self::with(&Options::default())
    }

    fn with(options: &Options) -> Self {
        let (controller, stand) = Setup::alone(options);
        Self {
            controller,
            stand,
            clock: Clock::new(),
        }
    }

    fn set<V: View>(&mut self, key: Key, value: V) -> Vec<Key> {
        self.stand.set(key, value)
    }

    fn plan(&self, key: &Key, seconds: u64) -> Plan<C::Action> {
        let now = self.clock.after(seconds);
        let facts = self.controller.facts(key, now);
        facts.map_or_else(Plan::nothing, |facts| C::plan(&facts, now))
    }

    /// What is done to one object.
    fn actions(&self, key: &Key, seconds: u64) -> Vec<C::Action> {
        self.plan(key, seconds).actions
    }

    /// Names of those keys for which there is something to do.
    fn busy(&self, keys: &[&Key], seconds: u64) -> Vec<String> {
        let busy = keys
            .iter()
            .filter(|key| !self.actions(key, seconds).is_empty());
        busy.map(|key| key.name.clone()).collect()
    }
}

fn condition(kind: &str, status: &str) -> NodeCondition {
    NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        ..NodeCondition::default()
    }
}

fn node(ready: &str) -> NodeView {
    NodeView {
        uid: "uid".to_owned(),
        version: "7".to_owned(),
        conditions: vec![condition("Ready", ready)],
        ..NodeView::default()
    }
}

fn taint(key: &str, effect: &str, added: Timestamp) -> Taint {
    Taint {
        key: key.to_owned(),
        effect: effect.to_owned(),
        value: None,
        time_added: Some(Time(added)),
    }
}

fn pod(node: &str) -> PodView {
    PodView {
        uid: "pod-uid".to_owned(),
        node: node.into(),
        phase: "Running".into(),
        ready: true,
        ..PodView::default()
    }
}

fn named(name: &str) -> Key {
    Key::cluster(name)
}

fn key(name: &str) -> Key {
    Key::new("default", name)
}

mod lifecycle {
    use super::*;
    use node_lifecycle::{Action, LeaseView, NodeLifecycle, Silent};

    type Nodes = Scene<NodeLifecycle>;

    fn renew(scene: &mut Nodes, name: &str, time: Timestamp) {
        let renewed = Some(time);
        scene.set(Key::new("kube-node-lease", name), LeaseView { renewed });
    }

    fn silent(scene: &Nodes, name: &str, seconds: u64) -> Option<Silent> {
        let mut actions = scene.actions(&named(name), seconds).into_iter();
        actions.find_map(|action| match action {
            Action::Silent(silent) => Some(*silent),
            Action::Taints { .. } => None,
        })
    }

    /// Keys and effects of the taints that are written to a node.
    fn taints(scene: &Nodes, name: &str, seconds: u64) -> Option<Vec<String>> {
        let text = |taint: Taint| format!("{}:{}", taint.key, taint.effect);
        let mut actions = scene.actions(&named(name), seconds).into_iter();
        actions.find_map(|action| match action {
            Action::Taints { taints, .. } => Some(taints.into_iter().map(text).collect()),
            Action::Silent(_) => None,
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
        let told = silent(&scene, "a", 40).expect("it was silent");
        assert_eq!(
            (told.lease, told.version.as_str(), told.tell),
            (Some(start), "7", true)
        );
        let ready = told.conditions.iter().find(|own| own.type_ == "Ready");
        let ready = ready.expect("its condition is written");
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_deref()),
            ("Unknown", Some("NodeStatusUnknown"))
        );
        assert_eq!(
            told.conditions.len(),
            4,
            "pressures are not known any more either"
        );
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
    fn a_new_node_gets_time_to_speak() {
        let mut scene = Nodes::new();
        scene.set(named("a"), NodeView::default());
        assert!(silent(&scene, "a", 0).is_none());
        assert!(silent(&scene, "a", 59).is_none());
        let told = silent(&scene, "a", 60).expect("it never spoke");
        let never = |own: &NodeCondition| own.reason.as_deref() == Some("NodeStatusNeverUpdated");
        assert!(told.conditions.iter().all(never));
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
    fn nodes_are_emptied_one_after_another() {
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
    fn when_no_node_is_ready_none_is_emptied() {
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
}

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

/// What taint eviction plans for a pod, so many seconds after the taint.
fn eviction_of(pod: PodView, key_of_taint: &str, seconds: u64) -> Plan<taint_eviction::Evict> {
    let mut scene = Scene::<taint_eviction::TaintEviction>::new();
    scene.set(key("p"), pod);
    let mut bad = node("Unknown");
    bad.taints = vec![taint(key_of_taint, "NoExecute", scene.clock.1)];
    assert_eq!(scene.set(named("a"), bad), [key("p")]);
    scene.plan(&key("p"), seconds)
}

fn eviction(
    taint: &str,
    tolerations: Vec<Toleration>,
    seconds: u64,
) -> Plan<taint_eviction::Evict> {
    let tolerant = PodView {
        tolerations: tolerations.into(),
        ..pod("a")
    };
    eviction_of(tolerant, taint, seconds)
}

#[test]
fn a_pod_stays_as_long_as_it_tolerates() {
    let gone = || {
        Plan::act(taint_eviction::Evict {
            key: key("p"),
            uid: "pod-uid".to_owned(),
        })
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
fn a_pod_that_says_nothing_stays_five_minutes_on_a_silent_node() {
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
}

#[test]
fn deleted_pods_that_nobody_will_end_go_at_once() {
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
fn the_oldest_of_too_many_ended_pods_go() {
    let mut scene = Scene::<pod_gc::PodGc>::new();
    scene.set(named("a"), node("True"));
    let mut last = Vec::new();
    for index in 0..12_503_i64 {
        let created = Some(scene.clock.1 - SignedDuration::from_secs(index));
        let ended = PodView {
            phase: "Succeeded".into(),
            created,
            ..pod("a")
        };
        last = scene.set(key(&format!("p{index:05}")), ended);
    }
    let oldest = ["p12502", "p12501", "p12500"];
    assert_eq!(last[1..], oldest.map(key), "those are planned");
    let keys = ["p12502", "p12501", "p12500", "p12499", "p00000"].map(key);
    assert_eq!(scene.busy(&keys.each_ref(), 0), oldest);
}

#[test]
fn events_go_an_hour_after_they_were_seen_last() {
    let mut scene = Scene::<event_ttl::EventTtl>::new();
    for (name, seconds) in [("old", 0), ("young", 1)] {
        let event = event_ttl::EventView {
            uid: name.to_owned(),
            last: scene.clock.after(seconds).wall,
        };
        scene.set(key(name), event);
    }
    let gone = event_ttl::Delete {
        key: key("old"),
        uid: "old".to_owned(),
    };
    assert_eq!(scene.plan(&key("old"), 3600), Plan::act(gone));
    assert_eq!(
        scene.plan(&key("young"), 3600),
        Plan::wait(Duration::from_secs(1))
    );
}

#[test]
fn requests_go_an_hour_after_the_decision_or_after_a_day() {
    let mut scene = Scene::<csr_cleaner::CsrCleaner>::new();
    for (name, decided) in [("decided", true), ("pending", false)] {
        let request = RequestView {
            uid: name.to_owned(),
            last: scene.clock.1,
            decided,
            signer: String::new(),
        };
        scene.set(named(name), request);
    }
    let keys = [&named("decided"), &named("pending")];
    assert_eq!(scene.busy(&keys, 3599), [""; 0]);
    assert_eq!(scene.busy(&keys, 3600), ["decided"]);
    assert_eq!(scene.busy(&keys, 24 * 3600).len(), 2);
}

fn namespace(terminating: bool, unfinished: bool) -> NamespaceView {
    NamespaceView {
        uid: "uid".to_owned(),
        terminating,
        unfinished,
    }
}

#[test]
fn every_namespace_that_stays_gets_its_account() {
    use service_account::Create;
    let mut scene = Scene::<service_account::ServiceAccounts>::new();
    scene.set(named("default"), namespace(false, true));
    scene.set(named("going"), namespace(true, true));
    let account = || vec![Create::Account(key("default"))];
    assert_eq!(scene.actions(&named("default"), 0), account());
    assert_eq!(scene.actions(&named("going"), 0), []);
    for name in ["kube-system", "kube-public", "kube-node-lease"] {
        assert_eq!(
            scene.actions(&named(name), 0),
            [Create::Namespace(name.to_owned())]
        );
    }
    assert_eq!(scene.set(key("default"), AccountView), [named("default")]);
    assert_eq!(scene.actions(&named("default"), 0), []);
    scene.stand.remove::<AccountView>(&key("default"));
    assert_eq!(scene.actions(&named("default"), 0), account());
}

#[test]
fn only_deleted_namespaces_are_emptied() {
    let mut scene = Scene::<namespace::Namespaces>::new();
    scene.set(named("alive"), namespace(false, true));
    scene.set(named("going"), namespace(true, true));
    scene.set(named("held-by-others"), namespace(true, false));
    let keys = ["alive", "going", "held-by-others"].map(named);
    assert_eq!(scene.busy(&keys.each_ref(), 0), ["going"]);
    assert!(
        scene.plan(&named("going"), 0).requeue.is_some(),
        "until it is empty"
    );
}

#[test]
fn only_open_requests_of_kubelets_are_looked_at_for_approval() {
    let mut scene = Scene::<approver::Approver>::new();
    let kubelets = "kubernetes.io/kube-apiserver-client-kubelet";
    for (name, decided, signer) in [
        ("open", false, kubelets),
        ("done", true, kubelets),
        ("other", false, "example.com/other"),
    ] {
        let request = RequestView {
            uid: name.to_owned(),
            last: Timestamp::UNIX_EPOCH,
            decided,
            signer: signer.to_owned(),
        };
        scene.set(named(name), request);
    }
    let keys = ["open", "done", "other"].map(named);
    assert_eq!(scene.busy(&keys.each_ref(), 0), ["open"]);
}

fn token(expires: Option<Timestamp>, signing: Option<SigningToken>) -> TokenView {
    TokenView {
        uid: "uid".to_owned(),
        expires,
        signing,
    }
}

#[test]
fn bootstrap_tokens_go_when_their_time_is_over() {
    let mut scene = Scene::<bootstrap_tokens::BootstrapTokens>::new();
    let start = scene.clock.1;
    for (name, seconds) in [("over", Some(-1)), ("later", Some(30)), ("never", None)] {
        let expires = seconds.map(|seconds| start + SignedDuration::from_secs(seconds));
        scene.set(key(name), token(expires, None));
    }
    let keys = ["over", "later", "never"].map(key);
    assert_eq!(scene.busy(&keys.each_ref(), 0), ["over"]);
    assert_eq!(
        scene.plan(&key("later"), 0),
        Plan::wait(Duration::from_secs(30)),
        "in time for the end"
    );
    assert_eq!(scene.plan(&key("never"), 0), Plan::nothing());
}

#[test]
fn the_public_kubeconfig_is_signed_with_the_tokens_that_may_and_with_no_other() {
    use bootstrap_signer::{BootstrapSigner, ClusterInfoView, Sign};
    let mut scene = Scene::<BootstrapSigner>::new();
    let (start, info_key) = (scene.clock.1, Key::new("kube-public", "cluster-info"));
    for (id, seconds, signs) in [
        ("aaaaaa", None, true),
        ("bbbbbb", Some(30), true),
        ("cccccc", Some(-1), true),
        ("dddddd", None, false),
    ] {
        let signing = signs.then(|| SigningToken {
            id: id.to_owned(),
            secret: "secret".to_owned(),
        });
        let expires = seconds.map(|seconds| start + SignedDuration::from_secs(seconds));
        let keys = scene.set(Key::new("kube-system", id), token(expires, signing));
        assert_eq!(keys, std::slice::from_ref(&info_key));
    }
    assert_eq!(
        scene.plan(&info_key, 0),
        Plan::nothing(),
        "there is nothing to sign"
    );
    let mut info = ClusterInfoView {
        version: "7".to_owned(),
        content: Some("kubeconfig".to_owned()),
        ..ClusterInfoView::default()
    };
    let stale = ("eeeeee".to_owned(), "old".to_owned());
    info.signatures.extend([stale]);
    scene.set(info_key.clone(), info.clone());
    let plan = scene.plan(&info_key, 0);
    let [Sign { version, data }] = plan.actions.as_slice() else {
        panic!("{plan:?}")
    };
    let names: Vec<&String> = data.as_object().expect("a map").keys().collect();
    let wanted = ["aaaaaa", "bbbbbb", "eeeeee"].map(|id| format!("jws-kubeconfig-{id}"));
    assert_eq!((version.as_str(), names), ("7", wanted.iter().collect()));
    assert!(
        data["jws-kubeconfig-eeeeee"].is_null(),
        "nobody knows the token any more"
    );
    assert_eq!(
        plan.requeue,
        Some(Duration::from_secs(30)),
        "in time for the end of a token"
    );
    let signed = ["aaaaaa", "bbbbbb"].map(|id| {
        let text = data[format!("jws-kubeconfig-{id}")].as_str();
        (id.to_owned(), text.expect("text").to_owned())
    });
    info.signatures = signed.into();
    scene.set(info_key.clone(), info);
    assert!(scene.actions(&info_key, 0).is_empty(), "all is signed");
    let rest = json!({"jws-kubeconfig-aaaaaa": data["jws-kubeconfig-aaaaaa"], "jws-kubeconfig-bbbbbb": null});
    let sign = Sign {
        version: "7".to_owned(),
        data: rest,
    };
    assert_eq!(scene.actions(&info_key, 31), [sign]);
}

#[test]
fn ranges_are_settled_until_they_serve_or_are_gone() {
    use service_ranges::{AddressView, RangeView, ServiceRanges};
    let mut scene = Scene::<ServiceRanges>::new();
    for (name, going, held, ready) in [
        ("serves", false, true, true),
        ("loose", false, false, true),
        ("silent", false, true, false),
        ("going", true, true, false),
        ("gone", true, false, false),
    ] {
        let range = RangeView {
            uid: name.to_owned(),
            going,
            held,
            ready,
        };
        scene.set(named(name), range);
    }
    let keys = ["going", "gone", "loose", "serves", "silent"].map(named);
    assert_eq!(
        scene.busy(&keys.each_ref(), 0),
        ["going", "loose", "silent"]
    );
    scene.set(named("10.0.0.1"), AddressView);
    assert_eq!(
        scene.stand.remove::<AddressView>(&named("10.0.0.1")),
        ["going", "gone"].map(named),
        "an address that goes may be the last of a range"
    );
}

#[test]
fn claims_go_once_no_pod_that_runs_uses_them() {
    use in_use::{ClaimView, InUse, VolumeView};
    let mut scene = Scene::<InUse>::new();
    for name in ["used", "ended", "free"] {
        let uid = name.to_owned();
        scene.set(key(name), ClaimView { uid, waits: true });
    }
    for (claim, phase) in [("used", "Running"), ("ended", "Succeeded")] {
        let user = PodView {
            phase: phase.into(),
            claims: vec![claim.to_owned()],
            ..PodView::default()
        };
        assert_eq!(scene.set(key(&format!("pod-{claim}")), user), [key(claim)]);
    }
    for (name, bound) in [("bound", true), ("loose", false)] {
        let volume = VolumeView {
            uid: name.to_owned(),
            waits: true,
            bound,
        };
        scene.set(named(name), volume);
    }
    let claims = ["ended", "free", "used"].map(key);
    assert_eq!(scene.busy(&claims.each_ref(), 0), ["ended", "free"]);
    let volumes = ["bound", "loose"].map(named);
    assert_eq!(scene.busy(&volumes.each_ref(), 0), ["loose"]);
}

#[test]
fn roles_that_gather_get_the_rules_of_those_they_select() {
    use aggregation::{Aggregate, Aggregation, RoleView};
    let role = |value: serde_json::Value, version: &str| RoleView {
        role: serde_json::from_value(value).expect("a role"),
        version: version.to_owned(),
    };
    let granted = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
    let mut aggregate = json!({"metadata": {"name": "all"}, "rules": [],
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "all"}}]}});
    let part = json!({"metadata": {"name": "one", "labels": {"to": "all"}}, "rules": [granted]});
    let other = json!({"metadata": {"name": "two"}, "rules": [granted]});
    let mut scene = Scene::<Aggregation>::new();
    scene.set(named("all"), role(aggregate.clone(), "7"));
    assert_eq!(
        scene.set(named("one"), role(part, "8")),
        ["one", "all"].map(named)
    );
    assert_eq!(
        scene.set(named("two"), role(other, "8")),
        [named("two")],
        "it is not gathered"
    );
    let action = Aggregate {
        name: "all".to_owned(),
        version: "7".to_owned(),
        rules: json!([granted]),
    };
    assert_eq!(scene.actions(&named("all"), 0), [action]);
    aggregate["rules"] = json!([granted]);
    scene.set(named("all"), role(aggregate, "9"));
    assert_eq!(scene.actions(&named("all"), 0), []);
}

fn with_root() -> Options {
    Options {
        root_ca: Some(tokio::sync::watch::channel("root".to_owned()).1),
        ..Options::default()
    }
}

#[test]
fn secrets_for_tokens_are_filled_and_go_with_their_account() {
    use account_tokens::{AccountTokenView, AccountTokens, Fill};
    let mut scene = Scene::<AccountTokens>::with(&with_root());
    for (name, account, filled) in [("new", "builder", false), ("lost", "gone", true)] {
        let secret = AccountTokenView {
            uid: name.to_owned(),
            account: account.to_owned(),
            filled,
            root: 0,
        };
        scene.set(key(name), secret);
    }
    assert_eq!(scene.set(key("builder"), AccountView), [key("new")]);
    for name in ["lost", "new"] {
        let fill = Fill {
            key: key(name),
            uid: name.to_owned(),
            root: "root".to_owned(),
        };
        assert_eq!(scene.actions(&key(name), 0), [fill]);
    }
}

#[test]
fn the_roots_certificate_is_published_in_every_namespace_that_stays() {
    use root_ca::{Publish, PublishedView, RootCa};
    let mut scene = Scene::<RootCa>::with(&with_root());
    scene.set(named("default"), namespace(false, true));
    scene.set(named("going"), namespace(true, true));
    let publish = |exists| Publish {
        namespace: "default".to_owned(),
        exists,
        root: "root".to_owned(),
    };
    assert_eq!(scene.actions(&named("default"), 0), [publish(false)]);
    assert_eq!(scene.actions(&named("going"), 0), []);
    let wrong = PublishedView { root: 0 };
    assert_eq!(scene.set(key(root_ca::NAME), wrong), [named("default")]);
    assert_eq!(scene.actions(&named("default"), 0), [publish(true)]);
}

#[test]
fn quotas_are_counted_when_they_come_and_when_a_pod_ends() {
    use quota::{QuotaView, Quotas, Recount};
    let mut scene = Scene::<Quotas>::new();
    scene.set(key("p"), pod("a"));
    let ended = || PodView {
        phase: "Succeeded".into(),
        ..pod("a")
    };
    assert_eq!(
        scene.set(key("q"), ended()),
        [],
        "without a quota nothing is noted"
    );
    let quota = QuotaView { settled: true };
    assert_eq!(scene.set(key("quota"), quota), [named("default")]);
    let count = |seen| Recount {
        namespace: "default".to_owned(),
        seen,
    };
    assert_eq!(scene.actions(&named("default"), 0), [count(0)]);
    assert_eq!(scene.set(key("p"), ended()), [named("default")]);
    assert_eq!(scene.actions(&named("default"), 0), [count(1)]);
    assert_eq!(scene.actions(&named("elsewhere"), 0), []);
}
