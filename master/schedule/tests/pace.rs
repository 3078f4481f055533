//! The cost of a decision in a large cluster, and how evenly pods are spread. Run by hand, it
//! measures; in the test command a small cluster shows that it runs.
//!
//! `PACE_NODES=5000 PACE_PODS=50000 cargo test --release -p master-schedule --test pace --
//! --nocapture`; `PACE_ONLY` names one of the kinds of pods. Processor time is that of the thread
//! which decides.

use master_client::{Key, View};
use master_schedule::{
    Budget, Budgets, NodeInfo, PodKey, PodRequest, ServiceSelector, Snapshot, choose, preempt,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tests_harness::pace::{number, spent_by_thread};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";

/// Kinds of pods: without an owner, of a ReplicaSet, both of these selected by one of [`SERVICES`],
/// with spread constraints, with anti-affinity to each other, and the same where each has a label
/// of its own, as the pods of a StatefulSet have.
const KINDS: [&str; 8] = [
    "bare",
    "replicas",
    "served-bare",
    "served-replicas",
    "spread-zones",
    "spread-nodes",
    "anti-affinity",
    "stateful",
];

/// Services of the namespace of pods that are served.
const SERVICES: usize = 1000;

fn node(at: usize) -> NodeInfo {
    let name = format!("node-{at:05}");
    let labels = json!({HOST: name, ZONE: format!("z{}", at % 3)});
    let node = json!({"metadata": {"name": name, "labels": labels}, "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "32", "memory": "128Gi", "pods": "110"},
    }});
    NodeInfo::of(&serde_json::from_value(node).expect("a node"))
}

/// A pod of a kind that asks for so much processor time.
fn sized(kind: &str, app: usize, cpu: &str) -> PodRequest {
    request(kind, app, 0, &json!({"cpu": cpu}))
}

fn pod(kind: &str, app: usize, at: usize) -> PodRequest {
    // An even pod requests two per cent of a node, so that each counts in scores, which are in
    // whole per cent.
    let requests = if kind == "even" {
        json!({"cpu": "640m", "memory": "2621440Ki"})
    } else {
        json!({"cpu": "100m", "memory": "64Mi"})
    };
    request(kind, app, at, &requests)
}

fn request(kind: &str, app: usize, at: usize, requests: &Value) -> PodRequest {
    let app = format!("app-{app}");
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": app, "controller": true}]);
    let requests = json!({"requests": requests});
    let mut pod = json!({
        "metadata": {"namespace": "default", "name": "p", "labels": {"app": app}, "ownerReferences": owner},
        "spec": {"containers": [{"name": "c", "resources": requests}]},
    });
    let selector = json!({"matchLabels": {"app": app}});
    let spread = |topology: &str| -> Value {
        json!([{"maxSkew": 1, "labelSelector": selector, "topologyKey": topology, "whenUnsatisfiable": "DoNotSchedule"}])
    };
    if kind == "stateful" {
        let name = format!("{app}-{at}");
        pod["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] = name.into();
    }
    match kind {
        "bare" | "served-bare" | "even" => pod["metadata"]["ownerReferences"] = json!([]),
        "spread-zones" => pod["spec"]["topologySpreadConstraints"] = spread(ZONE),
        "spread-nodes" => pod["spec"]["topologySpreadConstraints"] = spread(HOST),
        "anti-affinity" | "stateful" => {
            let terms = json!([{"labelSelector": selector, "topologyKey": HOST}]);
            pod["spec"]["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
        }
        _ => {}
    }
    PodRequest::of(&serde_json::from_value(pod).expect("a pod"))
}

/// The standard deviation of the numbers of pods.
#[allow(clippy::cast_precision_loss, reason = "there are fewer than 2^52 pods")]
fn deviation(pods: &[usize]) -> f64 {
    let mean = pods.iter().sum::<usize>() as f64 / pods.len() as f64;
    let squares = pods.iter().map(|pods| (*pods as f64 - mean).powi(2));
    (squares.sum::<f64>() / pods.len() as f64).sqrt()
}

/// Places pods of a kind one after the other; returns each decision's cost, and how many pods each
/// node has then. An application has pods for three in five nodes.
fn place(kind: &str, nodes: usize, pods: usize) -> (Vec<Duration>, Vec<usize>) {
    let mut snapshot = Snapshot::default();
    let mut used = BTreeMap::new();
    for at in 0..nodes {
        let node = node(at);
        used.insert(node.name().to_owned(), 0);
        snapshot.set_node(node);
    }
    let served = if kind.starts_with("served") {
        SERVICES
    } else {
        0
    };
    for app in (0..served).map(|app| format!("app-{app}")) {
        let service = json!({"spec": {"selector": {"app": app}}});
        let service = serde_json::from_value(service).expect("a Service");
        snapshot.set_service(Key::new("default", &app), ServiceSelector::read(service));
    }
    let each = (nodes * 3 / 5).max(1);
    let mut first = pod(kind, 0, 0);
    let mut costs = Vec::with_capacity(pods);
    for at in 0..pods {
        if at % each == 0 || kind == "stateful" {
            first = pod(kind, at / each, at);
        }
        let mut request = first.clone();
        request.key.name = format!("p{at}");
        request.uid = format!("u{at}");
        let before = spent_by_thread();
        let placement = choose(&request, &snapshot).expect("there is room");
        placement.assume(request, &mut snapshot);
        costs.push(spent_by_thread().saturating_sub(before));
        *used.get_mut(&placement.node).expect("a node of it") += 1;
    }
    (costs, used.into_values().collect())
}

#[test]
fn decisions_in_a_large_cluster() {
    let (nodes, pods) = (
        number("PACE_NODES", 150_usize),
        number("PACE_PODS", 300_usize),
    );
    let only = std::env::var("PACE_ONLY").ok();
    for kind in KINDS {
        if only.as_ref().is_some_and(|only| only != kind) {
            continue;
        }
        let (mut costs, used) = place(kind, nodes, pods);
        let all: Duration = costs.iter().sum();
        costs.sort_unstable();
        let at = |percent: usize| costs[costs.len() * percent / 100];
        let (least, most) = (used.iter().min(), used.iter().max());
        println!(
            "{kind}: {nodes} nodes, {pods} pods: {:.0} decisions in a second of processor time, {:?} each, p50 {:?}, p99 {:?}; \
             {} to {} pods on a node, deviation {:.2}",
            f64::from(u32::try_from(pods).expect("fewer pods")) / all.as_secs_f64(),
            all / u32::try_from(pods).expect("fewer pods"),
            at(50),
            at(99),
            least.expect("a node"),
            most.expect("a node"),
            deviation(&used),
        );
        assert_eq!(used.iter().sum::<usize>(), pods);
    }
}

/// The cost of choosing victims for a pod that fits nowhere: the nodes are full of pods of lower
/// priority, and each application of these has a budget.
#[test]
fn a_preemption_in_a_large_cluster() {
    const LOWER: usize = 10;
    let nodes = number("PACE_NODES", 150_usize);
    let mut snapshot = Snapshot::default();
    let mut budgets = Budgets::new();
    for at in 0..nodes {
        let node = node(at);
        for place in 0..LOWER {
            let number = at * LOWER + place;
            let mut lower = sized("replicas", number / 50, "3200m");
            lower.key.name = format!("p{number}");
            lower.uid = format!("u{number}");
            snapshot.place(lower, node.name());
        }
        snapshot.set_node(node);
    }
    for app in 0..nodes * LOWER / 50 {
        let app = format!("app-{app}");
        let budget = json!({"metadata": {"namespace": "default", "name": app},
            "spec": {"selector": {"matchLabels": {"app": app}}}, "status": {"disruptionsAllowed": 1}});
        let budget = Budget::of(&serde_json::from_value(budget).expect("a budget"));
        let namespace = "default".to_owned();
        budgets.insert(
            PodKey {
                namespace,
                name: app,
            },
            budget,
        );
    }
    for kind in ["replicas", "spread-zones", "anti-affinity"] {
        let mut higher = sized(kind, 99_999, "3200m");
        higher.priority = 1000;
        let before = spent_by_thread();
        let found = preempt(&higher, &snapshot, &budgets).expect("others end for it");
        let cost = spent_by_thread().saturating_sub(before);
        println!("{kind}: a preemption on {nodes} nodes with {LOWER} pods each: {cost:?}");
        assert_eq!((found.victims.len(), found.violating), (1, 0));
    }
}

/// Where all nodes and all pods are alike, upstream places a pod on any of the nodes with the
/// fewest pods among those that it looks at. These are as many as it documents, and begin where the
/// last decision ended. Ours spreads no wider.
#[test]
fn pods_are_spread_as_evenly_over_many_nodes_as_upstream_spreads_them() {
    let (nodes, pods) = (300, 1500);
    let enough = nodes * (50 - nodes / 125) / 100;
    let (mut theirs, mut start, mut random) = (vec![0_usize; nodes], 0, 1_usize);
    for _ in 0..pods {
        let sample: Vec<usize> = (start..start + enough).map(|at| at % nodes).collect();
        let least = sample.iter().map(|at| theirs[*at]).min().expect("a node");
        let best: Vec<usize> = sample
            .into_iter()
            .filter(|at| theirs[*at] == least)
            .collect();
        // A linear congruential generator (Knuth's constants).
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        theirs[best[(random >> 33) % best.len()]] += 1;
        start = (start + enough) % nodes;
    }
    let (_, ours) = place("even", nodes, pods);
    let span = |pods: &[usize]| {
        let (least, most) = (pods.iter().min(), pods.iter().max());
        most.expect("a node") - least.expect("a node")
    };
    assert!(
        span(&ours) <= span(&theirs),
        "{} and {}",
        span(&ours),
        span(&theirs)
    );
    let (ours, theirs) = (deviation(&ours), deviation(&theirs));
    assert!(ours <= theirs + 0.1, "{ours} and {theirs}");
}
