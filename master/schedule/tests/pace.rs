//! What a decision costs in a large cluster. Run by hand, it measures; in the test command a small cluster shows that it runs.

use master_schedule::{NodeInfo, PodRequest, Snapshot, choose};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Instant;

fn node(at: usize) -> NodeInfo {
    let name = format!("node-{at:05}");
    let labels = json!({"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": format!("z{}", at % 3)});
    let node = json!({"metadata": {"name": name, "labels": labels}, "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "32", "memory": "128Gi", "pods": "110"},
    }});
    NodeInfo::of(&serde_json::from_value(node).expect("a node"))
}

fn pod(what: &str) -> PodRequest {
    let mut pod = json!({
        "metadata": {"namespace": "default", "name": "p", "uid": "u", "labels": {"app": "web"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": true}]},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}]},
    });
    let selector = json!({"matchLabels": {"app": "web"}});
    match what {
        "spread" => {
            pod["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "labelSelector": selector,
                "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}]);
        }
        "anti-affinity" => {
            let terms =
                json!([{"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}]);
            pod["spec"]["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
        }
        _ => {}
    }
    PodRequest::of(&serde_json::from_value(pod).expect("a pod"))
}

#[test]
fn decisions_in_a_large_cluster() {
    let read = |name: &str, usual: usize| {
        let number = std::env::var(name).ok();
        number
            .and_then(|number| number.parse().ok())
            .unwrap_or(usual)
    };
    let (nodes, pods) = (read("PACE_NODES", 50), read("PACE_PODS", 40));
    for what in ["plain", "spread", "anti-affinity"] {
        let mut snapshot = Snapshot::default();
        for at in 0..nodes {
            snapshot.set_node(node(at));
        }
        let first = pod(what);
        let replica = |at: usize| {
            let mut replica = first.clone();
            replica.key.name = format!("p{at}");
            replica.uid = format!("u{at}");
            replica
        };
        let requests: Vec<_> = (0..pods).map(replica).collect();
        let mut used = BTreeSet::new();
        let begun = Instant::now();
        for request in requests {
            let placement = choose(&request, &snapshot).expect("there is room");
            snapshot.assume(request, &placement.node);
            used.insert(placement.node);
        }
        let spent = begun.elapsed();
        // One in three nodes at least, as zones are filled evenly; all, where nodes themselves are places.
        let least = pods.min(nodes) / if what == "spread" { 3 } else { 1 };
        assert!(used.len() >= least, "{what}: {} nodes are used", used.len());
        println!("{what}: {nodes} nodes, {pods} decisions in {spent:?}");
    }
}
