//! Marks the pods of silent and untrusted nodes as not ready, so that no service routes to them.

use crate::followed::pods_and_nodes;
use config_kube::k8s_openapi::api::core::v1::Pod;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use config_kube::taints::{NO_EXECUTE, UNTRUSTED};
use master_client::{ApiError, Key, NewEvent, Patch, Severity, Store};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::node::NodeView;
use master_control::views::pod::PodView;
use master_control::writer::Writer;
use serde_json::json;
use std::sync::Arc;

/// The controller. Its keys are pods.
#[derive(Debug)]
pub struct PodReadiness {
    pods: Store<PodView>,
    nodes: Store<NodeView>,
}

/// A pod, and whether its kubelet's last report still counts.
#[derive(Debug)]
pub struct Facts {
    key: Key,
    pod: Arc<PodView>,
    stale: bool,
}

/// Sets the pod's condition `Ready` to false.
#[derive(Debug, PartialEq, Eq)]
pub struct NotReady {
    /// The object's key.
    pub key: Key,
    /// Its UID.
    pub uid: String,
}

impl Controller for PodReadiness {
    const NAME: &'static str = "pod-readiness";
    const RIGHTS: &'static [Right] = &[
        right("", "pods", &["list", "watch"]),
        right("", "pods/status", &["patch"]),
        right("", "nodes", &["list", "watch"]),
        right("", "events", &["create", "patch"]),
    ];
    type Facts = Facts;
    type Action = NotReady;

    fn new(setup: &mut Setup<'_>) -> Self {
        let (pods, nodes) = pods_and_nodes(setup, is_stale);
        Self { pods, nodes }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let pod = self.pods.get(key)?;
        let node = self.nodes.get(&Key::cluster(&pod.node))?;
        Some(Facts {
            key: key.clone(),
            pod,
            stale: is_stale(&node),
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<NotReady> {
        let wrong = facts.stale && facts.pod.ready;
        let action = wrong.then(|| NotReady {
            key: facts.key.clone(),
            uid: facts.pod.uid.clone(),
        });
        action.into()
    }

    async fn carry_out(&self, pod: NotReady, writer: &Writer) -> Result<(), ApiError> {
        let condition = json!({"type": "Ready", "status": "False", "reason": "NodeNotReady",
            "message": "the node is silent or not trusted", "lastTransitionTime": Time(writer.client().now())});
        let status = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}});
        let patch = Patch::Strategic(status);
        let marked: Pod = writer.patch_status(&pod.key, &patch).await?;
        let event = NewEvent {
            severity: Severity::Warning,
            reason: "NodeNotReady",
            action: "MarkingNotReady",
            message: "Node is not ready".to_owned(),
        };
        writer.recorder().record(&marked, &event).await;
        Ok(())
    }
}

/// Whether the kubelet's last report is out of date. That of an untrusted machine is ignored too.
fn is_stale(node: &NodeView) -> bool {
    node.is_unreachable() || node.has_taint(UNTRUSTED, NO_EXECUTE)
}
