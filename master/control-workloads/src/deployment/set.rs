//! The parts of a ReplicaSet that a Deployment's plan uses.

use crate::workload::condition::Condition;
use crate::workload::kept::{Labels, is_leaving};
use config_kube::k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use config_kube::k8s_openapi::api::core::v1::PodTemplateSpec;
use jiff::Timestamp;
use serde_json::{Value, json};

/// The label with the hash of the template, on ReplicaSets and pods.
pub(super) const HASH: &str = "pod-template-hash";
/// The number of a rollout, on the Deployment and on its ReplicaSets.
pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
/// Earlier revisions of a ReplicaSet that became current again.
pub(super) const HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// The Deployment's replicas when the ReplicaSet was last scaled.
pub(super) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
/// The most pods that the Deployment was allowed when the ReplicaSet was last scaled.
pub(super) const MOST: &str = "deployment.kubernetes.io/max-replicas";

/// A ReplicaSet.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Set {
    /// Name.
    pub name: String,
    /// UID; empty for one that is being planned.
    pub uid: String,
    /// Creation time.
    pub created: Option<Timestamp>,
    /// Whether it is being deleted.
    pub leaving: bool,
    /// Whether its template is the Deployment's.
    pub is_current: bool,
    /// Whether its status is of its present generation.
    pub observed: bool,
    /// `spec.replicas`.
    pub replicas: i32,
    /// `spec.minReadySeconds`.
    pub least_ready: i32,
    /// Pods that it has.
    pub actual: i32,
    /// Of these, ready.
    pub ready: i32,
    /// Of these, available.
    pub available: i32,
    /// Pods that are being deleted.
    pub terminating: i32,
    /// Why it can't create or delete pods.
    pub failure: Option<Condition>,
    /// Annotations.
    pub annotations: Labels,
    /// Whether it has pods that have not ended; set only with the strategy `Recreate`.
    pub runs: bool,
}

impl Set {
    /// A ReplicaSet of a Deployment.
    pub fn of(set: &ReplicaSet, deployment: &Deployment) -> Self {
        let meta = &set.metadata;
        let spec = set.spec.clone().unwrap_or_default();
        let status = set.status.clone().unwrap_or_default();
        let wanted = deployment.spec.as_ref().map(|spec| &spec.template);
        let given = spec.template.as_ref();
        let failure = status.conditions.iter().flatten();
        let failure = failure
            .into_iter()
            .find(|one| one.type_ == "ReplicaFailure");
        Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            leaving: is_leaving(meta),
            is_current: wanted.is_some() && wanted.map(plain) == given.map(plain),
            observed: status.observed_generation >= meta.generation,
            replicas: spec.replicas.unwrap_or(1),
            least_ready: spec.min_ready_seconds.unwrap_or_default(),
            actual: status.replicas,
            ready: status.ready_replicas.unwrap_or_default(),
            available: status.available_replicas.unwrap_or_default(),
            terminating: status.terminating_replicas.unwrap_or_default(),
            failure: failure.map(|one| Condition {
                kind: one.type_.clone(),
                status: one.status.clone(),
                reason: one.reason.clone().unwrap_or_default(),
                message: one.message.clone().unwrap_or_default(),
                since: one.last_transition_time.as_ref().map(|time| time.0),
                updated: None,
            }),
            annotations: meta.annotations.clone().unwrap_or_default(),
            runs: false,
        }
    }

    /// Available pods that are certain to stay. The status may also count pods that the ReplicaSet
    /// controller is about to delete for a smaller number of replicas, or has just deleted.
    pub fn serving(&self) -> i32 {
        if self.observed {
            self.available.min(self.replicas)
        } else {
            0
        }
    }

    /// Pods that are not available, by the last status.
    pub fn broken(&self) -> i32 {
        if self.observed {
            self.replicas.saturating_sub(self.serving())
        } else {
            0
        }
    }

    /// The revision that created it or made it current again.
    pub fn revision(&self) -> i64 {
        self.number(REVISION).unwrap_or_default()
    }

    /// A number in an annotation.
    pub fn number(&self, key: &str) -> Option<i64> {
        self.annotations.get(key)?.parse().ok()
    }
}

/// A template without the added hash label, so that templates are compared as people wrote them.
pub(super) fn plain(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    if let Some(meta) = &mut template.metadata {
        if let Some(labels) = &mut meta.labels {
            labels.remove(HASH);
        }
        meta.labels = meta.labels.take().filter(|labels| !labels.is_empty());
        meta.annotations = meta.annotations.take().filter(|all| !all.is_empty());
        meta.creation_timestamp = None;
    }
    template
}

/// A change of a ReplicaSet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// The number of replicas before and after.
    pub scaled: Option<(i32, i32)>,
    /// `spec.minReadySeconds`.
    pub least_ready: Option<i32>,
    /// Annotations that differ.
    pub annotations: Labels,
}

impl Change {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// As a merge patch of the object with a UID.
    pub(super) fn patch(&self, uid: &str) -> Value {
        let mut patch = json!({"metadata": {"uid": uid}});
        if !self.annotations.is_empty() {
            patch["metadata"]["annotations"] = json!(self.annotations);
        }
        if let Some((_, to)) = self.scaled {
            patch["spec"]["replicas"] = to.into();
        }
        if let Some(seconds) = self.least_ready {
            patch["spec"]["minReadySeconds"] = seconds.into();
        }
        patch
    }
}
