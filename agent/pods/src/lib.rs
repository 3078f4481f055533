//! The pod machine (pure): what the kubelet does next for one pod, and what the pod's status shows.
//! Both follow from the pod's spec, its attempts in containerd, the kubelet's notes and the time.
//!
//! Enter by [`plan`], which decides what to do now and when to plan again, and by [`status`]. There
//! are no tasks and no channels: the kubelet's worker of a pod reads containerd, calls [`plan`],
//! and carries out its actions.
//!
//! An attempt is one container in containerd: each start of a container of the pod makes a new one.
//!
//! - `machine`: the plan; starts containers in order (init containers, sidecars, main containers)
//! - `ending`: ends them in order, with their hooks; `policy`: which are started again, and when
//! - `resize`: other CPU and memory for running containers; `failures`: starts that failed
//! - `notes`: what the kubelet remembers; `recover`: attempts that containerd has lost
//! - `state`, `status`, `words`: the status of a container and of the pod, and the texts of events;
//!   `replacing`: when the status is written a moment later
//! - `placement`, `fit`, `preempt`, `users`: whether the node takes the pod, and which pods make
//!   room
//! - `containers`, `names`, `backoff`, `clocks`: containers by name, paths, waits, a clock that was
//!   set
//!
//! `simulation` holds the invariants: it drives the machine through whole lives of random pods.

#[cfg(test)]
mod attempts;
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
pub use fit::{AllocatedPod, Waiting, beyond, misfit, misfit_in_turn, missing};
pub use machine::{Action, EVICTION_GRACE, End, Plan, PodFacts, end_of, plan};
pub use names::{MAX_LOGS, is_plain, log_file, log_folder, log_link, log_name, pod_logs, pod_ref};
pub use notes::{Begun, Death, Eviction, Failure, HookProgress, Notes, Verdict};
pub use placement::{named_as_static, os_mismatch, predicate_failure};
pub use policy::{is_replaced, restart, restarts, round};
pub use preempt::victims;
pub use recover::recover;
pub use replacing::quiet_until;
pub use resize::{Pending, as_given, as_running, given, has_other_needs, is_resized, needs};
pub use status::{Addresses, Refusal, base, change, differs, status};
pub use users::users_fault;
pub use words::{WaitEvent, killing, resize, start_failed, waits};
