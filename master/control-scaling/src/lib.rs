//! Controllers that choose how many replicas a workload has.
//!
//! - `horizontal`: HorizontalPodAutoscalers: reads and writes
//! - `metrics`: samples of the usage of pods, and their requests
//! - `replicas`: the number that a metric asks for; pure
//! - `limits`: windows, policies and bounds; pure over a memory
//! - `decide`: the decision and the conditions; pure over that memory

mod decide;
mod horizontal;
mod limits;
mod metrics;
mod replicas;

pub use decide::{Condition, Decision, Fault, Observed, Reading, decide, needs_metrics};
pub use horizontal::HorizontalAutoscalers;
pub use limits::{Explanation, Limited, Memory};
pub use metrics::{Sample, Samples, samples};
pub use replicas::{MetricQuery, Proposal, Target, Tolerance, propose};

use master_control::Registration;

/// The controllers of this room.
pub const CONTROLLERS: &[Registration] = &[Registration::of::<HorizontalAutoscalers>()];
