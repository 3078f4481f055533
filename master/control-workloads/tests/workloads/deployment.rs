//! Deployments: the plan, and a rollout simulated step by step.

use crate::{Scene, at, kept, key, pod_of};
use config_kube::k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use config_kube::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use master_control_workloads::deployment::{Change, Deployments, Status, Step};
use master_control_workloads::workload::claim::OwnerChange;
use master_control_workloads::workload::kept::Kept;
use master_control_workloads::workload::pod::OwnedPod;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A Deployment with its ReplicaSets, as an API would keep them.
struct World {
    scene: Scene<Deployments>,
    deployment: Deployment,
    sets: BTreeMap<String, ReplicaSet>,
    made: i64,
}

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}})
}

impl World {
    fn new(replicas: i32, strategy: Value) -> Self {
        let deployment: Kept<Deployment> = kept(json!({
            "metadata": {"namespace": "default", "name": "web", "uid": "web-uid", "generation": 1},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template("one"),
                "strategy": strategy, "progressDeadlineSeconds": 600, "revisionHistoryLimit": 10},
        }));
        Self {
            scene: Scene::new(),
            deployment: deployment.0,
            sets: BTreeMap::new(),
            made: 0,
        }
    }

    fn rolling(replicas: i32, surge: i32, missing: i32) -> Self {
        let bounds = json!({"maxSurge": surge, "maxUnavailable": missing});
        Self::new(
            replicas,
            json!({"type": "RollingUpdate", "rollingUpdate": bounds}),
        )
    }

    fn edit(&mut self, edit: impl FnOnce(&mut Deployment)) {
        edit(&mut self.deployment);
        *self.deployment.metadata.generation.as_mut().unwrap() += 1;
    }

    fn image(&mut self, image: &str) {
        let template = serde_json::from_value(template(image)).unwrap();
        self.edit(|deployment| deployment.spec.as_mut().unwrap().template = template);
    }

    fn steps(&mut self, seconds: u64) -> Vec<Step> {
        let stand = &mut self.scene.stand;
        stand.set(key("web"), Kept(self.deployment.clone()));
        for (name, set) in &self.sets {
            stand.set(key(name), Kept(set.clone()));
        }
        let plan = self.scene.plan(&key("web"), seconds);
        plan.actions.into_iter().map(|action| action.step).collect()
    }

    /// Does what is planned; whether anything was.
    fn act(&mut self, seconds: u64) -> bool {
        let steps = self.steps(seconds);
        for step in &steps {
            self.apply(step);
        }
        !steps.is_empty()
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Create(set) => {
                self.made += 1;
                let mut set = (**set).clone();
                let name = set.metadata.name.clone().unwrap();
                set.metadata.uid = Some(format!("{name}-uid"));
                set.metadata.generation = Some(1);
                set.metadata.creation_timestamp = Some(Time(at(self.made)));
                assert!(self.sets.insert(name, set).is_none());
            }
            Step::Change(
                name,
                _,
                Change {
                    scaled,
                    annotations,
                    least_ready,
                },
            ) => {
                let set = self.sets.get_mut(name).expect("it is there");
                let spec = set.spec.as_mut().unwrap();
                if let Some((from, to)) = scaled {
                    assert_eq!(spec.replicas, Some(*from));
                    spec.replicas = Some(*to);
                    *set.metadata.generation.as_mut().unwrap() += 1;
                }
                if least_ready.is_some() {
                    spec.min_ready_seconds = *least_ready;
                }
                set.metadata
                    .annotations
                    .get_or_insert_default()
                    .extend(annotations.clone());
            }
            Step::Delete(name, _) => {
                self.sets.remove(name).expect("it is there");
                self.scene.stand.remove::<Kept<ReplicaSet>>(&key(name));
            }
            Step::Revision(revision) => {
                let annotations = self.deployment.metadata.annotations.get_or_insert_default();
                annotations.insert(
                    "deployment.kubernetes.io/revision".to_owned(),
                    revision.clone(),
                );
            }
            Step::Status(status) => self.deployment.status = Some(status_of(status)),
            Step::Own(_) => unreachable!("all are its own"),
        }
    }

    /// Lets each ReplicaSet have its pods; `available` gives the number of available ones.
    fn run(&mut self, available: impl Fn(&str, i32) -> i32) {
        for (name, set) in &mut self.sets {
            let replicas = set.spec.as_ref().unwrap().replicas.unwrap();
            let status = set.status.get_or_insert_default();
            let now = available(name, replicas).clamp(0, replicas);
            status.replicas = replicas;
            status.ready_replicas = Some(now);
            status.available_replicas = Some(now);
            status.observed_generation = set.metadata.generation;
        }
    }

    /// Rolls until nothing is planned and everything is available.
    fn settle(&mut self, seconds: u64) {
        for _ in 0..200 {
            self.run(|_, replicas| replicas);
            if !self.act(seconds) {
                return;
            }
        }
        unreachable!("it never comes to rest");
    }

    fn sizes(&self) -> Vec<i32> {
        let mut sets: Vec<_> = self.sets.values().collect();
        sets.sort_by_key(|set| set.metadata.creation_timestamp.clone());
        sets.iter()
            .map(|set| set.spec.as_ref().unwrap().replicas.unwrap())
            .collect()
    }

    fn condition(&self, kind: &str) -> (String, String) {
        let status = self.deployment.status.clone().unwrap_or_default();
        let found = status.conditions.unwrap_or_default();
        let found = found.into_iter().find(|one| one.type_ == kind);
        found
            .map(|one| (one.status, one.reason.unwrap_or_default()))
            .unwrap_or_default()
    }

    fn annotation(&self, set: usize, name: &str) -> String {
        let mut sets: Vec<_> = self.sets.values().collect();
        sets.sort_by_key(|set| set.metadata.creation_timestamp.clone());
        let all = sets[set].metadata.annotations.clone().unwrap_or_default();
        all.get(&format!("deployment.kubernetes.io/{name}"))
            .cloned()
            .unwrap_or_default()
    }
}

fn status_of(status: &Status) -> config_kube::k8s_openapi::api::apps::v1::DeploymentStatus {
    let conditions: Vec<Value> = status
        .conditions
        .iter()
        .map(|one| one.json(Some("lastUpdateTime")))
        .collect();
    serde_json::from_value(json!({
        "observedGeneration": status.observed, "replicas": status.replicas, "updatedReplicas": status.updated,
        "readyReplicas": status.ready, "availableReplicas": status.available,
        "unavailableReplicas": status.unavailable, "terminatingReplicas": status.terminating,
        "conditions": conditions,
    }))
    .unwrap()
}

fn pair(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[test]
fn the_first_rollout_makes_one_replica_set_and_completes() {
    let mut world = World::rolling(3, 1, 0);
    let steps = world.steps(0);
    let Step::Create(set) = &steps[0] else {
        unreachable!("{steps:?}")
    };
    let hash = set.metadata.labels.as_ref().unwrap()["pod-template-hash"].clone();
    assert_eq!(set.metadata.name, Some(format!("web-{hash}")));
    let spec = set.spec.as_ref().unwrap();
    assert_eq!(
        spec.selector.match_labels.as_ref().unwrap()["pod-template-hash"],
        hash
    );
    let owner = &set.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.controller),
        ("Deployment", Some(true))
    );
    assert_eq!(steps[1], Step::Revision("1".to_owned()));
    world.act(0);
    assert_eq!(
        world.condition("Progressing"),
        pair("True", "NewReplicaSetCreated")
    );
    assert_eq!(
        world.condition("Available"),
        pair("False", "MinimumReplicasUnavailable")
    );
    world.run(|_, _| 1);
    world.act(1);
    assert_eq!(
        world.condition("Progressing"),
        pair("True", "ReplicaSetUpdated")
    );
    world.settle(2);
    assert_eq!(world.sizes(), [3]);
    assert_eq!(
        world.condition("Progressing"),
        pair("True", "NewReplicaSetAvailable")
    );
    assert_eq!(
        world.condition("Available"),
        pair("True", "MinimumReplicasAvailable")
    );
    assert_eq!(
        (
            world.annotation(0, "desired-replicas"),
            world.annotation(0, "max-replicas")
        ),
        pair("3", "4")
    );
}

#[test]
fn a_template_that_comes_back_gets_its_old_replica_set_and_a_new_number() {
    let mut world = World::rolling(2, 1, 0);
    world.settle(0);
    world.image("two");
    world.settle(1);
    assert_eq!(
        (world.sizes(), world.annotation(1, "revision")),
        (vec![0, 2], "2".to_owned())
    );
    world.image("one");
    world.settle(2);
    assert_eq!(world.sizes(), [2, 0]);
    assert_eq!(
        (
            world.annotation(0, "revision"),
            world.annotation(0, "revision-history")
        ),
        pair("3", "1")
    );
    let annotations = world.deployment.metadata.annotations.clone().unwrap();
    assert_eq!(annotations["deployment.kubernetes.io/revision"], "3");
}

#[test]
fn history_beyond_the_limit_goes_oldest_first() {
    let mut world = World::rolling(1, 1, 0);
    world.edit(|deployment| deployment.spec.as_mut().unwrap().revision_history_limit = Some(1));
    for image in ["one", "two", "three", "four"] {
        world.image(image);
        world.settle(0);
    }
    assert_eq!(world.sizes(), [0, 1]);
    assert_eq!(world.annotation(0, "revision"), "3");
}

#[test]
fn a_paused_deployment_rolls_nothing_and_scales() {
    let mut world = World::rolling(2, 1, 0);
    world.settle(0);
    world.edit(|deployment| deployment.spec.as_mut().unwrap().paused = Some(true));
    world.image("two");
    world.settle(1);
    assert_eq!(world.sizes(), [2]);
    assert_eq!(
        world.condition("Progressing"),
        pair("Unknown", "DeploymentPaused")
    );
    world.edit(|deployment| deployment.spec.as_mut().unwrap().replicas = Some(4));
    world.settle(2);
    assert_eq!(world.sizes(), [4]);
    world.edit(|deployment| deployment.spec.as_mut().unwrap().paused = None);
    world.run(|_, replicas| replicas);
    world.act(3);
    assert_eq!(world.condition("Progressing").1, "NewReplicaSetCreated");
    world.settle(4);
    assert_eq!(world.sizes(), [0, 4]);
}

#[test]
fn a_rollout_without_progress_is_reported_after_its_deadline_and_goes_on_after_it() {
    let mut world = World::rolling(2, 1, 0);
    world.settle(0);
    world.image("broken");
    world.run(|_, replicas| replicas);
    world.act(10);
    let broken = world
        .sets
        .iter()
        .find(|(_, set)| set.status.is_none())
        .map(|(name, _)| name.clone());
    let broken = broken.unwrap();
    for seconds in [10, 11, 12, 600] {
        world.run(|name, replicas| if name == broken { 0 } else { replicas });
        world.act(seconds);
    }
    assert_eq!(world.sizes(), [2, 1]);
    assert_eq!(world.condition("Progressing").0, "True");
    let plan = world.scene.plan(&key("web"), 600);
    assert!(
        plan.requeue.is_some(),
        "it looks again when the deadline has passed"
    );
    world.act(700);
    assert_eq!(
        world.condition("Progressing"),
        pair("False", "ProgressDeadlineExceeded")
    );
    world.act(701);
    assert!(!world.act(702), "it is recorded once");
    world.settle(800);
    assert_eq!(
        (world.sizes(), world.condition("Progressing").1),
        (vec![0, 2], "NewReplicaSetAvailable".to_owned())
    );
}

#[test]
fn a_recreated_deployment_waits_until_the_last_old_pod_has_ended() {
    let mut world = World::new(2, json!({"type": "Recreate"}));
    world.settle(0);
    let old = world.sets.keys().next().unwrap().clone();
    let pod = pod_of("ReplicaSet", &old, "p");
    world.scene.stand.set(key("p"), pod.clone());
    world.image("two");
    world.settle(1);
    assert_eq!(world.sizes(), [0], "nothing new beside a pod that runs");
    let ended = OwnedPod {
        phase: "Succeeded".into(),
        ..pod
    };
    assert_eq!(world.scene.stand.set(key("p"), ended), [key("web")]);
    world.settle(2);
    assert_eq!(world.sizes(), [0, 2]);
}

#[test]
fn a_changed_scale_is_spread_in_proportion_during_a_rollout() {
    // Upstream's documented example: 10 replicas, surge 3, unavailable 2; 8 old and 5 new become 11
    // and 7 of 15 (+ 3).
    let mut world = World::rolling(10, 3, 2);
    world.settle(0);
    world.image("stuck");
    let old = world.sets.keys().next().unwrap().clone();
    for _ in 0..10 {
        world.run(|name, replicas| if name == old { replicas } else { 0 });
        world.act(1);
    }
    assert_eq!(world.sizes(), [8, 5]);
    world.edit(|deployment| deployment.spec.as_mut().unwrap().replicas = Some(15));
    world.run(|name, replicas| if name == old { replicas } else { 0 });
    world.act(2);
    assert_eq!(world.sizes(), [11, 7]);
}

#[test]
fn a_rollout_continues_after_scaling_to_the_size_of_the_only_replica_set() {
    let mut world = World::rolling(3, 0, 1);
    world.settle(0);
    world.image("two");
    world.act(1);
    assert_eq!(world.sizes(), [2, 0], "the old one has made room");
    world.edit(|deployment| deployment.spec.as_mut().unwrap().replicas = Some(2));
    world.settle(2);
    assert_eq!(world.sizes(), [0, 2]);
}

/// A third template, while the first ReplicaSet is to lose a pod that its status still counts.
#[test]
fn a_pod_that_is_to_be_deleted_counts_as_unavailable() {
    let mut world = World::rolling(4, 1, 1);
    world.settle(0);
    world.image("two");
    world.act(1);
    world.act(1);
    world.act(1);
    assert_eq!(world.sizes(), [3, 2]);
    world.image("three");
    for _ in 0..10 {
        world.act(2);
    }
    assert_eq!(world.sizes()[0], 3, "the other one may be missing already");
    // Its controller wrote the status before it deleted the fourth pod.
    let first = world.sets.values_mut();
    let first = first.min_by_key(|set| set.metadata.creation_timestamp.clone());
    let first = first.unwrap();
    let generation = first.metadata.generation;
    let status = first.status.as_mut().unwrap();
    status.observed_generation = generation;
    assert_eq!(status.available_replicas, Some(4));
    for _ in 0..10 {
        world.act(3);
    }
    assert_eq!(world.sizes()[0], 3, "three must serve");
}

/// Pods of a ReplicaSet as they are: all, and those that serve.
type Pods = (i32, i32);

/// Simulates the controller of a ReplicaSet: it writes the status of the pods that it found, and
/// deletes or creates some.
fn keep(set: &mut ReplicaSet, pods: &mut Pods) {
    let replicas = set.spec.as_ref().unwrap().replicas.unwrap();
    let status = set.status.get_or_insert_default();
    status.replicas = pods.0;
    status.ready_replicas = Some(pods.1);
    status.available_replicas = Some(pods.1);
    status.observed_generation = set.metadata.generation;
    // Pods that are not available are deleted first.
    *pods = (replicas, pods.1.min(replicas));
}

proptest! {
    /// However late ReplicaSets act and report, as many pods are available as must be, once all
    /// wanted ones have been.
    #[test]
    fn enough_pods_stay_available_while_replica_sets_lag(
        replicas in 1_i32..6, surge in 0_i32..3, missing in 0_i32..3,
        events in proptest::collection::vec((0_u8..12, 0_usize..4), 1..80),
    ) {
        let mut world = World::rolling(replicas, surge, missing);
        let missing = if surge == 0 && missing == 0 { 1 } else { missing };
        world.settle(0);
        let mut pods: BTreeMap<String, Pods> = BTreeMap::new();
        for (name, set) in &mut world.sets {
            keep(set, pods.entry(name.clone()).or_insert((replicas, replicas)));
        }
        for (event, number) in events {
            let name = world.sets.keys().nth(number % world.sets.len()).unwrap().clone();
            match event {
                0 => world.image(&format!("image-{number}")),
                1..4 => keep(world.sets.get_mut(&name).unwrap(), pods.entry(name).or_default()),
                4..7 => {
                    let pods = pods.entry(name).or_default();
                    pods.1 = pods.0;
                }
                _ => {
                    world.act(1);
                }
            }
            let serving: i32 = pods.values().map(|pods| pods.1).sum();
            prop_assert!(serving >= replicas - missing, "{serving} of {replicas} - {missing} serve: {pods:?}");
        }
    }
}

#[test]
fn orphans_are_adopted_before_anything_else() {
    let mut world = World::rolling(1, 1, 0);
    world.settle(0);
    let set = world.sets.values_mut().next().unwrap();
    let owner = set.metadata.owner_references.take();
    let steps = world.steps(1);
    assert!(
        matches!(steps.as_slice(), [Step::Own(OwnerChange::Adopt(..))]),
        "{steps:?}"
    );
    let set = world.sets.values_mut().next().unwrap();
    set.metadata.owner_references = owner;
    set.metadata.labels = None;
    let steps = world.steps(2);
    assert!(
        matches!(steps.as_slice(), [Step::Own(OwnerChange::Release(..))]),
        "{steps:?}"
    );
}

proptest! {
    /// At every step of rollouts that are interrupted by others: no more pods than replicas and
    /// surge, and no step of this controller takes more available pods than may be missing. In the
    /// end only the last template runs.
    #[test]
    fn max_surge_and_max_unavailable_hold_at_every_step(
        replicas in 0_i32..12, surge in 0_i32..5, missing in 0_i32..5,
        events in proptest::collection::vec((0_u8..4, 0_i32..12), 1..30),
    ) {
        let mut world = World::rolling(replicas, surge, missing);
        let missing = if surge == 0 && missing == 0 { 1 } else { missing };
        world.settle(0);
        for (step, (event, number)) in events.into_iter().enumerate() {
            let seconds = u64::try_from(step).unwrap();
            if event == 0 {
                world.image(&format!("image-{}", number % 4));
            }
            world.run(|name, replicas| (replicas + i32::try_from(name.len()).unwrap() + number) % (replicas + 1));
            let before = available(&world);
            world.act(seconds);
            let total: i32 = world.sizes().iter().sum();
            prop_assert!(total <= replicas + surge, "{total} of {replicas} + {surge}");
            // Pods that certainly remain: a set can have lost no more than it was scaled down by.
            let least = (replicas - missing).max(0);
            let after = left(&world, &before);
            let sum: i32 = before.values().sum();
            prop_assert!(after >= least.min(sum), "{after} of {sum} left, {least} needed");
        }
        world.settle(1000);
        let current = world.sets.values().filter(|set| set.spec.as_ref().unwrap().replicas != Some(0)).count();
        prop_assert!(current <= 1);
        prop_assert_eq!(world.sizes().iter().sum::<i32>(), replicas);
    }
}

fn available(world: &World) -> BTreeMap<String, i32> {
    let available = |set: &ReplicaSet| {
        set.status
            .as_ref()
            .and_then(|status| status.available_replicas)
    };
    world
        .sets
        .iter()
        .map(|(name, set)| (name.clone(), available(set).unwrap_or_default()))
        .collect()
}

/// Available pods after a step. A ReplicaSet ends pods that are not ready first.
fn left(world: &World, before: &BTreeMap<String, i32>) -> i32 {
    let left = |(name, available): (&String, &i32)| {
        let replicas = world
            .sets
            .get(name)
            .map_or(0, |set| set.spec.as_ref().unwrap().replicas.unwrap());
        replicas.min(*available)
    };
    before.iter().map(left).sum()
}

#[test]
fn shares_are_rounded_as_upstream_documents() {
    let mut world = World::rolling(10, 0, 0);
    world.edit(|deployment| {
        let strategy = deployment.spec.as_mut().unwrap().strategy.as_mut().unwrap();
        let rolling = strategy.rolling_update.as_mut().unwrap();
        rolling.max_surge = Some(IntOrString::String("25%".to_owned()));
        rolling.max_unavailable = Some(IntOrString::String("25%".to_owned()));
    });
    world.settle(0);
    world.image("stuck");
    let old = world.sets.keys().next().unwrap().clone();
    for _ in 0..10 {
        world.run(|name, replicas| if name == old { replicas } else { 0 });
        world.act(1);
    }
    assert_eq!(world.sizes(), [8, 5]);
}

/// Users who may write Deployments can write any numbers, and users who may write ReplicaSets any
/// annotations.
#[test]
fn no_number_in_a_deployment_makes_the_controllers_panic() {
    for surge in [
        json!("25%"),
        json!(i32::MAX),
        json!(format!("{}%", i64::MAX)),
    ] {
        let bounds = json!({"maxSurge": surge, "maxUnavailable": "100%"});
        let strategy = json!({"type": "RollingUpdate", "rollingUpdate": bounds});
        let mut world = World::new(i32::MAX, strategy);
        world.act(0);
        assert_eq!(world.sizes(), [i32::MAX]);
        for set in world.sets.values_mut() {
            let annotations = set.metadata.annotations.get_or_insert_default();
            let name = "deployment.kubernetes.io/revision".to_owned();
            annotations.insert(name, i64::MAX.to_string());
        }
        world.image("two");
        world.act(1);
        for (name, most) in world
            .sets
            .keys()
            .cloned()
            .zip([i64::MAX, 1])
            .collect::<Vec<_>>()
        {
            let set = world.sets.get_mut(&name).unwrap();
            set.spec.as_mut().unwrap().replicas = Some(i32::MAX);
            let annotations = set.metadata.annotations.get_or_insert_default();
            annotations.insert(
                "deployment.kubernetes.io/max-replicas".to_owned(),
                most.to_string(),
            );
        }
        world.edit(|deployment| deployment.spec.as_mut().unwrap().replicas = Some(i32::MAX - 1));
        for seconds in 2..6 {
            world.run(|_, replicas| replicas);
            world.act(seconds);
        }
        assert!(world.sizes().into_iter().all(|size| size >= 0));
    }
}

#[test]
fn a_progress_deadline_beyond_all_times_is_never_over() {
    let mut world = World::rolling(2, 1, 0);
    world.act(0);
    let last = "9999-12-30T22:00:00Z";
    let condition = json!({"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated",
        "lastUpdateTime": last, "lastTransitionTime": last});
    world.edit(|deployment| {
        let status = json!({"conditions": [condition]});
        deployment.status = Some(serde_json::from_value(status).unwrap());
        let spec = deployment.spec.as_mut().unwrap();
        spec.progress_deadline_seconds = Some(i32::MAX - 1);
    });
    world.act(1);
    let expected = pair("True", "ReplicaSetUpdated");
    assert_eq!(world.condition("Progressing"), expected);
}
