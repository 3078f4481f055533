//! What a pod leaves on the machine: last words to read, folders and control groups to remove.

use crate::config::Config;
use crate::launch::termination_file;
use crate::machine::{View, containers};
use agent_runtime::{ContainerState, Kind, PodRef};
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Longest last words (upstream's limit).
const MAX_WORDS: u64 = 4096;
/// Longest end of a log that stands for last words (upstream's limit).
const MAX_LOG_WORDS: u64 = 2048;
/// Where control groups are.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The termination message of an attempt: its file, or the end of its log where the pod wishes that.
pub(crate) fn last_words(config: &Config, view: View<'_>, id: &str) -> Option<String> {
    let seen = view.seen.iter().find(|seen| seen.id == id)?;
    let words = tail(&termination_file(config, &seen.key.pod.uid, id), MAX_WORDS).filter(|words| !words.is_empty());
    if words.is_some() {
        return words;
    }
    let all = [Kind::Init, Kind::Main].into_iter().flat_map(|kind| containers(view.pod, kind));
    let container = all.into_iter().find(|container| container.name == seen.key.container)?;
    let from_log = container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
    let failed = !matches!(seen.state, ContainerState::Exited { code: 0, .. });
    if !from_log || !failed {
        return None;
    }
    let log = tail(&config.log_file(&seen.key.pod, &seen.key.container, seen.key.attempt), MAX_LOG_WORDS)?;
    let text = |line: &str| line.splitn(4, ' ').nth(3).map(str::to_owned);
    let lines: Vec<String> = log.lines().filter_map(text).collect();
    Some(lines.join("\n"))
}

/// The last `limit` bytes of a file.
fn tail(path: &Path, limit: u64) -> Option<String> {
    let mut file = fs::File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(limit))).ok()?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Removes a pod's folders, logs and control group.
pub(crate) fn clear(config: &Config, pod: &PodRef, cgroup: Option<&str>) -> io::Result<()> {
    for dir in [config.pod_dir(&pod.uid), config.log_dir(pod)] {
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    for dir in cgroup.map(cgroup_dirs).unwrap_or_default() {
        // It goes with its last process; what is left then is empty and harmless.
        fs::remove_dir(dir).ok();
    }
    Ok(())
}

/// The control group's folder: one, or one for each controller where the machine has version 1.
fn cgroup_dirs(cgroup: &str) -> Vec<PathBuf> {
    let root = Path::new(CGROUPS);
    let relative = cgroup.trim_start_matches('/');
    if root.join("cgroup.controllers").exists() {
        return vec![root.join(relative)];
    }
    let controllers = fs::read_dir(root).into_iter().flatten().filter_map(Result::ok);
    controllers.map(|controller| controller.path().join(relative)).filter(|dir| dir.exists()).collect()
}

/// Pods that have folders here, by uid: what an earlier run of the agent left.
pub(crate) fn left_uids(config: &Config) -> Vec<String> {
    let entries = fs::read_dir(config.data.join("pods")).into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_file_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "0123456789").unwrap();
        assert_eq!(tail(&path, 4).unwrap(), "6789");
        assert_eq!(tail(&path, 40).unwrap(), "0123456789");
        assert_eq!(tail(&dir.path().join("none"), 4), None);
    }
}
