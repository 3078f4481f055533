//! What the kubelet's tasks share.

use crate::capacity;
use crate::config::Config;
use crate::garbage::Images;
use crate::handle::Handle;
use agent_api::Api;
use agent_api::events::Recorder;
use agent_claims::Folders;
use agent_cluster::Sandboxes;
use agent_cluster::policy::Keeper;
use agent_pods::Refusal;
use agent_pressure::Pressure;
use agent_resources::Figures;
use agent_resources::machine::Facts;
use agent_runtime::{PodRef, Runtime};
use config_kube::k8s_openapi::api::core::v1::Pod;
use config_kube::quantity::Amount;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;

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
    /// Turns to start a container.
    pub(crate) turns: Semaphore,
    /// The machine's memory in bytes.
    pub(crate) memory: u64,
    pub(crate) facts: Facts,
    /// The folders of persistent volumes.
    pub(crate) folders: Arc<Folders>,
    /// What this node and its pods use.
    pub(crate) figures: Arc<Figures>,
    /// Every pod's task, by uid.
    pub(crate) pods: Mutex<HashMap<String, Handle>>,
    /// The master has listed all pods once.
    pub(crate) listed: AtomicBool,
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

    /// Refuses the pod if the node has as many as it may already.
    pub(crate) fn too_many(&self, pod: &PodRef) -> Option<Refusal> {
        let handles = self.handles();
        let others = handles
            .iter()
            .filter(|(uid, handle)| **uid != pod.uid && !handle.is_over())
            .count();
        let limit = usize::try_from(self.config.max_pods).unwrap_or(usize::MAX);
        (others >= limit).then(|| Refusal {
            reason: "OutOfpods",
            message: format!("Node didn't have enough resource: pods, requested: 1, used: {others}, capacity: {limit}"),
        })
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
