//! The ReplicaSet controller: keeps `spec.replicas` pods of a template (the core is in
//! `workload/replicas.rs`).

use crate::workload::condition::Condition;
use crate::workload::kept::{Labels, Selects, selects};
use crate::workload::replicas::{Counts, Replicas, Replicated};
use config_kube::k8s_openapi::api::apps::v1::ReplicaSet;
use config_kube::k8s_openapi::api::core::v1::PodTemplateSpec;
use master_control::controller::{Right, right};

/// The controller. Its keys are ReplicaSets.
pub type ReplicaSets = Replicas<ReplicaSet>;

impl Selects for ReplicaSet {
    fn wants(&self, labels: &Labels) -> bool {
        let spec = self.spec.as_ref();
        spec.is_some_and(|spec| selects(&spec.selector, labels))
    }
}

impl Replicated for ReplicaSet {
    const CONTROLLER: &'static str = "replicaset-controller";
    const RIGHTS: &'static [Right] = &[
        right("apps", "replicasets", &["get", "list", "watch"]),
        right("apps", "replicasets/status", &["patch"]),
        right("", "pods", &["list", "watch", "create", "patch", "delete"]),
        right("", "events", &["create", "patch"]),
    ];
    const COUNTS_TERMINATING: bool = true;

    fn wanted(&self) -> i32 {
        self.spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(1)
    }

    fn least_ready(&self) -> i32 {
        let spec = self.spec.as_ref();
        spec.and_then(|spec| spec.min_ready_seconds)
            .unwrap_or_default()
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn counts(&self) -> Counts {
        let status = self.status.clone().unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default().into_iter();
        let conditions = conditions.map(|one| {
            Condition::read(
                one.type_,
                one.status,
                one.reason,
                one.message,
                one.last_transition_time,
            )
        });
        Counts {
            replicas: status.replicas,
            labelled: status.fully_labeled_replicas.unwrap_or_default(),
            ready: status.ready_replicas.unwrap_or_default(),
            available: status.available_replicas.unwrap_or_default(),
            terminating: status.terminating_replicas,
            observed: status.observed_generation.unwrap_or_default(),
            conditions: conditions.collect(),
        }
    }
}
