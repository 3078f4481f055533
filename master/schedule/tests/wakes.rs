//! An unschedulable pod is tried again after changes that can help it, and after no others.

use config_kube::k8s_openapi::api::core::v1::{Node, Pod};
use http::{Method, Request, Response, StatusCode};
use jiff::Timestamp;
use master_client::{
    Body, BoxFuture, Change, Client, Gone, Key, Resource, Transport, UserInfo, body,
};
use master_schedule::{ClusterChange, NodeInfo, Profile, Scheduler};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The answer to every write: nothing reads more of it.
const POD: &str = r#"{"kind": "Pod", "apiVersion": "v1", "metadata": {}}"#;
const CONFLICT: &str =
    r#"{"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict"}"#;

/// An API that accepts every write without effect and records the paths. It refuses requests of one
/// method.
#[derive(Debug, Default)]
struct Paths(Mutex<Vec<String>>, Mutex<Option<Method>>);

impl Transport for Paths {
    fn call(&self, request: Request<Body>, _: UserInfo) -> BoxFuture<'_, Response<Body>> {
        let mut paths = self.0.lock().expect("nobody panics");
        paths.push(request.uri().path().to_owned());
        let refused = self.1.lock().expect("nobody panics");
        let (status, text) = match &*refused {
            Some(method) if method == request.method() => (StatusCode::CONFLICT, CONFLICT),
            Some(_) | None => (StatusCode::CREATED, POD),
        };
        let mut answer = Response::new(body(text));
        *answer.status_mut() = status;
        Box::pin(std::future::ready(answer))
    }

    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    fn resources(&self) -> Vec<Resource> {
        Vec::new()
    }
}

/// The path under which pods are written.
const PODS: &str = "/api/v1/namespaces/default/pods/";

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
            ClusterChange::Services(Change::Listed(Vec::new())),
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
        !self.bound().await.is_empty()
    }

    /// The same; the names of the pods that were bound, in their order.
    async fn bound(&mut self) -> Vec<String> {
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
        let bound = paths.iter().filter_map(|path| {
            let pod = path.strip_prefix(PODS)?.strip_suffix("/binding")?;
            Some(pod.to_owned())
        });
        bound.collect()
    }

    /// Whether the last decisions preempted a pod: nothing else writes to a pod that has a node.
    fn ended(&self, pod: &str) -> bool {
        let paths = self.paths.0.lock().expect("nobody panics");
        let path = format!("{PODS}{pod}/");
        paths.iter().any(|written| written.starts_with(&path))
    }
}

/// A change of a cluster; the second argument is the node `n` before it.
type Event = fn(&mut Scene, &Node);

/// A pod that a plugin refuses.
struct Case {
    plugin: &'static str,
    /// What its specification has.
    waits: Value,
    /// What that of the only node with room has.
    node: Value,
    helpless: Vec<Event>,
    helps: Event,
}

impl Scene {
    /// Whether the waiting pod is tried again, and not because it has waited for long.
    fn wakes(&mut self) -> bool {
        self.now += Duration::from_secs(20);
        self.scheduler.wake(self.now);
        self.scheduler.ready()
    }

    fn node(&mut self, node: &Node) {
        let node = NodeInfo::of(node);
        self.see(ClusterChange::Nodes(Change::Set(node)));
    }

    fn gone(&mut self, pod: &str) {
        self.see(ClusterChange::Pods(Change::Deleted(Gone {
            key: Key::new("default", pod),
            uid: pod.to_owned(),
            resource_version: String::new(),
        })));
    }
}

/// A pod on `n` with a port of it.
fn mate(name: &str, app: &str, port: i32, memory: &str) -> Pod {
    let container = json!({"name": "c", "ports": [{"containerPort": 1, "hostPort": port}],
        "resources": {"requests": {"cpu": "100m", "memory": memory}}});
    let pod = json!({
        "metadata": {"namespace": "default", "name": name, "uid": name, "labels": {"app": app}},
        "spec": {"nodeName": "n", "containers": [container]},
    });
    serde_json::from_value(pod).expect("a pod")
}

fn with_spec(mut node: Node, spec: &Value) -> Node {
    node.spec = serde_json::from_value(spec.clone()).expect("a specification");
    node
}

const LABELS: Event = |scene, node| {
    let mut node = node.clone();
    let labels = node.metadata.labels.get_or_insert_default();
    labels.insert("other".to_owned(), "label".to_owned());
    scene.node(&node);
};
const NAMESPACE: Event = |scene, _| {
    let labels = [("other".to_owned(), "label".to_owned())].into();
    let namespace = ("default".to_owned(), labels);
    scene.see(ClusterChange::Namespaces(Change::Set(namespace)));
};
const LESS_MEMORY: Event = |scene, _| scene.pod(&mate("else", "else", 81, "1Mi"));
const COMES: Event = |scene, _| scene.pod(&mate("third", "else", 82, "1Mi"));
const GOES: Event = |scene, _| scene.gone("else");
const WEB_GOES: Event = |scene, _| scene.gone("web");
const WEB_IS_RENAMED: Event = |scene, _| scene.pod(&mate("web", "other", 80, "1Gi"));

/// Each pod that is woken in vain costs a look at every node.
fn cases() -> Vec<Case> {
    let plain = || json!({});
    let term = |app: &str| json!([{"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "zone"}]);
    let required = |term: Value| json!({"requiredDuringSchedulingIgnoredDuringExecution": term});
    let spread = json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}}]);
    let port = json!([{"name": "c", "ports": [{"containerPort": 1, "hostPort": 80}]}]);
    let four = json!([{"name": "c", "resources": {"requests": {"cpu": "4"}}}]);
    let case = |plugin, waits, node, helpless: &[Event], helps| Case {
        plugin,
        waits,
        node,
        helpless: helpless.to_vec(),
        helps,
    };
    let all = [NAMESPACE, LABELS, LESS_MEMORY, COMES, GOES, WEB_GOES];
    vec![
        case(
            "NodeResourcesFit",
            json!({"containers": four}),
            plain(),
            &[NAMESPACE, LABELS, LESS_MEMORY, COMES, WEB_IS_RENAMED],
            |scene, node| scene.node(&larger(node)),
        ),
        case(
            "NodePorts",
            json!({"containers": port}),
            plain(),
            &[NAMESPACE, LESS_MEMORY, COMES, GOES, WEB_IS_RENAMED],
            WEB_GOES,
        ),
        case(
            "TaintToleration",
            plain(),
            json!({"taints": [{"key": "gpu", "effect": "NoSchedule"}]}),
            &all,
            |scene, node| scene.node(&with_spec(node.clone(), &json!({}))),
        ),
        case(
            "NodeUnschedulable",
            plain(),
            json!({"unschedulable": true}),
            &all,
            |scene, node| scene.node(&with_spec(node.clone(), &json!({}))),
        ),
        case(
            "NodeAffinity",
            json!({"nodeSelector": {"disk": "ssd"}}),
            plain(),
            &all,
            |scene, node| {
                let mut node = node.clone();
                let labels = node.metadata.labels.get_or_insert_default();
                labels.insert("disk".to_owned(), "ssd".to_owned());
                scene.node(&node);
            },
        ),
        case(
            "InterPodAffinity",
            json!({"affinity": {"podAffinity": required(term("db"))}}),
            plain(),
            &[LESS_MEMORY, COMES, GOES, WEB_GOES],
            |scene, _| scene.pod(&mate("db", "db", 83, "1Mi")),
        ),
        case(
            "InterPodAffinity",
            json!({"affinity": {"podAntiAffinity": required(term("web"))}}),
            plain(),
            &[LESS_MEMORY, COMES, GOES],
            WEB_GOES,
        ),
        case(
            "InterPodAffinity",
            json!({"affinity": {"podAntiAffinity": required(term("web"))}}),
            plain(),
            &[LESS_MEMORY, COMES, GOES],
            WEB_IS_RENAMED,
        ),
        case(
            "PodTopologySpread",
            json!({"topologySpreadConstraints": spread}),
            plain(),
            &[NAMESPACE, LESS_MEMORY, COMES, GOES],
            WEB_GOES,
        ),
        case(
            "PodTopologySpread",
            json!({"topologySpreadConstraints": spread}),
            plain(),
            &[NAMESPACE, LESS_MEMORY, COMES, GOES],
            WEB_IS_RENAMED,
        ),
    ]
}

fn larger(node: &Node) -> Node {
    let mut node = node.clone();
    let status = node.status.get_or_insert_default();
    let room = status.allocatable.get_or_insert_default();
    room.insert(
        "cpu".to_owned(),
        serde_json::from_value(json!("8")).expect("a quantity"),
    );
    node
}

#[tokio::test]
async fn a_pod_is_tried_again_only_after_a_change_that_may_help_it() {
    for case in cases() {
        let zone = |zone: &str| json!({"zone": zone});
        let n = with_spec(node("n", "2", &zone("a")), &case.node);
        // Another zone, in which no pod may be.
        let full = json!({"taints": [{"key": "full", "effect": "NoSchedule"}]});
        let m = with_spec(node("m", "2", &zone("b")), &full);
        let pods = [
            mate("web", "web", 80, "1Gi"),
            mate("else", "else", 81, "1Gi"),
        ];
        let nodes = match case.plugin {
            "PodTopologySpread" => vec![n.clone(), m],
            _ => vec![n.clone()],
        };
        let mut scene = Scene::new(&nodes, &pods);
        let mut waits = json!({"metadata": {"namespace": "default", "name": "waits", "uid": "waits", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c"}]}});
        for (field, value) in case.waits.as_object().expect("fields") {
            waits["spec"][field] = value.clone();
        }
        scene.pod(&serde_json::from_value(waits).expect("a pod"));
        let plugin = case.plugin;
        assert!(!scene.binds().await, "{plugin} refuses it");
        for (number, event) in case.helpless.iter().enumerate() {
            event(&mut scene, &n);
            assert!(!scene.wakes(), "{plugin}: {number}");
        }
        (case.helps)(&mut scene, &n);
        assert!(scene.wakes(), "{plugin}");
        assert!(scene.binds().await, "{plugin}");
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
async fn a_pod_that_is_resized_down_frees_resources_at_once() {
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

/// The pod would be the second one in the only zone with room, which violates its constraint: the
/// other zone is empty, and its node is too small for it.
fn uneven() -> Scene {
    let (a, b) = (json!({"zone": "a"}), json!({"zone": "b"}));
    let nodes = [node("a", "4", &a), node("b", "500m", &b)];
    Scene::new(&nodes, &[pod("one", "1", Some("a"))])
}

#[tokio::test]
async fn a_topology_domain_ends_with_its_last_node() {
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
async fn a_topology_domain_ends_with_the_label_of_its_last_node() {
    let mut scene = uneven();
    scene.pod(&pod("spread", "1", None));
    assert!(!scene.binds().await, "the other place is empty");
    let bare = NodeInfo::of(&node("b", "500m", &json!({})));
    scene.see(ClusterChange::Nodes(Change::Set(bare)));
    assert!(scene.binds().await);
}

/// A pod with these requests and further fields.
fn asking(name: &str, requests: &Value, more: &Value) -> Pod {
    let container = json!({"name": "c", "resources": {"requests": requests}});
    let mut pod = json!({"metadata": {"namespace": "default", "name": name, "uid": name},
        "spec": {"containers": [container]}});
    for (part, fields) in more.as_object().expect("parts") {
        for (field, value) in fields.as_object().expect("fields") {
            pod[part][field] = value.clone();
        }
    }
    serde_json::from_value(pod).expect("a pod")
}

/// A pod on a node that is being deleted, for the reason that its condition gives.
fn leaving(name: &str, cpu: &str, node: &str, reason: &str) -> Pod {
    let why = json!([{"type": "DisruptionTarget", "status": "True", "reason": reason}]);
    let more = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": node, "priority": 5}, "status": {"conditions": why}});
    asking(name, &json!({"cpu": cpu}), &more)
}

/// A more important pod for which others end on a node.
fn nominated(name: &str, requests: &Value, node: &str) -> Pod {
    let more = json!({"spec": {"priority": 10}, "status": {"nominatedNodeName": node}});
    asking(name, requests, &more)
}

/// A node of four processors, of which a pod that ends for a more important one uses three; a place
/// of one and a half is kept for that one, and another pod needs one. The other node's memory is
/// full.
fn kept() -> Scene {
    let nodes = [
        node("n", "4", &json!({"disk": "ssd"})),
        node("m", "2", &json!({})),
    ];
    let whole = json!({"cpu": "10m", "memory": "8Gi"});
    let on_m = json!({"spec": {"nodeName": "m", "priority": 20}});
    let pods = [
        leaving("low", "3", "n", "PreemptionByScheduler"),
        asking("whole", &whole, &on_m),
    ];
    let mut scene = Scene::new(&nodes, &pods);
    let requests = json!({"cpu": "1500m", "memory": "1Gi"});
    scene.pod(&nominated("high", &requests, "n"));
    let ssd = json!({"spec": {"nodeSelector": {"disk": "ssd"}}});
    scene.pod(&asking("small", &json!({"cpu": "1"}), &ssd));
    scene
}

#[tokio::test]
async fn a_deleted_pod_frees_its_nominated_node() {
    let mut scene = kept();
    assert!(!scene.binds().await, "a place is kept");
    scene.gone("high");
    assert_eq!(scene.bound().await, ["small"]);
}

/// Otherwise it would wait until some pod leaves some node.
#[tokio::test]
async fn a_pod_that_is_bound_elsewhere_frees_its_nominated_node() {
    let mut scene = kept();
    assert!(!scene.binds().await, "a place is kept");
    let more = json!({"spec": {"nodeName": "m", "priority": 20}});
    let less = json!({"cpu": "10m", "memory": "1Gi"});
    // That helps only pods that need memory.
    scene.pod(&asking("whole", &less, &more));
    assert_eq!(scene.bound().await, ["high", "small"]);
}

/// Two nodes, and a pod that is to have the place of another one on the first.
fn awaiting(reason: &str) -> (Scene, Node) {
    let nodes = ["n", "m"].map(|name| node(name, "2", &json!({})));
    let low = json!({"spec": {"nodeName": "m", "priority": 0}});
    let pods = [
        leaving("ends", "2", "n", reason),
        asking("low", &json!({"cpu": "2"}), &low),
    ];
    let mut scene = Scene::new(&nodes, &pods);
    scene.pod(&nominated("high", &json!({"cpu": "2"}), "n"));
    let [first, _] = nodes;
    (scene, first)
}

/// A node may die while pods end there, and then they stay for as long as it is known.
#[tokio::test]
async fn a_pod_preempts_elsewhere_once_its_nominated_node_refuses_it() {
    let (mut scene, node) = awaiting("PreemptionByScheduler");
    assert!(!scene.binds().await && !scene.ended("low"), "it waits");
    scene.node(&with_spec(node, &json!({"unschedulable": true})));
    assert!(!scene.binds().await && scene.ended("low"));
    assert!(!scene.ended("ends"));
}

#[tokio::test]
async fn a_pod_waits_only_for_pods_that_end_by_preemption() {
    let (mut scene, _) = awaiting("DeletionByTaintManager");
    assert!(!scene.binds().await && scene.ended("low"));
}

#[tokio::test]
async fn a_pod_is_tried_again_if_a_write_of_its_preemption_is_refused() {
    for refused in [None, Some(Method::DELETE), Some(Method::PATCH)] {
        let on_n = json!({"spec": {"nodeName": "n", "priority": 0}});
        let low = asking("low", &json!({"cpu": "2"}), &on_n);
        let mut scene = Scene::new(&[node("n", "2", &json!({}))], &[low]);
        let more = json!({"spec": {"priority": 10}});
        scene.pod(&asking("high", &json!({"cpu": "2"}), &more));
        scene
            .paths
            .1
            .lock()
            .expect("nobody panics")
            .clone_from(&refused);
        let write = scene
            .scheduler
            .decide(scene.now)
            .expect("others are to end");
        scene.scheduler.written(write.await, scene.now);
        assert!(scene.ended("low"));
        assert_eq!(scene.wakes(), refused.is_some(), "{refused:?}");
    }
}
