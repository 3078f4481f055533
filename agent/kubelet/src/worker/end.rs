//! Ends a pod's containers: the hook before the stop, the signals, the removal.

use super::Worker;
use crate::cleanup;
use agent_pods::is_replaced;
use agent_runtime::{Container as Seen, Error};
use config_errors::chain;
use config_kube::k8s_openapi::api::core::v1::Pod;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

impl Worker {
    pub(super) async fn stop(
        &mut self,
        pod: Option<&Arc<Pod>>,
        seen: &[Seen],
        id: String,
    ) -> Result<(), Error> {
        if !self.notes.pre_stop.contains_key(&id) {
            self.write_killing_event(pod, seen, &id);
        }
        self.note_replaced(pod, seen, &id);
        self.shared.runtime.stop(&id).await?;
        self.notes.asked.insert(id, Timestamp::now());
        Ok(())
    }

    pub(super) async fn kill(
        &mut self,
        pod: Option<&Arc<Pod>>,
        seen: &[Seen],
        id: &str,
    ) -> Result<(), Error> {
        self.note_replaced(pod, seen, id);
        self.shared.runtime.kill(id).await
    }

    /// Remembers that a container is being ended for its new image.
    fn note_replaced(&mut self, pod: Option<&Arc<Pod>>, seen: &[Seen], id: &str) {
        let found = seen.iter().find(|seen| seen.id == id);
        if let (Some(pod), Some(seen), None) = (pod, found, self.notes.ending)
            && is_replaced(pod, &self.notes, seen)
        {
            self.notes.replaced.insert(id.to_owned());
        }
    }

    /// Begins the preStop hook.
    pub(super) fn pre_stop(
        &mut self,
        pod: Option<&Arc<Pod>>,
        seen: &[Seen],
        id: &str,
        limit: Duration,
    ) {
        self.write_killing_event(pod, seen, id);
        let found = seen.iter().find(|seen| seen.id == id);
        if let (Some(known), Some(seen)) = (self.known.clone(), found) {
            let host = self.host(&known);
            let name = &seen.key.container;
            self.hooks.begin_pre_stop(&known, name, id, host, limit);
        }
    }

    /// Writes the event that a container is being ended, and why.
    fn write_killing_event(&self, pod: Option<&Arc<Pod>>, seen: &[Seen], id: &str) {
        let (Some(pod), Some(seen)) = (pod, seen.iter().find(|seen| seen.id == id)) else {
            return;
        };
        let text = agent_pods::killing(pod, &self.notes, seen);
        let events = self.shared.events.of(pod, &seen.key.container);
        events.normal("Killing", text);
    }

    /// Removes an attempt with its log: nobody can ask for it any more.
    pub(super) async fn remove(&self, seen: &[Seen], id: &str) -> Result<(), Error> {
        self.shared.runtime.remove(id).await?;
        if let Some(seen) = seen.iter().find(|seen| seen.id == id)
            && let Err(error) = cleanup::clear_log(&self.shared.config, &seen.key)
        {
            tracing::warn!(
                container = id,
                error = chain(&error),
                "cannot delete the log of a removed container"
            );
        }
        Ok(())
    }
}
