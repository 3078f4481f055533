//! Controllers of nodes: readiness, evictions of pods, and certificate requests.
//!
//! - `node_lifecycle`: marks and taints nodes whose kubelets are silent
//! - `pod_readiness`, `taint_eviction`, `pod_gc`: the consequences for their pods; `disruption`
//!   writes the condition of a pod that is deleted for that, `followed` follows pods and nodes
//! - `machine_nodes`: labels and taints of a Machine's Node, by its state and the policy's rules
//! - `approver`, `csr_signing`, `csr_cleaner`: decide, sign and delete certificate requests

pub mod approver;
pub mod csr_cleaner;
pub mod csr_signing;
mod disruption;
mod followed;
pub mod machine_nodes;
pub mod node_lifecycle;
pub mod pod_gc;
pub mod pod_readiness;
pub mod taint_eviction;

use master_control::Registration;

/// The controllers of this room.
pub const CONTROLLERS: &[Registration] = &[
    Registration::of::<node_lifecycle::NodeLifecycle>(),
    Registration::of::<pod_readiness::PodReadiness>(),
    Registration::of::<taint_eviction::TaintEviction>(),
    Registration::of::<pod_gc::PodGc>(),
    Registration::of::<csr_cleaner::CsrCleaner>(),
    Registration::of::<approver::Approver>(),
    Registration::of::<machine_nodes::MachineNodes>(),
    Registration::of::<csr_signing::CsrSigning>(),
];
