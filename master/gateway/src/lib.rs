//! The way to nodes' kubelets: limits on their answers, places of open calls, and the bytes of a tunnel.

mod answer;
mod pass;

pub use answer::{Driver, Expected, NodeBody, NodeCall, NodeCalls, NodeLimits};
pub use pass::pass;
