//! Answers that are under way when something changes: their caller is shut out, or the write is not
//! in force everywhere.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::authorization;
use crate::common::Local;
use crate::crowded::{peer, slow};
use crate::tokens;
use bytes::Bytes;
use config_kube::identity::NODES_GROUP;
use futures_util::FutureExt as _;
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use master_api::Options;
use master_auth::Mode;
use master_client::{Body, BodyError, BoxFuture, UserInfo};
use master_listener::{DenyList, Extensions, Peer};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

const PATIENCE: Duration = Duration::from_secs(120);
const MACHINES: &str = "/apis/pratique.dev/v1alpha1/machines";

/// A deny list of one name: of a user, or of the node to which a token is bound.
#[derive(Debug)]
pub(crate) struct List(watch::Sender<u64>, Mutex<Option<String>>);

impl List {
    pub(crate) fn hung_into(server: &Local) -> Arc<Self> {
        let list = Arc::new(Self(watch::Sender::new(0), Mutex::new(None)));
        assert!(server.api.set_deny_list(list.clone()));
        list
    }

    pub(crate) fn deny(&self, name: &str) {
        *self.1.lock().unwrap() = Some(name.to_owned());
        self.0.send_modify(|changes| *changes += 1);
    }
}

impl DenyList for List {
    fn denied(&self, user: &UserInfo, _: &Peer) -> Option<String> {
        let denied = self.1.lock().unwrap();
        let nodes = user.extra.get("authentication.kubernetes.io/node-name");
        let mut names = nodes.into_iter().flatten().chain([&user.name]);
        names
            .any(|name| denied.as_deref() == Some(name.as_str()))
            .then(|| "machine is retired".to_owned())
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// A path whose answers the test makes, piece by piece.
#[derive(Debug)]
struct Pieces(Mutex<Vec<mpsc::Receiver<&'static str>>>);

impl Pieces {
    /// Answers for as many requests; where their pieces go in.
    fn hung_into(server: &Local, answers: usize) -> Vec<mpsc::Sender<&'static str>> {
        let (senders, bodies) = (0..answers).map(|_| mpsc::channel(8)).unzip();
        let pieces = Arc::new(Self(Mutex::new(bodies)));
        assert!(server.api.set_extensions(pieces));
        senders
    }
}

impl Extensions for Pieces {
    fn claims(&self, path: &str) -> bool {
        path == "/attest/pieces"
    }

    fn in_force(&self, _: &str, _: &str) -> BoxFuture<'static, bool> {
        Box::pin(std::future::ready(true))
    }

    fn handle(&self, _: Request<Body>, _: Peer, _: UserInfo) -> BoxFuture<'static, Response<Body>> {
        let mut pieces = self.0.lock().unwrap().remove(0);
        let frames = futures_util::stream::poll_fn(move |context| {
            let piece = pieces.poll_recv(context);
            piece.map(|piece| {
                piece.map(|piece| {
                    Ok::<_, BodyError>(Frame::data(Bytes::from_static(piece.as_bytes())))
                })
            })
        });
        Box::pin(async move { Response::new(StreamBody::new(frames).boxed_unsync()) })
    }
}

pub(crate) fn node(name: &str) -> UserInfo {
    UserInfo::authenticated(&format!("system:node:{name}"), [NODES_GROUP])
}

async fn ask(server: &Local, user: &UserInfo) -> Response<Body> {
    let request = Request::get("/attest/pieces")
        .body(master_client::body(""))
        .unwrap();
    server.api.handle_as(request, user.clone(), peer()).await
}

async fn piece(body: &mut Body) -> Option<Bytes> {
    let frame = tokio::time::timeout(PATIENCE, body.frame()).await;
    let frame = frame.expect("a frame, or the end").transpose().unwrap();
    frame.map(|frame| frame.into_data().unwrap())
}

#[tokio::test]
async fn an_answer_that_was_begun_ends_when_its_caller_is_shut_out() {
    let server = Local::new().await;
    let list = List::hung_into(&server);
    let senders = Pieces::hung_into(&server, 2);
    let (mut bad, mut good) = (
        ask(&server, &node("bad")).await.into_body(),
        ask(&server, &node("good")).await.into_body(),
    );
    for sender in &senders {
        sender.send("one").await.unwrap();
    }
    assert_eq!(piece(&mut bad).await.as_deref(), Some(&b"one"[..]));
    assert_eq!(piece(&mut good).await.as_deref(), Some(&b"one"[..]));
    // A change that concerns another caller ends nothing.
    list.deny("system:node:other");
    for sender in &senders {
        sender.send("two").await.unwrap();
    }
    assert_eq!(piece(&mut bad).await.as_deref(), Some(&b"two"[..]));
    list.deny("system:node:bad");
    for sender in &senders {
        sender.send("three").await.unwrap();
        sender.send("four").await.unwrap();
    }
    assert_eq!(piece(&mut bad).await, None);
    assert_eq!(piece(&mut bad).await, None, "the end is the end");
    for expected in ["two", "three", "four"] {
        assert_eq!(piece(&mut good).await.as_deref(), Some(expected.as_bytes()));
    }
}

/// A token that was made before its pod had a node is its node's from then on.
#[tokio::test]
async fn an_answer_ends_when_the_node_is_shut_out_on_which_the_tokens_pod_came_to_run() {
    let server = tokens::cluster(&tokens::key()).await;
    let list = List::hung_into(&server);
    let senders = Pieces::hung_into(&server, 1);
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "waits"}, "spec": {
        "serviceAccountName": "robot", "containers": [{"name": "c", "image": "x:1"}]}});
    let bound = json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "waits"}});
    let binding = json!({"metadata": {"name": "waits"}, "target": {"kind": "Node", "name": "n1"}});
    let (status, answer) = server.admin_ask(Method::POST, pods, &pod).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    let token = tokens::token(&server, bound).await;
    let path = format!("{pods}/waits/binding");
    let (status, answer) = server.admin_ask(Method::POST, &path, &binding).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    let request = Request::get("/attest/pieces")
        .header("authorization", format!("Bearer {token}"))
        .body(master_client::body(""))
        .unwrap();
    let mut body = server.api.handle(request, peer()).await.into_body();
    senders[0].send("one").await.unwrap();
    assert_eq!(piece(&mut body).await.as_deref(), Some(&b"one"[..]));
    list.deny("n1");
    senders[0].send("two").await.unwrap();
    assert_eq!(piece(&mut body).await, None);
}

/// The watch of a secret is open when the node's last pod that refers to it goes.
#[tokio::test]
async fn a_node_follows_an_object_no_longer_than_a_pod_of_its_refers_to_it() {
    let server = authorization::cluster().await;
    let secrets = "/api/v1/namespaces/default/secrets";
    let change = async |note: &str| {
        let path = format!("{secrets}/secret-n1");
        let change = json!({"metadata": {"annotations": {"note": note}}});
        let (status, answer) = server.admin_ask(Method::PATCH, &path, &change).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
    };
    let path = format!("{secrets}?watch=1&fieldSelector=metadata.name%3Dsecret-n1");
    let request = Request::get(path).body(master_client::body("")).unwrap();
    let answer = server.api.handle_as(request, node("n1"), peer()).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let mut body = answer.into_body();
    let shown = |piece: Option<Bytes>| String::from_utf8(piece.unwrap().to_vec()).unwrap();
    assert!(shown(piece(&mut body).await).contains("ADDED"));
    change("first").await;
    assert!(shown(piece(&mut body).await).contains("first"));
    let pod = format!("{}/on-n1", authorization::PODS);
    let now = json!({"gracePeriodSeconds": 0});
    let (status, answer) = server.admin_ask(Method::DELETE, &pod, &now).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    change("second").await;
    let end = shown(piece(&mut body).await);
    assert!(
        end.contains("Forbidden") && !end.contains("second"),
        "{end}"
    );
    assert_eq!(piece(&mut body).await, None);
}

/// The caller is denied while its answer is made.
#[tokio::test]
async fn a_finished_answer_is_not_sent_to_a_caller_denied_meanwhile() {
    let server = Local::new().await;
    let list = List::hung_into(&server);
    let denier = Arc::new(Denier {
        list: list.clone(),
        whom: "system:node:bad",
    });
    assert!(server.api.set_extensions(denier));
    assert_eq!(ask(&server, &node("good")).await.status(), StatusCode::OK);
    *list.1.lock().unwrap() = None;
    let answer = ask(&server, &node("bad")).await;
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(!body.windows(6).any(|window| window == b"secret"));
}

/// The rest of a write's body arrives after its caller was denied, also with impersonation.
#[tokio::test]
async fn a_write_whose_caller_is_shut_out_while_it_sends_is_not_made() {
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    let server = Local::with(Options {
        authorization: vec![Mode::AlwaysAllow],
        ..Options::default()
    })
    .await;
    let list = List::hung_into(&server);
    let mut open = Vec::new();
    for (node, acts_as) in [("good", ""), ("bad", ""), ("bad", "jane")] {
        let (sender, body) = slow();
        sender.send(r#"{"metadata":{"generateName":"#).unwrap();
        let mut request = Request::post(MAPS).header("content-type", "application/json");
        if !acts_as.is_empty() {
            request = request.header("impersonate-user", acts_as);
        }
        let (request, user) = (request.body(body).unwrap(), self::node(node));
        let mut answer = Box::pin(server.api.handle_as(request, user, peer()));
        for _ in 0..64 {
            assert!(answer.as_mut().now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        open.push((sender, answer));
    }
    list.deny("system:node:bad");
    let mut codes = Vec::new();
    for (sender, answer) in open {
        sender.send(r#""made-"}}"#).unwrap();
        drop(sender);
        codes.push(answer.await.status().as_u16());
    }
    assert_eq!(codes, [201, 401, 401]);
    let (_, maps) = server.admin_ask(Method::GET, MAPS, &Value::Null).await;
    let names = maps["items"].as_array().unwrap().iter();
    let names = names.map(|map| map["metadata"]["name"].as_str().unwrap());
    let made: Vec<&str> = names.filter(|name| name.starts_with("made-")).collect();
    assert_eq!(made.len(), 1, "{made:?}");
}

/// Denies a caller while it answers.
#[derive(Debug)]
struct Denier {
    list: Arc<List>,
    whom: &'static str,
}

impl Extensions for Denier {
    fn claims(&self, path: &str) -> bool {
        path == "/attest/pieces"
    }

    fn in_force(&self, _: &str, _: &str) -> BoxFuture<'static, bool> {
        Box::pin(std::future::ready(true))
    }

    fn handle(&self, _: Request<Body>, _: Peer, _: UserInfo) -> BoxFuture<'static, Response<Body>> {
        self.list.deny(self.whom);
        Box::pin(std::future::ready(Response::new(master_client::body(
            "secret",
        ))))
    }
}

/// A service that never holds what was written.
#[derive(Debug, Default)]
struct Behind(AtomicUsize);

impl Extensions for Behind {
    fn claims(&self, _: &str) -> bool {
        false
    }

    fn in_force(&self, plural: &str, name: &str) -> BoxFuture<'static, bool> {
        assert_eq!((plural, name), ("machines", "late"));
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(false))
    }

    fn handle(&self, _: Request<Body>, _: Peer, _: UserInfo) -> BoxFuture<'static, Response<Body>> {
        Box::pin(std::future::ready(Response::new(master_client::body(""))))
    }
}

/// A stored write that is not in effect in the service yet is answered with 504, not with success:
/// a client whose answer says that a machine is retired relies on it.
#[tokio::test]
async fn a_write_that_is_not_in_force_in_time_is_no_success() {
    let server = Local::new().await;
    let behind = Arc::new(Behind::default());
    assert!(server.api.set_extensions(behind.clone()));
    let machine = json!({
        "apiVersion": "pratique.dev/v1alpha1", "kind": "Machine", "metadata": {"name": "late"}, "spec": {"role": "worker"},
    });
    let send = |method: Method, path: String, body: Value| {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .body(master_client::body(body.to_string()))
            .unwrap();
        let user = UserInfo::admin("admin");
        async { server.api.handle_as(request, user, peer()).await }
    };
    let tried = send(
        Method::POST,
        format!("{MACHINES}?dryRun=All"),
        machine.clone(),
    )
    .await;
    assert_eq!(tried.status(), StatusCode::CREATED);
    assert_eq!(behind.0.load(Ordering::Relaxed), 0, "nothing was written");
    let made = send(Method::POST, MACHINES.to_owned(), machine.clone()).await;
    assert_eq!(made.status(), StatusCode::GATEWAY_TIMEOUT);
    let body = made.into_body().collect().await.unwrap().to_bytes();
    let status: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(status["reason"], "Timeout", "{status}");
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .contains("the write is stored"),
        "{status}"
    );
    // It is stored, reads don't wait, and a refused write keeps its own error.
    let read = send(Method::GET, format!("{MACHINES}/late"), Value::Null).await;
    assert_eq!(read.status(), StatusCode::OK);
    let again = send(Method::POST, MACHINES.to_owned(), machine).await;
    assert_eq!(again.status(), StatusCode::CONFLICT);
    let gone = send(Method::DELETE, format!("{MACHINES}/late"), Value::Null).await;
    assert_eq!(gone.status(), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(behind.0.load(Ordering::Relaxed), 2);
}
