//! Metrics of the work queues: depth, latency and errors by controller, under upstream's names.

use config_figures::{Histogram, Text};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of the histograms, in seconds (upstream's, of which the smallest are left out).
const BOUNDS: [f64; 7] = [0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0];

type Times = Histogram<{ BOUNDS.len() }>;

#[derive(Debug, Clone, Copy, Default)]
struct Numbers {
    depth: usize,
    adds: u64,
    runs: u64,
    writes: u64,
    retries: u64,
    errors: u64,
    waited: Times,
    worked: Times,
}

/// How a run of a key ended, for the figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// As planned.
    Done,
    /// On an outdated version of an object.
    Stale,
    /// With an error.
    Error,
}

/// Figures of all controllers. Written by the driver, read by the metrics endpoint.
#[derive(Debug, Default)]
pub struct Figures(Mutex<BTreeMap<&'static str, Numbers>>);

impl Figures {
    fn change(&self, controller: &'static str, change: impl FnOnce(&mut Numbers)) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(all.entry(controller).or_default());
    }

    /// Keys were added; the queue has this depth.
    pub(crate) fn added(&self, controller: &'static str, keys: usize, depth: usize) {
        self.change(controller, |numbers| {
            numbers.adds += keys as u64;
            numbers.depth = depth;
        });
    }

    /// A key was planned after this time in the queue, with this number of actions.
    pub(crate) fn planned(
        &self,
        controller: &'static str,
        waited: Duration,
        actions: usize,
        depth: usize,
    ) {
        self.change(controller, |numbers| {
            numbers.runs += 1;
            numbers.writes += actions as u64;
            numbers.waited.add(&BOUNDS, waited);
            numbers.depth = depth;
        });
    }

    /// A run has ended after this time.
    pub(crate) fn ended(&self, controller: &'static str, worked: Duration, end: End) {
        self.change(controller, |numbers| {
            numbers.worked.add(&BOUNDS, worked);
            numbers.retries += u64::from(end != End::Done);
            numbers.errors += u64::from(end == End::Error);
        });
    }

    /// How many keys of a controller were planned so far.
    pub fn runs(&self, controller: &str) -> u64 {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(controller).map_or(0, |numbers| numbers.runs)
    }

    /// How many keys of all controllers were planned so far.
    pub fn all_runs(&self) -> u64 {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().map(|numbers| numbers.runs).sum()
    }

    /// The Prometheus text form, version 0.0.4.
    pub fn text(&self) -> String {
        let all = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut text = Text::default();
        let label = |controller: &str| format!("name=\"{controller}\"");
        for family in FAMILIES {
            text.family(family.name, family.kind, family.help);
            for (controller, numbers) in &all {
                let value = (family.value)(numbers);
                text.sample(family.name, &label(controller), value);
            }
        }
        for Histograms { name, help, times } in HISTOGRAMS {
            text.family(name, "histogram", help);
            for (controller, numbers) in &all {
                times(numbers).write(&mut text, name, &label(controller), &BOUNDS);
            }
        }
        text.finish()
    }
}

/// A figure that each controller has.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&Numbers) -> u64,
}

/// A histogram that each controller has.
struct Histograms {
    name: &'static str,
    help: &'static str,
    times: fn(&Numbers) -> &Times,
}

/// Numbers with one value for each controller.
const FAMILIES: [Family; 6] = [
    Family {
        name: "workqueue_depth",
        kind: "gauge",
        help: "Keys that wait to be reconciled.",
        value: |n| n.depth as u64,
    },
    Family {
        name: "workqueue_adds_total",
        kind: "counter",
        help: "Changes that concerned a key.",
        value: |n| n.adds,
    },
    Family {
        name: "workqueue_retries_total",
        kind: "counter",
        help: "Runs that are tried again.",
        value: |n| n.retries,
    },
    Family {
        name: "pratique_controller_plans_total",
        kind: "counter",
        help: "Keys that were planned.",
        value: |n| n.runs,
    },
    Family {
        name: "pratique_controller_actions_total",
        kind: "counter",
        help: "Actions that were planned.",
        value: |n| n.writes,
    },
    Family {
        name: "pratique_controller_errors_total",
        kind: "counter",
        help: "Runs that ended with an error.",
        value: |n| n.errors,
    },
];

/// Times of keys, as histograms for each controller.
const HISTOGRAMS: [Histograms; 2] = [
    Histograms {
        name: "workqueue_queue_duration_seconds",
        help: "Time of keys in the line.",
        times: |n| &n.waited,
    },
    Histograms {
        name: "workqueue_work_duration_seconds",
        help: "Time of runs, writes included.",
        times: |n| &n.worked,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_labelled_by_controller() {
        let figures = Figures::default();
        figures.added("a", 2, 2);
        figures.planned("a", Duration::from_millis(5), 1, 1);
        figures.ended("a", Duration::from_secs(1000), End::Error);
        let text = figures.text();
        for line in [
            "workqueue_depth{name=\"a\"} 1",
            "workqueue_adds_total{name=\"a\"} 2",
            "workqueue_retries_total{name=\"a\"} 1",
            "pratique_controller_errors_total{name=\"a\"} 1",
            "workqueue_queue_duration_seconds_bucket{name=\"a\",le=\"0.01\"} 1",
            "workqueue_work_duration_seconds_bucket{name=\"a\",le=\"100\"} 0",
            "workqueue_work_duration_seconds_bucket{name=\"a\",le=\"+Inf\"} 1",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} in {text}");
        }
        assert_eq!((figures.runs("a"), figures.runs("b")), (1, 0));
    }
}
