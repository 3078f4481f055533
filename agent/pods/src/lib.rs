//! The pod machine: what to do for a pod, and what its status says, as pure functions of what is
//! wanted, what is seen, what is remembered, and the time.
//!
//! Enter by [`plan`], which says what to do now and when to look again, and by [`status`], which
//! says it to users in the words that they know. There are no tasks and no channels; the kubelet's
//! worker of a pod looks, asks, and acts.
//!
//! `containers` finds a pod's containers and their attempts, `policy` says which of them are
//! started again, `machine` starts them in order (init containers, sidecars, main containers),
//! `ending` ends them in order and with their hooks, `state` tells of one container and `status` of
//! the pod, `resize` gives what runs more or less, `recover` remembers what the engine has lost,
//! `failures` what could not be started, `replacing` when a status is better told a moment later, `fit` whether a node has room for a pod, `preempt` who
//! makes room for a critical one, and `words` has the texts of events.
//!
//! Properties are held by `simulation`, which drives the machine through whole lives.

mod backoff;
mod clocks;
mod containers;
mod ending;
mod failures;
mod fit;
mod machine;
mod names;
mod notes;
mod placement;
mod policy;
mod preempt;
mod recover;
mod replacing;
mod resize;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod simulation_story;
#[cfg(test)]
mod simulation_tests;
mod state;
mod status;
mod users;
mod words;

pub use backoff::{after_failures, between, later};
pub use clocks::Clocks;
pub use containers::{
    all, ephemeral, find, initial, is_on_host, kind_of_initial, latest, mains, previous, target_of,
};
pub use ending::{DEFAULT_GRACE, Ending, grace, plan_orphan};
pub use failures::remember;
pub use fit::{Tenant, Waiting, beyond, misfit, misfit_in_turn, missing};
pub use machine::{Action, EVICTION_GRACE, End, Plan, View, end_of, plan};
pub use names::{MAX_LOGS, is_plain, log_file, log_folder, log_name, pod_logs, pod_ref};
pub use notes::{Begun, Death, Eviction, Failure, Notes, Progress, Verdict};
pub use placement::{foreign, misplaced, named_as_static};
pub use policy::{is_replaced, restart, restarts, round};
pub use preempt::victims;
pub use recover::recover;
pub use replacing::quiet_until;
pub use resize::{Pending, as_given, given, has_other_needs, is_resized, needs};
pub use status::{Addresses, Refusal, base, change, status};
pub use users::users_fault;
pub use words::{killing, waits};
