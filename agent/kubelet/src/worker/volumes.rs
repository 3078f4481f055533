//! Keeps a pod's volumes for its task: sets them up before anything else of the pod, updates them
//! while it runs, and unmounts them at its end.

use super::{PATIENCE, RETRY, Worker};
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
            self.refresh_failures = 0;
            return;
        }
        let noted = volumes::shown_notes(pod);
        let is_other = self.shown.is_some() && self.shown != noted;
        self.shown = noted;
        let pause = self.refresh_pause();
        let due = self.supplies.is_stale() || is_other || self.refreshed.elapsed() >= pause;
        let ends = end_of(pod, now).is_some() || self.notes.evicted.is_some();
        if ends {
            // No further update comes, so no step has to come early for one.
            self.refresh_failures = 0;
        } else if due {
            self.refreshed = Instant::now();
            let addresses = self.addresses(pod);
            // A master that does not answer must not keep the containers waiting; the volumes stay
            // as they are until the next time.
            let refreshed = timeout(PATIENCE, self.supplies.refresh(pod, &addresses)).await;
            if matches!(refreshed, Ok(Ok(()))) {
                self.refresh_failures = 0;
            } else {
                self.refresh_failures = self.refresh_failures.saturating_add(1);
            }
            if let Ok(Err(message)) = refreshed {
                self.shared.events.warning(pod, "FailedMount", message);
            }
        }
    }

    /// The time between two updates of the volumes; after one that failed it is short, and grows.
    pub(super) fn refresh_pause(&self) -> Duration {
        match self.refresh_failures {
            0 => RESYNC,
            failures => after_failures(failures),
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

/// How long to wait after so many failures in a row: 2 s, doubled with each, and at most as long as
/// between two steps.
pub(super) fn after_failures(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(5);
    RETRY.saturating_mul(1 << doublings).min(RESYNC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::tests::shared_of;
    use crate::worker::Next;
    use crate::worker::tests::{Holder, with_own_engine, worker_of};
    use agent_api::{Answer, Api, Call, Lines};
    use agent_runtime::ContainerState;
    use bytes::Bytes;
    use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;
    use std::sync::{Mutex, mpsc};

    /// A master that blocks the calling thread at a request for a token, as the set-up of volumes
    /// does.
    #[derive(Debug)]
    struct Holding {
        asked: mpsc::Sender<()>,
        answer: Mutex<mpsc::Receiver<()>>,
    }

    impl Api for Holding {
        fn call(&self, _call: Call) -> Answer<'_, Bytes> {
            Box::pin(async {
                self.asked.send(()).unwrap();
                self.answer.lock().unwrap().recv().unwrap();
                let status =
                    json!({"token": "secret", "expirationTimestamp": "2100-01-01T00:00:00Z"});
                let token = json!({"metadata": {}, "spec": {"audiences": []}, "status": status});
                Ok(token.to_string().into())
            })
        }

        fn watch(&self, _path: String) -> Answer<'_, Lines> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn volumes_that_are_still_being_made_at_a_pod_s_end_are_gone_with_it() {
        // The held folder is a tmpfs.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let (answer, held) = mpsc::channel();
        let (asked, is_asked) = mpsc::channel();
        let master = Holding {
            asked,
            answer: Mutex::new(held),
        };
        let shared = shared_of(dir.path(), Vec::new(), Arc::new(master));
        let (shared, _engine) = with_own_engine(shared);
        let token = json!([{"serviceAccountToken": {"path": "token"}}]);
        let volumes = json!([{"name": "t", "projected": {"sources": token}},
            {"name": "e", "emptyDir": {}}]);
        let pod = json!({
            "metadata": {"namespace": "n", "name": "p", "uid": "u"},
            "spec": {"hostNetwork": true, "containers": [{"name": "a"}], "volumes": volumes},
        });
        let pod: Arc<Pod> = Arc::new(serde_json::from_value(pod).unwrap());
        let mut worker = worker_of(&shared, &pod);

        assert!(worker.has_volumes(&pod).await.is_none(), "they are made");
        let asked = tokio::task::spawn_blocking(move || is_asked.recv());
        asked.await.unwrap().unwrap();
        worker.set_up.keep(std::iter::empty());
        let machine = worker.shared.config.machine.clone();
        let news = worker.news.clone();
        {
            let mut finish = Box::pin(worker.finish(None, &[]));
            let early = timeout(Duration::from_millis(500), &mut finish).await;
            answer.send(()).unwrap();
            let next = match early {
                Ok(next) => next,
                Err(_waits) => finish.await,
            };
            assert!(matches!(next, Next::Done));
        }
        news.notified().await;
        for left in [machine.pod_dir("u"), machine.held_dir("u")] {
            assert!(!left.exists(), "{}", left.display());
        }
    }

    /// Needs root, as the pod has a volume in memory.
    #[tokio::test]
    async fn volumes_that_could_not_be_updated_are_tried_again_soon_and_ever_less_often() {
        let started_at = Timestamp::now();
        let runs = ContainerState::Running { started_at };
        let mut holder = Box::pin(Holder::new("Always", runs)).await;
        holder.step().await;
        // As a change of a source does.
        holder.worker.supplies.adopt();
        // From now on each update fails.
        holder.worker.supplies.close().await;
        assert!(holder.step().await <= RETRY);
        assert_eq!(holder.worker.refresh_failures, 1);
        let earlier = Instant::now().checked_sub(RETRY).unwrap();
        holder.worker.refreshed = earlier;
        assert!(holder.step().await <= RETRY * 2);
        assert_eq!(holder.worker.refresh_failures, 2);
        let pauses = [1, 2, 3, 5, 6, u32::MAX].map(|count| after_failures(count).as_secs());
        assert_eq!(pauses, [2, 4, 8, 32, 60, 60]);
        let mut ending = Pod::clone(&holder.pod);
        ending.metadata.deletion_timestamp = Some(Time(Timestamp::now()));
        holder.pod = Arc::new(ending);
        holder.step().await;
        assert_eq!(holder.worker.refresh_failures, 0, "it is updated no more");
    }
}
