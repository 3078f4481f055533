//! The kubelet as a whole: what its tasks share, and the tasks themselves.

use crate::api::Api;
use crate::cluster;
use crate::config::Config;
use crate::events::{self, Queue, Recorder};
use crate::node;
use crate::pods::{Handle, Pods};
use crate::ranges;
use agent_claims::Folders;
use agent_cluster::Sandboxes;
use agent_cluster::policy::Keeper;
use agent_pods::Refusal;
use agent_resources::Figures;
use agent_resources::machine::Facts;
use agent_runtime::{PodRef, Runtime};
use config_kube::k8s_openapi::api::core::v1::Pod;
use config_kube::quantity::Amount;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// Containers that are made and started at the same time: more only wait for the kernel's locks.
const STARTS: usize = 8;

/// What the tasks share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) api: Arc<dyn Api>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) sandboxes: Arc<Sandboxes>,
    /// Network policies, and for which pods they are in force.
    pub(crate) policies: Arc<Keeper>,
    pub(crate) events: Recorder,
    /// Turns to start a container.
    pub(crate) turns: Semaphore,
    /// The machine's memory in bytes.
    pub(crate) memory: u64,
    pub(crate) facts: Facts,
    /// The folders of persistent volumes.
    pub(crate) folders: Folders,
    /// What this node and its pods use.
    pub(crate) figures: Figures,
    /// Every pod's task, by uid.
    pub(crate) pods: Mutex<HashMap<String, Handle>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Refuses the pod if the node has as many as it may already.
    pub(crate) fn too_many(&self, pod: &PodRef) -> Option<Refusal> {
        let handles = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
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
        node::allocatable(&self.config, &self.facts)
    }

    /// The pods that are wanted here, as last heard.
    pub(crate) fn all_pods(&self) -> Vec<Arc<Pod>> {
        let handles = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        handles.values().filter_map(Handle::latest).collect()
    }

    /// A pod by namespace and name; the newest where one of the same name still ends.
    pub(crate) fn pod_named(&self, namespace: &str, name: &str) -> Option<PodRef> {
        let handles = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let named = handles
            .values()
            .filter(|handle| handle.pod.namespace == namespace && handle.pod.name == name);
        named
            .max_by_key(|handle| handle.latest().is_some())
            .map(|handle| handle.pod.clone())
    }
}

/// The kubelet: made first, then run; [`Kubelet::server`] answers the master meanwhile.
#[derive(Debug)]
pub struct Kubelet {
    shared: Arc<Shared>,
    queue: Queue,
}

impl Kubelet {
    /// A kubelet for this machine.
    pub fn new(
        config: Config,
        api: Arc<dyn Api>,
        runtime: Arc<dyn Runtime>,
        sandboxes: Arc<Sandboxes>,
    ) -> Self {
        let (events, queue) = Recorder::new();
        let facts = Facts::of_machine(&config.data);
        let shared = Shared {
            memory: facts.memory,
            folders: Folders::below(&config.data),
            facts,
            figures: Figures::of_machine(&config.node_name),
            config,
            api,
            runtime,
            sandboxes,
            policies: Arc::default(),
            events,
            turns: Semaphore::new(STARTS),
            pods: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
            queue,
        }
    }

    /// What answers on the kubelet's port; see [`crate::serve`].
    pub fn server(&self) -> crate::Server {
        crate::Server::new(self.shared.clone())
    }

    /// What ends the containers before the machine ends; see [`crate::Drain`].
    pub fn drain(&self) -> crate::Drain {
        crate::Drain::new(self.shared.clone())
    }

    /// Keeps pods, node status and lease until `shutdown` is true or its sender is gone. Containers run on.
    pub async fn run(self, mut shutdown: watch::Receiver<bool>) {
        let Self { shared, queue } = self;
        crate::stage::begin(&shared.config, shared.memory);
        let mut tasks = JoinSet::new();
        tasks.spawn(Pods::new(shared.clone()).run());
        tasks.spawn(node::keep_status(shared.clone()));
        tasks.spawn(node::keep_lease(shared.clone()));
        tasks.spawn(ranges::keep(shared.clone()));
        if let Some(view) = &shared.config.cluster {
            tasks.spawn(cluster::follow(shared.clone(), view.clone()));
            tasks.spawn(shared.policies.clone().run(shared.sandboxes.clone()));
            if shared.config.pod_routes {
                tasks.spawn(agent_cluster::keep_routes(
                    shared.sandboxes.clone(),
                    view.clone(),
                    shared.config.node_name.clone(),
                ));
            }
        }
        tasks.spawn(crate::garbage::collect(shared.clone()));
        tasks.spawn(events::write(
            queue,
            shared.api.clone(),
            shared.config.node_name.clone(),
        ));
        tokio::select! {
            // The value stays in the channel, and the tasks in the set, whichever arm is dropped.
            _ = shutdown.wait_for(|ended| *ended) => {}
            ended = tasks.join_next() => tracing::error!(?ended, "a task of the kubelet ended by itself"),
        }
        tasks.shutdown().await;
    }
}
