//! The ReplicaSet controller: keeps `spec.replicas` pods of a template (the core is in
//! `workload/replicas.rs`).

use crate::workload::replicas::{Replicas, Replicated, same_fields};
use config_kube::k8s_openapi::api::apps::v1::ReplicaSet;
use master_control::controller::{Right, right};

/// The controller. Its keys are ReplicaSets.
pub type ReplicaSets = Replicas<ReplicaSet>;

impl Replicated for ReplicaSet {
    const CONTROLLER: &'static str = "replicaset-controller";
    const RIGHTS: &'static [Right] = &[
        right("apps", "replicasets", &["get", "list", "watch"]),
        right("apps", "replicasets/status", &["patch"]),
        right("", "pods", &["list", "watch", "create", "patch", "delete"]),
        right("", "events", &["create", "patch"]),
    ];
    const COUNTS_TERMINATING: bool = true;

    same_fields!();

    fn terminating(&self) -> Option<i32> {
        self.status.as_ref()?.terminating_replicas
    }
}
