//! What the kubelet remembers of one pod beyond what containerd shows: starts under way, failures,
//! probes, hooks, and the containers that got their stop signal.

use crate::resize::Pending;
use agent_runtime::ContainerKind;
use config_kube::k8s_openapi::api::core::v1::{Container, Pod};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A start that failed, and when it may be tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Upstream's reason, such as `ErrImagePull`.
    pub reason: &'static str,
    /// The image that could not be fetched, if that is why.
    pub image: String,
    /// For a person.
    pub message: String,
    /// When it failed.
    pub at: Timestamp,
    /// When it may be tried again.
    pub retry_at: Timestamp,
    /// Failures in a row.
    pub count: u32,
}

/// Which probe failed so often that the container must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// The startup probe.
    Startup,
    /// The liveness probe.
    Liveness,
}

/// What probes found of a running container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Its startup probe passed, or it has none.
    pub started: bool,
    /// Its readiness probe passes, or it has none.
    pub ready: bool,
    /// Its liveness or startup probe failed too often.
    pub dead: Option<Death>,
}

/// How far a container's postStart hook has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookProgress {
    /// It runs; the container does not count as running yet.
    Running,
    /// It ended well.
    Done,
    /// It failed; the container is ended.
    Failed,
}

/// A preStop hook that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    /// When.
    pub at: Timestamp,
    /// It has ended, well or not.
    pub over: bool,
}

/// An eviction of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// Its reason in the pod's status: one of the constants here.
    pub reason: &'static str,
    /// Why, in upstream's words.
    pub message: String,
    /// The same for programs: annotations of the event.
    pub annotations: BTreeMap<String, String>,
    /// How long its containers may take to end.
    pub grace: Duration,
}

impl Eviction {
    /// The node runs out of something, or the pod takes more of it than it may.
    pub const PRESSURE: &'static str = "Evicted";
    /// A critical pod needs the room.
    pub const PREEMPTION: &'static str = "Preempting";
    /// The machine ends.
    pub const SHUTDOWN: &'static str = "Terminated";

    /// The text of its record for the next agent: grace period in seconds and reason in the first
    /// line, then the message.
    pub fn to_record(&self) -> String {
        let (grace, reason) = (self.grace.as_secs(), self.reason);
        format!("{grace} {reason}\n{}", self.message)
    }

    /// The eviction that a record describes; none if no agent wrote it.
    pub fn from_record(record: &[u8]) -> Option<Self> {
        let record = std::str::from_utf8(record).ok()?;
        let (first, message) = record.split_once('\n')?;
        // Older agents wrote no reason.
        let (grace, reason) = first.split_once(' ').unwrap_or((first, ""));
        Some(Self {
            reason: if reason == Self::PREEMPTION {
                Self::PREEMPTION
            } else {
                Self::PRESSURE
            },
            message: message.to_owned(),
            annotations: BTreeMap::new(),
            grace: Duration::from_secs(grace.parse().ok()?),
        })
    }
}

/// What the kubelet remembers of a pod beyond what containerd shows. A restart of the agent loses
/// all but the eviction: probes start again, and preStop hooks and stop signals are repeated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notes {
    /// Starts that are under way, by container name. Their attempts are left out of what the plan
    /// sees, whatever containerd shows of them; the end of a start leads to a new plan.
    pub starting: BTreeMap<String, ContainerKind>,
    /// Failed starts, by container name.
    pub failures: BTreeMap<String, Failure>,
    /// The pod's volumes could not be set up: when that is tried again. Nothing is started before.
    pub unmounted: Option<Timestamp>,
    /// How often in a row that failed.
    pub mounts_failed: u32,
    /// Containers that were asked to end, by id, and when.
    pub asked: BTreeMap<String, Timestamp>,
    /// Containers that are ended for a new image or a resize, by id: the next attempt comes at
    /// once, whatever the restart policy.
    pub replaced: BTreeSet<String>,
    /// Why the pod's resize waits, if it does.
    pub pending: Option<Pending>,
    /// Containers whose resize failed, by id: why, and when it is tried again.
    pub unresized: BTreeMap<String, (String, Timestamp)>,
    /// Verdicts of probes, by container id.
    pub verdicts: BTreeMap<String, Verdict>,
    /// postStart hooks, by container id. A container that was started before the agent's own start
    /// has none: the hook is not run twice, as upstream.
    pub post_start: BTreeMap<String, HookProgress>,
    /// preStop hooks, by container id.
    pub pre_stop: BTreeMap<String, Begun>,
    /// The pod's eviction, if it is evicted.
    pub evicted: Option<Eviction>,
    /// When the end of the pod began.
    pub ending: Option<Timestamp>,
}

impl Notes {
    /// Moves the noted times by the step of the wall clock (negative: back). Otherwise a container
    /// that got its stop signal would have a grace period longer by an hour if the clock is set
    /// back by an hour, and none if it is set forward.
    pub fn shift(&mut self, by: SignedDuration) {
        let of_failures = self.failures.values_mut();
        let times = self.asked.values_mut();
        let times = times.chain(of_failures.flat_map(|one| [&mut one.at, &mut one.retry_at]));
        let times = times.chain(self.unresized.values_mut().map(|(_, again)| again));
        let times = times.chain(self.pre_stop.values_mut().map(|hook| &mut hook.at));
        for time in times.chain(&mut self.unmounted).chain(&mut self.ending) {
            *time = time.checked_add(by).unwrap_or(*time);
        }
    }

    /// Why a container of the pod could not be started, if its last start failed. A failure to
    /// fetch an image that the pod no longer names is of the past: its successor waits for nothing.
    pub(crate) fn failure(&self, pod: &Pod, container: &Container) -> Option<&Failure> {
        let failure = self.failures.get(&container.name)?;
        let volumes = || {
            pod.spec
                .iter()
                .flat_map(|spec| spec.volumes.iter().flatten())
        };
        let mut of_volumes = volumes().filter_map(|one| one.image.as_ref()?.reference.as_ref());
        let is_named = failure.image.is_empty()
            || container.image.as_ref() == Some(&failure.image)
            || of_volumes.any(|image| *image == failure.image);
        is_named.then_some(failure)
    }

    /// The container's postStart hook runs, or failed.
    pub(crate) fn is_held(&self, id: &str) -> bool {
        matches!(
            self.post_start.get(id),
            Some(HookProgress::Running | HookProgress::Failed)
        )
    }
}
