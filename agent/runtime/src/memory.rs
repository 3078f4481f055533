//! Finds out from a container's control group, at its end, whether memory ran out.
//!
//! containerd has an event for it. But an event is delivered once, to current subscribers only, and
//! there is none if a container ends at once, or its task is deleted before the shim has read the
//! kernel's counter. The kernel's counter exists as long as the group, until the task is deleted.

use std::path::{Path, PathBuf};

/// The mount of control groups.
const ROOT: &str = "/sys/fs/cgroup";

/// Whether the kernel killed a process in the group at `path` (the OCI specification's
/// `cgroupsPath`) because memory ran out. False also if the group is gone or has no counter.
pub(crate) fn ran_out(path: &str) -> bool {
    counted(Path::new(ROOT), path)
}

fn counted(root: &Path, path: &str) -> bool {
    let plain = Path::new(path)
        .components()
        .all(|part| !matches!(part, std::path::Component::ParentDir));
    let files: [PathBuf; 2] = [
        // Version 2: cgroup-v2.rst, memory.events; of the group and all below it.
        root.join(path.trim_start_matches('/'))
            .join("memory.events"),
        // Version 1: memory.rst, memory.oom_control, counted since Linux 4.13.
        root.join("memory")
            .join(path.trim_start_matches('/'))
            .join("memory.oom_control"),
    ];
    plain
        && files
            .iter()
            .any(|file| std::fs::read_to_string(file).is_ok_and(|text| kills(&text) > 0))
}

/// The value of `oom_kill` among lines of a name and a number.
fn kills(text: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    value
        .and_then(|value| value.trim().parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(file: &str, text: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
        root
    }

    #[test]
    fn both_versions_of_control_groups_are_read() {
        let two = "low 0\nhigh 0\nmax 31\noom 1\noom_kill 1\noom_group_kill 0\n";
        assert!(counted(
            group("pods/a/memory.events", two).path(),
            "/pods/a"
        ));
        let one = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n";
        assert!(counted(
            group("memory/pods/a/memory.oom_control", one).path(),
            "/pods/a"
        ));
    }

    #[test]
    fn no_group_without_an_oom_kill_and_no_missing_group_counts_as_one() {
        let calm = "oom 3\noom_kill 0\noom_group_kill 7\n";
        let root = group("pods/a/memory.events", calm);
        assert!(!counted(root.path(), "/pods/a"));
        assert!(!counted(root.path(), "/pods/b"));
        assert!(!counted(
            group("memory.events", "oom_kill 9\n").path(),
            "/pods/.."
        ));
        assert!(!counted(
            group("pods/a/memory.events", "oom_kill many\n").path(),
            "/pods/a"
        ));
    }
}
