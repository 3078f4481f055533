//! In-place resize: decides whether the node has room for a running pod's new resources, and
//! applies them to its containers.

use super::Worker;
use crate::cleanup;
use agent_pods::{as_running, find, given, has_other_needs, is_resized, later, needs, resize};
use agent_resources::group::greater;
use agent_resources::qos::{self, pod_resources};
use agent_runtime::{Container as Seen, Resources};
use config_kube::k8s_openapi::api::core::v1::{Container, Pod};
use jiff::Timestamp;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Pause before a failed resize is tried again.
const RETRY: Duration = Duration::from_secs(10);

impl Worker {
    /// Decides whether the pod gets the resources in its spec, if they differ from those with which
    /// the node admitted it.
    pub(super) fn decide_resize(&mut self, pod: &Arc<Pod>, seen: &[Seen]) {
        let Some(has) = self.allocation.pod() else {
            return;
        };
        let before = self.notes.pending.take();
        let events = &self.shared.events;
        if !seen.iter().any(|seen| is_resized(pod, seen)) {
            self.notes.unresized.clear();
            if std::mem::take(&mut self.resizing) {
                events.normal(pod, "ResizeCompleted", resize(pod, "completed", None));
            }
        }
        if !has_other_needs(pod, &has) {
            self.allocation.wait(None);
            return;
        }
        self.notes.pending = self.shared.resize(pod, &self.allocation);
        match &self.notes.pending {
            None => {
                self.resizing = true;
                events.normal(pod, "ResizeStarted", resize(pod, "started", None));
            }
            Some(pending) if before.as_ref() != Some(pending) => {
                let reason = match pending.reason {
                    "Infeasible" => "ResizeInfeasible",
                    _ => "ResizeDeferred",
                };
                let text = resize(pod, pending.reason, Some(&pending.message));
                events.warning(pod, reason, text);
            }
            Some(_) => {}
        }
    }

    /// Applies the resources in its pod's present spec to a container; an obstacle becomes a note
    /// that the status shows.
    pub(super) async fn resize_container(
        &mut self,
        pod: Option<&Arc<Pod>>,
        all: &[Seen],
        id: &str,
    ) {
        let seen = all.iter().find(|seen| seen.id == id);
        let (Some(pod), Some(seen)) = (pod, seen) else {
            return;
        };
        let Some((_, container)) = find(pod, &seen.key.container) else {
            return;
        };
        match self.try_resize_container(pod, &container, all, seen).await {
            Ok(()) => drop(self.notes.unresized.remove(id)),
            Err(fault) => {
                let again = later(Timestamp::now(), RETRY);
                self.notes.unresized.insert(id.to_owned(), (fault, again));
            }
        }
    }

    async fn try_resize_container(
        &self,
        pod: &Pod,
        container: &Container,
        all: &[Seen],
        seen: &Seen,
    ) -> Result<(), String> {
        let wanted = Resources {
            pids_limit: Some(self.shared.config.machine.pids.into()),
            ..qos::resources(pod, container)
        };
        let before = Container {
            resources: given(seen),
            ..container.clone()
        };
        let before = qos::resources(&as_running(pod, all), &before).memory_limit;
        let group = format!("{}/{}", qos::cgroup(pod, &self.pod.uid), seen.id);
        let of = format!(" for container {}", container.name);
        fits(&group, before, wanted.memory_limit, &of)?;
        let text = needs(pod, container).ok_or("the text of its resources is too long")?;
        // The pod's control group gets the greater limits before the change, and the new ones
        // after.
        let (own, group) = (
            pod_resources(&as_running(pod, all)),
            qos::cgroup(pod, &self.pod.uid),
        );
        let mut after = all.to_vec();
        let resized = after.iter_mut().filter(|one| one.id == seen.id);
        resized.for_each(|one| one.needs = Some(text.clone()));
        let then = pod_resources(&as_running(pod, &after));
        fits(&group, own.memory_limit, then.memory_limit, "")?;
        let fault = |error: io::Error| format!("limit the pod's control group: {error}");
        let limited = self.shared.limit(group.clone(), greater(own, then));
        limited.await.map_err(fault)?;
        let resized = self.shared.runtime.resize(&seen.id, &wanted, &text);
        resized.await.map_err(|error| error.chain())?;
        self.shared.limit(group, then).await.map_err(fault)
    }
}

/// Refuses a memory limit below what a control group uses: the kernel would kill processes to get
/// below it. `of` names the container, if the group is a container's.
fn fits(group: &str, before: Option<u64>, limit: Option<u64>, of: &str) -> Result<(), String> {
    let Some(limit) = limit.filter(|limit| before.is_none_or(|before| *limit < before)) else {
        return Ok(());
    };
    let used = cleanup::memory_of(group).ok_or("the memory that it uses is not known")?;
    if used < limit {
        return Ok(());
    }
    Err(format!(
        "cannot decrease memory limits{of}: attempting to set pod memory limit ({limit}) below current usage ({used})"
    ))
}
