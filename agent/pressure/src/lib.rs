//! What a node does when it runs out of memory, disk or process ids.
//!
//! [`Thresholds`] say below which of its [`Level`]s the node is under pressure. All is pure: the kubelet measures, and acts.

mod thresholds;

pub use thresholds::{Condition, ImageMarks, Least, Level, Levels, Signal, Thresholds};
