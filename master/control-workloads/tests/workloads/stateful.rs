//! StatefulSets.

use crate::{Scene, at, kept, key, pod_of};
use config_kube::k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::Timestamp;
use master_control_workloads::stateful_set::{OwnedClaim, StatefulSets, Step, ordinal};
use master_control_workloads::workload::kept::Kept;
use master_control_workloads::workload::pod::OwnedPod;
use master_control_workloads::workload::revision;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A StatefulSet with its pods and revisions, as an API would keep them.
struct World {
    scene: Scene<StatefulSets>,
    set: Kept<StatefulSet>,
    pods: BTreeMap<String, OwnedPod>,
    log: Vec<String>,
}

impl World {
    fn new(replicas: i32, spec: Value) -> Self {
        let mut set = json!({
            "metadata": {"namespace": "default", "name": "web", "uid": "web-uid", "generation": 1},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}}},
        });
        for (field, value) in spec.as_object().unwrap() {
            set["spec"][field] = value.clone();
        }
        Self {
            scene: Scene::new(),
            set: kept(set),
            pods: BTreeMap::new(),
            log: Vec::new(),
        }
    }

    fn edit(&mut self, edit: impl FnOnce(&mut StatefulSet)) {
        edit(&mut self.set.0);
        *self.set.0.metadata.generation.as_mut().unwrap() += 1;
    }

    fn scale(&mut self, replicas: i32) {
        self.edit(|set| set.spec.as_mut().unwrap().replicas = Some(replicas));
    }

    fn image(&mut self, image: &str) {
        self.edit(|set| {
            let pod = &mut set.spec.as_mut().unwrap().template.spec;
            pod.as_mut().unwrap().scheduler_name = Some(image.to_owned());
        });
    }

    fn act(&mut self) -> bool {
        self.scene.stand.set(key("web"), self.set.clone());
        for (name, pod) in &self.pods {
            self.scene.stand.set(key(name), pod.clone());
        }
        let steps = self.scene.plan(&key("web"), 100).actions;
        for action in &steps {
            self.apply(&action.step);
        }
        !steps.is_empty()
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Revision(revision::Step::Create(new)) => {
                let mut new = (**new).clone();
                let name = new.metadata.name.clone().unwrap();
                new.metadata.uid = Some(name.clone());
                self.scene
                    .stand
                    .set(key(&name), Kept::<ControllerRevision>(new));
            }
            Step::Create(place, revision) => {
                let name = format!("web-{place}");
                let index = place.to_string();
                let labels = [
                    ("app", "web"),
                    ("controller-revision-hash", revision),
                    ("statefulset.kubernetes.io/pod-name", &name),
                    ("apps.kubernetes.io/pod-index", &index),
                ];
                let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
                let pod = OwnedPod {
                    labels: Arc::new(labels.into()),
                    ready: None,
                    ..pod_of("StatefulSet", "web", &format!("{name}#{}", self.log.len()))
                };
                assert!(
                    self.pods.insert(name.clone(), pod).is_none(),
                    "a name is given once"
                );
                self.log.push(format!("+{place}"));
            }
            Step::Delete(name, uid) => {
                let pod = self.pods.get_mut(name).expect("it is there");
                assert_eq!(&pod.uid, uid);
                pod.deleted = Some(at(0));
                self.log.push(format!("-{}", ordinal("web", name).unwrap()));
            }
            Step::Status(status) => self.set.0.status = Some((**status).clone()),
            Step::Demand(place) => {
                let name = format!("data-web-{place}");
                let claim = OwnedClaim {
                    uid: name.clone(),
                    owners: Vec::new(),
                };
                self.scene.stand.set(key(&name), claim);
                self.log.push(format!("claim of {place}"));
            }
            Step::Claim(_, change) => {
                assert!(change.remove.len() < 2);
                let claim = OwnedClaim {
                    uid: change.uid.clone(),
                    owners: change.add.clone().into_iter().collect(),
                };
                let owner = claim.owners.first();
                let owner = owner.map_or("nobody", |owner| &owner.kind);
                self.log.push(format!("{} of {owner}", change.claim));
                self.scene.stand.set(key(&change.claim), claim);
            }
            Step::Label(name, _) => {
                let pod = self.pods.get_mut(name).expect("it is there");
                let mut labels = (*pod.labels).clone();
                let index = ordinal("web", name).unwrap().to_string();
                labels.insert("apps.kubernetes.io/pod-index".to_owned(), index);
                labels.insert(
                    "statefulset.kubernetes.io/pod-name".to_owned(),
                    name.clone(),
                );
                pod.labels = Arc::new(labels);
                self.log.push(format!("labels of {name}"));
            }
            Step::Revision(_) | Step::Own(_) => unreachable!("{step:?}"),
        }
    }

    /// Pods become ready, and those that are being deleted go.
    fn run(&mut self) {
        let gone: Vec<String> = self
            .pods
            .iter()
            .filter(|(_, pod)| pod.deleted.is_some())
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            self.pods.remove(&name);
            self.scene.stand.remove::<OwnedPod>(&key(&name));
        }
        for pod in self.pods.values_mut() {
            pod.ready = Some(at(0));
        }
    }

    /// The actions, in order, until nothing is planned.
    fn settle(&mut self) -> String {
        for _ in 0..60 {
            if !self.act() {
                return std::mem::take(&mut self.log).join(" ");
            }
            self.run();
        }
        unreachable!("it never comes to rest");
    }

    fn revisions(&self) -> Vec<String> {
        let hashes = self
            .pods
            .values()
            .map(|pod| pod.label("controller-revision-hash").to_owned());
        hashes.collect()
    }
}

#[test]
fn ordinals_are_filled_from_the_first_and_emptied_from_the_last() {
    let mut world = World::new(3, json!({}));
    assert_eq!(world.settle(), "+0 +1 +2");
    let status = world.set.0.status.clone().unwrap();
    assert_eq!(
        (
            status.replicas,
            status.ready_replicas,
            status.available_replicas
        ),
        (3, Some(3), Some(3))
    );
    assert_eq!(
        (status.current_replicas, status.updated_replicas),
        (Some(3), Some(3))
    );
    assert_eq!(status.current_revision, status.update_revision);
    world.scale(1);
    assert_eq!(world.settle(), "-2 -1");
    world.scale(2);
    assert_eq!(world.settle(), "+1");
}

#[test]
fn a_change_of_the_template_is_observed_by_the_plan_that_makes_its_revision() {
    let mut world = World::new(2, json!({}));
    for image in ["one", "two", "three"] {
        world.image(image);
        world.act();
        let status = world.set.0.status.clone().unwrap();
        assert_eq!(status.observed_generation, world.set.0.metadata.generation);
        let rolls = status.update_revision != status.current_revision;
        assert_eq!(rolls, image != "one", "clients wait for the pods");
        assert_eq!(world.log, [""; 0], "which follow once it is seen");
        world.settle();
    }
}

#[test]
fn a_pod_that_is_not_ready_delays_the_next_one_unless_parallel() {
    let mut world = World::new(3, json!({}));
    world.act();
    world.act();
    world.act();
    assert_eq!(world.log, ["+0"]);
    let mut world = World::new(
        3,
        json!({"podManagementPolicy": "Parallel", "ordinals": {"start": 5}}),
    );
    world.act();
    world.act();
    assert_eq!(world.log, ["+5", "+6", "+7"]);
}

#[test]
fn scaling_down_waits_for_unready_pods_of_lower_ordinals() {
    // The pods that don't serve, and what goes as no pod is wanted any more.
    let table: [(&[&str], &[&str]); 5] = [
        (&["web-0", "web-1", "web-2"], &[]),
        (&["web-1", "web-2"], &[]),
        (&["web-0"], &["-2"]),
        (&["web-2"], &["-2"]),
        (&[], &["-2"]),
    ];
    for (down, gone) in table {
        let mut world = World::new(3, json!({}));
        world.settle();
        for name in down {
            world.pods.get_mut(*name).unwrap().ready = None;
        }
        world.scale(0);
        for _ in 0..3 {
            world.act();
        }
        assert_eq!(world.log, gone, "{down:?}");
    }
    let mut world = World::new(2, json!({"podManagementPolicy": "Parallel"}));
    world.settle();
    for pod in world.pods.values_mut() {
        pod.ready = None;
    }
    world.scale(0);
    world.act();
    assert_eq!(world.log, ["-1", "-0"]);
}

#[test]
fn a_pod_is_created_again_only_when_the_one_of_its_name_is_gone() {
    let mut world = World::new(1, json!({}));
    world.settle();
    world.pods.get_mut("web-0").unwrap().phase = "Failed".into();
    world.act();
    world.act();
    assert_eq!(world.log, ["-0"]);
    world.run();
    world.act();
    assert_eq!(world.log, ["-0", "+0"]);
}

#[test]
fn a_rolling_update_goes_from_the_last_to_the_partition() {
    let mut world = World::new(3, json!({}));
    world.settle();
    world.image("two");
    assert_eq!(world.settle(), "-2 +2 -1 +1 -0 +0");
    let status = world.set.0.status.clone().unwrap();
    assert_eq!(status.current_revision, status.update_revision);
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 2}});
    world.edit(|set| {
        set.spec.as_mut().unwrap().update_strategy = serde_json::from_value(strategy).unwrap();
    });
    world.image("three");
    assert_eq!(world.settle(), "-2 +2");
    let revisions = world.revisions();
    assert_eq!(revisions[0], revisions[1]);
    assert_ne!(revisions[1], revisions[2]);
    // A place below the partition comes back as it was.
    world.pods.remove("web-0");
    world.scene.stand.remove::<OwnedPod>(&key("web-0"));
    assert_eq!(world.settle(), "+0");
    assert_eq!(world.revisions(), revisions);
}

#[test]
fn a_pod_that_is_not_yet_available_delays_the_next_one() {
    let mut world = World::new(2, json!({"minReadySeconds": 150}));
    assert_eq!(world.settle(), "+0");
    let requeue = world.scene.plan(&key("web"), 100).requeue;
    assert_eq!(requeue, Some(Duration::from_secs(50)));
    let status = world.set.0.status.clone().unwrap();
    let counts = (status.ready_replicas, status.available_replicas);
    assert_eq!(counts, (Some(1), Some(0)));
    // All have served for long enough.
    let act = |world: &mut World| {
        world.run();
        for pod in world.pods.values_mut() {
            pod.ready = Some(at(-50));
        }
        world.act();
        world.act();
        std::mem::take(&mut world.log).join(" ")
    };
    assert_eq!(act(&mut world), "+1");
    assert_eq!(act(&mut world), "");
    world.image("two");
    assert_eq!(act(&mut world), "-1");
    assert_eq!(act(&mut world), "+1");
    world.pods.get_mut("web-1").unwrap().ready = Some(at(0));
    world.act();
    assert_eq!(world.log, [""; 0], "the new one has just begun to serve");
    assert_eq!(act(&mut world), "-0");
}

#[test]
fn on_delete_gives_the_new_template_to_deleted_pods_alone() {
    let mut world = World::new(2, json!({"updateStrategy": {"type": "OnDelete"}}));
    world.settle();
    world.image("two");
    assert_eq!(world.settle(), "");
    world.pods.remove("web-0");
    world.scene.stand.remove::<OwnedPod>(&key("web-0"));
    assert_eq!(world.settle(), "+0");
    let revisions = world.revisions();
    assert_ne!(revisions[0], revisions[1]);
}

#[test]
fn a_rolling_update_replaces_up_to_max_unavailable_pods_at_once() {
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}});
    let mut world = World::new(
        4,
        json!({"updateStrategy": strategy, "podManagementPolicy": "Parallel"}),
    );
    world.settle();
    world.image("two");
    assert_eq!(world.settle(), "-3 -2 +2 +3 -1 -0 +0 +1");
}

#[test]
fn max_unavailable_is_rounded_as_upstream_rounds_it() {
    // What is given, replicas, pods that are renewed at once (upstream rounds shares down, to no
    // less than one).
    let table = [
        (json!(1), 5, 1),
        (json!(2), 5, 2),
        (json!("10%"), 5, 1),
        (json!("50%"), 5, 2),
        (json!("99%"), 5, 4),
        (json!("100%"), 5, 5),
        (json!("34%"), 3, 1),
    ];
    for (given, replicas, expected) in table {
        let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": given}});
        let spec = json!({"updateStrategy": rolling, "podManagementPolicy": "Parallel"});
        let mut world = World::new(replicas, spec);
        world.settle();
        world.image("two");
        world.act();
        world.act();
        assert_eq!(world.log.len(), expected, "{given} of {replicas}");
    }
}

#[test]
fn claims_get_the_owner_of_the_policy_whenever_it_or_the_number_of_replicas_changes() {
    let template = json!({"metadata": {"name": "data"}, "spec": {}});
    let mut world = World::new(2, json!({"volumeClaimTemplates": [template]}));
    world.act();
    world.act();
    world.pods.get_mut("web-0").unwrap().phase = "Pending".into();
    world.act();
    assert_eq!(
        world.log,
        ["+0", "claim of 0"],
        "its pod waits for the claim"
    );
    world.pods.get_mut("web-0").unwrap().phase = "Running".into();
    world.apply(&Step::Demand(1));
    world.run();
    assert_eq!(world.settle(), "+0 claim of 0 claim of 1 +1");
    let policy = |world: &mut World, deleted: &str, scaled: &str| {
        let policy = json!({"whenDeleted": deleted, "whenScaled": scaled});
        let policy = serde_json::from_value(policy).unwrap();
        world.edit(|set| {
            set.spec
                .as_mut()
                .unwrap()
                .persistent_volume_claim_retention_policy = Some(policy);
        });
    };
    policy(&mut world, "Delete", "Retain");
    let owned = "data-web-0 of StatefulSet data-web-1 of StatefulSet";
    assert_eq!(world.settle(), owned);
    policy(&mut world, "Delete", "Delete");
    assert_eq!(world.settle(), "");
    world.scale(1);
    assert_eq!(world.settle(), "data-web-1 of Pod -1");
    policy(&mut world, "Retain", "Retain");
    assert_eq!(world.settle(), "data-web-0 of nobody");
}

#[test]
fn a_pod_gets_back_the_labels_of_its_ordinal() {
    let mut world = World::new(1, json!({}));
    world.settle();
    let pod = world.pods.get_mut("web-0").unwrap();
    let mut labels = (*pod.labels).clone();
    labels.remove("apps.kubernetes.io/pod-index");
    pod.labels = Arc::new(labels);
    assert_eq!(world.settle(), "labels of web-0");
}

proptest! {
    /// Through any scaling: no place twice, no gap below a place that is filled in order, and in
    /// the end all places.
    #[test]
    fn no_two_pods_have_the_same_ordinal(sizes in proptest::collection::vec((0_i32..6, any::<bool>()), 1..12)) {
        let mut world = World::new(2, json!({}));
        for (number, (replicas, renewed)) in sizes.iter().enumerate() {
            world.scale(*replicas);
            if *renewed {
                world.image(&format!("image-{number}"));
            }
            for _ in 0..3 {
                world.act();
                world.run();
            }
        }
        let (last, _) = *sizes.last().unwrap();
        world.settle();
        let places: Vec<String> = (0..last).map(|place| format!("web-{place}")).collect();
        prop_assert_eq!(world.pods.keys().cloned().collect::<Vec<_>>(), places);
        let mut revisions = world.revisions();
        revisions.dedup();
        prop_assert!(revisions.len() <= 1);
    }
}

#[test]
fn no_number_in_a_stateful_set_makes_the_controllers_panic() {
    let spec = json!({"podManagementPolicy": "Parallel", "ordinals": {"start": 5},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": i32::MAX, "maxUnavailable": "100%"}}});
    let mut world = World::new(i32::MAX, spec);
    world.act();
    world.act();
    assert_eq!(
        world.pods.len(),
        500,
        "the others wait until these are seen"
    );
    world.run();
    world.image("two");
    world.act();
    world.act();
    // A kubelet may write any time at which a pod became ready.
    let mut world = World::new(1, json!({"minReadySeconds": i32::MAX}));
    world.act();
    world.act();
    for pod in world.pods.values_mut() {
        pod.ready = Some(Timestamp::MAX);
    }
    world.act();
    let last = i32::MAX - 1;
    let mut world = World::new(i32::MAX, json!({"ordinals": {"start": last}}));
    assert_eq!(world.settle(), format!("+{last}"));
}

#[test]
fn missing_pods_count_as_unavailable_during_a_rolling_update() {
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}});
    let mut world = World::new(
        4,
        json!({"podManagementPolicy": "Parallel", "updateStrategy": rolling}),
    );
    world.settle();
    world.pods.remove("web-2");
    world.scene.stand.remove::<OwnedPod>(&key("web-2"));
    world.image("two");
    world.act();
    world.act();
    assert_eq!(
        world.log,
        ["+2", "-3"],
        "one is missing, and one more may be"
    );
}

#[test]
fn all_ordinals_count_for_max_unavailable_during_a_rolling_update() {
    // How many may be missing, the partition, and what is done where the pods of the first two
    // places do not serve: they are replaced at no cost, unless they are to stay.
    for (most, partition, expected) in [
        (2, 0, "-1 -0"),
        (3, 0, "-1 -0 -4"),
        (2, 1, "-1"),
        (2, 2, ""),
        (3, 2, "-4"),
        (4, 2, "-4 -3"),
    ] {
        let rolling = json!({"maxUnavailable": most, "partition": partition});
        let strategy = json!({"type": "RollingUpdate", "rollingUpdate": rolling});
        let spec = json!({"podManagementPolicy": "Parallel", "updateStrategy": strategy});
        let mut world = World::new(5, spec);
        world.settle();
        for name in ["web-0", "web-1"] {
            world.pods.get_mut(name).unwrap().ready = None;
        }
        world.image("two");
        world.act();
        world.act();
        assert_eq!(world.log.join(" "), expected, "{most} from {partition} on");
    }
    // The same for a place without a pod below the others.
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}});
    let spec = json!({"podManagementPolicy": "Parallel", "updateStrategy": rolling});
    let mut world = World::new(4, spec);
    world.settle();
    world.pods.remove("web-0");
    world.scene.stand.remove::<OwnedPod>(&key("web-0"));
    world.image("two");
    world.act();
    world.act();
    assert_eq!(world.log, ["+0", "-3"]);
}

#[test]
fn a_pod_that_ended_is_deleted_once_during_a_rollout() {
    let mut world = World::new(2, json!({"podManagementPolicy": "Parallel"}));
    world.settle();
    world.pods.get_mut("web-0").unwrap().phase = "Failed".into();
    world.image("two");
    world.act();
    world.act();
    assert_eq!(world.log, ["-0"]);
}

#[test]
fn the_status_counts_pods_that_serve_until_they_are_gone_and_those_of_a_set_that_is_deleted() {
    let mut world = World::new(2, json!({}));
    world.settle();
    let counts = |world: &World| {
        let status = world.set.0.status.clone().unwrap();
        let (ready, available) = (status.ready_replicas, status.available_replicas);
        (status.replicas, ready.unwrap(), available.unwrap())
    };
    world.pods.get_mut("web-1").unwrap().deleted = Some(at(0));
    world.act();
    assert_eq!(counts(&world), (2, 2, 2));
    world.set.0.metadata.deletion_timestamp = Some(Time(at(0)));
    world.pods.remove("web-1");
    world.scene.stand.remove::<OwnedPod>(&key("web-1"));
    assert_eq!(world.settle(), "", "its pods are not made anew");
    assert_eq!(counts(&world), (1, 1, 1));
}
