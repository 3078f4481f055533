//! Ephemeral storage of a pod: usage against its limits.
//!
//! Usage is measured periodically, by walks that follow no link and look at a bounded number of
//! files. A pod above its limits is evicted, with upstream's messages. A walk does not find files
//! that are deleted but still open or mapped: those are found by the pod's processes
//! ([`DeletedFiles`]), each minute, and sooner when the disk has become fuller.

use crate::machine::Machine;
use agent_pods::log_folder;
use agent_resources::{DeletedFiles, DiskUse, qos};
use agent_runtime::{Container as Seen, ContainerKind, PodRef, Runtime};
use agent_sys::beneath::{Beneath, Usage};
use config_kube::k8s_openapi::api::core::v1::{Pod, Volume};
use config_kube::quantity::Amount;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time between two measurements (upstream's).
pub const PERIOD: Duration = Duration::from_secs(10);
/// Most files and folders that are counted in one volume or layer; a pod with more counts as over
/// its limits.
const MAX_ENTRIES: u64 = 500_000;
/// The same for all volumes with limits together, and again for all layers and logs of containers
/// with limits, so that the work does not grow with the number of volumes.
const MAX_OF_ROUND: u64 = 4 * MAX_ENTRIES;
/// The resource's name.
const EPHEMERAL: &str = "ephemeral-storage";

/// The writable layer of a container.
#[derive(Debug, Clone)]
pub struct Layer {
    /// Name of the container.
    pub container: String,
    /// Folder of what it wrote to its root file system.
    pub path: PathBuf,
}

impl Layer {
    /// The layer of a container, where it still has one.
    pub async fn of(runtime: &dyn Runtime, seen: &Seen) -> Option<Self> {
        let path = runtime.layer(&seen.id).await.ok()??;
        Some(Self {
            container: seen.key.container.clone(),
            path,
        })
    }
}

/// The disk space that the pod uses. Blocks while it measures; a pod with too many files to count
/// is reported as larger than any disk.
pub fn taken(machine: &Machine, pod: &Pod, reference: &PodRef, layers: &[Layer]) -> DiskUse {
    let bytes = |usage: Usage| if usage.more { u64::MAX } else { usage.bytes };
    let deleted = DeletedFiles::default().now(&machine.data, pod, &reference.uid);
    let mut total = usage(&machine.pod_dir(&reference.uid)).and(deleted.all(&reference.uid));
    let mut containers = BTreeMap::new();
    for container in all(pod) {
        let used = used_by(machine, reference, layers, container, usage);
        total = total.and(used);
        containers.insert(container.clone(), bytes(used));
    }
    DiskUse {
        bytes: bytes(total),
        entries: total.entries,
        containers,
    }
}

/// A container's layers and logs.
fn used_by(
    machine: &Machine,
    reference: &PodRef,
    layers: &[Layer],
    container: &str,
    mut usage: impl FnMut(&Path) -> Usage,
) -> Usage {
    let layers = layers.iter().filter(|layer| layer.container == container);
    let logs = usage(&machine.logs.join(log_folder(reference, container)));
    layers
        .map(|layer| usage(&layer.path))
        .fold(logs, Usage::and)
}

/// Files and folders that may still be looked at.
struct Round(u64);

impl Round {
    fn usage(&mut self, path: &Path) -> Usage {
        let usage = at_most(path, self.0.min(MAX_ENTRIES));
        // The folder itself, too.
        self.0 = self.0.saturating_sub(usage.entries.saturating_add(1));
        usage
    }
}

/// Whether anything of the pod is limited.
pub fn is_limited(pod: &Pod) -> bool {
    volumes(pod).any(|volume| size_limit(volume).is_some()) || !limits(pod).is_empty()
}

/// Whether containers' own layers count.
pub fn counts_layers(pod: &Pod) -> bool {
    !limits(pod).is_empty()
}

/// The limit that a pod exceeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excess {
    /// Upstream's word for it.
    pub signal: &'static str,
    /// Why, in upstream's words.
    pub message: String,
}

/// Why the pod is to be evicted, if it is. Blocks while it measures.
pub fn excess(
    machine: &Machine,
    pod: &Pod,
    reference: &PodRef,
    layers: &[Layer],
    deleted: &DeletedFiles,
) -> Option<Excess> {
    let because = |signal, message| Some(Excess { signal, message });
    let dir = machine.pod_dir(&reference.uid);
    let mut round = Round(MAX_OF_ROUND);
    for volume in volumes(pod) {
        let Some((limit, text)) = size_limit(volume) else {
            continue;
        };
        let name = &volume.name;
        let folder = format!("{}/{name}", Machine::EMPTY_DIRS);
        let open = deleted.below(&reference.uid, &folder);
        if over(round.usage(&dir.join(&folder)).and(open), limit) {
            let text = format!("Usage of EmptyDir volume {name:?} exceeds the limit {text:?}. ");
            return because("emptydirfs.limit", text);
        }
    }
    let limits = limits(pod);
    if limits.is_empty() {
        return None;
    }
    let mut round = Round(MAX_OF_ROUND);
    let mut total = round.usage(&dir).and(deleted.all(&reference.uid));
    for container in all(pod) {
        let used = used_by(machine, reference, layers, container, |path| {
            round.usage(path)
        });
        total = total.and(used);
        if let Some((_, limit, text)) = limits.iter().find(|(name, ..)| name == container)
            && over(used, *limit)
        {
            let text = format!(
                "Container {container} exceeded its local ephemeral storage limit {text:?}. "
            );
            return because("ephemeralcontainerfs.limit", text);
        }
    }
    let limit = at_once(pod, &limits);
    let text = format!(
        "Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
    );
    over(total, limit)
        .then(|| because("ephemeralpodfs.limit", text))
        .flatten()
}

/// The limits of the containers that run together, or that of an init container with the sidecars
/// before it if that is more (KEP-753).
fn at_once(pod: &Pod, limits: &[(String, u64, String)]) -> u64 {
    let (mut sidecars, mut mains, mut most) = (0_u64, 0_u64, 0_u64);
    for (kind, container) in agent_pods::all(pod) {
        let own = limits.iter().find(|(name, ..)| *name == container.name);
        let own = own.map_or(0, |(_, limit, _)| *limit);
        match kind {
            ContainerKind::Init => most = most.max(sidecars.saturating_add(own)),
            ContainerKind::Sidecar => {
                sidecars = sidecars.saturating_add(own);
                most = most.max(sidecars);
            }
            ContainerKind::Main => mains = mains.saturating_add(own),
            ContainerKind::Ephemeral => {}
        }
    }
    most.max(sidecars.saturating_add(mains))
}

fn all(pod: &Pod) -> impl Iterator<Item = &String> {
    agent_pods::all(pod).map(|(_, container)| &container.name)
}

/// Limits of containers: name, bytes, and as the pod says it.
fn limits(pod: &Pod) -> Vec<(String, u64, String)> {
    let all = agent_pods::all(pod).map(|(_, container)| container);
    let limit = |container: &config_kube::k8s_openapi::api::core::v1::Container| {
        let text = container
            .resources
            .as_ref()?
            .limits
            .as_ref()?
            .get(EPHEMERAL)?
            .0
            .clone();
        let bytes = u64::try_from(qos::limit(container, EPHEMERAL)?.ceil_units()).ok()?;
        Some((container.name.clone(), bytes, text))
    };
    all.filter_map(limit).collect()
}

fn volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten())
}

/// The limit of a volume on the disk, and as the pod says it; one in memory has no more room than
/// its limit.
fn size_limit(volume: &Volume) -> Option<(u64, String)> {
    let dir = volume
        .empty_dir
        .as_ref()
        .filter(|dir| dir.medium.as_deref().unwrap_or_default().is_empty())?;
    let limit = dir.size_limit.as_ref()?;
    let amount = Amount::try_from(limit)
        .ok()
        .filter(|amount| *amount > Amount::ZERO)?;
    Some((u64::try_from(amount.ceil_units()).ok()?, limit.0.clone()))
}

/// The disk space of a folder; nothing if it doesn't exist yet.
fn usage(path: &Path) -> Usage {
    at_most(path, MAX_ENTRIES)
}

fn at_most(path: &Path, most: u64) -> Usage {
    Beneath::root(path)
        .and_then(|folder| folder.usage(most))
        .unwrap_or_default()
}

fn over(usage: Usage, limit: u64) -> bool {
    usage.more || usage.bytes > limit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;
    use serde_json::{Value, json};
    use std::fs;

    fn pod(spec: &Value) -> Pod {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    fn write(path: &Path, kib: usize) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![1; kib << 10]).unwrap();
    }

    #[test]
    fn each_limit_is_reported_in_upstreams_words() {
        let dir = tempfile::tempdir().unwrap();
        let machine = machine(dir.path());
        let reference = PodRef {
            namespace: "n".into(),
            name: "p".into(),
            uid: "u".into(),
        };
        let limited = json!({"name": "a", "resources": {"limits": {"ephemeral-storage": "100Ki"}}});
        let volume = json!({"name": "v", "emptyDir": {"sizeLimit": "300Ki"}});
        let pod = pod(&json!({"containers": [limited, {"name": "b"}], "volumes": [volume]}));
        assert!(is_limited(&pod) && counts_layers(&pod));
        let layers = [Layer {
            container: "a".into(),
            path: dir.path().join("layer"),
        }];
        let excess = || {
            let excess = excess(
                &machine,
                &pod,
                &reference,
                &layers,
                &DeletedFiles::default(),
            );
            excess.map_or_else(String::new, |excess| excess.message)
        };
        assert_eq!(excess(), "");
        write(&machine.logs.join("n_p_u/a/0.log"), 40);
        write(&dir.path().join("layer/tmp/f"), 40);
        assert_eq!(excess(), "");
        write(&dir.path().join("layer/tmp/g"), 40);
        assert_eq!(
            excess(),
            "Container a exceeded its local ephemeral storage limit \"100Ki\". "
        );
        fs::remove_file(dir.path().join("layer/tmp/g")).unwrap();
        write(&machine.pod_dir("u").join("volumes/empty-dir/v/f"), 60);
        let taken = taken(&machine, &pod, &reference, &layers);
        assert_eq!(taken.containers["b"], 0);
        assert!(
            taken.containers["a"] >= 80 << 10 && taken.bytes >= taken.containers["a"] + (60 << 10)
        );
        assert!(taken.entries >= 3);
        assert_eq!(
            excess(),
            "Pod ephemeral local storage usage exceeds the total limit of containers 102400. "
        );
        write(&machine.pod_dir("u").join("volumes/empty-dir/v/f"), 400);
        assert_eq!(
            excess(),
            "Usage of EmptyDir volume \"v\" exceeds the limit \"300Ki\". "
        );
    }

    #[test]
    fn a_pods_limit_is_that_of_the_containers_that_run_together() {
        let limited = |name: &str, kib: u64| json!({"name": name, "resources": {"limits": {"ephemeral-storage": format!("{kib}Ki")}}});
        let mut sidecar = limited("s", 10);
        sidecar["restartPolicy"] = json!("Always");
        let total = |init: u64| {
            let inits = json!([sidecar, limited("i", init)]);
            let mains = json!([limited("a", 100), limited("b", 200), {"name": "c"}]);
            let pod = pod(&json!({"initContainers": inits, "containers": mains}));
            at_once(&pod, &limits(&pod)) >> 10
        };
        assert_eq!([total(1), total(300), total(301)], [310, 310, 311]);
    }

    #[test]
    fn what_is_not_limited_is_not_looked_at() {
        for volume in [
            json!({}),
            json!({"medium": "Memory", "sizeLimit": "1Mi"}),
            json!({"sizeLimit": "0"}),
        ] {
            let pod = pod(
                &json!({"containers": [{"name": "a"}], "volumes": [{"name": "v", "emptyDir": volume}]}),
            );
            assert!(!is_limited(&pod) && !counts_layers(&pod));
        }
    }

    #[test]
    fn a_round_looks_at_a_number_of_files_that_does_not_grow_with_the_volumes() {
        let dir = tempfile::tempdir().unwrap();
        for volume in ["a", "b", "c"] {
            write(&dir.path().join(volume).join("1"), 1);
            write(&dir.path().join(volume).join("2"), 1);
        }
        let mut round = Round(7);
        let look = |name: &str| round.usage(&dir.path().join(name)).more;
        // Three of each: the folder and its files.
        assert_eq!(["a", "b", "c"].map(look), [false, false, true]);
    }
}
