//! Pods of Jobs that no kubelet will ever end.

use super::{Cluster, cluster, eventually, make, now};
use config_kube::k8s_openapi::api::batch::v1::Job;
use config_kube::k8s_openapi::api::core::v1::{Binding, Node, Pod};
use master_client::{DeleteParams, ListParams, Patch};
use serde_json::json;

/// A Job that replaces a pod only when it has failed, and its first pod.
async fn first_pod_of_a_job(cluster: &Cluster, name: &str) -> String {
    let template = json!({"spec": {"restartPolicy": "Never", "hostNetwork": true,
        "containers": [{"name": "c", "image": "registry.example/c:1"}]}});
    let job = json!({"metadata": {"name": name}, "spec": {
        "podReplacementPolicy": "Failed", "template": template}});
    make(cluster, "/apis/batch/v1/namespaces/default/jobs", job).await;
    eventually("it has a pod", || {
        Box::pin(async { pods_of(cluster, name).await.len() == 1 })
    })
    .await;
    pods_of(cluster, name).await.remove(0)
}

/// Names of the Job's pods that are not being deleted.
async fn pods_of(cluster: &Cluster, job: &str) -> Vec<String> {
    let params = ListParams {
        labels: Some(format!("batch.kubernetes.io/job-name={job}")),
        ..ListParams::default()
    };
    let pods = cluster.admin.list::<Pod>(Some("default"), &params).await;
    let pods = pods.expect("pods are served").items.into_iter();
    pods.filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .filter_map(|pod| pod.metadata.name)
        .collect()
}

/// Someone deletes the pod; no kubelet answers. It counts as failed, and another is made.
async fn is_replaced_once_deleted(cluster: &Cluster, job: &str, pod: &str) {
    cluster
        .admin
        .delete::<Pod>(Some("default"), pod, &DeleteParams::default())
        .await
        .expect("it is deleted");
    eventually("its failure is counted and another is made", || {
        Box::pin(async {
            let state: Job = cluster
                .admin
                .get(Some("default"), job)
                .await
                .expect("the Job is there");
            let failed = state.status.and_then(|status| status.failed);
            let pods = pods_of(cluster, job).await;
            failed == Some(1) && pods.len() == 1 && pods[0] != pod
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_without_a_node_fails_before_it_goes() {
    let cluster = cluster().await;
    let pod = first_pod_of_a_job(&cluster, "unscheduled").await;
    is_replaced_once_deleted(&cluster, "unscheduled", &pod).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_a_node_out_of_service_fails_before_it_goes() {
    let cluster = cluster().await;
    cluster.node("off").await;
    let pod = first_pod_of_a_job(&cluster, "abandoned").await;
    let binding = json!({"metadata": {"name": pod}, "target": {"kind": "Node", "name": "off"}});
    let binding: Binding = serde_json::from_value(binding).expect("a binding");
    let bound = cluster
        .admin
        .create_subresource::<Pod>(Some("default"), &pod, "binding", &binding);
    bound.await.expect("it is bound");
    let dead = json!({"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "no power",
        "lastHeartbeatTime": now(), "lastTransitionTime": now()});
    let patch = Patch::Strategic(json!({"status": {"conditions": [dead]}}));
    let said = cluster.admin.patch_status::<Node>(None, "off", &patch);
    said.await.expect("the node is not ready");
    // The pod tolerates the taint: only the test deletes it.
    let taint = json!({"key": "node.kubernetes.io/out-of-service", "effect": "NoSchedule"});
    let patch = Patch::Strategic(json!({"spec": {"taints": [taint]}}));
    let tainted = cluster.admin.patch::<Node>(None, "off", &patch);
    tainted.await.expect("it is out of service");
    is_replaced_once_deleted(&cluster, "abandoned", &pod).await;
}
