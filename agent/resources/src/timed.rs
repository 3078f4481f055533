//! How long the kubelet's own work takes, under the names of upstream's histograms.

use config_figures::{Histogram, Text};
use std::collections::BTreeMap;
use std::time::Duration;

/// Upper bounds of durations in seconds: from calls of the engine to starts of pods whose images
/// have to be pulled.
const BOUNDS: [f64; 15] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0,
];
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Upstream's words for the sizes of images, each with the least bytes that it means.
const SIZES: [(u64, &str); 13] = [
    (0, "N/A"),
    (1, "0-10MB"),
    (10 * MIB, "10MB-100MB"),
    (100 * MIB, "100MB-500MB"),
    (500 * MIB, "500MB-1GB"),
    (GIB, "1GB-5GB"),
    (5 * GIB, "5GB-10GB"),
    (10 * GIB, "10GB-20GB"),
    (20 * GIB, "20GB-30GB"),
    (30 * GIB, "30GB-40GB"),
    (40 * GIB, "40GB-60GB"),
    (60 * GIB, "60GB-100GB"),
    (100 * GIB, "GT100GB"),
];

/// Work whose durations are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimedWork {
    /// One step of a pod's task.
    Step(WorkerStep),
    /// A pod's sandbox was made, or could not be, by this handler of its RuntimeClass; `""` where
    /// it names none.
    Sandbox(&'static str),
    /// The limits of a pod's control group were set.
    Limits,
    /// A pod's status was written, from the look that found it changed.
    Status,
    /// An image of so many bytes was pulled, without the wait for a turn.
    Pull(u64),
}

/// What a step of a pod's task is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerStep {
    /// The first of the pod.
    Create,
    /// The pod was changed.
    Update,
    /// The pod ends.
    Kill,
    /// Any other.
    Sync,
}

/// A histogram: its name, its label, and what it is.
type Family = (&'static str, Option<&'static str>, &'static str);

const STEPS: Family = (
    "kubelet_pod_worker_duration_seconds",
    Some("operation_type"),
    "Duration in seconds of one step of a pod's worker, by the type of operation",
);
const SANDBOXES: Family = (
    "kubelet_run_podsandbox_duration_seconds",
    Some("runtime_handler"),
    "Duration in seconds of the making of a pod's sandbox, by the handler of the RuntimeClass",
);
const GROUPS: Family = (
    "kubelet_cgroup_manager_duration_seconds",
    Some("operation_type"),
    "Duration in seconds of changes of pods' control groups, by the type of operation",
);
const STATUSES: Family = (
    "kubelet_pod_status_sync_duration_seconds",
    None,
    "Duration in seconds from a change of a pod's status until the API has it",
);
const PULLS: Family = (
    "kubelet_image_pull_duration_seconds",
    Some("image_size_in_bytes"),
    "Duration in seconds of the pull of an image, by its size",
);
const FAMILIES: [Family; 5] = [STEPS, SANDBOXES, GROUPS, STATUSES, PULLS];

impl TimedWork {
    fn family(self) -> Family {
        match self {
            Self::Step(_) => STEPS,
            Self::Sandbox(_) => SANDBOXES,
            Self::Limits => GROUPS,
            Self::Status => STATUSES,
            Self::Pull(_) => PULLS,
        }
    }

    /// The label's value.
    fn word(self) -> &'static str {
        match self {
            Self::Step(WorkerStep::Create) => "create",
            Self::Step(WorkerStep::Update) | Self::Limits => "update",
            Self::Step(WorkerStep::Kill) => "kill",
            Self::Step(WorkerStep::Sync) => "sync",
            Self::Sandbox(handler) => handler,
            Self::Status => "",
            Self::Pull(bytes) => {
                let of_size = SIZES.iter().rfind(|(least, _)| *least <= bytes);
                of_size.map_or("N/A", |(_, word)| word)
            }
        }
    }
}

/// Durations, by [`BOUNDS`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Times(Histogram<{ BOUNDS.len() }>);

impl Times {
    pub(crate) fn add(&mut self, took: Duration) {
        self.0.add(&BOUNDS, took);
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.total()
    }

    /// The samples of a histogram, with these labels or none.
    pub(crate) fn tell(&self, text: &mut Text, name: &str, labels: &str) {
        self.0.write(text, name, labels, &BOUNDS);
    }
}

/// The durations of all work, by family and label.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timed(BTreeMap<(&'static str, &'static str), Times>);

impl Timed {
    pub(crate) fn add(&mut self, work: TimedWork, took: Duration) {
        let (name, _, _) = work.family();
        self.0.entry((name, work.word())).or_default().add(took);
    }

    pub(crate) fn tell(&self, text: &mut Text) {
        for (name, label, help) in FAMILIES {
            text.family(name, "histogram", help);
            for ((_, word), times) in self.0.iter().filter(|((of, _), _)| *of == name) {
                let labels = label.map(|label| format!("{label}=\"{word}\""));
                times.tell(text, name, &labels.unwrap_or_default());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_reported_under_upstreams_names() {
        let mut timed = Timed::default();
        let all = [
            TimedWork::Step(WorkerStep::Create),
            TimedWork::Step(WorkerStep::Update),
            TimedWork::Step(WorkerStep::Kill),
            TimedWork::Step(WorkerStep::Sync),
            TimedWork::Step(WorkerStep::Sync),
            TimedWork::Sandbox(""),
            TimedWork::Sandbox("crun"),
            TimedWork::Limits,
            TimedWork::Status,
            TimedWork::Pull(2_038_489),
            TimedWork::Pull(10 << 20),
            TimedWork::Pull(200 << 30),
            TimedWork::Pull(0),
        ];
        for work in all {
            timed.add(work, Duration::from_millis(20));
        }
        let mut text = Text::default();
        timed.tell(&mut text);
        let metrics = text.finish();
        for line in [
            "kubelet_pod_worker_duration_seconds_count{operation_type=\"create\"} 1",
            "kubelet_pod_worker_duration_seconds_count{operation_type=\"update\"} 1",
            "kubelet_pod_worker_duration_seconds_count{operation_type=\"kill\"} 1",
            "kubelet_pod_worker_duration_seconds_count{operation_type=\"sync\"} 2",
            "kubelet_pod_worker_duration_seconds_bucket{operation_type=\"sync\",le=\"0.01\"} 0",
            "kubelet_pod_worker_duration_seconds_bucket{operation_type=\"sync\",le=\"0.025\"} 2",
            "kubelet_run_podsandbox_duration_seconds_count{runtime_handler=\"\"} 1",
            "kubelet_run_podsandbox_duration_seconds_count{runtime_handler=\"crun\"} 1",
            "kubelet_cgroup_manager_duration_seconds_count{operation_type=\"update\"} 1",
            "kubelet_pod_status_sync_duration_seconds_bucket{le=\"0.025\"} 1",
            "kubelet_pod_status_sync_duration_seconds_sum 0.02",
            "kubelet_pod_status_sync_duration_seconds_count 1",
            "kubelet_image_pull_duration_seconds_count{image_size_in_bytes=\"0-10MB\"} 1",
            "kubelet_image_pull_duration_seconds_count{image_size_in_bytes=\"10MB-100MB\"} 1",
            "kubelet_image_pull_duration_seconds_count{image_size_in_bytes=\"GT100GB\"} 1",
            "kubelet_image_pull_duration_seconds_count{image_size_in_bytes=\"N/A\"} 1",
        ] {
            assert!(
                metrics.lines().any(|sample| sample == line),
                "{line}:\n{metrics}"
            );
        }
        assert_eq!(metrics.matches("# TYPE ").count(), FAMILIES.len());
    }
}
