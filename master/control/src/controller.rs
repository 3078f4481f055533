//! The trait of a controller: what it follows, its facts, its plan, its actions, its rights.

use crate::setup::Setup;
use crate::writer::Writer;
use jiff::Timestamp;
use master_client::{ApiError, Key};
use std::fmt::Debug;
use std::future::Future;
use std::time::{Duration, Instant};

/// The time, on both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Monotonic, for durations.
    pub instant: Instant,
    /// Wall clock, to compare with times in objects.
    pub wall: Timestamp,
}

impl Now {
    /// The time now.
    pub fn read() -> Self {
        Self {
            instant: Instant::now(),
            wall: Timestamp::now(),
        }
    }

    /// Time that passed since an object's time; nothing where that is in the future.
    pub fn since(self, time: Timestamp) -> Duration {
        Duration::try_from(self.wall.duration_since(time)).unwrap_or_default()
    }

    /// Time that is left until an object's time; none where that is over.
    pub fn until(self, time: Timestamp) -> Option<Duration> {
        let left = Duration::try_from(time.duration_since(self.wall)).ok()?;
        (!left.is_zero()).then_some(left)
    }
}

/// A controller's plan for one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan<A> {
    /// Actions, carried out one after another; the first that fails ends the run.
    pub actions: Vec<A>,
    /// Plan again after this time, even if nothing changes.
    pub requeue: Option<Duration>,
}

impl<A> Plan<A> {
    /// Nothing to do until something changes.
    pub const fn nothing() -> Self {
        Self {
            actions: Vec::new(),
            requeue: None,
        }
    }

    /// One action.
    pub fn act(action: A) -> Self {
        Self {
            actions: vec![action],
            requeue: None,
        }
    }

    /// These actions, and nothing to do then until something changes.
    pub const fn all(actions: Vec<A>) -> Self {
        Self {
            actions,
            requeue: None,
        }
    }

    /// Nothing to do now; plan again after this time.
    pub fn wait(time: Duration) -> Self {
        Self {
            actions: Vec::new(),
            requeue: Some(time),
        }
    }

    /// Plan again after this time at the latest.
    pub fn requeue_in(&mut self, time: Duration) {
        self.requeue = Some(self.requeue.map_or(time, |known| known.min(time)));
    }
}

impl<A> From<Option<A>> for Plan<A> {
    fn from(action: Option<A>) -> Self {
        action.map_or_else(Self::nothing, Self::act)
    }
}

/// A right that a controller needs at the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Right {
    /// API group; `*` is all.
    pub group: &'static str,
    /// Resource, with a subresource as `pods/status`; `*` is all.
    pub resource: &'static str,
    /// Verbs.
    pub verbs: &'static [&'static str],
    /// Names of the objects, or of the signers; none: all.
    pub names: &'static [&'static str],
}

impl Right {
    /// The same right, on objects of these names alone. A list or a create has no name, so that it
    /// is not granted by this.
    #[must_use]
    pub const fn named(self, names: &'static [&'static str]) -> Self {
        Self { names, ..self }
    }
}

/// A right in one line.
pub const fn right(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
) -> Right {
    Right {
        group,
        resource,
        verbs,
        names: &[],
    }
}

/// A controller. It is level-triggered: a run depends on the current state only, not on the change
/// that led to it, and each controller is the only writer of its output. The driver runs different
/// keys concurrently, but never one key twice at once.
pub trait Controller: Sized + Send + Sync + 'static {
    /// Name in logs and metrics; upstream's where there is one.
    const NAME: &'static str;
    /// Name in events, which `kubectl describe` shows under `From`; upstream's where that is
    /// another than the controller's.
    const COMPONENT: &'static str = Self::NAME;
    /// What its actions need at the API: the role of its own user grants only this, and no other
    /// controller has that role. What it follows is declared too, although one user reads for all
    /// controllers.
    const RIGHTS: &'static [Right];
    /// All that its plan for one key depends on.
    type Facts: Debug;
    /// What its plan can contain.
    type Action: Debug + PartialEq + Send + 'static;

    /// Declares the views that it follows, the keys that a change concerns and the indexes that it
    /// reads; it keeps the stores that [`Setup`] returns.
    fn new(setup: &mut Setup<'_>) -> Self;

    /// The facts about a key, from the stores and from the controller's own memory, without
    /// waiting. What an object does not say itself, such as since when its node is gone, may be
    /// noted in that memory here; nothing else changes. `None` if there is nothing to plan.
    fn facts(&self, key: &Key, now: Now) -> Option<Self::Facts>;

    /// The actions for these facts. Pure.
    fn plan(facts: &Self::Facts, now: Now) -> Plan<Self::Action>;

    /// Carries out an action. It must be idempotent, and its writes must have a precondition (UID,
    /// resource version), so that the API refuses what was planned on an outdated version.
    ///
    /// # Errors
    /// What the API answered. "Not found", "conflict" and "already exists" mean outdated stores:
    /// the key is planned again after the back-off, without a log line above debug. Everything else
    /// is logged, and tried again after the back-off.
    fn carry_out(
        &self,
        action: Self::Action,
        writer: &Writer,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;
}
