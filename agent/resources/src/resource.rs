//! `/metrics/resource`: figures under upstream's names, in Prometheus' text format; pure.

use crate::reading::{Reading, Used};
use config_figures::{Figure, Text};
use jiff::Timestamp;

const NANOS: f64 = 1e9;

/// Reads one family's figure from the usage.
type Take = fn(&Used) -> Option<Figure>;

#[expect(
    clippy::cast_precision_loss,
    reason = "the format's numbers are floating-point"
)]
fn cpu(used: &Used) -> Option<Figure> {
    Some((used.counters.cpu? as f64 / NANOS).into())
}

fn memory(used: &Used) -> Option<Figure> {
    Some(used.counters.memory?.working_set.into())
}

fn swap(used: &Used) -> Option<Figure> {
    Some(used.counters.swap?.into())
}

/// Families of nodes, pods and containers: the end of the name, the type, the help text, and how to
/// read it.
const FAMILIES: [(&str, &str, &str, Take); 3] = [
    (
        "cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed by the",
        cpu,
    ),
    (
        "memory_working_set_bytes",
        "gauge",
        "Current working set in bytes of the",
        memory,
    ),
    (
        "swap_usage_bytes",
        "gauge",
        "Current amount of the swap in bytes of the",
        swap,
    ),
];

/// Writes a family: its name, and samples with their labels.
fn write(text: &mut Text, of: &str, samples: &[(String, Used)]) {
    for (name, kind, help, take) in FAMILIES {
        let name = format!("{of}_{name}");
        text.family(&name, kind, &format!("{help} {of}"));
        for (labels, used) in samples {
            if let Some(value) = take(used) {
                text.sample_at(&name, labels, value, used.at.as_millisecond());
            }
        }
    }
}

/// The answer.
pub(crate) fn text(reading: &Reading) -> String {
    let mut text = Text::default();
    // Names of pods and containers are names by RFC 1123, which need no escaping.
    let pods = reading.pods.iter();
    let of_pods: Vec<(String, Used)> = pods
        .map(|pod| {
            let labels = format!("namespace=\"{}\",pod=\"{}\"", pod.namespace, pod.name);
            (labels, pod.used)
        })
        .collect();
    let containers = reading.pods.iter().zip(&of_pods);
    let of_containers: Vec<(String, Used)> = containers
        .flat_map(|(pod, (labels, _))| {
            let all = pod.containers.iter();
            all.map(move |one| (format!("container=\"{}\",{labels}", one.name), one.used))
        })
        .collect();
    write(&mut text, "node", &[(String::new(), reading.node)]);
    write(&mut text, "pod", &of_pods);
    write(&mut text, "container", &of_containers);
    let started = "container_start_time_seconds";
    text.family(
        started,
        "gauge",
        "Start time of the container since unix epoch in seconds",
    );
    for (labels, used) in &of_containers {
        if let Some(at) = used.started {
            text.sample(started, labels, seconds(at));
        }
    }
    for name in ["resource_scrape_error", "scrape_error"] {
        let help = "1 if there was an error while getting container metrics, 0 otherwise";
        text.single(name, "gauge", help, u64::from(reading.incomplete));
    }
    text.finish()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds since 1970 fit into the 53 bits of a floating-point number"
)]
fn seconds(at: Timestamp) -> f64 {
    at.as_millisecond() as f64 / 1000.0
}
