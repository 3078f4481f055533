//! Everyday commands, and what is special here: the project's kinds, a node's logs.

use crate::common;
use crate::common::kubectl::Cluster;
use master_client::UserInfo;
use serde_json::json;

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  hostNetwork: true
  containers:
  - {name: c, image: 'reg/x:1', env: [{name: A, value: '1'}]}
";

#[tokio::test]
async fn apply_again_and_with_less() {
    let cluster = Cluster::start().await;
    cluster.says("apply -f -", POD, &["pod/web created"]).await;
    cluster
        .says("apply -f -", POD, &["pod/web unchanged"])
        .await;
    cluster.says("diff -f -", POD, &[]).await;
    let changed = POD
        .replace("reg/x:1", "reg/x:2")
        .replace("app: web", "app: web, tier: front");
    cluster
        .says("apply -f -", &changed, &["pod/web configured"])
        .await;
    cluster
        .says(
            "get pod web -o jsonpath={.spec.containers[0].image}/{.metadata.labels.tier}",
            "",
            &["reg/x:2/front"],
        )
        .await;
    cluster.says("apply -f -", POD, &["configured"]).await;
    let labels = cluster
        .says("get pod web -o jsonpath={.metadata.labels}", "", &["app"])
        .await;
    assert!(
        !labels.contains("tier"),
        "what was applied and is gone from the file goes: {labels}"
    );
    cluster.server.stop().await;
}

#[tokio::test]
async fn get_describe_and_delete() {
    let cluster = Cluster::start().await;
    cluster.says("apply -f -", POD, &["pod/web created"]).await;
    cluster
        .says(
            "get pods",
            "",
            &[
                "NAME   READY   STATUS    RESTARTS   AGE",
                "web    0/1     Pending   0",
            ],
        )
        .await;
    cluster
        .says(
            "get pods -o wide",
            "",
            &["NOMINATED NODE", "READINESS GATES"],
        )
        .await;
    cluster
        .says(
            "get pods -l app=web --field-selector status.phase=Pending -A -o name",
            "",
            &["pod/web"],
        )
        .await;
    cluster
        .says(
            "get pod web -o yaml",
            "",
            &[
                "restartPolicy: Always",
                "kubectl.kubernetes.io/last-applied-configuration",
            ],
        )
        .await;
    cluster
        .says(
            "describe pod web",
            "",
            &[
                "Name:             web",
                "QoS Class:                   BestEffort",
            ],
        )
        .await;
    cluster
        .says("delete pod web", "", &["pod \"web\" deleted"])
        .await;
    cluster
        .refuses(
            "get pod web",
            "",
            "Error from server (NotFound): pods \"web\" not found",
        )
        .await;
    cluster.server.stop().await;
}

#[tokio::test]
async fn wrong_manifests_are_explained() {
    let cluster = Cluster::start().await;
    cluster
        .refuses(
            "apply -f -",
            &POD.replace("hostNetwork", "hostNetwerk"),
            "unknown field \"spec.hostNetwerk\"",
        )
        .await;
    let bad = POD
        .replace("image: 'reg/x:1'", "image: ''")
        .replace("name: web", "name: Web");
    cluster
        .refuses(
            "apply -f -",
            &bad,
            "* spec.containers[0].image: Required value",
        )
        .await;
    cluster
        .refuses(
            "apply -f -",
            &bad,
            "* metadata.name: Invalid value: \"Web\"",
        )
        .await;
    cluster.server.stop().await;
}

#[tokio::test]
async fn the_projects_kinds_read_well() {
    let cluster = Cluster::start().await;
    let machine = "
apiVersion: pratique.dev/v1alpha1
kind: Machine
metadata: {name: m1}
spec: {role: worker, nodeName: worker-1}
";
    cluster
        .says("apply -f -", machine, &["machine.pratique.dev/m1 created"])
        .await;
    cluster
        .says(
            "apply -f -",
            &machine.replace("worker-1", "worker-2"),
            &["configured"],
        )
        .await;
    let status =
        json!({"status": {"state": "Untrusted", "reason": "IMAGE_UNKNOWN", "message": "why"}});
    let path = "/apis/pratique.dev/v1alpha1/machines/m1/status";
    let admin = UserInfo::admin("a");
    let (code, error) = cluster
        .server
        .local
        .ask(&admin, http::Method::PATCH, path, &status)
        .await;
    assert_eq!(code.as_u16(), 200, "{error}");
    cluster
        .says(
            "get machines",
            "",
            &[
                "NAME   STATE       ROLE     NODE       IMAGE    REASON",
                "Untrusted   worker   worker-2",
            ],
        )
        .await;
    cluster
        .says("describe machine m1", "", &["Reason:", "IMAGE_UNKNOWN"])
        .await;
    cluster
        .says("explain machine.spec.nodeName", "", &["Name of its Node"])
        .await;
    cluster
        .refuses(
            "apply -f -",
            &machine.replace("role: worker", "role: boss"),
            "spec.role: Unsupported value: \"boss\"",
        )
        .await;
    for kind in ["imagereleases", "nodeattestations", "certificatepolicies"] {
        cluster
            .says(&format!("get {kind}"), "", &["No resources found"])
            .await;
    }
    cluster.server.stop().await;
}

#[tokio::test]
async fn logs_are_shown_and_followed() {
    let cluster = Cluster::start().await;
    let kubelet = common::Kubelet::default();
    cluster
        .server
        .local
        .api
        .set_node_dialer(std::sync::Arc::new(kubelet.clone()));
    let node = json!({"metadata": {"name": "n1"}, "status": {
        "addresses": [{"type": "InternalIP", "address": "10.0.0.9"}],
    }});
    cluster
        .server
        .local
        .admin_ask(http::Method::POST, "/api/v1/nodes", &node)
        .await;
    cluster
        .says(
            "create -f -",
            &POD.replace("hostNetwork: true", "hostNetwork: true\n  nodeName: n1"),
            &["created"],
        )
        .await;
    cluster.says("logs web", "", &["line 1\nline 2\n"]).await;
    cluster
        .says("logs web -f --tail=3 -c c", "", &["line 2"])
        .await;
    let asked = kubelet.asked.lock().unwrap().clone();
    assert_eq!(
        asked[1].1,
        "/containerLogs/default/web/c?follow=true&tailLines=3"
    );
    cluster
        .refuses(
            "logs web -c none",
            "",
            "container none is not valid for pod web",
        )
        .await;
    cluster.server.stop().await;
}
