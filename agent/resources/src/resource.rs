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

/// A family of nodes, pods and containers.
struct Family {
    /// The end of its name, after `node_`, `pod_` or `container_`.
    suffix: &'static str,
    /// Its type.
    kind: &'static str,
    /// Its help text but for the last word, which is `node`, `pod` or `container`.
    help: &'static str,
    take: Take,
}

const FAMILIES: [Family; 3] = [
    Family {
        suffix: "cpu_usage_seconds_total",
        kind: "counter",
        help: "Cumulative cpu time consumed by the",
        take: cpu,
    },
    Family {
        suffix: "memory_working_set_bytes",
        kind: "gauge",
        help: "Current working set in bytes of the",
        take: memory,
    },
    Family {
        suffix: "swap_usage_bytes",
        kind: "gauge",
        help: "Current amount of the swap in bytes of the",
        take: swap,
    },
];

/// What one node, pod or container has used.
struct Sample {
    labels: String,
    used: Used,
}

/// Writes all families of what `of` names: `node`, `pod` or `container`.
fn write(text: &mut Text, of: &str, samples: &[Sample]) {
    for family in FAMILIES {
        let name = format!("{of}_{}", family.suffix);
        text.family(&name, family.kind, &format!("{} {of}", family.help));
        for Sample { labels, used } in samples {
            if let Some(value) = (family.take)(used) {
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
    let of_pods: Vec<Sample> = pods
        .map(|pod| Sample {
            labels: format!("namespace=\"{}\",pod=\"{}\"", pod.namespace, pod.name),
            used: pod.used,
        })
        .collect();
    let containers = reading.pods.iter().zip(&of_pods);
    let of_containers: Vec<Sample> = containers
        .flat_map(|(pod, of_pod)| {
            let all = pod.containers.iter();
            all.map(move |one| Sample {
                labels: format!("container=\"{}\",{}", one.name, of_pod.labels),
                used: one.used,
            })
        })
        .collect();
    let of_node = Sample {
        labels: String::new(),
        used: reading.node,
    };
    write(&mut text, "node", &[of_node]);
    write(&mut text, "pod", &of_pods);
    write(&mut text, "container", &of_containers);
    let started = "container_start_time_seconds";
    text.family(
        started,
        "gauge",
        "Start time of the container since unix epoch in seconds",
    );
    for Sample { labels, used } in &of_containers {
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
