//! The pod's eviction: it takes more of the disk than it may, or the node is under pressure and has
//! chosen it.

use super::Worker;
use crate::config::Config;
use crate::shared::Shared;
use agent_launch::storage::{self, Excess, Layer};
use agent_pods::{EVICTION_GRACE, Eviction, end_of};
use agent_resources::DeletedFiles;
use agent_runtime::{Container as Seen, PodRef};
use agent_sys::beneath::Beneath;
use config_errors::chain;
use config_kube::k8s_openapi::api::core::v1::Pod;
use config_static_pods::is_static;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// File in a pod's folder that records its eviction, so that an agent that begins meanwhile ends
/// the pod as evicted.
const RECORD: &str = "eviction";
/// The same while it is written.
const NEW_RECORD: &str = "eviction.new";
/// Longest record; messages have a part for each container.
const LONGEST: u64 = 1 << 20;

impl Worker {
    /// Evicts the pod if it was chosen for that, or if it exceeds a limit of disk space, which is
    /// measured every [`storage::PERIOD`].
    pub(super) async fn evict(&mut self, pod: &Arc<Pod>, seen: &[Seen], now: Timestamp) {
        let stays = self.notes.evicted.is_none() && end_of(pod, now).is_none();
        self.limited = stays && ends_by_limits(pod);
        let chosen = self.chosen.get().filter(|_| stays).cloned();
        let why = if chosen.is_some() {
            chosen
        } else {
            self.excess(pod, seen).await.map(|excess| {
                self.shared.figures.done().evicted(excess.signal);
                Eviction {
                    reason: Eviction::PRESSURE,
                    message: excess.message,
                    annotations: BTreeMap::new(),
                    grace: EVICTION_GRACE,
                }
            })
        };
        if let Some(eviction) = why {
            if eviction.reason != Eviction::SHUTDOWN {
                self.announce(pod, &eviction);
            }
            self.notes.evicted = Some(eviction);
        }
    }

    /// Writes the event of the eviction, and records it on the disk. Not for the end of the
    /// machine: the Node's condition says that, and no agent begins before the next boot; where the
    /// master does not learn of the eviction, the pod runs again then.
    fn announce(&self, pod: &Pod, eviction: &Eviction) {
        let annotations = eviction.annotations.clone();
        let events = &self.shared.events;
        events.annotated(pod, eviction.reason, &eviction.message, annotations);
        if let Err(error) = write_record(&self.shared.config, &self.pod.uid, eviction) {
            // A full disk is no reason to keep the pod.
            tracing::warn!(
                pod = self.pod.name,
                error = chain(&error),
                "cannot write down that the pod is evicted"
            );
        }
    }

    /// What the last measurement of a pod with limits found, and begins another if that is due.
    async fn excess(&mut self, pod: &Arc<Pod>, seen: &[Seen]) -> Option<Excess> {
        let found = self.measured.taken().filter(|_| self.limited);
        if found.is_some() || !self.limited || !self.measured.is_due() {
            return found;
        }
        let mut layers = Vec::new();
        for seen in seen.iter().filter(|_| storage::counts_layers(pod)) {
            layers.extend(Layer::of(&*self.shared.runtime, seen).await);
        }
        self.measured
            .begin(&self.shared, &self.news, pod, &self.pod, layers);
        None
    }
}

/// Measurements of what a pod takes of the disk, in a task beside the pod's steps: a pod with many
/// files keeps neither its own steps waiting nor, by its turn, the measurements of others.
#[derive(Debug)]
pub(super) struct Measured {
    /// When the last one began.
    begun: Instant,
    deleted: DeletedFiles,
    running: JoinSet<Option<(Option<Excess>, DeletedFiles)>>,
}

impl Default for Measured {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            deleted: DeletedFiles::default(),
            running: JoinSet::new(),
        }
    }
}

impl Measured {
    /// The excess that a measurement found which has ended since the last call.
    fn taken(&mut self) -> Option<Excess> {
        let (excess, deleted) = self.running.try_join_next()?.ok()??;
        self.deleted = deleted;
        // A walk may take longer than the pause.
        self.begun = Instant::now();
        excess
    }

    fn is_due(&self) -> bool {
        self.running.is_empty() && self.begun.elapsed() >= storage::PERIOD
    }

    /// Begins a measurement, which waits for its turn; its end wakes the pod's task.
    fn begin(
        &mut self,
        shared: &Arc<Shared>,
        news: &Arc<Notify>,
        pod: &Arc<Pod>,
        reference: &PodRef,
        layers: Vec<Layer>,
    ) {
        self.begun = Instant::now();
        let (shared, news) = (shared.clone(), news.clone());
        let (pod, reference) = (pod.clone(), reference.clone());
        let deleted = self.deleted.clone();
        self.running.spawn(async move {
            let turn = shared.walks.turn(&reference.namespace).await;
            let measured = tokio::task::spawn_blocking(move || {
                // Held until the walk ends, also where nobody waits for it any more.
                let _turn = turn;
                let deleted = deleted.now(&shared.config.machine.data, &pod, &reference.uid);
                let machine = &shared.config.machine;
                let excess = storage::excess(machine, &pod, &reference, &layers, &deleted);
                (excess, deleted)
            });
            let measured = measured.await.ok();
            news.notify_one();
            measured
        });
    }
}

/// Whether the pod ends when it takes more of the disk than its limits. Upstream spares critical
/// pods, too; but anybody may name a critical class, and the limits are the pod's own. A static pod
/// stays, as nothing would make another in its place.
fn ends_by_limits(pod: &Pod) -> bool {
    storage::is_limited(pod) && !is_static(pod)
}

/// Writes the record of an eviction.
fn write_record(config: &Config, uid: &str, eviction: &Eviction) -> io::Result<()> {
    let dir = Beneath::make_root(&config.machine.pod_dir(uid))?;
    let mut file = dir.rewrite(Path::new(NEW_RECORD), 0o600)?;
    io::Write::write_all(&mut file, written(eviction).as_bytes())?;
    dir.rename(Path::new(NEW_RECORD), Path::new(RECORD))
}

/// The record of an eviction: its grace in seconds and its reason, and after the first line end its
/// message.
pub(crate) fn written(eviction: &Eviction) -> String {
    let (grace, reason) = (eviction.grace.as_secs(), eviction.reason);
    format!("{grace} {reason}\n{}", eviction.message)
}

/// The eviction that an earlier agent began. A static pod's is dropped: nothing else would ever
/// start it again, as its UID and its folder stay while its manifest does.
pub(super) fn recorded(config: &Config, uid: &str) -> Option<Eviction> {
    let dir = Beneath::root(&config.machine.pod_dir(uid)).ok()?;
    if config.is_static(uid) {
        if let Err(error) = dir.remove_file(Path::new(RECORD)) {
            let path = config.machine.pod_dir(uid).join(RECORD);
            tracing::warn!(path = %path.display(), error = chain(&error), "cannot remove the record of a static pod's eviction");
        }
        return None;
    }
    read(dir.read(Path::new(RECORD), LONGEST).ok()?)
}

/// The eviction of a record; none of what no agent wrote.
pub(crate) fn read(record: Vec<u8>) -> Option<Eviction> {
    let record = String::from_utf8(record).ok()?;
    let (first, message) = record.split_once('\n')?;
    // An older agent wrote no reason.
    let (grace, reason) = first.split_once(' ').unwrap_or((first, ""));
    Some(Eviction {
        reason: if reason == Eviction::PREEMPTION {
            Eviction::PREEMPTION
        } else {
            Eviction::PRESSURE
        },
        message: message.to_owned(),
        annotations: BTreeMap::new(),
        grace: Duration::from_secs(grace.parse().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;

    #[test]
    fn an_eviction_is_found_again_and_half_a_record_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        assert_eq!(recorded(&config, "u"), None);
        let eviction = Eviction {
            reason: Eviction::PRESSURE,
            message: "The node was low on resource: memory.\nMore. ".to_owned(),
            annotations: BTreeMap::new(),
            grace: Duration::from_secs(30),
        };
        write_record(&config, "u", &eviction).unwrap();
        assert_eq!(recorded(&config, "u"), Some(eviction.clone()));
        let preempted = Eviction {
            reason: Eviction::PREEMPTION,
            ..eviction
        };
        write_record(&config, "u", &preempted).unwrap();
        assert_eq!(recorded(&config, "u"), Some(preempted));
        std::fs::write(config.machine.pod_dir("u").join(RECORD), "30").unwrap();
        assert_eq!(recorded(&config, "u"), None);
    }

    #[test]
    fn the_eviction_of_a_static_pod_does_not_outlast_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: a, image: i, resources: {limits: {ephemeral-storage: 1Mi}}}]}}";
        let own = config_static_pods::read(manifest, "node").unwrap();
        assert!(!ends_by_limits(&own));
        assert!(ends_by_limits(&config_static_pods::from_api(own.clone())));
        let mut config = config(dir.path());
        config.static_pods = vec![own];
        let uid = config.static_pods[0].metadata.uid.clone().unwrap();
        let eviction = Eviction {
            reason: Eviction::PRESSURE,
            message: "The node was low on resource: memory. ".to_owned(),
            annotations: BTreeMap::new(),
            grace: Duration::from_secs(30),
        };
        write_record(&config, &uid, &eviction).unwrap();
        assert_eq!(recorded(&config, &uid), None);
        assert!(!config.machine.pod_dir(&uid).join(RECORD).exists());
    }
}
