//! ReplicaSets and ReplicationControllers.

use crate::{Scene, at, epoch, kept, key, pod_of};
use config_kube::k8s_openapi::api::apps::v1::ReplicaSet;
use config_kube::k8s_openapi::api::core::v1::ReplicationController;
use jiff::SignedDuration;
use master_client::Key;
use master_control::controller::Controller;
use master_control_workloads::replica_set::ReplicaSets;
use master_control_workloads::replication_controller::ReplicationControllers;
use master_control_workloads::workload::claim::OwnerChange;
use master_control_workloads::workload::kept::Kept;
use master_control_workloads::workload::pod::{OwnedPod, PodId};
use master_control_workloads::workload::replicas::{Action, Counts, Step};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

fn set(replicas: i32, status: Value) -> Kept<ReplicaSet> {
    let template =
        json!({"metadata": {"labels": {"app": "web", "extra": "yes"}}, "spec": {"containers": []}});
    kept(json!({
        "metadata": {"namespace": "default", "name": "web", "uid": "web-uid", "generation": 3},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template, "minReadySeconds": 10},
        "status": status,
    }))
}

fn steps(actions: Vec<Action>) -> Vec<Step> {
    actions.into_iter().map(|action| action.step).collect()
}

fn status(steps: &[Step]) -> Option<&Counts> {
    steps.iter().find_map(|step| match step {
        Step::Status(counts) => Some(counts),
        Step::Own(_) | Step::Create(_) | Step::Delete(_) => None,
    })
}

#[test]
fn missing_pods_are_made_and_the_status_counts_them() {
    let mut scene = Scene::<ReplicaSets>::new();
    let keys = scene.stand.set(key("web"), set(3, json!({"replicas": 0})));
    assert_eq!(keys, [key("web")]);
    let planned = steps(scene.plan(&key("web"), 0).actions);
    assert_eq!(planned.last(), Some(&Step::Create(3)));
    assert_eq!(status(&planned).map(|counts| counts.observed), Some(3));

    let keys = scene.stand.set(key("a"), pod_of("ReplicaSet", "web", "a"));
    assert_eq!(keys, [key("web")]);
    let full = OwnedPod {
        labels: Arc::new(
            [("app", "web"), ("extra", "yes")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into(),
        ),
        ready: Some(at(-20)),
        ..pod_of("ReplicaSet", "web", "b")
    };
    scene.stand.set(key("b"), full);
    let ending = OwnedPod {
        deleted: Some(at(9)),
        ..pod_of("ReplicaSet", "web", "c")
    };
    scene.stand.set(key("c"), ending);
    let failed = OwnedPod {
        phase: "Failed".into(),
        ..pod_of("ReplicaSet", "web", "d")
    };
    scene.stand.set(key("d"), failed);
    let plan = scene.plan(&key("web"), 4);
    // The first is ready for 4 of 10 seconds.
    assert_eq!(plan.requeue, Some(Duration::from_secs(6)));
    let planned = steps(plan.actions);
    assert_eq!(planned.last(), Some(&Step::Create(1)));
    let expected = Counts {
        replicas: 2,
        labelled: 1,
        ready: 2,
        available: 1,
        terminating: Some(1),
        observed: 3,
        conditions: Vec::new(),
    };
    assert_eq!(status(&planned), Some(&expected));
    // An unchanged status is not written again.
    let written = json!({"replicas": 2, "fullyLabeledReplicas": 1, "readyReplicas": 2, "availableReplicas": 1,
        "terminatingReplicas": 1, "observedGeneration": 3});
    scene.stand.set(key("web"), set(2, written));
    assert_eq!(scene.plan(&key("web"), 4).actions, []);
}

/// Available pods stay so if the clock is set back, for a process that knows them and for a new
/// one.
#[test]
fn available_pods_stay_available_while_the_clock_is_set_back() {
    let mut scene = Scene::<ReplicaSets>::new();
    let known = set(1, json!({"replicas": 0}));
    scene.stand.set(key("web"), known.clone());
    let pod = pod_of("ReplicaSet", "web", "a");
    scene.stand.set(key("a"), pod.clone());
    let available = |scene: &Scene<ReplicaSets>, seconds: u64, set_back: i64| {
        let mut now = scene.now(seconds);
        now.wall -= SignedDuration::from_secs(set_back);
        let facts = scene.controller.facts(&key("web"), now).unwrap();
        let planned = steps(ReplicaSets::plan(&facts, now).actions);
        status(&planned).map(|counts| counts.available)
    };
    assert_eq!(available(&scene, 9, 0), Some(0));
    assert_eq!(available(&scene, 10, 0), Some(1));
    assert_eq!(available(&scene, 11, 3600), Some(1));
    assert_eq!(available(&scene, 3600, 3600), Some(1));
    let mut new = Scene::<ReplicaSets>::new();
    new.stand.set(key("web"), known);
    new.stand.set(key("a"), pod);
    assert_eq!(available(&new, 11, 3600), Some(1));
}

#[test]
fn pods_that_are_unassigned_or_not_ready_are_deleted_first() {
    let mut scene = Scene::<ReplicaSets>::new();
    scene.stand.set(key("web"), set(1, json!({"replicas": 0})));
    scene
        .stand
        .set(key("old"), pod_of("ReplicaSet", "web", "old"));
    let cold = OwnedPod {
        ready: None,
        ..pod_of("ReplicaSet", "web", "cold")
    };
    scene.stand.set(key("cold"), cold);
    let unbound = OwnedPod {
        node: "".into(),
        ready: None,
        ..pod_of("ReplicaSet", "web", "new")
    };
    scene.stand.set(key("unbound"), unbound);
    let planned = steps(scene.plan(&key("web"), 100).actions);
    let gone = [("unbound", "new"), ("cold", "cold")].map(|(name, uid)| PodId {
        key: key(name),
        uid: uid.to_owned(),
    });
    assert_eq!(planned.last(), Some(&Step::Delete(gone.to_vec())));
}

#[test]
fn a_replica_set_adopts_only_matching_orphans_and_releases_other_pods() {
    let mut scene = Scene::<ReplicaSets>::new();
    scene.stand.set(key("web"), set(1, json!({"replicas": 0})));
    let orphan = OwnedPod {
        owner: None,
        ..pod_of("ReplicaSet", "web", "o")
    };
    assert_eq!(scene.stand.set(key("orphan"), orphan.clone()), [key("web")]);
    let other = OwnedPod {
        labels: Arc::default(),
        owner: None,
        ..orphan.clone()
    };
    assert_eq!(scene.stand.set(key("stranger"), other), []);
    let elsewhere = Key::new("other", "orphan");
    assert_eq!(scene.stand.set(elsewhere, orphan), []);
    let taken = OwnedPod {
        ..pod_of("ReplicaSet", "db", "t")
    };
    assert_eq!(scene.stand.set(key("taken"), taken), [key("db")]);
    let planned = steps(scene.plan(&key("web"), 0).actions);
    assert_eq!(
        planned,
        [Step::Own(OwnerChange::Adopt(key("orphan"), "o".to_owned()))]
    );

    scene
        .stand
        .set(key("orphan"), pod_of("ReplicaSet", "web", "o"));
    let relabelled = OwnedPod {
        labels: Arc::default(),
        ..pod_of("ReplicaSet", "web", "o")
    };
    scene.stand.set(key("orphan"), relabelled);
    let planned = steps(scene.plan(&key("web"), 0).actions);
    assert_eq!(
        planned,
        [Step::Own(OwnerChange::Release(
            key("orphan"),
            "o".to_owned()
        ))]
    );
}

#[test]
fn a_replica_set_that_is_being_deleted_creates_and_adopts_no_pods() {
    let mut scene = Scene::<ReplicaSets>::new();
    let mut leaving = set(
        3,
        json!({"replicas": 0, "observedGeneration": 3, "terminatingReplicas": 0}),
    );
    let time = config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(epoch());
    leaving.0.metadata.deletion_timestamp = Some(time);
    scene.stand.set(key("web"), leaving);
    let orphan = OwnedPod {
        owner: None,
        ..pod_of("ReplicaSet", "web", "o")
    };
    scene.stand.set(key("orphan"), orphan);
    assert_eq!(scene.plan(&key("web"), 0).actions, []);
}

#[test]
fn a_replication_controller_does_the_same_by_a_plain_map() {
    let mut scene = Scene::<ReplicationControllers>::new();
    let controller: Kept<ReplicationController> = kept(json!({
        "metadata": {"namespace": "default", "name": "web", "uid": "web-uid", "generation": 1},
        "spec": {"replicas": 2, "selector": {"app": "web"}, "template": {"metadata": {"labels": {"app": "web"}}}},
    }));
    scene.stand.set(key("web"), controller);
    let orphan = OwnedPod {
        owner: None,
        ..pod_of("ReplicaSet", "web", "o")
    };
    assert_eq!(scene.stand.set(key("orphan"), orphan), [key("web")]);
    let planned = steps(scene.plan(&key("web"), 0).actions);
    assert_eq!(
        planned,
        [Step::Own(OwnerChange::Adopt(key("orphan"), "o".to_owned()))]
    );
    scene.stand.remove::<OwnedPod>(&key("orphan"));
    let planned = steps(scene.plan(&key("web"), 0).actions);
    assert_eq!(planned.last(), Some(&Step::Create(2)));
    assert_eq!(status(&planned).unwrap().terminating, None);
}

fn some_pod(number: usize, kind: u8) -> OwnedPod {
    let pod = pod_of("ReplicaSet", "web", &number.to_string());
    match kind {
        0 => OwnedPod {
            node: "".into(),
            ready: None,
            phase: "Pending".into(),
            ..pod
        },
        1 => OwnedPod { ready: None, ..pod },
        2 => OwnedPod {
            deleted: Some(at(5)),
            ..pod
        },
        3 => OwnedPod {
            phase: "Succeeded".into(),
            ..pod
        },
        4 => OwnedPod { cost: -1, ..pod },
        _ => pod,
    }
}

proptest! {
    /// Whatever pods there are: after what is planned there are exactly as many active ones as
    /// wanted, only active ones are ended, and none twice.
    #[test]
    fn a_replica_set_reaches_the_wanted_number_of_pods(wanted in 0_i32..12, kinds in proptest::collection::vec(0_u8..7, 0..20)) {
        let mut scene = Scene::<ReplicaSets>::new();
        scene.stand.set(key("web"), set(wanted, json!({"replicas": 0})));
        for (number, kind) in kinds.iter().enumerate() {
            scene.stand.set(key(&number.to_string()), some_pod(number, *kind));
        }
        let active = kinds.iter().filter(|kind| !matches!(kind, 2 | 3)).count();
        let (mut made, mut ended) = (0, Vec::new());
        for step in steps(scene.plan(&key("web"), 0).actions) {
            match step {
                Step::Create(count) => made += count,
                Step::Delete(pods) => ended.extend(pods),
                Step::Own(_) => prop_assert!(false, "nothing to claim"),
                Step::Status(_) => {}
            }
        }
        let known = ended.len();
        for PodId { uid, .. } in &ended {
            let kind = kinds[uid.parse::<usize>().unwrap()];
            prop_assert!(!matches!(kind, 2 | 3));
        }
        ended.sort();
        ended.dedup();
        prop_assert_eq!(ended.len(), known);
        prop_assert!(made == 0 || known == 0);
        prop_assert_eq!(active + made - known, usize::try_from(wanted).unwrap());
    }
}
