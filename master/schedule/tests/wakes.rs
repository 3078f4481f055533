//! What wakes a pod that fitted nowhere: changes that can help it, and no others.

use config_kube::k8s_openapi::api::core::v1::{Node, Pod};
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use master_client::{
    Body, BoxFuture, Change, Client, Gone, Key, Resource, Transport, UserInfo, body,
};
use master_schedule::{ClusterChange, NodeInfo, Profile, Scheduler};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Takes every write and does nothing; keeps the paths.
#[derive(Debug, Default)]
struct Paths(Mutex<Vec<String>>);

impl Transport for Paths {
    fn call(&self, request: Request<Body>, _: UserInfo) -> BoxFuture<'_, Response<Body>> {
        let mut paths = self.0.lock().expect("nobody panics");
        paths.push(request.uri().path().to_owned());
        let mut answer = Response::new(body("{}"));
        *answer.status_mut() = StatusCode::CREATED;
        Box::pin(std::future::ready(answer))
    }

    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    fn resources(&self) -> Vec<Resource> {
        Vec::new()
    }
}

struct Scene {
    scheduler: Scheduler,
    paths: Arc<Paths>,
    now: Instant,
}

impl Scene {
    fn new(nodes: &[Node], pods: &[Pod]) -> Self {
        let paths = Arc::new(Paths::default());
        let client = Client::new(
            Arc::clone(&paths) as Arc<dyn Transport>,
            UserInfo::admin("a"),
        );
        let mut scheduler = Scheduler::new(client, vec![Profile::default_profile()]);
        let now = Instant::now();
        let reader = scheduler.reader();
        let pods = pods.iter().map(|pod| reader.read(pod)).collect();
        for change in [
            ClusterChange::Nodes(Change::Listed(nodes.iter().map(NodeInfo::of).collect())),
            ClusterChange::Namespaces(Change::Listed(Vec::new())),
            ClusterChange::Budgets(Change::Listed(Vec::new())),
            ClusterChange::Claims(Change::Listed(Vec::new())),
            ClusterChange::Volumes(Change::Listed(Vec::new())),
            ClusterChange::Classes(Change::Listed(Vec::new())),
            ClusterChange::Limits(Change::Listed(Vec::new())),
            ClusterChange::Drivers(Change::Listed(Vec::new())),
            ClusterChange::Capacities(Change::Listed(Vec::new())),
            ClusterChange::Pods(Change::Listed(pods)),
        ] {
            scheduler.see(change, now);
        }
        Self {
            scheduler,
            paths,
            now,
        }
    }

    fn see(&mut self, change: ClusterChange) {
        self.scheduler.see(change, self.now);
    }

    fn pod(&mut self, pod: &Pod) {
        let seen = self.scheduler.reader().read(pod);
        self.see(ClusterChange::Pods(Change::Set(seen)));
    }

    /// Decides until nothing is left to decide; whether a pod was bound.
    async fn binds(&mut self) -> bool {
        // After every backoff, and before pods are tried without a change.
        self.now += Duration::from_secs(60);
        let now = self.now;
        self.scheduler.wake(now);
        self.paths.0.lock().expect("nobody panics").clear();
        while self.scheduler.ready() {
            if let Some(write) = self.scheduler.decide(now) {
                drop(write.await);
            }
        }
        let paths = self.paths.0.lock().expect("nobody panics");
        paths.iter().any(|path| path.ends_with("/binding"))
    }
}

fn node(name: &str, cpu: &str, labels: &Value) -> Node {
    let node = json!({"metadata": {"name": name, "labels": labels}, "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}}});
    serde_json::from_value(node).expect("a node")
}

fn pod(name: &str, cpu: &str, on: Option<&str>) -> Pod {
    let container = json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
    let selector = json!({"matchLabels": {"app": "web"}});
    let spread = json!({"maxSkew": 1, "topologyKey": "zone", "labelSelector": selector, "whenUnsatisfiable": "DoNotSchedule"});
    let pod = json!({
        "metadata": {"namespace": "default", "name": name, "uid": name, "labels": {"app": "web"}},
        "spec": {"nodeName": on, "containers": [container],
            "topologySpreadConstraints": if name == "spread" { json!([spread]) } else { json!([]) }},
    });
    serde_json::from_value(pod).expect("a pod")
}

#[tokio::test]
async fn a_pod_that_shrinks_on_its_node_leaves_room_at_once() {
    let none = json!({});
    let mut scene = Scene::new(&[node("n", "1", &none)], &[pod("a", "900m", Some("n"))]);
    scene.pod(&pod("b", "600m", None));
    assert!(!scene.binds().await, "there is no room");
    // Its kubelet has not given anything back yet.
    let mut shrinks = pod("a", "300m", Some("n"));
    let granted = json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true,
        "restartCount": 0, "allocatedResources": {"cpu": "300m"}, "resources": {"requests": {"cpu": "900m"}}}]});
    shrinks.status = serde_json::from_value(granted).expect("a status");
    scene.pod(&shrinks);
    assert!(!scene.binds().await, "it has what it had");
    scene.pod(&pod("a", "300m", Some("n")));
    assert!(scene.binds().await);
}

/// The pod would stand beside another one in the only place with room: one more than in the other
/// place, whose node is too small for it.
fn uneven() -> Scene {
    let (a, b) = (json!({"zone": "a"}), json!({"zone": "b"}));
    let nodes = [node("a", "4", &a), node("b", "500m", &b)];
    Scene::new(&nodes, &[pod("one", "1", Some("a"))])
}

#[tokio::test]
async fn a_place_that_goes_with_its_node_no_longer_counts_as_the_emptiest() {
    let mut scene = uneven();
    scene.pod(&pod("spread", "1", None));
    assert!(!scene.binds().await, "the other place is empty");
    let gone = Gone {
        key: Key::cluster("b"),
        uid: String::new(),
        resource_version: String::new(),
    };
    scene.see(ClusterChange::Nodes(Change::Deleted(gone)));
    assert!(scene.binds().await);
}

#[tokio::test]
async fn a_place_that_goes_with_a_nodes_label_no_longer_counts_either() {
    let mut scene = uneven();
    scene.pod(&pod("spread", "1", None));
    assert!(!scene.binds().await, "the other place is empty");
    let bare = NodeInfo::of(&node("b", "500m", &json!({})));
    scene.see(ClusterChange::Nodes(Change::Set(bare)));
    assert!(scene.binds().await);
}
