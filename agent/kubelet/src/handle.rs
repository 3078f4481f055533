//! The handle of one pod's task.

use crate::desired::DesiredPod;
use agent_pods::{AllocatedPod, Eviction, Waiting, as_given};
use agent_runtime::PodRef;
use config_kube::k8s_openapi::api::core::v1::{Pod, PodStatus};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;
use tokio::sync::{Notify, watch};
use tokio::time;

/// The state that a pod's handle and its task share. Clones share it, too.
#[derive(Debug, Clone, Default)]
pub(crate) struct TaskState {
    /// Wakes the task.
    pub(crate) news: Arc<Notify>,
    pub(crate) chosen: Chosen,
    pub(crate) allocation: Allocation,
    pub(crate) found: FoundStatus,
    pub(crate) released: Released,
}

/// Owned by the pod watch; the task has the other ends.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) pod: PodRef,
    pub(crate) wanted: watch::Sender<DesiredPod>,
    pub(crate) news: Arc<Notify>,
    pub(crate) chosen: Chosen,
    pub(crate) allocation: Allocation,
    pub(crate) found: FoundStatus,
    pub(crate) released: Released,
}

/// The pod's eviction, once it has begun. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chosen(Arc<OnceLock<BegunEviction>>);

#[derive(Debug)]
struct BegunEviction {
    eviction: Eviction,
    at: time::Instant,
}

impl Chosen {
    /// Begins an eviction; false if one has begun already. The first one is kept, and its reason is
    /// reported.
    pub(crate) fn set(&self, eviction: Eviction) -> bool {
        let at = time::Instant::now();
        self.0.set(BegunEviction { eviction, at }).is_ok()
    }

    pub(crate) fn eviction(&self) -> Option<&Eviction> {
        Some(&self.0.get()?.eviction)
    }
}

/// A pod whose eviction has begun.
#[derive(Debug)]
pub(crate) struct Leaving {
    /// When it began, or when this agent found it recorded.
    pub(crate) at: time::Instant,
    /// Whether the pod has released its resources; closed once the pod is gone.
    pub(crate) released: watch::Receiver<bool>,
}

/// Whether an ended pod has released its resources of the machine. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Released(Arc<watch::Sender<bool>>);

impl Released {
    /// Records that the pod has released its resources.
    pub(crate) fn set(&self) {
        self.0.send_replace(true);
    }

    pub(crate) fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// A receiver of this state. The channel is closed once the pod is gone.
    pub(crate) fn follow(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }
}

/// The status of a pod as its task determined it last, possibly before the master has it: for
/// callers of the kubelet's API. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct FoundStatus(Arc<Mutex<Option<Arc<PodStatus>>>>);

impl FoundStatus {
    /// Records a status.
    pub(crate) fn set(&self, status: &PodStatus) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if found.as_deref() != Some(status) {
            *found = Some(Arc::new(status.clone()));
        }
    }

    fn get(&self) -> Option<Arc<PodStatus>> {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        found.clone()
    }
}

/// The resources with which the node has admitted a pod. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Allocation(Arc<Mutex<AllocationState>>);

#[derive(Debug, Clone, Default)]
enum AllocationState {
    /// The node has not decided yet.
    #[default]
    Undecided,
    /// Admitted: the pod with the resources that it has, and those that it waits for.
    Allocated(AllocatedPod),
    /// It no longer holds resources.
    Released,
}

impl Allocation {
    /// The pod as the node admitted it, if it did.
    pub(crate) fn pod(&self) -> Option<Arc<Pod>> {
        match self.state() {
            AllocationState::Allocated(pod) => Some(pod.has),
            AllocationState::Undecided | AllocationState::Released => None,
        }
    }

    /// Admits the pod with these resources.
    pub(crate) fn set(&self, has: Arc<Pod>) {
        self.put(AllocationState::Allocated(AllocatedPod {
            has,
            waits: None,
        }));
    }

    /// The resources of `pod` for which the pod waits, and since when.
    pub(crate) fn waiting(&self, pod: &Arc<Pod>) -> Waiting {
        let since = match self.state() {
            AllocationState::Allocated(pod) => pod.waits.map(|waits| waits.since),
            AllocationState::Undecided | AllocationState::Released => None,
        };
        Waiting {
            pod: pod.clone(),
            since: since.unwrap_or_else(Instant::now),
        }
    }

    /// Records the resources that the pod waits for, or that it waits for none; it keeps those that
    /// it has.
    pub(crate) fn wait(&self, waits: Option<Waiting>) {
        if let Some(has) = self.pod() {
            self.put(AllocationState::Allocated(AllocatedPod { has, waits }));
        }
    }

    /// The pod no longer holds resources: another pod may get them before the master has deleted
    /// this one.
    pub(crate) fn release(&self) {
        self.put(AllocationState::Released);
    }

    fn state(&self) -> AllocationState {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.clone()
    }

    fn put(&self, state: AllocationState) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

impl Handle {
    /// Asks the pod's task to evict it.
    pub(crate) fn evict(&self, eviction: Eviction) {
        if self.chosen.set(eviction) {
            self.news.notify_one();
        }
    }

    /// Whether its eviction has begun.
    pub(crate) fn is_leaving(&self) -> bool {
        self.chosen.eviction().is_some()
    }

    /// The pod, if its eviction has begun and it has not released its resources yet. Node shutdown
    /// is no such eviction: its pods release nothing.
    pub(crate) fn leaving(&self) -> Option<Leaving> {
        let begun = self.chosen.0.get()?;
        let leaves = begun.eviction.reason != Eviction::SHUTDOWN && !self.released.is_set();
        leaves.then(|| Leaving {
            at: begun.at,
            released: self.released.follow(),
        })
    }

    /// Whether the pod has ended, by its phase: it no longer holds resources.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase().as_deref(), Some("Succeeded" | "Failed"))
    }

    /// The pod with the resources that the node allocated to it, unless it has ended. A pod that an
    /// earlier agent admitted, and whose task has not run a step yet, is recognized by its phase.
    pub(crate) fn allocated_pod(&self) -> Option<AllocatedPod> {
        if self.is_over() {
            return None;
        }
        match self.allocation.state() {
            AllocationState::Allocated(pod) => Some(pod),
            AllocationState::Released => None,
            AllocationState::Undecided => {
                let runs = self.phase().as_deref() == Some("Running");
                let pod = self.latest().filter(|_| runs)?;
                let has = Arc::new(as_given(&pod, &[]));
                Some(AllocatedPod { has, waits: None })
            }
        }
    }

    /// The pod with the resources that the node allocated to it, if any.
    pub(crate) fn allocated(&self) -> Option<Arc<Pod>> {
        Some(self.allocated_pod()?.has)
    }

    /// The pod as a candidate for eviction, unless it is ending: as it is now, but with the
    /// resources that the node allocated to it. Those of a pending resize do not protect it.
    pub(crate) fn candidate(&self) -> Option<Arc<Pod>> {
        let pod = self.latest()?;
        let ends = pod.metadata.deletion_timestamp.is_some() || self.is_over();
        if ends || self.is_leaving() {
            return None;
        }
        let Some(has) = self.allocated().filter(|has| has.spec != pod.spec) else {
            return Some(pod);
        };
        // Not its status, too: that of a new pod has no start time, and figures show it.
        Some(Arc::new(Pod {
            spec: has.spec.clone(),
            ..Pod::clone(&pod)
        }))
    }

    fn phase(&self) -> Option<String> {
        self.latest()?.status.as_ref()?.phase.clone()
    }

    /// The pod's status: as its task determined it last, or else as the master has it.
    pub(crate) fn status(&self) -> Option<PodStatus> {
        match self.found.get() {
            Some(found) => Some(PodStatus::clone(&found)),
            None => self.latest()?.status.clone(),
        }
    }

    /// The last version of the pod, if the master still has it.
    pub(crate) fn latest(&self) -> Option<Arc<Pod>> {
        match &*self.wanted.borrow() {
            DesiredPod::Pod(pod) => Some(pod.clone()),
            DesiredPod::Gone(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(memory: &str) -> Arc<Pod> {
        let resources = json!({"requests": {"memory": memory}});
        let spec = json!({"containers": [{"name": "c", "resources": resources}]});
        let pod = json!({"metadata": {"name": "p"}, "spec": spec});
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn a_pending_resize_protects_no_pod_from_eviction() {
        let TaskState {
            news,
            chosen,
            allocation,
            found,
            released,
        } = TaskState::default();
        let (has, mut asks) = (pod("1Mi"), pod("1Ti"));
        let status = json!({"phase": "Running", "startTime": "2026-01-01T00:00:00Z"});
        let status: Option<PodStatus> = serde_json::from_value(status).unwrap();
        Arc::make_mut(&mut asks).status.clone_from(&status);
        allocation.set(has.clone());
        allocation.wait(Some(allocation.waiting(&asks)));
        let handle = Handle {
            pod: PodRef {
                namespace: "n".to_owned(),
                name: "p".to_owned(),
                uid: "u".to_owned(),
            },
            wanted: watch::Sender::new(DesiredPod::Pod(asks)),
            news,
            chosen,
            allocation,
            found,
            released,
        };
        let candidate = handle.candidate().unwrap();
        assert_eq!((&candidate.spec, &candidate.status), (&has.spec, &status));
    }
}
