//! `/metrics/probes`: results of probes, under upstream's names, in Prometheus' text format.
//!
//! Bounded: one series for each probe of a present container, [`MAX_PROBES`] at most; they are
//! dropped with their pod.

use config_figures::{Histogram, Text};
use config_kube::k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most probes that are counted; further ones are not.
const MAX_PROBES: usize = 4096;
/// Upper bounds of durations in seconds (Prometheus' defaults, as upstream's).
const BOUNDS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// One probe of a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    namespace: String,
    pod: String,
    container: String,
    /// `Liveness`, `Readiness` or `Startup`.
    role: &'static str,
    uid: String,
}

impl Key {
    /// The labels of a duration. Like upstream's they have no UID, so pods of the same name share
    /// them.
    fn labels(&self) -> String {
        let Self {
            namespace,
            pod,
            container,
            role,
            uid: _,
        } = self;
        // Names by RFC 1123 and words of this program, which need no escaping.
        format!(
            "container=\"{container}\",namespace=\"{namespace}\",pod=\"{pod}\",probe_type=\"{role}\""
        )
    }
}

/// The results.
#[derive(Debug, Clone, Default)]
struct Counts {
    failed: u64,
    passed: u64,
    times: Times,
}

/// The durations of passed probes.
type Times = Histogram<{ BOUNDS.len() }>;

/// The results of the probes of a node's pods; clones count together.
#[derive(Debug, Clone, Default)]
pub struct Probed(Arc<Mutex<BTreeMap<Key, Counts>>>);

impl Probed {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Counts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a probe of a container by its role (`Liveness`, `Readiness`, `Startup`), and the time
    /// of one that passed.
    pub fn count(
        &self,
        pod: &Pod,
        container: &str,
        role: &'static str,
        passed: bool,
        took: Duration,
    ) {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let key = Key {
            namespace: text(&pod.metadata.namespace),
            pod: text(&pod.metadata.name),
            container: container.to_owned(),
            role,
            uid: text(&pod.metadata.uid),
        };
        let mut all = self.lock();
        if all.len() >= MAX_PROBES && !all.contains_key(&key) {
            return;
        }
        let counts = all.entry(key).or_default();
        if passed {
            counts.passed = counts.passed.saturating_add(1);
            counts.times.add(&BOUNDS, took);
        } else {
            counts.failed = counts.failed.saturating_add(1);
        }
    }

    /// Drops pods that are gone, by their UID.
    pub(crate) fn retain(&self, is_here: impl Fn(&str) -> bool) {
        self.lock().retain(|key, _| is_here(&key.uid));
    }

    /// The answer.
    pub(crate) fn text(&self) -> String {
        let all = self.lock().clone();
        let mut text = Text::default();
        let total = "prober_probe_total";
        text.family(
            total,
            "counter",
            "Cumulative number of a liveness, readiness or startup probe for a container by result.",
        );
        let mut times: BTreeMap<String, Times> = BTreeMap::new();
        for (key, counts) in &all {
            let (labels, uid) = (key.labels(), &key.uid);
            for (result, count) in [("failed", counts.failed), ("successful", counts.passed)] {
                if count > 0 {
                    let labels = format!("{labels},pod_uid=\"{uid}\",result=\"{result}\"");
                    text.sample(total, &labels, count);
                }
            }
            if counts.passed > 0 {
                times.entry(labels).or_default().merge(&counts.times);
            }
        }
        let duration = "prober_probe_duration_seconds";
        text.family(
            duration,
            "histogram",
            "Duration in seconds of probes that passed.",
        );
        for (labels, times) in &times {
            times.write(&mut text, duration, labels, &BOUNDS);
        }
        text.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, uid: &str) -> Pod {
        let meta = json!({"namespace": "default", "name": name, "uid": uid});
        serde_json::from_value(json!({"metadata": meta})).unwrap()
    }

    fn lines(text: &str, family: &str) -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with(family));
        lines.map(str::to_owned).collect()
    }

    const TOOK: Duration = Duration::from_millis(250);

    #[test]
    fn probes_are_counted_by_result_and_passed_ones_by_duration() {
        let probed = Probed::default();
        let pod = pod("a", "uid-a");
        probed.count(&pod, "main", "Readiness", false, TOOK);
        probed.count(&pod, "main", "Readiness", true, TOOK);
        probed.count(&pod, "main", "Readiness", true, Duration::from_secs(60));
        probed.count(&pod, "main", "Liveness", false, TOOK);
        let text = probed.text();
        let of = |role: &str| {
            format!("container=\"main\",namespace=\"default\",pod=\"a\",probe_type=\"{role}\"")
        };
        let (lives, ready) = (of("Liveness"), of("Readiness"));
        assert_eq!(
            lines(&text, "prober_probe_total{"),
            [
                format!("prober_probe_total{{{lives},pod_uid=\"uid-a\",result=\"failed\"}} 1"),
                format!("prober_probe_total{{{ready},pod_uid=\"uid-a\",result=\"failed\"}} 1"),
                format!("prober_probe_total{{{ready},pod_uid=\"uid-a\",result=\"successful\"}} 2"),
            ]
        );
        let times = lines(&text, "prober_probe_duration_seconds_");
        assert_eq!(times.len(), 14, "one histogram: {times:?}");
        for (end, value) in [
            ("_bucket{L,le=\"0.1\"}", "0"),
            ("_bucket{L,le=\"0.25\"}", "1"),
            ("_bucket{L,le=\"10\"}", "1"),
            ("_bucket{L,le=\"+Inf\"}", "2"),
            ("_sum{L}", "60.25"),
            ("_count{L}", "2"),
        ] {
            let end = end.replace('L', &ready);
            let line = format!("prober_probe_duration_seconds{end} {value}");
            assert!(times.contains(&line), "{line}: {times:?}");
        }
    }

    #[test]
    fn pods_of_one_name_share_a_histogram_and_each_goes_with_its_pod() {
        let probed = Probed::default();
        for uid in ["old", "new"] {
            probed.count(&pod("a", uid), "main", "Startup", true, TOOK);
        }
        let count = "prober_probe_duration_seconds_count{";
        let [both] = &lines(&probed.text(), count)[..] else {
            panic!("no series occurs twice");
        };
        assert!(both.ends_with(" 2"), "{both}");
        probed.retain(|uid| uid == "new");
        let text = probed.text();
        assert!(!text.contains("old") && text.contains("new"), "{text}");
        assert!(lines(&text, count)[0].ends_with(" 1"), "{text}");
    }

    #[test]
    fn the_number_of_counted_probes_is_bounded() {
        let probed = Probed::default();
        for number in 0..MAX_PROBES + 7 {
            let pod = pod(&format!("p{number}"), &format!("u{number}"));
            probed.count(&pod, "main", "Liveness", true, TOOK);
        }
        probed.count(&pod("p0", "u0"), "main", "Liveness", true, TOOK);
        let text = probed.text();
        assert_eq!(lines(&text, "prober_probe_total{").len(), MAX_PROBES);
        let first = "pod=\"p0\",probe_type=\"Liveness\",pod_uid=\"u0\",result=\"successful\"} 2";
        assert!(text.contains(first), "what is known goes on to be counted");
    }
}
