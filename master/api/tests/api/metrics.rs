//! `metrics.k8s.io`: the usage of nodes and pods, who may read it, and what a node cannot claim or
//! cause.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use crate::common::kubectl::Cluster;
use config_kube::identity::USAGE_USER;
use http::{Method, StatusCode};
use master_api::{DialError, NodeDialer, NodeStream, NodeTarget};
use master_client::{BoxFuture, UserInfo};
use master_usage::Options;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

/// Longest wait for what will happen.
const LIMIT: Duration = Duration::from_secs(180);
/// Bytes of an endless answer after which the fake node gives up, so that a failure does not fill
/// the machine's memory.
const GIVE_UP_AT: usize = 64 << 20;

/// How a node answers.
#[derive(Debug, Clone)]
enum Says {
    /// The pods that it claims to run, with the hundredths of a CPU that each uses.
    Pods(Vec<(&'static str, u64)>),
    /// This head, and then bytes without end.
    Endless(&'static str),
    /// Nothing.
    Nothing,
    /// No figures.
    Nonsense,
}

/// Nodes by name. Each has its own clock: a second passes between two answers.
#[derive(Debug, Clone, Default)]
struct Nodes {
    says: Arc<Mutex<HashMap<String, Says>>>,
    asked: Arc<Mutex<HashMap<String, u64>>>,
    sent: Arc<Mutex<usize>>,
}

impl Nodes {
    fn set(&self, node: &str, says: Says) {
        self.says.lock().unwrap().insert(node.to_owned(), says);
    }

    fn asked(&self, node: &str) -> u64 {
        self.asked
            .lock()
            .unwrap()
            .get(node)
            .copied()
            .unwrap_or_default()
    }

    async fn speak(self, node: String, mut stream: DuplexStream) -> std::io::Result<()> {
        let mut request = vec![0; 4096];
        let read = stream.read(&mut request).await?;
        let request = String::from_utf8_lossy(&request[..read]).into_owned();
        assert!(request.starts_with("GET /metrics/resource "), "{request}");
        let second = {
            let mut asked = self.asked.lock().unwrap();
            let count = asked.entry(node.clone()).or_default();
            *count += 1;
            *count
        };
        let says = self.says.lock().unwrap().get(&node).cloned();
        match says.unwrap_or(Says::Nothing) {
            Says::Pods(pods) => {
                let text = figures(second, &pods);
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", text.len());
                stream.write_all((head + &text).as_bytes()).await
            }
            Says::Endless(head) => {
                stream.write_all(head.as_bytes()).await?;
                let piece = "pod_other 1\n".repeat(1000);
                let mut left = GIVE_UP_AT / piece.len();
                while left > 0 {
                    stream.write_all(piece.as_bytes()).await?;
                    *self.sent.lock().unwrap() += piece.len();
                    left -= 1;
                }
                Ok(())
            }
            Says::Nonsense => {
                let text = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nnode_cpu_usage_seconds_total much\n";
                stream.write_all(text.as_bytes()).await
            }
            Says::Nothing => {
                // Until the master hangs up.
                stream.read(&mut [0]).await.map(drop)
            }
        }
    }
}

/// A kubelet's figures at a second: its own (a quarter of a CPU) and those of pods with a container
/// `main` each.
fn figures(second: u64, pods: &[(&str, u64)]) -> String {
    let at = (1_800_000_000 + second) * 1000;
    let seconds = |hundredths: u64| format!("{}.{:02}", hundredths / 100, hundredths % 100);
    let mut text = format!(
        "node_cpu_usage_seconds_total {} {at}\nnode_memory_working_set_bytes 1073741824 {at}\n",
        seconds(second * 25)
    );
    for (pod, hundredths) in pods {
        let labels = format!("{{container=\"main\",namespace=\"default\",pod=\"{pod}\"}}");
        let cpu = seconds(second * hundredths);
        text += &[
            format!("container_cpu_usage_seconds_total{labels} {cpu} {at}\n"),
            format!("container_memory_working_set_bytes{labels} 5242880 {at}\n"),
        ]
        .concat();
    }
    text
}

impl NodeDialer for Nodes {
    fn dial(&self, target: NodeTarget) -> BoxFuture<'_, Result<Box<dyn NodeStream>, DialError>> {
        let (near, far) = tokio::io::duplex(16 << 10);
        tokio::spawn(self.clone().speak(target.name, far));
        Box::pin(async move { Ok(Box::new(near) as Box<dyn NodeStream>) })
    }
}

/// Asks the nodes of a server as its program does, more often.
fn ask_nodes(local: &Local, nodes: &Nodes, patience: Duration) -> tokio::task::JoinHandle<()> {
    assert!(local.api.set_node_dialer(Arc::new(nodes.clone())));
    let options = Options {
        period: Duration::from_millis(200),
        wanted_period: Duration::from_millis(200),
        timeout: patience,
        silent_at_once: 1,
        ..Options::default()
    };
    let user = UserInfo::authenticated(USAGE_USER, Vec::<String>::new());
    let (client, usage) = (local.api.client(user), local.api.usage().clone());
    tokio::spawn(master_usage::run(
        client,
        usage,
        options,
        std::future::pending(),
    ))
}

async fn make(local: &Local, path: &str, object: &Value) {
    let (status, answer) = local.admin_ask(Method::POST, path, object).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
}

async fn make_node(local: &Local, name: &str) {
    let node = json!({
        "metadata": {"name": name, "labels": {"zone": name}},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
            "capacity": {"cpu": "2", "memory": "4Gi"}, "allocatable": {"cpu": "2", "memory": "4Gi"}},
    });
    make(local, "/api/v1/nodes", &node).await;
}

async fn make_pod(local: &Local, name: &str, node: &str) {
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "x:1"}]},
    });
    make(local, pods, &pod).await;
    let status = json!({"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}});
    let path = format!("{pods}/{name}/status");
    let (code, answer) = local.admin_ask(Method::PATCH, &path, &status).await;
    assert_eq!(code, StatusCode::OK, "{answer}");
}

const PODS: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods";
const NODES: &str = "/apis/metrics.k8s.io/v1beta1/nodes";

async fn get(local: &Local, path: &str) -> (StatusCode, Value) {
    local.admin_ask(Method::GET, path, &Value::Null).await
}

/// Waits until there are figures; returns them.
async fn until(local: &Local, path: &str, wanted: impl Fn(StatusCode, &Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let (status, answer) = get(local, path).await;
        if wanted(status, &answer) {
            return answer;
        }
        assert!(began.elapsed() < LIMIT, "{path}: {status} {answer}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn found(status: StatusCode, _: &Value) -> bool {
    status == StatusCode::OK
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_top_shows_the_usage_of_nodes_and_pods() {
    let cluster = Cluster::start().await;
    let local = &cluster.server.local;
    let nodes = Nodes::default();
    nodes.set("n1", Says::Pods(vec![("web", 10), ("db", 50)]));
    let asking = ask_nodes(local, &nodes, LIMIT);
    for node in ["n1", "n2"] {
        make_node(local, node).await;
    }
    for (pod, node) in [("web", "n1"), ("db", "n1"), ("far", "n2")] {
        make_pod(local, pod, node).await;
    }
    until(local, &format!("{PODS}/web"), found).await;
    until(local, &format!("{NODES}/n1"), found).await;
    let even = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let top = even(cluster.says("top nodes", "", &[]).await);
    assert!(top.contains("n1 250m 12% 1024Mi 25%"), "{top}");
    assert!(top.contains("n2 <unknown>"), "{top}");
    let top = even(cluster.says("top pods --sort-by=cpu", "", &[]).await);
    assert!(top.ends_with("db 500m 5Mi web 100m 5Mi"), "{top}");
    let top = even(
        cluster
            .says("top pods -l app=web --containers", "", &[])
            .await,
    );
    assert!(top.ends_with("web main 100m 5Mi"), "{top}");
    let table = even(cluster.says("get podmetrics", "", &[]).await);
    assert!(
        table.contains("NAME CPU MEMORY WINDOW db 500m 5Mi"),
        "{table}"
    );
    let table = even(cluster.says("get nodes.metrics.k8s.io n1", "", &[]).await);
    assert!(
        table.contains("NAME CPU MEMORY WINDOW n1 250m 1Gi"),
        "{table}"
    );
    let unknown = "podmetrics.metrics.k8s.io \"default/far\" not found";
    cluster.refuses("top pod far", "", unknown).await;
    let words = ["KIND: PodMetrics", "VERSION: metrics.k8s.io/v1beta1"];
    let explained = even(cluster.says("explain podmetrics", "", &[]).await);
    assert!(explained.contains(words[0]), "{explained}");
    let resources = cluster
        .says(
            "api-resources --api-group=metrics.k8s.io --no-headers -o wide",
            "",
            &[],
        )
        .await;
    assert_eq!(resources.lines().count(), 2, "{resources}");
    assert!(
        even(resources.clone()).contains("PodMetrics get,list"),
        "{resources}"
    );

    let raw = cluster
        .says(&format!("get --raw {PODS}?labelSelector=app%3Ddb"), "", &[])
        .await;
    let raw: Value = serde_json::from_str(&raw).unwrap();
    assert_eq!(raw["kind"], "PodMetricsList");
    let [only] = raw["items"].as_array().unwrap().as_slice() else {
        unreachable!("one pod is selected: {raw}");
    };
    let usage = json!([{"name": "main", "usage": {"cpu": "500m", "memory": "5Mi"}}]);
    assert_eq!(
        (&only["containers"], &only["metadata"]["labels"]["app"]),
        (&usage, &json!("db"))
    );
    let writes = local
        .admin_ask(Method::POST, PODS, &json!({"metadata": {"name": "x"}}))
        .await;
    assert_eq!(writes.0, StatusCode::METHOD_NOT_ALLOWED);
    let watched = get(local, &format!("{PODS}?watch=true")).await;
    assert_eq!(watched.0, StatusCode::METHOD_NOT_ALLOWED);
    asking.abort();
}

#[tokio::test]
async fn the_view_role_includes_the_usage_of_pods() {
    let local = Local::new().await;
    let binding = json!({
        "metadata": {"name": "looks"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}],
    });
    make(
        &local,
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
        &binding,
    )
    .await;
    let ask = |name: &'static str, path: &'static str| {
        let local = &local;
        async move {
            let user = UserInfo::authenticated(name, Vec::<String>::new());
            local.ask(&user, Method::GET, path, &Value::Null).await.0
        }
    };
    let elsewhere = "/apis/metrics.k8s.io/v1beta1/namespaces/kube-system/pods";
    // Aggregation of roles is a controller's; here the role itself shows what it will give.
    let (_, role) = get(
        &local,
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:aggregated-metrics-reader",
    )
    .await;
    let labels = &role["metadata"]["labels"];
    for into in ["view", "edit", "admin"] {
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{into}");
        assert_eq!(labels[&label], "true", "{role}");
    }
    assert_eq!(role["rules"][0]["apiGroups"], json!(["metrics.k8s.io"]));
    assert_eq!(role["rules"][0]["resources"], json!(["nodes", "pods"]));
    let began = Instant::now();
    let view = "/apis/rbac.authorization.k8s.io/v1/clusterroles/view";
    let rules = json!({"rules": role["rules"]});
    let (code, _) = local.admin_ask(Method::PATCH, view, &rules).await;
    assert_eq!(code, StatusCode::OK);
    while ask("ann", PODS).await != StatusCode::OK {
        assert!(began.elapsed() < LIMIT, "she may look");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (who, path) in [("ann", NODES), ("ann", elsewhere), ("bob", PODS)] {
        assert_eq!(ask(who, path).await, StatusCode::FORBIDDEN, "{who} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_tells_nothing_of_pods_of_other_nodes() {
    let local = Local::new().await;
    let nodes = Nodes::default();
    // The second lies about a pod of the first.
    nodes.set("n1", Says::Pods(vec![("web", 10)]));
    nodes.set(
        "n2",
        Says::Pods(vec![("web", 99), ("own", 20), ("none", 5)]),
    );
    let asking = ask_nodes(&local, &nodes, LIMIT);
    for node in ["n1", "n2"] {
        make_node(&local, node).await;
    }
    for (pod, node) in [("web", "n1"), ("own", "n2")] {
        make_pod(&local, pod, node).await;
    }
    let both =
        |_: StatusCode, list: &Value| list["items"].as_array().is_some_and(|all| all.len() >= 2);
    for _ in 0..5 {
        let list = until(&local, PODS, both).await;
        let items = list["items"].as_array().unwrap().iter();
        let listed: Vec<(&Value, &Value)> = items
            .map(|one| {
                (
                    &one["metadata"]["name"],
                    &one["containers"][0]["usage"]["cpu"],
                )
            })
            .collect();
        assert_eq!(
            listed,
            [
                (&json!("own"), &json!("200m")),
                (&json!("web"), &json!("100m"))
            ]
        );
        let before = nodes.asked("n2");
        let began = Instant::now();
        while nodes.asked("n2") == before {
            assert!(began.elapsed() < LIMIT, "it is asked again");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    asking.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_answer_has_no_figures_and_delays_no_other() {
    let local = Local::new().await;
    let nodes = Nodes::default();
    nodes.set("good", Says::Pods(vec![("web", 10)]));
    nodes.set("falls", Says::Pods(vec![("gone", 10)]));
    for number in 0..40 {
        nodes.set(&format!("stalls{number}"), Says::Nothing);
    }
    // More nodes stall than may be scraped at once.
    let asking = ask_nodes(&local, &nodes, Duration::from_secs(1));
    for node in ["good", "falls"] {
        make_node(&local, node).await;
    }
    make_pod(&local, "web", "good").await;
    make_pod(&local, "gone", "falls").await;
    until(&local, &format!("{PODS}/gone"), found).await;
    for number in 0..40 {
        make_node(&local, &format!("stalls{number}")).await;
    }
    nodes.set("falls", Says::Nonsense);
    let none = |status: StatusCode, _: &Value| status == StatusCode::NOT_FOUND;
    let answer = until(&local, &format!("{NODES}/falls"), none).await;
    assert_eq!(
        answer["message"],
        "nodemetrics.metrics.k8s.io \"falls\" not found"
    );
    until(&local, &format!("{PODS}/gone"), none).await;
    let before = nodes.asked("good");
    let began = Instant::now();
    while nodes.asked("good") < before + 5 {
        assert!(began.elapsed() < LIMIT, "others are asked on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    nodes.set("falls", Says::Pods(vec![("gone", 10)]));
    until(&local, &format!("{NODES}/falls"), found).await;
    asking.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_end_is_cut_whatever_its_status() {
    // Buffers in between hold some bytes, too.
    let buffered = 1 << 20;
    for (head, most) in [
        (
            "HTTP/1.1 200 OK\r\n\r\n",
            Options::default().bytes + buffered,
        ),
        ("HTTP/1.1 500 Oops\r\n\r\n", buffered),
    ] {
        let local = Local::new().await;
        let nodes = Nodes::default();
        nodes.set("n", Says::Endless(head));
        let asking = ask_nodes(&local, &nodes, LIMIT);
        make_node(&local, "n").await;
        let began = Instant::now();
        while nodes.asked("n") < 3 {
            assert!(began.elapsed() < LIMIT, "it is cut, and asked again");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // The third answer may have been given in part, and further ones since.
        let (sent, asked) = (*nodes.sent.lock().unwrap(), nodes.asked("n"));
        let most = most * usize::try_from(asked).unwrap();
        assert!(sent < most, "{sent} bytes of {asked} answers were taken");
        assert_eq!(
            get(&local, &format!("{NODES}/n")).await.0,
            StatusCode::NOT_FOUND
        );
        asking.abort();
    }
}
