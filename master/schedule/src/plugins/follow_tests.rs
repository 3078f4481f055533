//! Filters that follow the pods of a dry run check nodes as filters that are made anew.

use super::{Obstacle, Plugins, PodMove, Prepared};
use crate::node::{NodeId, NodeInfo};
use crate::request::PodRequest;
use crate::snapshot::Snapshot;
use config_kube::k8s_openapi::api::core::v1::PersistentVolumeClaim;
use master_claims::Claim;
use master_client::{Key, View};
use proptest::prelude::*;
use serde_json::{Value, json};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const NODES: usize = 5;

/// One of five nodes: the third has a taint, and the last is in none of the two zones.
fn node(at: usize) -> NodeInfo {
    let name = format!("n{at}");
    let mut labels = json!({HOST: name});
    if at < 4 {
        labels[ZONE] = format!("z{}", at % 2).into();
    }
    let taint = json!({"key": "taint", "effect": "NoSchedule"});
    let taints = if at == 2 { vec![taint] } else { Vec::new() };
    let node = json!({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}, "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "4", "memory": "64Gi", "pods": "110"},
    }});
    NodeInfo::of(&serde_json::from_value(node).expect("a node"))
}

/// What the dry run does with a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Stays,
    Off,
    OffAndBack,
}

#[derive(Debug, Clone)]
struct TestPod {
    request: PodRequest,
    node: usize,
    step: Step,
}

/// A pod of an application, of one of four kinds: plain, with anti-affinity, or with a claim.
fn placed(app: usize, kind: usize, leaving: bool) -> PodRequest {
    let spec = match kind {
        0 => json!({}),
        1 => anti_affinity(&[term(0, ZONE)]),
        2 => anti_affinity(&[term(0, HOST), term(1, ZONE)]),
        _ => with_claim(),
    };
    let mut pod = pod("p", app, spec);
    if leaving {
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    PodRequest::of(&serde_json::from_value(pod).expect("a pod"))
}

fn term(app: usize, topology: &str) -> Value {
    let selector = json!({"matchLabels": {"app": app.to_string()}});
    json!({"labelSelector": selector, "topologyKey": topology})
}

fn affinity(terms: &[Value]) -> Value {
    json!({"affinity": {"podAffinity": {REQUIRED: terms}}})
}

fn anti_affinity(terms: &[Value]) -> Value {
    json!({"affinity": {"podAntiAffinity": {REQUIRED: terms}}})
}

fn with_claim() -> Value {
    json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]})
}

/// A hard constraint on the spread of app 0.
fn spread(topology: &str, more: &Value) -> Value {
    let mut constraint = term(0, topology);
    constraint["maxSkew"] = 1.into();
    constraint["whenUnsatisfiable"] = "DoNotSchedule".into();
    for (key, value) in more.as_object().into_iter().flatten() {
        constraint[key.as_str()] = value.clone();
    }
    constraint
}

fn spreads(constraints: &[Value]) -> Value {
    json!({"topologySpreadConstraints": constraints})
}

fn pod(name: &str, app: usize, mut spec: Value) -> Value {
    spec["containers"] = json!([{"name": "c"}]);
    let labels = json!({"app": app.to_string()});
    let metadata = json!({"namespace": "d", "name": name, "uid": name, "labels": labels});
    json!({"metadata": metadata, "spec": spec})
}

/// Pods of app 0 with all that a filter reads from other pods than those of the node.
fn preemptors() -> Vec<PodRequest> {
    let mut in_one_zone = spreads(&[spread(HOST, &json!({}))]);
    in_one_zone["nodeSelector"] = json!({ZONE: "z0"});
    let tolerated = json!({"nodeTaintsPolicy": "Honor"});
    let specs = [
        json!({}),
        with_claim(),
        affinity(&[term(0, ZONE)]),
        affinity(&[term(1, ZONE), term(1, HOST)]),
        anti_affinity(&[term(1, ZONE), term(2, HOST)]),
        spreads(&[spread(ZONE, &json!({}))]),
        spreads(&[spread(ZONE, &tolerated), spread(HOST, &tolerated)]),
        spreads(&[spread(HOST, &json!({"minDomains": 9}))]),
        in_one_zone,
    ];
    let preemptor = |spec| {
        let pod = pod("preemptor", 0, spec);
        PodRequest::of(&serde_json::from_value(pod).expect("a pod"))
    };
    specs.into_iter().map(preemptor).collect()
}

/// A cluster with those of the pods that count.
fn cluster(pods: &[TestPod], counts: impl Fn(Step) -> bool) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for at in 0..NODES {
        snapshot.set_node(node(at));
    }
    let claim = json!({"metadata": {"name": "c", "uid": "u"},
        "spec": {"volumeName": "v", "accessModes": ["ReadWriteOncePod"]}, "status": {"phase": "Bound"}});
    let claim: PersistentVolumeClaim = serde_json::from_value(claim).expect("a claim");
    let storage = snapshot.storage_mut();
    storage.set_claim(Key::new("d", "c"), Claim::read(claim));
    for (number, pod) in pods.iter().enumerate() {
        if counts(pod.step) {
            let mut request = pod.request.clone();
            request.key.name = format!("p{number}");
            snapshot.place(request, &format!("n{}", pod.node));
        }
    }
    snapshot
}

/// Takes pods off their nodes, or puts them back.
fn follow(filters: &mut Prepared<'_>, pods: &[TestPod], moves: impl Fn(Step) -> bool, change: i64) {
    for pod in pods.iter().filter(|pod| moves(pod.step)) {
        filters.follow(&PodMove {
            node: NodeId(pod.node),
            pod: &pod.request.demand,
            leaving: pod.request.leaving,
            change,
        });
    }
}

fn obstacles(filters: &Prepared<'_>, snapshot: &Snapshot) -> Vec<(NodeId, Vec<Obstacle>)> {
    let nodes = snapshot.candidates();
    let obstacles = nodes.map(|node| {
        let found = filters.first_obstacle(&node, &mut Plugins::default());
        (node.id, found)
    });
    obstacles.collect()
}

fn test_pods() -> impl Strategy<Value = Vec<TestPod>> {
    let steps = vec![Step::Stays, Step::Off, Step::OffAndBack];
    let step = proptest::sample::select(steps);
    let fields = (0..3_usize, 0..4_usize, 0..NODES, any::<bool>(), step);
    let pod = fields.prop_map(|(app, kind, node, leaving, step)| TestPod {
        request: placed(app, kind, leaving),
        node,
        step,
    });
    proptest::collection::vec(pod, 0..16)
}

proptest! {
    #[test]
    fn filters_that_follow_pods_off_and_back_check_nodes_as_new_filters_do(pods in test_pods()) {
        let before = cluster(&pods, |_| true);
        let without = cluster(&pods, |step| step == Step::Stays);
        let after = cluster(&pods, |step| step != Step::Off);
        for preemptor in preemptors() {
            let anew = |snapshot: &Snapshot| obstacles(&Prepared::of(&preemptor, snapshot), snapshot);
            let mut filters = Prepared::of(&preemptor, &before);
            follow(&mut filters, &pods, |step| step != Step::Stays, -1);
            prop_assert_eq!(obstacles(&filters, &without), anew(&without));
            follow(&mut filters, &pods, |step| step == Step::OffAndBack, 1);
            prop_assert_eq!(obstacles(&filters, &after), anew(&after));
            follow(&mut filters, &pods, |step| step == Step::Off, 1);
            prop_assert_eq!(obstacles(&filters, &before), anew(&before));
        }
    }
}
