//! The invariants of the whole control plane, checked at every step.

use super::api::Deletion;
use super::kinds::Any;
use super::machines::{Machine, ROOM, State, asks, node_of};
use super::pods::{app, has_ended, has_identity, is_finite, name, phase, uid};
use super::world::World;
use config_kube::k8s_openapi::api::core::v1::{Node, Pod, Taint};
use config_kube::taints::{NO_EXECUTE, NOT_READY, OUT_OF_SERVICE, UNREACHABLE};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long a kubelet must have been silent before its node becomes unreachable; and how long the
/// taint of such a node must have lasted before it evicts pods, in seconds (`tolerationSeconds`).
const GRACE: Duration = Duration::from_secs(40);
pub(crate) const TOLERATED: u64 = 30;
/// How long a node must be gone before its pods are collected.
const QUARANTINE: Duration = Duration::from_secs(40);
/// Least time between two nodes of a zone that get a taint which evicts pods.
const PACE: Duration = Duration::from_secs(10);

/// Facts from the past that the invariants need.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The node of each pod, by UID.
    pub(crate) nodes: BTreeMap<String, String>,
    /// Nodes that are marked as unreachable.
    unheard: BTreeSet<String>,
    /// By node: whether it has the taint (not-ready or unreachable) that evicts pods, and when it
    /// was last added.
    pub(crate) emptied: BTreeMap<String, (bool, Instant)>,
    /// When that taint was last added to a node of a zone. A restarted controller does not know
    /// that.
    pub(crate) last_emptied: BTreeMap<&'static str, Instant>,
    pub(crate) clock_was_set: bool,
    /// Nodes that once had the out-of-service taint: a controller that lags may still see it.
    pub(crate) given_up: BTreeSet<String>,
}

fn taints(node: &Node) -> impl Iterator<Item = &Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten()
}

fn is_unreachable(node: &Node) -> bool {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut ready = conditions.into_iter().flatten();
    ready.any(|one| one.type_ == "Ready" && one.status == "Unknown")
}

/// Whether the node has a taint that evicts its pods.
fn is_emptied(node: &Node) -> bool {
    taints(node).any(|taint| {
        taint.effect == NO_EXECUTE && (taint.key == NOT_READY || taint.key == UNREACHABLE)
    })
}

fn scheduler(pod: &Pod) -> &str {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.scheduler_name.as_deref())
        .unwrap_or_default()
}

impl World {
    /// Checks all invariants of the whole control plane.
    pub(crate) fn check_laws(&mut self, deleted: &[(Deletion, Any)]) {
        self.check_deletions(deleted);
        self.check_bindings();
        self.check_capacity();
        self.check_machines();
        self.check_failures();
        self.check_nodes();
        // A pod of the Job that is being deleted, or that others ended, counts as a failure.
        let pods = self.history.pods().into_iter();
        let lost = pods.filter(|pod| {
            let leaves = pod.metadata.deletion_timestamp.is_some() && phase(pod) != "Succeeded";
            is_finite(pod) && (leaves || phase(pod) == "Failed")
        });
        let lost: Vec<String> = lost.map(uid).collect();
        self.failed.extend(lost);
    }

    /// No pod is bound twice.
    fn check_bindings(&mut self) {
        let pods = self.history.pods().into_iter();
        let bound: Vec<_> = pods
            .filter(|pod| !node_of(pod).is_empty())
            .map(|pod| (uid(pod), node_of(pod).to_owned()))
            .collect();
        for (pod, node) in bound {
            let before = self.seen.nodes.insert(pod.clone(), node.clone());
            let is_same = before.is_none_or(|before| before == node);
            assert!(is_same, "a pod is bound twice, now to {node}");
            self.bound.insert(pod);
        }
    }

    /// No scheduler overcommits a node by its own pods. Several schedulers together may; then the
    /// kubelet refuses the pods.
    fn check_capacity(&self) {
        let alone = !self.style.two && !self.style.statics;
        let mut given: BTreeMap<(&str, &str), i64> = BTreeMap::new();
        for pod in self.history.pods() {
            let counts = alone || app(pod) != "static";
            if counts && !node_of(pod).is_empty() && !has_ended(pod) {
                let by = if alone { "them" } else { scheduler(pod) };
                *given.entry((node_of(pod), by)).or_default() += asks(pod);
            }
        }
        for ((node, by), asked) in given {
            assert!(
                asked <= ROOM,
                "{node}: {asked} of {ROOM} thousandths are given by {by}"
            );
        }
    }

    /// No identity of a StatefulSet runs twice, also on machines that are unreachable.
    fn check_machines(&self) {
        let mut known: BTreeMap<&str, &str> = BTreeMap::new();
        for machine in &self.machines {
            for (id, pod) in machine.runs.iter().filter(|(_, pod)| has_identity(pod)) {
                let other = known.insert(name(pod), id);
                assert!(other.is_none(), "{} runs twice", name(pod));
            }
        }
    }

    /// Only its kubelet reports a pod as failed, and controllers only if the machine is off. From
    /// then on anyone may delete it.
    fn check_failures(&mut self) {
        let pods = self.history.pods().into_iter();
        let failed = pods.filter(|pod| phase(pod) == "Failed" && !node_of(pod).is_empty());
        let known = |pod: &str| self.ended.contains(pod) || self.failed.contains(pod);
        let failed: Vec<_> = failed
            .map(|pod| (uid(pod), node_of(pod)))
            .filter(|(pod, _)| !known(pod))
            .collect();
        let mut by_others = Vec::new();
        for (pod, node) in failed {
            let machine = self.machine(node);
            let is_off = machine.is_some_and(|machine| machine.state == State::Off);
            assert!(
                is_off,
                "a pod is said to have failed on {node}, where it may run"
            );
            by_others.push(pod);
        }
        self.ended.extend(by_others);
    }

    /// No node whose kubelet reports becomes unreachable, and the nodes of a zone are tainted one
    /// after another.
    fn check_nodes(&mut self) {
        let now = self.processes.now.instant;
        let mut seen = std::mem::take(&mut self.seen);
        let nodes = self.nodes();
        let names = nodes.iter().filter_map(|node| node.metadata.name.as_ref());
        let names: BTreeSet<&String> = names.collect();
        for (name, (is_emptied, _)) in &mut seen.emptied {
            *is_emptied &= names.contains(name);
        }
        let machines = self.machines.iter().map(|one| (&*one.name, one));
        let machines: BTreeMap<&str, &Machine> = machines.collect();
        for node in nodes {
            let name = node.metadata.name.clone().unwrap_or_default();
            let Some(machine) = machines.get(&*name) else {
                continue;
            };
            let (zone, silence) = (machine.zone, now.saturating_duration_since(machine.heard));
            if !is_unreachable(node) {
                seen.unheard.remove(&name);
            } else if seen.unheard.insert(name.clone()) {
                assert!(silence >= GRACE, "{name} is given up after {silence:?}");
            }
            let before = seen.emptied.get(&name).is_some_and(|(is, _)| *is);
            match (before, is_emptied(node)) {
                (false, true) => {
                    let last = seen.last_emptied.insert(zone, now);
                    let passed = last.map(|last| now.saturating_duration_since(last));
                    assert!(
                        passed.is_none_or(|passed| passed >= PACE),
                        "{name} is emptied {passed:?} after another node of its zone"
                    );
                    seen.emptied.insert(name, (true, now));
                }
                (true, false) => seen.emptied.entry(name).or_insert((false, now)).0 = false,
                (_, _) => {}
            }
        }
        self.seen = seen;
    }

    /// Controllers delete pods of nodes only for valid reasons.
    fn check_deletions(&self, deleted: &[(Deletion, Any)]) {
        for (deletion, object) in deleted {
            let Any::Pod(pod) = object else { continue };
            match deletion.by.trim_start_matches("system:controller:") {
                "taint-eviction" => self.check_eviction(pod),
                "pod-gc" => self.check_collection(pod),
                _ => {}
            }
        }
    }

    fn is_out_of_service(&self, node: &str) -> bool {
        let nodes = self.nodes().into_iter();
        let mut own = nodes.filter(|one| one.metadata.name.as_deref() == Some(node));
        own.any(|node| taints(node).any(|taint| taint.key == OUT_OF_SERVICE))
    }

    /// A pod is evicted only when its node was tainted for as long as the pod tolerates it.
    fn check_eviction(&self, pod: &Pod) {
        let (now, node) = (self.processes.now.instant, node_of(pod));
        if self.seen.clock_was_set || self.seen.given_up.contains(node) {
            return;
        }
        let since = self.seen.emptied.get(node).map(|(_, since)| *since);
        let passed = since.map(|since| now.saturating_duration_since(since));
        assert!(
            passed.is_some_and(|passed| passed >= Duration::from_secs(TOLERATED)),
            "{} is driven out of {node} after {passed:?}",
            name(pod)
        );
    }

    /// A pod is collected only if its node has been gone for some time or is out of service, or if
    /// it never had a node.
    fn check_collection(&self, pod: &Pod) {
        let (now, node) = (self.processes.now.instant, node_of(pod));
        let leaves = pod.metadata.deletion_timestamp.is_some();
        let Some(machine) = self.machine(node) else {
            assert!(leaves, "{} is collected before it has a node", name(pod));
            return;
        };
        let removed = machine
            .removed
            .map(|since| now.saturating_duration_since(since));
        let is_gone = removed.is_some_and(|passed| passed >= QUARANTINE);
        assert!(
            machine.state == State::Off && (is_gone || leaves && self.is_out_of_service(node)),
            "{} is collected from {node}, gone {removed:?}",
            name(pod)
        );
    }
}
