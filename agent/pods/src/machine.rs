//! Plans what the kubelet does for one pod now, and when it must plan again ([`plan`]).
//!
//! Level-triggered: a plan follows from the present facts alone, and is made again after every
//! change. Invariants, held by the property tests of `simulation`:
//! - no container is started while an attempt of it runs;
//! - init containers run one after the other, before all main containers; what comes after a
//!   sidecar starts when the sidecar has started;
//! - a main container waits for the postStart hooks of those before it and, for its first start,
//!   for their first starts;
//! - nothing is started for a pod that is ending, nor before its volumes are set up;
//! - a pod is finished only when nothing of it runs and no start is under way, however its
//!   containers behave; sidecars end after all others, in reverse order.
//!
//! A start takes long (a pull, say) and is no part of the plan: other containers go on meanwhile.

use crate::backoff::later;
use crate::containers::{attempts, ephemeral, initial, kind_of_initial, latest, mains, previous};
use crate::ending::{Ending, SHORTEST, probe_grace};
use crate::notes::Notes;
use crate::policy::{RestartPolicy, Triggers, is_replaced, outdated, restart, round, waits};
use crate::resize::is_resized;
use agent_runtime::{Container as Seen, ContainerKind, ContainerState, ExitCause};
use config_kube::k8s_openapi::api::core::v1::{Container, Pod};
use jiff::Timestamp;
use std::time::Duration;

/// Grace of a pod that takes more of the disk than it may, or goes at once for what the node lacks
/// (upstream's).
pub const EVICTION_GRACE: Duration = Duration::from_secs(1);

/// Time between two attempts of a resize that waits for room.
const PENDING_RETRY: Duration = Duration::from_secs(5);

/// How long a failed pull is called `ErrImagePull` before it is called `ImagePullBackOff`, and a
/// failed start `RunContainerError` before it is called `CrashLoopBackOff`.
pub(crate) const ERROR_SHOWN: Duration = Duration::from_secs(3);

/// Why a pod's containers must all end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It is being deleted, or is not there any more.
    Deleted,
    /// Its phase is `Succeeded` or `Failed` already.
    Over,
    /// Its `activeDeadlineSeconds` are over.
    Deadline,
    /// It is evicted ([`Notes::evicted`] has the reason).
    Evicted,
}

/// All that a plan is made from.
#[derive(Debug, Clone, Copy)]
pub struct PodFacts<'a> {
    /// The pod as the API has it.
    pub pod: &'a Pod,
    /// Every attempt of every container of this pod.
    pub seen: &'a [Seen],
    /// What the kubelet remembers of it.
    pub notes: &'a Notes,
    /// This node can't run the pod; nothing is started.
    pub refused: bool,
    /// The time.
    pub now: Timestamp,
}

impl PodFacts<'_> {
    /// Why the pod must end, if it must.
    pub fn end(&self) -> Option<End> {
        // A deletion has its own grace period and ends with the object's removal, so it comes
        // first. A deadline that passes during an eviction does not change the reason in the
        // status.
        match end_of(self.pod, self.now) {
            None | Some(End::Deadline) if self.notes.evicted.is_some() => Some(End::Evicted),
            end => end,
        }
    }

    /// Whether the pod's running containers must end: the pod itself must, or its main containers
    /// have ended for good and only sidecars are left.
    pub fn ends(&self) -> bool {
        self.end().is_some() || is_finished(*self)
    }

    /// The container runs, its postStart hook has succeeded, and its startup probe has passed, if
    /// it has them.
    pub(crate) fn has_started(&self, container: &Container) -> bool {
        latest(self.seen, &container.name).is_some_and(|seen| {
            // Before the first verdict nothing was probed: only a startup probe holds it back.
            let verdict = self.notes.verdicts.get(&seen.id);
            matches!(seen.state, ContainerState::Running { .. })
                && !self.notes.is_held(&seen.id)
                && verdict.map_or(container.startup_probe.is_none(), |verdict| verdict.started)
        })
    }

    /// When an attempt that ended is followed by the next, and the wait before it. One that was
    /// ended for a new image is always followed, whatever the policy.
    pub(crate) fn next(&self, seen: &Seen) -> Option<(Timestamp, Duration)> {
        match seen.state {
            ContainerState::Exited { finished_at, .. }
                if self.notes.replaced.contains(&seen.id) =>
            {
                Some((finished_at, Duration::ZERO))
            }
            ContainerState::Exited { finished_at, .. } if self.is_of_earlier_round(seen) => {
                // Only the attempt whose exit began the round waits for its back-off, or a pod that
                // fails at once would restart in a tight loop.
                let triggers = Triggers::of(self.pod, self.seen);
                let own = triggers.is_some_and(|triggers| triggers.has(seen));
                let own = own.then(|| restart(self.pod, seen)).flatten();
                own.or(Some((finished_at, Duration::ZERO)))
            }
            ContainerState::Exited { .. }
            | ContainerState::Running { .. }
            | ContainerState::Created => restart(self.pod, seen),
        }
    }

    /// A rule has restarted all containers since this attempt was started ([`round`]).
    pub(crate) fn is_of_earlier_round(&self, seen: &Seen) -> bool {
        seen.key.kind != ContainerKind::Ephemeral && seen.round < round(self.pod, self.seen)
    }

    /// This attempt was asked to end.
    pub(crate) fn was_asked(&self, seen: &Seen) -> bool {
        self.notes.asked.contains_key(&seen.id)
    }

    fn is_starting(&self, container: &Container) -> bool {
        self.notes.starting.contains_key(&container.name)
    }

    fn ending(&self) -> Ending<'_> {
        let own = crate::ending::grace(self.pod);
        let is_deleted = self.pod.metadata.deletion_grace_period_seconds.is_some();
        let grace = match &self.notes.evicted {
            // Deleted during its eviction: the deletion can shorten the time, not extend it.
            Some(eviction) if is_deleted => eviction.grace.min(own),
            Some(eviction) => eviction.grace,
            None => own,
        };
        let grace = if self.ends() {
            grace.max(SHORTEST)
        } else {
            grace
        };
        Ending {
            pod: Some(self.pod),
            seen: self.seen,
            notes: self.notes,
            grace,
            now: self.now,
        }
    }
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Make and start an attempt. It is in [`Notes::starting`] until its start has ended; then its
    /// postStart hook begins, if it has one.
    Start {
        /// The container's name.
        container: String,
        /// Its kind.
        kind: ContainerKind,
        /// Which attempt.
        attempt: u32,
        /// The wait that came before it.
        backoff: Option<Duration>,
    },
    /// Begin the preStop hook, with a time limit.
    PreStop {
        /// The attempt.
        id: String,
        /// The time limit: what is left of the grace period.
        limit: Duration,
    },
    /// Give it the resources of the pod's spec.
    Resize {
        /// The attempt.
        id: String,
    },
    /// Send its stop signal (SIGTERM by default).
    Stop {
        /// The attempt.
        id: String,
    },
    /// Kill it (SIGKILL).
    Kill {
        /// The attempt.
        id: String,
    },
    /// Remove an attempt that does not run.
    Remove {
        /// The attempt.
        id: String,
    },
    /// Nothing of the pod runs any more: remove what is left of it.
    Finish,
}

/// What to do, and when to plan again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// What to do, in order.
    pub actions: Vec<Action>,
    /// When to plan again if nothing changes before.
    pub wake: Option<Timestamp>,
}

impl Plan {
    /// Looks again at this time at the latest.
    pub fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// The containers that are to be started.
    pub fn starts(&self) -> impl Iterator<Item = &str> {
        self.actions.iter().filter_map(|action| {
            if let Action::Start { container, .. } = action {
                Some(container.as_str())
            } else {
                None
            }
        })
    }

    /// Whether containers are to be started, and nothing else is to be done.
    pub fn only_starts(&self) -> bool {
        let mut actions = self.actions.iter();
        let starts = |action: &Action| matches!(action, Action::Start { .. });
        !self.actions.is_empty() && actions.all(starts)
    }
}

/// Why the pod itself says that it must end, if it does.
pub fn end_of(pod: &Pod, now: Timestamp) -> Option<End> {
    // Also of a pod that is over: only the end of a deletion lets the API remove the object.
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
    // From the first status, not from the creation: what the scheduler takes does not count
    // (upstream's `activeDeadlineHandler`).
    let start = pod.status.as_ref()?.start_time.as_ref()?.0;
    Some(later(
        start,
        Duration::from_secs(u64::try_from(seconds).ok()?),
    ))
}

/// The plan for a pod.
pub fn plan(facts: PodFacts<'_>) -> Plan {
    let mut plan = Plan::default();
    if let Some(end) = facts.end() {
        let over = facts.ending().stop_all(&mut plan);
        // The containers of a pod that stays in the API are kept: `kubectl logs` and the status
        // read them.
        if over && end == End::Deleted {
            plan.actions.push(Action::Finish);
        }
        return plan;
    }
    if let Some(deadline) = deadline(facts.pod) {
        plan.wake_at(deadline);
    }
    // Room comes free through other pods, which are none of a plan's facts.
    if facts.notes.pending.is_some() {
        plan.wake_at(later(facts.now, PENDING_RETRY));
    }
    sweep(facts, &mut plan);
    if facts.refused {
        return plan;
    }
    if is_finished(facts) {
        facts.ending().stop_all(&mut plan);
        return plan;
    }
    // Debuggers wait for nothing: what they look for may be why the others do not start.
    for container in ephemeral(facts.pod) {
        step(facts, &container, ContainerKind::Ephemeral, &mut plan);
    }
    if !end_earlier_round(facts, &mut plan) {
        return plan;
    }
    if start_initial(facts, &mut plan) {
        start_mains(facts, &mut plan);
    }
    plan
}

/// Kills containers of an earlier round; true once none of them runs or is being started.
fn end_earlier_round(facts: PodFacts<'_>, plan: &mut Plan) -> bool {
    let round = round(facts.pod, facts.seen);
    let mut alive = false;
    for old in outdated(facts.pod, facts.seen) {
        alive = true;
        let id = old.id.clone();
        let kill = Action::Kill { id: id.clone() };
        let end = match old.state {
            ContainerState::Created => Action::Remove { id },
            ContainerState::Running { .. } | ContainerState::Exited { .. } => kill,
        };
        // `sweep` looks at the same containers and may have planned it already.
        if !plan.actions.contains(&end) {
            plan.actions.push(end);
        }
    }
    let mut lasting = facts
        .seen
        .iter()
        .filter(|seen| seen.key.kind != ContainerKind::Ephemeral);
    // The attempt of a start under way is not among those seen. Before the first attempt of this
    // round it can only be one of the last round, whose end is waited for.
    let began = round == 0 || lasting.any(|seen| seen.round == round);
    let mut starting = facts.notes.starting.values();
    !alive && (began || !starting.any(|kind| *kind != ContainerKind::Ephemeral))
}

/// Removes attempts older than the previous one, and kills an older attempt that runs beside the
/// newest.
fn sweep(facts: PodFacts<'_>, plan: &mut Plan) {
    for container in facts.seen {
        let name = &container.key.container;
        let newest = latest(facts.seen, name).map(|newest| newest.key.attempt);
        let before = previous(facts.seen, name).map(|previous| previous.key.attempt);
        let id = container.id.clone();
        match container.state {
            // Two attempts of one container would share its volumes and its ports.
            ContainerState::Running { .. } if Some(container.key.attempt) != newest => {
                plan.actions.push(Action::Kill { id });
            }
            // The one before the newest stays: `kubectl logs --previous` and the status's
            // `lastState` read it.
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

/// No main container runs or will be started again: each has ended for good, or an init container
/// has failed for good. Only sidecars may still run; they have nothing left to serve.
pub(crate) fn is_finished(facts: PodFacts<'_>) -> bool {
    let for_good = |seen: &Seen| match seen.state {
        ContainerState::Exited { .. } => facts.next(seen).is_none(),
        ContainerState::Running { .. } | ContainerState::Created => false,
    };
    let mains_are_over = mains(facts.pod)
        .iter()
        .all(|main| latest(facts.seen, &main.name).is_some_and(for_good));
    // Init containers are not run again once a main container has started, so an older failure of
    // one no longer counts then.
    mains_are_over || (!main_started(facts.pod, facts.seen) && init_failed(facts.pod, facts.seen))
}

/// An init container has failed and is not started again.
pub(crate) fn init_failed(pod: &Pod, seen: &[Seen]) -> bool {
    initial(pod).iter().any(|init| {
        kind_of_initial(init) == ContainerKind::Init
            && latest(seen, &init.name).is_some_and(|latest| {
                // In a new round it is run again, whatever it exited with in an earlier one.
                matches!(latest.state, ContainerState::Exited { code, .. } if code != 0)
                    && latest.round == round(pod, seen)
                    && restart(pod, latest).is_none()
            })
    })
}

/// A main container was started since the machine's boot and in this round: the init containers
/// before it are done, and are not run again.
pub(crate) fn main_started(pod: &Pod, seen: &[Seen]) -> bool {
    let round = round(pod, seen);
    let started = |one: &Seen| one.this_boot && one.round == round;
    mains(pod)
        .iter()
        .any(|main| latest(seen, &main.name).is_some_and(started))
}

/// Whether the condition `Initialized` is true: all init containers have succeeded and all sidecars
/// have started.
pub(crate) fn initialized(facts: PodFacts<'_>) -> bool {
    // It stays true once it was, also while a rule restarts all containers (upstream's rule).
    let ran = |main: &Container| latest(facts.seen, &main.name).is_some_and(|seen| seen.this_boot);
    mains(facts.pod).iter().any(ran)
        || initial(facts.pod)
            .iter()
            .all(|container| initial_done(facts, container))
}

/// An init container has succeeded, or a sidecar has started. After a reboot the init container has
/// to succeed again (what it set up may be gone), unless the pod's policy is `Never`.
pub(crate) fn initial_done(facts: PodFacts<'_>, container: &Container) -> bool {
    if kind_of_initial(container) == ContainerKind::Sidecar {
        return facts.has_started(container);
    }
    latest(facts.seen, &container.name).is_some_and(|seen| {
        matches!(seen.state, ContainerState::Exited { code: 0, .. })
            && !facts.is_of_earlier_round(seen)
            && (seen.this_boot || RestartPolicy::of(facts.pod) == RestartPolicy::Never)
    })
}

/// Plans for the first init container that is not done, and for the sidecars before it; true when
/// main containers may start. A sidecar that ends later is restarted, and does not hold up what was
/// started after it.
fn start_initial(facts: PodFacts<'_>, plan: &mut Plan) -> bool {
    let all = initial(facts.pod);
    let done = main_started(facts.pod, facts.seen);
    let began = |container: &Container| {
        let latest = latest(facts.seen, &container.name);
        latest.is_some_and(|seen| seen.this_boot && !facts.is_of_earlier_round(seen))
    };
    for (index, container) in all.iter().enumerate() {
        // Something after it has begun in this boot and round, so it was done before.
        let passed = done || all[index + 1..].iter().any(began);
        let awaited = !passed && !initial_done(facts, container);
        let kind = kind_of_initial(container);
        if kind == ContainerKind::Sidecar || awaited {
            step(facts, container, kind, plan);
        }
        if awaited {
            return false;
        }
    }
    true
}

/// Plans for the main containers in order. One whose postStart hook still runs holds up the starts
/// of all after it, as upstream's does; one that is being started for the first time holds up only
/// the first starts after it.
fn start_mains(facts: PodFacts<'_>, plan: &mut Plan) {
    let (mut held, mut first) = (false, false);
    for container in mains(facts.pod) {
        let seen = latest(facts.seen, &container.name);
        let seen = seen.filter(|seen| !facts.is_of_earlier_round(seen));
        let alive = seen.is_some_and(|seen| matches!(seen.state, ContainerState::Running { .. }));
        if (held && !alive) || (first && seen.is_none()) {
            continue;
        }
        step(facts, container, ContainerKind::Main, plan);
        held |= alive && seen.is_some_and(|seen| facts.notes.is_held(&seen.id));
        let starts = facts.is_starting(container) || starts(plan, &container.name);
        // The hook begins when the start has ended: until then it is unknown, not absent.
        held |= starts && has_post_start(container);
        first |= starts && seen.is_none();
    }
}

fn has_post_start(container: &Container) -> bool {
    let lifecycle = container.lifecycle.as_ref();
    lifecycle.is_some_and(|lifecycle| lifecycle.post_start.is_some())
}

fn starts(plan: &Plan, name: &str) -> bool {
    plan.starts().any(|one| one == name)
}

/// Plans for one container: start it, restart it, resize it, or end it because a probe or its
/// postStart hook failed or it must be replaced.
fn step(facts: PodFacts<'_>, container: &Container, kind: ContainerKind, plan: &mut Plan) {
    if facts.is_starting(container) {
        return;
    }
    let Some(seen) = latest(facts.seen, &container.name) else {
        return start(facts, container, kind, 0, None, plan);
    };
    match &seen.state {
        // No start of it is under way: an earlier run of the agent ended before it started the
        // container. It is removed, and the next plan creates it again.
        ContainerState::Created => plan.actions.push(Action::Remove {
            id: seen.id.clone(),
        }),
        ContainerState::Running { .. } => {
            let dead = facts
                .notes
                .verdicts
                .get(&seen.id)
                .and_then(|verdict| verdict.dead);
            let failed =
                facts.notes.post_start.get(&seen.id) == Some(&crate::notes::HookProgress::Failed);
            if dead.is_some() || failed || is_replaced(facts.pod, facts.notes, seen) {
                let ending = facts.ending();
                let own = dead.and_then(|death| probe_grace(facts.pod, container, death));
                let grace = own.unwrap_or(ending.grace);
                Ending { grace, ..ending }.stop_one(seen, true, plan);
            } else if facts.notes.pending.is_none() && is_resized(facts.pod, seen) {
                // A resize that failed waits, or it would be tried again at every plan.
                match facts.notes.unresized.get(&seen.id) {
                    Some((_, again)) if *again > facts.now => plan.wake_at(*again),
                    Some(_) | None => plan.actions.push(Action::Resize {
                        id: seen.id.clone(),
                    }),
                }
            }
        }
        ContainerState::Exited { .. } => {
            if let Some((at, backoff)) = facts.next(seen) {
                if waits(at, backoff, facts.now) {
                    plan.wake_at(at);
                    // The status changes before the wait is over: from `RunContainerError` to
                    // `CrashLoopBackOff`.
                    if let Some((_, until)) = start_error(seen, facts.now) {
                        plan.wake_at(until);
                    }
                } else {
                    let next = seen.key.attempt.saturating_add(1);
                    start(facts, container, kind, next, Some(backoff), plan);
                }
            }
        }
    }
}

/// Why an attempt could not be started, and until when that is shown; none after that.
pub(crate) fn start_error(seen: &Seen, now: Timestamp) -> Option<(&str, Timestamp)> {
    let ContainerState::Exited {
        cause: ExitCause::NotStarted(why),
        finished_at,
        ..
    } = &seen.state
    else {
        return None;
    };
    let until = later(*finished_at, ERROR_SHOWN);
    waits(until, ERROR_SHOWN, now).then_some((why.as_str(), until))
}

fn start(
    facts: PodFacts<'_>,
    container: &Container,
    kind: ContainerKind,
    attempt: u32,
    backoff: Option<Duration>,
    plan: &mut Plan,
) {
    // Volumes are the pod's: what fails for one container fails for all, and all try again at one
    // time.
    if let Some(again) = facts.notes.unmounted.filter(|again| *again > facts.now) {
        plan.wake_at(again);
        return;
    }
    if let Some(failure) = facts.notes.failure(facts.pod, container)
        && failure.retry_at > facts.now
    {
        // Also when the status has to change from `ErrImagePull` to `ImagePullBackOff`.
        let shown = later(failure.at, ERROR_SHOWN);
        plan.wake_at(if shown > facts.now {
            shown.min(failure.retry_at)
        } else {
            failure.retry_at
        });
        return;
    }
    if attempts(facts.seen, &container.name)
        .any(|seen| !matches!(seen.state, ContainerState::Exited { .. }))
    {
        // An older attempt still runs. `sweep` ends it, and its end leads to a new plan.
        return;
    }
    plan.actions.push(Action::Start {
        container: container.name.clone(),
        kind,
        attempt,
        backoff,
    });
}
