//! What a node does when it runs out of memory, disk or process ids, its other conditions, and the
//! events about all of them.
//!
//! [`Thresholds`] say below which [`Level`]s the node is under pressure, [`Pressure`] which
//! conditions hold and for which thresholds pods are to go now, [`choose`] which pod is evicted,
//! and [`refusal`] which new pods are refused: upstream's rules ("Node-pressure Eviction" in the
//! documentation of Kubernetes). [`node_events`] says what of a Node's new status is an event.
//! [`Notices`] holds the conditions that other parts of the agent report. All but that is pure: the
//! kubelet measures, and acts.

mod admit;
mod choice;
mod events;
mod notices;
mod state;
mod thresholds;

pub use admit::{CRITICAL, EVICTED, is_critical, makes_room, priority, refusal};
pub use choice::{Candidate, CandidateContainer, PodToEvict, Share, choose, most_urgent};
pub use events::{NodeEvent, node_events};
pub use notices::{Notice, Notices, news};
pub use state::Pressure;
pub use thresholds::{
    Bound, Condition, ImageMarks, Least, Level, Levels, Signal, Soft, ThresholdKind, Thresholds,
};
