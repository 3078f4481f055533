//! The control group of a pod that names resources for all of its containers together (KEP-2837).

use agent_runtime::Resources;
use agent_sys::cgroup::{Groups, Version};
use std::io;

/// Period of CPU limits in microseconds, the kernel's default.
const PERIOD: u64 = 100_000;
/// The least quota that the kernel takes, in microseconds.
const LEAST_QUOTA: u64 = 1000;

/// Makes the group, and gives it the limits.
///
/// # Errors
/// If the kernel refuses one.
pub(crate) fn limit(groups: &Groups, path: &str, limits: Resources) -> io::Result<()> {
    groups.make(path)?;
    let all = settings(groups.version(), limits).into_iter();
    let mut all = all.map(|(controller, file, text)| groups.write(controller, path, file, &text));
    all.try_for_each(|written| written)
}

/// What is written: controller, file and text.
fn settings(version: Version, limits: Resources) -> Vec<(&'static str, &'static str, String)> {
    let shares = (limits.cpu_request_millis.saturating_mul(1024) / 1000).clamp(2, 262_144);
    let quota = limits
        .cpu_limit_millis
        .map(|millis| (millis.saturating_mul(PERIOD) / 1000).max(LEAST_QUOTA));
    let memory = limits.memory_limit;
    match version {
        Version::One => {
            let set = |quota: u64| ("cpu", "cpu.cfs_quota_us", quota.to_string());
            let memory = memory.map(|bytes| ("memory", "memory.limit_in_bytes", bytes.to_string()));
            let shares = ("cpu", "cpu.shares", shares.to_string());
            [Some(shares), quota.map(set), memory]
        }
        Version::Two => {
            // The kernel's ranges of shares and weights, one led to the other as the runtime does.
            let weight = 1 + (shares - 2) * 9999 / 262_142;
            let set = |quota: u64| ("cpu", "cpu.max", format!("{quota} {PERIOD}"));
            let memory = memory.map(|bytes| ("memory", "memory.max", bytes.to_string()));
            let weight = ("cpu", "cpu.weight", weight.to_string());
            [Some(weight), quota.map(set), memory]
        }
    }
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    const POD: &str = "/kubepods/burstable/podu";

    fn limits() -> Resources {
        Resources {
            cpu_request_millis: 500,
            cpu_limit_millis: Some(1500),
            memory_limit: Some(1 << 30),
            pids_limit: None,
        }
    }

    /// A folder that looks like control groups, with these files in the pod's.
    fn groups(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        dir
    }

    fn text(dir: &Path, file: &str) -> String {
        fs::read_to_string(dir.join(file)).unwrap()
    }

    #[test]
    fn a_pod_s_group_has_its_limits_in_one_tree() {
        let pod = "kubepods/burstable/podu";
        let files = ["cpu.weight", "cpu.max", "memory.max"].map(|file| format!("{pod}/{file}"));
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let dir = groups(&files);
        for group in ["", "kubepods", "kubepods/burstable"] {
            let file = dir.path().join(group).join("cgroup.controllers");
            fs::write(file, "cpuset cpu memory\n").unwrap();
        }
        limit(&Groups::at(dir.path()), POD, limits()).unwrap();
        let written = ["cpu.weight", "cpu.max", "memory.max"];
        let written = written.map(|file| text(dir.path(), &format!("{pod}/{file}")));
        assert_eq!(written, ["20", "150000 100000", "1073741824"]);
        for group in ["", "kubepods/", "kubepods/burstable/"] {
            let handed = text(dir.path(), &format!("{group}cgroup.subtree_control"));
            assert_eq!(handed, "+cpu +memory");
        }
    }

    #[test]
    fn a_pod_s_group_has_its_limits_in_a_tree_for_each_controller() {
        let pod = "kubepods/burstable/podu";
        let all = [
            format!("cpu/{pod}/cpu.shares"),
            format!("cpu/{pod}/cpu.cfs_quota_us"),
            format!("memory/{pod}/memory.limit_in_bytes"),
            "pids/tasks".to_owned(),
        ];
        let files: Vec<&str> = all.iter().map(String::as_str).collect();
        let dir = groups(&files);
        limit(&Groups::at(dir.path()), POD, limits()).unwrap();
        let written = [0, 1, 2].map(|number| text(dir.path(), &all[number]));
        assert_eq!(written, ["512", "150000", "1073741824"]);
    }
}
