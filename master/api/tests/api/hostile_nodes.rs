//! Hostile kubelets: endless answers, endless headers, one byte at a time, endless errors. Each is
//! cut within its limit, for any path and status.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::{Kubelet, Local};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use master_api::{DialError, NodeDialer, NodeStream, NodeTarget, Options};
use master_client::{Body, BoxFuture, UserInfo};
use master_gateway::NodeLimits;
use master_listener::Peer;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::Notify;

/// Time limit for what must happen.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Bytes sent and buffered on the way, beyond the limit.
const BUFFERED: u64 = 512 << 10;
/// The hostile kubelet stops here, so that a server without a limit fails the test and not the
/// machine.
const GIVE_UP_AT: u64 = 64 << 20;
const LOG: &str = "/api/v1/namespaces/default/pods/p/log";
const METRICS: &str = "/api/v1/nodes/n/proxy/metrics";
/// Streams that are followed: logs, and answers of programs in pods.
const FOLLOWED: [&str; 4] = [
    "/api/v1/nodes/n/proxy/containerLogs/default/p/c?follow=true",
    "/api/v1/nodes/n/proxy/logs/?query=agent&follow=1",
    "/api/v1/namespaces/default/pods/p:8080/proxy/x",
    "/api/v1/namespaces/default/services/s/proxy/x",
];
const FAILING: &str = "HTTP/1.1 500 Oops\r\n\r\n";
/// How a kubelet agrees to lead to a port of a pod.
const AGREES: &str =
    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: pratique-pod-port\r\n\r\n";
const PLAIN: &str = "HTTP/1.1 200 OK\r\n\r\n";
/// The smallest chunks make an answer slow to read; one path with them is enough.
const TINY: &str = "4\r\nline\r\n";
const CHUNK: &str = "40\r\na line that a hostile kubelet repeats; 64 bytes with its end...\n\r\n";

/// The body that the kubelet sends.
#[derive(Debug, Clone, Copy)]
enum Then {
    /// This text, repeated as fast as it is read.
    Endless(&'static str),
    /// A byte now and then.
    Trickle,
    /// One line; another one on demand.
    Wait,
}

#[derive(Debug, Clone)]
struct Hostile {
    head: &'static str,
    then: Then,
    sent: Arc<AtomicU64>,
    /// Set when the connection is closed.
    cut: Arc<AtomicBool>,
    go_on: Arc<Notify>,
}

impl Hostile {
    fn new(head: &'static str, then: Then) -> Self {
        Self {
            head,
            then,
            sent: Arc::default(),
            cut: Arc::default(),
            go_on: Arc::default(),
        }
    }

    async fn speak(self, mut stream: DuplexStream) -> std::io::Result<()> {
        let mut request = [0; 4096];
        let mut asked = stream.read(&mut request).await?;
        assert!(asked > 0, "it is asked");
        if request.starts_with(b"GET /podPort/") {
            stream.write_all(AGREES.as_bytes()).await?;
            asked = stream.read(&mut request).await?;
            assert!(asked > 0, "the program is asked");
        }
        stream.write_all(self.head.as_bytes()).await?;
        match self.then {
            Then::Endless(text) => {
                let piece = text.repeat((8 << 10) / text.len());
                while self.sent.load(Ordering::Relaxed) < GIVE_UP_AT {
                    stream.write_all(piece.as_bytes()).await?;
                    self.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
                }
            }
            Then::Trickle => loop {
                stream.write_all(b"x").await?;
                tokio::time::sleep(Duration::from_millis(5)).await;
            },
            Then::Wait => {
                stream.write_all(b"one\n").await?;
                self.go_on.notified().await;
                stream.write_all(b"two\n").await?;
            }
        }
        Ok(())
    }

    async fn until_cut(&self) {
        let began = Instant::now();
        while !self.cut.load(Ordering::Acquire) {
            assert!(
                began.elapsed() < TIME_LIMIT,
                "the connection to the node stays open"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl NodeDialer for Hostile {
    fn dial(&self, _target: NodeTarget) -> BoxFuture<'_, Result<Box<dyn NodeStream>, DialError>> {
        let (near, far) = tokio::io::duplex(16 << 10);
        let kubelet = self.clone();
        tokio::spawn(async move {
            let cut = kubelet.cut.clone();
            if kubelet.speak(far).await.is_err() {
                cut.store(true, Ordering::Release);
            }
        });
        Box::pin(async move { Ok(Box::new(near) as Box<dyn NodeStream>) })
    }
}

/// A server with one node, a pod on it, and this kubelet as the node.
async fn server(kubelet: &Hostile, limits: NodeLimits) -> Local {
    let local = Local::with(Options {
        nodes: limits,
        ..Options::default()
    })
    .await;
    assert!(local.api.set_node_dialer(Arc::new(kubelet.clone())));
    let node = json!({"metadata": {"name": "n"}, "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "x:1"}]}});
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    let target = json!({"kind": "Pod", "namespace": "default", "name": "p"});
    let slice = json!({
        "metadata": {"name": "s", "labels": {"kubernetes.io/service-name": "s"}}, "addressType": "IPv4",
        "ports": [{"name": "", "port": 8080}], "endpoints": [{"addresses": ["10.1.0.2"], "targetRef": target}],
    });
    for (path, object) in [
        ("/api/v1/nodes", node),
        ("/api/v1/namespaces/default/pods", pod),
        ("/api/v1/namespaces/default/services", service),
        (
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            slice,
        ),
    ] {
        let (status, answer) = local.admin_ask(Method::POST, path, &object).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
    }
    let path = "/api/v1/namespaces/default/pods/p/status";
    let status = json!({"status": {"podIP": "10.1.0.2", "podIPs": [{"ip": "10.1.0.2"}]}});
    let (status, answer) = local.admin_ask(Method::PATCH, path, &status).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    local
}

async fn ask(local: &Local, path: &str) -> Response<Body> {
    let request = Request::get(path).body(master_client::body("")).unwrap();
    let answer = local
        .api
        .handle_as(request, UserInfo::admin("admin"), Peer::default());
    tokio::time::timeout(TIME_LIMIT, answer)
        .await
        .expect("an answer in time")
}

/// Reads to the end; returns the number of bytes and the error at the end.
async fn read(answer: Response<Body>) -> (u64, Option<String>) {
    let (mut body, mut size) = (answer.into_body(), 0);
    loop {
        match tokio::time::timeout(TIME_LIMIT, body.frame())
            .await
            .expect("a piece, or the end, in time")
        {
            None => return (size, None),
            Some(Err(error)) => return (size, Some(error.to_string())),
            Some(Ok(frame)) => size += frame.into_data().unwrap().len() as u64,
        }
    }
}

#[tokio::test]
async fn only_the_beginning_of_an_endless_refusal_is_shown() {
    for head in [
        "HTTP/1.1 500 Oops\r\n\r\n",
        "HTTP/1.1 404 No\r\n\r\n",
        "HTTP/1.1 302 There\r\nlocation: /x\r\n\r\n",
    ] {
        let kubelet = Hostile::new(head, Then::Endless("why "));
        let local = server(&kubelet, NodeLimits::default()).await;
        let answer = ask(&local, LOG).await;
        assert!(!answer.status().is_success(), "{head}");
        let sent = kubelet.sent.load(Ordering::Relaxed);
        assert!(
            sent < BUFFERED,
            "{head}: {sent} bytes of a refusal were taken"
        );
        let (size, error) = read(answer).await;
        assert!(size < 4096 && error.is_none(), "{head}: {size} {error:?}");
        kubelet.until_cut().await;
    }
}

#[tokio::test]
async fn an_endless_header_is_refused() {
    let endless = "x-a-name: a value\r\n";
    for head in ["HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nx: ", ""] {
        let kubelet = Hostile::new(
            head,
            Then::Endless(if head.ends_with(": ") {
                "value"
            } else {
                endless
            }),
        );
        let local = server(&kubelet, NodeLimits::default()).await;
        for path in [LOG, METRICS] {
            assert!(
                ask(&local, path).await.status().is_server_error(),
                "{head:?}"
            );
        }
        let sent = kubelet.sent.load(Ordering::Relaxed);
        assert!(
            sent < BUFFERED,
            "{head:?}: {sent} bytes of a header were taken"
        );
        kubelet.until_cut().await;
    }
}

#[tokio::test]
async fn an_answer_without_end_has_a_bound_for_every_path_and_status() {
    let limits = NodeLimits {
        bytes: 1 << 20,
        ..NodeLimits::default()
    };
    let missing = "HTTP/1.1 404 Not Found\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut cases = vec![
        (LOG, PLAIN, "line\n"),
        (METRICS, PLAIN, "line\n"),
        (METRICS, missing, TINY),
        (METRICS, FAILING, "x"),
    ];
    for path in FOLLOWED {
        cases.extend([(path, missing, CHUNK), (path, FAILING, "x")]);
    }
    for (path, head, text) in cases {
        let kubelet = Hostile::new(head, Then::Endless(text));
        let local = server(&kubelet, limits.clone()).await;
        let (size, error) = read(ask(&local, path).await).await;
        assert!(size <= limits.bytes, "{path} {head:?}: {size} bytes");
        assert!(
            error.is_some_and(|why| why.contains("more than 1048576 bytes")),
            "{path} {head:?}: it ends as if whole"
        );
        kubelet.until_cut().await;
    }
}

#[tokio::test]
async fn a_client_gets_no_more_of_a_log_than_it_asked_for() {
    let kubelet = Hostile::new(PLAIN, Then::Endless("line\n"));
    let local = server(&kubelet, NodeLimits::default()).await;
    let (size, error) =
        read(ask(&local, &format!("{LOG}?limitBytes=1000&follow=true")).await).await;
    assert_eq!((size, error), (1000, None));
    kubelet.until_cut().await;
}

#[tokio::test]
async fn a_node_that_sends_a_byte_now_and_then_has_its_time() {
    let limits = NodeLimits {
        wait: Duration::from_millis(200),
        ..NodeLimits::default()
    };
    let failing = FOLLOWED.map(|path| (path, FAILING));
    for (path, head) in [(LOG, PLAIN), (METRICS, PLAIN)].into_iter().chain(failing) {
        let kubelet = Hostile::new(head, Then::Trickle);
        let local = server(&kubelet, limits.clone()).await;
        let (_, error) = read(ask(&local, path).await).await;
        assert!(
            error.is_some_and(|why| why.contains("too slowly")),
            "{path}"
        );
        kubelet.until_cut().await;
    }
    let limits = NodeLimits {
        idle: Duration::from_millis(100),
        ..NodeLimits::default()
    };
    let local = server(&Hostile::new(PLAIN, Then::Wait), limits).await;
    let (size, error) = read(ask(&local, METRICS).await).await;
    assert!(size == 4 && error.is_some_and(|why| why.contains("too slowly")));
}

#[tokio::test]
async fn the_wait_for_a_header_is_bounded() {
    let limits = NodeLimits {
        header: Duration::from_millis(200),
        ..NodeLimits::default()
    };
    for head in [
        "HTTP/1.1 200 OK\r\nx: ",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nx",
    ] {
        let kubelet = Hostile::new(head, Then::Trickle);
        let local = server(&kubelet, limits.clone()).await;
        assert!(ask(&local, METRICS).await.status().is_server_error());
        kubelet.until_cut().await;
    }
}

#[tokio::test]
async fn an_unexpected_answer_is_not_forwarded() {
    let kubelet = Hostile::new(
        "HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        Then::Wait,
    );
    let local = server(&kubelet, NodeLimits::default()).await;
    assert_eq!(ask(&local, METRICS).await.status(), StatusCode::BAD_GATEWAY);
}

#[tokio::test]
async fn a_followed_log_may_be_quiet_for_longer_than_an_answer_may() {
    let short = Duration::from_millis(20);
    let limits = NodeLimits {
        idle: short,
        wait: short,
        bytes: 4,
        ..NodeLimits::default()
    };
    let log = format!("{LOG}?follow=true");
    for path in FOLLOWED.iter().copied().chain([log.as_str()]) {
        let kubelet = Hostile::new(PLAIN, Then::Wait);
        let local = server(&kubelet, limits.clone()).await;
        let mut body = ask(&local, path).await.into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first, "one\n");
        let quiet = tokio::time::timeout(short * 10, body.frame()).await;
        assert!(
            quiet.is_err(),
            "{path}: it is cut while it is quiet: {quiet:?}"
        );
        kubelet.go_on.notify_one();
        let second = tokio::time::timeout(TIME_LIMIT, body.frame())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert_eq!(second.into_data().unwrap(), "two\n");
    }
}

#[tokio::test]
async fn a_node_sends_no_faster_than_its_client_takes_and_no_longer_than_it_stays() {
    let kubelet = Hostile::new(PLAIN, Then::Endless("line\n"));
    let local = server(&kubelet, NodeLimits::default()).await;
    let mut body = ask(&local, &format!("{LOG}?follow=true")).await.into_body();
    body.frame().await.unwrap().unwrap();
    // Time enough to send everything; only what fits the buffers is sent.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let sent = kubelet.sent.load(Ordering::Relaxed);
    assert!(
        sent < BUFFERED,
        "{sent} bytes wait for a client that takes none"
    );
    drop(body);
    kubelet.until_cut().await;
}

#[tokio::test]
async fn one_node_does_not_hold_all_the_answers_that_are_read() {
    let kubelet = Hostile::new(PLAIN, Then::Wait);
    let local = server(
        &kubelet,
        NodeLimits {
            per_node: 2,
            ..NodeLimits::default()
        },
    )
    .await;
    let followed = format!("{LOG}?follow=true");
    let (first, second) = (ask(&local, &followed).await, ask(&local, &followed).await);
    assert!(first.status() == StatusCode::OK && second.status() == StatusCode::OK);
    let third = ask(&local, &followed).await;
    assert_eq!(
        (third.status(), &third.headers()["retry-after"]),
        (StatusCode::TOO_MANY_REQUESTS, &"1".parse().unwrap())
    );
    drop(first);
    assert_eq!(ask(&local, &followed).await.status(), StatusCode::OK);
}

/// A name would have this server ask the name server that a hostile node chose, which may keep it
/// waiting.
#[tokio::test]
async fn a_node_is_called_at_an_ip_address_and_at_no_name() {
    let local = Local::new().await;
    let kubelet = Kubelet::default();
    assert!(local.api.set_node_dialer(Arc::new(kubelet.clone())));
    let (name, address) = ("n.example.com", "192.0.2.7");
    let addresses = |all: &[(&str, &str)]| -> Vec<Value> {
        let entry = |(kind, address): &(&str, &str)| json!({"type": kind, "address": address});
        all.iter().map(entry).collect()
    };
    for (number, (reported, called)) in [
        (
            addresses(&[("Hostname", name), ("InternalIP", address)]),
            address,
        ),
        (
            addresses(&[("InternalIP", name), ("InternalIP", address)]),
            address,
        ),
        (
            addresses(&[("InternalIP", name), ("ExternalIP", address)]),
            address,
        ),
        (addresses(&[("InternalIP", "2001:db8::7")]), "2001:db8::7"),
        (
            addresses(&[("InternalIP", name), ("ExternalIP", "localhost")]),
            "",
        ),
        (
            addresses(&[("InternalDNS", name), ("Hostname", address)]),
            "",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let node =
            json!({"metadata": {"name": format!("n{number}")}, "status": {"addresses": reported}});
        let (status, answer) = local.admin_ask(Method::POST, "/api/v1/nodes", &node).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
        let answer = ask(&local, &format!("/api/v1/nodes/n{number}/proxy/metrics")).await;
        let asked = kubelet.asked.lock().unwrap().pop();
        let found = asked.map_or(String::new(), |(target, _)| target.address.to_string());
        assert_eq!(found, called, "{reported:?}");
        let is_called = answer.status() == StatusCode::OK;
        let is_refused = answer.status() == StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(
            (is_called, is_refused),
            (!called.is_empty(), called.is_empty())
        );
    }
}
