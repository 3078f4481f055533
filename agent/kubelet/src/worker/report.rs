//! Reports a pod's status to the master.

use super::Worker;
use crate::cleanup;
use crate::names::pod_path;
use crate::shared::Shared;
use agent_api::{ApiError, STRATEGIC_MERGE, send};
use agent_pods::{PodFacts, base, change, differs, later, status};
use agent_resources::TimedWork;
use config_kube::k8s_openapi::api::core::v1::{Pod, PodStatus};
use jiff::Timestamp;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::error::Elapsed;

/// How long a write may take to come back by the watch. If the master's object still differs after
/// that, another writer is assumed. Also the least time between two writes of the same status.
pub(super) const ECHO: Duration = Duration::from_secs(10);

impl Worker {
    /// When the same status is to be written again, as the object at which the master shows the pod
    /// says something else.
    pub(super) fn rewrite_at(&self, pod: &Pod, now: Timestamp) -> Option<Timestamp> {
        let written = self.written.as_ref().filter(|_| self.is_reported)?;
        let shown_as = self.shown_as.as_deref()?;
        let age = self.reported_at?.elapsed();
        let of_mirror = self.shared.mirrors.differs(shown_as, written);
        of_mirror
            .unwrap_or_else(|| differs(pod.status.as_ref(), written))
            .then(|| later(now, ECHO.saturating_sub(age)))
    }

    /// Writes the status where it differs from what was written last; returns what is written now.
    /// The status is the one at the call; who waits for the answer may do something else meanwhile.
    /// A conflict is an error like others: the same status is sent again, or the watch tells that
    /// the pod went and another has its name.
    pub(super) fn report(
        &self,
        pod: &Arc<Pod>,
        facts: PodFacts<'_>,
    ) -> impl Future<Output = Result<Option<PodStatus>, ApiError>> + Send + use<> {
        let messages = |id: &str| cleanup::termination_message(&self.shared.config, facts, id);
        let old = base(pod, self.written.as_ref());
        let status = status(
            facts,
            &old,
            self.refused.as_ref(),
            &self.addresses(pod),
            &messages,
        );
        self.found.set(&status);
        let is_due = |at| at <= facts.now;
        let is_known = self.is_reported
            && self.written.as_ref() == Some(&status)
            && !self.rewrite_at(pod, facts.now).is_some_and(is_due);
        let uid = self.shown_as.clone();
        let (shared, pod, path) = (self.shared.clone(), pod.clone(), pod_path(&self.pod));
        let begun = Instant::now();
        async move {
            if is_known {
                return Ok(None);
            }
            // Without a mirror no object shows a static pod's status; it is remembered until there
            // is one.
            let Some(uid) = uid else {
                return Ok(Some(status));
            };
            let change = change(&status, &old).map_err(ApiError::Encode)?;
            let change = json!({"metadata": {"uid": uid}, "status": change});
            let path = format!("{path}/status");
            let api = &*shared.api;
            match send(api, http::Method::PATCH, path, STRATEGIC_MERGE, &change).await {
                Ok(()) => shared
                    .figures
                    .done()
                    .took(TimedWork::Status, begun.elapsed()),
                // Gone: the watch says so soon, and ending must not wait for it.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
            if pod.metadata.deletion_timestamp.is_none() {
                write_back_off_events(&shared, &pod, &status);
            }
            Ok(Some(status))
        }
    }

    /// Looks up the object at which the API shows the pod. Another object (the mirror of a static
    /// pod was made anew) does not have the status yet.
    pub(super) fn follow_shown_object(&mut self, pod: &Pod) {
        let is_static = self.shared.config.is_static(&self.pod.uid);
        let shown_as = self.shared.mirrors.shown_as(pod, is_static);
        if shown_as != self.shown_as {
            self.shown_as = shown_as;
            self.is_reported = false;
        }
    }

    /// Takes note of a status that was written, or logs why it was not; returns whether the API has
    /// it. After a timeout it may have it or not: the same status is sent again.
    pub(super) fn note_report(
        &mut self,
        pod: &Pod,
        report: Result<Result<Option<PodStatus>, ApiError>, Elapsed>,
    ) -> bool {
        match report {
            Ok(Ok(status)) => {
                self.count_start(pod, status.as_ref());
                if status.is_some() {
                    self.reported_at = Some(Instant::now());
                }
                self.written = status.or(self.written.take());
                self.is_reported = true;
                true
            }
            Ok(Err(error)) => {
                self.log_failed_write(&error);
                false
            }
            Err(_late) => false,
        }
    }

    /// Counts how long the pod took to run, the first time that its status says so; one that ran
    /// before this kubelet did is not counted.
    pub(super) fn count_start(&mut self, pod: &Pod, reported: Option<&PodStatus>) {
        let phase = |status: &PodStatus| status.phase.clone();
        let before = self.written.as_ref().or(pod.status.as_ref());
        let before = before.and_then(phase);
        if before.is_some_and(|before| before != "Pending") {
            self.seen_at = None;
        }
        if reported.and_then(phase).as_deref() == Some("Running")
            && let Some(seen) = self.seen_at.take()
        {
            self.shared.figures.done().pod_runs(seen.elapsed());
        }
    }

    /// Logs why the API does not have the status: a warning where it rejected the status, but none
    /// for each pod while it is unreachable.
    fn log_failed_write(&self, error: &ApiError) {
        let is_rejected = matches!(
            error,
            ApiError::Status {
                code: 400..=499,
                ..
            }
        ) && !error.is_conflict();
        let (pod, error) = (&self.pod.name, error.chain());
        if is_rejected {
            tracing::warn!(pod, error, "the API rejected the pod's status");
        } else {
            tracing::debug!(pod, error, "cannot update the pod's status; trying again");
        }
    }
}

/// The events of containers that begin to wait between two attempts.
fn write_back_off_events(shared: &Shared, pod: &Pod, status: &PodStatus) {
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    for event in agent_pods::waits(status, pod_name) {
        let events = shared.events.of(pod, event.container);
        if event.warning {
            events.warning(event.reason, event.message);
        } else {
            events.normal(event.reason, event.message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::tests::Holder;
    use agent_runtime::ContainerState;
    use config_static_pods::{Mirror, mirror_of};

    #[tokio::test]
    async fn a_status_that_somebody_else_wrote_over_is_written_again() {
        let started_at = Timestamp::now();
        let runs = ContainerState::Running { started_at };
        let mut holder = Box::pin(Holder::new("Always", runs)).await;
        // Not at once: what the watch shows is older than what was written.
        holder.step().await;
        assert!(holder.step().await <= ECHO);
        assert_eq!(holder.master.statuses.lock().unwrap().len(), 1);
        let mut status = holder.worker.written.clone();
        for (reason, writes) in [(None, 1), (Some("NodeNotReady".to_owned()), 2)] {
            let conditions = status.as_mut().unwrap().conditions.as_mut().unwrap();
            let ready = conditions.iter_mut().find(|one| one.type_ == "Ready");
            ready.unwrap().reason = reason;
            Arc::make_mut(&mut holder.pod).status.clone_from(&status);
            holder.worker.reported_at = Instant::now().checked_sub(ECHO);
            for _ in 0..2 {
                holder.step().await;
                assert_eq!(holder.master.statuses.lock().unwrap().len(), writes);
            }
        }
    }

    /// The controller that makes the pods of a silent node not ready writes to the mirror.
    #[tokio::test]
    async fn a_status_that_somebody_else_wrote_over_at_a_mirror_is_written_again() {
        let manifest = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p"},
            "spec": {"hostNetwork": true, "containers": [{"name": "a", "image": "i"}]},
        });
        let own = config_static_pods::read(&manifest.to_string(), "node").unwrap();
        let started_at = Timestamp::now();
        let runs = ContainerState::Running { started_at };
        let mut holder = Box::pin(Holder::of(own.clone(), vec![own.clone()], runs)).await;
        let mirrors = holder.shared.clone();
        let show = |status: PodStatus| {
            let mut mirror = mirror_of(&own, "node", "n");
            mirror.metadata.uid = Some("mirror".to_owned());
            mirror.status = Some(status);
            mirrors.mirrors.seen(Mirror::read(&mirror).unwrap());
        };
        show(PodStatus::default());
        holder.step().await;
        assert!(holder.step().await <= ECHO);
        assert_eq!(holder.master.statuses.lock().unwrap().len(), 1);
        let mut status = holder.worker.written.clone().unwrap();
        for (reason, writes) in [(None, 1), (Some("NodeNotReady".to_owned()), 2)] {
            let conditions = status.conditions.as_mut().unwrap();
            let ready = conditions.iter_mut().find(|one| one.type_ == "Ready");
            ready.unwrap().reason = reason;
            show(status.clone());
            holder.worker.reported_at = Instant::now().checked_sub(ECHO);
            for _ in 0..2 {
                holder.step().await;
                assert_eq!(holder.master.statuses.lock().unwrap().len(), writes);
            }
        }
    }
}
