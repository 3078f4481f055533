//! What each controller plans, by what it observes and the time: no API, no waiting.

use config_kube::k8s_openapi::api::core::v1::{NodeCondition, Taint, Toleration};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::{SignedDuration, Timestamp};
use master_control::observe::{
    AccountTokenFacts, ClusterInfo, Expiring, Key, NamespaceFacts, NodeFacts, Observed, PodFacts,
    RangeFacts, RequestFacts, SigningToken, TokenFacts,
};
use master_control::{Controller, Now, Options, Plan, Write, controllers};
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

fn controller(name: &str) -> Box<dyn Controller> {
    controllers(&Options::default())
        .into_iter()
        .find(|controller| controller.name() == name)
        .expect("there is such a controller")
}

fn condition(kind: &str, status: &str) -> NodeCondition {
    NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        ..NodeCondition::default()
    }
}

fn node(ready: &str) -> NodeFacts {
    NodeFacts {
        uid: "uid".to_owned(),
        version: "7".to_owned(),
        conditions: vec![condition("Ready", ready)],
        ..NodeFacts::default()
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

fn pod(node: &str) -> PodFacts {
    PodFacts {
        uid: "pod-uid".to_owned(),
        node: node.into(),
        phase: "Running".into(),
        ready: true,
        ..PodFacts::default()
    }
}

fn key(name: &str) -> Key {
    Key::new("default", name)
}

/// Keys and effects of the taints that a plan writes to a node.
fn taints_of(plan: &Plan, name: &str) -> Option<Vec<String>> {
    plan.writes.iter().find_map(|write| {
        if let Write::NodeTaints { node, taints, .. } = write
            && node == name
        {
            Some(
                taints
                    .iter()
                    .map(|taint| format!("{}:{}", taint.key, taint.effect))
                    .collect(),
            )
        } else {
            None
        }
    })
}

fn silent_nodes(plan: &Plan) -> Vec<&str> {
    let names = plan.writes.iter().filter_map(|write| {
        if let Write::NodeSilent { node, .. } = write {
            Some(node.as_str())
        } else {
            None
        }
    });
    names.collect()
}

#[test]
fn a_node_is_silent_after_forty_seconds_without_a_change_and_not_before() {
    let clock = Clock::new();
    let mut lifecycle = controller("node-lifecycle");
    let mut observed = Observed::default();
    observed.nodes.insert("a".to_owned(), node("True"));
    observed.nodes.insert("b".to_owned(), node("True"));
    for name in ["a", "b"] {
        observed.leases.insert(name.to_owned(), Some(clock.1));
    }
    assert_eq!(
        silent_nodes(&lifecycle.plan(&observed, clock.after(0))),
        [""; 0]
    );
    observed
        .leases
        .insert("b".to_owned(), Some(clock.after(30).wall));
    lifecycle.plan(&observed, clock.after(30));
    let before = lifecycle.plan(&observed, clock.after(39));
    assert_eq!(silent_nodes(&before), [""; 0]);
    assert_eq!(
        before.again,
        Some(Duration::from_secs(1)),
        "it asks to be called when the time is over"
    );
    let plan = lifecycle.plan(&observed, clock.after(40));
    assert_eq!(silent_nodes(&plan), ["a"]);
    let Some(Write::NodeSilent {
        conditions,
        lease,
        version,
        tell,
        ..
    }) = plan.writes.first()
    else {
        panic!("{plan:?}");
    };
    assert_eq!(
        (lease, version.as_str(), *tell),
        (&Some(clock.1), "7", true)
    );
    let ready = conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")
        .unwrap();
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_deref()),
        ("Unknown", Some("NodeStatusUnknown"))
    );
    assert_eq!(
        conditions.len(),
        4,
        "pressures are not known any more either"
    );
}

#[test]
fn a_wrong_clock_on_the_node_changes_nothing() {
    let clock = Clock::new();
    let mut lifecycle = controller("node-lifecycle");
    let mut observed = Observed::default();
    observed.nodes.insert("a".to_owned(), node("True"));
    for second in (0..200).step_by(10) {
        let wrong = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second);
        observed.leases.insert("a".to_owned(), Some(wrong));
        let plan = lifecycle.plan(&observed, clock.after(u64::try_from(second).unwrap()));
        assert_eq!(
            silent_nodes(&plan),
            [""; 0],
            "its lease changes: it lives, in 1970"
        );
    }
    assert_eq!(
        silent_nodes(&lifecycle.plan(&observed, clock.after(230))),
        ["a"]
    );
}

#[test]
fn a_new_node_gets_time_to_speak() {
    let clock = Clock::new();
    let mut lifecycle = controller("node-lifecycle");
    let mut observed = Observed::default();
    observed.nodes.insert("a".to_owned(), NodeFacts::default());
    lifecycle.plan(&observed, clock.after(0));
    assert_eq!(
        silent_nodes(&lifecycle.plan(&observed, clock.after(59))),
        [""; 0]
    );
    let plan = lifecycle.plan(&observed, clock.after(60));
    let Some(Write::NodeSilent { conditions, .. }) = plan.writes.first() else {
        panic!("{plan:?}")
    };
    assert!(
        conditions
            .iter()
            .all(|condition| condition.reason.as_deref() == Some("NodeStatusNeverUpdated"))
    );
}

#[test]
fn conditions_become_taints_and_other_peoples_taints_stay() {
    let clock = Clock::new();
    let mut observed = Observed::default();
    let mut sick = node("True");
    sick.conditions.push(condition("MemoryPressure", "True"));
    sick.conditions.push(condition("DiskPressure", "Unknown"));
    sick.cordoned = true;
    sick.taints = vec![
        taint("gpu", "NoSchedule", clock.1),
        taint(NOT_READY, "NoSchedule", clock.1),
    ];
    observed.nodes.insert("a".to_owned(), sick);
    observed.nodes.insert("b".to_owned(), node("True"));
    let plan = controller("node-lifecycle").plan(&observed, clock.after(0));
    let wanted = [
        "gpu:NoSchedule",
        "node.kubernetes.io/memory-pressure:NoSchedule",
        "node.kubernetes.io/unschedulable:NoSchedule",
    ];
    assert_eq!(taints_of(&plan, "a").unwrap(), wanted);
    assert_eq!(
        taints_of(&plan, "b"),
        None,
        "nothing to write where nothing changes"
    );
}

#[test]
fn nodes_are_emptied_one_after_another() {
    let clock = Clock::new();
    let mut lifecycle = controller("node-lifecycle");
    let mut observed = Observed::default();
    observed.nodes.insert("bad-1".to_owned(), node("Unknown"));
    observed.nodes.insert("bad-2".to_owned(), node("False"));
    observed.nodes.insert("good".to_owned(), node("True"));
    let plan = lifecycle.plan(&observed, clock.after(0));
    let both = |key: &str| vec![format!("{key}:NoSchedule"), format!("{key}:NoExecute")];
    assert_eq!(taints_of(&plan, "bad-1").unwrap(), both(UNREACHABLE));
    assert_eq!(
        taints_of(&plan, "bad-2").unwrap(),
        [format!("{NOT_READY}:NoSchedule")]
    );
    let plan = lifecycle.plan(&observed, clock.after(10));
    assert_eq!(
        taints_of(&plan, "bad-1").unwrap(),
        [
            format!("{UNREACHABLE}:NoSchedule"),
            format!("{UNREACHABLE}:NoExecute")
        ]
    );
}

#[test]
fn when_no_node_is_ready_none_is_emptied() {
    let clock = Clock::new();
    let mut observed = Observed::default();
    let mut bad = node("Unknown");
    bad.taints = vec![
        taint(UNREACHABLE, "NoSchedule", clock.1),
        taint(UNREACHABLE, "NoExecute", clock.1),
    ];
    observed.nodes.insert("a".to_owned(), bad);
    observed.nodes.insert("b".to_owned(), node("Unknown"));
    let plan = controller("node-lifecycle").plan(&observed, clock.after(0));
    assert_eq!(
        taints_of(&plan, "a").unwrap(),
        [format!("{UNREACHABLE}:NoSchedule")],
        "it is taken back"
    );
    assert_eq!(
        taints_of(&plan, "b").unwrap(),
        [format!("{UNREACHABLE}:NoSchedule")]
    );
}

#[test]
fn when_most_nodes_fail_at_once_no_more_are_emptied() {
    let clock = Clock::new();
    let mut observed = Observed::default();
    let mut emptied = node("Unknown");
    emptied.taints = vec![
        taint(UNREACHABLE, "NoSchedule", clock.1),
        taint(UNREACHABLE, "NoExecute", clock.1),
    ];
    observed.nodes.insert("a".to_owned(), emptied);
    observed.nodes.insert("b".to_owned(), node("Unknown"));
    observed.nodes.insert("c".to_owned(), node("Unknown"));
    observed.nodes.insert("d".to_owned(), node("True"));
    let plan = controller("node-lifecycle").plan(&observed, clock.after(0));
    assert_eq!(taints_of(&plan, "a"), None, "it stays as it is");
    assert_eq!(
        taints_of(&plan, "b").unwrap(),
        [format!("{UNREACHABLE}:NoSchedule")]
    );
}

#[test]
fn pods_of_a_silent_node_are_not_known_to_be_ready() {
    let clock = Clock::new();
    let mut observed = Observed::default();
    observed.nodes.insert("a".to_owned(), node("Unknown"));
    observed.nodes.insert("b".to_owned(), node("False"));
    observed.set_pod(key("on-a"), Some(pod("a")));
    observed.set_pod(key("on-b"), Some(pod("b")));
    let plan = controller("node-lifecycle").plan(&observed, clock.after(0));
    let pods: Vec<&Key> = plan
        .writes
        .iter()
        .filter_map(|write| {
            if let Write::PodNotReady { key, .. } = write {
                Some(key)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(
        pods,
        [&key("on-a")],
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

/// What taint eviction plans for one pod, so many seconds after the taint.
fn eviction(key_of_taint: &str, tolerations: Vec<Toleration>, seconds: u64) -> Plan {
    let clock = Clock::new();
    let mut observed = Observed::default();
    let mut bad = node("Unknown");
    bad.taints = vec![taint(key_of_taint, "NoExecute", clock.1)];
    observed.nodes.insert("a".to_owned(), bad);
    observed.set_pod(
        key("p"),
        Some(PodFacts {
            tolerations: tolerations.into(),
            ..pod("a")
        }),
    );
    controller("taint-eviction").plan(&observed, clock.after(seconds))
}

#[test]
fn a_pod_stays_as_long_as_it_tolerates() {
    let gone = vec![Write::EvictPod {
        key: key("p"),
        uid: "pod-uid".to_owned(),
    }];
    assert_eq!(eviction("maintenance", vec![], 0).writes, gone);
    assert_eq!(
        eviction("maintenance", vec![toleration("maintenance", None)], 9999),
        Plan::default()
    );
    let some_time = || vec![toleration("maintenance", Some(60))];
    assert_eq!(
        eviction("maintenance", some_time(), 20),
        Plan {
            writes: vec![],
            again: Some(Duration::from_secs(40))
        }
    );
    assert_eq!(eviction("maintenance", some_time(), 60).writes, gone);
    assert_eq!(
        eviction("maintenance", vec![toleration("maintenance", Some(-1))], 0).writes,
        gone
    );
}

#[test]
fn a_pod_that_says_nothing_stays_five_minutes_on_a_silent_node() {
    assert_eq!(
        eviction(UNREACHABLE, vec![], 299),
        Plan {
            writes: vec![],
            again: Some(Duration::from_secs(1))
        }
    );
    assert_eq!(eviction(UNREACHABLE, vec![], 300).writes.len(), 1);
    assert_eq!(
        eviction(UNREACHABLE, vec![toleration(UNREACHABLE, Some(0))], 0)
            .writes
            .len(),
        1
    );
}

#[test]
fn a_pod_that_is_going_or_ended_is_left_alone() {
    let clock = Clock::new();
    let mut observed = Observed::default();
    let mut bad = node("Unknown");
    bad.taints = vec![taint("maintenance", "NoExecute", clock.1)];
    observed.nodes.insert("a".to_owned(), bad);
    observed.set_pod(
        key("going"),
        Some(PodFacts {
            deleted: Some(clock.1),
            ..pod("a")
        }),
    );
    observed.set_pod(
        key("ended"),
        Some(PodFacts {
            phase: "Succeeded".into(),
            ..pod("a")
        }),
    );
    assert_eq!(
        controller("taint-eviction").plan(&observed, clock.after(0)),
        Plan::default()
    );
}

fn collected(plan: &Plan) -> Vec<&str> {
    let names = plan.writes.iter().filter_map(|write| {
        if let Write::CollectPod { key, .. } = write {
            Some(key.name.as_str())
        } else {
            None
        }
    });
    names.collect()
}

#[test]
fn pods_of_a_node_that_is_gone_go_after_a_while() {
    let clock = Clock::new();
    let mut gc = controller("pod-gc");
    let mut observed = Observed::default();
    observed.nodes.insert("a".to_owned(), node("True"));
    observed.set_pod(key("here"), Some(pod("a")));
    observed.set_pod(key("orphan"), Some(pod("gone")));
    assert_eq!(collected(&gc.plan(&observed, clock.after(0))), [""; 0]);
    assert_eq!(collected(&gc.plan(&observed, clock.after(39))), [""; 0]);
    assert_eq!(collected(&gc.plan(&observed, clock.after(60))), ["orphan"]);
    observed.nodes.insert("gone".to_owned(), node("True"));
    assert_eq!(collected(&gc.plan(&observed, clock.after(80))), [""; 0]);
    observed.nodes.remove("gone");
    assert_eq!(
        collected(&gc.plan(&observed, clock.after(100))),
        [""; 0],
        "the wait starts anew"
    );
}

#[test]
fn deleted_pods_that_nobody_will_end_go_at_once() {
    let clock = Clock::new();
    let mut observed = Observed::default();
    let mut off = node("Unknown");
    off.taints = vec![taint(
        "node.kubernetes.io/out-of-service",
        "NoExecute",
        clock.1,
    )];
    observed.nodes.insert("off".to_owned(), off);
    observed.nodes.insert("silent".to_owned(), node("Unknown"));
    let deleted = |node: &str| {
        Some(PodFacts {
            deleted: Some(clock.1),
            ..pod(node)
        })
    };
    observed.set_pod(key("unbound"), deleted(""));
    observed.set_pod(key("on-dead"), deleted("off"));
    observed.set_pod(key("on-silent"), deleted("silent"));
    observed.set_pod(key("pending"), Some(pod("")));
    assert_eq!(
        collected(&controller("pod-gc").plan(&observed, clock.after(0))),
        ["on-dead", "unbound"]
    );
}

#[test]
fn the_oldest_of_too_many_ended_pods_go() {
    let clock = Clock::new();
    let mut observed = Observed::default();
    observed.nodes.insert("a".to_owned(), node("True"));
    for index in 0..12_503_i64 {
        let created = Some(clock.1 - SignedDuration::from_secs(index));
        observed.set_pod(
            key(&format!("p{index:05}")),
            Some(PodFacts {
                phase: "Succeeded".into(),
                created,
                ..pod("a")
            }),
        );
    }
    assert_eq!(
        collected(&controller("pod-gc").plan(&observed, clock.after(0))),
        ["p12502", "p12501", "p12500"]
    );
}

#[test]
fn events_go_an_hour_after_they_were_seen_last() {
    let clock = Clock::new();
    let mut observed = Observed::default();
    observed.events.insert(
        key("old"),
        Expiring {
            uid: "1".to_owned(),
            last: clock.1,
        },
    );
    observed.events.insert(
        key("young"),
        Expiring {
            uid: "2".to_owned(),
            last: clock.after(1).wall,
        },
    );
    let plan = controller("event-ttl").plan(&observed, clock.after(3600));
    let [Write::Delete { key: gone, uid, .. }] = plan.writes.as_slice() else {
        panic!("{plan:?}")
    };
    assert_eq!((gone, uid.as_str()), (&key("old"), "1"));
}

#[test]
fn requests_go_an_hour_after_the_decision_or_after_a_day() {
    let clock = Clock::new();
    let mut observed = Observed::default();
    for (name, decided) in [("decided", true), ("pending", false)] {
        observed.requests.insert(
            name.to_owned(),
            RequestFacts {
                uid: name.to_owned(),
                last: clock.1,
                decided,
                kubelet: false,
            },
        );
    }
    let gone = |seconds| -> Vec<String> {
        let plan = controller("csr-cleaner").plan(&observed, clock.after(seconds));
        plan.writes
            .iter()
            .map(|write| format!("{write:?}"))
            .collect()
    };
    assert_eq!(gone(3599).len(), 0);
    assert!(gone(3600).len() == 1 && gone(3600)[0].contains("decided"));
    assert_eq!(gone(24 * 3600).len(), 2);
}

#[test]
fn every_namespace_that_stays_gets_its_account() {
    let mut observed = Observed::default();
    for (name, terminating) in [("default", false), ("going", true)] {
        let facts = NamespaceFacts {
            uid: name.to_owned(),
            terminating,
            unfinished: true,
        };
        observed.namespaces.insert(name.to_owned(), facts);
    }
    let plan = controller("service-account").plan(&observed, Clock::new().after(0));
    let made: Vec<String> = plan
        .writes
        .iter()
        .map(|write| match write {
            Write::CreateNamespace { name } => name.clone(),
            Write::CreateServiceAccount { key } => format!("{}/{}", key.namespace, key.name),
            Write::NodeSilent { .. }
            | Write::NodeTaints { .. }
            | Write::PodNotReady { .. }
            | Write::EvictPod { .. }
            | Write::CollectPod { .. }
            | Write::Delete { .. }
            | Write::EmptyNamespace { .. }
            | Write::Garbage { .. }
            | Write::PublishRootCa { .. }
            | Write::Recount { .. }
            | Write::Approve { .. }
            | Write::Aggregate { .. }
            | Write::FillToken { .. }
            | Write::ReleaseClaim { .. }
            | Write::ReleaseVolume { .. }
            | Write::SignClusterInfo { .. }
            | Write::SettleRange { .. } => panic!("{write:?}"),
        })
        .collect();
    assert_eq!(
        made,
        [
            "kube-system",
            "kube-public",
            "kube-node-lease",
            "default/default"
        ]
    );
    observed
        .service_accounts
        .insert(Key::new("default", "default"));
    let plan = controller("service-account").plan(&observed, Clock::new().after(0));
    assert!(
        !plan
            .writes
            .iter()
            .any(|write| matches!(write, Write::CreateServiceAccount { .. }))
    );
}

#[test]
fn only_deleted_namespaces_are_emptied() {
    let mut observed = Observed::default();
    for (name, terminating, unfinished) in [
        ("alive", false, true),
        ("going", true, true),
        ("held-by-others", true, false),
    ] {
        let facts = NamespaceFacts {
            uid: name.to_owned(),
            terminating,
            unfinished,
        };
        observed.namespaces.insert(name.to_owned(), facts);
    }
    let plan = controller("namespace").plan(&observed, Clock::new().after(0));
    assert_eq!(
        plan.writes,
        [Write::EmptyNamespace {
            name: "going".to_owned(),
            uid: "going".to_owned()
        }]
    );
    assert!(plan.again.is_some(), "until it is empty");
}

#[test]
fn only_open_requests_of_kubelets_are_looked_at_for_approval() {
    let mut observed = Observed::default();
    for (name, decided, kubelet) in [
        ("open", false, true),
        ("done", true, true),
        ("other", false, false),
    ] {
        let last = Timestamp::UNIX_EPOCH;
        let facts = RequestFacts {
            uid: name.to_owned(),
            last,
            decided,
            kubelet,
        };
        observed.requests.insert(name.to_owned(), facts);
    }
    let plan = controller("certificatesigningrequest-approving-controller")
        .plan(&observed, Clock::new().after(0));
    assert_eq!(
        plan.writes,
        [Write::Approve {
            name: "open".to_owned(),
            uid: "open".to_owned()
        }]
    );
}

#[test]
fn bootstrap_tokens_go_when_their_time_is_over() {
    let mut observed = Observed::default();
    let clock = Clock::new();
    let now = clock.after(0);
    for (name, seconds) in [("over", Some(-1)), ("later", Some(30)), ("never", None)] {
        let expires = seconds.map(|seconds| now.wall + SignedDuration::from_secs(seconds));
        let facts = TokenFacts {
            uid: name.to_owned(),
            expires,
            signing: None,
        };
        observed
            .bootstrap_tokens
            .insert(Key::new("kube-system", name), facts);
    }
    let plan = controller("token-cleaner").plan(&observed, now);
    let gone: Vec<String> = plan
        .writes
        .iter()
        .map(|write| format!("{write:?}"))
        .collect();
    assert!(gone.len() == 1 && gone[0].contains("over"), "{gone:?}");
    assert_eq!(
        plan.again,
        Some(Duration::from_secs(30)),
        "in time for the next"
    );
}

#[test]
fn the_public_kubeconfig_is_signed_with_the_tokens_that_may_and_with_no_other() {
    let mut observed = Observed::default();
    let clock = Clock::new();
    let now = clock.after(0);
    let token = |id: &str, seconds: Option<i64>, signs: bool| {
        let signing = signs.then(|| SigningToken {
            id: id.to_owned(),
            secret: "secret".to_owned(),
        });
        let expires = seconds.map(|seconds| now.wall + SignedDuration::from_secs(seconds));
        TokenFacts {
            uid: id.to_owned(),
            expires,
            signing,
        }
    };
    for (id, seconds, signs) in [
        ("aaaaaa", None, true),
        ("bbbbbb", Some(30), true),
        ("cccccc", Some(-1), true),
        ("dddddd", None, false),
    ] {
        observed
            .bootstrap_tokens
            .insert(Key::new("kube-system", id), token(id, seconds, signs));
    }
    let mut signer = controller("bootstrap-signer");
    assert_eq!(
        signer.plan(&observed, now),
        Plan::default(),
        "there is nothing to sign"
    );
    let mut info = ClusterInfo {
        version: "7".to_owned(),
        content: Some("kubeconfig".to_owned()),
        ..ClusterInfo::default()
    };
    info.signatures
        .insert("eeeeee".to_owned(), "old".to_owned());
    observed.cluster_info = Some(info.clone());
    let plan = signer.plan(&observed, now);
    let [Write::SignClusterInfo { version, data }] = plan.writes.as_slice() else {
        panic!("{plan:?}")
    };
    let keys: Vec<&str> = data
        .as_object()
        .expect("a map")
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        (version.as_str(), keys),
        (
            "7",
            vec![
                "jws-kubeconfig-aaaaaa",
                "jws-kubeconfig-bbbbbb",
                "jws-kubeconfig-eeeeee"
            ]
        )
    );
    assert!(
        data["jws-kubeconfig-eeeeee"].is_null(),
        "nobody knows the token any more"
    );
    assert_eq!(
        plan.again,
        Some(Duration::from_secs(30)),
        "in time for the end of a token"
    );
    let signatures = ["aaaaaa", "bbbbbb"].map(|id| {
        (
            id.to_owned(),
            data[format!("jws-kubeconfig-{id}")]
                .as_str()
                .expect("text")
                .to_owned(),
        )
    });
    observed.cluster_info = Some(ClusterInfo {
        signatures: signatures.into(),
        ..info
    });
    assert!(
        signer.plan(&observed, now).writes.is_empty(),
        "all is signed"
    );
    let later = signer.plan(&observed, clock.after(31)).writes;
    let rest = json!({"jws-kubeconfig-aaaaaa": data["jws-kubeconfig-aaaaaa"], "jws-kubeconfig-bbbbbb": null});
    assert_eq!(
        later,
        [Write::SignClusterInfo {
            version: "7".to_owned(),
            data: rest
        }]
    );
}

#[test]
fn ranges_are_settled_until_they_serve_or_are_gone() {
    let mut observed = Observed::default();
    for (name, going, held, ready) in [
        ("serves", false, true, true),
        ("loose", false, false, true),
        ("silent", false, true, false),
        ("going", true, true, false),
        ("gone", true, false, false),
    ] {
        let facts = RangeFacts {
            uid: name.to_owned(),
            going,
            held,
            ready,
        };
        observed.service_ranges.insert(name.to_owned(), facts);
    }
    let plan = controller("service-cidrs-controller").plan(&observed, Clock::new().after(0));
    let settled = |name: &str| Write::SettleRange {
        name: name.to_owned(),
        uid: name.to_owned(),
    };
    assert_eq!(plan.writes, ["going", "loose", "silent"].map(settled));
}

#[test]
fn claims_go_once_no_pod_that_runs_uses_them() {
    let mut observed = Observed::default();
    for name in ["used", "ended", "free"] {
        observed
            .claims_going
            .insert(Key::new("default", name), name.to_owned());
    }
    for (claim, phase) in [("used", "Running"), ("ended", "Succeeded")] {
        let facts = PodFacts {
            phase: phase.into(),
            claims: vec![claim.to_owned()],
            ..PodFacts::default()
        };
        observed.set_pod(Key::new("default", claim), Some(facts));
    }
    let plan = controller("storage-protection").plan(&observed, Clock::new().after(0));
    let free: Vec<String> = plan
        .writes
        .iter()
        .map(|write| format!("{write:?}"))
        .collect();
    assert!(
        free.len() == 2 && free[0].contains("ended") && free[1].contains("free"),
        "{free:?}"
    );
}

#[test]
fn roles_that_gather_get_the_rules_of_those_they_select() {
    let role = |value: serde_json::Value| serde_json::from_value(value).expect("a role");
    let granted = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
    let mut observed = Observed::default();
    let aggregate = json!({"metadata": {"name": "all"}, "rules": [],
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "all"}}]}});
    let part = json!({"metadata": {"name": "one", "labels": {"to": "all"}}, "rules": [granted]});
    observed
        .cluster_roles
        .insert("all".to_owned(), (role(aggregate.clone()), "7".to_owned()));
    observed
        .cluster_roles
        .insert("one".to_owned(), (role(part), "8".to_owned()));
    let mut aggregation = controller("clusterrole-aggregation-controller");
    let plan = aggregation.plan(&observed, Clock::new().after(0));
    let (name, version) = ("all".to_owned(), "7".to_owned());
    assert_eq!(
        plan.writes,
        [Write::Aggregate {
            name,
            version,
            rules: json!([granted])
        }]
    );
    let mut done = aggregate;
    done["rules"] = json!([granted]);
    observed
        .cluster_roles
        .insert("all".to_owned(), (role(done), "9".to_owned()));
    assert!(
        aggregation
            .plan(&observed, Clock::new().after(0))
            .writes
            .is_empty()
    );
}

#[test]
fn secrets_for_tokens_are_filled_and_go_with_their_account() {
    let options = Options {
        root_ca: Some(tokio::sync::watch::channel("root".to_owned()).1),
        ..Options::default()
    };
    let mut tokens = controllers(&options)
        .into_iter()
        .find(|controller| controller.name() == "tokens-controller")
        .expect("it is there");
    let mut observed = Observed::default();
    observed
        .service_accounts
        .insert(Key::new("default", "builder"));
    for (name, account, filled) in [("new", "builder", false), ("lost", "gone", true)] {
        let facts = AccountTokenFacts {
            uid: name.to_owned(),
            account: account.to_owned(),
            filled,
            root: 0,
        };
        observed
            .account_tokens
            .insert(Key::new("default", name), facts);
    }
    let plan = tokens.plan(&observed, Clock::new().after(0));
    let write = |name: &str| Write::FillToken {
        key: Key::new("default", name),
        uid: name.to_owned(),
        root: "root".to_owned(),
    };
    assert_eq!(plan.writes, [write("lost"), write("new")]);
}
