//! Finds pods that wait for a node although one has room for them: the scheduler missed a change.

use super::machines::{ROOM, asks, node_of};
use super::pods::{has_ended, name, uid};
use super::world::World;
use config_kube::k8s_openapi::api::core::v1::{Node, Pod};
use master_control_workloads::workload::pod::meant_for;
use std::collections::BTreeMap;
use std::time::Duration;

/// The longest back-off of a scheduler. All processes handle what they have seen before time
/// passes, so a pod is tried at least once in this time.
const BACKOFF: Duration = Duration::from_secs(10);
/// How many such rounds a pod may wait: while calls fail, more than fail in a row; and while none
/// fail.
const STORMY: usize = 8;
const CALM: usize = 3;
/// Pods that a machine takes.
const MOST_PODS: usize = 20;

/// The pods that wait, and the nodes that have room for them.
#[derive(Debug)]
pub(crate) struct Waits {
    rounds: usize,
    /// Rounds that a pod may wait.
    most: usize,
    /// By the pod's UID and the node: since which round the node has had room.
    since: BTreeMap<(String, String), usize>,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            rounds: 0,
            most: STORMY,
            since: BTreeMap::new(),
        }
    }
}

impl Waits {
    /// From now on no call fails.
    pub(crate) fn calm(&mut self) {
        self.most = CALM;
        self.since.clear();
    }

    /// Some time has passed.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.rounds += usize::from(time >= BACKOFF);
    }
}

/// Whether a node takes pods without tolerations.
fn is_open(node: &Node) -> bool {
    let (spec, status) = (node.spec.as_ref(), node.status.as_ref());
    let taints = spec.and_then(|spec| spec.taints.as_deref());
    let conditions = status.and_then(|status| status.conditions.as_deref());
    let mut conditions = conditions.unwrap_or_default().iter();
    spec.and_then(|spec| spec.unschedulable) != Some(true)
        && taints.unwrap_or_default().is_empty()
        && conditions.any(|one| one.type_ == "Ready" && one.status == "True")
}

/// Whether a pod has claims for which a scheduler may wait. The scheduler keeps a place for such a
/// pod meanwhile, and nobody else can see where.
fn has_claims(pod: &Pod) -> bool {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    let mut claims = volumes.map(|volume| &volume.persistent_volume_claim);
    claims.any(Option::is_some)
}

/// The nominated node of a pod.
fn nominated(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.nominated_node_name.as_deref()
}

/// Whether a waiting pod may be placed on a node, if there is room.
fn may_be_on(pod: &Pod, node: &str) -> bool {
    let stays = pod.metadata.deletion_timestamp.is_none() && !has_claims(pod);
    stays && meant_for(pod).is_none_or(|only| only == node)
}

impl World {
    /// No pod waits for long while a node has room for it beside all pods there and those that are
    /// nominated there.
    pub(crate) fn check_waits(&mut self) {
        let mut waits = std::mem::take(&mut self.waits);
        let before = std::mem::take(&mut waits.since);
        let living = self.history.pods().into_iter();
        let living = living.filter(|pod| !has_ended(pod));
        let (waiting, placed): (Vec<&Pod>, Vec<&Pod>) =
            living.partition(|pod| node_of(pod).is_empty());
        let waiting: Vec<(&Pod, i64)> = waiting.into_iter().map(|pod| (pod, asks(pod))).collect();
        let nodes = self.nodes().into_iter();
        let open = nodes.filter(|node| !waiting.is_empty() && is_open(node));
        for node in open.filter_map(|node| node.metadata.name.as_deref()) {
            let there = placed.iter().filter(|pod| node_of(pod) == node);
            let there: Vec<i64> = there.map(|pod| asks(pod)).collect();
            let comes = |pod: &Pod| has_claims(pod) || nominated(pod) == Some(node);
            let coming: Vec<_> = waiting.iter().filter(|(pod, _)| comes(pod)).collect();
            for (pod, asked) in waiting.iter().filter(|(pod, _)| may_be_on(pod, node)) {
                let others = coming
                    .iter()
                    .filter(|(other, _)| !std::ptr::eq(*other, *pod));
                let others = others.map(|(_, asked)| *asked);
                let others: Vec<i64> = others.chain(there.iter().copied()).collect();
                if others.iter().sum::<i64>() + asked > ROOM || others.len() >= MOST_PODS {
                    continue;
                }
                let key = (uid(pod), node.to_owned());
                let since = before.get(&key).copied().unwrap_or(waits.rounds);
                let rounds = waits.rounds - since;
                assert!(
                    rounds < waits.most,
                    "{} waits while {node} has room, for {rounds} rounds",
                    name(pod)
                );
                waits.since.insert(key, since);
            }
        }
        self.waits = waits;
    }
}
