//! `/metrics/cadvisor`: figures under the names that cAdvisor has in upstream's kubelet, in
//! Prometheus' text format; pure.
//!
//! Control groups: processor time, its limits and throttling, memory, processes, what they are
//! given of each, what containers read from devices and write to them. Links: those of the machine
//! and of pods with a network of their own. The machine's size, and the file system with the pods'
//! data. Containers' parts of that are in `summary`.

use crate::io::DeviceIo;
use crate::links::Link;
use crate::reading::{Reading, Used};
use config_figures::{Figure, Text};
use jiff::Timestamp;

const NANOS: f64 = 1e9;
const MICROS: f64 = 1e6;

/// A control group by its labels.
struct Group<'a> {
    labels: String,
    /// The machine as a whole has no limits that were set.
    is_machine: bool,
    used: Used,
    programs: Option<u64>,
    links: &'a [Link],
    io: &'a [DeviceIo],
}

/// Reads one family's figure from a group.
type Take = fn(&Group<'_>) -> Option<Figure>;

/// A family: its name, its type, its help text, its own labels, and how to read it.
type Family = (&'static str, &'static str, &'static str, &'static str, Take);

const FAMILIES: [Family; 34] = [
    (
        "container_cpu_cfs_periods_total",
        "counter",
        "Number of elapsed enforcement period intervals.",
        "",
        |group| Some(group.used.counters.throttling?.periods.into()),
    ),
    (
        "container_cpu_cfs_throttled_periods_total",
        "counter",
        "Number of throttled period intervals.",
        "",
        |group| Some(group.used.counters.throttling?.throttled.into()),
    ),
    (
        "container_cpu_cfs_throttled_seconds_total",
        "counter",
        "Total time duration the container has been throttled.",
        "",
        |group| Some(real(group.used.counters.throttling?.waited, NANOS)),
    ),
    (
        "container_cpu_system_seconds_total",
        "counter",
        "Cumulative system cpu time consumed in seconds.",
        "",
        |group| Some(real(group.used.counters.split?.system, NANOS)),
    ),
    (
        "container_cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed in seconds.",
        "cpu=\"total\",",
        |group| Some(real(group.used.counters.cpu?, NANOS)),
    ),
    (
        "container_cpu_user_seconds_total",
        "counter",
        "Cumulative user cpu time consumed in seconds.",
        "",
        |group| Some(real(group.used.counters.split?.user, NANOS)),
    ),
    (
        "container_last_seen",
        "gauge",
        "Last time a container was seen by the exporter",
        "",
        |group| Some(seconds(group.used.at)),
    ),
    (
        "container_memory_cache",
        "gauge",
        "Number of bytes of page cache memory.",
        "",
        |group| Some(group.used.counters.memory?.cache.into()),
    ),
    (
        "container_memory_failcnt",
        "counter",
        "Number of memory usage hits limits",
        "",
        |group| Some(group.used.counters.refusals?.into()),
    ),
    (
        "container_memory_failures_total",
        "counter",
        "Cumulative count of memory allocation failures.",
        "failure_type=\"pgfault\",scope=\"hierarchy\",",
        |group| Some(group.used.counters.memory?.faults.into()),
    ),
    (
        "container_memory_failures_total",
        "counter",
        "",
        "failure_type=\"pgmajfault\",scope=\"hierarchy\",",
        |group| Some(group.used.counters.memory?.major_faults.into()),
    ),
    (
        "container_memory_mapped_file",
        "gauge",
        "Size of memory mapped files in bytes.",
        "",
        |group| Some(group.used.counters.memory?.mapped.into()),
    ),
    (
        "container_memory_max_usage_bytes",
        "gauge",
        "Maximum memory usage recorded in bytes",
        "",
        |group| Some(group.used.counters.memory?.peak?.into()),
    ),
    (
        "container_memory_rss",
        "gauge",
        "Size of RSS in bytes.",
        "",
        |group| Some(group.used.counters.memory?.rss.into()),
    ),
    (
        "container_memory_swap",
        "gauge",
        "Container swap usage in bytes.",
        "",
        |group| Some(group.used.counters.swap?.into()),
    ),
    (
        "container_memory_usage_bytes",
        "gauge",
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
        "",
        |group| Some(group.used.counters.memory?.usage.into()),
    ),
    (
        "container_memory_working_set_bytes",
        "gauge",
        "Current working set in bytes.",
        "",
        |group| Some(group.used.counters.memory?.working_set.into()),
    ),
    (
        "container_oom_events_total",
        "counter",
        "Count of out of memory events observed for the container",
        "",
        |group| Some(group.used.counters.oom_kills?.into()),
    ),
    (
        "container_pressure_cpu_stalled_seconds_total",
        "counter",
        "Total time duration no tasks in the container could make progress due to CPU congestion.",
        "",
        |group| Some(real(group.used.counters.waits.cpu?.full.total, MICROS)),
    ),
    (
        "container_pressure_cpu_waiting_seconds_total",
        "counter",
        "Total time duration tasks in the container have waited due to CPU congestion.",
        "",
        |group| Some(real(group.used.counters.waits.cpu?.some.total, MICROS)),
    ),
    (
        "container_pressure_io_stalled_seconds_total",
        "counter",
        "Total time duration no tasks in the container could make progress due to IO congestion.",
        "",
        |group| Some(real(group.used.counters.waits.io?.full.total, MICROS)),
    ),
    (
        "container_pressure_io_waiting_seconds_total",
        "counter",
        "Total time duration tasks in the container have waited due to IO congestion.",
        "",
        |group| Some(real(group.used.counters.waits.io?.some.total, MICROS)),
    ),
    (
        "container_pressure_memory_stalled_seconds_total",
        "counter",
        "Total time duration no tasks in the container could make progress due to memory congestion.",
        "",
        |group| Some(real(group.used.counters.waits.memory?.full.total, MICROS)),
    ),
    (
        "container_pressure_memory_waiting_seconds_total",
        "counter",
        "Total time duration tasks in the container have waited due to memory congestion.",
        "",
        |group| Some(real(group.used.counters.waits.memory?.some.total, MICROS)),
    ),
    (
        "container_processes",
        "gauge",
        "Number of processes running inside the container.",
        "",
        |group| Some(group.programs?.into()),
    ),
    (
        "container_spec_cpu_period",
        "gauge",
        "CPU period of the container.",
        "",
        |group| Some(group.used.counters.given.period?.into()),
    ),
    (
        "container_spec_cpu_quota",
        "gauge",
        "CPU quota of the container.",
        "",
        |group| Some(group.used.counters.throttling?.quota.into()),
    ),
    (
        "container_spec_cpu_shares",
        "gauge",
        "CPU share of the container.",
        "",
        |group| Some(group.used.counters.given.shares?.into()),
    ),
    (
        "container_spec_memory_limit_bytes",
        "gauge",
        "Memory limit for the container; 0 where there is none.",
        "",
        limit,
    ),
    (
        "container_spec_memory_reservation_limit_bytes",
        "gauge",
        "Memory reservation limit for the container.",
        "",
        |group| Some(group.used.counters.given.reservation?.into()),
    ),
    (
        "container_spec_memory_swap_limit_bytes",
        "gauge",
        "Memory swap limit for the container.",
        "",
        |group| Some(group.used.counters.given.swap?.into()),
    ),
    (
        "container_start_time_seconds",
        "gauge",
        "Start time of the container since unix epoch in seconds.",
        "",
        |group| Some(seconds(group.used.started?)),
    ),
    (
        "container_threads",
        "gauge",
        "Number of threads running inside the container",
        "",
        |group| Some(group.used.counters.processes?.into()),
    ),
    (
        "container_threads_max",
        "gauge",
        "Maximum number of threads allowed inside the container, infinity if value is zero",
        "",
        |group| Some(group.used.counters.given.threads?.into()),
    ),
];

/// The end of a name, the help text, and how to read it.
type OfLink = (&'static str, &'static str, fn(&Link) -> u64);
type OfDevice = (&'static str, &'static str, fn(&DeviceIo) -> u64);

/// Families of links.
const OF_LINKS: [OfLink; 8] = [
    (
        "receive_bytes_total",
        "Cumulative count of bytes received",
        |link| link.received.bytes,
    ),
    (
        "receive_errors_total",
        "Cumulative count of errors encountered while receiving",
        |link| link.received.errors,
    ),
    (
        "receive_packets_dropped_total",
        "Cumulative count of packets dropped while receiving",
        |link| link.received.dropped,
    ),
    (
        "receive_packets_total",
        "Cumulative count of packets received",
        |link| link.received.packets,
    ),
    (
        "transmit_bytes_total",
        "Cumulative count of bytes transmitted",
        |link| link.sent.bytes,
    ),
    (
        "transmit_errors_total",
        "Cumulative count of errors encountered while transmitting",
        |link| link.sent.errors,
    ),
    (
        "transmit_packets_dropped_total",
        "Cumulative count of packets dropped while transmitting",
        |link| link.sent.dropped,
    ),
    (
        "transmit_packets_total",
        "Cumulative count of packets transmitted",
        |link| link.sent.packets,
    ),
];

/// Families of devices.
const OF_DEVICES: [OfDevice; 4] = [
    (
        "reads_bytes_total",
        "Cumulative count of bytes read",
        |io| io.read_bytes,
    ),
    ("reads_total", "Cumulative count of reads completed", |io| {
        io.reads
    }),
    (
        "writes_bytes_total",
        "Cumulative count of bytes written",
        |io| io.written_bytes,
    ),
    (
        "writes_total",
        "Cumulative count of writes completed",
        |io| io.writes,
    ),
];

fn limit(group: &Group<'_>) -> Option<Figure> {
    let memory = group.used.counters.memory.filter(|_| !group.is_machine)?;
    Some(memory.limit.unwrap_or_default().into())
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the format's numbers are floating-point"
)]
fn real(value: u64, divisor: f64) -> Figure {
    (value as f64 / divisor).into()
}

fn seconds(at: Timestamp) -> Figure {
    at.as_second().into()
}

/// The labels of a group in cAdvisor's order. Names, ids and paths of groups need no escaping; an
/// image name is what a pod's author wrote.
fn labels(id: &str, [container, image, name]: [&str; 3], [namespace, pod]: [&str; 2]) -> String {
    let image = image.replace('\\', "\\\\").replace('"', "\\\"");
    let image = image.replace('\n', "\\n");
    format!(
        "container=\"{container}\",id=\"{id}\",image=\"{image}\",name=\"{name}\",namespace=\"{namespace}\",pod=\"{pod}\""
    )
}

/// The machine, its own programs, pods, and containers.
fn groups(reading: &Reading) -> Vec<Group<'_>> {
    let group = |labels, used| Group {
        labels,
        is_machine: false,
        used,
        programs: None,
        links: &[],
        io: &[],
    };
    let plain = |id: &str| labels(id, [""; 3], [""; 2]);
    let mut all = vec![Group {
        is_machine: true,
        links: &reading.links,
        ..group(plain("/"), reading.node)
    }];
    let system = reading.system.iter();
    all.extend(system.map(|one| group(plain(&one.group), one.used)));
    for pod in &reading.pods {
        let of = [pod.namespace.as_str(), pod.name.as_str()];
        all.push(Group {
            links: pod.link.as_slice(),
            ..group(labels(&pod.group, [""; 3], of), pod.used)
        });
        for one in &pod.containers {
            // The last part of the group's name is the container's id.
            let (_, id) = one.group.rsplit_once('/').unwrap_or_default();
            let own = [one.name.as_str(), one.image.as_str(), id];
            all.push(Group {
                programs: one.programs,
                io: &one.io,
                ..group(labels(&one.group, own, of), one.used)
            });
        }
    }
    all
}

/// What links and devices have carried.
fn carried(text: &mut Text, groups: &[Group<'_>]) {
    let name = "container_blkio_device_usage_total";
    text.family(name, "counter", "Blkio Device bytes usage");
    for group in groups {
        for io in group.io {
            let (major, minor) = io.numbers.split_once(':').unwrap_or_default();
            for (operation, bytes) in [("Read", io.read_bytes), ("Write", io.written_bytes)] {
                let labels = format!(
                    "device=\"{}\",major=\"{major}\",minor=\"{minor}\",operation=\"{operation}\",{}",
                    io.device, group.labels
                );
                text.sample_at(name, &labels, bytes, group.used.at.as_millisecond());
            }
        }
    }
    for (name, help, take) in OF_DEVICES {
        let name = format!("container_fs_{name}");
        text.family(&name, "counter", help);
        for group in groups {
            for io in group.io {
                let labels = format!("device=\"{}\",{}", io.device, group.labels);
                text.sample_at(&name, &labels, take(io), group.used.at.as_millisecond());
            }
        }
    }
    for (name, help, take) in OF_LINKS {
        let name = format!("container_network_{name}");
        text.family(&name, "counter", help);
        for group in groups {
            for link in group.links {
                let labels = format!("interface=\"{}\",{}", link.name, group.labels);
                text.sample_at(&name, &labels, take(link), group.used.at.as_millisecond());
            }
        }
    }
}

/// The answer.
pub(crate) fn text(reading: &Reading) -> String {
    let mut text = Text::default();
    let groups = groups(reading);
    let mut last = "";
    for (name, kind, help, own, take) in FAMILIES {
        if name != last {
            text.family(name, kind, help);
            last = name;
        }
        for group in &groups {
            if let Some(value) = take(group) {
                let labels = format!("{own}{}", group.labels);
                text.sample_at(name, &labels, value, group.used.at.as_millisecond());
            }
        }
    }
    carried(&mut text, &groups);
    disk(&mut text, reading);
    let error = "1 if there was an error while getting container metrics, 0 otherwise";
    let incomplete = u64::from(reading.incomplete);
    text.single("container_scrape_error", "gauge", error, incomplete);
    if reading.cores > 0 {
        let cores = "Number of logical CPU cores.";
        text.single("machine_cpu_cores", "gauge", cores, reading.cores);
    }
    if let Some(bytes) = reading.node.counters.memory.and_then(|memory| memory.limit) {
        let memory = "Amount of memory installed on the machine.";
        text.single("machine_memory_bytes", "gauge", memory, bytes);
    }
    text.finish()
}

/// The file system with the pods' data, as the machine's own.
fn disk(text: &mut Text, reading: &Reading) {
    let (disk, at) = (&reading.disk, reading.at.as_millisecond());
    if disk.size == 0 {
        return;
    }
    let labels = labels("/", [""; 3], [""; 2]);
    for (name, help, value) in [
        (
            "container_fs_inodes_free",
            "Number of available Inodes",
            disk.free_inodes,
        ),
        ("container_fs_inodes_total", "Number of Inodes", disk.inodes),
        (
            "container_fs_limit_bytes",
            "Number of bytes that can be consumed by the container on this filesystem.",
            disk.size,
        ),
        (
            "container_fs_usage_bytes",
            "Number of bytes that are consumed by the container on this filesystem.",
            disk.size.saturating_sub(disk.free),
        ),
    ] {
        text.family(name, "gauge", help);
        text.sample_at(name, &labels, value, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_can_not_end_its_label() {
        let labels = labels("/a", ["c", "x\\\"}\n", "n"], ["s", "p"]);
        assert_eq!(
            labels,
            r#"container="c",id="/a",image="x\\\"}\n",name="n",namespace="s",pod="p""#
        );
    }
}
