//! How many pods the scheduler binds through the real API with its real store, which flushes each
//! write. Run by hand, it measures; in the test command a small cluster shows that it runs.
//!
//! `PACE_NODES=1000 PACE_PODS=5000 cargo test --release -p master-schedule --features jemalloc
//! --test throughput -- --nocapture`: pods are created while others are bound; with
//! `PACE_BACKLOG=1` the scheduler begins when all are there. `PACE_SHAPE=spread` spreads the pods
//! of each application over zones, `PACE_SHAPE=anti` lets no two of them on one node. API, store
//! and scheduler are one process, with the master's allocator. The clients are in it too; they made
//! their pods before the clock starts, and the answers are not decoded.

#![allow(clippy::print_stdout, reason = "a measurement is printed")]

use config_kube::k8s_openapi::api::core::v1::{Node, Pod};
use futures_util::stream::{self, StreamExt};
use master_api::{ApiServer, Options};
use master_client::{Client, ListParams, Patch, UserInfo};
use master_store::EmbeddedStore;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tests_harness::pace::{number, spent_by_process};

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";
/// Clients that create at the same time.
const CLIENTS: usize = 32;
/// Time for everything, on any machine.
const LIMIT: Duration = Duration::from_secs(600);

async fn make_node(admin: &Client, at: usize) {
    let name = format!("node-{at:05}");
    let labels = json!({ZONE: format!("z{}", at % 3), HOST: name});
    let node = json!({"metadata": {"name": name, "labels": labels}});
    let node: Node = serde_json::from_value(node).expect("a node");
    admin.create(&node).await.expect("the node is made");
    let room = json!({"cpu": "32", "memory": "128Gi", "pods": "110"});
    let conditions =
        json!([{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}]);
    let status =
        json!({"status": {"conditions": conditions, "allocatable": room, "capacity": room}});
    let ready = Patch::Merge(status);
    let patched = admin.patch_status::<Node>(None, &name, &ready).await;
    patched.expect("the node is ready");
    // A new node is tainted until the controllers, which do not run here, find it ready.
    let untainted = Patch::Merge(json!({"spec": {"taints": null}}));
    let patched = admin.patch::<Node>(None, &name, &untainted).await;
    patched.expect("the node takes pods");
}

fn name(pod: usize) -> String {
    format!("p{pod:06}")
}

/// A pod of an application with `replicas` pods, in the shape that is measured.
fn pod(at: usize, replicas: usize, shape: &str) -> Pod {
    let app = format!("app-{}", at / replicas);
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": app, "controller": true}]);
    let requests = json!({"requests": {"cpu": "100m", "memory": "64Mi"}});
    let container = json!({"name": "c", "image": "registry.example/c:1", "resources": requests});
    let metadata = json!({"namespace": "default", "name": name(at), "labels": {"app": app}, "ownerReferences": owner});
    let mut pod = json!({"metadata": metadata, "spec": {"containers": [container]}});
    let selector = json!({"matchLabels": {"app": app}});
    match shape {
        "" => {}
        "spread" => {
            pod["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "labelSelector": selector,
                "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}]);
        }
        "anti" => {
            let terms = json!([{"labelSelector": selector, "topologyKey": HOST}]);
            pod["spec"]["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
        }
        other => unreachable!("PACE_SHAPE is spread or anti, not {other}"),
    }
    serde_json::from_value(pod).expect("a pod")
}

async fn make_pod(admin: &Client, pod: &Pod) {
    admin.add(pod).await.expect("the pod is made");
}

/// Waits until each of these pods has a node. Pods are bound in order, so only the last ones are
/// read.
async fn all_bound(admin: &Client, pods: usize) {
    let limit = Instant::now() + LIMIT;
    for at in pods.saturating_sub(100)..pods {
        loop {
            let pod = admin.get::<Pod>(Some("default"), &name(at)).await;
            let spec = pod.expect("the pod is there").spec;
            if spec.is_some_and(|spec| spec.node_name.is_some()) {
                break;
            }
            assert!(
                Instant::now() < limit,
                "{pods} pods are not bound within {LIMIT:?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// How many pods each node has.
async fn used(admin: &Client) -> BTreeMap<String, usize> {
    let all = ListParams::default();
    let list = admin.list::<Pod>(Some("default"), &all).await;
    let mut used = BTreeMap::new();
    for pod in list.expect("pods are served").items {
        if let Some(node) = pod.spec.and_then(|spec| spec.node_name) {
            *used.entry(node).or_default() += 1;
        }
    }
    used
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_bound_through_the_api() {
    let (nodes, pods) = (
        number("PACE_NODES", 20_usize),
        number("PACE_PODS", 100_usize),
    );
    let backlog = number("PACE_BACKLOG", 0_usize) > 0;
    let folder = TempDir::new().expect("a folder for the store");
    let engine = EmbeddedStore::open(folder.path()).expect("an empty store opens");
    let api = ApiServer::new(Arc::new(engine), Options::default());
    api.prepare().await.expect("the system namespaces are made");
    let admin = api.client(UserInfo::admin("admin"));
    let none = Vec::<String>::new();
    let own = api.client(UserInfo::authenticated(
        config_kube::identity::SCHEDULER_USER,
        none,
    ));
    let making = stream::iter(0..nodes).for_each_concurrent(CLIENTS, |at| make_node(&admin, at));
    making.await;
    let shape = std::env::var("PACE_SHAPE").unwrap_or_default();
    // At most as many as there are nodes, so that each pod finds one.
    let replicas = nodes.clamp(1, 100);
    let bodies: Vec<Pod> = (0..pods).map(|at| pod(at, replicas, &shape)).collect();
    let creating = stream::iter(&bodies).for_each_concurrent(CLIENTS, |pod| make_pod(&admin, pod));
    let schedule = || {
        let options = master_schedule::Options::default();
        tokio::spawn(master_schedule::run(
            own.clone(),
            options,
            std::future::pending(),
        ))
    };
    let (begun, before, scheduler) = if backlog {
        creating.await;
        (Instant::now(), spent_by_process(), schedule())
    } else {
        let begun = (Instant::now(), spent_by_process(), schedule());
        creating.await;
        begun
    };
    all_bound(&admin, pods).await;
    let (time, cost) = (begun.elapsed(), spent_by_process().saturating_sub(before));
    let mut nodes_used = used(&admin).await;
    while nodes_used.values().sum::<usize>() < pods {
        // Some of those before the last ones may be written still.
        assert!(
            begun.elapsed() < LIMIT,
            "not all are bound within {LIMIT:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
        nodes_used = used(&admin).await;
    }
    scheduler.abort();
    let count = u32::try_from(pods).expect("fewer pods");
    println!(
        "{nodes} nodes, {pods} pods{} {}: {:.0} bound in a second, {:?} of processor time each; {} nodes used, at most {} pods on one",
        if backlog {
            " that were there before"
        } else {
            ", creation with it"
        },
        shape,
        f64::from(count) / time.as_secs_f64(),
        cost / count,
        nodes_used.len(),
        nodes_used.values().max().copied().unwrap_or_default(),
    );
}
