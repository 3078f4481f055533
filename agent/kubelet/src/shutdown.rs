//! The end of a machine, as the master learns of it (upstream's graceful node shutdown): the Node
//! is not ready, new pods are refused, and pods end in groups by their priority, the lowest first:
//! by default critical ones after all others.
//!
//! This goes on while the kubelet's own tasks do. Each pod's task ends its containers, with their
//! hooks and in their order, and writes that the pod has failed, so that its controller makes
//! another. What is left after that [`Drain::end_all`] ends.

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
/// What a group has beyond its time: pods that took all of it are killed by then, and their
/// statuses written.
const MARGIN: Duration = Duration::from_secs(2);
/// How long the last statuses are waited for, and drivers' volumes, once no container of the group
/// runs.
const PATIENCE: Duration = Duration::from_secs(5);

impl Shared {
    /// Whether the machine ends.
    pub(crate) fn is_ending(&self) -> bool {
        *self.ends.borrow()
    }

    /// Refuses a new pod where the machine ends.
    pub(crate) fn while_ending(&self) -> Option<Refusal> {
        self.is_ending().then(|| Refusal {
            reason: "NodeShutdown".into(),
            message: "Pod was rejected as the node is shutting down.".to_owned(),
        })
    }

    /// Asks the tasks of a group's pods to end them, and names the pods.
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

    /// Waits until nothing of these pods runs, and until the master and drivers know of it or had
    /// time to.
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

    /// Whether the master knows that these pods are over, and no driver's volume is mounted for
    /// them.
    fn are_done(&self, pods: &BTreeSet<String>) -> bool {
        let mounted = self.csi.pods().into_iter().any(|uid| pods.contains(&uid));
        let handles = self.handles();
        let mut own = pods.iter().filter_map(|uid| handles.get(uid));
        !mounted && own.all(|handle| handle.is_over() || handle.latest().is_none())
    }
}

impl Drain {
    /// Ends all pods within the time that the machine's configuration gives them, and tells the
    /// master. To be called while [`crate::Kubelet::run`] goes on; takes at most two seconds longer
    /// than that time.
    pub async fn end_pods(&self) {
        let shared: &Arc<Shared> = self.shared();
        shared.ends.send_replace(true);
        let begun = Instant::now();
        let mut time = Duration::ZERO;
        for (number, group) in shared.config.shutdown.groups().iter().enumerate() {
            // What a group leaves of its time is no later group's.
            time = begun.elapsed().min(time) + group.time;
            let pods = shared.end_group(number, group.time);
            if pods.is_empty() {
                continue;
            }
            let priority = group.from;
            tracing::info!(pods = pods.len(), priority, "ending pods with the machine");
            // What takes longer ends beside the next group.
            let left = (time + MARGIN).saturating_sub(begun.elapsed());
            if timeout(left, shared.until_gone(&pods)).await.is_err() {
                tracing::warn!(priority, "pods did not end in their time");
            }
        }
    }
}
