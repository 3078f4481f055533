//! `/stats/summary`: figures in upstream's form (`stats/v1alpha1`, Summary); pure. Figures of
//! networks, of containers' disks and of volumes are left out, which the form allows.

use crate::reading::{Named, PodUsed, Reading, Used};
use jiff::Timestamp;
use serde::Serialize;

#[derive(Serialize)]
struct Summary<'a> {
    node: NodeStats<'a>,
    pods: Vec<PodStats<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeStats<'a> {
    node_name: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    system_containers: Vec<Container<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<String>,
    #[serde(flatten)]
    used: Measured,
    #[serde(skip_serializing_if = "Option::is_none")]
    fs: Option<FileSystem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rlimit: Option<Limit>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodStats<'a> {
    pod_ref: PodRef<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<String>,
    containers: Vec<Container<'a>>,
    #[serde(flatten)]
    used: Measured,
    #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
    processes: Option<Processes>,
}

#[derive(Serialize)]
struct PodRef<'a> {
    name: &'a str,
    namespace: &'a str,
    uid: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Container<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<String>,
    #[serde(flatten)]
    used: Measured,
}

#[derive(Serialize)]
struct Measured {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<Cpu>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap: Option<Swap>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Cpu {
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage_nano_cores: Option<u64>,
    usage_core_nano_seconds: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Memory {
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    available_bytes: Option<u64>,
    usage_bytes: u64,
    working_set_bytes: u64,
    rss_bytes: u64,
    page_faults: u64,
    major_page_faults: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Swap {
    time: String,
    swap_usage_bytes: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FileSystem {
    time: String,
    available_bytes: u64,
    capacity_bytes: u64,
    used_bytes: u64,
    inodes_free: u64,
    inodes: u64,
    inodes_used: u64,
}

#[derive(Serialize)]
struct Limit {
    time: String,
    curproc: u64,
}

#[derive(Serialize)]
struct Processes {
    process_count: u64,
}

/// A time as upstream writes it: to the second.
fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Measured {
    fn of(used: &Used) -> Self {
        let counters = &used.counters;
        let at = time(used.at);
        Self {
            cpu: counters.cpu.map(|cpu| Cpu {
                time: at.clone(),
                usage_nano_cores: used.nano_cores,
                usage_core_nano_seconds: cpu,
            }),
            memory: counters.memory.map(|memory| Memory {
                time: at.clone(),
                available_bytes: memory.available(),
                usage_bytes: memory.usage,
                working_set_bytes: memory.working_set,
                rss_bytes: memory.rss,
                page_faults: memory.faults,
                major_page_faults: memory.major_faults,
            }),
            swap: counters.swap.map(|bytes| Swap {
                time: at.clone(),
                swap_usage_bytes: bytes,
            }),
        }
    }
}

fn container(one: &Named) -> Container<'_> {
    Container {
        name: &one.name,
        start_time: one.used.started.map(time),
        used: Measured::of(&one.used),
    }
}

fn pod(pod: &PodUsed, all: bool) -> PodStats<'_> {
    let processes = pod.used.counters.processes.filter(|_| all);
    PodStats {
        pod_ref: PodRef {
            name: &pod.name,
            namespace: &pod.namespace,
            uid: &pod.uid,
        },
        start_time: pod.used.started.map(time),
        containers: pod.containers.iter().map(container).collect(),
        used: Measured::of(&pod.used),
        processes: processes.map(|process_count| Processes { process_count }),
    }
}

/// The answer for the node with this name.
pub(crate) fn text(name: &str, reading: &Reading, only_cpu_and_memory: bool) -> String {
    let all = !only_cpu_and_memory;
    let disk = &reading.disk;
    let fs = FileSystem {
        time: time(reading.at),
        available_bytes: disk.free,
        capacity_bytes: disk.size,
        used_bytes: disk.size.saturating_sub(disk.free),
        inodes_free: disk.free_inodes,
        inodes: disk.inodes,
        inodes_used: disk.inodes.saturating_sub(disk.free_inodes),
    };
    let node = &reading.node;
    let processes = node.counters.processes.filter(|_| all);
    let summary = Summary {
        node: NodeStats {
            node_name: name,
            system_containers: reading.system.iter().map(container).collect(),
            start_time: node.started.map(time),
            used: Measured::of(node),
            fs: all.then_some(fs),
            rlimit: processes.map(|curproc| Limit {
                time: time(reading.at),
                curproc,
            }),
        },
        pods: reading.pods.iter().map(|one| pod(one, all)).collect(),
    };
    // It contains only numbers and strings, so encoding cannot fail.
    serde_json::to_string(&summary).unwrap_or_default()
}
