//! Graceful node shutdown, as upstream's: the Node becomes not ready, new pods are refused, and
//! pods end in groups by their priority, the lowest first: by default critical ones after all
//! others.
//!
//! The kubelet's own tasks run meanwhile. Each pod's task ends its containers, with their hooks and
//! in their order, and reports that the pod has failed, so that its controller makes another.
//! [`Drain::end_all`] ends what is left after that.

use crate::drain::Drain;
use crate::handle::Handle;
use crate::shared::Shared;
use agent_pods::{Eviction, Refusal, grace};
use agent_pressure::priority;
use agent_runtime::ContainerState;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// Message of the Node's condition Ready.
pub(crate) const NOT_READY: &str = "node is shutting down";
/// Message of a pod's status.
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// Poll interval for pods that still end.
const PAUSE: Duration = Duration::from_millis(100);
/// Extra time for a group: pods that took all of their time are killed, and their statuses written.
const MARGIN: Duration = Duration::from_secs(2);
/// How long to wait for the last statuses, and for drivers to unmount volumes, once no container of
/// the group runs.
const PATIENCE: Duration = Duration::from_secs(5);

impl Shared {
    /// Whether the machine is shutting down.
    pub(crate) fn is_ending(&self) -> bool {
        *self.ends.borrow()
    }

    /// Refuses a new pod if the machine is shutting down.
    pub(crate) fn while_ending(&self) -> Option<Refusal> {
        self.is_ending().then(|| Refusal {
            reason: "NodeShutdown".into(),
            message: "Pod was rejected as the node is shutting down.".to_owned(),
        })
    }

    /// Asks the tasks of a group's pods to end them; returns the pods' UIDs.
    fn end_group(&self, number: usize, time: Duration) -> BTreeSet<String> {
        let handles = self.handles();
        let of_group = |(uid, handle): (&String, &Handle)| {
            let pod = handle.latest().filter(|_| !handle.is_over())?;
            (self.config.shutdown.group_of(priority(&pod)) == number).then(|| {
                handle.evict(Eviction {
                    reason: Eviction::SHUTDOWN,
                    message: MESSAGE.to_owned(),
                    annotations: BTreeMap::new(),
                    grace: grace(&pod).min(time),
                });
                uid.clone()
            })
        };
        handles.iter().filter_map(of_group).collect()
    }

    /// Waits until no container of these pods runs, and then until the master has their last
    /// statuses and drivers have unmounted their volumes, or [`PATIENCE`] is over.
    async fn until_gone(&self, pods: &BTreeSet<String>) {
        let mut quiet: Option<Instant> = None;
        loop {
            let running = match self.runtime.list(None).await {
                Ok(all) => all.iter().any(|one| {
                    matches!(one.state, ContainerState::Running { .. })
                        && pods.contains(&one.key.pod.uid)
                }),
                Err(_unreachable) => true,
            };
            if running {
                quiet = None;
            } else {
                let since = *quiet.get_or_insert_with(Instant::now);
                if self.are_done(pods) || since.elapsed() >= PATIENCE {
                    return;
                }
            }
            sleep(PAUSE).await;
        }
    }

    /// Whether the master knows that these pods have ended, and no driver's volume is mounted for
    /// them.
    fn are_done(&self, pods: &BTreeSet<String>) -> bool {
        let mounted = self.csi.pods().into_iter().any(|uid| pods.contains(&uid));
        let handles = self.handles();
        let mut own = pods.iter().filter_map(|uid| handles.get(uid));
        !mounted && own.all(|handle| handle.is_over() || handle.latest().is_none())
    }
}

impl Drain {
    /// Ends all pods within the time that the machine's configuration gives them, and reports it to
    /// the master. To be called while [`crate::Kubelet::run`] runs; takes at most two seconds
    /// longer than that time.
    pub async fn end_pods(&self) {
        let shared: &Arc<Shared> = self.shared();
        shared.ends.send_replace(true);
        let begun = Instant::now();
        let mut time = Duration::ZERO;
        for (number, group) in shared.config.shutdown.groups().iter().enumerate() {
            // Time that a group does not use is not given to later groups.
            time = begun.elapsed().min(time) + group.time;
            let pods = shared.end_group(number, group.time);
            if pods.is_empty() {
                continue;
            }
            let priority = group.from;
            tracing::info!(pods = pods.len(), priority, "ending pods with the machine");
            // Pods that take longer end together with the next group.
            let left = (time + MARGIN).saturating_sub(begun.elapsed());
            if timeout(left, shared.until_gone(&pods)).await.is_err() {
                tracing::warn!(priority, "pods did not end in their time");
            }
        }
    }
}
