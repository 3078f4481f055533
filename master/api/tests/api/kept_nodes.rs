//! Connections to nodes that the server keeps for its own questions: when they are used again, and
//! what ends them.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use crate::tunnels::List;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use master_api::{
    ConnectionCheck, DialError, NodeDialer, NodeStream, NodeTarget, Options, ReusableStream,
};
use master_client::BoxFuture;
use master_gateway::NodeLimits;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

const LIMIT: Duration = Duration::from_secs(180);

/// Why no connection may be used again.
#[derive(Debug, Default)]
struct Objections(Mutex<Option<String>>);

impl ConnectionCheck for Objections {
    fn objection(&self) -> Option<String> {
        self.0.lock().unwrap().clone()
    }
}

/// Nodes that answer any number of questions over a connection.
#[derive(Debug, Clone)]
struct Nodes {
    /// Places that were dialled, in order.
    dialled: Arc<Mutex<Vec<String>>>,
    /// How many connections have ended, and the same as an order to all: it ends them.
    ended: watch::Sender<usize>,
    hang_up: watch::Sender<usize>,
    /// What stands behind each connection, in the order of the dials.
    standings: Arc<Mutex<Vec<Arc<Objections>>>>,
}

impl Nodes {
    fn new() -> Self {
        Self {
            dialled: Arc::default(),
            ended: watch::Sender::new(0),
            hang_up: watch::Sender::new(0),
            standings: Arc::default(),
        }
    }

    fn dialled(&self) -> usize {
        self.dialled.lock().unwrap().len()
    }

    /// Waits until `many` connections have ended.
    async fn until_ended(&self, many: usize) {
        let mut ended = self.ended.subscribe();
        let waited = tokio::time::timeout(LIMIT, ended.wait_for(|ended| *ended >= many)).await;
        waited.expect("a connection ends").unwrap();
    }

    async fn serve(self, stream: tokio::io::DuplexStream) {
        let service = hyper::service::service_fn(|_: Request<Incoming>| async {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("1\n"))))
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service);
        let mut order = self.hang_up.subscribe();
        // Either ends it.
        tokio::select! {
            ended = connection => drop(ended),
            ordered = order.changed() => drop(ordered),
        }
        self.ended.send_modify(|ended| *ended += 1);
    }
}

impl NodeDialer for Nodes {
    fn dial(&self, target: NodeTarget) -> BoxFuture<'_, Result<Box<dyn NodeStream>, DialError>> {
        Box::pin(async move { Ok(self.dial_reusable(target).await?.0) })
    }

    fn dial_reusable(
        &self,
        target: NodeTarget,
    ) -> BoxFuture<'_, Result<ReusableStream, DialError>> {
        let (near, far) = tokio::io::duplex(1024);
        let place = format!("{}:{}", target.address, target.port);
        self.dialled.lock().unwrap().push(place);
        tokio::spawn(self.clone().serve(far));
        let standing = Arc::new(Objections::default());
        self.standings.lock().unwrap().push(standing.clone());
        let standing: Arc<dyn ConnectionCheck> = standing;
        Box::pin(async move { Ok((Box::new(near) as Box<dyn NodeStream>, Some(standing))) })
    }
}

async fn server(nodes: &Nodes, limits: NodeLimits) -> Local {
    let options = Options {
        nodes: limits,
        ..Options::default()
    };
    let local = Local::with(options).await;
    assert!(local.api.set_node_dialer(Arc::new(nodes.clone())));
    for name in ["n1", "n2"] {
        let addresses = json!([{"type": "InternalIP", "address": "192.0.2.1"}]);
        let node = json!({"metadata": {"name": name}, "status": {"addresses": addresses}});
        let made = local.admin_ask(Method::POST, "/api/v1/nodes", &node).await;
        assert_eq!(made.0, StatusCode::CREATED, "{}", made.1);
    }
    local
}

async fn ask(local: &Local, node: &str) -> StatusCode {
    let path = format!("/api/v1/nodes/{node}/proxy/metrics/resource");
    local.admin_ask(Method::GET, &path, &Value::Null).await.0
}

#[tokio::test]
async fn questions_of_the_server_itself_share_a_connection() {
    let nodes = Nodes::new();
    let local = server(&nodes, NodeLimits::default()).await;
    for _ in 0..5 {
        assert_eq!(ask(&local, "n1").await, StatusCode::OK);
        assert_eq!(ask(&local, "n2").await, StatusCode::OK);
    }
    assert_eq!(nodes.dialled(), 2, "one for each node");
    // The node listens elsewhere.
    let addresses = json!([{"type": "InternalIP", "address": "192.0.2.9"}]);
    let status = json!({"status": {"addresses": addresses}});
    let path = "/api/v1/nodes/n1/status";
    let moved = local.admin_ask(Method::PATCH, path, &status).await;
    assert_eq!(moved.0, StatusCode::OK, "{}", moved.1);
    assert_eq!(ask(&local, "n1").await, StatusCode::OK);
    let last = nodes.dialled.lock().unwrap().last().cloned();
    assert_eq!(last.as_deref(), Some("192.0.2.9:10250"));
    nodes.until_ended(1).await;
}

#[tokio::test]
async fn a_verdict_on_its_node_cuts_a_kept_connection() {
    let nodes = Nodes::new();
    let local = server(&nodes, NodeLimits::default()).await;
    let list = List::new();
    assert!(local.api.set_deny_list(list.clone()));
    assert_eq!(ask(&local, "n1").await, StatusCode::OK);
    assert_eq!(ask(&local, "n2").await, StatusCode::OK);
    list.deny("n1");
    nodes.until_ended(1).await;
    assert_eq!(ask(&local, "n1").await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(ask(&local, "n2").await, StatusCode::OK);
    assert_eq!((nodes.dialled(), *nodes.ended.borrow()), (2, 1));
}

#[tokio::test]
async fn a_kept_connection_ends_with_the_certificate_behind_it() {
    let nodes = Nodes::new();
    let local = server(&nodes, NodeLimits::default()).await;
    let list = List::new();
    assert!(local.api.set_deny_list(list.clone()));
    assert_eq!(ask(&local, "n1").await, StatusCode::OK);
    let object = |dial: usize, why: &str| {
        let standing = nodes.standings.lock().unwrap()[dial].clone();
        *standing.0.lock().unwrap() = Some(why.to_owned());
    };
    // Asked before its next use,
    object(0, "the certificate has expired");
    assert_eq!(ask(&local, "n1").await, StatusCode::OK);
    assert_eq!(nodes.dialled(), 2);
    nodes.until_ended(1).await;
    assert_eq!(ask(&local, "n1").await, StatusCode::OK);
    assert_eq!(nodes.dialled(), 2);
    // and whenever the deny list changes.
    object(1, "the machine has proved another key");
    list.deny("another");
    nodes.until_ended(2).await;
}

#[tokio::test]
async fn a_connection_that_its_node_closed_is_replaced() {
    let nodes = Nodes::new();
    let local = server(&nodes, NodeLimits::default()).await;
    for round in 1..4 {
        assert_eq!(ask(&local, "n1").await, StatusCode::OK);
        assert_eq!(nodes.dialled(), round);
        nodes.hang_up.send_modify(|order| *order += 1);
        nodes.until_ended(round).await;
    }
}

#[tokio::test]
async fn kept_connections_are_limited_in_number_and_in_time() {
    let limits = NodeLimits {
        kept: 1,
        ..NodeLimits::default()
    };
    let nodes = Nodes::new();
    let local = server(&nodes, limits).await;
    for _ in 0..2 {
        assert_eq!(ask(&local, "n1").await, StatusCode::OK);
        assert_eq!(ask(&local, "n2").await, StatusCode::OK);
    }
    assert_eq!(
        nodes.dialled(),
        3,
        "one of n1, and one for each question of n2"
    );
    nodes.until_ended(2).await;

    let limits = NodeLimits {
        kept_idle: Duration::ZERO,
        ..NodeLimits::default()
    };
    let nodes = Nodes::new();
    let local = server(&nodes, limits).await;
    assert_eq!(ask(&local, "n1").await, StatusCode::OK);
    assert_eq!(ask(&local, "n2").await, StatusCode::OK);
    nodes.until_ended(1).await;
    assert_eq!(ask(&local, "n1").await, StatusCode::OK);
    assert_eq!(nodes.dialled(), 3, "the time of the first one was up");
}
