//! A node under pressure, by thresholds that this host can't meet: which pods are evicted, in which
//! order, and which are refused.

use crate::cluster::{Cluster, shell};
use crate::site::{eventually, texts};
use agent_kubelet::{Least, Signal, Thresholds};
use config_kube::k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

const HOLD: &str = "echo held; while :; do sleep 0.2; done";

/// When the node evicted the pod.
fn evicted_at(status: &Value) -> String {
    let conditions = status["conditions"].as_array().unwrap();
    let disruption = conditions
        .iter()
        .find(|condition| condition["type"] == "DisruptionTarget")
        .unwrap();
    assert_eq!(disruption["reason"], "TerminationByKubelet", "{status}");
    disruption["lastTransitionTime"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_low_on_memory_evicts_pods_in_upstreams_order_and_takes_none_without_requests() {
    let cluster = Cluster::new().await;
    let greedy = shell(&format!(
        "x=$(head -c 30000000 /dev/zero | tr '\\0' x); {HOLD}"
    ));
    let mut guaranteed = shell(HOLD);
    guaranteed["resources"] = json!({"limits": {"cpu": "100m", "memory": "64Mi"}});
    let plain = shell(HOLD);
    let critical = json!({"priorityClassName": "system-node-critical", "containers": [plain]});
    for (name, spec) in [
        ("guaranteed", json!({"containers": [guaranteed]})),
        ("critical", critical),
        ("frugal", json!({"containers": [plain]})),
        ("greedy", json!({"containers": [greedy]})),
    ] {
        cluster.create(name, spec).await;
        cluster.reaches(name, "/phase", json!("Running")).await;
        let pod = cluster.pod(name).await.unwrap();
        eventually(name, || async {
            texts(&cluster.log(&pod, 0)).contains(&"held").then_some(())
        })
        .await;
    }

    let cluster = cluster
        .under(Thresholds {
            hard: BTreeMap::from([(Signal::MemoryAvailable, Least::Amount(1 << 50))]),
            transition: Duration::from_secs(300),
            ..Thresholds::none()
        })
        .await;
    let mut times = Vec::new();
    for name in ["greedy", "frugal", "guaranteed"] {
        let status = cluster.reaches(name, "/reason", json!("Evicted")).await;
        assert_eq!(status["phase"], "Failed");
        let message = status["message"].as_str().unwrap();
        let beginning =
            "The node was low on resource: memory. Threshold quantity: 1024Ti, available: ";
        assert!(message.starts_with(beginning), "{message}");
        assert_eq!(
            message.contains("Container main was using "),
            name != "guaranteed",
            "{message}"
        );
        times.push(evicted_at(&status));
    }
    // Ten seconds lie between two evictions, and times of the API are whole seconds.
    assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
    let message = cluster.event("Evicted").await;
    assert!(message.starts_with("The node was low"), "{message}");

    cluster
        .create("late", json!({"containers": [shell(HOLD)]}))
        .await;
    let late = cluster.reaches("late", "/phase", json!("Failed")).await;
    assert_eq!(late["reason"], "Evicted");
    let refusal = "Pod was rejected: The node had condition: [MemoryPressure]. ";
    assert_eq!(late["message"], refusal);

    let node: Node = cluster.admin.get(None, "worker-1").await.unwrap();
    let conditions = node.status.unwrap().conditions.unwrap();
    let memory = conditions.iter().find(|one| one.type_ == "MemoryPressure");
    assert_eq!(memory.unwrap().status, "True");
    let disk = conditions.iter().find(|one| one.type_ == "DiskPressure");
    assert_eq!(disk.unwrap().status, "False");
    cluster
        .reaches("critical", "/phase", json!("Running"))
        .await;
}
