//! The scheduler: binds pods to nodes by filters and scores over a snapshot.
//!
//! Start at [`run`], the loop, at [`Scheduler`], which the loop drives, or at [`choose`], the
//! decision: a pure function of a [`PodRequest`] and a [`Snapshot`].
//!
//! A decision asks the plugins of upstream's default profile (`plugins`, a file each); profiles of
//! other names (`profile`) differ in how they weigh the resources of nodes. Pods are counted by
//! labels (`groups`), and nodes (`nodes`) and topology domains (`topology`) have numbers, so that
//! affinity and spread look at no single pod and compare no names. Of more than a hundred nodes a
//! decision may look at a part only, and the next one starts where it ended.
//!
//! The loop follows pods, nodes, namespaces and Services (`services`) through the API, maintains
//! the snapshot (`snapshot`) and the queue of pending pods (`queue`; an event wakes those that the
//! refusing plugins say it helps), and writes its decisions: a Binding, or the condition and event
//! that say why there is none. A pod that is being bound counts on its node at once (assumed),
//! until the API shows it there or the bind fails. There are no tasks and no channels: the loop
//! holds its writes as futures, a bounded number of them, and drops them when it ends.
//!
//! The queue is bounded, too: the least important pods are left out of a full one, and the loop
//! lists all pods again once there is room.
//!
//! A pod that fits nowhere may preempt pods of lower priority (`preempt`). Its filters are made
//! once, and follow each pod that a dry run takes off a node. Its place is kept meanwhile, also by
//! a scheduler that starts then (`status.nominatedNodeName`).
//!
//! Volumes (`storage`): a claim with `WaitForFirstConsumer` gets its volume before the pod is
//! bound. The loop keeps the pod's place, reserves a volume for the claim or sets the node on the
//! claim, and decides again when the claim is bound. If a CSI driver reports its free storage
//! (`capacity`), a volume is provisioned only on a node where it fits.
//!
//! Features of upstream's default profile that are not supported yet are refused by name, never
//! ignored: see [`PodRequest::not_yet`].

mod affinity;
mod capacity;
mod choose;
mod event;
mod groups;
mod key;
mod node;
mod nodes;
mod plugins;
mod preempt;
mod profile;
mod queue;
mod request;
mod resources;
mod run;
mod scheduler;
mod services;
mod snapshot;
mod storage;
mod taints;
mod terms;
mod topology;
mod unschedulable;

pub use capacity::{Capacity, Driver};
pub use choose::{Placement, choose};
pub use event::{ClusterEvent, NodeChange, PodChange, PodLeft, PodUsage};
pub use key::PodKey;
pub use node::NodeInfo;
pub use plugins::Plugins;
pub use preempt::{Budget, Budgets, NoPreemption, Preemption, Victim, preempt};
pub use profile::{Point, Profile, Strategy};
pub use queue::{Queue, Waiting};
pub use request::PodRequest;
pub use resources::{Resources, needed};
pub use run::{Options, run};
pub use scheduler::{ClusterChange, PodInfo, PodReader, Scheduler, Write, Written};
pub use services::ServiceSelector;
pub use snapshot::Snapshot;
pub use storage::{Limits, Storage};
pub use unschedulable::Unschedulable;

/// Name of this scheduler in `spec.schedulerName` and in events.
pub const NAME: &str = "default-scheduler";
