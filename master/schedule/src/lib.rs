//! Binds pods to nodes: filter and score over a snapshot, then one bind.
//!
//! Enter by [`run`], the loop, or by [`choose`], the decision: a pure function of a [`PodRequest`] and a [`Snapshot`].
//!
//! The loop follows pods and nodes through the API, keeps the snapshot (`snapshot`) and the pods that wait (`queue`), and
//! writes what it decided: a Binding, or the condition and event that say why not. A pod that is being bound counts on its
//! node at once (assumed), until the API shows it there or the bind fails. There are no tasks and no channels: the loop
//! holds its writes as futures, a bounded number of them, and ends them when it ends.
//!
//! What the default profile of upstream's scheduler knows and this one does not yet is refused by name, never ignored:
//! see [`PodRequest::not_yet`].

mod affinity;
mod choose;
mod node;
mod queue;
mod request;
mod resources;
mod run;
mod snapshot;
mod taints;
mod words;

pub use choose::{Placement, choose};
pub use node::NodeInfo;
pub use queue::{CAPACITY, Queue, Waiting};
pub use request::PodRequest;
pub use resources::Resources;
pub use run::{Options, run};
pub use snapshot::{PodKey, Snapshot};
pub use words::Unschedulable;

/// Name of this scheduler in `spec.schedulerName` and in events.
pub const NAME: &str = "default-scheduler";
