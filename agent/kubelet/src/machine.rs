//! The pod machine: what to do for a pod, as a pure function of what is wanted, what is seen, and the time.
//!
//! Level-triggered: a plan says what to do now, and when to look again if nothing happens. Invariants, held by
//! property tests: no start while an attempt of the same container lives; init containers run one after the
//! other, before all others; nothing is started for a pod that ends; a pod that is to go ends with nothing
//! running, however its containers behave.

use crate::backoff::{after_run, between, later};
use agent_runtime::{Container as Seen, ContainerState, Kind};
use config_kube::k8s_openapi::api::core::v1::{Container, Pod};
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

/// Grace where nobody says how long (upstream's default).
pub(crate) const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// Grace of a pod that takes more of the disk than it may (upstream's).
const EVICTION_GRACE: Duration = Duration::from_secs(1);

/// How long a failed pull is called ErrImagePull before it is called ImagePullBackOff.
pub(crate) const PULL_ERROR_SHOWN: Duration = Duration::from_secs(3);

/// When containers are started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    pub(crate) fn of(pod: &Pod) -> Self {
        match pod
            .spec
            .as_ref()
            .and_then(|spec| spec.restart_policy.as_deref())
        {
            Some("Never") => Self::Never,
            Some("OnFailure") => Self::OnFailure,
            Some(_) | None => Self::Always,
        }
    }

    /// Whether a container that ended with `code` is started again; init containers only after failures.
    pub(crate) fn restarts(self, kind: Kind, code: i32) -> bool {
        match (self, kind) {
            (Self::Never, _) => false,
            (Self::Always, Kind::Main) => true,
            (Self::OnFailure, _) | (Self::Always, Kind::Init) => code != 0,
        }
    }
}

/// A start that failed, and when it may be tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Upstream's reason, such as `ErrImagePull`.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) at: Timestamp,
    pub(crate) retry_at: Timestamp,
    /// In a row.
    pub(crate) count: u32,
}

/// What probes found of a running container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Its startup probe passed, or it has none.
    pub(crate) started: bool,
    /// Its readiness probe passes, or it has none.
    pub(crate) ready: bool,
    /// Its liveness or startup probe failed too often.
    pub(crate) dead: bool,
}

/// What the machine remembers beyond what the engine shows; lost with the agent, and then found out anew.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Notes {
    /// Failed starts, by container name.
    pub(crate) failures: BTreeMap<String, Failure>,
    /// Containers that were asked to end, by id, and when.
    pub(crate) asked: BTreeMap<String, Timestamp>,
    /// Verdicts of probes, by container id.
    pub(crate) verdicts: BTreeMap<String, Verdict>,
    /// Why the pod was evicted, if it was.
    pub(crate) evicted: Option<String>,
    /// When the end of the pod began.
    pub(crate) ending: Option<Timestamp>,
}

/// Why a pod's containers must all end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It is being deleted, or is not there any more.
    Deleted,
    /// It was already over when the agent met it.
    Over,
    /// It was active for longer than it may.
    Deadline,
    /// It took more of the disk than it may.
    Evicted,
}

/// All that a plan is made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) pod: &'a Pod,
    /// Every attempt of every container of this pod.
    pub(crate) seen: &'a [Seen],
    pub(crate) notes: &'a Notes,
    /// This node can't run the pod; nothing is started.
    pub(crate) refused: bool,
    pub(crate) now: Timestamp,
}

impl View<'_> {
    /// Why the pod must end, if it must.
    pub(crate) fn end(&self) -> Option<End> {
        match end_of(self.pod, self.now) {
            None | Some(End::Deadline) if self.notes.evicted.is_some() => Some(End::Evicted),
            end => end,
        }
    }

    /// How long its containers may take to end.
    fn grace(&self) -> Duration {
        if self.notes.evicted.is_some() {
            EVICTION_GRACE
        } else {
            grace(self.pod)
        }
    }
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Make and start an attempt.
    Start {
        container: String,
        kind: Kind,
        attempt: u32,
        backoff: Option<Duration>,
    },
    /// Ask it to end.
    Stop { id: String },
    /// End it.
    Kill { id: String },
    /// Remove what doesn't run.
    Remove { id: String },
    /// All is over: forget the pod.
    Finish,
}

/// What to do, and when to look again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) actions: Vec<Action>,
    pub(crate) wake: Option<Timestamp>,
}

impl Plan {
    fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }
}

/// Why the pod itself says that it must end, if it does.
pub(crate) fn end_of(pod: &Pod, now: Timestamp) -> Option<End> {
    if pod.metadata.deletion_timestamp.is_some() {
        return Some(End::Deleted);
    }
    let status = pod.status.as_ref();
    if matches!(
        status.and_then(|status| status.phase.as_deref()),
        Some("Succeeded" | "Failed")
    ) {
        return Some(End::Over);
    }
    deadline(pod)
        .filter(|deadline| *deadline <= now)
        .map(|_| End::Deadline)
}

/// When `activeDeadlineSeconds` are over.
fn deadline(pod: &Pod) -> Option<Timestamp> {
    let seconds = pod.spec.as_ref()?.active_deadline_seconds?;
    let start = pod.status.as_ref()?.start_time.as_ref()?.0;
    Some(later(
        start,
        Duration::from_secs(u64::try_from(seconds).ok()?),
    ))
}

/// How long the pod's containers may take to end.
pub(crate) fn grace(pod: &Pod) -> Duration {
    let spec = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.termination_grace_period_seconds);
    let seconds = pod
        .metadata
        .deletion_grace_period_seconds
        .or(spec)
        .and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map_or(DEFAULT_GRACE, Duration::from_secs)
}

/// The plan for a pod.
pub(crate) fn plan(view: View<'_>) -> Plan {
    let mut plan = Plan::default();
    if let Some(end) = view.end() {
        let over = stop_all(view.seen, view.notes, view.grace(), view.now, &mut plan);
        if over && end == End::Deleted {
            plan.actions.push(Action::Finish);
        }
        return plan;
    }
    if let Some(deadline) = deadline(view.pod) {
        plan.wake_at(deadline);
    }
    sweep(view, &mut plan);
    if !view.refused && init(view, &mut plan) {
        for container in containers(view.pod, Kind::Main) {
            step(view, container, Kind::Main, &mut plan);
        }
    }
    plan
}

/// The plan for containers whose pod nobody wants any more.
pub(crate) fn plan_orphan(seen: &[Seen], notes: &Notes, grace: Duration, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    if stop_all(seen, notes, grace, now, &mut plan) {
        plan.actions.push(Action::Finish);
    }
    plan
}

/// Asks all to end, kills those that take too long; true when none is left.
fn stop_all(
    seen: &[Seen],
    notes: &Notes,
    grace: Duration,
    now: Timestamp,
    plan: &mut Plan,
) -> bool {
    let mut over = true;
    for container in seen {
        match container.state {
            ContainerState::Exited { .. } => {}
            ContainerState::Created => {
                over = false;
                plan.actions.push(Action::Remove {
                    id: container.id.clone(),
                });
            }
            ContainerState::Running { .. } => {
                over = false;
                stop_one(container, notes, grace, now, plan);
            }
        }
    }
    over
}

fn stop_one(container: &Seen, notes: &Notes, grace: Duration, now: Timestamp, plan: &mut Plan) {
    let id = container.id.clone();
    // The pod's end may have begun before this container was seen: its grace is not longer for that.
    let asked = notes.asked.get(&id).copied();
    let deadline = later(notes.ending.or(asked).unwrap_or(now), grace);
    match asked {
        _ if now >= deadline => plan.actions.push(Action::Kill { id }),
        None => plan.actions.push(Action::Stop { id }),
        Some(_) => plan.wake_at(deadline),
    }
}

/// The pod's containers of one kind.
pub(crate) fn containers(pod: &Pod, kind: Kind) -> &[Container] {
    let Some(spec) = &pod.spec else { return &[] };
    match kind {
        Kind::Init => spec.init_containers.as_deref().unwrap_or_default(),
        Kind::Main => &spec.containers,
    }
}

/// The newest attempt of a container.
pub(crate) fn latest<'a>(seen: &'a [Seen], name: &str) -> Option<&'a Seen> {
    attempts(seen, name).max_by_key(|container| container.key.attempt)
}

/// The attempt before the newest.
pub(crate) fn previous<'a>(seen: &'a [Seen], name: &str) -> Option<&'a Seen> {
    let newest = latest(seen, name)?.key.attempt;
    attempts(seen, name)
        .filter(|container| container.key.attempt < newest)
        .max_by_key(|container| container.key.attempt)
}

fn attempts<'a>(seen: &'a [Seen], name: &str) -> impl Iterator<Item = &'a Seen> {
    seen.iter()
        .filter(move |container| container.key.container == name)
}

/// Removes attempts older than the previous one, and ends what must not run beside the newest.
fn sweep(view: View<'_>, plan: &mut Plan) {
    for container in view.seen {
        let name = &container.key.container;
        let newest = latest(view.seen, name).map(|newest| newest.key.attempt);
        let before = previous(view.seen, name).map(|previous| previous.key.attempt);
        let id = container.id.clone();
        match container.state {
            ContainerState::Running { .. } if Some(container.key.attempt) != newest => {
                plan.actions.push(Action::Kill { id });
            }
            ContainerState::Exited { .. }
                if before.is_some_and(|before| container.key.attempt < before) =>
            {
                plan.actions.push(Action::Remove { id });
            }
            ContainerState::Created if Some(container.key.attempt) != newest => {
                plan.actions.push(Action::Remove { id });
            }
            ContainerState::Running { .. }
            | ContainerState::Exited { .. }
            | ContainerState::Created => {}
        }
    }
}

/// True if the init containers are done, or need not be done again: a main container was started since the boot.
pub(crate) fn initialized(pod: &Pod, seen: &[Seen]) -> bool {
    let mains = containers(pod, Kind::Main);
    mains
        .iter()
        .any(|main| latest(seen, &main.name).is_some_and(|seen| seen.this_boot))
        || containers(pod, Kind::Init)
            .iter()
            .all(|init| init_done(pod, seen, init))
}

/// An init container that ended well; after a reboot it must do so again, unless nothing may be restarted.
pub(crate) fn init_done(pod: &Pod, seen: &[Seen], init: &Container) -> bool {
    latest(seen, &init.name).is_some_and(|seen| {
        matches!(seen.state, ContainerState::Exited { code: 0, .. })
            && (seen.this_boot || RestartPolicy::of(pod) == RestartPolicy::Never)
    })
}

/// Brings the first init container that isn't done a step further; true when all are done.
fn init(view: View<'_>, plan: &mut Plan) -> bool {
    if initialized(view.pod, view.seen) || !wants_main(view) {
        return true;
    }
    if let Some(next) = containers(view.pod, Kind::Init)
        .iter()
        .find(|init| !init_done(view.pod, view.seen, init))
    {
        step(view, next, Kind::Init, plan);
    }
    false
}

/// Some main container runs or is to be started: only then are init containers worth running again.
fn wants_main(view: View<'_>) -> bool {
    let policy = RestartPolicy::of(view.pod);
    containers(view.pod, Kind::Main).iter().any(|main| {
        match latest(view.seen, &main.name).map(|seen| &seen.state) {
            Some(ContainerState::Exited { code, .. }) => policy.restarts(Kind::Main, *code),
            Some(ContainerState::Running { .. } | ContainerState::Created) | None => true,
        }
    })
}

/// One container: start it, start it again, or end it because its probe failed.
fn step(view: View<'_>, container: &Container, kind: Kind, plan: &mut Plan) {
    let Some(seen) = latest(view.seen, &container.name) else {
        return start(view, container, kind, 0, None, plan);
    };
    match &seen.state {
        ContainerState::Created => plan.actions.push(Action::Remove {
            id: seen.id.clone(),
        }),
        ContainerState::Running { .. } => {
            if view
                .notes
                .verdicts
                .get(&seen.id)
                .is_some_and(|verdict| verdict.dead)
            {
                stop_one(seen, view.notes, grace(view.pod), view.now, plan);
            }
        }
        ContainerState::Exited { .. } => {
            if let Some((at, backoff)) = restart(view.pod, seen) {
                if waits(at, backoff, view.now) {
                    plan.wake_at(at);
                } else {
                    start(
                        view,
                        container,
                        kind,
                        seen.key.attempt.saturating_add(1),
                        Some(backoff),
                        plan,
                    );
                }
            }
        }
    }
}

/// When an attempt that ended is followed by the next, and the wait before it; `None` if never.
pub(crate) fn restart(pod: &Pod, seen: &Seen) -> Option<(Timestamp, Duration)> {
    let ContainerState::Exited {
        started_at,
        finished_at,
        code,
        ..
    } = &seen.state
    else {
        return None;
    };
    let policy = RestartPolicy::of(pod);
    // An init container that did its work before a reboot has to do it again.
    let again = seen.key.kind == Kind::Init && !seen.this_boot && policy != RestartPolicy::Never;
    if !again && !policy.restarts(seen.key.kind, *code) {
        return None;
    }
    // What the machine's own end ended is not the container's fault.
    let wait = if seen.this_boot {
        after_run(seen.backoff, between(*started_at, *finished_at))
    } else {
        Duration::ZERO
    };
    Some((later(*finished_at, wait), wait))
}

/// Whether the next attempt is still to come. One that waits not at all never is, whatever the clocks say: an end
/// may be dated later than `now` by a clock that was set back.
pub(crate) fn waits(at: Timestamp, backoff: Duration, now: Timestamp) -> bool {
    !backoff.is_zero() && at > now
}

fn start(
    view: View<'_>,
    container: &Container,
    kind: Kind,
    attempt: u32,
    backoff: Option<Duration>,
    plan: &mut Plan,
) {
    if let Some(failure) = view.notes.failures.get(&container.name)
        && failure.retry_at > view.now
    {
        let shown = later(failure.at, PULL_ERROR_SHOWN);
        plan.wake_at(if shown > view.now {
            shown.min(failure.retry_at)
        } else {
            failure.retry_at
        });
        return;
    }
    if attempts(view.seen, &container.name)
        .any(|seen| !matches!(seen.state, ContainerState::Exited { .. }))
    {
        // An older attempt still lives; it is being ended, and its end is news.
        return;
    }
    plan.actions.push(Action::Start {
        container: container.name.clone(),
        kind,
        attempt,
        backoff,
    });
}
