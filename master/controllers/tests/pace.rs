//! How soon workloads reach their specification, with the real API, store, scheduler and
//! controllers in one process and simulated kubelets. Run by hand, it measures; in the test command
//! a few of everything show that it runs.
//!
//! `PACE_NODES=100 PACE_REPLICAS=1000 PACE_JOBS=1000 PACE_OBJECTS=10000 cargo test --release -p
//! master-controllers --test pace -- --nocapture`

#![allow(clippy::print_stdout, reason = "a measurement is printed")]

use config_kube::identity::{CONTROLLER_MANAGER_USER, SCHEDULER_USER};
use config_kube::k8s_openapi::api::apps::v1::Deployment;
use config_kube::k8s_openapi::api::batch::v1::Job;
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod};
use futures_util::stream::{self, StreamExt};
use master_api::{ApiServer, Options};
use master_client::{Client, DeleteParams, ListParams, Object, Patch, UserInfo, WatchEvent};
use master_control::Controllers;
use master_controllers::all;
use master_store::EmbeddedStore;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tests_harness::pace::{number, spent_by_process};
use tokio::sync::Semaphore;

/// Concurrent requests of kubelets and clients.
const AT_ONCE: usize = 32;
/// Time for each part, on any machine.
const LIMIT: Duration = Duration::from_secs(600);
/// How often a kubelet reports its node as ready: the grace period is 40 s.
const HEARTBEAT: Duration = Duration::from_secs(10);

fn object<T: Object>(value: &Value) -> T {
    T::from_json(value.to_string().as_bytes()).expect("an object of its kind")
}

/// Now, as kubelets write it.
fn second() -> String {
    jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}

/// A status patch of a ready Node.
fn ready() -> Patch {
    let now = second();
    let room = json!({"cpu": "32", "memory": "128Gi", "pods": "110"});
    let condition = json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready",
        "lastHeartbeatTime": now, "lastTransitionTime": now});
    Patch::Strategic(
        json!({"status": {"conditions": [condition], "allocatable": room, "capacity": room}}),
    )
}

fn node(at: usize) -> String {
    format!("node-{at:04}")
}

/// Reports every Node as ready, again and again.
async fn heartbeats(admin: Client, nodes: usize) {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        for at in 0..nodes {
            let said = admin.patch_status::<Node>(None, &node(at), &ready()).await;
            said.expect("the node is there");
        }
    }
}

/// Simulates kubelets for the pods in the namespace `default`: pods that run to completion succeed
/// at once, others run, and deleted ones are removed at once.
async fn kubelets(admin: Client) {
    let everything = ListParams::default();
    let pods = admin.list::<Pod>(Some("default"), &everything).await;
    let from = pods.expect("pods are served").resource_version;
    let watcher = admin
        .watch::<Pod>(Some("default"), &everything, &from)
        .await;
    let mut watcher = watcher.expect("pods are watched");
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    while let Some(event) = watcher.next().await.expect("pods are watched on") {
        let (WatchEvent::Added(pod) | WatchEvent::Modified(pod)) = event else {
            continue;
        };
        let turn = Arc::clone(&turns).acquire_owned().await.expect("open");
        let admin = admin.clone();
        tokio::spawn(async move {
            act(&admin, pod).await;
            drop(turn);
        });
    }
}

/// The next action of the kubelet of a pod's node. The pod may be deleted already.
async fn act(admin: &Client, pod: Pod) {
    let (meta, spec) = (pod.metadata, pod.spec.unwrap_or_default());
    let (name, uid) = (meta.name.unwrap_or_default(), meta.uid.unwrap_or_default());
    let phase = pod.status.and_then(|status| status.phase);
    if spec.node_name.is_none() {
        return;
    }
    if meta.deletion_timestamp.is_some() {
        let at_once = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::of(uid)
        };
        drop(admin.delete::<Pod>(Some("default"), &name, &at_once).await);
    } else if phase.as_deref() == Some("Pending") {
        let now = second();
        let ends = spec.restart_policy.as_deref() == Some("Never");
        let (phase, serves) = if ends {
            ("Succeeded", "False")
        } else {
            ("Running", "True")
        };
        let condition = json!({"type": "Ready", "status": serves, "lastTransitionTime": now});
        let status = json!({"phase": phase, "startTime": now, "conditions": [condition]});
        let patch = Patch::Strategic(json!({"metadata": {"uid": uid}, "status": status}));
        drop(
            admin
                .patch_status::<Pod>(Some("default"), &name, &patch)
                .await,
        );
    }
}

async fn make_node(admin: &Client, at: usize) {
    let made: Node = object(&json!({"metadata": {"name": node(at)}}));
    admin.create(&made).await.expect("the node is made");
    let said = admin.patch_status::<Node>(None, &node(at), &ready()).await;
    said.expect("the node is ready");
}

fn template(image: &str, restart: &str) -> Value {
    let requests = json!({"requests": {"cpu": "100m", "memory": "64Mi"}});
    let container = json!({"name": "c", "image": image, "resources": requests});
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"restartPolicy": restart, "containers": [container]}})
}

/// Waits until something holds; returns a line with wall and processor time since `begun`.
async fn until(
    what: &str,
    (begun, before): (Instant, Duration),
    mut holds: impl AsyncFnMut() -> bool,
) -> String {
    while !holds().await {
        assert!(begun.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (wall, spent) = (begun.elapsed(), spent_by_process().saturating_sub(before));
    format!(
        "{what}: {:.2} s, {:.2} s of processor time",
        wall.as_secs_f64(),
        spent.as_secs_f64()
    )
}

fn now() -> (Instant, Duration) {
    (Instant::now(), spent_by_process())
}

/// Whether all replicas are of the newest template and ready.
async fn is_rolled_out(admin: &Client, replicas: usize) -> bool {
    let web = admin.get::<Deployment>(Some("default"), "web").await;
    let web = web.expect("it is there");
    let status = web.status.unwrap_or_default();
    let replicas = i32::try_from(replicas).ok();
    status.observed_generation == web.metadata.generation
        && [
            status.replicas,
            status.updated_replicas,
            status.ready_replicas,
        ]
        .iter()
        .all(|count| *count == replicas)
}

async fn deployment(admin: &Client, replicas: usize) {
    let spec = json!({"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
        "template": template("registry.example/c:1", "Always")});
    let web: Deployment =
        object(&json!({"metadata": {"namespace": "default", "name": "web"}, "spec": spec}));
    let begun = now();
    admin.create(&web).await.expect("it is made");
    let what = format!("a Deployment of {replicas} replicas is ready");
    println!(
        "{}",
        until(&what, begun, async || is_rolled_out(admin, replicas).await).await
    );
    let newer = json!({"spec": {"template": template("registry.example/c:2", "Always")}});
    let begun = now();
    let patched = admin
        .patch::<Deployment>(Some("default"), "web", &Patch::Merge(newer))
        .await;
    patched.expect("it is changed");
    let what = format!("a Deployment of {replicas} replicas is rolled out");
    println!(
        "{}",
        until(&what, begun, async || is_rolled_out(admin, replicas).await).await
    );
}

async fn jobs(admin: &Client, jobs: usize) {
    let spec = json!({"template": template("registry.example/c:1", "Never")});
    let begun = now();
    let making = stream::iter(0..jobs).for_each_concurrent(AT_ONCE, |at| {
        let job = json!({"metadata": {"namespace": "default", "name": format!("job-{at}")}, "spec": spec});
        async move { admin.add(&object::<Job>(&job)).await.expect("it is made") }
    });
    making.await;
    let mut open = 0..jobs;
    let all_done = async || {
        // They are created in this order, and end nearly in it.
        while let Some(at) = open.clone().next() {
            let job = admin
                .get::<Job>(Some("default"), &format!("job-{at}"))
                .await;
            let status = job.expect("it is there").status.unwrap_or_default();
            if status.completion_time.is_none() {
                return false;
            }
            open.next();
        }
        true
    };
    println!(
        "{}",
        until(&format!("{jobs} Jobs of one pod are done"), begun, all_done).await
    );
}

async fn namespace(admin: &Client, objects: usize) {
    let many: Namespace = object(&json!({"metadata": {"name": "many"}}));
    admin.create(&many).await.expect("it is made");
    let making = stream::iter(0..objects).for_each_concurrent(AT_ONCE, |at| async move {
        let map = json!({"metadata": {"namespace": "many", "name": format!("map-{at}")}, "data": {"key": "value"}});
        admin.add(&object::<ConfigMap>(&map)).await.expect("it is made");
    });
    making.await;
    let begun = now();
    let deleted = admin
        .delete::<Namespace>(None, "many", &DeleteParams::default())
        .await;
    deleted.expect("it is deleted");
    let is_gone = async || {
        let found = admin.get_opt::<Namespace>(None, "many").await;
        found.expect("namespaces are served").is_none()
    };
    let what = format!("a namespace with {objects} objects is gone");
    println!("{}", until(&what, begun, is_gone).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn workloads_are_soon_what_was_asked_for() {
    let folder = TempDir::new().expect("a folder for the store");
    let engine = EmbeddedStore::open(folder.path()).expect("an empty store opens");
    let options = Options {
        roles: master_control::roles(&all()),
        ..Options::default()
    };
    let api = ApiServer::new(Arc::new(engine), options);
    api.prepare().await.expect("the system namespaces are made");
    let user = |name| api.client(UserInfo::authenticated(name, Vec::<String>::new()));
    let admin = api.client(UserInfo::admin("admin"));
    let nodes = number("PACE_NODES", 5);
    let making = stream::iter(0..nodes).for_each_concurrent(AT_ONCE, |at| make_node(&admin, at));
    making.await;
    let controllers = Controllers::of(&all(), master_control::Options::default());
    let mut parts = tokio::task::JoinSet::new();
    parts.spawn(controllers.run(user(CONTROLLER_MANAGER_USER), std::future::pending()));
    parts.spawn(master_schedule::run(
        user(SCHEDULER_USER),
        master_schedule::Options::default(),
        std::future::pending(),
    ));
    parts.spawn(heartbeats(admin.clone(), nodes));
    parts.spawn(kubelets(admin.clone()));
    deployment(&admin, number("PACE_REPLICAS", 20)).await;
    jobs(&admin, number("PACE_JOBS", 10)).await;
    namespace(&admin, number("PACE_OBJECTS", 100)).await;
    parts.abort_all();
}
