//! What a pod leaves on the machine: termination messages to read, folders and control groups to
//! remove.

use crate::config::Config;
use crate::names::{log_folder, log_name, pod_logs};
use agent_launch::container::termination_file;
use agent_launch::stage;
use agent_pods::{MAX_LOGS, View, find};
use agent_runtime::{ContainerKey, ContainerState, PodRef};
use agent_sys::beneath::Beneath;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Longest termination message (upstream's limit).
const MAX_MESSAGE: u64 = 4096;
/// Longest end of a log that stands for a termination message (upstream's limit).
const MAX_LOG_MESSAGE: u64 = 2048;
/// Where control groups are.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The termination message of an attempt: its file, or the end of its log, by
/// `terminationMessagePolicy`.
pub(crate) fn termination_message(config: &Config, view: View<'_>, id: &str) -> Option<String> {
    let seen = view.seen.iter().find(|seen| seen.id == id)?;
    let words = Beneath::root(&config.machine.pod_dir(&seen.key.pod.uid)).ok();
    let words = words
        .and_then(|dir| tail(&dir, &termination_file(id), MAX_MESSAGE))
        .filter(|words| !words.is_empty());
    if words.is_some() {
        return words;
    }
    let (_, container) = find(view.pod, &seen.key.container)?;
    let from_log = container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
    let failed = !matches!(seen.state, ContainerState::Exited { code: 0, .. });
    if !from_log || !failed {
        return None;
    }
    let dir = Beneath::root(&config.machine.logs)
        .ok()?
        .dir(&log_folder(&seen.key.pod, &seen.key.container))
        .ok()?;
    let log = tail(
        &dir,
        Path::new(&log_name(seen.key.attempt)),
        MAX_LOG_MESSAGE,
    )?;
    let text = |line: &str| line.splitn(4, ' ').nth(3).map(str::to_owned);
    let lines: Vec<String> = log.lines().filter_map(text).collect();
    Some(lines.join("\n"))
}

/// The last `limit` bytes of a file as text.
fn tail(dir: &Beneath, path: &Path, limit: u64) -> Option<String> {
    let bytes = dir.read_end(path, limit).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Removes a pod's folders, logs and control group.
///
/// # Errors
/// If something of it can't be removed.
pub(crate) fn clear(config: &Config, pod: &PodRef, cgroup: Option<&str>) -> io::Result<()> {
    stage::forget(&config.machine, &pod.uid)?;
    remove(&config.machine.data.join("pods"), Path::new(&pod.uid))?;
    remove(&config.machine.logs, &pod_logs(pod))?;
    for dir in cgroup.map(cgroup_dirs).unwrap_or_default() {
        // The kernel removes it with its last process; a group that stays is empty and harmless.
        fs::remove_dir(dir).ok();
    }
    Ok(())
}

/// Removes what is at a path below a folder, however deep it is.
fn remove(root: &Path, path: &Path) -> io::Result<()> {
    match Beneath::root(root) {
        Ok(root) => root.remove_tree(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes the log of an attempt that is forgotten, with the files that were put aside of it.
pub(crate) fn clear_log(config: &Config, key: &ContainerKey) -> io::Result<()> {
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

/// The control group's folder: one, or one for each controller where the machine has version 1.
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

/// Pods that have folders here, by uid: what an earlier run of the agent left.
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
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let pod = PodRef {
            namespace: "n".into(),
            name: "p".into(),
            uid: "u".into(),
        };
        let root = config.machine.pod_dir(&pod.uid);
        fs::create_dir_all(&root).unwrap();
        let mut at = Beneath::root(&root).unwrap();
        for _ in 0..20_000 {
            at = at.make_dirs(Path::new("d"), 0o700).unwrap();
        }
        clear(&config, &pod, None).unwrap();
        assert!(!root.exists());
    }
}
