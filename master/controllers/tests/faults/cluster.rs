//! The steps of a whole control plane: what machines and people do while time passes.

use super::Scope;
use super::kinds::Any;
use super::machines::{Machine, State, asks, mirror, node_of, ready};
use super::pods::{app, has_ended, is_finite, name, phase, running, uid};
use super::world::{Style, World, create};
use config_kube::identity::NODE_LEASE_NAMESPACE;
use config_kube::k8s_openapi::api::apps::v1::Deployment;
use config_kube::k8s_openapi::api::coordination::v1::Lease;
use config_kube::k8s_openapi::api::core::v1::{Node, Pod};
use config_kube::taints::OUT_OF_SERVICE;
use master_client::{DeleteParams, DynamicObject, Patch};
use serde_json::{Value, json};
use std::time::Duration;

/// The longest time that passes in a step: longer than the grace period of a lease.
const LONGEST: u64 = 45;
/// Thousandths of a CPU of a static pod.
const STATIC: i64 = 250;
/// Machines that may have a static pod: the others keep room for all pods that must run.
const WITH_STATIC: usize = 2;
/// Replicas of the Deployment that people delete and make again.
pub(crate) const BRIEF: usize = 2;

/// A Deployment that does not last.
pub(crate) fn brief(style: Style) -> Value {
    style.workload("brief", json!({"replicas": BRIEF}))
}

impl World {
    pub(crate) async fn step_of_all(&mut self) {
        let size = self.scenario.size();
        match self.dice.below(100) {
            0..42 => {
                for _ in 0..size {
                    self.run().await;
                }
            }
            42..62 => {
                let number = self.see();
                if self.scenario.disruption && self.dice.below(2) == 0 {
                    // The process acts on that, whatever else has changed.
                    self.act(number, 2).await;
                }
            }
            62..82 => {
                for _ in 0..size {
                    self.act_on_a_pod().await;
                }
            }
            82..86 => self.wish().await,
            86..88 => {
                self.evict().await;
                if self.scenario.disruption {
                    self.bind_late().await;
                }
            }
            88..90 => self.restart_a_process(),
            90..93 if size > 1 && self.dice.below(4) == 0 => self.meet_fate_of_a_zone().await,
            90..93 => {
                for _ in 0..size {
                    self.meet_fate().await;
                }
            }
            93..95 => self.manage_brief().await,
            95 => self.start_a_static_pod().await,
            _ => {
                let seconds = 1 + self.dice.below(usize::try_from(LONGEST).unwrap());
                self.pass_time(u64::try_from(seconds).unwrap()).await;
            }
        }
    }

    /// Lets time pass, after each process has handled what it saw. Machines that are up renew their
    /// leases all the while.
    async fn pass_time(&mut self, seconds: u64) {
        self.see_all();
        for number in 0..self.processes.all.len() {
            while self.run_process(number, None).await {}
        }
        // A controller waits half a minute to see its own writes: no watch lags that long.
        self.see_all();
        self.pass(Duration::from_secs(seconds));
        self.renew_all().await;
        if self.scenario.disruption && self.dice.below(4) == 0 {
            self.come_back_unseen().await;
        }
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.processes.pass(time);
        self.waits.pass(time);
    }

    /// A machine comes back, and processes that have not seen that do what is due.
    async fn come_back_unseen(&mut self) {
        let machines = self.machines.iter().enumerate();
        let away = machines.filter(|(_, machine)| machine.state != State::Up);
        let away: Vec<usize> = away.map(|(number, _)| number).collect();
        let Some(number) = self.dice.pick(&away).copied() else {
            return;
        };
        self.come_back(number).await;
        let now = self.processes.now;
        for number in 0..self.processes.all.len() {
            let process = &mut self.processes.all[number];
            process.see(&self.history, "pods", usize::MAX, now);
            self.act(number, 8).await;
        }
    }

    /// Runs at most `most` due keys of a process.
    async fn act(&mut self, number: usize, most: usize) {
        for _ in 0..most {
            if !self.run_process(number, None).await {
                return;
            }
        }
    }

    /// The kubelets of machines that are up renew their leases.
    pub(crate) async fn renew_all(&mut self) {
        if self.machines.is_empty() {
            return;
        }
        for number in 0..self.machines.len() {
            if self.machines[number].state == State::Up {
                self.renew(number).await;
            }
        }
        self.look().await;
    }

    /// Repairs all lasting faults.
    pub(crate) async fn mend(&mut self) {
        for number in 0..self.machines.len() {
            self.come_back(number).await;
        }
    }

    fn node_uid(&self, number: usize) -> Option<String> {
        let nodes = self.history.objects("nodes").iter();
        let mut own = nodes.filter(|node| node.name() == self.machines[number].name);
        own.next()?.meta().uid.clone()
    }

    /// The kubelet of a machine renews its lease.
    async fn renew(&mut self, number: usize) {
        let admin = &self.history.admin;
        let machine = &mut self.machines[number];
        machine.heard = self.processes.now.instant;
        let now = self.processes.now.wall;
        let time = now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        let spec =
            json!({"holderIdentity": machine.name, "leaseDurationSeconds": 40, "renewTime": time});
        let patch = Patch::Merge(json!({"spec": spec}));
        let name = machine.name.clone();
        let renewed = admin.patch::<Lease>(Some(NODE_LEASE_NAMESPACE), &name, &patch);
        if renewed.await.is_err() {
            // It has no lease yet, or that was deleted with an earlier Node of its name.
            let node = json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": self.node_uid(number)});
            let metadata =
                json!({"namespace": NODE_LEASE_NAMESPACE, "name": name, "ownerReferences": [node]});
            let lease = json!({"metadata": metadata, "spec": spec});
            create::<Lease>(&self.history.admin, lease).await;
        }
    }

    async fn say_ready(&mut self, number: usize) {
        let patch = Patch::Strategic(json!({"status": ready(self.processes.now)}));
        let (admin, name) = (&self.history.admin, &self.machines[number].name);
        let said = admin.patch_status::<Node>(None, name, &patch);
        said.await.expect("it is there");
    }

    /// A machine comes up and renews its lease again.
    pub(crate) async fn come_back(&mut self, number: usize) {
        let was = std::mem::replace(&mut self.machines[number].state, State::Up);
        if self.machines[number].removed.take().is_some() {
            create::<Node>(&self.history.admin, self.machines[number].node()).await;
            self.look().await;
        }
        if std::mem::take(&mut self.machines[number].given_up) {
            self.set_out_of_service(number, false).await;
        }
        if was != State::Up {
            self.say_ready(number).await;
            self.renew(number).await;
        }
        self.look().await;
        let there: Vec<String> = self.history.pods().into_iter().map(uid).collect();
        let runs = &mut self.machines[number].runs;
        runs.retain(|pod, _| there.contains(pod));
    }

    /// Someone marks a machine as out of service, or removes that mark.
    async fn set_out_of_service(&mut self, number: usize, is_off: bool) {
        let name = self.machines[number].name.clone();
        let admin = &self.history.admin;
        let node = admin.get::<Node>(None, &name).await.expect("it is there");
        let mut taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        taints.retain(|taint| taint.key != OUT_OF_SERVICE);
        let mut taints = serde_json::to_value(taints).unwrap();
        if is_off {
            let taint =
                json!({"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"});
            taints.as_array_mut().unwrap().push(taint);
        }
        let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
        let patched = admin.patch::<Node>(None, &name, &patch);
        patched.await.expect("it is taken");
        self.look().await;
    }

    /// Something happens to a machine.
    async fn meet_fate(&mut self) {
        if !self.scenario.disruption {
            return;
        }
        let number = self.dice.below(self.machines.len());
        let which = self.dice.below(4);
        let name = self.machines[number].name.clone();
        match (self.machines[number].state, which) {
            (State::Up, 0 | 1) => self.machines[number].state = State::Silent,
            (State::Up | State::Silent, 2) => self.lose_power(number),
            (State::Up, _) => {
                self.lose_power(number);
                self.come_back(number).await;
            }
            (State::Off, 0) if self.machines[number].removed.is_none() => {
                let admin = &self.history.admin;
                let params = DeleteParams::default();
                let deleted = admin.delete::<Node>(None, &name, &params);
                deleted.await.expect("it is there");
                let machine = &mut self.machines[number];
                machine.removed = Some(self.processes.now.instant);
                self.look().await;
            }
            (State::Off, 1) if self.machines[number].removed.is_none() => {
                self.machines[number].given_up = true;
                self.seen.given_up.insert(name);
                self.set_out_of_service(number, true).await;
            }
            (State::Silent | State::Off, _) => self.come_back(number).await,
        }
    }

    /// All machines of a zone that are up fall silent, or the silent ones come back.
    async fn meet_fate_of_a_zone(&mut self) {
        if !self.scenario.disruption {
            return;
        }
        let zone = self.machines[self.dice.below(self.machines.len())].zone;
        let falls_silent = self.dice.below(2) == 0;
        for number in 0..self.machines.len() {
            let machine = &mut self.machines[number];
            match machine.state {
                State::Up if machine.zone == zone && falls_silent => {
                    machine.state = State::Silent;
                }
                State::Silent if machine.zone == zone && !falls_silent => {
                    self.come_back(number).await;
                }
                State::Up | State::Silent | State::Off => {}
            }
        }
    }

    fn lose_power(&mut self, number: usize) {
        let machine = &mut self.machines[number];
        machine.state = State::Off;
        machine.runs.clear();
    }

    /// People delete a Deployment, and make it again.
    async fn manage_brief(&mut self) {
        if self.scenario.scope == Scope::Parts {
            return;
        }
        let found = self.find_brief();
        let policies = ["Background", "Foreground", "Orphan"];
        let policy = self.dice.pick(&policies).copied();
        match found {
            None => self.make_brief().await,
            Some(true) => {}
            Some(false) => {
                let params = DeleteParams {
                    propagation: policy,
                    ..DeleteParams::default()
                };
                let admin = &self.history.admin;
                let deleted = admin.delete::<Deployment>(Some("default"), "brief", &params);
                deleted.await.expect("it is there");
                self.look().await;
            }
        }
    }

    /// A scheduler with an old view tries to bind a pod that already has a node, or one with the
    /// name of a deleted pod.
    async fn bind_late(&mut self) {
        let pods = self.history.pods_now();
        let Some(pod) = self.dice.pick(&pods).cloned() else {
            return;
        };
        let node = &self.machines[self.dice.below(self.machines.len())].name;
        let id = if node_of(&pod).is_empty() {
            "00000000-0000-0000-0000-000000000000".to_owned()
        } else {
            uid(&pod)
        };
        let target = json!({"apiVersion": "v1", "kind": "Node", "name": node});
        let binding = json!({"metadata": {"name": name(&pod), "uid": id}, "target": target});
        let binding: DynamicObject = serde_json::from_value(binding).unwrap();
        let admin = &self.history.admin;
        let bound =
            admin.create_subresource::<Pod>(Some("default"), name(&pod), "binding", &binding);
        let is_bound = bound.await.is_ok();
        self.look().await;
        assert!(!is_bound, "{} is bound by a late scheduler", name(&pod));
    }

    /// Whether the brief Deployment is being deleted; `None` if it does not exist.
    fn find_brief(&self) -> Option<bool> {
        let mut all = self.history.objects("deployments").iter();
        let found = all.find(|any| any.name() == "brief")?;
        Some(found.meta().deletion_timestamp.is_some())
    }

    /// Creates the brief Deployment if it does not exist; returns whether it did.
    pub(crate) async fn make_brief_again(&mut self) -> bool {
        let is_missing = self.find_brief().is_none();
        if is_missing {
            self.make_brief().await;
        }
        is_missing
    }

    async fn make_brief(&mut self) {
        create::<Deployment>(&self.history.admin, brief(self.style)).await;
        self.look().await;
    }

    /// A machine starts a pod of its own, if it has room for it.
    async fn start_a_static_pod(&mut self) {
        let number = self.dice.below(WITH_STATIC);
        let Some(node) = self.node_uid(number).filter(|_| self.style.statics) else {
            return;
        };
        let machine = &self.machines[number];
        let object = mirror(&machine.name, &node, STATIC);
        let pod: Pod = serde_json::from_value(object.clone()).unwrap();
        let mut pods = self.history.pods().into_iter();
        let is_there = pods.any(|known| known.metadata.name == pod.metadata.name);
        if machine.state != State::Up || is_there || !machine.has_room(&pod) {
            return;
        }
        create::<Pod>(&self.history.admin, object).await;
        self.look().await;
        let pods = self.history.pods().into_iter();
        let made = pods
            .filter(|known| known.metadata.name == pod.metadata.name)
            .cloned();
        let runs = &mut self.machines[number].runs;
        runs.extend(made.map(|pod| (uid(&pod), pod)));
    }

    /// The next action of the kubelet on a pod of its machine.
    pub(crate) async fn live_on_its_machine(
        &mut self,
        pod: &Pod,
        fails: bool,
        breaks: bool,
    ) -> bool {
        let node = node_of(pod);
        let mut machines = self.machines.iter_mut();
        let up = |machine: &&mut Machine| machine.name == node && machine.state == State::Up;
        let Some(machine) = machines.find(up) else {
            return false;
        };
        let id = uid(pod);
        if pod.metadata.deletion_timestamp.is_some() {
            machine.runs.remove(&id);
            // A pod that still has a finalizer has ended all the same.
            let first = !self.ended.contains(&id);
            self.end(pod).await;
            return first;
        }
        let is_pending = match phase(pod) {
            "Succeeded" | "Failed" => return false,
            phase => phase == "Pending",
        };
        if !machine.runs.contains_key(&id) {
            if machine.has_room(pod) {
                machine.runs.insert(id, pod.clone());
                if is_pending {
                    self.say(pod, running(self.processes.now.wall)).await;
                }
            } else {
                self.fails(pod).await;
            }
            return true;
        }
        if is_finite(pod) && !fails {
            machine.runs.remove(&id);
            self.succeeded.insert(id);
            self.say(pod, json!({"phase": "Succeeded"})).await;
        } else if is_finite(pod) || breaks && app(pod) != "static" {
            machine.runs.remove(&id);
            self.fails(pod).await;
        } else {
            return false;
        }
        true
    }

    /// A pod fails, also because its node has no room for it.
    async fn fails(&mut self, pod: &Pod) {
        let ended = if is_finite(pod) {
            &mut self.failed
        } else {
            // An ended pod is gone as soon as it is deleted.
            &mut self.ended
        };
        ended.insert(uid(pod));
        self.say(pod, json!({"phase": "Failed"})).await;
    }

    /// The machine of a name.
    pub(crate) fn machine(&self, name: &str) -> Option<&Machine> {
        self.machines.iter().find(|machine| machine.name == name)
    }

    /// What the pods that are bound to a node ask for.
    pub(crate) fn asked_of(&self, node: &str) -> i64 {
        let pods = self.history.pods().into_iter();
        let pods = pods.filter(|pod| node_of(pod) == node);
        pods.filter(|pod| !has_ended(pod)).map(asks).sum()
    }

    /// The nodes that are registered.
    pub(crate) fn nodes(&self) -> Vec<&Node> {
        let all = self.history.objects("nodes").iter();
        all.filter_map(|any| {
            if let Any::Node(node) = any {
                Some(&**node)
            } else {
                None
            }
        })
        .collect()
    }
}
