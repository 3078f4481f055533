//! Keeps a pod's volumes for its task: sets them up before anything else of the pod, updates them
//! while it runs, and unmounts them at its end.

use super::{PATIENCE, Worker};
use crate::config::RESYNC;
use crate::starts::AtItsEnd;
use crate::supplies::Supplies;
use agent_launch::volumes;
use agent_pods::{Addresses, end_of};
use agent_runtime::{Error, ErrorClass};
use config_kube::k8s_openapi::api::core::v1::Pod;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long a step waits for the volumes: nearly always enough if all their sources exist.
const SOON: Duration = Duration::from_millis(200);

/// How far the volumes of a pod are set up.
#[derive(Debug, Default)]
pub(super) enum SetUp {
    /// Not tried yet, or the last try failed.
    #[default]
    Missing,
    /// A task beside the pod's steps sets them up, as a driver or the master may be slow.
    UnderWay(Making),
    /// They are set up.
    Done,
}

/// The set-up of volumes under way; dropping it ends the set-up.
#[derive(Debug)]
pub(super) struct Making {
    outcome: oneshot::Receiver<Result<(), String>>,
    _task: JoinSet<()>,
}

impl Making {
    fn begin(supplies: Supplies, pod: Arc<Pod>, at: Addresses, news: Arc<Notify>) -> Self {
        let (finished, outcome) = oneshot::channel();
        let mut task = JoinSet::new();
        task.spawn(async move {
            // Dropped after `finished`, so that the woken task finds the outcome.
            let _news = AtItsEnd(news);
            let finished = finished;
            finished
                .send(supplies.volumes(&pod, &at).await.map(drop))
                .ok();
        });
        Self {
            outcome,
            _task: task,
        }
    }
}

impl SetUp {
    /// Gives up a set-up under way if no container is to be started any more.
    pub(super) fn keep<'a>(&mut self, mut starts: impl Iterator<Item = &'a str>) {
        if matches!(self, Self::UnderWay(_)) && starts.next().is_none() {
            *self = Self::Missing;
        }
    }
}

impl Worker {
    /// Whether the pod's volumes are set up. Until then it has no sandbox and pulls no image, as
    /// with upstream's kubelet. `None` while the set-up is under way; its end wakes this task.
    pub(super) async fn has_volumes(&mut self, pod: &Arc<Pod>) -> Option<Result<(), Error>> {
        let waits = |again: Timestamp| again > Timestamp::now();
        if self.notes.unmounted.is_some_and(waits) {
            // Another container of this plan has just tried it.
            return None;
        }
        let outcome = match &mut self.set_up {
            SetUp::Done => return Some(Ok(())),
            SetUp::UnderWay(making) => match making.outcome.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => return None,
                Err(oneshot::error::TryRecvError::Closed) => None,
                Ok(outcome) => Some(outcome),
            },
            SetUp::Missing => {
                let (supplies, news) = (self.supplies.clone(), self.news.clone());
                let at = self.addresses(pod);
                let mut making = Making::begin(supplies, pod.clone(), at, news);
                match timeout(SOON, &mut making.outcome).await {
                    Err(_) => {
                        self.set_up = SetUp::UnderWay(making);
                        return None;
                    }
                    Ok(outcome) => outcome.ok(),
                }
            }
        };
        let died = || Err("the volume set-up task ended without a result".to_owned());
        let outcome = outcome.unwrap_or_else(died);
        if outcome.is_ok() {
            self.set_up = SetUp::Done;
            (self.notes.unmounted, self.notes.mounts_failed) = (None, 0);
        } else {
            self.set_up = SetUp::Missing;
        }
        Some(outcome.map_err(|fault| Error::new(ErrorClass::Volume, fault)))
    }

    /// Tries volumes that could not be set up again at once, if a source of them has changed.
    pub(super) fn retry_volumes(&mut self) {
        if self.supplies.is_stale() {
            self.notes.unmounted = None;
        }
    }

    /// Updates volumes when something that they show has changed, and periodically.
    pub(super) async fn refresh_volumes(&mut self, pod: &Arc<Pod>, now: Timestamp) {
        if self.is_over() {
            self.supplies.end();
            return;
        }
        let noted = volumes::shown_notes(pod);
        let is_other = self.shown.is_some() && self.shown != noted;
        self.shown = noted;
        let due = self.supplies.is_stale() || is_other || self.refreshed.elapsed() >= RESYNC;
        let ends = end_of(pod, now).is_some() || self.notes.evicted.is_some();
        if due && !ends {
            self.refreshed = Instant::now();
            let addresses = self.addresses(pod);
            // A master that does not answer must not keep the containers waiting; the volumes stay
            // as they are until the next time.
            let refreshed = timeout(PATIENCE, self.supplies.refresh(pod, &addresses)).await;
            if let Ok(Err(message)) = refreshed {
                self.shared.events.warning(pod, "FailedMount", message);
            }
        }
    }

    /// Has drivers unmount what they mounted for the pod; false if something is left.
    pub(super) async fn unmount_volumes(&self, pod: Option<&Arc<Pod>>) -> bool {
        let Err(error) = self.shared.csi.release(&self.pod.uid).await else {
            return true;
        };
        tracing::debug!(
            pod = self.pod.name,
            error,
            "a driver's volume is still mounted; trying again"
        );
        if let Some(pod) = pod {
            self.shared.events.warning(pod, "FailedUnMount", error);
        }
        false
    }
}
