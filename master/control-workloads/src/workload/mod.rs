//! What the controllers of workloads share: how their objects and pods are kept, who owns a pod,
//! how pods are made and ended, how amounts, hashes and conditions are computed.
//!
//! - `kept`: an object as a store keeps it, found by namespace and by its controller
//! - `pod`: a pod as its owner sees it
//! - `action`: a step for one object, which must still be the one that was planned for
//! - `claim`: adoption of orphans and release of what no longer matches
//! - `make`: pods from templates, created in growing batches; deletion; events about both
//! - `amount`: numbers that are given as such or as a share
//! - `hash`: short names of templates
//! - `condition`: conditions whose times change only with their status
//! - `rank`: which pods go first
//! - `revision`: templates that DaemonSets and StatefulSets have had
//! - `node_facts`: on which nodes a DaemonSet's pod is to be
//! - `ready`: for how long pods have been ready, whatever clock is set
//! - `waits`: how long failed daemon pods stay
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
