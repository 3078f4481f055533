//! Handles what a pod leaves on the machine: reads termination messages, and removes volumes,
//! folders, logs and control groups.

use crate::config::Config;
use crate::names::{log_folder, log_name, pod_logs};
use crate::shared::Shared;
use agent_launch::container::{MESSAGES, NAME_FILES, termination_file};
use agent_launch::{Machine, links, stage};
use agent_pods::{MAX_LOGS, PodFacts, find};
use agent_runtime::{ContainerKey, ContainerState, PodRef};
use agent_server::log_end;
use agent_sys::beneath::Beneath;
use agent_sys::mounted::detach_below;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest termination message (upstream's limit).
const MAX_MESSAGE: u64 = 4096;
/// Most lines and bytes of a log's end that stand for a termination message (upstream's limits).
const MAX_LOG_LINES: u64 = 80;
const MAX_LOG_MESSAGE: usize = 2048;
/// Directory entries that are removed in one turn: about a second's work.
const SLICE: u64 = 100_000;
/// Where control groups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The termination message of an attempt: its file, or the end of its log, by
/// `terminationMessagePolicy`.
pub(crate) fn termination_message(
    config: &Config,
    facts: PodFacts<'_>,
    id: &str,
) -> Option<String> {
    let seen = facts.seen.iter().find(|seen| seen.id == id)?;
    let words = Beneath::root(&config.machine.pod_dir(&seen.key.pod.uid)).ok();
    let words = words
        .and_then(|dir| tail(&dir, &termination_file(id), MAX_MESSAGE))
        .filter(|words| !words.is_empty());
    if words.is_some() {
        return words;
    }
    let (_, container) = find(facts.pod, &seen.key.container)?;
    let from_log = container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
    let failed = !matches!(seen.state, ContainerState::Exited { code: 0, .. });
    if !from_log || !failed {
        return None;
    }
    let dir = Beneath::root(&config.machine.logs)
        .ok()?
        .dir(&log_folder(&seen.key.pod, &seen.key.container))
        .ok()?;
    let name = log_name(seen.key.attempt);
    let end = log_end(dir, &name, MAX_LOG_LINES, MAX_LOG_MESSAGE).ok()?;
    (!end.is_empty()).then(|| String::from_utf8_lossy(&end).into_owned())
}

/// The last `limit` bytes of a file as text.
fn tail(dir: &Beneath, path: &Path, limit: u64) -> Option<String> {
    let bytes = dir.read_end(path, limit).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// What to remove of a pod whose containers have ended.
#[derive(Debug, Clone)]
pub(crate) enum Remains {
    /// The content of its volumes (emptyDirs, config maps, secrets, tokens, images), its files of
    /// name resolution, and of termination messages all but the end that is read. Logs stay.
    Volumes,
    /// All of its folders, its logs, the record of its eviction, and its control group, if that is
    /// known.
    All(Option<String>),
}

/// Removes what a pod has left, [`SLICE`] directory entries in each turn, so that a pod with
/// millions of them delays the removal of others by one turn at most.
///
/// # Errors
/// If something of it can't be removed. The next call continues where this one ended.
pub(crate) async fn clear_in_turns(
    shared: &Arc<Shared>,
    pod: &PodRef,
    remains: Remains,
) -> io::Result<()> {
    loop {
        let turn = shared.removals.turn(&pod.namespace).await;
        let (shared, pod, remains) = (shared.clone(), pod.clone(), remains.clone());
        let cleared = tokio::task::spawn_blocking(move || {
            // Held until the removal ends, also if nobody waits for it any more.
            let _turn = turn;
            clear(&shared.config, &pod, &remains, SLICE)
        });
        if cleared.await.map_err(io::Error::other)?? {
            return Ok(());
        }
    }
}

/// Removes it, but no more than `most` directory entries of the pod's folder on the disk; false if
/// some are left. A failure in memory, or with messages, does not keep the disk from being cleared.
fn clear(config: &Config, pod: &PodRef, remains: &Remains, most: u64) -> io::Result<bool> {
    let own = Path::new(&pod.uid);
    let volumes = own.join(Machine::EMPTY_DIRS);
    // Only the folder of its volumes: drivers unmount what they have mounted beside it.
    let folder: &Path = match remains {
        Remains::Volumes => &volumes,
        Remains::All(_) => own,
    };
    let in_memory = clear_memory(&config.machine, &pod.uid);
    let cut = match remains {
        Remains::Volumes => cut_files(&config.machine, own),
        Remains::All(_) => Ok(()),
    };
    let removed = clear_disk(&config.machine, folder, most)?;
    in_memory?;
    cut?;
    let Remains::All(cgroup) = remains else {
        return Ok(removed);
    };
    if !removed {
        return Ok(false);
    }
    remove(
        &config.machine.run,
        &Path::new(Machine::EVICTIONS).join(own),
    )?;
    links::forget(&config.machine, pod)?;
    remove(&config.machine.logs, &pod_logs(pod))?;
    for dir in cgroup.as_deref().map(cgroup_dirs).unwrap_or_default() {
        // Fails while processes are in the group; a group that stays is harmless.
        fs::remove_dir(dir).ok();
    }
    Ok(true)
}

/// Unmounts and removes what a pod's volumes have in memory, and image volumes. Mounts that
/// containers have made in a volume and shared with the machine are detached first: they would keep
/// the folder from being removed.
fn clear_memory(machine: &Machine, uid: &str) -> io::Result<()> {
    let [_on_disk, in_memory @ ..] = machine.folders_of_pods();
    for folder in in_memory {
        detach_below(&folder, Path::new(uid)).map_err(io::Error::other)?;
    }
    stage::forget(machine, uid)
}

/// Removes a folder below those of pods on the disk, as [`clear_memory`] does, but no more than
/// `most` directory entries; false if some are left.
fn clear_disk(machine: &Machine, folder: &Path, most: u64) -> io::Result<bool> {
    let parent = folder.parent().unwrap_or(Path::new(""));
    let Some(pods) = pods_with_own(machine, parent)? else {
        return Ok(true);
    };
    let [place, ..] = machine.folders_of_pods();
    detach_below(&place, folder).map_err(io::Error::other)?;
    pods.remove_some(folder, most)
}

/// Truncates a pod's termination messages to the part that is read, and removes its files of name
/// resolution: containers may have filled the disk with either. A failure with one does not keep
/// the others from being tried.
fn cut_files(machine: &Machine, own: &Path) -> io::Result<()> {
    let Some(pods) = pods_with_own(machine, &own.join(MESSAGES))? else {
        return Ok(());
    };
    let own = pods.dir(own)?;
    let removed = NAME_FILES.map(|name| own.remove_file(Path::new(name)));
    let messages = own.dir(Path::new(MESSAGES))?;
    let names = messages.names(usize::MAX)?;
    let cut = names.iter().map(|name| cut(&messages, Path::new(name)));
    let cut: Vec<io::Result<()>> = cut.collect();
    removed.into_iter().chain(cut).collect()
}

/// Truncates a file to the end that is read of it.
fn cut(messages: &Beneath, name: &Path) -> io::Result<()> {
    if messages.open(name)?.metadata()?.len() <= MAX_MESSAGE {
        return Ok(());
    }
    let end = messages.read_end(name, MAX_MESSAGE)?;
    // In place: a disk that the file has filled has no room for another one.
    messages.rewrite(name, 0o666)?.write_all(&end)
}

/// The folder of the pods on the disk; `None` if `folder` does not exist in it. An error if
/// `folder` is a mount or in one, which a driver or a container has put in its place.
fn pods_with_own(machine: &Machine, folder: &Path) -> io::Result<Option<Beneath>> {
    let [pods, ..] = machine.folders_of_pods();
    let found = || -> io::Result<Beneath> {
        let pods = Beneath::root(&pods)?;
        if pods.is_mount(folder)? {
            return Err(io::ErrorKind::CrossesDevices.into());
        }
        Ok(pods)
    };
    match found() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Removes a file or a tree below a folder, however deep it is.
fn remove(root: &Path, path: &Path) -> io::Result<()> {
    match Beneath::root(root) {
        Ok(root) => root.remove_tree(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes the log of a removed attempt, with its symlink and its rotated files.
pub(crate) fn clear_log(config: &Config, key: &ContainerKey) -> io::Result<()> {
    links::remove(&config.machine, key)?;
    let dir = match Beneath::root(&config.machine.logs)
        .and_then(|logs| logs.dir(&log_folder(&key.pod, &key.container)))
    {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let name = log_name(key.attempt);
    let aside = format!("{name}.");
    let names = dir.names(MAX_LOGS)?;
    let of_it = names
        .iter()
        .filter(|other| **other == *name || other.to_string_lossy().starts_with(&aside));
    of_it
        .map(Path::new)
        .try_for_each(|name| dir.remove_file(name))
}

/// Bytes of memory that a control group uses, if that can be read.
pub(crate) fn memory_of(cgroup: &str) -> Option<u64> {
    let mut dirs = cgroup_dirs(cgroup).into_iter();
    dirs.find_map(|dir| {
        let files = ["memory.current", "memory.usage_in_bytes"];
        let text = files
            .iter()
            .find_map(|file| fs::read_to_string(dir.join(file)).ok())?;
        text.trim().parse().ok()
    })
}

/// The control group's folder: one, or one for each controller with cgroup v1.
fn cgroup_dirs(cgroup: &str) -> Vec<PathBuf> {
    let root = Path::new(CGROUPS);
    let relative = cgroup.trim_start_matches('/');
    if root.join("cgroup.controllers").exists() {
        return vec![root.join(relative)];
    }
    let controllers = fs::read_dir(root)
        .into_iter()
        .flatten()
        .filter_map(Result::ok);
    controllers
        .map(|controller| controller.path().join(relative))
        .filter(|dir| dir.exists())
        .collect()
}

/// The uids of pods that have folders here, which an earlier run of the agent left.
pub(crate) fn left_uids(config: &Config) -> Vec<String> {
    let folders = config.machine.folders_of_pods();
    let names =
        |folder: &PathBuf| Beneath::root(folder).and_then(|folder| folder.names(usize::MAX));
    let all = folders
        .iter()
        .filter_map(|folder| names(folder).ok())
        .flatten();
    all.map(|name| name.to_string_lossy().into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;
    use agent_pods::Notes;
    use agent_sys::mount::{Limits, make_private, mount};
    use config_kube::k8s_openapi::api::core::v1::Pod;
    use jiff::Timestamp;
    use nix::sched::{CloneFlags, unshare};
    use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};
    use serde_json::json;
    use std::os::unix::fs::{FileExt as _, symlink};
    use tests_support::containers;

    /// A pod and its container `a`, which has ended.
    struct Ended {
        config: Config,
        pod: Pod,
        seen: [agent_runtime::Container; 1],
    }

    impl Ended {
        fn new(dir: &Path) -> Self {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"namespace": "n", "name": "p", "uid": "u"},
                "spec": {"containers": [{"name": "a"}]},
            }))
            .unwrap();
            let reference = agent_pods::pod_ref(&pod).unwrap();
            let exited = containers::container(reference, "a", ContainerState::Created);
            let ended = Self {
                config: config(dir),
                pod,
                seen: [exited],
            };
            fs::create_dir_all(ended.place().parent().unwrap()).unwrap();
            ended
        }

        /// The path of its termination message.
        fn place(&self) -> PathBuf {
            let dir = self.config.machine.pod_dir("u");
            dir.join(termination_file(&self.seen[0].id))
        }

        fn message(&self) -> Option<String> {
            let facts = PodFacts {
                pod: &self.pod,
                seen: &self.seen,
                notes: &Notes::default(),
                refused: false,
                now: Timestamp::UNIX_EPOCH,
            };
            termination_message(&self.config, facts, &self.seen[0].id)
        }
    }

    fn pod_ref() -> PodRef {
        PodRef {
            namespace: "n".into(),
            name: "p".into(),
            uid: "u".into(),
        }
    }

    /// Gives `work` a folder and a pod on a thread with a mount namespace of its own, whose mounts
    /// end with it.
    fn in_own_mounts(work: impl FnOnce(&Path, &PodRef) + Send + 'static) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let thread = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            make_private("/").unwrap();
            work(&path, &pod_ref());
        });
        thread.join().unwrap();
    }

    fn mount_memory(place: &Path) {
        fs::create_dir_all(place).unwrap();
        let limits = Limits::default();
        mount("tmpfs", &place.to_string_lossy(), "tmpfs", limits, "").unwrap();
    }

    #[test]
    fn nothing_but_a_file_is_opened_in_the_place_of_a_termination_message() {
        let dir = tempfile::tempdir().unwrap();
        let ended = Ended::new(dir.path());
        let (place, planted) = (ended.place(), dir.path().join("planted"));
        let rights = Mode::S_IRUSR | Mode::S_IWUSR;
        let watch = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).unwrap();
        let is_opened = |at: &Path| {
            fs::hard_link(at, &place).unwrap();
            watch.add_watch(at, AddWatchFlags::IN_OPEN).unwrap();
            let message = ended.message();
            fs::remove_file(&place).unwrap();
            watch.read_events().is_ok() || message.is_some()
        };
        fs::write(&planted, "of the container").unwrap();
        assert!(is_opened(&planted), "a file is what there is to read");

        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, rights).unwrap();
        // With an end that is open nobody waits for one: the test fails and does not hang.
        let end = fs::File::options()
            .read(true)
            .write(true)
            .open(&pipe)
            .unwrap();
        assert!(!is_opened(&pipe), "a pipe");
        drop(end);
        // Without one, an agent that opens it would wait for ever.
        assert!(!is_opened(&pipe), "a pipe with no other end");
        let zeros = dir.path().join("zeros");
        mknod(&zeros, SFlag::S_IFCHR, rights, makedev(1, 5)).unwrap();
        assert!(!is_opened(&zeros), "a device");

        for target in [&planted, &zeros] {
            symlink(target, &place).unwrap();
            watch.add_watch(target, AddWatchFlags::IN_OPEN).unwrap();
            assert_eq!(ended.message(), None, "a link to {}", target.display());
            assert!(watch.read_events().is_err(), "{}", target.display());
            fs::remove_file(&place).unwrap();
        }
    }

    #[test]
    fn the_end_of_a_termination_message_larger_than_memory_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let ended = Ended::new(dir.path());
        let file = fs::File::create(ended.place()).unwrap();
        let (end, length) = (b"the end", 1_u64 << 40);
        file.write_all_at(end, length - end.len() as u64).unwrap();
        let message = ended.message().unwrap();
        assert_eq!(message.len() as u64, MAX_MESSAGE);
        assert!(message.ends_with("the end"));
    }

    #[test]
    fn of_an_ended_pods_files_the_ends_of_its_messages_stay() {
        let dir = tempfile::tempdir().unwrap();
        let ended = Ended::new(dir.path());
        let (place, own) = (ended.place(), ended.config.machine.pod_dir("u"));
        let short = place.with_file_name("short");
        fs::write(&short, "short").unwrap();
        fs::write(&place, "x".repeat(1 << 20) + "the end").unwrap();
        let names = NAME_FILES.map(|name| own.join(name));
        for name in &names {
            fs::write(name, "written").unwrap();
        }
        let message = ended.message();
        // Of this one nothing can be cut.
        fs::create_dir(place.with_file_name("a folder")).unwrap();
        let pod = &ended.seen[0].key.pod;
        let clear = || clear(&ended.config, pod, &Remains::Volumes, u64::MAX);
        assert!(clear().is_err());
        fs::remove_dir(place.with_file_name("a folder")).unwrap();
        // The second time there is nothing to do.
        for _ in 0..2 {
            assert_eq!(fs::metadata(&place).unwrap().len(), MAX_MESSAGE);
            assert!(ended.message() == message && names.iter().all(|name| !name.exists()));
            assert_eq!(fs::read_to_string(&short).unwrap(), "short");
            assert!(clear().unwrap());
        }
        assert!(message.unwrap().ends_with("xthe end"));
    }

    #[test]
    fn the_end_of_a_log_stands_for_the_message_as_the_container_wrote_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut ended = Ended::new(dir.path());
        let folder = log_folder(&ended.seen[0].key.pod, "a");
        let folder = ended.config.machine.logs.join(folder);
        fs::create_dir_all(&folder).unwrap();
        let write = |lines: &[(&str, &str)]| {
            let line = |(tag, text): &(&str, &str)| {
                format!("2026-01-01T00:00:00.000000000Z stderr {tag} {text}\n")
            };
            let all: String = lines.iter().map(line).collect();
            fs::write(folder.join("0.log"), all).unwrap();
        };
        write(&[("F", "it is  over"), ("P", "one "), ("F", "line")]);
        assert_eq!(ended.message(), None, "the policy is another");
        let container = &mut ended.pod.spec.as_mut().unwrap().containers[0];
        container.termination_message_policy = Some("FallbackToLogsOnError".to_owned());
        assert_eq!(ended.message().unwrap(), "it is  over\none line\n");

        // As many lines as upstream takes, or as many bytes of them.
        write(&[("F", "short words"); 100]);
        assert_eq!(ended.message().unwrap(), "short words\n".repeat(80));
        let long = "x".repeat(99);
        write(&[("F", long.as_str()); 100]);
        let message = ended.message().unwrap();
        assert_eq!(message.len(), MAX_LOG_MESSAGE);
        assert!(message.ends_with(&format!("{long}\n")));

        fs::write(ended.place(), "the file").unwrap();
        assert_eq!(ended.message().unwrap(), "the file", "it comes first");
    }

    /// Needs root.
    #[test]
    fn mounts_that_a_container_left_in_a_volume_are_removed_with_the_pod() {
        in_own_mounts(|dir, pod| {
            let config = config(dir);
            let machine = &config.machine;
            let (own, held) = (machine.pod_dir("u"), machine.held_dir("u"));
            for folder in [&own, &held] {
                let place = folder.join("v/m");
                mount_memory(&place);
                fs::write(place.join("f"), "").unwrap();
            }
            assert!(clear(&config, pod, &Remains::All(None), u64::MAX).unwrap());
            assert!(!own.exists() && !held.exists());
        });
    }

    /// Needs root.
    #[test]
    fn volumes_are_removed_and_a_drivers_mounts_beside_them_stay() {
        in_own_mounts(|dir, pod| {
            let config = config(dir);
            let machine = &config.machine;
            let own = machine.pod_dir("u");
            let (disk, driven) = (own.join(Machine::EMPTY_DIRS), own.join("volumes/driver/v"));
            let memory = machine.memory_dir("u");
            for place in [&disk.join("v/m"), &driven, &memory.join("v")] {
                mount_memory(place);
                fs::write(place.join("f"), "").unwrap();
            }
            fs::write(own.join("message"), "").unwrap();
            // The second time nothing of it is there.
            for _ in 0..2 {
                assert!(clear(&config, pod, &Remains::Volumes, u64::MAX).unwrap());
                assert!(!disk.exists() && !memory.exists());
            }
            assert!(driven.join("f").exists() && own.join("message").exists());
        });
    }

    /// Needs root.
    #[test]
    fn what_is_mounted_in_the_place_of_a_pod_s_volumes_is_not_emptied() {
        in_own_mounts(|dir, pod| {
            let config = config(dir);
            let own = config.machine.pod_dir("u");
            for name in ["volumes", MESSAGES] {
                mount_memory(&own.join(name));
            }
            let long = vec![0; 1 << 20];
            let message = own.join(MESSAGES).join("m");
            let disk = own.join(Machine::EMPTY_DIRS);
            fs::write(&message, &long).unwrap();
            fs::create_dir(&disk).unwrap();
            fs::write(disk.join("f"), "").unwrap();
            let refused = clear(&config, pod, &Remains::Volumes, u64::MAX).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::CrossesDevices);
            assert!(disk.join("f").exists() && fs::read(&message).unwrap() == long);
            // With the pod the mounts go, and what is in them stays.
            assert!(clear(&config, pod, &Remains::All(None), u64::MAX).unwrap());
            assert!(!own.exists());
        });
    }

    #[test]
    fn the_end_of_a_long_file_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("f"), "0123456789").unwrap();
        let folder = Beneath::root(dir.path()).unwrap();
        assert_eq!(tail(&folder, Path::new("f"), 4).unwrap(), "6789");
        assert_eq!(tail(&folder, Path::new("f"), 40).unwrap(), "0123456789");
        assert_eq!(tail(&folder, Path::new("none"), 4), None);
    }

    #[test]
    fn a_tree_deeper_than_any_stack_is_removed() {
        // A hundred bytes of stack for each level.
        const LEVELS: usize = 2_500;
        const STACK: usize = 256 << 10;
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let pod = pod_ref();
        let root = config.machine.pod_dir(&pod.uid);
        fs::create_dir_all(&root).unwrap();
        let mut at = Beneath::root(&root).unwrap();
        for _ in 0..LEVELS {
            at = at.make_dirs(Path::new("d"), 0o700).unwrap();
        }
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK);
            let clear = || clear(&config, &pod, &Remains::All(None), u64::MAX);
            let cleared = thread.spawn_scoped(scope, clear);
            assert!(cleared.unwrap().join().unwrap().unwrap());
        });
        assert!(!root.exists());
    }

    /// With one thread for calls that block, and a pod with more names than one turn removes.
    #[test]
    fn the_removal_of_a_pod_with_many_files_delays_no_other_pod() {
        const NAMES: u64 = 3 * SLICE;
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let inside = runtime.enter();
        let shared = crate::kubelet::tests::shared(dir.path());
        drop(inside);
        let pod = |uid: &str| PodRef {
            namespace: uid.to_owned(),
            name: "p".to_owned(),
            uid: uid.to_owned(),
        };
        let folder = |uid: &str| shared.config.machine.pod_dir(uid);
        for uid in ["large", "small"] {
            fs::create_dir_all(folder(uid)).unwrap();
        }
        let first = folder("large").join("0");
        fs::write(&first, "").unwrap();
        // A file has some ten thousand names at most.
        let mut linked = first;
        for number in 1..NAMES {
            let name = folder("large").join(number.to_string());
            if number % 10_000 == 0 {
                fs::write(&name, "").unwrap();
                linked = name;
            } else {
                fs::hard_link(&linked, name).unwrap();
            }
        }
        runtime.block_on(async {
            let (large, small) = (pod("large"), pod("small"));
            let large = clear_in_turns(&shared, &large, Remains::All(None));
            let small = async {
                tokio::task::yield_now().await;
                let cleared = clear_in_turns(&shared, &small, Remains::All(None));
                cleared.await.unwrap();
                assert!(folder("large").exists(), "it went before the small one");
            };
            let (removed, ()) = tokio::join!(large, small);
            removed.unwrap();
        });
        assert!(!folder("large").exists() && !folder("small").exists());
    }
}
