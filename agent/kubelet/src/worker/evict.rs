//! The pod's eviction: it takes more of the disk than it may, or the node is under pressure and has chosen it.

use super::Worker;
use crate::storage::{self, Layer};
use agent_pods::{end_of, later};
use agent_runtime::Container as Seen;
use config_kube::k8s_openapi::api::core::v1::Pod;
use jiff::Timestamp;
use std::sync::Arc;

impl Worker {
    /// Evicts the pod where it was chosen for that, or where a look at the disk, which it has now and then, says so.
    pub(super) async fn evict(&mut self, pod: &Arc<Pod>, seen: &[Seen], now: Timestamp) {
        let stays = self.notes.evicted.is_none() && end_of(pod, now).is_none();
        self.limited = stays && storage::is_limited(pod);
        let why = match self.chosen.get().filter(|_| stays) {
            Some(chosen) => Some(chosen.clone()),
            None => self.excess(pod, seen, now).await,
        };
        if let Some(message) = why {
            self.shared.events.warning(pod, "Evicted", message.clone());
            self.notes.evicted = Some(message);
        }
    }

    /// Measures the disk use of a pod with limits, if that is due.
    async fn excess(&mut self, pod: &Arc<Pod>, seen: &[Seen], now: Timestamp) -> Option<String> {
        if !self.limited || later(self.measured, storage::PERIOD) > now {
            return None;
        }
        self.measured = now;
        let mut layers = Vec::new();
        for seen in seen.iter().filter(|_| storage::counts_layers(pod)) {
            layers.extend(Layer::of(&*self.shared.runtime, seen).await);
        }
        let (shared, pod, reference) = (self.shared.clone(), pod.clone(), self.pod.clone());
        let measured = tokio::task::spawn_blocking(move || {
            storage::excess(&shared.config, &pod, &reference, &layers)
        });
        measured.await.ok().flatten()
    }
}
