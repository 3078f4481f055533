//! Reboot and poweroff of a node's machine: the right to order it, the entry in the log before, and
//! the request to the node.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use crate::crowded::peer;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use master_api::{DialError, NodeDialer, NodeStream, NodeTarget, Options};
use master_auth::Mode;
use master_client::{ApiError, Body, BoxFuture, UserInfo};
use master_gateway::NodeLimits;
use master_listener::{Extensions, Peer};
use master_schema::error::Reason;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

/// What happened, in order: records of the log of verdicts, and requests to the node.
type Happened = Arc<Mutex<Vec<String>>>;

/// A kubelet that answers each order with a status and a line.
#[derive(Debug, Clone)]
struct Kubelet(Happened, StatusCode, &'static str);

impl NodeDialer for Kubelet {
    fn dial(&self, _: NodeTarget) -> BoxFuture<'_, Result<Box<dyn NodeStream>, DialError>> {
        let Self(happened, status, line) = self.clone();
        let (near, far) = tokio::io::duplex(1024);
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let asked = format!("{} {}", request.method(), request.uri());
            happened.lock().unwrap().push(asked);
            let mut answer = Response::new(Full::new(Bytes::from(line)));
            if request.method() == Method::POST {
                *answer.status_mut() = status;
            }
            async { Ok::<_, Infallible>(answer) }
        });
        let serving = hyper::server::conn::http1::Builder::new();
        tokio::spawn(serving.serve_connection(TokioIo::new(far), service));
        Box::pin(async move { Ok(Box::new(near) as Box<dyn NodeStream>) })
    }
}

/// A log of verdicts that takes records, or none.
#[derive(Debug)]
struct Log(Happened, bool);

impl Extensions for Log {
    fn claims(&self, _: &str) -> bool {
        false
    }

    fn in_force(&self, _: &str, _: &str) -> BoxFuture<'static, bool> {
        Box::pin(std::future::ready(true))
    }

    fn order_given(
        &self,
        node: &str,
        by: &str,
        order: &'static str,
        outcome: &str,
    ) -> Option<BoxFuture<'static, Result<(), ApiError>>> {
        let record = format!("{by} orders {node} to {order}; {outcome}");
        self.0.lock().unwrap().push(record);
        let full = || ApiError::new(Reason::ServiceUnavailable, "the log is full");
        let taken = self.1.then_some(()).ok_or_else(full);
        Some(Box::pin(std::future::ready(taken)))
    }

    fn handle(&self, _: Request<Body>, _: Peer, _: UserInfo) -> BoxFuture<'static, Response<Body>> {
        Box::pin(std::future::ready(Response::new(master_client::body(""))))
    }
}

/// A server with a node, whose kubelet answers so, and a log that takes records, or none, or that
/// is not there.
async fn server(status: StatusCode, line: &'static str, log: Option<bool>) -> (Local, Happened) {
    server_with(Options::default(), status, line, log).await
}

async fn server_with(
    options: Options,
    status: StatusCode,
    line: &'static str,
    log: Option<bool>,
) -> (Local, Happened) {
    let (server, happened) = (Local::with(options).await, Happened::default());
    let kubelet = Kubelet(happened.clone(), status, line);
    assert!(server.api.set_node_dialer(Arc::new(kubelet)));
    if let Some(takes) = log {
        let log = Log(happened.clone(), takes);
        assert!(server.api.set_extensions(Arc::new(log)));
    }
    let address = json!([{"type": "InternalIP", "address": "192.0.2.1"}]);
    let node = json!({"metadata": {"name": "n"}, "status": {"addresses": address}});
    let made = server.admin_ask(Method::POST, "/api/v1/nodes", &node).await;
    assert_eq!(made.0, StatusCode::CREATED, "{}", made.1);
    (server, happened)
}

async fn order(server: &Local, who: &UserInfo, below: &str) -> (u16, String) {
    let path = format!("/api/v1/nodes/{below}");
    let (status, said) = server.ask(who, Method::POST, &path, &Value::Null).await;
    let message = said["message"].as_str().unwrap_or_default();
    (status.as_u16(), message.to_owned())
}

fn admin() -> UserInfo {
    UserInfo::admin("admin")
}

#[tokio::test]
async fn an_order_is_written_down_before_the_node_gets_it() {
    let (server, happened) = server(StatusCode::ACCEPTED, "", Some(true)).await;
    for (word, request) in [
        ("reboot", "POST /power/reboot"),
        ("poweroff", "POST /power/poweroff"),
    ] {
        let (status, said) = order(&server, &admin(), &format!("n/power?action={word}")).await;
        assert_eq!(status, 201, "{said}");
        let seen = std::mem::take(&mut *happened.lock().unwrap());
        assert_eq!(seen, [&*format!("admin orders n to {word}; "), request]);
    }
    let tried = order(&server, &admin(), "n/power?action=reboot&dryRun=All").await;
    assert_eq!(tried.0, 201, "{}", tried.1);
    assert!(happened.lock().unwrap().is_empty(), "nothing is done");
    let tried = order(&server, &admin(), "n/power?action=reboot&dryRun=Some").await;
    assert_eq!(tried.0, 422, "{}", tried.1);
    assert!(happened.lock().unwrap().is_empty(), "nothing is done");
    // As for any write, an empty value asks for no dry run.
    let (status, said) = order(&server, &admin(), "n/power?action=reboot&dryRun=").await;
    assert_eq!(status, 201, "{said}");
    assert_eq!(happened.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn without_the_right_nothing_happens_and_no_proxy_goes_around_it() {
    let (server, happened) = server(StatusCode::ACCEPTED, "", Some(true)).await;
    let group = "/apis/rbac.authorization.k8s.io/v1";
    let rules = json!([{"apiGroups": [""], "resources": ["nodes", "nodes/proxy", "nodes/status"], "verbs": ["*"]}]);
    let role = json!({"metadata": {"name": "operator"}, "rules": rules});
    let to =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "operator"});
    let who =
        json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "operator"}]);
    let binding = json!({"metadata": {"name": "operator"}, "roleRef": to, "subjects": who});
    for (kind, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
        let path = format!("{group}/{kind}");
        let (status, said) = server.admin_ask(Method::POST, &path, &object).await;
        assert_eq!(status, StatusCode::CREATED, "{said}");
    }
    let operator = UserInfo::authenticated("operator", [] as [&str; 0]);
    let nodes = ["system:nodes"];
    let (own, other) = (
        UserInfo::authenticated("system:node:n", nodes),
        UserInfo::authenticated("system:node:other", nodes),
    );
    let pods = ["system:serviceaccounts"];
    let pod = UserInfo::authenticated("system:serviceaccount:default:default", pods);
    for who in [&operator, &own, &other, &pod] {
        let (status, said) = order(&server, who, "n/power?action=reboot").await;
        assert_eq!(status, 403, "{said}");
        assert!(
            said.contains("cannot create resource \"nodes/power\""),
            "{said}"
        );
    }
    for path in [
        "power/reboot",
        "/power/reboot",
        "power",
        "power/poweroff?a=b",
    ] {
        for who in [&operator, &admin()] {
            let (status, said) = order(&server, who, &format!("n/proxy/{path}")).await;
            assert_eq!(status, 403, "{path}: {said}");
        }
    }
    assert!(happened.lock().unwrap().is_empty());
}

#[tokio::test]
async fn what_is_no_order_or_can_not_be_written_down_does_not_reach_the_node() {
    let (server, happened) = server(StatusCode::ACCEPTED, "", Some(true)).await;
    for (below, status, words) in [
        ("n/power", 400, "must be reboot or poweroff"),
        ("n/power?action=halt", 400, "must be reboot or poweroff"),
        ("none/power?action=reboot", 404, "nodes \"none\" not found"),
    ] {
        let (code, said) = order(&server, &admin(), below).await;
        assert!(
            code == status && said.contains(words),
            "{below}: {code} {said}"
        );
    }
    assert!(happened.lock().unwrap().is_empty());
    let (full, happened) = self::server(StatusCode::ACCEPTED, "", Some(false)).await;
    let (code, said) = order(&full, &admin(), "n/power?action=reboot").await;
    assert!(
        code == 503 && said.contains("the log is full"),
        "{code} {said}"
    );
    assert_eq!(
        happened.lock().unwrap().len(),
        1,
        "the record alone was tried"
    );
    let (without, happened) = self::server(StatusCode::ACCEPTED, "", None).await;
    let (code, said) = order(&without, &admin(), "n/power?action=reboot").await;
    assert!(
        code == 503 && said.contains("no log of verdicts"),
        "{code} {said}"
    );
    assert!(happened.lock().unwrap().is_empty());
}

#[tokio::test]
async fn what_the_node_refuses_is_reported_in_its_words_and_written_down() {
    for (status, line, code) in [
        (StatusCode::BAD_REQUEST, "this host has no init\n", 400),
        (StatusCode::OK, "a page\n", 500),
        (StatusCode::FORBIDDEN, "not you\n", 500),
    ] {
        let (server, happened) = server(status, line, Some(true)).await;
        let (answered, said) = order(&server, &admin(), "n/power?action=poweroff").await;
        assert_eq!((answered, &*said), (code, line.trim_end()));
        let seen = happened.lock().unwrap().clone();
        let record = format!("admin orders n to poweroff; not done: {}", line.trim_end());
        assert_eq!(seen[1..], ["POST /power/poweroff".to_owned(), record]);
    }
}

#[tokio::test]
async fn who_follows_logs_of_a_node_leaves_places_for_others_and_for_the_end_of_the_machine() {
    let options = Options {
        nodes: NodeLimits {
            per_node: 4,
            ..NodeLimits::default()
        },
        authorization: vec![Mode::AlwaysAllow],
        ..Options::default()
    };
    let (server, happened) =
        server_with(options, StatusCode::ACCEPTED, "a line\n", Some(true)).await;
    let ask = async |user: &str, method: Method, below: &str| {
        let uri = format!("/api/v1/nodes/n/{below}");
        let request = Request::builder().method(method).uri(uri);
        let request = request.body(master_client::body("")).unwrap();
        let user = UserInfo::authenticated(user, [""; 0]);
        server.api.handle_as(request, user, peer()).await
    };
    // Its answer is open as long as nobody reads it.
    let log = "proxy/containerLogs/default/p/c?follow=true";
    let mut open = Vec::new();
    while open.len() < 64 {
        let answer = ask("reader", Method::GET, log).await;
        if answer.status() == StatusCode::TOO_MANY_REQUESTS {
            break;
        }
        assert_eq!(answer.status(), StatusCode::OK);
        open.push(answer);
    }
    assert!((1..=4).contains(&open.len()), "{}", open.len());
    happened.lock().unwrap().clear();
    // The reader itself may be the one who ends it.
    for user in ["jane", "reader"] {
        let answer = ask(user, Method::POST, "power?action=reboot").await;
        assert_eq!(answer.status(), StatusCode::CREATED, "{user}");
        let seen = std::mem::take(&mut *happened.lock().unwrap());
        assert_eq!(seen.last().unwrap(), "POST /power/reboot");
    }
    assert_eq!(ask("jane", Method::GET, log).await.status(), StatusCode::OK);
}
