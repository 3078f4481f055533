//! DaemonSets.

use crate::{Scene, at, kept, key, pod_of};
use config_kube::k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use config_kube::k8s_openapi::api::core::v1::Taint;
use master_client::Key;
use master_control::controller::Controller as _;
use master_control_workloads::daemon_set::{DaemonSets, Ended, Step};
use master_control_workloads::workload::kept::Kept;
use master_control_workloads::workload::node_facts::NodeFacts;
use master_control_workloads::workload::pod::{OwnedPod, PodId};
use master_control_workloads::workload::revision;
use master_control_workloads::workload::waits::{Version, Waits};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A DaemonSet with its pods and revisions, as an API would keep them.
struct World {
    scene: Scene<DaemonSets>,
    set: Kept<DaemonSet>,
    pods: BTreeMap<String, OwnedPod>,
    revisions: BTreeMap<String, ControllerRevision>,
    made: i64,
    reported: Vec<Ended>,
}

impl World {
    fn new(strategy: Value) -> Self {
        let set = kept(json!({
            "metadata": {"namespace": "default", "name": "web", "uid": "web-uid", "generation": 1},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "updateStrategy": strategy,
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"nodeSelector": {"os": "linux"}, "containers": []}}},
        }));
        let mut world = Self {
            scene: Scene::new(),
            set,
            pods: BTreeMap::new(),
            revisions: BTreeMap::new(),
            made: 0,
            reported: Vec::new(),
        };
        for name in ["n1", "n2", "n3"] {
            world.node(name, &[]);
        }
        world
    }

    fn rolling(surge: i32, missing: i32) -> Self {
        let bounds = json!({"maxSurge": surge, "maxUnavailable": missing});
        Self::new(json!({"type": "RollingUpdate", "rollingUpdate": bounds}))
    }

    fn node(&mut self, name: &str, taints: &[(&str, &str)]) {
        let taint = |(key, effect): &(&str, &str)| Taint {
            key: (*key).to_owned(),
            effect: (*effect).to_owned(),
            ..Taint::default()
        };
        let place = NodeFacts {
            labels: [("os".to_owned(), "linux".to_owned())].into(),
            taints: taints.iter().map(taint).collect(),
        };
        self.scene.stand.set(Key::cluster(name), place);
    }

    fn image(&mut self, image: &str) {
        let spec = &mut self.set.0.spec.as_mut().unwrap().template.spec;
        spec.as_mut().unwrap().hostname = Some(image.to_owned());
        *self.set.0.metadata.generation.as_mut().unwrap() += 1;
    }

    fn act(&mut self, seconds: u64) -> bool {
        self.scene.stand.set(key("web"), self.set.clone());
        for (name, pod) in &self.pods {
            self.scene.stand.set(key(name), pod.clone());
        }
        let steps = self.scene.plan(&key("web"), seconds).actions;
        for action in &steps {
            self.apply(&action.step);
        }
        !steps.is_empty()
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Revision(revision::Step::Create(new)) => {
                let mut new = (**new).clone();
                new.metadata.uid.clone_from(&new.metadata.name);
                self.revise(new);
            }
            Step::Revision(revision::Step::Renumber(name, _, number)) => {
                let mut revision = self.revisions[name].clone();
                revision.revision = *number;
                self.revise(revision);
            }
            Step::Revision(revision::Step::Delete(name, _)) => self.forget(name),
            Step::Create(nodes, hash) => {
                for node in nodes {
                    self.made += 1;
                    let labels = [("app", "web"), ("controller-revision-hash", hash)];
                    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
                    let name = format!("p{}", self.made);
                    let pod = OwnedPod {
                        created: Some(at(self.made)),
                        node: node.as_str().into(),
                        labels: Arc::new(labels.into()),
                        ready: None,
                        ..pod_of("DaemonSet", "web", &name)
                    };
                    self.pods.insert(name, pod);
                }
            }
            Step::Delete(pods) => {
                for PodId { key, .. } in pods {
                    self.pods.remove(&key.name).expect("it is there");
                    self.scene.stand.remove::<OwnedPod>(key);
                }
            }
            Step::Event(ended) => self.reported.push(ended.clone()),
            Step::Status(status) => self.set.0.status = Some((**status).clone()),
            Step::Revision(revision::Step::Own(_)) | Step::Own(_) => {
                unreachable!("{step:?}")
            }
        }
    }

    fn revise(&mut self, revision: ControllerRevision) {
        let name = revision.metadata.name.clone().unwrap();
        self.revisions.insert(name.clone(), revision.clone());
        self.scene
            .stand
            .set(key(&name), Kept::<ControllerRevision>(revision));
    }

    fn forget(&mut self, name: &str) {
        self.revisions.remove(name);
        self.scene
            .stand
            .remove::<Kept<ControllerRevision>>(&key(name));
    }

    fn ready(&mut self) {
        for pod in self.pods.values_mut() {
            pod.ready = Some(at(0));
        }
    }

    /// Acts until nothing is planned, with all pods ready at each step; returns the most pods that
    /// were missing, and the most beyond one per node.
    fn settle(&mut self) -> (usize, usize) {
        let (mut missing, mut beyond) = (0, 0);
        for _ in 0..50 {
            self.ready();
            if !self.act(100) {
                return (missing, beyond);
            }
            let ready = self.pods.values().filter(|pod| pod.ready.is_some()).count();
            missing = missing.max(3_usize.saturating_sub(ready));
            beyond = beyond.max(self.pods.len().saturating_sub(3));
        }
        unreachable!("it never comes to rest");
    }

    fn nodes(&self) -> Vec<&str> {
        let mut nodes: Vec<&str> = self.pods.values().map(|pod| &*pod.node).collect();
        nodes.sort_unstable();
        nodes
    }

    fn hashes(&self) -> Vec<&str> {
        let mut all: Vec<&str> = self
            .pods
            .values()
            .map(|pod| pod.label("controller-revision-hash"))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

#[test]
fn pods_keep_running_when_a_client_copies_their_revision_or_deletes_it() {
    for label in [Some("another"), None] {
        let mut world = World::rolling(0, 1);
        world.settle();
        let pods: Vec<String> = world.pods.keys().cloned().collect();
        let own = world.revisions.values().next().unwrap().clone();
        let mut copy = own.clone();
        copy.revision = 7;
        copy.metadata.name = Some("copy".to_owned());
        copy.metadata.uid = Some("copy".to_owned());
        let labels = copy.metadata.labels.as_mut().unwrap();
        labels.remove(revision::HASH);
        if let Some(label) = label {
            labels.insert(revision::HASH.to_owned(), label.to_owned());
        }
        world.revise(copy);
        world.settle();
        assert!(world.pods.keys().eq(&pods), "{label:?}");
        let name = own.metadata.name.as_deref().unwrap();
        assert_eq!(
            world.revisions[name].revision, 8,
            "it stays the current one"
        );
        world.forget(name);
        world.settle();
        assert!(world.pods.keys().eq(&pods), "{label:?}");
        assert!(
            world.revisions.keys().eq(["copy"]),
            "what was deleted does not come back"
        );
        let status = world.set.0.status.clone().unwrap();
        assert_eq!(status.updated_number_scheduled, Some(3));
        world.image("two");
        world.settle();
        assert_eq!(world.hashes().len(), 1);
        assert!(!world.pods.keys().eq(&pods), "another template does roll");
        let numbers = world.revisions.values().map(|one| one.revision);
        assert_eq!(numbers.max(), Some(8), "the next after the copy's");
    }
}

#[test]
fn a_revision_that_is_deleted_and_has_no_copy_is_made_again() {
    let mut world = World::rolling(0, 1);
    world.settle();
    let pods: Vec<String> = world.pods.keys().cloned().collect();
    let own = world.revisions.clone();
    let name = own.keys().next().unwrap();
    world.forget(name);
    world.settle();
    assert!(world.revisions.keys().eq([name]));
    assert_eq!(world.revisions[name].data, own[name].data);
    assert!(world.pods.keys().eq(&pods), "their template is the same");
}

#[test]
fn a_change_of_the_template_is_observed_by_the_plan_that_makes_its_revision() {
    let mut world = World::rolling(0, 1);
    for image in ["one", "two"] {
        world.image(image);
        let made = world.made;
        world.act(100);
        let status = world.set.0.status.clone().unwrap();
        assert_eq!(status.observed_generation, world.set.0.metadata.generation);
        assert_eq!(status.updated_number_scheduled, Some(0));
        assert_eq!(world.made, made, "pods are made once it is seen");
        world.settle();
    }
}

#[test]
fn each_node_that_fits_gets_one_pod() {
    let mut world = World::rolling(0, 1);
    world.node("tainted", &[("gpu", "NoSchedule")]);
    world.node(
        "cordoned",
        &[("node.kubernetes.io/unschedulable", "NoSchedule")],
    );
    let foreign = NodeFacts::default();
    world.scene.stand.set(Key::cluster("foreign"), foreign);
    world.settle();
    assert_eq!(world.nodes(), ["cordoned", "n1", "n2", "n3"]);
    let status = world.set.0.status.clone().unwrap();
    let counts = (
        status.desired_number_scheduled,
        status.number_ready,
        status.number_available,
    );
    assert_eq!(counts, (4, 4, Some(4)));
    assert_eq!(
        (status.number_misscheduled, status.updated_number_scheduled),
        (0, Some(4))
    );
    // `NoSchedule` evicts no running pod; `NoExecute` does.
    world.node("n1", &[("gpu", "NoSchedule")]);
    world.settle();
    assert_eq!(world.nodes(), ["cordoned", "n1", "n2", "n3"]);
    assert_eq!(world.set.0.status.as_ref().unwrap().number_misscheduled, 1);
    world.node("n1", &[("gpu", "NoExecute")]);
    world.settle();
    assert_eq!(world.nodes(), ["cordoned", "n2", "n3"]);
}

#[test]
fn pods_of_a_node_that_is_gone_are_left_to_pod_garbage_collection() {
    let mut world = World::rolling(0, 1);
    world.settle();
    let gone = Key::cluster("n1");
    world.scene.stand.remove::<NodeFacts>(&gone);
    world.settle();
    assert_eq!(world.nodes(), ["n1", "n2", "n3"], "n1 may come back");
    let status = world.set.0.status.clone().unwrap();
    let counts = (status.desired_number_scheduled, status.number_ready);
    assert_eq!((counts, status.number_misscheduled), ((2, 2), 0));
    world.node("n1", &[]);
    world.settle();
    assert_eq!((world.nodes(), world.made), (vec!["n1", "n2", "n3"], 3));
    // No other controller deletes a pod that is not bound yet.
    let pod = world.pods.values_mut().find(|pod| &*pod.node == "n1");
    let pod = pod.unwrap();
    (pod.node, pod.meant_for) = ("".into(), "n1".into());
    world.scene.stand.remove::<NodeFacts>(&gone);
    world.settle();
    assert_eq!(world.nodes(), ["n2", "n3"]);
}

#[test]
fn a_pod_that_ended_is_replaced_and_a_second_one_goes() {
    let mut world = World::rolling(0, 1);
    world.settle();
    let name = world.pods.keys().next().unwrap().clone();
    let pod = world.pods.get_mut(&name).unwrap();
    pod.phase = "Failed".into();
    world.act(100);
    assert!(!world.pods.contains_key(&name));
    assert_eq!(world.reported.len(), 1);
    assert!(world.reported[0].failed);
    world.settle();
    assert_eq!(world.nodes(), ["n1", "n2", "n3"]);
    let twin = OwnedPod {
        uid: "twin".to_owned(),
        created: Some(at(90)),
        ..world.pods.values().next().unwrap().clone()
    };
    world.pods.insert("twin".to_owned(), twin);
    world.settle();
    assert_eq!(world.nodes(), ["n1", "n2", "n3"]);
    assert!(!world.pods.contains_key("twin"), "the older one stays");
}

#[test]
fn a_rolling_update_keeps_its_bounds() {
    for (surge, missing) in [(0, 1), (0, 2), (1, 0), (3, 0)] {
        let mut world = World::rolling(surge, missing);
        world.settle();
        world.image("two");
        let (most_missing, most_beyond) = world.settle();
        let number = |number: i32| usize::try_from(number).unwrap();
        assert!(
            most_missing <= number(missing),
            "{surge} {missing}: {most_missing} were missing"
        );
        assert!(
            most_beyond <= number(surge),
            "{surge} {missing}: {most_beyond} beyond"
        );
        assert_eq!(
            (world.nodes(), world.hashes().len()),
            (vec!["n1", "n2", "n3"], 1)
        );
        assert_eq!(world.made, 6);
    }
}

#[test]
fn unready_daemon_pods_are_replaced_at_once_beside_the_surge() {
    let mut world = World::rolling(1, 0);
    world.settle();
    world.image("two");
    // The revision is made first, pods once it is seen.
    world.act(100);
    for name in ["p1", "p2"] {
        world.pods.get_mut(name).unwrap().ready = None;
    }
    world.act(100);
    assert_eq!(
        world.nodes(),
        ["n1", "n1", "n2", "n2", "n3", "n3"],
        "two that don't serve, and one of those that do"
    );
    world.act(100);
    assert_eq!(
        world.nodes(),
        ["n1", "n2", "n3", "n3"],
        "nothing is lost with a pod that isn't ready"
    );
    world.settle();
    assert_eq!((world.made, world.hashes().len()), (6, 1));
}

/// Otherwise `kubectl rollout status` ends before any new pod runs.
#[test]
fn a_node_is_updated_once_its_oldest_pod_is_of_the_new_template() {
    let counts = |world: &World| {
        let status = world.set.0.status.clone().unwrap();
        let desired = status.desired_number_scheduled;
        let updated = status.updated_number_scheduled.unwrap();
        let available = status.number_available.unwrap();
        [desired, updated, status.number_ready, available]
    };
    let mut world = World::rolling(3, 0);
    world.settle();
    world.image("two");
    for _ in 0..3 {
        world.act(100);
    }
    let nodes = ["n1", "n1", "n2", "n2", "n3", "n3"];
    assert_eq!(world.nodes(), nodes, "the new ones are beside the old ones");
    assert_eq!(counts(&world), [3, 0, 3, 3]);
    world.pods.get_mut("p4").unwrap().ready = Some(at(0));
    world.pods.get_mut("p1").unwrap().deleted = Some(at(100));
    world.act(100);
    assert_eq!(counts(&world), [3, 0, 3, 3], "the old one has yet to end");
    world.pods.get_mut("p1").unwrap().phase = "Succeeded".into();
    world.act(100);
    assert_eq!(counts(&world), [3, 1, 3, 3]);
    world.pods.get_mut("p2").unwrap().ready = None;
    world.pods.get_mut("p5").unwrap().ready = Some(at(0));
    world.act(100);
    assert_eq!(
        counts(&world),
        [3, 1, 2, 2],
        "the old one speaks for its node"
    );
    world.pods.remove("p1");
    world.scene.stand.remove::<OwnedPod>(&key("p1"));
    world.settle();
    assert_eq!(counts(&world), [3, 3, 3, 3]);
}

/// Neither the template nor the creation time, by a clock that was set, shows which pod serves.
#[test]
fn a_ready_daemon_pod_stays_when_the_template_changes_again() {
    let mut world = World::rolling(1, 0);
    world.settle();
    world.image("two");
    world.act(100);
    world.act(100);
    let successor = world.pods.get_mut("p4").unwrap();
    assert_eq!((&*successor.node, successor.ready), ("n1", None));
    // The clock was set back before it was made.
    successor.created = Some(at(0));
    world.image("three");
    world.act(100);
    world.act(100);
    assert!(world.pods.contains_key("p1"), "{:?}", world.pods.keys());
    assert!(!world.pods.contains_key("p4"), "one of them is enough");
    assert_eq!(world.settle(), (0, 1));
    assert_eq!(world.hashes().len(), 1);
}

/// Otherwise a kubelet that refuses the successor gets one after the other, whatever the back-off.
#[test]
fn a_failed_daemon_pod_delays_the_next_attempt() {
    let mut world = World::rolling(1, 0);
    world.settle();
    world.image("two");
    world.act(100);
    world.pods.get_mut("p1").unwrap().ready = None;
    world.act(100);
    let mut pods = world.pods.iter_mut();
    let successor = pods.find(|(name, pod)| &*pod.node == "n1" && *name != "p1");
    successor.unwrap().1.phase = "Failed".into();
    for (name, pod) in &world.pods {
        world.scene.stand.set(key(name), pod.clone());
    }
    let (owner, now) = (key("web"), world.scene.now(100));
    let mut facts = world.scene.controller.facts(&owner, now).unwrap();
    let (waits, version) = (Waits::default(), Version::default());
    waits.note(&owner, &version, "n1", now.instant);
    facts.waits = waits.of(&owner, &version);
    let steps = DaemonSets::plan(&facts, now).actions;
    let creates = |step: &Step| matches!(step, Step::Create(..));
    assert!(
        !steps.iter().any(|action| creates(&action.step)),
        "{steps:?}"
    );
}

#[test]
fn on_delete_replaces_only_deleted_daemon_pods() {
    let mut world = World::new(json!({"type": "OnDelete"}));
    world.settle();
    world.image("two");
    world.settle();
    assert_eq!(
        (
            world.made,
            world
                .set
                .0
                .status
                .as_ref()
                .unwrap()
                .updated_number_scheduled
        ),
        (3, Some(0))
    );
    let name = world.pods.keys().next().unwrap().clone();
    world.pods.remove(&name);
    world.scene.stand.remove::<OwnedPod>(&key(&name));
    world.settle();
    assert_eq!((world.made, world.hashes().len()), (4, 2));
}
