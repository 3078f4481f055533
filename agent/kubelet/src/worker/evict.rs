//! Evicts the pod if it exceeds a limit of disk space, or if the node has chosen it to relieve
//! pressure or to shut down.

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
use tokio::time::timeout;

/// File in a pod's folder that records its eviction, so that an agent that starts before the pod
/// has ended reports it as evicted.
const RECORD: &str = "eviction";
/// Its name while it is written.
const NEW_RECORD: &str = "eviction.new";
/// Longest record; messages have a part for each container.
const LONGEST: u64 = 1 << 20;
/// How long a step waits for a record to be written.
const WRITE: Duration = Duration::from_secs(10);

/// How far the eviction is recorded for the next agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(super) enum Record {
    /// Not at all.
    Missing,
    /// In memory: for an agent of this boot.
    Readable,
    /// On the disk: also after a power cut.
    Durable,
}

impl Worker {
    /// Evicts the pod if the node has chosen it, or if it exceeds a limit of disk space, which is
    /// measured every [`storage::PERIOD`].
    pub(super) async fn evict(&mut self, pod: &Arc<Pod>, seen: &[Seen], now: Timestamp) {
        let stays = self.notes.evicted.is_none() && end_of(pod, now).is_none();
        self.limited = stays && ends_by_limits(pod);
        let chosen = self.chosen.eviction().filter(|_| stays).cloned();
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
            // Also for a limit of the pod's own: before the node chooses another pod, it waits for
            // what this one frees.
            self.chosen.set(eviction.clone());
            // No event at a shutdown: the Node's condition reports it.
            if eviction.reason != Eviction::SHUTDOWN {
                let annotations = eviction.annotations.clone();
                let events = &self.shared.events;
                events.annotated(pod, eviction.reason, &eviction.message, annotations);
            }
            self.notes.evicted = Some(eviction);
        }
        self.record_eviction(Record::Readable).await;
    }

    /// Records the pod's eviction for the next agent: [`Record::Readable`] in memory, as a full or
    /// busy disk is no reason to keep the pod, [`Record::Durable`] on the disk. To be called again
    /// until that is reached; a write that takes longer than [`WRITE`] continues in the background.
    ///
    /// Evictions by a shutdown are not recorded, as no agent starts before the next boot; if the
    /// master was not informed, the pod runs again then. Nor are those of static pods, see
    /// [`recorded`].
    pub(super) async fn record_eviction(&mut self, wanted: Record) {
        let (config, uid) = (&self.shared.config, &self.pod.uid);
        let is_due = self.record < wanted && !config.is_static(uid);
        let is_recorded = |one: &&Eviction| one.reason != Eviction::SHUTDOWN && is_due;
        let Some(eviction) = self.notes.evicted.as_ref().filter(is_recorded).cloned() else {
            return;
        };
        let folder = if wanted == Record::Durable {
            config.machine.pod_dir(uid)
        } else {
            config.machine.eviction_dir(uid)
        };
        if self.writing.is_empty() {
            self.writing
                .spawn_blocking(move || write_record(&folder, &eviction).map(|()| wanted));
        }
        let written = match timeout(WRITE, self.writing.join_next()).await {
            Ok(Some(written)) => written.map_err(io::Error::other).flatten(),
            Ok(None) | Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        match written {
            Ok(record) => self.record = record,
            Err(error) => tracing::warn!(
                pod = self.pod.name,
                error = chain(&error),
                "cannot record the pod's eviction; trying again"
            ),
        }
    }

    /// The limit that the last measurement found exceeded; starts another measurement if it is due.
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

/// Measurements of the disk space that a pod uses, in a task of their own: a pod with many files
/// delays neither its own steps nor the measurements of other pods.
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
    /// The excess found by a measurement that has ended since the last call.
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
                // Held until the walk ends, also if the pod is gone by then.
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

/// Whether the pod is evicted when it exceeds its limits of disk space. Static pods are not, as
/// nothing would replace them. Critical pods are, unlike upstream: anyone may use a critical
/// priority class, and the limits are the pod's own.
fn ends_by_limits(pod: &Pod) -> bool {
    storage::is_limited(pod) && !is_static(pod)
}

/// Writes the record of an eviction into a folder, and flushes both to the disk.
fn write_record(folder: &Path, eviction: &Eviction) -> io::Result<()> {
    let dir = Beneath::make_root(folder)?;
    let mut file = dir.rewrite(Path::new(NEW_RECORD), 0o600)?;
    io::Write::write_all(&mut file, eviction.to_record().as_bytes())?;
    file.sync_all()?;
    dir.rename(Path::new(NEW_RECORD), Path::new(RECORD))?;
    std::fs::File::open(folder)?.sync_all()
}

/// The eviction that an earlier agent began. A static pod's is dropped: nothing else would ever
/// start it again, as its UID and its folder stay while its manifest does.
pub(super) fn recorded(config: &Config, uid: &str) -> Option<Eviction> {
    let machine = &config.machine;
    let on_disk = Beneath::root(&machine.pod_dir(uid)).ok();
    if config.is_static(uid) {
        if let Some(dir) = on_disk
            && let Err(error) = dir.remove_file(Path::new(RECORD))
        {
            let path = machine.pod_dir(uid).join(RECORD);
            tracing::warn!(path = %path.display(), error = chain(&error), "cannot remove the record of a static pod's eviction");
        }
        return None;
    }
    let in_memory = Beneath::root(&machine.eviction_dir(uid)).ok();
    let mut dirs = on_disk.into_iter().chain(in_memory);
    dirs.find_map(|dir| Eviction::from_record(&dir.read(Path::new(RECORD), LONGEST).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::{Remains, clear_in_turns};
    use crate::config::tests::config;
    use crate::kubelet::tests::shared;
    use crate::worker::tests::{Holder, eviction, exited, worker_of};
    use agent_launch::Machine;
    use serde_json::json;
    use std::fs;
    use std::sync::atomic::Ordering;

    /// Needs root, as the pod has a volume in memory.
    #[tokio::test]
    async fn a_pod_whose_eviction_no_disk_records_gives_back_what_it_took_once_memory_does() {
        let mut holder = Box::pin(Holder::new("Always", exited(137))).await;
        holder.master.away.store(true, Ordering::Relaxed);
        let machine = holder.machine().clone();
        let [on_disk, in_memory] = [machine.pod_dir("u"), machine.eviction_dir("u")];
        // No file can be written in either place.
        let new_file = on_disk.join(NEW_RECORD);
        let all_in_memory = machine.run.join(Machine::EVICTIONS);
        fs::create_dir(&new_file).unwrap();
        fs::create_dir_all(&machine.run).unwrap();
        fs::write(&all_in_memory, "").unwrap();
        assert!(holder.worker.chosen.set(eviction(Eviction::PRESSURE)));
        holder.step().await;
        assert!(holder.worker.notes.evicted.is_some());
        assert_eq!(holder.left().len(), 3, "the next agent would run it again");

        fs::remove_file(&all_in_memory).unwrap();
        holder.step().await;
        assert!(holder.has_given_back());
        assert!(in_memory.join(RECORD).exists() && !on_disk.join(RECORD).exists());
        // The next agent finds it, and waits for what the pod gives back.
        holder.worker = worker_of(&holder.shared, &holder.pod);
        assert!(holder.worker.notes.evicted.is_some());
        assert!(holder.worker.chosen.eviction().is_some());
        fs::remove_dir(&new_file).unwrap();
        holder.step().await;
        assert!(on_disk.join(RECORD).exists());
        let all = Remains::All(None);
        let cleared = clear_in_turns(&holder.shared, &holder.worker.pod, all);
        cleared.await.unwrap();
        assert!(!in_memory.exists() && !on_disk.exists());
    }

    /// Needs root, as the pod has a volume in memory.
    #[tokio::test]
    async fn an_evicted_pod_ends_without_the_disk_and_gives_back_what_it_took_soon_after() {
        let mut holder = Box::pin(Holder::new("Always", exited(137))).await;
        holder.master.away.store(true, Ordering::Relaxed);
        let on_disk = holder.machine().pod_dir("u").join(RECORD);
        assert!(holder.worker.chosen.set(eviction(Eviction::PRESSURE)));
        let pod = holder.pod.clone();
        holder.worker.evict(&pod, &[], Timestamp::now()).await;
        assert_eq!(holder.worker.record, Record::Readable);
        assert!(recorded(&holder.shared.config, "u").is_some() && !on_disk.exists());

        // A disk that takes no record for now.
        holder.worker.writing.spawn(std::future::pending());
        tokio::time::pause();
        let early = timeout(WRITE / 2, Box::pin(holder.step())).await;
        assert!(early.is_err());
        assert_eq!(holder.left().len(), 3, "the record comes first");
        holder.step().await;
        assert!(holder.has_given_back());
        assert_eq!(holder.worker.record, Record::Readable);
        assert_eq!(holder.worker.writing.len(), 1, "one write at a time");

        holder.worker.writing.shutdown().await;
        holder.step().await;
        assert!(holder.worker.record == Record::Durable && on_disk.exists());
    }

    #[tokio::test]
    async fn a_pod_that_goes_for_a_limit_of_its_own_is_known_to_leave() {
        let dir = tempfile::tempdir().unwrap();
        let limited = json!({"limits": {"ephemeral-storage": "1Mi"}});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": "p", "uid": "u"},
            "spec": {"containers": [{"name": "a", "image": "i", "resources": limited}]},
        }))
        .unwrap();
        let pod = Arc::new(pod);
        let mut worker = worker_of(&shared(dir.path()), &pod);
        let excess = Excess {
            signal: "ephemeralpodfs.limit",
            message: "It takes more than its limit. ".to_owned(),
        };
        let found = Some((Some(excess), DeletedFiles::default()));
        worker.measured.running.spawn(std::future::ready(found));
        while worker.notes.evicted.is_none() {
            tokio::task::yield_now().await;
            worker.evict(&pod, &[], Timestamp::now()).await;
        }
        assert_eq!(worker.chosen.eviction(), worker.notes.evicted.as_ref());
        assert!(recorded(&worker.shared.config, "u").is_some());
    }

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
        let folder = config.machine.pod_dir("u");
        write_record(&folder, &eviction).unwrap();
        assert_eq!(recorded(&config, "u"), Some(eviction.clone()));
        let preempted = Eviction {
            reason: Eviction::PREEMPTION,
            ..eviction
        };
        write_record(&folder, &preempted).unwrap();
        assert_eq!(recorded(&config, "u"), Some(preempted));
        fs::write(folder.join(RECORD), "30").unwrap();
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
        write_record(&config.machine.pod_dir(&uid), &eviction).unwrap();
        assert_eq!(recorded(&config, &uid), None);
        assert!(!config.machine.pod_dir(&uid).join(RECORD).exists());
    }
}
