//! Invariants that hold at every step of a case.

use super::Scope;
use super::history::History;
use super::kinds::Any;
use super::machines::State;
use super::pods::{app, has_ended, is_ready, name, uid};
use super::world::{LEFT, PROTECTED, World};
use config_kube::k8s_openapi::api::core::v1::Pod;
use master_client::View;
use master_control_workloads::stateful_set::ordinal;
use master_control_workloads::workload::pod::OwnedPod;
use std::collections::BTreeSet;

/// The desired replicas of a ReplicaSet of the Deployment, and how many are available by its
/// status.
fn replicas_of_web(any: &Any) -> Option<(usize, usize)> {
    let Any::ReplicaSet(set) = any else {
        return None;
    };
    let owner = set.metadata.owner_references.as_ref()?.first()?;
    let wanted = set.spec.as_ref()?.replicas?;
    let status = set.status.as_ref();
    let available = status.and_then(|status| status.available_replicas);
    let available = available.unwrap_or_default().min(wanted);
    (owner.name == "web").then(|| {
        (
            usize::try_from(wanted).unwrap(),
            usize::try_from(available).unwrap(),
        )
    })
}

/// How many pods of the Deployment are available by its own status.
fn available_in_web(any: &Any) -> Option<usize> {
    let Any::Deployment(one) = any else {
        return None;
    };
    let available = one.status.as_ref()?.available_replicas?;
    (any.name() == "web").then(|| usize::try_from(available).unwrap())
}

/// The completion index of a Job's pod, where it has one.
fn completion_index(pod: &Pod) -> Option<&str> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations
        .get("batch.kubernetes.io/job-completion-index")
        .map(String::as_str)
}

/// Pods of an application that have not ended and are not being deleted.
fn active<'a>(history: &'a History, application: &str) -> Vec<&'a Pod> {
    let own = history.pods().into_iter();
    let own = own.filter(|pod| app(pod) == application);
    let own = own.filter(|pod| pod.metadata.deletion_timestamp.is_none());
    own.filter(|pod| !has_ended(pod)).collect()
}

impl World {
    /// Checks what must hold at every revision.
    pub(crate) fn check(&mut self) {
        let deleted = std::mem::take(&mut self.history.deleted);
        if self.scenario.scope != Scope::Workloads {
            self.check_laws(&deleted);
            self.check_waits();
        }
        self.check_identities();
        if self.scenario.scope == Scope::Parts {
            self.check_parts(&deleted);
            return;
        }
        self.check_job();
        self.check_numbers();
        if !self.scenario.disruption && self.scenario.faults.lost == 0 {
            self.check_bounds();
        }
        self.known = self.history.pods().into_iter().map(uid).collect();
    }

    /// A pod on a node is removed only when the node confirms its end, or can run nothing: so no
    /// identity ever exists twice.
    fn check_identities(&mut self) {
        let there: BTreeSet<String> = self.history.pods().into_iter().map(uid).collect();
        for gone in self.bound.difference(&there) {
            let by_node = self.ended.contains(gone);
            let of_itself = self.succeeded.contains(gone) || self.failed.contains(gone);
            let nodes = &self.seen.nodes;
            let machine = nodes.get(gone).and_then(|node| self.machine(node));
            let is_lost = machine.is_some_and(|machine| machine.state == State::Off);
            assert!(
                by_node || of_itself || is_lost,
                "a pod was taken from its node"
            );
        }
        self.bound.retain(|pod| there.contains(pod));
    }

    fn check_job(&mut self) {
        let Some(Any::Job(job)) = self.history.objects("jobs").first() else {
            return;
        };
        let status = job.status.clone().unwrap_or_default();
        let said = (
            status.succeeded.unwrap_or_default(),
            status.failed.unwrap_or_default(),
        );
        assert!(
            said.0 >= self.said.0 && said.1 >= self.said.1,
            "the Job says {said:?} after {:?}",
            self.said
        );
        let most = |ended: &BTreeSet<String>| i32::try_from(ended.len()).unwrap();
        assert!(
            said.0 <= most(&self.succeeded),
            "{said:?}: a success is counted twice"
        );
        let spec = job.spec.as_ref();
        let is_indexed = spec.and_then(|spec| spec.completion_mode.as_deref()) == Some("Indexed");
        // Without indexes a pod on a lost node may succeed beside its replacement (as upstream's
        // may).
        assert!(
            said.0 <= self.completions || (self.scenario.disruption && !is_indexed),
            "{said:?}: more than is wanted"
        );
        let uncounted = status.uncounted_terminated_pods.unwrap_or_default();
        let noted = uncounted.failed.map_or(0, |noted| noted.len());
        let deleted = self
            .history
            .pods()
            .into_iter()
            .filter(|pod| app(pod) == "all" && pod.metadata.deletion_timestamp.is_some());
        let deleted: BTreeSet<String> = deleted.map(uid).collect();
        let failures = self.failed.union(&deleted).count();
        let counted = usize::try_from(said.1).unwrap() + noted;
        assert!(
            counted <= failures,
            "{counted} of {failures}: a failure is counted twice"
        );
        self.said = said;
    }

    /// The most pods that may exist, whatever happens to nodes, pods and answers.
    fn check_numbers(&self) {
        // As upstream: the surge bounds the replicas that ReplicaSets want; pods that they have yet
        // to delete come on top.
        let sets = self.history.objects("replicasets").iter();
        let specified: usize = sets
            .filter_map(replicas_of_web)
            .map(|(wanted, _)| wanted)
            .sum();
        assert!(
            specified <= self.most + self.surge,
            "{specified} replicas: beyond the surge of what was ever wanted"
        );
        let all = active(&self.history, "all");
        assert!(
            all.len() <= self.parallelism,
            "more run at once than the Job allows"
        );
        let mut indexes = BTreeSet::new();
        for index in all.into_iter().filter_map(completion_index) {
            assert!(indexes.insert(index), "two pods run for the index {index}");
        }
        assert!(
            active(&self.history, "safe").len() <= PROTECTED,
            "more than the ReplicaSet wants"
        );
        let mut nodes = BTreeSet::new();
        for pod in active(&self.history, "each") {
            let node = OwnedPod::read(pod.clone()).meant_for.to_string();
            assert!(nodes.insert(node), "two daemons on a node");
        }
    }

    fn check_bounds(&mut self) {
        let history = &self.history;
        let of = |name: &str| active(history, name);
        let ready = |pods: &[&Pod]| pods.iter().filter(|pod| is_ready(pod)).count();
        let web = of("web");
        let floor = self.replicas.saturating_sub(self.missing);
        // The bound holds once the Deployment knows that enough pods are available. It may delete
        // pods that it does not know to be available, and these may become so before their
        // deletion.
        let sets = self.history.objects("replicasets").iter();
        let kept: usize = sets
            .filter_map(replicas_of_web)
            .map(|(_, available)| available)
            .sum();
        let deployments = self.history.objects("deployments").iter();
        let known = deployments.filter_map(available_in_web).max();
        self.serves |= known.unwrap_or_default().min(kept) >= self.replicas;
        assert!(
            !self.serves || ready(&web) >= floor,
            "{} of {floor} serve",
            ready(&web)
        );
        let left = ready(&of("safe"));
        self.safe |= left == PROTECTED;
        assert!(
            !self.safe || left >= LEFT,
            "{left} are left: the budget is violated"
        );
        self.check_order(&of("db"));
    }

    /// A pod of the StatefulSet is created only when those before it are available.
    fn check_order(&self, pods: &[&Pod]) {
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
}
