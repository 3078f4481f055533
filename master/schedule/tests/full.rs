//! A scheduler's queue that is too small for the pods that wait.

use config_kube::k8s_openapi::api::core::v1::{Node, Pod};
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use master_client::{
    Body, BoxFuture, Change, Client, Gone, Key, Resource, Transport, UserInfo, body,
};
use master_schedule::{ClusterChange, NodeInfo, Profile, Scheduler};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The answer to every write: nothing reads more of it.
const POD: &str = r#"{"kind": "Pod", "apiVersion": "v1", "metadata": {}}"#;
/// The path under which pods are written.
const PODS: &str = "/api/v1/namespaces/default/pods/";

/// Takes every write, and keeps the names of the pods that are bound.
#[derive(Debug, Default)]
struct Bound(Mutex<Vec<String>>);

impl Transport for Bound {
    fn call(&self, request: Request<Body>, _: UserInfo) -> BoxFuture<'_, Response<Body>> {
        let pod = request.uri().path().strip_prefix(PODS);
        if let Some(pod) = pod.and_then(|pod| pod.strip_suffix("/binding")) {
            let mut bound = self.0.lock().expect("nobody panics");
            bound.push(pod.to_owned());
        }
        let mut answer = Response::new(body(POD));
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

/// A cluster whose only node, `n`, has two processors, and a scheduler with a small queue.
struct Scene {
    scheduler: Scheduler,
    bound: Arc<Bound>,
    /// All pods, as the API has them.
    pods: BTreeMap<String, Pod>,
    /// How often the scheduler had them listed.
    lists: usize,
    now: Instant,
}

impl Scene {
    fn new(queue_limit: usize) -> Self {
        let bound = Arc::new(Bound::default());
        let transport = Arc::clone(&bound) as Arc<dyn Transport>;
        let client = Client::new(transport, UserInfo::admin("a"));
        let scheduler = Scheduler::new(client, vec![Profile::default_profile()]);
        let mut scheduler = scheduler.with_queue_limit(queue_limit);
        let node = json!({"metadata": {"name": "n"}, "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "2", "memory": "8Gi", "pods": "110"}}});
        let node: Node = serde_json::from_value(node).expect("a node");
        let now = Instant::now();
        for change in [
            ClusterChange::Nodes(Change::Listed(vec![NodeInfo::of(&node)])),
            ClusterChange::Namespaces(Change::Listed(Vec::new())),
            ClusterChange::Services(Change::Listed(Vec::new())),
            ClusterChange::Budgets(Change::Listed(Vec::new())),
            ClusterChange::Claims(Change::Listed(Vec::new())),
            ClusterChange::Volumes(Change::Listed(Vec::new())),
            ClusterChange::Classes(Change::Listed(Vec::new())),
            ClusterChange::Limits(Change::Listed(Vec::new())),
            ClusterChange::Drivers(Change::Listed(Vec::new())),
            ClusterChange::Capacities(Change::Listed(Vec::new())),
            ClusterChange::Pods(Change::Listed(Vec::new())),
        ] {
            scheduler.see(change, now);
        }
        Self {
            scheduler,
            bound,
            pods: BTreeMap::new(),
            lists: 0,
            now,
        }
    }

    fn see(&mut self, change: Change<Pod>) {
        let reader = self.scheduler.reader();
        let change = match change {
            Change::Listed(all) => Change::Listed(all.iter().map(|pod| reader.read(pod)).collect()),
            Change::Set(pod) => Change::Set(reader.read(&pod)),
            Change::Deleted(gone) => Change::Deleted(gone),
        };
        self.scheduler.see(ClusterChange::Pods(change), self.now);
    }

    /// Creates or changes a pod: its priority, the CPUs that it requests, and further fields of its
    /// metadata, specification and status.
    fn pod(&mut self, name: &str, priority: i32, cpu: &str, more: &Value) {
        let container = json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
        let mut pod = json!({"metadata": {"namespace": "default", "name": name, "uid": name},
            "spec": {"priority": priority, "containers": [container]}});
        for (part, fields) in more.as_object().expect("parts") {
            for (field, value) in fields.as_object().expect("fields") {
                pod[part][field] = value.clone();
            }
        }
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        self.pods.insert(name.to_owned(), pod.clone());
        self.see(Change::Set(pod));
    }

    fn gone(&mut self, name: &str) {
        self.pods.remove(name);
        self.see(Change::Deleted(Gone {
            key: Key::new("default", name),
            uid: name.to_owned(),
            resource_version: String::new(),
        }));
    }

    /// Decides until nothing is left to decide, and lists pods when the scheduler asks for it;
    /// returns the names of the pods that were bound, in order.
    async fn bound(&mut self) -> Vec<String> {
        // After every backoff, and before pods are tried without a change.
        self.now += Duration::from_secs(60);
        self.scheduler.wake(self.now);
        let mut all = Vec::new();
        while self.scheduler.ready() {
            if let Some(write) = self.scheduler.decide(self.now) {
                let written = write.await;
                self.scheduler.written(written, self.now);
            }
            let bound = std::mem::take(&mut *self.bound.0.lock().expect("nobody panics"));
            for name in bound {
                let mut pod = self.pods[&name].clone();
                pod.spec.get_or_insert_default().node_name = Some("n".to_owned());
                self.pods.insert(name.clone(), pod.clone());
                self.see(Change::Set(pod));
                all.push(name);
            }
            if self.scheduler.must_relist(self.now) {
                self.lists += 1;
                self.see(Change::Listed(self.pods.values().cloned().collect()));
            }
        }
        all
    }
}

#[tokio::test]
async fn pods_without_room_in_the_queue_are_bound_in_the_end_and_the_most_important_first() {
    let mut scene = Scene::new(20);
    for at in 0..50 {
        scene.pod(&format!("p{at:02}"), 0, "10m", &json!({}));
    }
    scene.pod("critical", 9, "10m", &json!({}));
    let mut bound = scene.bound().await;
    assert_eq!(bound[0], "critical");
    bound.sort_unstable();
    let all: Vec<&String> = scene.pods.keys().collect();
    assert_eq!(bound.iter().collect::<Vec<_>>(), all);
    // Each list brings in three of the 31 pods without room.
    assert_eq!(scene.lists, 11);
}

#[tokio::test]
async fn pods_without_room_in_the_queue_are_taken_in_by_age() {
    let mut scene = Scene::new(2);
    // A list has them by name.
    for (name, second) in [
        ("a", 0),
        ("b", 0),
        ("youngest", 3),
        ("old", 1),
        ("middle", 2),
    ] {
        let made =
            json!({"metadata": {"creationTimestamp": format!("2026-01-01T00:00:0{second}Z")}});
        scene.pod(name, 0, "10m", &made);
    }
    assert_eq!(scene.bound().await, ["a", "b", "old", "middle", "youngest"]);
}

/// Such a place would keep others out, while nothing is decided for the pod.
#[tokio::test]
async fn a_nomination_does_not_count_for_a_pod_without_room_in_the_queue() {
    let mut scene = Scene::new(2);
    let why =
        json!([{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]);
    let leaving = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "n"}, "status": {"conditions": why}});
    scene.pod("low", 0, "2", &leaving);
    scene.pod("other", 5, "1", &json!({}));
    let nominated = json!({"status": {"nominatedNodeName": "n"}});
    scene.pod("high", 5, "2", &nominated);
    assert!(scene.bound().await.is_empty(), "a pod has yet to leave");
    scene.pod("critical", 9, "4", &json!({}));
    scene.gone("low");
    assert_eq!(scene.bound().await, ["other"]);
    assert_eq!(scene.lists, 1, "there is room for the other one again");
}
