//! A simulated cluster with workloads, nodes and people, and its possible events.

use super::api::{End, Faulty};
use super::dice::Dice;
use super::fixture::prepared;
use super::history::History;
use super::kinds::{KINDS, OF_MACHINES, OF_WORKLOADS};
use super::laws::{Seen, TOLERATED};
use super::machines::{Machine, State};
use super::parts::{self, Part};
use super::pods::{app, has_ended, is_bound, is_finite, name, phase, running, uid};
use super::scheduling::Scheduling;
use super::simulation::{Day, Process, Processes, Worker};
use super::waits::Waits;
use super::{Scenario, Scope};
use config_kube::k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use config_kube::k8s_openapi::api::batch::v1::Job;
use config_kube::k8s_openapi::api::core::v1::{Node, Pod};
use config_kube::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use config_kube::taints::{NOT_READY, UNREACHABLE};
use jiff::SignedDuration;
use master_client::{Client, DeleteParams, DynamicObject, Object, Patch, UserInfo, View};
use master_control_cluster::garbage::Garbage;
use master_control_nodes::node_lifecycle::NodeLifecycle;
use master_control_nodes::pod_gc::PodGc;
use master_control_nodes::taint_eviction::TaintEviction;
use master_control_workloads::daemon_set::DaemonSets;
use master_control_workloads::deployment::Deployments;
use master_control_workloads::disruption_budget::DisruptionBudgets;
use master_control_workloads::job::Jobs;
use master_control_workloads::replica_set::ReplicaSets;
use master_control_workloads::stateful_set::StatefulSets;
use master_control_workloads::workload::pod::OwnedPod;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use tempfile::TempDir;

/// Pods of the application that a budget protects, and how many must stay available.
pub(crate) const PROTECTED: usize = 3;
pub(crate) const LEFT: usize = 2;

/// Calls after which a process may end at most.
const CALLS: usize = 10;

/// A case: the simulated cluster, and the facts that the invariants need.
pub(crate) struct World {
    pub(crate) history: History,
    pub(crate) processes: Processes,
    pub(crate) dice: Dice,
    /// Decides about clocks and watches, apart from the other faults of a seed.
    mishaps: Dice,
    pub(crate) scenario: Scenario,
    pub(crate) surge: usize,
    pub(crate) missing: usize,
    pub(crate) replicas: usize,
    /// The most replicas that were ever wanted.
    pub(crate) most: usize,
    /// UIDs of the Job's pods by how they ended, and the counts in its status.
    pub(crate) succeeded: BTreeSet<String>,
    pub(crate) failed: BTreeSet<String>,
    pub(crate) said: (i32, i32),
    pub(crate) parallelism: usize,
    pub(crate) completions: i32,
    /// UIDs of bound pods, which only their node may end; and of those that nodes have ended.
    pub(crate) bound: BTreeSet<String>,
    pub(crate) ended: BTreeSet<String>,
    pub(crate) known: BTreeSet<String>,
    /// Whether the service has once been as available as it must stay.
    pub(crate) serves: bool,
    /// The same for the protected application.
    pub(crate) safe: bool,
    pub(crate) images: usize,
    pub(crate) style: Style,
    pub(crate) machines: Vec<Machine>,
    pub(crate) seen: Seen,
    pub(crate) waits: Waits,
    pub(crate) parts: Vec<Box<dyn Part>>,
    _folder: TempDir,
}

/// Settings of the workloads in a whole control plane.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Style {
    /// Requests of each pod in thousandths of a CPU; 0: no requests.
    cpu: usize,
    /// Whether there are two schedulers, each for a part of the workloads.
    pub(crate) two: bool,
    /// Whether machines have static pods.
    pub(crate) statics: bool,
    /// Whether the clock of the master is right all the time.
    steady: bool,
}

impl Style {
    fn of(scope: Scope, dice: &mut Dice) -> Self {
        match scope {
            Scope::Workloads => Self::default(),
            Scope::Parts => Self {
                cpu: parts::CPU,
                steady: dice.below(2) == 0,
                ..Self::default()
            },
            Scope::ControlPlane => Self {
                cpu: 200 + 50 * dice.below(2),
                two: dice.below(2) == 0,
                statics: dice.below(2) == 0,
                steady: dice.below(2) == 0,
            },
        }
    }

    pub(crate) fn workload(self, name: &str, more: Value) -> Value {
        let container = json!({"name": "c", "image": "registry.example/c:0"});
        let mut object = json!({"metadata": {"namespace": "default", "name": name}, "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"automountServiceAccountToken": false, "containers": [container]}}}});
        for (field, value) in more.as_object().unwrap() {
            object["spec"][field] = value.clone();
        }
        if self.cpu > 0 {
            let pod = &mut object["spec"]["template"]["spec"];
            pod["containers"] = json!([self.container(name, container)]);
            let tolerated = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATED});
            pod["tolerations"] = json!([tolerated(NOT_READY), tolerated(UNREACHABLE)]);
            if self.two && matches!(name, "web" | "brief" | "all") {
                pod["schedulerName"] = "other".into();
            }
        }
        object
    }

    /// A container of a workload. Daemons have no requests, so that no other pod takes their room.
    fn container(self, name: &str, mut container: Value) -> Value {
        if self.cpu > 0 && name != "each" {
            let cpu = format!("{}m", self.cpu);
            container["resources"] = json!({"requests": {"cpu": cpu}});
        }
        container
    }
}

pub(crate) async fn create<T: Object>(admin: &Client, object: Value) {
    let object = T::from_json(object.to_string().as_bytes()).unwrap();
    admin.create(&object).await.expect("it is made");
}

/// A node that takes pods: the API marks each new one as not ready.
async fn make_node(admin: &Client, name: &str) {
    create::<Node>(admin, json!({"metadata": {"name": name}})).await;
    let patch = Patch::Merge(json!({"spec": {"taints": null}}));
    admin.patch::<Node>(None, name, &patch).await.unwrap();
}

/// The controllers of workloads, each in a process of its own.
fn of_workloads(history: &History) -> Vec<Box<dyn Process>> {
    vec![
        Worker::<Deployments>::boxed(history),
        Worker::<ReplicaSets>::boxed(history),
        Worker::<StatefulSets>::boxed(history),
        Worker::<DaemonSets>::boxed(history),
        Worker::<Jobs>::boxed(history),
        Worker::<DisruptionBudgets>::boxed(history),
    ]
}

impl World {
    pub(crate) async fn new(seed: u64, scenario: Scenario) -> Self {
        let mut world = Self::empty(seed, scenario).await;
        if scenario.scope != Scope::Parts {
            world.processes.all = of_workloads(&world.history);
            world.make_workloads().await;
        }
        if scenario.scope != Scope::Workloads {
            world.complete(seed).await;
        }
        world.see_all();
        world
    }

    /// A world without workloads, processes and machines.
    pub(crate) async fn empty(seed: u64, scenario: Scenario) -> Self {
        let mut dice = Dice(seed);
        let mishaps = Dice(!seed);
        let day = Day::first();
        let (folder, store, server) = prepared(seed, &day);
        let api = Faulty::new(Arc::new(server.clone()), dice.next(), scenario.faults);
        let admin = server.client(UserInfo::admin("admin"));
        let size = scenario.size();
        let (surge, missing) = *dice.pick(&[(1, 0), (0, 1), (1, 1), (2, 1)]).unwrap();
        let (surge, missing) = (size * surge, size * missing);
        let (replicas, parallelism) = (size * (1 + dice.below(4)), 1 + dice.below(3));
        let completions = i32::try_from(1 + dice.below(4)).unwrap();
        let style = Style::of(scenario.scope, &mut Dice(seed.rotate_left(32)));
        let kinds = match scenario.scope {
            Scope::Workloads => &KINDS[..OF_WORKLOADS],
            Scope::ControlPlane => &KINDS[..OF_MACHINES],
            Scope::Parts => KINDS,
        };
        let history = History::begin(admin, Arc::clone(&api), store, kinds).await;
        Self {
            processes: Processes::new(api, day),
            history,
            dice,
            mishaps,
            scenario,
            surge,
            missing,
            replicas,
            most: replicas,
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
            style,
            machines: Vec::new(),
            seen: Seen::default(),
            waits: Waits::default(),
            parts: Vec::new(),
            _folder: folder,
        }
    }

    /// Creates the workloads of every world, unless its [`Scope`] has others.
    async fn make_workloads(&mut self) {
        let (style, scenario) = (self.style, self.scenario);
        let (surge, missing, replicas) = (self.surge, self.missing, self.replicas);
        let (parallelism, completions) = (self.parallelism, self.completions);
        let admin = self.history.admin.clone();
        let (dice, mishaps) = (&mut self.dice, &mut self.mishaps);
        let mode = *dice.pick(&["Indexed", "NonIndexed"]).unwrap();
        let workload = |name: &str, more: Value| style.workload(name, more);
        if scenario.scope == Scope::Workloads {
            for node in ["n0", "n1", "n2"] {
                make_node(&admin, node).await;
            }
        }
        // How long a pod must be ready to be available: what clocks decide.
        let mut least = || {
            let some = scenario.mishaps && mishaps.below(2) == 0;
            if some { 5 } else { 0 }
        };
        let rolling = json!({"rollingUpdate": {"maxSurge": surge, "maxUnavailable": missing}});
        let web = json!({"replicas": replicas, "strategy": rolling, "minReadySeconds": least()});
        create::<Deployment>(&admin, workload("web", web)).await;
        let named =
            json!({"replicas": 1 + dice.below(3), "serviceName": "db", "minReadySeconds": least()});
        create::<StatefulSet>(&admin, workload("db", named)).await;
        let each = json!({"minReadySeconds": least()});
        create::<DaemonSet>(&admin, workload("each", each)).await;
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
        self.look().await;
    }

    /// Starts the rest of the control plane; machines register.
    async fn complete(&mut self, seed: u64) {
        let now = self.processes.now;
        let history = &self.history;
        let names = ["default-scheduler", "other"];
        let schedulers = names.iter().take(if self.style.two { 2 } else { 1 });
        let mut more = vec![
            Worker::<NodeLifecycle>::boxed(history),
            Worker::<TaintEviction>::boxed(history),
            Worker::<PodGc>::boxed(history),
            Worker::<Garbage>::boxed(history),
        ];
        for name in schedulers {
            let client = &self.processes.client;
            more.push(Scheduling::boxed(name, client, history, seed, now));
        }
        self.processes.all.extend(more);
        if self.scenario.scope == Scope::Parts {
            self.add_parts(seed).await;
        }
        let machines = self.scenario.machines;
        self.machines = (0..machines)
            .map(|number| Machine::new(number, now))
            .collect();
        self.mend().await;
        if self.scenario.scope == Scope::ControlPlane {
            self.make_brief_again().await;
        }
    }

    pub(crate) async fn step(&mut self) {
        match self.scenario.scope {
            Scope::Workloads => self.step_of_workloads().await,
            Scope::ControlPlane | Scope::Parts => self.step_of_all().await,
        }
        if self.scenario.mishaps {
            self.mishap();
        }
    }

    async fn step_of_workloads(&mut self) {
        match self.dice.below(100) {
            0..40 => self.run().await,
            40..62 => {
                self.see();
            }
            62..90 => self.act_on_a_pod().await,
            90..94 => self.wish().await,
            94..96 => self.evict().await,
            96..98 => self.restart_a_process(),
            98 => self.end_a_node().await,
            _ => self.wait(),
        }
    }

    pub(crate) fn restart_a_process(&mut self) {
        let number = self.dice.below(self.processes.all.len());
        self.processes.restart(number, &self.history);
        self.seen.last_emptied.clear();
    }

    /// Now and then a watch is lost, or someone sets the clock.
    fn mishap(&mut self) {
        let now = self.processes.now;
        match self.mishaps.below(50) {
            0 => {
                let number = self.mishaps.below(self.processes.all.len());
                let kind = *self.mishaps.pick(self.history.kinds).unwrap();
                self.processes.all[number].lose_watch(&self.history, kind, now);
            }
            1 if !self.style.steady => {
                self.seen.clock_was_set = true;
                let minutes = i64::try_from(self.mishaps.below(240)).unwrap() - 120;
                self.processes.set_clock(SignedDuration::from_mins(minutes));
            }
            _ => {}
        }
    }

    /// Lets time pass, after all processes have seen everything: a controller waits half a minute
    /// to see its own writes, and no watch lags that long.
    fn wait(&mut self) {
        self.see_all();
        self.processes.wait();
    }

    pub(crate) fn see_all(&mut self) {
        let now = self.processes.now;
        for process in &mut self.processes.all {
            for kind in self.history.kinds {
                process.see(&self.history, kind, usize::MAX, now);
            }
        }
    }

    pub(crate) async fn run(&mut self) {
        let number = self.dice.below(self.processes.all.len());
        let end = (self.dice.below(12) == 0).then(|| End {
            calls: self.dice.below(CALLS),
            done: self.dice.below(2) == 0,
        });
        self.run_process(number, end).await;
    }

    /// A process runs a key that is due; returns whether there was one. If the process has to end
    /// in the middle, it restarts afterwards.
    pub(crate) async fn run_process(&mut self, number: usize, end: Option<End>) -> bool {
        if self.scenario.scope == Scope::Parts {
            let away = self.machines.iter().filter(|one| one.state != State::Up);
            let away = away.map(|one| one.name.clone()).collect();
            self.processes.api.cut_off(away);
        }
        let ran = self.processes.run(number, end).await;
        // Its writes are seen before its successor, which does not know of them, acts.
        self.look().await;
        if end.is_some() {
            self.processes.restart(number, &self.history);
            self.seen.last_emptied.clear();
        }
        ran
    }

    /// Sees what was written, and checks the invariants at every revision.
    pub(crate) async fn look(&mut self) {
        self.history.look().await;
        while self.history.advance() {
            self.check();
        }
    }

    /// A process sees some changes of a kind; returns which process.
    pub(crate) fn see(&mut self) -> usize {
        let number = self.dice.below(self.processes.all.len());
        let kind = *self.dice.pick(self.history.kinds).unwrap();
        let most = 1 + self.dice.below(6);
        let now = self.processes.now;
        self.processes.all[number].see(&self.history, kind, most, now);
        number
    }

    pub(crate) async fn act_on_a_pod(&mut self) {
        let pods = self.history.pods_now();
        let Some(pod) = self.dice.pick(&pods).cloned() else {
            return;
        };
        let bad = self.dice.below(10);
        self.live(&pod, bad < 3, self.scenario.disruption && bad == 9)
            .await;
    }

    /// The next action of node and scheduler on a pod. With `fails` a pod of the Job fails, with
    /// `breaks` another one.
    pub(crate) async fn live(&mut self, pod: &Pod, fails: bool, breaks: bool) -> bool {
        if self.scenario.scope != Scope::Workloads {
            return self.live_on_its_machine(pod, fails, breaks).await;
        }
        if pod.metadata.deletion_timestamp.is_some() {
            // A pod that still has a finalizer has ended all the same.
            let first = !self.ended.contains(&uid(pod));
            self.end(pod).await;
            return first;
        }
        if !is_bound(pod) {
            self.bind(pod).await;
        } else if phase(pod) == "Pending" {
            self.say(pod, running(self.processes.now.wall)).await;
        } else if app(pod) == "all" && phase(pod) == "Running" {
            let (ended, how) = if fails {
                (&mut self.failed, "Failed")
            } else {
                (&mut self.succeeded, "Succeeded")
            };
            ended.insert(uid(pod));
            self.say(pod, json!({"phase": how})).await;
        } else if breaks && phase(pod) == "Running" && app(pod) != "all" {
            // An ended pod is gone as soon as it is deleted.
            self.ended.insert(uid(pod));
            self.say(pod, json!({"phase": "Failed"})).await;
        } else {
            return false;
        }
        true
    }

    pub(crate) async fn say(&mut self, pod: &Pod, status: Value) {
        let patch = Patch::Strategic(json!({"status": status}));
        let admin = &self.history.admin;
        let said = admin.patch_status::<Pod>(Some("default"), name(pod), &patch);
        said.await.expect("it is there");
        self.look().await;
    }

    /// The node has ended a pod.
    pub(crate) async fn end(&mut self, pod: &Pod) {
        if is_finite(pod) && !has_ended(pod) {
            // A deleted pod of a Job can only become a failure.
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
        self.look().await;
    }

    async fn bind(&mut self, pod: &Pod) {
        let mut node = OwnedPod::read(pod.clone()).meant_for.to_string();
        if node.is_empty() {
            let nodes = self.history.objects("nodes");
            let Some(any) = self.dice.pick(nodes) else {
                return;
            };
            node = any.meta().name.clone().unwrap_or_default();
        }
        let target = json!({"apiVersion": "v1", "kind": "Node", "name": node});
        let binding = json!({"metadata": {"name": name(pod)}, "target": target});
        let binding: DynamicObject = serde_json::from_value(binding).unwrap();
        let admin = &self.history.admin;
        let bound =
            admin.create_subresource::<Pod>(Some("default"), name(pod), "binding", &binding);
        // Its node may have gone.
        if bound.await.is_ok() {
            self.bound.insert(uid(pod));
        }
        self.look().await;
    }

    pub(crate) async fn patch<T: Object>(&mut self, name: &str, patch: Value) {
        let patch = Patch::Merge(patch);
        let patched = self.history.admin.patch::<T>(Some("default"), name, &patch);
        patched.await.expect("it is taken");
        self.look().await;
    }

    /// People want another image, or another number.
    pub(crate) async fn wish(&mut self) {
        if self.scenario.scope == Scope::Parts {
            return self.wish_of_a_part().await;
        }
        self.images += 1;
        let container =
            json!({"name": "c", "image": format!("registry.example/c:{}", self.images)});
        let style = self.style;
        let image = |of: &str| {
            let container = style.container(of, container);
            json!({"spec": {"template": {"spec": {"containers": [container]}}}})
        };
        let number = 1 + self.dice.below(4);
        let replicas = json!({"spec": {"replicas": number}});
        match self.dice.below(5) {
            0 => {
                self.patch::<Deployment>("web", image("web")).await;
            }
            1 => {
                self.patch::<StatefulSet>("db", image("db")).await;
            }
            2 => {
                self.patch::<DaemonSet>("each", image("each")).await;
            }
            3 => {
                self.patch::<StatefulSet>("db", replicas).await;
            }
            _ if self.scenario.disruption => {
                let number = number * self.scenario.size();
                self.replicas = number;
                self.most = self.most.max(number);
                let replicas = json!({"spec": {"replicas": number}});
                self.patch::<Deployment>("web", replicas).await;
            }
            _ => {}
        }
    }

    /// Someone drains a node: a pod of the protected application is evicted, if its budget allows
    /// it.
    pub(crate) async fn evict(&mut self) {
        let pods = self.history.pods().into_iter();
        let pods: Vec<String> = pods
            .filter(|pod| app(pod) == "safe")
            .map(|pod| name(pod).to_owned())
            .collect();
        let Some(pod) = self.dice.pick(&pods) else {
            return;
        };
        let eviction = json!({"metadata": {"namespace": "default", "name": pod}});
        let eviction: DynamicObject = serde_json::from_value(eviction).unwrap();
        let admin = &self.history.admin;
        let evicted = admin.create_subresource::<Pod>(Some("default"), pod, "eviction", &eviction);
        if let Err(error) = evicted.await {
            assert_eq!(error.code, 429, "{error}");
        }
        self.look().await;
    }

    /// A node vanishes with its pods, and comes back empty.
    async fn end_a_node(&mut self) {
        if !self.scenario.disruption {
            return;
        }
        let node = format!("n{}", self.dice.below(3));
        let admin = self.history.admin.clone();
        admin
            .delete::<Node>(None, &node, &DeleteParams::default())
            .await
            .unwrap();
        let on = |pod: &Arc<Pod>| {
            pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&node)
        };
        let mut pods = self.history.pods_now();
        pods.retain(on);
        for pod in pods {
            self.end(&pod).await;
        }
        self.look().await;
        make_node(&admin, &node).await;
        self.look().await;
    }
}
