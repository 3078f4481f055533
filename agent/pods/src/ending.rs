//! Ends containers: in order, each with its preStop hook, its grace period, and the kill after it.
//!
//! All hooks begin at once, as upstream's do. A container gets its stop signal when its hook has
//! ended and its turn has come: a sidecar waits for everything that was started after it. When the
//! grace period is over, all that still run get the signal. Between signal and kill a container has
//! at least [`LEAST`], even where hooks and turns took the whole grace period, or it is zero.

use crate::backoff::{between, later};
use crate::containers::{all, find};
use crate::machine::{Action, Plan};
use crate::notes::{Death, Notes};
use agent_runtime::{Container as Seen, ContainerKind, ContainerState};
use config_kube::k8s_openapi::api::core::v1::{Container, Pod};
use jiff::Timestamp;
use std::time::Duration;

/// The default grace period (upstream's).
pub const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// The least time between the signal to end and the kill (upstream's
/// `minimumGracePeriodInSeconds`).
pub(crate) const LEAST: Duration = Duration::from_secs(2);

/// The shortest grace period of a pod that ends, also of one that is deleted with zero: a hook may
/// begin in it (upstream's).
pub(crate) const SHORTEST: Duration = Duration::from_secs(1);

/// The grace period of the pod's containers: that of its deletion, else that of its spec.
pub fn grace(pod: &Pod) -> Duration {
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

/// The grace period of a container whose probe failed, where the probe has one of its own. While
/// the pod is being deleted the deletion's counts.
pub(crate) fn probe_grace(pod: &Pod, container: &Container, death: Death) -> Option<Duration> {
    let probe = match death {
        Death::Startup => container.startup_probe.as_ref(),
        Death::Liveness => container.liveness_probe.as_ref(),
    };
    let seconds = probe?.termination_grace_period_seconds?;
    let deleted = pod.metadata.deletion_grace_period_seconds.is_some();
    let seconds = u64::try_from(seconds).ok().filter(|_| !deleted);
    seconds.map(Duration::from_secs)
}

/// Containers that are to end.
#[derive(Debug, Clone, Copy)]
pub struct Ending<'a> {
    /// Their pod, where it is known: its hooks, and the order of its sidecars.
    pub pod: Option<&'a Pod>,
    /// Every attempt of every container.
    pub seen: &'a [Seen],
    /// What the kubelet remembers of it.
    pub notes: &'a Notes,
    /// How long they may take.
    pub grace: Duration,
    /// The time.
    pub now: Timestamp,
}

/// The plan for containers whose pod is no longer wanted.
pub fn plan_orphan(ending: Ending<'_>) -> Plan {
    let mut plan = Plan::default();
    let grace = ending.grace.max(SHORTEST);
    let ending = Ending { grace, ..ending };
    if ending.stop_all(&mut plan) {
        plan.actions.push(Action::Finish);
    }
    plan
}

impl Ending<'_> {
    /// Asks all to end, each in its turn, and kills those that take too long; true when none is
    /// left. A container that is being started is not interrupted: it ends like the others once its
    /// start has ended.
    pub(crate) fn stop_all(self, plan: &mut Plan) -> bool {
        let mut over = self.notes.starting.is_empty();
        for container in self.seen {
            match container.state {
                ContainerState::Exited { .. } => {}
                // It has no process that could get a signal.
                ContainerState::Created => {
                    over = false;
                    plan.actions.push(Action::Remove {
                        id: container.id.clone(),
                    });
                }
                ContainerState::Running { .. } => {
                    over = false;
                    self.stop_one(container, self.is_turn(container), plan);
                }
            }
        }
        over
    }

    /// Plans the next step of one container's end. `turn`: nothing that was started after it runs.
    pub(crate) fn stop_one(self, container: &Seen, turn: bool, plan: &mut Plan) {
        let id = container.id.clone();
        let asked = self.notes.asked.get(&id).copied();
        let hook = self.notes.pre_stop.get(&id);
        // The grace period counts from the pod's end, also for a container that came to run after
        // it: hook, turn and signal share one period.
        let began = self.notes.ending.or(hook.map(|hook| hook.at)).or(asked);
        let deadline = later(began.unwrap_or(self.now), self.grace);
        if let Some(asked) = asked {
            let last = deadline.max(later(asked, LEAST));
            if self.now >= last {
                plan.actions.push(Action::Kill { id });
            } else {
                plan.wake_at(last);
            }
            return;
        }
        // Never without a grace period: then there is no time for a hook or a turn.
        let in_time = self.now < deadline;
        match hook {
            None if in_time && self.has_hook(container) => {
                let limit = between(self.now, deadline);
                plan.actions.push(Action::PreStop { id, limit });
            }
            // The hook's end leads to a new plan; the wake is for one that takes the whole period.
            Some(hook) if in_time && !hook.over => plan.wake_at(deadline),
            // It has no hook, or its hook has ended: only its turn is missing.
            None | Some(_) if in_time && !turn => plan.wake_at(deadline),
            None | Some(_) => plan.actions.push(Action::Stop { id }),
        }
    }

    fn has_hook(self, container: &Seen) -> bool {
        let found = self.pod.and_then(|pod| find(pod, &container.key.container));
        found.is_some_and(|(_, container)| {
            let lifecycle = container.lifecycle.as_ref();
            lifecycle.is_some_and(|lifecycle| lifecycle.pre_stop.is_some())
        })
    }

    /// Whether nothing runs any more that was started after this sidecar; other kinds never wait.
    /// Without the pod's spec the order of its sidecars is unknown: they end together, after the
    /// main containers.
    fn is_turn(self, container: &Seen) -> bool {
        if container.key.kind != ContainerKind::Sidecar {
            return true;
        }
        let place = |name: &str, kind: ContainerKind| {
            self.pod
                .and_then(|pod| all(pod).position(|(_, container)| container.name == name))
                .unwrap_or(usize::from(kind == ContainerKind::Main))
        };
        let alive = self
            .seen
            .iter()
            .filter(|other| !matches!(other.state, ContainerState::Exited { .. }))
            .map(|other| (&other.key.container, other.key.kind));
        // A container that is being started counts too: it may still come to use the sidecar.
        let starting = self.notes.starting.iter();
        let mut others = alive.chain(starting.map(|(name, kind)| (name, *kind)));
        let own = place(&container.key.container, container.key.kind);
        !others.any(|(name, kind)| place(name, kind) > own)
    }
}
