//! Measures the disk usage of pods: their containers' layers and logs, and their volumes.
//!
//! The kubelet registers where each pod's files are ([`Disks::keep`]). A measurement walks through
//! them without following links or mounts. It is made when metrics are asked for, at most one at a
//! time and for each pod at most once in [`PERIOD`], and visits [`MOST_ENTRIES`] files and folders
//! at most: pods that it does not reach are the first of the next one. A volume that is a file
//! system of its own (a claim's) is not walked through: its file system knows its usage. The driver
//! of a CSI volume is asked ([`Disks::ask_drivers`]), apart from the walk, which no driver delays.

use crate::stored::Stored;
use crate::subjects::Disk;
use crate::volume_stats::{ClaimedVolume, volume_stats};
use agent_runtime::{Container, ContainerState, ImageSpace, Runtime};
use agent_sys::beneath::{Beneath, Usage};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Least time between two measurements of a pod (upstream's).
const PERIOD: Duration = Duration::from_secs(60);
/// Files and folders that one measurement visits at most.
const MOST_ENTRIES: u64 = 1_000_000;

/// How a volume is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// By its files, which lie on the machine's disk.
    Files,
    /// By its files, which lie in memory.
    FilesInMemory,
    /// By the file system that it lies on (upstream's rule for local volumes).
    FileSystem,
    /// By what its driver says. The driver can change what is at its path, which is never opened.
    Driver,
}

/// A pod's volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumePlace {
    /// Its name in the pod.
    pub name: String,
    /// The claim, in the pod's namespace, that it comes from.
    pub claim: Option<String>,
    /// Its folder. Nobody but the machine's own programs can change what this path means. For a
    /// driver's volume, its path below the folder of the machine's volumes.
    pub folder: PathBuf,
    /// How it is measured.
    pub measure: Measure,
}

/// The folders whose disk usage counts for a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodFolders {
    /// The pod's namespace.
    pub namespace: String,
    /// The folder of its logs, in which each container has one of its name.
    pub logs: PathBuf,
    /// Its volumes.
    pub volumes: Vec<VolumePlace>,
}

impl PodFolders {
    /// The volumes of drivers.
    fn driven(&self) -> impl Iterator<Item = &VolumePlace> {
        let volumes = self.volumes.iter();
        volumes.filter(|volume| volume.measure == Measure::Driver)
    }
}

/// How much of a file system is used, and by what was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// The file system.
    pub disk: Disk,
    /// Used bytes; `None` if there are more files than may be visited.
    pub used: Option<u64>,
    /// Files and folders; `None` likewise.
    pub inodes_used: Option<u64>,
}

#[derive(Debug, Clone)]
pub(crate) struct VolumeSpace {
    pub(crate) name: String,
    pub(crate) claim: Option<String>,
    pub(crate) space: Space,
}

/// A container's writable layer, and its logs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContainerSpace {
    pub(crate) root: Option<Space>,
    pub(crate) logs: Space,
}

/// The result of one measurement of a pod.
#[derive(Debug, Clone)]
pub(crate) struct PodSpace {
    pub(crate) at: Timestamp,
    pub(crate) containers: BTreeMap<String, ContainerSpace>,
    pub(crate) volumes: Vec<VolumeSpace>,
    /// Layers, logs and volumes on the machine's disk.
    pub(crate) ephemeral: Space,
}

#[derive(Debug, Default)]
struct Kept {
    places: Arc<PodFolders>,
    looked: Option<Instant>,
    found: Option<Arc<PodSpace>>,
    /// When its drivers were asked last.
    asked: Option<Instant>,
    /// The last answers of its drivers, by the names of the volumes in the pod.
    driven: BTreeMap<String, Driven>,
}

/// What a driver has said of a volume.
#[derive(Debug, Clone)]
pub(crate) struct Driven {
    pub(crate) at: Timestamp,
    pub(crate) volume: VolumeSpace,
}

/// Pods by UID.
type Pods = BTreeMap<String, Kept>;

/// The disk usage of all pods. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Disks {
    pods: Arc<Mutex<Pods>>,
    /// Held during a measurement; its value is the time before which none is made.
    turn: Arc<tokio::sync::Mutex<Option<Instant>>>,
    /// Held while drivers are asked.
    asking: Arc<tokio::sync::Mutex<()>>,
    images: Stored,
}

/// A container that runs, and its writable layer.
struct Layer {
    container: String,
    path: Option<PathBuf>,
}

impl Disks {
    /// For tests: what was found of a pod.
    #[cfg(test)]
    pub(crate) fn set(&self, uid: &str, found: PodSpace) {
        self.keep(uid, PodFolders::default());
        self.lock().get_mut(uid).unwrap().found = Some(Arc::new(found));
    }

    /// For tests: what a driver has said of a pod's volume, and what images take.
    #[cfg(test)]
    pub(crate) fn tell(&self, uid: &str, driven: Driven, images: ImageSpace) {
        let mut pods = self.lock();
        let driven = (driven.volume.name.clone(), driven);
        pods.get_mut(uid).unwrap().driven.extend([driven]);
        self.images.tell(images);
    }

    fn lock(&self) -> MutexGuard<'_, Pods> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers where a pod has its files.
    pub fn keep(&self, uid: &str, places: PodFolders) {
        let mut pods = self.lock();
        let kept = pods.entry(uid.to_owned()).or_default();
        let is_driven = |name: &String| places.driven().any(|volume| volume.name == *name);
        kept.driven.retain(|name, _| is_driven(name));
        kept.places = Arc::new(places);
    }

    /// Forgets pods that are gone.
    pub(crate) fn retain(&self, is_here: impl Fn(&str) -> bool) {
        self.lock().retain(|uid, _| is_here(uid));
    }

    /// The result of a pod's last measurement.
    pub(crate) fn found(&self, uid: &str) -> Option<Arc<PodSpace>> {
        self.lock().get(uid)?.found.clone()
    }

    /// The last answers of the drivers of a pod's volumes.
    pub(crate) fn driven(&self, uid: &str) -> Vec<Driven> {
        let pods = self.lock();
        let kept = pods.get(uid).into_iter();
        kept.flat_map(|kept| kept.driven.values().cloned())
            .collect()
    }

    /// What the images on the machine take of its disk.
    pub(crate) fn images(&self) -> Option<ImageSpace> {
        self.images.found()
    }

    /// Asks the drivers of volumes how much of these is used, each pod's at most once in
    /// [`PERIOD`], unless they are asked already. What a driver does not answer stays as it was.
    pub async fn ask_drivers<F>(&self, ask: impl Fn(PathBuf) -> F)
    where
        F: Future<Output = Option<Space>>,
    {
        let Ok(_turn) = self.asking.try_lock() else {
            return;
        };
        for (uid, places) in self.unasked() {
            for place in places.driven() {
                let Some(space) = ask(place.folder.clone()).await else {
                    continue;
                };
                let driven = Driven {
                    at: Timestamp::now(),
                    volume: VolumeSpace {
                        name: place.name.clone(),
                        claim: place.claim.clone(),
                        space,
                    },
                };
                if let Some(kept) = self.lock().get_mut(&uid) {
                    kept.driven.insert(place.name.clone(), driven);
                }
            }
        }
    }

    /// Pods whose drivers are to be asked, who count as asked from now on; those that were asked
    /// the longest time ago come first.
    fn unasked(&self) -> Vec<(String, Arc<PodFolders>)> {
        let mut pods = self.lock();
        let is_due = |kept: &Kept| {
            let due = kept.asked.is_none_or(|asked| asked.elapsed() >= PERIOD);
            due && kept.places.driven().next().is_some()
        };
        let mut due: Vec<_> = pods.iter_mut().filter(|(_, kept)| is_due(kept)).collect();
        due.sort_by_key(|(_, kept)| kept.asked);
        let now = Some(Instant::now());
        due.into_iter()
            .map(|(uid, kept)| {
                kept.asked = now;
                (uid.clone(), kept.places.clone())
            })
            .collect()
    }

    /// Measures the images, and the pods whose last measurement is older than [`PERIOD`], unless a
    /// measurement is under way. `disk` is the file system with the pods' data.
    pub async fn look(&self, runtime: &dyn Runtime, disk: Disk) {
        let Ok(mut rests_until) = self.turn.try_lock() else {
            return;
        };
        self.images.look(runtime.image_space()).await;
        if rests_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        let due = self.due();
        if due.is_empty() {
            return;
        }
        let Ok(seen) = runtime.list(None).await else {
            return;
        };
        let mut left = MOST_ENTRIES;
        for (uid, places) in due {
            let layers = layers(runtime, &seen, &uid).await;
            let is_first = left == MOST_ENTRIES;
            let look = move || {
                let mut walk = Walk { left, disk };
                (walk.pod(&places, &layers), walk.left)
            };
            let Ok((found, rest)) = tokio::task::spawn_blocking(look).await else {
                return;
            };
            left = rest;
            // The limit was reached within this pod: its result is dropped, and it comes first next
            // time. If it was the first already it has more files than the limit: the incomplete
            // result counts.
            let is_whole = left > 0 || is_first;
            if let Some(kept) = self.lock().get_mut(&uid).filter(|_| is_whole) {
                kept.found = Some(Arc::new(found));
                kept.looked = Some(Instant::now());
            }
            if left == 0 {
                // All pods with very many files together cost one full walk in this time.
                *rests_until = Instant::now().checked_add(PERIOD);
                return;
            }
        }
    }

    /// Pods to be measured, the oldest measurement first.
    fn due(&self) -> Vec<(String, Arc<PodFolders>)> {
        let pods = self.lock();
        let is_due = |kept: &Kept| kept.looked.is_none_or(|looked| looked.elapsed() >= PERIOD);
        let mut due: Vec<_> = pods.iter().filter(|(_, kept)| is_due(kept)).collect();
        due.sort_by_key(|(_, kept)| kept.looked);
        due.into_iter()
            .map(|(uid, kept)| (uid.clone(), kept.places.clone()))
            .collect()
    }

    /// `kubelet_volume_stats_*` of claims, as they are now. Blocks: it asks the file systems.
    #[must_use]
    pub fn claims(&self) -> String {
        let pods: Vec<_> = self
            .lock()
            .values()
            .map(|kept| (kept.places.clone(), kept.driven.clone()))
            .collect();
        let mut known = BTreeSet::new();
        let mut all = Vec::new();
        for (pod, driven) in &pods {
            for volume in &pod.volumes {
                let claim = volume.claim.as_deref();
                let is_new = |claim: &&str| !known.contains(&(&pod.namespace, *claim));
                let Some(claim) = claim.filter(is_new) else {
                    continue;
                };
                let space = match volume.measure {
                    Measure::Driver => driven
                        .get(&volume.name)
                        .map(|reported| reported.volume.space),
                    Measure::Files | Measure::FilesInMemory | Measure::FileSystem => {
                        space_of(&volume.folder).map(whole)
                    }
                };
                if let Some(space) = space {
                    let namespace = &pod.namespace;
                    known.insert((namespace, claim));
                    let labels =
                        format!("namespace=\"{namespace}\",persistentvolumeclaim=\"{claim}\"");
                    all.push(ClaimedVolume { labels, space });
                }
            }
        }
        volume_stats(&all)
    }
}

/// The containers of a pod that run, with their layers.
async fn layers(runtime: &dyn Runtime, seen: &[Container], uid: &str) -> Vec<Layer> {
    let runs = |one: &&Container| {
        one.key.pod.uid == uid && matches!(one.state, ContainerState::Running { .. })
    };
    let mut all = Vec::new();
    for one in seen.iter().filter(runs) {
        all.push(Layer {
            container: one.key.container.clone(),
            path: runtime.layer(&one.id).await.ok().flatten(),
        });
    }
    all
}

/// The file system of a folder, if it is there.
fn space_of(folder: &Path) -> Option<Disk> {
    let folder = Beneath::root(folder).ok()?;
    Some(Disk::of(folder.as_fd()))
}

/// A file system whose every use counts.
pub(crate) fn whole(disk: Disk) -> Space {
    Space {
        disk,
        used: Some(disk.size.saturating_sub(disk.free)),
        inodes_used: Some(disk.inodes.saturating_sub(disk.free_inodes)),
    }
}

/// The measurement of one pod.
struct Walk {
    /// Files and folders that may still be visited.
    left: u64,
    /// The file system with the pods' data.
    disk: Disk,
}

impl Walk {
    fn pod(&mut self, places: &PodFolders, layers: &[Layer]) -> PodSpace {
        let mut total = Usage::default();
        let mut containers = BTreeMap::new();
        for layer in layers {
            let logs = self.usage(&places.logs.join(&layer.container));
            let root = layer.path.as_deref().map(|path| self.usage(path));
            total = [Some(logs), root]
                .into_iter()
                .flatten()
                .fold(total, Usage::and);
            let space = ContainerSpace {
                root: root.map(|usage| used_of(self.disk, usage)),
                logs: used_of(self.disk, logs),
            };
            containers.insert(layer.container.clone(), space);
        }
        let mut volumes = Vec::new();
        for place in &places.volumes {
            if place.measure == Measure::Driver {
                continue;
            }
            let Some(disk) = space_of(&place.folder) else {
                continue;
            };
            let space = match place.measure {
                Measure::FileSystem | Measure::Driver => whole(disk),
                Measure::Files | Measure::FilesInMemory => {
                    let usage = self.usage(&place.folder);
                    if place.measure == Measure::Files {
                        total = total.and(usage);
                    }
                    used_of(disk, usage)
                }
            };
            volumes.push(VolumeSpace {
                name: place.name.clone(),
                claim: place.claim.clone(),
                space,
            });
        }
        PodSpace {
            at: Timestamp::now(),
            containers,
            volumes,
            ephemeral: used_of(self.disk, total),
        }
    }

    /// The usage of a folder; zero if it isn't there.
    fn usage(&mut self, folder: &Path) -> Usage {
        let Ok(folder) = Beneath::root(folder) else {
            return Usage::default();
        };
        let usage = folder.usage(self.left).unwrap_or_default();
        self.left = self.left.saturating_sub(usage.entries.max(1));
        usage
    }
}

/// The space of a file system that the visited files use.
fn used_of(disk: Disk, usage: Usage) -> Space {
    let whole = |number| (!usage.more).then_some(number);
    Space {
        disk,
        used: whole(usage.bytes),
        inodes_used: whole(usage.entries),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn write(path: &Path, kib: usize) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![1; kib << 10]).unwrap();
    }

    fn volume(name: &str, folder: &Path, measure: Measure) -> VolumePlace {
        VolumePlace {
            name: name.to_owned(),
            claim: (measure == Measure::FileSystem).then(|| format!("claim-{name}")),
            folder: folder.to_owned(),
            measure,
        }
    }

    fn disk() -> Disk {
        Disk {
            size: 1000 << 20,
            free: 600 << 20,
            inodes: 1000,
            free_inodes: 700,
        }
    }

    fn layers(path: &Path) -> [Layer; 1] {
        [Layer {
            container: "main".to_owned(),
            path: Some(path.to_owned()),
        }]
    }

    #[test]
    fn a_look_counts_a_pods_files_and_follows_no_link_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        write(&at("logs/main/0.log"), 40);
        write(&at("logs/other/0.log"), 400);
        write(&at("layer/tmp/f"), 80);
        write(&at("scratch/f"), 160);
        write(&at("memory/f"), 320);
        write(&at("machine/secret"), 4000);
        symlink(at("machine"), at("scratch/out")).unwrap();
        symlink(at("machine"), at("layer/out")).unwrap();
        let volumes = vec![
            volume("scratch", &at("scratch"), Measure::Files),
            volume("memory", &at("memory"), Measure::FilesInMemory),
            volume("data", &at("machine"), Measure::FileSystem),
            volume("gone", &at("gone"), Measure::Files),
        ];
        let places = PodFolders {
            namespace: "default".to_owned(),
            logs: at("logs"),
            volumes,
        };
        let mut walk = Walk {
            left: 100,
            disk: disk(),
        };
        let found = walk.pod(&places, &layers(&at("layer")));
        let kib = |space: Space| space.used.unwrap() >> 10;
        let main = &found.containers["main"];
        assert!((80..100).contains(&kib(main.root.unwrap())), "{main:?}");
        assert!((40..60).contains(&kib(main.logs)), "{main:?}");
        assert_eq!(main.logs.inodes_used, Some(1));
        assert_eq!(main.logs.disk, disk());
        let names = found.volumes.iter().map(|volume| volume.name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["scratch", "memory", "data"]);
        assert!((160..180).contains(&kib(found.volumes[0].space)));
        assert!((320..340).contains(&kib(found.volumes[1].space)));
        let real = space_of(&at("machine")).unwrap();
        assert_eq!(found.volumes[2].space.disk.size, real.size);
        assert_eq!(found.volumes[2].claim.as_deref(), Some("claim-data"));
        // Memory, and what is claimed, are none of the pod's part of the disk.
        assert!((280..340).contains(&kib(found.ephemeral)), "{found:?}");
    }

    #[test]
    fn what_has_more_files_than_may_be_looked_at_has_no_figure() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..8 {
            write(&dir.path().join(format!("layer/{number}")), 1);
        }
        let mut walk = Walk {
            left: 7,
            disk: disk(),
        };
        let found = walk.pod(&PodFolders::default(), &layers(&dir.path().join("layer")));
        let root = found.containers["main"].root.unwrap();
        assert_eq!((root.used, root.inodes_used), (None, None));
        assert_eq!(root.disk, disk());
        assert_eq!(found.ephemeral.used, None);
        assert_eq!(walk.left, 0);
    }

    #[test]
    fn claims_have_upstream_s_families_once_each() {
        let dir = tempfile::tempdir().unwrap();
        let disks = Disks::default();
        assert_eq!(disks.claims(), "");
        // The driver has not answered for the first pod; the claim is the same.
        for (uid, measure) in [("a", Measure::Driver), ("b", Measure::FileSystem)] {
            let places = PodFolders {
                namespace: "default".to_owned(),
                logs: dir.path().join("logs"),
                volumes: vec![
                    volume("data", dir.path(), measure),
                    volume("scratch", dir.path(), Measure::Files),
                ],
            };
            disks.keep(uid, places);
        }
        let text = disks.claims();
        let labels = "{namespace=\"default\",persistentvolumeclaim=\"claim-data\"} ";
        for family in [
            "available_bytes",
            "capacity_bytes",
            "inodes",
            "inodes_free",
            "inodes_used",
            "used_bytes",
        ] {
            let sample = format!("kubelet_volume_stats_{family}{labels}");
            assert_eq!(text.matches(&sample).count(), 1, "{sample} in {text}");
        }
        assert!(!text.contains("scratch"), "{text}");
        disks.retain(|_| false);
        assert_eq!(disks.claims(), "");
    }

    #[tokio::test]
    async fn drivers_are_asked_once_in_a_while_and_their_last_answer_counts() {
        let dir = tempfile::tempdir().unwrap();
        let disks = Disks::default();
        let driven = |name: &str| VolumePlace {
            name: name.to_owned(),
            claim: Some(format!("claim-{name}")),
            folder: PathBuf::from("pods/a/volumes").join(name),
            measure: Measure::Driver,
        };
        let scratch = volume("scratch", dir.path(), Measure::Files);
        let places = PodFolders {
            namespace: "default".to_owned(),
            logs: dir.path().join("logs"),
            volumes: vec![driven("measured"), driven("silent"), scratch],
        };
        disks.keep("a", places.clone());
        let asked = Mutex::new(Vec::new());
        let ask = |folder: PathBuf| {
            let reports = folder.ends_with("measured");
            asked.lock().unwrap().push(folder);
            std::future::ready(reports.then(|| whole(disk())))
        };
        disks.ask_drivers(ask).await;
        disks.ask_drivers(ask).await;
        let all = ["pods/a/volumes/measured", "pods/a/volumes/silent"];
        assert_eq!(*asked.lock().unwrap(), all.map(PathBuf::from));
        let names = |disks: &Disks| {
            let reported = disks.driven("a").into_iter();
            reported.map(|one| one.volume.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&disks), ["measured"]);
        let text = disks.claims();
        let line = "kubelet_volume_stats_used_bytes{namespace=\"default\",persistentvolumeclaim=\"claim-measured\"} 419430400";
        assert!(text.contains(line), "{text}");
        assert!(!text.contains("claim-silent"), "{text}");
        let mut walk = Walk {
            left: 100,
            disk: disk(),
        };
        let found = walk.pod(&places, &[]);
        assert_eq!(found.volumes.len(), 1, "a driver's folder is not opened");
        disks.keep("a", PodFolders::default());
        assert_eq!(names(&disks), Vec::<String>::new());
    }

    #[test]
    fn pods_without_a_measurement_come_first() {
        let disks = Disks::default();
        for uid in ["a", "b", "c"] {
            disks.keep(uid, PodFolders::default());
        }
        let now = Instant::now();
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds));
        disks.lock().get_mut("a").unwrap().looked = ago(61);
        disks.lock().get_mut("b").unwrap().looked = ago(1);
        let due = disks.due().into_iter().map(|(uid, _)| uid);
        assert_eq!(due.collect::<Vec<_>>(), ["c", "a"]);
    }
}
