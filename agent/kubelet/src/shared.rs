//! What the kubelet's tasks share.

use crate::capacity;
use crate::config::Config;
use crate::garbage::Images;
use crate::handle::{Handle, Taken};
use crate::mirrors::Mirrors;
use agent_api::events::Recorder;
use agent_api::{Api, get};
use agent_claims::Folders;
use agent_cluster::Sandboxes;
use agent_cluster::policy::Keeper;
use agent_content::Watched;
use agent_csi::Csi;
use agent_pods::{Pending, Refusal, beyond, misfit, misfit_in_turn, misplaced};
use agent_pressure::Pressure;
use agent_resources::machine::Facts;
use agent_resources::{Figures, group};
use agent_runtime::{PodRef, Resources, Runtime};
use agent_sys::cgroup::Groups;
use config_kube::k8s_openapi::api::core::v1::{Node, Pod};
use config_kube::quantity::Amount;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// How old the Node may be by which a pod is taken.
const NODE_AGE: Duration = Duration::from_secs(10);
/// How long the master may take to give it.
const NODE_PATIENCE: Duration = Duration::from_secs(5);

/// What the tasks share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) api: Arc<dyn Api>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) sandboxes: Arc<Sandboxes>,
    /// Network policies, and for which pods they are in force.
    pub(crate) policies: Arc<Keeper>,
    pub(crate) events: Recorder,
    /// Which conditions of pressure hold.
    pub(crate) pressure: Mutex<Pressure>,
    /// Since when images are here.
    pub(crate) images: Images,
    /// Turns to pull an image.
    pub(crate) pulls: Semaphore,
    /// Turns to start a container.
    pub(crate) turns: Semaphore,
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
    /// The machine ends.
    pub(crate) ends: watch::Sender<bool>,
    /// The CPU by which pods of the burstable class share the processor with others.
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

    /// Takes the pod as it says now if it fits beside those that the node has taken; why it doesn't, if it doesn't. One pod is
    /// decided upon at a time, so that two never take the same room.
    pub(crate) fn admit(&self, pod: &Arc<Pod>, taken: &Taken) -> Option<Refusal> {
        let handles = self.handles();
        let refusal = misfit(pod, &others(&handles, pod), &self.allocatable());
        if refusal.is_none() {
            taken.set(pod.clone());
        }
        refusal
    }

    /// Why the pod may not run on this node, by labels, taints and devices that are ten seconds old at most, or new where they
    /// speak against the pod. A master that does not give them has other ways to end a pod.
    pub(crate) async fn misplaced(&self, pod: &Pod) -> Option<Refusal> {
        let asked = async {
            let against = |node: &Node| {
                let lacks = || agent_pods::missing(pod, &others(&self.handles(), pod), node);
                misplaced(pod, node).or_else(lacks)
            };
            let node = self.own_node(NODE_AGE).await?;
            against(&node)?;
            let node = self.own_node(Duration::ZERO).await?;
            against(&node)
        };
        timeout(NODE_PATIENCE, asked).await.ok()?
    }

    /// The Node, read anew where the last one is older than this.
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

    /// Takes a pod that the node has taken already with other resources, after those that wait for such and are before it in turn;
    /// why that waits, if it does.
    pub(crate) fn resize(&self, pod: &Arc<Pod>, taken: &Taken) -> Option<Pending> {
        let handles = self.handles();
        let uid = pod.metadata.uid.as_deref();
        let others = handles
            .iter()
            .filter(|(other, _)| Some(other.as_str()) != uid)
            .filter_map(|(_, handle)| Some((handle.tenant()?, &handle.news)));
        let (others, news): (Vec<_>, Vec<_>) = others.unzip();
        let (own, has) = (taken.waiting(pod), taken.pod()?);
        let (lack, served) = misfit_in_turn((&has, &own), &others, &self.allocatable());
        for one in served {
            news[one].notify_one();
        }
        let Some(lack) = lack else {
            taken.set(pod.clone());
            return None;
        };
        taken.wait(Some(own));
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

    /// Gives the control group of a pod its part of the processor, among those of the other pods as they are now, and its limits.
    ///
    /// # Errors
    /// The kernel refuses one.
    pub(crate) async fn limit(
        self: &Arc<Self>,
        group: String,
        limits: Resources,
    ) -> io::Result<()> {
        self.weigh().await?;
        let set = move || group::limit(&Groups::mounted(), &group, limits);
        let set = tokio::task::spawn_blocking(set).await;
        set.map_err(io::Error::other).flatten()
    }

    /// Gives the classes of pods their parts of the processor, as the pods are now.
    ///
    /// # Errors
    /// The kernel refuses one.
    pub(crate) async fn weigh(self: &Arc<Self>) -> io::Result<()> {
        let shared = self.clone();
        let weighed = tokio::task::spawn_blocking(move || {
            // Counted and written by one at a time, so that the last that is written is as the pods are.
            let mut known = shared
                .burstable
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let pods: Vec<_> = shared.handles().values().filter_map(Handle::room).collect();
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

    /// A pod by namespace and name; the newest where one of the same name still ends.
    pub(crate) fn pod_named(&self, namespace: &str, name: &str) -> Option<PodRef> {
        let handles = self.handles();
        let named = handles
            .values()
            .filter(|handle| handle.pod.namespace == namespace && handle.pod.name == name);
        named
            .max_by_key(|handle| handle.latest().is_some())
            .map(|handle| handle.pod.clone())
    }
}

/// The pods that take room of the node beside this one.
fn others(handles: &HashMap<String, Handle>, pod: &Pod) -> Vec<Arc<Pod>> {
    let uid = pod.metadata.uid.as_deref();
    handles
        .iter()
        .filter(|(other, _)| Some(other.as_str()) != uid)
        .filter_map(|(_, handle)| handle.room())
        .collect()
}
