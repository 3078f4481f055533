//! Workload controllers in a world of faults: calls that fail, answers that are lost, processes that end in the middle of a
//! run, stores that lag, pods that fail, nodes that go. Whatever happens, promises hold at every step, and when it is over
//! everything comes to what its specification says.

#![allow(
    clippy::unwrap_used,
    clippy::needless_pass_by_value,
    reason = "tests may stop at the first surprise, and cases are written in place"
)]

mod simulation;

use config_kube::k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use config_kube::k8s_openapi::api::batch::v1::Job;
use config_kube::k8s_openapi::api::core::v1::{Node, Pod};
use config_kube::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use jiff::Timestamp;
use master_api::ApiServer;
use master_client::{Client, DeleteParams, Object, Patch, UserInfo, View, Whole};
use master_control_workloads::daemon_set::DaemonSets;
use master_control_workloads::deployment::Deployments;
use master_control_workloads::disruption_budget::DisruptionBudgets;
use master_control_workloads::job::Jobs;
use master_control_workloads::replica_set::ReplicaSets;
use master_control_workloads::stateful_set::{StatefulSets, ordinal};
use master_control_workloads::workload::pod::OwnedPod;
use master_store::{Disk, EmbeddedStore};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use simulation::{Any, Dice, Faults, Faulty, History, KINDS, Processes, Worker};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::sync::Arc;
use tempfile::TempDir;

/// Steps of a case with faults, and rounds within which everything must have come to rest after them.
const STEPS: usize = 220;
const ROUNDS: usize = 400;
/// Pods of the application that a budget protects, and those that must be left.
const PROTECTED: usize = 3;
const LEFT: usize = 2;

/// A disk that is not waited for: what a power cut takes is the store's matter, and tested there.
#[derive(Debug)]
struct Volatile;

impl Disk for Volatile {
    fn flush(&self, _: &File) -> io::Result<()> {
        Ok(())
    }
}

/// How rough a case is.
#[derive(Debug, Clone, Copy)]
struct Weather {
    /// Pods of services fail, nodes go, and numbers of replicas change: bounds that others can break are not checked.
    storm: bool,
    faults: Faults,
}

/// A case: the world, and what is known to be true of it.
struct World {
    history: History,
    processes: Processes,
    dice: Dice,
    weather: Weather,
    surge: usize,
    missing: usize,
    replicas: usize,
    /// UIDs of the Job's pods by how they ended, and what its status has said.
    succeeded: BTreeSet<String>,
    failed: BTreeSet<String>,
    said: (i32, i32),
    parallelism: usize,
    completions: i32,
    /// Pods that only their node ends: bound, by UID; and those that nodes have ended.
    bound: BTreeSet<String>,
    ended: BTreeSet<String>,
    known: BTreeSet<String>,
    /// Whether the service has once been as available as it must stay.
    serves: bool,
    /// The same of the protected application.
    safe: bool,
    images: usize,
    _folder: TempDir,
}

/// What a node says of a pod that serves.
fn running() -> Value {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({"phase": "Running", "startTime": now, "conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": now}]})
}

/// What a ReplicaSet of the Deployment is to have.
fn replicas_of_web(any: &Any) -> Option<usize> {
    let Any::ReplicaSet(set) = any else {
        return None;
    };
    let owner = set.metadata.owner_references.as_ref()?.first()?;
    let wanted = set.spec.as_ref()?.replicas?;
    (owner.name == "web").then(|| usize::try_from(wanted).unwrap())
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut ready = conditions.into_iter().flatten();
    pod.metadata.deletion_timestamp.is_none()
        && ready.any(|one| one.type_ == "Ready" && one.status == "True")
}

fn phase(pod: &Pod) -> &str {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase.unwrap_or("Pending")
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

fn is_bound(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .is_some_and(|spec| spec.node_name.is_some())
}

/// The application of a pod, by its label.
fn app(pod: &Pod) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get("app"))
        .map_or("", String::as_str)
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

fn workload(name: &str, more: Value) -> Value {
    let container = json!({"name": "c", "image": "registry.example/c:0"});
    let mut object = json!({"metadata": {"namespace": "default", "name": name}, "spec": {
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}}});
    for (field, value) in more.as_object().unwrap() {
        object["spec"][field] = value.clone();
    }
    object
}

async fn create<T: Object>(admin: &Client, object: Value) {
    let object = T::from_json(object.to_string().as_bytes()).unwrap();
    admin.create(&object).await.expect("it is made");
}

/// A node that takes pods: the API marks each new one as not ready.
async fn make_node(admin: &Client, name: &str) {
    create::<Node>(admin, json!({"metadata": {"name": name}})).await;
    let patch = Patch::Merge(json!({"spec": {"taints": null}}));
    admin.patch::<Node>(None, name, &patch).await.unwrap();
}

impl World {
    async fn new(seed: u64, weather: Weather) -> Self {
        let mut dice = Dice(seed);
        let folder = TempDir::new().unwrap();
        let disk = master_store::Options {
            disk: Arc::new(Volatile),
            ..master_store::Options::default()
        };
        let engine = EmbeddedStore::open_with(folder.path(), &disk).unwrap();
        let options = master_api::Options {
            roles: master_control::roles(master_control_workloads::CONTROLLERS),
            ..master_api::Options::default()
        };
        let server = ApiServer::new(Arc::new(engine), options);
        server.prepare().await.unwrap();
        let api = Faulty::new(Arc::new(server.clone()), dice.next(), weather.faults);
        let admin = server.client(UserInfo::admin("admin"));
        let (surge, missing) = *dice.pick(&[(1, 0), (0, 1), (1, 1), (2, 1)]).unwrap();
        let (replicas, parallelism) = (1 + dice.below(4), 1 + dice.below(3));
        let completions = i32::try_from(1 + dice.below(4)).unwrap();
        let mode = *dice.pick(&["Indexed", "NonIndexed"]).unwrap();
        for node in ["n0", "n1", "n2"] {
            make_node(&admin, node).await;
        }
        let rolling = json!({"rollingUpdate": {"maxSurge": surge, "maxUnavailable": missing}});
        create::<Deployment>(
            &admin,
            workload("web", json!({"replicas": replicas, "strategy": rolling})),
        )
        .await;
        let named = json!({"replicas": 1 + dice.below(3), "serviceName": "db"});
        create::<StatefulSet>(&admin, workload("db", named)).await;
        create::<DaemonSet>(&admin, workload("each", json!({}))).await;
        create::<ReplicaSet>(&admin, workload("safe", json!({"replicas": PROTECTED}))).await;
        create::<PodDisruptionBudget>(
            &admin,
            json!({"metadata": {"namespace": "default", "name": "safe"}, "spec": {
            "minAvailable": LEFT, "selector": {"matchLabels": {"app": "safe"}}}}),
        )
        .await;
        let spec = json!({"completions": completions, "parallelism": parallelism, "completionMode": mode, "backoffLimit": 1000});
        let mut job = workload("all", spec);
        job["spec"].as_object_mut().unwrap().remove("selector");
        job["spec"]["template"]["spec"]["restartPolicy"] = "Never".into();
        create::<Job>(&admin, job).await;
        let history = History::begin(admin, Arc::clone(&api)).await;
        let all = vec![
            Worker::<Deployments>::boxed(),
            Worker::<ReplicaSets>::boxed(),
            Worker::<StatefulSets>::boxed(),
            Worker::<DaemonSets>::boxed(),
            Worker::<Jobs>::boxed(),
            Worker::<DisruptionBudgets>::boxed(),
        ];
        Self {
            history,
            processes: Processes::new(all, api),
            dice,
            weather,
            surge,
            missing,
            replicas,
            succeeded: BTreeSet::new(),
            failed: BTreeSet::new(),
            said: (0, 0),
            parallelism,
            completions,
            bound: BTreeSet::new(),
            ended: BTreeSet::new(),
            known: BTreeSet::new(),
            serves: false,
            safe: false,
            images: 0,
            _folder: folder,
        }
    }

    async fn step(&mut self) {
        match self.dice.below(100) {
            0..40 => self.run().await,
            40..62 => self.see(),
            62..90 => self.act_on_a_pod().await,
            90..94 => self.wish().await,
            94..96 => self.evict().await,
            96..98 => {
                let number = self.dice.below(self.processes.all.len());
                let now = self.processes.now;
                self.processes.all[number].restart(&self.history, now);
            }
            98 => self.end_a_node().await,
            _ => self.wait(),
        }
        self.check();
    }

    /// Time goes on. It is longer than any watch lags: a controller waits half a minute to see what it wrote.
    fn wait(&mut self) {
        let now = self.processes.now;
        for process in &mut self.processes.all {
            for kind in KINDS {
                process.see(&self.history, kind, usize::MAX, now);
            }
        }
        self.processes.wait();
    }

    async fn run(&mut self) {
        let number = self.dice.below(self.processes.all.len());
        let ends = (self.dice.below(12) == 0).then(|| self.dice.below(4));
        self.processes.run(number, &mut self.history, ends).await;
    }

    fn see(&mut self) {
        let number = self.dice.below(self.processes.all.len());
        let kind = *self.dice.pick(KINDS).unwrap();
        let most = 1 + self.dice.below(6);
        let now = self.processes.now;
        self.processes.all[number].see(&self.history, kind, most, now);
    }

    async fn act_on_a_pod(&mut self) {
        let pods: Vec<Pod> = self.history.pods().into_iter().cloned().collect();
        let Some(pod) = self.dice.pick(&pods).cloned() else {
            return;
        };
        let bad = self.dice.below(10);
        self.live(&pod, bad < 3, self.weather.storm && bad == 9)
            .await;
    }

    /// What node and scheduler do next with a pod; a pod of the Job fails if that is given, another one if it breaks.
    async fn live(&mut self, pod: &Pod, fails: bool, breaks: bool) -> bool {
        if pod.metadata.deletion_timestamp.is_some() {
            // What still has a finalizer has ended all the same.
            let first = !self.ended.contains(&uid(pod));
            self.end(pod).await;
            return first;
        }
        if !is_bound(pod) {
            self.bind(pod).await;
        } else if phase(pod) == "Pending" {
            self.say(pod, running()).await;
        } else if app(pod) == "all" && phase(pod) == "Running" {
            let (ended, how) = if fails {
                (&mut self.failed, "Failed")
            } else {
                (&mut self.succeeded, "Succeeded")
            };
            ended.insert(uid(pod));
            self.say(pod, json!({"phase": how})).await;
        } else if breaks && phase(pod) == "Running" && app(pod) != "all" {
            // What has ended is gone as soon as it is deleted.
            self.ended.insert(uid(pod));
            self.say(pod, json!({"phase": "Failed"})).await;
        } else {
            return false;
        }
        true
    }

    async fn say(&mut self, pod: &Pod, status: Value) {
        let patch = Patch::Strategic(json!({"status": status}));
        let admin = &self.history.admin;
        let said = admin.patch_status::<Pod>(Some("default"), name(pod), &patch);
        said.await.expect("it is there");
        self.history.look(&["pods"]).await;
    }

    /// The node has ended a pod.
    async fn end(&mut self, pod: &Pod) {
        if app(pod) == "all" && !matches!(phase(pod), "Succeeded" | "Failed") {
            // Of a Job's pod that is deleted nothing but a failure can become.
            self.failed.insert(uid(pod));
        }
        self.ended.insert(uid(pod));
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::of(uid(pod))
        };
        let admin = &self.history.admin;
        let ended = admin.delete::<Pod>(Some("default"), name(pod), &params);
        ended.await.expect("it is there");
        self.history.look(&["pods"]).await;
    }

    async fn bind(&mut self, pod: &Pod) {
        let mut node = OwnedPod::read(pod.clone()).meant_for.to_string();
        if node.is_empty() {
            let nodes = self.history.objects("nodes");
            let Some(any) = self.dice.pick(&nodes) else {
                return;
            };
            node = any.meta().name.clone().unwrap_or_default();
        }
        let target = json!({"apiVersion": "v1", "kind": "Node", "name": node});
        let binding = json!({"metadata": {"name": name(pod)}, "target": target});
        let binding: Whole = serde_json::from_value(binding).unwrap();
        let admin = &self.history.admin;
        let bound =
            admin.create_subresource::<Pod>(Some("default"), name(pod), "binding", &binding);
        // Its node may have gone.
        if bound.await.is_ok() {
            self.bound.insert(uid(pod));
        }
        self.history.look(&["pods"]).await;
    }

    async fn patch<T: Object>(&mut self, kind: &'static str, name: &str, patch: Value) {
        let patch = Patch::Merge(patch);
        let patched = self.history.admin.patch::<T>(Some("default"), name, &patch);
        patched.await.expect("it is taken");
        self.history.look(&[kind]).await;
    }

    /// People want another image, or another number.
    async fn wish(&mut self) {
        self.images += 1;
        let container =
            json!({"name": "c", "image": format!("registry.example/c:{}", self.images)});
        let image = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
        let number = 1 + self.dice.below(4);
        let replicas = json!({"spec": {"replicas": number}});
        match self.dice.below(5) {
            0 => self.patch::<Deployment>("deployments", "web", image).await,
            1 => self.patch::<StatefulSet>("statefulsets", "db", image).await,
            2 => self.patch::<DaemonSet>("daemonsets", "each", image).await,
            3 => {
                self.patch::<StatefulSet>("statefulsets", "db", replicas)
                    .await;
            }
            _ if self.weather.storm => {
                self.replicas = number;
                self.patch::<Deployment>("deployments", "web", replicas)
                    .await;
            }
            _ => {}
        }
    }

    /// Someone drains a node: a pod of the protected application is evicted, if its budget allows it.
    async fn evict(&mut self) {
        let pods = self.history.pods().into_iter();
        let pods: Vec<String> = pods
            .filter(|pod| app(pod) == "safe")
            .map(|pod| name(pod).to_owned())
            .collect();
        let Some(pod) = self.dice.pick(&pods) else {
            return;
        };
        let eviction = json!({"metadata": {"namespace": "default", "name": pod}});
        let eviction: Whole = serde_json::from_value(eviction).unwrap();
        let admin = &self.history.admin;
        let evicted = admin.create_subresource::<Pod>(Some("default"), pod, "eviction", &eviction);
        if let Err(error) = evicted.await {
            assert_eq!(error.code, 429, "{error}");
        }
        self.history.look(&["pods"]).await;
    }

    /// A node goes with its pods, and comes back empty.
    async fn end_a_node(&mut self) {
        if !self.weather.storm {
            return;
        }
        let node = format!("n{}", self.dice.below(3));
        let admin = self.history.admin.clone();
        admin
            .delete::<Node>(None, &node, &DeleteParams::default())
            .await
            .unwrap();
        let on =
            |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&node);
        let pods: Vec<Pod> = self
            .history
            .pods()
            .into_iter()
            .filter(on)
            .cloned()
            .collect();
        for pod in pods {
            self.end(&pod).await;
        }
        self.history.look(&["nodes"]).await;
        make_node(&admin, &node).await;
        self.history.look(&["nodes"]).await;
    }

    /// What holds at every step.
    fn check(&mut self) {
        self.check_identities();
        self.check_job();
        if !self.weather.storm && self.weather.faults.lost == 0 {
            self.check_bounds();
        }
        self.known = self.history.pods().into_iter().map(uid).collect();
    }

    /// A pod that a node has is gone only when the node says so: so no identity is ever there twice.
    fn check_identities(&self) {
        let there: BTreeSet<String> = self.history.pods().into_iter().map(uid).collect();
        for gone in self.bound.difference(&there) {
            let by_node = self.ended.contains(gone);
            let of_itself = self.succeeded.contains(gone) || self.failed.contains(gone);
            assert!(by_node || of_itself, "a pod was taken from its node");
        }
    }

    fn check_job(&mut self) {
        let Some(Any::Job(job)) = self.history.objects("jobs").first().copied() else {
            return;
        };
        let status = job.status.clone().unwrap_or_default();
        let said = (
            status.succeeded.unwrap_or_default(),
            status.failed.unwrap_or_default(),
        );
        assert!(
            said.0 >= self.said.0 && said.1 >= self.said.1,
            "{said:?} after {:?}",
            self.said
        );
        let most = |ended: &BTreeSet<String>| i32::try_from(ended.len()).unwrap();
        assert!(
            said.0 <= most(&self.succeeded),
            "{said:?}: a success is counted twice"
        );
        let spec = job.spec.as_ref();
        let is_indexed = spec.and_then(|spec| spec.completion_mode.as_deref()) == Some("Indexed");
        // Without indexes a pod that its node lost may succeed beside the one in its place (as upstream's may).
        assert!(
            said.0 <= self.completions || (self.weather.storm && !is_indexed),
            "{said:?}: more than is wanted"
        );
        let uncounted = status.uncounted_terminated_pods.unwrap_or_default();
        let noted = uncounted.failed.map_or(0, |noted| noted.len());
        let deleted = self
            .history
            .pods()
            .into_iter()
            .filter(|pod| app(pod) == "all" && pod.metadata.deletion_timestamp.is_some());
        let failures = self.failed.len() + deleted.count();
        let counted = usize::try_from(said.1).unwrap() + noted;
        assert!(
            counted <= failures,
            "{counted} of {failures}: a failure is counted twice"
        );
        self.said = said;
    }

    fn check_bounds(&mut self) {
        let pods = self.history.pods();
        let of = |name: &str| {
            let own = pods.iter().filter(|pod| app(pod) == name);
            let own = own.filter(|pod| pod.metadata.deletion_timestamp.is_none());
            own.filter(|pod| !matches!(phase(pod), "Succeeded" | "Failed"))
                .collect::<Vec<_>>()
        };
        let ready = |pods: &[&&Pod]| pods.iter().filter(|pod| is_ready(pod)).count();
        let web = of("web");
        // As upstream has it: the surge bounds what ReplicaSets are to have, and what they are yet to delete comes on top.
        let sets = self.history.objects("replicasets").into_iter();
        let specified: usize = sets.filter_map(replicas_of_web).sum();
        assert!(
            specified <= self.replicas + self.surge,
            "{specified} replicas: beyond the surge"
        );
        let floor = self.replicas.saturating_sub(self.missing);
        self.serves |= ready(&web) >= self.replicas;
        assert!(
            !self.serves || ready(&web) >= floor,
            "{} of {floor} serve",
            ready(&web)
        );
        assert!(
            of("all").len() <= self.parallelism,
            "more run at once than the Job allows"
        );
        assert!(
            of("safe").len() <= PROTECTED,
            "more than the ReplicaSet wants"
        );
        let left = ready(&of("safe"));
        self.safe |= left == PROTECTED;
        assert!(
            !self.safe || left >= LEFT,
            "{left} are left: the budget is violated"
        );
        self.check_order(&of("db"));
        let mut nodes = BTreeMap::<String, usize>::new();
        for pod in of("each") {
            *nodes
                .entry(OwnedPod::read((**pod).clone()).meant_for.to_string())
                .or_default() += 1;
        }
        assert!(
            nodes.values().all(|pods| *pods == 1),
            "{nodes:?}: two daemons on a node"
        );
    }

    /// A place of the StatefulSet is filled when those before it serve.
    fn check_order(&self, pods: &[&&Pod]) {
        let place = |pod: &Pod| ordinal("db", name(pod)).unwrap();
        let serving: BTreeSet<i32> = pods
            .iter()
            .filter(|pod| is_ready(pod))
            .map(|pod| place(pod))
            .collect();
        for new in pods.iter().filter(|pod| !self.known.contains(&uid(pod))) {
            let before = 0..place(new);
            assert!(
                before.clone().all(|place| serving.contains(&place)),
                "{} came before {serving:?}",
                name(new)
            );
        }
    }

    /// Everything goes well now, until all is at rest.
    async fn settle(&mut self) {
        self.processes.api.mend();
        let mut why = String::new();
        for _ in 0..ROUNDS {
            let mut moved = false;
            for number in 0..self.processes.all.len() {
                for kind in KINDS {
                    let now = self.processes.now;
                    moved |= self.processes.all[number].see(&self.history, kind, usize::MAX, now);
                }
                while self.processes.run(number, &mut self.history, None).await {
                    moved = true;
                }
                self.check();
            }
            let pods: Vec<Pod> = self.history.pods().into_iter().cloned().collect();
            for pod in pods {
                moved |= self.live(&pod, false, false).await;
                self.check();
            }
            if moved {
                continue;
            }
            match self.rest() {
                Ok(()) => return,
                Err(still) => why = still,
            }
            if !self.processes.wait() {
                break;
            }
        }
        let names: Vec<_> = self.processes.all.iter().map(|one| one.name()).collect();
        unreachable!("{names:?} do not come to rest: {why}");
    }

    /// Whether everything is as its specification says.
    fn rest(&self) -> Result<(), String> {
        let mut owners = BTreeSet::new();
        for kind in KINDS {
            for any in self.history.objects(kind) {
                owners.insert(any.meta().uid.clone().unwrap_or_default());
                done(any)?;
            }
        }
        for pod in self.history.pods() {
            let references = pod.metadata.owner_references.iter().flatten();
            let owned = references
                .into_iter()
                .any(|owner| owners.contains(&owner.uid));
            let held = pod.metadata.finalizers.iter().flatten().count();
            if !owned || held > 0 {
                return Err(format!("{} is an orphan or held", name(pod)));
            }
        }
        let count = |app_name: &str| {
            let pods = self.history.pods().into_iter();
            pods.filter(|pod| app(pod) == app_name && is_ready(pod) && phase(pod) == "Running")
                .count()
        };
        let nodes = self.history.objects("nodes").len();
        let found = (count("web"), count("safe"), count("each"));
        if found != (self.replicas, PROTECTED, nodes) {
            return Err(format!("{found:?} pods are ready"));
        }
        Ok(())
    }
}

/// Whether an object's status says that it is as it should be.
fn done(any: &Any) -> Result<(), String> {
    let is_done = match any {
        Any::Deployment(one) => {
            let wanted = one.spec.as_ref().and_then(|spec| spec.replicas);
            let status = one.status.clone().unwrap_or_default();
            let all = [
                status.replicas,
                status.updated_replicas,
                status.available_replicas,
            ];
            status.observed_generation == one.metadata.generation && all == [wanted; 3]
        }
        Any::StatefulSet(one) => {
            let wanted = one.spec.as_ref().and_then(|spec| spec.replicas);
            let status = one.status.clone().unwrap_or_default();
            let all = [
                Some(status.replicas),
                status.updated_replicas,
                status.available_replicas,
            ];
            status.observed_generation == one.metadata.generation
                && status.current_revision == status.update_revision
                && all == [wanted; 3]
        }
        Any::DaemonSet(one) => {
            let status = one.status.clone().unwrap_or_default();
            let wanted = Some(status.desired_number_scheduled);
            let all = [status.updated_number_scheduled, status.number_available];
            status.observed_generation == one.metadata.generation && all == [wanted; 2]
        }
        Any::Job(one) => {
            let status = one.status.clone().unwrap_or_default();
            let conditions = status.conditions.unwrap_or_default();
            let wanted = one.spec.as_ref().and_then(|spec| spec.completions);
            conditions
                .iter()
                .any(|one| one.type_ == "Complete" && one.status == "True")
                && status.succeeded >= wanted
        }
        Any::Budget(one) => {
            let status = one.status.clone().unwrap_or_default();
            let found = (status.current_healthy, status.disruptions_allowed);
            let all = i32::try_from(PROTECTED).unwrap();
            let allowed = i32::try_from(PROTECTED - LEFT).unwrap();
            found == (Some(all), Some(allowed))
                && status.disrupted_pods.is_none_or(|noted| noted.is_empty())
        }
        Any::Pod(_) | Any::ReplicaSet(_) | Any::Revision(_) | Any::Node(_) => true,
    };
    if is_done {
        Ok(())
    } else {
        Err(format!("{any:?}"))
    }
}

fn play(seed: u64, weather: Weather) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut world = World::new(seed, weather).await;
        for _ in 0..STEPS {
            world.step().await;
        }
        world.settle().await;
    });
}

/// Plays as many clusters' lives as a sixteenth of a property's usual cases: each takes seconds. The runner is made by hand, as
/// the macro takes the number of cases from the environment alone.
fn play_some(weather: Weather) {
    let usual = ProptestConfig::default();
    let few = ProptestConfig {
        cases: (usual.cases / 16).max(1),
        // A seed that is smaller is no simpler.
        max_shrink_iters: 0,
        source_file: Some(file!()),
        ..usual
    };
    let played = TestRunner::new(few).run(&any::<u64>(), |seed| {
        play(seed, weather);
        Ok(())
    });
    assert_eq!(played.map_err(|found| found.to_string()), Ok(()));
}

/// Named invariants, at every step: what is specified stays within the surge, and what serves within the unavailability; a budget is never violated; a
/// StatefulSet's places are filled in order and no pod is taken from its node; a Job runs no more pods at once than it
/// may and counts each end once; no node has two daemons. At the end all is as specified, and nothing is an orphan.
#[test]
fn promises_hold_through_refused_calls_late_watches_and_restarts() {
    let faults = Faults {
        refused: 8,
        lost: 0,
    };
    play_some(Weather {
        storm: false,
        faults,
    });
}

/// With lost answers, failing pods and dying nodes as well: ends are counted once, no pod is taken from its node, and all
/// comes to what is specified.
#[test]
fn workloads_come_to_what_is_specified_after_any_storm() {
    let faults = Faults {
        refused: 8,
        lost: 8,
    };
    play_some(Weather {
        storm: true,
        faults,
    });
}
