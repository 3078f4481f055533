//! Parts that the controllers of workloads share.
//!
//! - `kept`: an object as a store keeps it, found by namespace and by its controller
//! - `pod`: the parts of a pod that its owner needs
//! - `action`: a step for one object with a UID
//! - `claim`: adoption of orphans and release of objects that no longer match
//! - `make`: pods from templates, created in growing batches; deletion; events about both
//! - `amount`: numbers and percentages
//! - `hash`: hashes of templates
//! - `condition`: conditions whose times change only with their status
//! - `rank`: which pods are deleted first
//! - `revision`: the ControllerRevisions of DaemonSets and StatefulSets
//! - `node_facts`: the nodes on which a DaemonSet's pod should run
//! - `ready`: for how long pods have been ready, also if a clock is set
//! - `waits`: back-off of failed daemon pods
//! - `replicas`: the core of ReplicaSet and ReplicationController

pub mod action;
pub mod amount;
pub mod claim;
pub mod condition;
pub mod hash;
pub mod kept;
pub mod make;
pub mod node_facts;
pub mod pod;
pub mod rank;
pub mod ready;
pub mod replicas;
pub mod revision;
pub mod waits;
