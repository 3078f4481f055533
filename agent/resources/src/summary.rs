//! `/stats/summary`: figures in upstream's form (`stats/v1alpha1`, Summary).

use crate::disks::{Disks, Driven, PodSpace, Space, VolumeSpace, whole};
use crate::links::Link;
use crate::reading::{Named, PodUsed, Reading, Used};
use crate::stall::{Stall, Stalls};
use agent_runtime::ImageSpace;
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
    network: Option<Network<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fs: Option<FileSystem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<Runtime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rlimit: Option<Limit>,
}

/// The file system with images and containers' layers, of which images use so much. As upstream
/// has it where one file system holds both.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Runtime {
    image_fs: FileSystem,
    container_fs: FileSystem,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Network<'a>>,
    #[serde(rename = "volume", skip_serializing_if = "Vec::is_empty")]
    volumes: Vec<Volume<'a>>,
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    ephemeral: Option<FileSystem>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    rootfs: Option<FileSystem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logs: Option<FileSystem>,
}

#[derive(Serialize)]
struct Measured {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<Cpu>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap: Option<Swap>,
    #[serde(skip_serializing_if = "Option::is_none")]
    io: Option<Io>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Cpu {
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage_nano_cores: Option<u64>,
    usage_core_nano_seconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    psi: Option<Psi>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    psi: Option<Psi>,
}

#[derive(Serialize)]
struct Io {
    time: String,
    psi: Psi,
}

/// How long processes have waited: all of them, and some.
#[derive(Serialize)]
struct Psi {
    full: Waited,
    some: Waited,
}

/// Microseconds, as upstream's kubelet takes them from the kernel; percents.
#[derive(Serialize)]
struct Waited {
    total: u64,
    avg10: f64,
    avg60: f64,
    avg300: f64,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    used_bytes: Option<u64>,
    inodes_free: u64,
    inodes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    inodes_used: Option<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Volume<'a> {
    #[serde(flatten)]
    space: FileSystem,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pvc_ref: Option<ClaimRef<'a>>,
}

#[derive(Serialize)]
struct ClaimRef<'a> {
    name: &'a str,
    namespace: &'a str,
}

#[derive(Serialize)]
struct Network<'a> {
    time: String,
    /// The one by which packets leave, where there is one.
    #[serde(flatten)]
    default: Option<Interface<'a>>,
    interfaces: Vec<Interface<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Interface<'a> {
    name: &'a str,
    rx_bytes: u64,
    rx_errors: u64,
    tx_bytes: u64,
    tx_errors: u64,
}

#[derive(Serialize)]
struct Limit {
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    maxpid: Option<u64>,
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
                psi: counters.waits.cpu.map(Psi::of),
            }),
            memory: counters.memory.map(|memory| Memory {
                time: at.clone(),
                available_bytes: memory.available(),
                usage_bytes: memory.usage,
                working_set_bytes: memory.working_set,
                rss_bytes: memory.rss,
                page_faults: memory.faults,
                major_page_faults: memory.major_faults,
                psi: counters.waits.memory.map(Psi::of),
            }),
            swap: counters.swap.map(|bytes| Swap {
                time: at.clone(),
                swap_usage_bytes: bytes,
            }),
            io: counters.waits.io.map(|io| Io {
                time: at.clone(),
                psi: Psi::of(io),
            }),
        }
    }
}

impl Psi {
    fn of(stalls: Stalls) -> Self {
        let waited = |stall: Stall| {
            let [avg10, avg60, avg300] = stall.averages.map(|part| f64::from(part) / 100.0);
            Waited {
                total: stall.total,
                avg10,
                avg60,
                avg300,
            }
        };
        Self {
            full: waited(stalls.full),
            some: waited(stalls.some),
        }
    }
}

impl FileSystem {
    fn of(space: &Space, at: Timestamp) -> Self {
        Self {
            time: time(at),
            available_bytes: space.disk.free,
            capacity_bytes: space.disk.size,
            used_bytes: space.used,
            inodes_free: space.disk.free_inodes,
            inodes: space.disk.inodes,
            inodes_used: space.inodes_used,
        }
    }
}

impl<'a> Network<'a> {
    fn of(links: &'a [Link], default: Option<&str>, at: Timestamp) -> Option<Self> {
        let interface = |link: &'a Link| Interface {
            name: &link.name,
            rx_bytes: link.received.bytes,
            rx_errors: link.received.errors,
            tx_bytes: link.sent.bytes,
            tx_errors: link.sent.errors,
        };
        let is_default = |link: &&Link| Some(link.name.as_str()) == default;
        (!links.is_empty()).then(|| Self {
            time: time(at),
            default: links.iter().find(is_default).map(interface),
            interfaces: links.iter().map(interface).collect(),
        })
    }
}

fn container<'a>(one: &'a Named, found: Option<&PodSpace>) -> Container<'a> {
    let own = found.and_then(|found| Some((found.at, found.containers.get(&one.name)?)));
    Container {
        name: &one.name,
        start_time: one.used.started.map(time),
        used: Measured::of(&one.used),
        rootfs: own.and_then(|(at, own)| Some(FileSystem::of(own.root.as_ref()?, at))),
        logs: own.map(|(at, own)| FileSystem::of(&own.logs, at)),
    }
}

fn volume<'a>(namespace: &'a str, volume: &'a VolumeSpace, at: Timestamp) -> Volume<'a> {
    Volume {
        space: FileSystem::of(&volume.space, at),
        name: &volume.name,
        pvc_ref: volume
            .claim
            .as_deref()
            .map(|name| ClaimRef { name, namespace }),
    }
}

/// The figures of a pod; `found` is what is known of its part of disks, and `driven` what the
/// drivers of its volumes have said.
fn pod<'a>(
    pod: &'a PodUsed,
    found: Option<&'a PodSpace>,
    driven: &'a [Driven],
    all: bool,
) -> PodStats<'a> {
    let processes = pod.used.counters.processes.filter(|_| all);
    let containers = pod.containers.iter();
    let links = pod.link.as_ref().filter(|_| all);
    let volumes = found.map(|found| {
        let volumes = found.volumes.iter();
        volumes.map(move |one| volume(&pod.namespace, one, found.at))
    });
    let driven = driven.iter();
    let driven = driven.map(|reported| volume(&pod.namespace, &reported.volume, reported.at));
    PodStats {
        pod_ref: PodRef {
            name: &pod.name,
            namespace: &pod.namespace,
            uid: &pod.uid,
        },
        start_time: pod.used.started.map(time),
        containers: containers.map(|one| container(one, found)).collect(),
        used: Measured::of(&pod.used),
        network: links.and_then(|link| {
            let one = std::slice::from_ref(link);
            Network::of(one, Some(&link.name), pod.used.at)
        }),
        volumes: volumes.into_iter().flatten().chain(driven).collect(),
        ephemeral: found.map(|found| FileSystem::of(&found.ephemeral, found.at)),
        processes: processes.map(|process_count| Processes { process_count }),
    }
}

/// The answer for the node with this name. Without `disks` it has only CPU and memory.
pub(crate) fn text(name: &str, reading: &Reading, disks: Option<&Disks>) -> String {
    let all = disks.is_some();
    let disk = reading.disk;
    let fs = FileSystem::of(&whole(disk), reading.at);
    let node = &reading.node;
    let processes = node.counters.processes.filter(|_| all);
    let found: Vec<_> = reading
        .pods
        .iter()
        .map(|pod| disks?.found(&pod.uid))
        .collect();
    let driven = |pod: &PodUsed| disks.map(|disks| disks.driven(&pod.uid));
    let driven: Vec<_> = reading.pods.iter().map(driven).collect();
    let images = |images: ImageSpace| {
        let space = Space {
            used: Some(images.bytes),
            inodes_used: Some(images.inodes),
            disk,
        };
        Runtime {
            image_fs: FileSystem::of(&space, reading.at),
            container_fs: FileSystem::of(&space, reading.at),
        }
    };
    let links = Network::of(&reading.links, reading.default_link.as_deref(), reading.at);
    let system = reading.system.iter();
    let pods = reading.pods.iter().zip(found.iter().zip(&driven));
    let summary = Summary {
        node: NodeStats {
            node_name: name,
            system_containers: system.map(|one| container(one, None)).collect(),
            start_time: node.started.map(time),
            used: Measured::of(node),
            network: links.filter(|_| all),
            fs: all.then_some(fs),
            runtime: disks.and_then(Disks::images).map(images),
            rlimit: processes.map(|curproc| Limit {
                time: time(reading.at),
                maxpid: reading.most_ids,
                curproc,
            }),
        },
        pods: pods
            .map(|(one, (found, driven))| {
                let driven = driven.as_deref().unwrap_or_default();
                pod(one, found.as_deref(), driven, all)
            })
            .collect(),
    };
    // It contains only numbers and strings, so encoding cannot fail.
    serde_json::to_string(&summary).unwrap_or_default()
}
