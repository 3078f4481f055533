//! A Binding whose answer is lost: the pod is bound, and the scheduler does not know.

use config_kube::k8s_openapi::api::core::v1::{Node, Pod};
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use master_api::{ApiServer, Options};
use master_client::{
    Body, BoxFuture, Change, Client, ListParams, Resource, Transport, UserInfo, body,
};
use master_schedule::{ClusterChange, NodeInfo, Profile, Scheduler};
use master_store::EmbeddedStore;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// An API that carries out each request, but loses the answers to the next `lost` ones.
#[derive(Debug)]
struct Lossy {
    api: ApiServer,
    lost: AtomicUsize,
}

impl Transport for Lossy {
    fn call(&self, request: Request<Body>, user: UserInfo) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            let answer = self.api.call(request, user).await;
            let lost = self.lost.load(Ordering::Relaxed);
            if lost == 0 {
                return answer;
            }
            self.lost.store(lost - 1, Ordering::Relaxed);
            let failure =
                json!({"kind": "Status", "status": "Failure", "code": 504, "reason": "Timeout"});
            let mut answer = Response::new(body(failure.to_string()));
            *answer.status_mut() = StatusCode::GATEWAY_TIMEOUT;
            answer
        })
    }

    fn now(&self) -> Timestamp {
        self.api.now()
    }

    fn resources(&self) -> Vec<Resource> {
        self.api.resources()
    }
}

/// A node with one CPU, and a scheduler that has seen it and nothing else.
struct Scene {
    admin: Client,
    api: Arc<Lossy>,
    scheduler: Scheduler,
    start: Instant,
    _store: TempDir,
}

impl Scene {
    async fn new() -> Self {
        let store = TempDir::new().expect("a folder for the store");
        let engine = EmbeddedStore::open(store.path()).expect("an empty store opens");
        let api = ApiServer::new(Arc::new(engine), Options::default());
        api.prepare().await.expect("the system namespaces are made");
        let admin = api.client(UserInfo::admin("admin"));
        let lost = AtomicUsize::new(0);
        let lossy = Arc::new(Lossy { api, lost });
        let user = config_kube::identity::SCHEDULER_USER;
        let user = UserInfo::authenticated(user, Vec::<String>::new());
        let own = Client::new(Arc::clone(&lossy) as Arc<dyn Transport>, user);
        let mut scheduler = Scheduler::new(own, vec![Profile::default_profile()]);
        let node = json!({"metadata": {"name": "n"}, "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "1", "memory": "8Gi", "pods": "110"}}});
        let node: Node = serde_json::from_value(node).expect("a node");
        let start = Instant::now();
        for change in [
            ClusterChange::Nodes(Change::Listed(vec![NodeInfo::of(&node)])),
            ClusterChange::Pods(Change::Listed(Vec::new())),
            ClusterChange::Namespaces(Change::Listed(Vec::new())),
            ClusterChange::Services(Change::Listed(Vec::new())),
            ClusterChange::Budgets(Change::Listed(Vec::new())),
            ClusterChange::Claims(Change::Listed(Vec::new())),
            ClusterChange::Volumes(Change::Listed(Vec::new())),
            ClusterChange::Classes(Change::Listed(Vec::new())),
            ClusterChange::Limits(Change::Listed(Vec::new())),
            ClusterChange::Drivers(Change::Listed(Vec::new())),
            ClusterChange::Capacities(Change::Listed(Vec::new())),
        ] {
            scheduler.see(change, start);
        }
        Self {
            admin,
            api: lossy,
            scheduler,
            start,
            _store: store,
        }
    }

    /// A pod is made that needs more than half of the node, and the scheduler sees it.
    async fn pod(&mut self, name: &str) {
        let container = json!({"name": "c", "image": "registry.example/c:1", "resources": {"requests": {"cpu": "600m"}}});
        let pod = json!({"metadata": {"namespace": "default", "name": name}, "spec": {"hostNetwork": true, "containers": [container]}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let pod = self.admin.create(&pod).await.expect("the pod is made");
        let seen = self.scheduler.reader().read(&pod);
        self.scheduler
            .see(ClusterChange::Pods(Change::Set(seen)), self.start);
    }

    /// Decides and writes at `seconds` after the start until nothing is left to decide; the first
    /// `lost` answers are lost.
    async fn work(&mut self, seconds: u64, lost: usize) {
        let now = self.start + Duration::from_secs(seconds);
        self.api.lost.store(lost, Ordering::Relaxed);
        self.scheduler.wake(now);
        while self.scheduler.ready() {
            if let Some(write) = self.scheduler.decide(now) {
                let written = write.await;
                self.scheduler.written(written, now);
            }
        }
    }

    /// The pods that have a node.
    async fn placed(&self) -> Vec<String> {
        let params = ListParams::default();
        let all = self.admin.list::<Pod>(Some("default"), &params);
        let all = all.await.expect("pods are served").items.into_iter();
        let placed = all.filter(|pod| {
            pod.spec
                .as_ref()
                .is_some_and(|spec| spec.node_name.is_some())
        });
        placed.filter_map(|pod| pod.metadata.name).collect()
    }
}

#[tokio::test]
async fn a_pod_counts_on_its_node_though_the_answer_to_its_binding_was_lost() {
    let mut scene = Scene::new().await;
    scene.pod("a").await;
    scene.work(0, 1).await;
    scene.pod("b").await;
    scene.work(1, 0).await;
    assert_eq!(scene.placed().await, ["a"], "no watch has shown it yet");
}

#[tokio::test]
async fn a_pod_counts_on_its_node_while_it_is_unknown_whether_it_is_bound() {
    let mut scene = Scene::new().await;
    scene.pod("a").await;
    // The answer to the Binding, and the one to the question that follows.
    scene.work(0, 2).await;
    scene.pod("b").await;
    scene.work(2, 0).await;
    assert_eq!(scene.placed().await, ["a"]);
}

/// A list that lacks the pod says that it was deleted.
#[tokio::test]
async fn a_deleted_pod_counts_no_longer_though_it_is_unknown_whether_it_was_bound() {
    let mut scene = Scene::new().await;
    scene.pod("a").await;
    scene.work(0, 2).await;
    let now = master_client::DeleteParams {
        grace_period_seconds: Some(0),
        ..master_client::DeleteParams::default()
    };
    let deleted = scene.admin.delete::<Pod>(Some("default"), "a", &now).await;
    deleted.expect("the pod is deleted");
    scene
        .scheduler
        .see(ClusterChange::Pods(Change::Listed(Vec::new())), scene.start);
    scene.pod("b").await;
    scene.work(0, 0).await;
    assert_eq!(scene.placed().await, ["b"]);
}
