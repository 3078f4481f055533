//! What the kubelet's tasks share.

use crate::capacity;
use crate::config::Config;
use crate::handle::{Allocation, Handle};
use crate::mirrors::Mirrors;
use agent_api::events::Recorder;
use agent_api::{Api, get};
use agent_claims::Folders;
use agent_cluster::Sandboxes;
use agent_content::Watched;
use agent_csi::Csi;
use agent_images::ImageUses;
use agent_pods::{Pending, Refusal, beyond, misfit, misfit_in_turn, predicate_failure};
use agent_policy::PolicyKeeper;
use agent_pressure::Pressure;
use agent_resources::machine::Facts;
use agent_resources::{Figures, TimedWork, group};
use agent_runtime::{NamedTurns, PodRef, Resources, Runtime, Threads};
use agent_sys::cgroup::Groups;
use config_kube::k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use config_kube::quantity::Amount;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::timeout;

/// Greatest age of the Node object by which a pod is admitted.
const NODE_AGE: Duration = Duration::from_secs(10);
/// How long the master may take to return the Node.
const NODE_PATIENCE: Duration = Duration::from_secs(5);

/// What all pods' tasks and the node's loops use.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) api: Arc<dyn Api>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) sandboxes: Arc<Sandboxes>,
    /// NetworkPolicies, and the pods for which they are in force.
    pub(crate) policies: Arc<PolicyKeeper>,
    pub(crate) events: Recorder,
    /// Which conditions of pressure hold.
    pub(crate) pressure: Mutex<Pressure>,
    /// When each image was first seen and last used.
    pub(crate) images: tokio::sync::Mutex<ImageUses>,
    /// Turns to pull an image, by the pod's namespace and the registry: a registry may send slowly,
    /// and its owner may give one host many names.
    pub(crate) pulls: NamedTurns,
    /// Turns to start a container, by its pod's namespace and uid.
    pub(crate) turns: NamedTurns,
    /// Turns to hold many bytes of config maps and secrets in memory, by the pod's namespace.
    pub(crate) reading: NamedTurns,
    /// Turns to hold those for a container's environment variables until it runs, by its pod's
    /// namespace.
    pub(crate) gathering: NamedTurns,
    /// Threads that prepare containers.
    pub(crate) preparing: Threads,
    /// Turns to measure pods' disk usage, and to remove their files, by their namespace.
    pub(crate) walks: NamedTurns,
    pub(crate) removals: NamedTurns,
    /// The machine's memory in bytes.
    pub(crate) memory: u64,
    pub(crate) facts: Facts,
    /// The folders of persistent volumes.
    pub(crate) folders: Arc<Folders>,
    /// The config maps and secrets that volumes show.
    pub(crate) watched: Watched,
    /// The volumes of CSI drivers.
    pub(crate) csi: Arc<Csi>,
    /// What this node and its pods use.
    pub(crate) figures: Arc<Figures>,
    /// Every pod's task, by uid.
    pub(crate) pods: Mutex<HashMap<String, Handle>>,
    /// The master has listed all pods once.
    pub(crate) listed: AtomicBool,
    /// What the API shows of static pods.
    pub(crate) mirrors: Mirrors,
    /// True once the machine shuts down.
    pub(crate) ends: watch::Sender<bool>,
    /// CPU requests of all burstable pods in millicores, as last written to the class's weight.
    pub(crate) burstable: Mutex<Option<u64>>,
    /// This node's Node, and when it was read.
    pub(crate) node: tokio::sync::Mutex<Option<(Arc<Node>, Instant)>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Every pod's task, by uid.
    pub(crate) fn handles(&self) -> MutexGuard<'_, HashMap<String, Handle>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a pod's task, if there is one.
    pub(crate) fn wake(&self, uid: &str) {
        if let Some(handle) = self.handles().get(uid) {
            handle.news.notify_one();
        }
    }

    /// Wakes every pod's task.
    pub(crate) fn wake_all(&self) {
        let handles = self.handles();
        handles.values().for_each(|handle| handle.news.notify_one());
    }

    /// Records a warning event about this node. The event's UID is the node's name, as upstream's
    /// kubelet has it, because the real one is unknown while the master is away.
    pub(crate) fn warn(&self, reason: &'static str, message: &str) {
        let name = Some(self.config.node_name.clone());
        let about = ObjectReference {
            kind: Some("Node".to_owned()),
            uid: name.clone(),
            name,
            ..ObjectReference::default()
        };
        self.events.record(about, true, reason, message);
    }

    /// Admits the pod with the resources in its spec, if it fits beside the admitted pods; else
    /// says why it doesn't. One pod is decided at a time, so that two never take the same room.
    pub(crate) fn admit(&self, pod: &Arc<Pod>, allocation: &Allocation) -> Option<Refusal> {
        let handles = self.handles();
        let refusal = misfit(pod, &others(&handles, pod), &self.allocatable());
        if refusal.is_none() {
            allocation.set(pod.clone());
        }
        refusal
    }

    /// Whether a pod that does not fit now will fit once pods that the master has already deleted
    /// have ended. Upstream's kubelet ignores those; here the new pod waits, so that no resource is
    /// given twice.
    pub(crate) fn fits_soon(&self, pod: &Pod) -> bool {
        let staying = staying(&self.handles(), pod);
        misfit(pod, &staying, &self.allocatable()).is_none()
    }

    /// Why labels, taints or extended resources of this Node keep the pod off it. A Node read in
    /// the last ten seconds will do; a refusal is checked again on one read now. If the master does
    /// not answer, the pod is not refused.
    pub(crate) async fn predicate_failure(&self, pod: &Pod) -> Option<Refusal> {
        let asked = async {
            let against = |node: &Node| {
                let lacks = || agent_pods::missing(pod, &staying(&self.handles(), pod), node);
                predicate_failure(pod, node).or_else(lacks)
            };
            let node = self.own_node(NODE_AGE).await?;
            against(&node)?;
            let node = self.own_node(Duration::ZERO).await?;
            against(&node)
        };
        timeout(NODE_PATIENCE, asked).await.ok()?
    }

    /// The Node; read again if the last one is older than this.
    pub(crate) async fn own_node(&self, age: Duration) -> Option<Arc<Node>> {
        let mut known = self.node.lock().await;
        if let Some((node, at)) = &*known
            && at.elapsed() < age
        {
            return Some(node.clone());
        }
        let path = format!("/api/v1/nodes/{}", self.config.node_name);
        let node: Arc<Node> = Arc::new(get(&*self.api, path).await.ok()?);
        *known = Some((node.clone(), Instant::now()));
        Some(node)
    }

    /// Admits a pod again with other resources, after the pods whose resize waits before it; says
    /// why this resize waits, if it does.
    pub(crate) fn resize(&self, pod: &Arc<Pod>, allocation: &Allocation) -> Option<Pending> {
        let handles = self.handles();
        let uid = pod.metadata.uid.as_deref();
        let others = handles
            .iter()
            .filter(|(other, _)| Some(other.as_str()) != uid)
            .filter_map(|(_, handle)| Some((handle.allocated_pod()?, &handle.news)));
        let (others, news): (Vec<_>, Vec<_>) = others.unzip();
        let (own, has) = (allocation.waiting(pod), allocation.pod()?);
        let (lack, served) = misfit_in_turn(&has, &own, &others, &self.allocatable());
        // These resizes came first and fit now: wake their tasks.
        for one in served {
            news[one].notify_one();
        }
        let Some(lack) = lack else {
            allocation.set(pod.clone());
            return None;
        };
        allocation.wait(Some(own));
        Some(match beyond(pod, &self.allocatable()) {
            Some(message) => Pending {
                reason: "Infeasible",
                message,
            },
            None => Pending {
                reason: "Deferred",
                message: lack.message,
            },
        })
    }

    /// Sets the limits of a pod's control group, including that of its processes, and the CPU
    /// weights of the QoS classes for the present pods.
    ///
    /// # Errors
    /// The kernel refuses to write a limit of the group, or a weight of a class ([`Self::weigh`]).
    pub(crate) async fn limit(
        self: &Arc<Self>,
        group: String,
        limits: Resources,
    ) -> io::Result<()> {
        self.weigh().await?;
        let begun = Instant::now();
        let limits = capacity::of_pod(&self.config, limits);
        let set = move || group::limit(&Groups::mounted(), &group, limits);
        let set = tokio::task::spawn_blocking(set).await;
        self.figures.done().took(TimedWork::Limits, begun.elapsed());
        set.map_err(io::Error::other).flatten()
    }

    /// Sets the CPU weights of the QoS classes for the present pods.
    ///
    /// # Errors
    /// The kernel refuses to write a weight. All are then written again at the next call.
    pub(crate) async fn weigh(self: &Arc<Self>) -> io::Result<()> {
        let shared = self.clone();
        let weighed = tokio::task::spawn_blocking(move || {
            // Counted and written under one lock, so that the last value written is current.
            let mut known = shared
                .burstable
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let pods: Vec<_> = shared
                .handles()
                .values()
                .filter_map(Handle::allocated)
                .collect();
            let millis = group::burstable_millis(pods.iter().map(|pod| &**pod));
            if *known != Some(millis) {
                group::weigh_classes(&Groups::mounted(), millis)?;
                *known = Some(millis);
            }
            Ok(())
        });
        weighed.await.map_err(io::Error::other).flatten()
    }

    /// What pods may use of the node, by resource.
    pub(crate) fn allocatable(&self) -> BTreeMap<&'static str, Amount> {
        capacity::allocatable(&self.config, &self.facts)
    }

    /// The pods assigned to this node, as last watched.
    pub(crate) fn all_pods(&self) -> Vec<Arc<Pod>> {
        let handles = self.handles();
        handles.values().filter_map(Handle::latest).collect()
    }

    /// The pod that the API shows by this name: the newest, if the node does not know yet that an
    /// older one was deleted. A static pod is found only by its mirror, not by another pod of its
    /// name.
    pub(crate) fn pod_named(&self, namespace: &str, name: &str) -> Option<PodRef> {
        let handles = self.handles();
        let named = handles.values().filter_map(|handle| {
            let of_name = handle.pod.namespace == namespace && handle.pod.name == name;
            let pod = handle.latest().filter(|_| of_name)?;
            let is_static = self.config.is_static(&handle.pod.uid);
            self.mirrors.shown_as(&pod, is_static)?;
            // Names are unique at the API: if it has a mirror of this name, it has no other pod of
            // it.
            let made = pod.metadata.creation_timestamp.as_ref().map(|made| made.0);
            Some(((is_static, made), &handle.pod))
        });
        // Ties do not depend on the order of the handles.
        let newest = named.max_by(|one, other| (one.0, &one.1.uid).cmp(&(other.0, &other.1.uid)));
        newest.map(|(_, pod)| pod.clone())
    }
}

/// The other pods that hold resources of the node.
fn others(handles: &HashMap<String, Handle>, pod: &Pod) -> Vec<Arc<Pod>> {
    let others = beside(handles, pod);
    others.filter_map(Handle::allocated).collect()
}

/// The other pods that the master still has. A force-deleted pod holds resources until its
/// processes have ended, which is soon.
fn staying(handles: &HashMap<String, Handle>, pod: &Pod) -> Vec<Arc<Pod>> {
    let others = beside(handles, pod).filter(|handle| handle.latest().is_some());
    others.filter_map(Handle::allocated).collect()
}

fn beside<'a>(
    handles: &'a HashMap<String, Handle>,
    pod: &'a Pod,
) -> impl Iterator<Item = &'a Handle> {
    let uid = pod.metadata.uid.as_deref();
    let others = handles.iter();
    let others = others.filter(move |(other, _)| Some(other.as_str()) != uid);
    others.map(|(_, handle)| handle)
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::desired::DesiredPod;
    use crate::handle::{Allocation, Chosen, FoundStatus, Handle, Released};
    use crate::kubelet::tests::{shared_with, with_host_port};
    use agent_pods::pod_ref;
    use config_kube::k8s_openapi::api::core::v1::{Pod, PodStatus};
    use config_static_pods::Mirror;
    use serde_json::json;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::sync::watch;

    /// The handle of a pod that has no task.
    pub(crate) fn handle(wanted: Pod) -> Handle {
        Handle {
            pod: pod_ref(&wanted).unwrap(),
            wanted: watch::channel(DesiredPod::Pod(Arc::new(wanted))).0,
            news: Arc::default(),
            chosen: Chosen::default(),
            allocation: Allocation::default(),
            found: FoundStatus::default(),
            released: Released::default(),
        }
    }

    #[tokio::test]
    async fn a_static_pod_is_reached_only_by_its_mirror() {
        let manifest = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
            "spec": {"containers": [{"name": "main", "image": "a"}]}}"#;
        let of_machine = config_static_pods::read(manifest, "node").unwrap();
        let fixed = of_machine.metadata.uid.clone().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let shared = shared_with(dir.path(), vec![of_machine.clone()]);
        let named = || {
            let found = shared.pod_named("default", "a-node");
            found.map(|pod| pod.uid)
        };
        shared.handles().insert(fixed.clone(), handle(of_machine));
        assert_eq!(named(), None, "no mirror");

        // With many UIDs, both orders of the two occur.
        for number in 0..50 {
            let uid = format!("other-{number}");
            let meta = json!({"namespace": "default", "name": "a-node", "uid": uid});
            let other: Pod = serde_json::from_value(json!({"metadata": meta})).unwrap();
            shared.handles().insert(uid.clone(), handle(other));
            assert_eq!(named(), Some(uid.clone()));
            let gone = DesiredPod::Gone(Duration::ZERO);
            shared.handles()[&uid].wanted.send_replace(gone);
            assert_eq!(named(), None, "the API has no such pod");
            shared.handles().remove(&uid);
        }

        let mirror = |of: &str| Mirror {
            namespace: "default".to_owned(),
            name: "a-node".to_owned(),
            uid: "mirror".to_owned(),
            of: of.to_owned(),
            deleted: false,
            status: PodStatus::default(),
        };
        shared.mirrors.listed(vec![mirror("another")]);
        assert_eq!(named(), None, "a mirror of something else");
        shared.mirrors.listed(vec![mirror(&fixed)]);
        assert_eq!(named(), Some(fixed));
    }

    #[tokio::test]
    async fn a_pod_waits_for_the_port_of_one_that_was_deleted_without_its_grace() {
        let dir = tempfile::tempdir().unwrap();
        let shared = shared_with(dir.path(), vec![]);
        let [old, new] = ["old", "new"].map(|uid| Arc::new(with_host_port(uid)));
        let leaving = handle((*old).clone());
        leaving.allocation.set(old.clone());
        let allocation = leaving.allocation.clone();
        shared.handles().insert("old".to_owned(), leaving);
        let own = Allocation::default();
        assert!(shared.admit(&new, &own).is_some());
        assert!(!shared.fits_soon(&new), "its neighbour stays");
        let gone = DesiredPod::Gone(Duration::ZERO);
        shared.handles()["old"].wanted.send_replace(gone);
        assert!(shared.admit(&new, &own).is_some(), "its processes may run");
        assert!(shared.fits_soon(&new));
        allocation.release();
        assert_eq!(shared.admit(&new, &own), None);
    }
}
