//! The handle of one pod's task.

use crate::desired::DesiredPod;
use agent_pods::{Eviction, Tenant, Waiting, as_given};
use agent_runtime::PodRef;
use config_kube::k8s_openapi::api::core::v1::Pod;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;
use tokio::sync::{Notify, watch};

/// The handle of one pod's task.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) pod: PodRef,
    pub(crate) wanted: watch::Sender<DesiredPod>,
    pub(crate) news: Arc<Notify>,
    /// Its eviction, once the node under pressure has chosen it.
    pub(crate) chosen: Arc<OnceLock<Eviction>>,
    pub(crate) taken: Taken,
}

/// The resources with which the node has admitted a pod. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Taken(Arc<Mutex<Place>>);

#[derive(Debug, Clone, Default)]
enum Place {
    /// Nobody has decided yet.
    #[default]
    Unknown,
    /// Admitted: the pod with the resources that it has, and those that it waits for.
    Taken(Tenant),
    /// It takes no room any more.
    Left,
}

impl Taken {
    /// The pod as the node admitted it, if it did.
    pub(crate) fn pod(&self) -> Option<Arc<Pod>> {
        match self.place() {
            Place::Taken(tenant) => Some(tenant.has),
            Place::Unknown | Place::Left => None,
        }
    }

    /// Admits the pod with these resources.
    pub(crate) fn set(&self, has: Arc<Pod>) {
        self.put(Place::Taken(Tenant { has, waits: None }));
    }

    /// How long the pod waits for other resources, which are those of `pod` now.
    pub(crate) fn waiting(&self, pod: &Arc<Pod>) -> Waiting {
        let since = match self.place() {
            Place::Taken(tenant) => tenant.waits.map(|waits| waits.since),
            Place::Unknown | Place::Left => None,
        };
        Waiting {
            pod: pod.clone(),
            since: since.unwrap_or_else(Instant::now),
        }
    }

    /// The pod keeps its resources, and waits for others, or no longer for any.
    pub(crate) fn wait(&self, waits: Option<Waiting>) {
        if let Some(has) = self.pod() {
            self.put(Place::Taken(Tenant { has, waits }));
        }
    }

    /// It takes no room any more: another may have it before the master has told that this one is
    /// gone.
    pub(crate) fn leave(&self) {
        self.put(Place::Left);
    }

    fn place(&self) -> Place {
        let place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        place.clone()
    }

    fn put(&self, place: Place) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }
}

impl Handle {
    /// Asks the pod's task to evict it.
    pub(crate) fn evict(&self, eviction: Eviction) {
        // The first eviction stands: its reason is the one that is reported.
        if self.chosen.set(eviction).is_ok() {
            self.news.notify_one();
        }
    }

    /// Whether its eviction has begun.
    pub(crate) fn is_leaving(&self) -> bool {
        self.chosen.get().is_some()
    }

    /// Whether the pod is over: it takes no room any more.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase().as_deref(), Some("Succeeded" | "Failed"))
    }

    /// The pod as it takes room of the node: the node has taken it, and it is not over. One that an
    /// earlier agent has taken, and whose task has not looked yet, is known by its phase.
    pub(crate) fn tenant(&self) -> Option<Tenant> {
        if self.is_over() {
            return None;
        }
        match self.taken.place() {
            Place::Taken(tenant) => Some(tenant),
            Place::Left => None,
            Place::Unknown => {
                let runs = self.phase().as_deref() == Some("Running");
                let pod = self.latest().filter(|_| runs)?;
                let has = Arc::new(as_given(&pod, &[]));
                Some(Tenant { has, waits: None })
            }
        }
    }

    /// The pod with the resources that it has of the node, if it has some.
    pub(crate) fn room(&self) -> Option<Arc<Pod>> {
        Some(self.tenant()?.has)
    }

    fn phase(&self) -> Option<String> {
        self.latest()?.status.as_ref()?.phase.clone()
    }

    /// The last version of the pod, if the master still has it.
    pub(crate) fn latest(&self) -> Option<Arc<Pod>> {
        match &*self.wanted.borrow() {
            DesiredPod::Pod(pod) => Some(pod.clone()),
            DesiredPod::Gone(_) => None,
        }
    }
}
