//! Ends a pod's containers: preStop hook, signals, removal. Releases the pod's resources of the
//! machine: most of them when it has ended, the rest when it is deleted.

use super::evict::Record;
use super::volumes::{SetUp, after_failures};
use super::{Next, RETRY, Worker};
use crate::cleanup::{self, Remains};
use crate::names::pod_path;
use agent_api::send;
use agent_pods::{is_replaced, later};
use agent_runtime::{Container as Seen, ContainerState, Error};
use config_errors::chain;
use config_kube::k8s_openapi::api::core::v1::Pod;
use jiff::Timestamp;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long volumes, and the layers of containers, may take to be removed in one step of the pod's
/// task. The next step continues where this one stopped.
const RELEASE: Duration = Duration::from_secs(30);

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

    /// Remembers that a container is stopped because its image has changed.
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

    /// Writes the event that a container is stopped, and why.
    fn write_killing_event(&self, pod: Option<&Arc<Pod>>, seen: &[Seen], id: &str) {
        let (Some(pod), Some(seen)) = (pod, seen.iter().find(|seen| seen.id == id)) else {
            return;
        };
        let text = agent_pods::killing(pod, &self.notes, seen);
        let events = self.shared.events.of(pod, &seen.key.container);
        events.normal("Killing", text);
    }

    /// Removes an attempt with its log, which the API no longer offers.
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

    /// Removes the sandbox of a pod that has ended: others may get its addresses. Its status still
    /// shows them.
    pub(super) async fn end_sandbox(&mut self, seen: &[Seen]) -> Result<(), Error> {
        if self.is_over() && self.has_stopped(seen) && self.sandbox.exists() {
            self.sandbox.remove(&self.shared).await?;
        }
        Ok(())
    }

    /// Releases the resources of a pod that has ended for good: drivers' mounts, the content of its
    /// volumes, and what its containers wrote. Logs, the ends of termination messages and the
    /// containers' records stay until the pod is deleted. Each part is tried even if another fails;
    /// false if something is left, to be tried again after [`Self::release_pause`].
    pub(super) async fn release(&mut self, seen: &[Seen]) -> bool {
        if self.has_stopped(seen) {
            // Before anything is removed; also after that, until it is on the disk.
            self.record_eviction(Record::Durable).await;
        }
        if self.released.is_set() || !self.is_ended_for_good(seen) {
            return true;
        }
        // Before anything is removed: nothing may be made or renewed in a folder that is removed.
        self.set_up = SetUp::Missing;
        self.supplies.close().await;
        let layers = timeout(RELEASE, self.empty_layers(seen));
        let (unmounted, cleared, emptied) =
            tokio::join!(self.unmount_volumes(None), self.clear_volumes(), layers);
        // Layers that are not reached in time are left to the next call.
        let released = unmounted && cleared && emptied.unwrap_or(false);
        if released {
            self.released.set();
            // A disk that was full has room for it now.
            self.record_eviction(Record::Durable).await;
        } else {
            self.release_failures = self.release_failures.saturating_add(1);
        }
        released
    }

    /// How long a release that failed waits.
    pub(super) fn release_pause(&self) -> Duration {
        after_failures(self.release_failures)
    }

    /// Whether no container of the pod runs or will ever run again: the master knows its final
    /// phase, or its eviction is recorded for the next agent. A pod that ended with its machine
    /// runs again after the boot if the master did not get its phase; a static pod runs again in
    /// any case.
    fn is_ended_for_good(&self, seen: &[Seen]) -> bool {
        let evicted = self.record != Record::Missing;
        let is_static = self.shared.config.is_static(&self.pod.uid);
        (self.is_over() || evicted) && !is_static && self.has_stopped(seen)
    }

    /// Whether no container runs, and none is being started.
    fn has_stopped(&self, seen: &[Seen]) -> bool {
        let ended = |seen: &Seen| matches!(seen.state, ContainerState::Exited { .. });
        self.notes.starting.is_empty() && seen.iter().all(ended)
    }

    /// Removes the content of the pod's volumes; false if some of it is left.
    async fn clear_volumes(&self) -> bool {
        let clear = cleanup::clear_in_turns(&self.shared, &self.pod, Remains::Volumes);
        let error = match timeout(RELEASE, Box::pin(clear)).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => chain(&error),
            Err(_late) => format!("not done after {} s", RELEASE.as_secs()),
        };
        tracing::warn!(
            pod = self.pod.name,
            error,
            "cannot remove the volumes of a pod that has ended; trying again"
        );
        false
    }

    /// Removes what ended containers wrote; false if some of it is left.
    async fn empty_layers(&self, seen: &[Seen]) -> bool {
        let mut emptied = true;
        for container in seen {
            if let Err(error) = self.shared.runtime.empty(&container.id).await {
                tracing::warn!(
                    pod = self.pod.name,
                    container = container.key.container,
                    error = %error.chain(),
                    "cannot remove what a container wrote; trying again"
                );
                emptied = false;
            }
        }
        emptied
    }

    /// Removes what is left of the pod on the node, then its object from the API.
    pub(super) async fn finish(&mut self, pod: Option<&Arc<Pod>>, seen: &[Seen]) -> Next {
        for container in seen {
            if let Err(error) = self.shared.runtime.remove(&container.id).await {
                return self.unreachable(&error);
            }
        }
        // Before anything is removed: an aborted task may still be making volumes, or writing a
        // record.
        self.supplies.close().await;
        self.writing.shutdown().await;
        if let Err(error) = self.sandbox.remove(&self.shared).await {
            return self.unreachable(&error);
        }
        if !self.unmount_volumes(pod).await {
            return Next::Wait(Some(later(Timestamp::now(), RETRY)));
        }
        let cgroup = pod.map(|pod| agent_resources::qos::cgroup(pod, &self.pod.uid));
        let all = Remains::All(cgroup);
        let cleared = Box::pin(cleanup::clear_in_turns(&self.shared, &self.pod, all));
        if let Err(error) = cleared.await {
            tracing::warn!(
                pod = self.pod.name,
                error = chain(&error),
                "cannot remove the pod's folders"
            );
        }
        self.allocation.release();
        if let Err(error) = self.shared.weigh().await {
            tracing::debug!(
                error = chain(&error),
                "cannot update the CPU weights of the other pods"
            );
        }
        if pod.is_none() {
            return Next::Done;
        }
        let body = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": self.pod.uid}});
        let path = pod_path(&self.pod);
        match send(
            &*self.shared.api,
            http::Method::DELETE,
            path,
            agent_api::JSON,
            &body,
        )
        .await
        {
            Ok(()) => {}
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => {
                tracing::debug!(
                    pod = self.pod.name,
                    error = error.chain(),
                    "cannot delete the pod from the API"
                );
                return Next::Wait(Some(later(Timestamp::now(), RETRY)));
            }
        }
        // Finalizers may keep the object. The watch reports its deletion, and until then there is
        // nothing to do.
        Next::Done
    }
}
