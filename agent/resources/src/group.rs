//! Control groups of pods and of their service classes: how the processor is shared between pods,
//! and what a pod's containers may use together.
//!
//! The kernel shares the processor among the groups of one group. A container's part counts within
//! its pod, a pod's within its class (guaranteed pods are siblings of the other classes' groups).
//! So each pod and class needs a group: without them a pod that requests four processors would get
//! no more than one that requests none.

use crate::counters::Counters;
use crate::qos;
use agent_pressure::Level;
use agent_runtime::Resources;
use agent_sys::cgroup::{Groups, Version};
use config_kube::k8s_openapi::api::core::v1::Pod;
use std::io;

/// Period of CPU limits in microseconds, the kernel's default.
const PERIOD: u64 = 100_000;
/// The least quota that the kernel takes, in microseconds.
const LEAST_QUOTA: u64 = 1000;

/// The least and the most shares, by which the older form of control groups divides the processor.
const LEAST: u64 = 2;
const MOST: u64 = 262_144;

/// Makes a pod's group, and gives it its part of the processor and its limits.
///
/// # Errors
/// The group can't be made, or the kernel refuses to write one of its files; those before it are
/// written.
pub fn limit(groups: &Groups, path: &str, limits: Resources) -> io::Result<()> {
    groups.make(path)?;
    let all = settings(groups.version(), limits).into_iter();
    let mut all = all.map(|(controller, file, text)| groups.write(controller, path, file, &text));
    all.try_for_each(|written| written)
}

/// The memory that all pods together may still use beyond their working set, and their limit
/// (upstream's `allocatableMemory.available`). `None` where their group has no limit.
#[must_use]
pub fn memory_of_pods(groups: &Groups) -> Option<Level> {
    let read = |controller, file| groups.read(controller, qos::ALL_PODS, file).ok();
    let memory = Counters::of_group(groups.version(), read).memory?;
    Some(Level {
        available: memory.available()?,
        capacity: memory.limit?,
    })
}

/// The CPU that pods of the burstable class request together, in thousandths.
pub fn burstable_millis<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> u64 {
    let burstable = pods
        .into_iter()
        .filter(|pod| qos::class(pod) == "Burstable");
    let requests = burstable.map(|pod| qos::pod_resources(pod).cpu_request_millis);
    requests.fold(0, u64::saturating_add)
}

/// Gives the groups of the lower classes their parts of the processor: that of the pods which
/// request something what those request together, that of the others the least there is (upstream's
/// rule).
///
/// # Errors
/// As [`limit`], for either group.
pub fn weigh_classes(groups: &Groups, burstable_millis: u64) -> io::Result<()> {
    let classes = [(qos::BEST_EFFORT, 0), (qos::BURSTABLE, burstable_millis)];
    classes.into_iter().try_for_each(|(path, millis)| {
        let part = Resources {
            cpu_request_millis: millis,
            ..Resources::default()
        };
        limit(groups, path, part)
    })
}

/// The greater of each; no limit is greater than any.
#[must_use]
pub fn greater(one: Resources, other: Resources) -> Resources {
    let limit = |one: Option<u64>, other: Option<u64>| Some(one?.max(other?));
    Resources {
        cpu_request_millis: one.cpu_request_millis.max(other.cpu_request_millis),
        cpu_limit_millis: limit(one.cpu_limit_millis, other.cpu_limit_millis),
        memory_limit: limit(one.memory_limit, other.memory_limit),
        pids_limit: limit(one.pids_limit, other.pids_limit),
    }
}

/// What is written: controller, file and text.
fn settings(version: Version, limits: Resources) -> Vec<(&'static str, &'static str, String)> {
    let shares = (limits.cpu_request_millis.saturating_mul(1024) / 1000).clamp(LEAST, MOST);
    let quota = limits
        .cpu_limit_millis
        .map(|millis| (millis.saturating_mul(PERIOD) / 1000).max(LEAST_QUOTA));
    let memory = limits.memory_limit;
    let pids = limits.pids_limit;
    let pids = pids.map(|most| ("pids", "pids.max", most.to_string()));
    match version {
        Version::One => {
            let set = |quota: u64| ("cpu", "cpu.cfs_quota_us", quota.to_string());
            let memory = memory.map(|bytes| ("memory", "memory.limit_in_bytes", bytes.to_string()));
            let shares = ("cpu", "cpu.shares", shares.to_string());
            [Some(shares), quota.map(set), memory, pids]
        }
        Version::Two => {
            let weight = weight(shares);
            let set = |quota: u64| ("cpu", "cpu.max", format!("{quota} {PERIOD}"));
            let memory = memory.map(|bytes| ("memory", "memory.max", bytes.to_string()));
            let weight = ("cpu", "cpu.weight", weight.to_string());
            [Some(weight), quota.map(set), memory, pids]
        }
    }
    .into_iter()
    .flatten()
    .collect()
}

/// The weight of a group for these shares: the least, the default and the most of the one are those
/// of the other (upstream's function).
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "shares are few, and so are weights, which are above zero"
)]
fn weight(shares: u64) -> u64 {
    match shares {
        ..=LEAST => 1,
        MOST.. => 10_000,
        _ => {
            let log = (shares as f64).log2();
            let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
            10_f64.powf(exponent).ceil() as u64
        }
    }
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
            pids_limit: Some(400),
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
        let names = ["cpu.weight", "cpu.max", "memory.max", "pids.max"];
        let files = names.map(|file| format!("{pod}/{file}"));
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let dir = groups(&files);
        for group in ["", "kubepods", "kubepods/burstable"] {
            let file = dir.path().join(group).join("cgroup.controllers");
            fs::write(file, "cpuset cpu memory pids\n").unwrap();
        }
        limit(&Groups::at(dir.path()), POD, limits()).unwrap();
        let written = names.map(|file| text(dir.path(), &format!("{pod}/{file}")));
        assert_eq!(written, ["59", "150000 100000", "1073741824", "400"]);
        for group in ["", "kubepods/", "kubepods/burstable/"] {
            let handed = text(dir.path(), &format!("{group}cgroup.subtree_control"));
            assert_eq!(handed, "+cpu +memory +pids");
        }
    }

    #[test]
    fn a_pod_s_group_has_its_limits_in_a_tree_for_each_controller() {
        let pod = "kubepods/burstable/podu";
        let all = [
            format!("cpu/{pod}/cpu.shares"),
            format!("cpu/{pod}/cpu.cfs_quota_us"),
            format!("memory/{pod}/memory.limit_in_bytes"),
            format!("pids/{pod}/pids.max"),
        ];
        let files: Vec<&str> = all.iter().map(String::as_str).collect();
        let dir = groups(&files);
        limit(&Groups::at(dir.path()), POD, limits()).unwrap();
        let written = [0, 1, 2, 3].map(|number| text(dir.path(), &all[number]));
        assert_eq!(written, ["512", "150000", "1073741824", "400"]);
    }

    #[test]
    fn what_all_pods_may_still_use_is_their_limit_without_their_working_set() {
        let dir = groups(&["cgroup.controllers", "kubepods/cpu.weight"]);
        let all = Groups::at(dir.path());
        assert_eq!(memory_of_pods(&all), None);
        for (file, content) in [
            ("memory.current", "900\n"),
            ("memory.stat", "anon 500\ninactive_file 150\n"),
            ("memory.max", "max\n"),
        ] {
            fs::write(dir.path().join("kubepods").join(file), content).unwrap();
        }
        assert_eq!(memory_of_pods(&all), None, "no limit");
        let limits = Resources {
            memory_limit: Some(1000),
            ..Resources::default()
        };
        // The kernel takes the whole of what is written; in a plain file the rest would stay.
        fs::write(dir.path().join("kubepods/memory.max"), "").unwrap();
        limit(&all, qos::ALL_PODS, limits).unwrap();
        let level = Level {
            available: 250,
            capacity: 1000,
        };
        assert_eq!(memory_of_pods(&all), Some(level));
    }

    #[test]
    fn classes_have_the_part_of_the_processor_that_their_pods_request() {
        let pod = |resources: serde_json::Value| -> Pod {
            let containers = serde_json::json!([{"name": "a", "resources": resources}]);
            serde_json::from_value(serde_json::json!({"spec": {"containers": containers}})).unwrap()
        };
        let requests = |cpu: &str| pod(serde_json::json!({"requests": {"cpu": cpu}}));
        let limits = serde_json::json!({"limits": {"cpu": "8", "memory": "1Mi"}});
        let pods = [
            requests("2"),
            requests("500m"),
            pod(limits),
            pod(serde_json::json!({})),
        ];
        let millis = burstable_millis(&pods);
        assert_eq!(millis, 2500);
        let files = ["besteffort", "burstable"].map(|class| format!("kubepods/{class}/cpu.weight"));
        let dir = groups(&[
            &files[0],
            &files[1],
            "cgroup.controllers",
            "kubepods/cgroup.controllers",
        ]);
        weigh_classes(&Groups::at(dir.path()), millis).unwrap();
        let written = files.map(|file| text(dir.path(), &file));
        assert_eq!(written, ["1", "208"]);
    }

    #[test]
    fn the_least_the_default_and_the_most_are_led_to_each_other() {
        let known = [(0, 1), (2, 1), (512, 59), (1024, 100), (262_144, 10_000)];
        for (shares, wanted) in known {
            assert_eq!(weight(shares), wanted, "{shares}");
        }
        let all: Vec<u64> = (1..10_000).map(weight).collect();
        assert!(all.is_sorted());
    }
}
