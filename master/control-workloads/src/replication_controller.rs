//! ReplicationControllers: as ReplicaSets, with a plain map for a selector (the core is in
//! `workload/replicas.rs`).

use crate::workload::kept::{Labels, Selects};
use crate::workload::replicas::{Replicas, Replicated, same_fields};
use config_kube::k8s_openapi::api::core::v1::ReplicationController;
use master_control::controller::{Right, right};

/// The controller. Its keys are ReplicationControllers.
pub type ReplicationControllers = Replicas<ReplicationController>;

impl Selects for ReplicationController {
    fn wants(&self, labels: &Labels) -> bool {
        let selector = self.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let wants = |selector: &Labels| {
            let mut needs = selector.iter();
            !selector.is_empty() && needs.all(|(key, value)| labels.get(key) == Some(value))
        };
        selector.is_some_and(wants)
    }
}

impl Replicated for ReplicationController {
    const CONTROLLER: &'static str = "replicationcontroller-controller";
    const COMPONENT: &'static str = "replication-controller";
    const RIGHTS: &'static [Right] = &[
        right("", "replicationcontrollers", &["get", "list", "watch"]),
        right("", "replicationcontrollers/status", &["patch"]),
        right("", "pods", &["list", "watch", "create", "patch", "delete"]),
        right("", "events", &["create", "patch"]),
    ];
    const COUNTS_TERMINATING: bool = false;

    same_fields!();
}
