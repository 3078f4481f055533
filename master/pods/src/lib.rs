//! Pods: the rules of a pod's spec, in pods and in the templates of workloads, and the descriptor
//! of the kind.
//!
//! Start at [`podspec::validate`] for a spec and at [`pod()`] for the kind. Pure, as all of
//! `master-schema`, on which it is built.
//!
//! No tasks, no channels, no I/O.

mod pod;
pub mod podspec;

pub use pod::{grace, pod};
