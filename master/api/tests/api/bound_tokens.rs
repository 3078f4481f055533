//! Tokens of pods whose node is gone.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::tokens::{PODS, cluster, key, made, pod, token, whoami};
use http::{Method, StatusCode};
use serde_json::json;

/// Pods of a deleted node stay until they are garbage-collected.
#[tokio::test]
async fn a_pods_token_is_refused_while_the_pods_node_does_not_exist() {
    let server = cluster(&key()).await;
    let mut unbound = pod();
    unbound["metadata"]["name"] = "waits".into();
    unbound["spec"].as_object_mut().unwrap().remove("nodeName");
    made(&server, PODS, unbound).await;
    let bound =
        |name: &str| json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": name}});
    let of_pod = token(&server, bound("p")).await;
    // It names no node, as the pod has none yet.
    let early = token(&server, bound("waits")).await;
    let binding = json!({"metadata": {"name": "waits"}, "target": {"kind": "Node", "name": "n1"}});
    made(&server, &format!("{PODS}/waits/binding"), binding).await;
    for bearer in [&of_pod, &early] {
        assert_eq!(whoami(&server, bearer).await.0, StatusCode::CREATED);
    }
    let (node, now) = ("/api/v1/nodes/n1", json!({"gracePeriodSeconds": 0}));
    let (status, answer) = server.admin_ask(Method::DELETE, node, &now).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    for bearer in [&of_pod, &early] {
        assert_eq!(whoami(&server, bearer).await.0, StatusCode::UNAUTHORIZED);
    }
    let again = json!({"metadata": {"name": "n1"}});
    made(&server, "/api/v1/nodes", again).await;
    for bearer in [&of_pod, &early] {
        let (status, _) = whoami(&server, bearer).await;
        assert_eq!(status, StatusCode::CREATED, "its kubelet registered again");
    }
}
