//! The handle of one pod's task.

use crate::wanted::Wanted;
use agent_runtime::PodRef;
use config_kube::k8s_openapi::api::core::v1::Pod;
use std::sync::{Arc, OnceLock};
use tokio::sync::{Notify, watch};

/// The handle of one pod's task.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) pod: PodRef,
    pub(crate) wanted: watch::Sender<Wanted>,
    pub(crate) news: Arc<Notify>,
    /// Why the node under pressure has chosen it, if it has.
    pub(crate) chosen: Arc<OnceLock<String>>,
}

impl Handle {
    /// Asks the pod's task to evict it.
    pub(crate) fn evict(&self, message: String) {
        // Once chosen stays chosen: the first reason is the one that is told.
        if self.chosen.set(message).is_ok() {
            self.news.notify_one();
        }
    }

    /// Whether the pod is over: it takes no room any more.
    pub(crate) fn is_over(&self) -> bool {
        let phase = self
            .latest()
            .and_then(|pod| pod.status.as_ref()?.phase.clone());
        matches!(phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    /// The last version of the pod, if the master still has it.
    pub(crate) fn latest(&self) -> Option<Arc<Pod>> {
        match &*self.wanted.borrow() {
            Wanted::Pod(pod) => Some(pod.clone()),
            Wanted::Gone(_) => None,
        }
    }
}
