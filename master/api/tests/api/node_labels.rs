//! The labels of a Node, by which pods choose it, against a node that is taken over.

use crate::authorization::{Caller, cluster, node};
use crate::taken_nodes::made;
use serde_json::{Value, json};

const MACHINES: &str = "/apis/pratique.dev/v1alpha1/machines";

/// A pod that is for `n2` says so by one of these labels.
#[tokio::test]
async fn a_node_of_a_machine_draws_no_pods_by_labels_of_another_node() {
    let server = cluster().await;
    let machine = json!({"metadata": {"name": "m1"}, "spec": {"role": "worker", "nodeName": "n1"}});
    made(&server, MACHINES, &machine).await;
    let own = Caller::new(&server, node("n1"));
    let labelled = |label: &str, value: Value| json!({"metadata": {"labels": {label: value}}});
    let paths = ["/api/v1/nodes/n1", "/api/v1/nodes/n1/status"];
    // What the agent adds where the master does not know it.
    for label in ["kubernetes.io/os", "beta.kubernetes.io/os"] {
        own.patches(paths[0], &labelled(label, json!("linux")), 200)
            .await;
    }
    own.patches(
        paths[1],
        &labelled("kubernetes.io/arch", json!("amd64")),
        200,
    )
    .await;
    for (label, value) in [
        ("kubernetes.io/hostname", json!("n2")),
        ("topology.kubernetes.io/zone", json!("a")),
        ("topology.kubernetes.io/region", json!("a")),
        ("failure-domain.beta.kubernetes.io/zone", json!("a")),
        ("node.kubernetes.io/instance-type", json!("gpu")),
        ("beta.kubernetes.io/instance-type", json!("gpu")),
        ("gpu.node.kubernetes.io/present", json!("true")),
        ("kubelet.kubernetes.io/x", json!("y")),
        ("kubernetes.io/os", json!("windows")),
        ("kubernetes.io/arch", json!("arm64")),
        ("kubernetes.io/arch", Value::Null),
        ("pratique.dev/role", json!("master")),
    ] {
        for path in paths {
            own.patches(path, &labelled(label, value.clone()), 403)
                .await;
        }
    }
}

/// Of such a node, as of upstream's kubelet, nobody else knows what its labels should be, but for
/// its name.
#[tokio::test]
async fn a_node_of_no_machine_has_no_host_name_but_its_own() {
    let server = cluster().await;
    let own = Caller::new(&server, node("n1"));
    let labelled = |label: &str, value: Value| json!({"metadata": {"labels": {label: value}}});
    for (label, value, code) in [
        ("topology.kubernetes.io/zone", json!("a"), 200),
        ("kubernetes.io/hostname", json!("n2"), 403),
        ("kubernetes.io/hostname", json!("n1"), 200),
        ("kubernetes.io/hostname", json!("n2"), 403),
        ("kubernetes.io/hostname", Value::Null, 403),
    ] {
        own.patches("/api/v1/nodes/n1", &labelled(label, value), code)
            .await;
    }
}
