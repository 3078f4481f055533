//! The listener over real TLS: the caller's identity, limits, slow clients, logs, graceful
//! shutdown.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::{Kubelet, Server};
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use master_api::{NodeTarget, Options};
use master_auth::Mode;
use master_client::BoxFuture;
use master_listener::{ConnectionLimits, ServeOptions};
use serde_json::json;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PATIENCE: Duration = Duration::from_secs(30);

async fn server() -> Server {
    Server::start(Options::default(), ServeOptions::default()).await
}

#[tokio::test]
async fn the_certificate_says_who_the_caller_is() {
    let server = server().await;
    let mut admin = server.connect(Some(&server.admin_identity())).await;
    assert_eq!(
        admin.ask(Method::GET, "/api/v1/nodes", "").await.0,
        StatusCode::OK
    );
    let node = server
        .authority
        .issue("system:node:n1", &["system:nodes"], &[]);
    let mut node = server.connect(Some(&node)).await;
    let (status, error) = node.ask(Method::GET, "/api/v1/secrets", "").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("User \"system:node:n1\"")
    );
    let mut nobody = server.connect(None).await;
    assert_eq!(
        nobody.ask(Method::GET, "/api/v1/nodes", "").await.0,
        StatusCode::FORBIDDEN
    );
    assert_eq!(
        nobody.ask(Method::GET, "/livez", "").await.0,
        StatusCode::OK
    );
    let nameless = server.authority.issue("", &["system:masters"], &[]);
    let mut nameless = server.connect(Some(&nameless)).await;
    assert_eq!(
        nameless.ask(Method::GET, "/api/v1/nodes", "").await.0,
        StatusCode::UNAUTHORIZED
    );
    server.stop().await;
}

#[tokio::test]
async fn a_certificate_of_another_authority_gets_no_connection() {
    let server = server().await;
    let stranger = crate::common::Authority::new().issue("admin", &["system:masters"], &[]);
    let stream = server
        .stream(server.client_tls(Some(&stranger), b"http/1.1"))
        .await;
    // With TLS 1.3 the client sees it at its first read.
    let refused = match stream {
        Err(_) => true,
        Ok(mut stream) => {
            let request = stream
                .write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
                .await;
            request.is_err() || stream.read_u8().await.is_err()
        }
    };
    assert!(refused);
    server.stop().await;
}

#[tokio::test]
async fn old_tls_is_refused() {
    let server = server().await;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(server.authority.root.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let old = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    assert!(server.stream(old).await.is_err());
    server.stop().await;
}

#[derive(Debug, Default)]
struct Exporters(Mutex<Vec<Option<[u8; 32]>>>);

impl master_listener::Extensions for Exporters {
    fn claims(&self, path: &str) -> bool {
        path == "/attest/x"
    }

    fn in_force(&self, _: &str, _: &str) -> BoxFuture<'static, bool> {
        Box::pin(std::future::ready(true))
    }

    fn handle(
        &self,
        _: http::Request<master_client::Body>,
        peer: master_listener::Peer,
        _: master_client::UserInfo,
    ) -> BoxFuture<'static, http::Response<master_client::Body>> {
        self.0.lock().unwrap().push(peer.exporter);
        Box::pin(async { http::Response::new(master_client::body("")) })
    }
}

#[tokio::test]
async fn both_ends_export_the_same_secret_and_each_connection_another() {
    let server = server().await;
    let exporters = Arc::new(Exporters::default());
    server.local.api.set_extensions(exporters.clone());
    let mut own = Vec::new();
    for _ in 0..2 {
        let stream = server
            .stream(server.client_tls(None, b"http/1.1"))
            .await
            .unwrap();
        let mine = stream
            .get_ref()
            .1
            .export_keying_material([0; 32], b"EXPORTER-Channel-Binding", Some(&[]))
            .unwrap();
        own.push(Some(mine));
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        let request = http::Request::get("/attest/x")
            .body(Full::new(Bytes::new()))
            .unwrap();
        sender.send_request(request).await.unwrap();
    }
    assert_eq!(*exporters.0.lock().unwrap(), own);
    assert_ne!(own[0], own[1]);
    server.stop().await;
}

#[tokio::test]
async fn where_everything_is_allowed_strangers_may_only_probe_and_join() {
    let options = Options {
        authorization: vec![Mode::AlwaysAllow],
        ..Options::default()
    };
    let open = Server::start(options, ServeOptions::default()).await;
    let roles = Server::start(Options::default(), ServeOptions::default()).await;
    for (mode, server) in [&open, &roles].into_iter().enumerate() {
        let joins = Arc::new(Exporters::default());
        server.local.api.set_extensions(joins);
        let reader = server.authority.issue("reader", &[], &[]);
        for (path, known, stranger) in [
            ("/api/v1/secrets", [200, 403], [401, 403]),
            ("/apis", [200, 200], [401, 403]),
            ("/healthzz", [404, 403], [401, 403]),
            ("/livez", [200, 200], [200, 200]),
            ("/readyz/ping", [200, 403], [200, 403]),
            ("/version", [200, 200], [200, 200]),
            ("/attest/x", [200, 200], [200, 200]),
        ] {
            for (identity, expected) in [(Some(&reader), known), (None, stranger)] {
                let mut client = server.connect(identity).await;
                let answer = client.ask(Method::GET, path, "").await;
                let about = format!("{path} {}", identity.is_some());
                assert_eq!(answer.0.as_u16(), expected[mode], "{about}");
            }
        }
    }
    let basic = http::Request::get("/api/v1/secrets").header("authorization", "Basic YTpi");
    let basic = basic.body(master_client::body("")).unwrap();
    let answer = open
        .local
        .api
        .handle(basic, master_listener::Peer::default())
        .await;
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    open.stop().await;
    roles.stop().await;
}

#[tokio::test]
async fn too_many_requests_get_429_with_retry_after() {
    let options = Options {
        watches: 32,
        authorization: vec![Mode::AlwaysAllow],
        ..Options::default()
    };
    let server = Server::start(options, ServeOptions::default()).await;
    let identity = server.authority.issue("jane", &[], &[]);
    let mut jane = server.connect(Some(&identity)).await;
    let watch = "/api/v1/configmaps?watch=1";
    let first = jane.open(Method::GET, watch, "").await;
    let second = jane.open(Method::GET, watch, "").await;
    let third = jane.open(Method::GET, watch, "").await;
    assert_eq!(third.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(third.headers()["retry-after"], "1");
    drop((first, second));
    let again = async {
        while jane.open(Method::GET, watch, "").await.status() != StatusCode::OK {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, again)
        .await
        .expect("room comes back when watches end");
    server.stop().await;
}

#[tokio::test]
async fn nodes_watches_of_single_objects_leave_room_for_others() {
    let options = Options {
        watches: 8,
        authorization: vec![Mode::AlwaysAllow],
        ..Options::default()
    };
    let server = Server::start(options, ServeOptions::default()).await;
    let as_node = async |name: &str| {
        let user = format!("system:node:{name}");
        let identity = server.authority.issue(&user, &["system:nodes"], &[]);
        server.connect(Some(&identity)).await
    };
    let maps = "/api/v1/namespaces/default/configmaps?watch=1";
    let one = format!("{maps}&fieldSelector=metadata.name%3Dm");
    let mut open = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let mut node = as_node(name).await;
        open.push(node.open(Method::GET, &one, "").await);
        assert_eq!(open.last().unwrap().status(), StatusCode::OK, "{name}");
    }
    let mut last = as_node("e").await;
    let refused = last.open(Method::GET, &one, "").await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let all = last.open(Method::GET, "/api/v1/pods?watch=1", "").await;
    assert_eq!(all.status(), StatusCode::OK);
    drop((open, all));
    server.stop().await;
}

#[tokio::test]
async fn an_overloaded_server_answers_429_and_stays_healthy() {
    let options = Options {
        in_flight: 0,
        authorization: vec![Mode::AlwaysAllow],
        ..Options::default()
    };
    let full = Server::start(options, ServeOptions::default()).await;
    let mut reader = full
        .connect(Some(&full.authority.issue("reader", &[], &[])))
        .await;
    let refused = reader.open(Method::GET, "/api/v1/nodes", "").await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_eq!(
        reader.ask(Method::GET, "/livez", "").await.0,
        StatusCode::OK
    );
    let mut admin = full.connect(Some(&full.admin_identity())).await;
    assert_eq!(
        admin.ask(Method::GET, "/api/v1/nodes", "").await.0,
        StatusCode::OK,
        "a client that can repair it is admitted"
    );
    full.stop().await;
}

#[tokio::test]
async fn strangers_of_one_network_do_not_displace_identified_callers() {
    let connections = ConnectionLimits {
        strangers: 3,
        per_host: 3,
        per_block: 3,
        ..ConnectionLimits::default()
    };
    // None of these connections times out in this test.
    let limits = ServeOptions {
        connections,
        idle_stranger: PATIENCE * 10,
        ..ServeOptions::default()
    };
    let server = Server::start(Options::default(), limits).await;
    let mut admin = server.connect(Some(&server.admin_identity())).await;
    let mut watch = admin
        .open(Method::GET, "/api/v1/configmaps?watch=1", "")
        .await
        .into_body();
    let mut oldest = server
        .stream(server.client_tls(None, b"http/1.1"))
        .await
        .unwrap();
    let mut crowd = Vec::new();
    for _ in 0..20 {
        // Each new connection is answered, whatever the others hold.
        let mut stranger = server.connect(None).await;
        assert_eq!(
            stranger.ask(Method::GET, "/livez", "").await.0,
            StatusCode::OK
        );
        crowd.push(stranger);
    }
    let ended = tokio::time::timeout(PATIENCE, oldest.read(&mut [0; 1]))
        .await
        .expect("the oldest one is cut");
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    assert_eq!(
        admin.ask(Method::GET, "/api/v1/nodes", "").await.0,
        StatusCode::OK
    );
    let object = r#"{"metadata":{"name":"told"}}"#;
    let made = admin
        .ask(
            Method::POST,
            "/api/v1/namespaces/default/configmaps",
            object,
        )
        .await;
    assert_eq!(made.0, StatusCode::CREATED);
    let event = tokio::time::timeout(PATIENCE, watch.frame())
        .await
        .expect("the watch goes on");
    assert!(event.is_some_and(|frame| frame.is_ok()));
    server.stop().await;
}

#[tokio::test]
async fn an_idle_connection_ends_and_an_open_watch_does_not() {
    let short = Duration::from_millis(300);
    let limits = ServeOptions {
        idle: short,
        idle_stranger: short,
        ..ServeOptions::default()
    };
    let server = Server::start(Options::default(), limits).await;
    let admin = server.admin_identity();
    // Not a byte after the handshake, with either protocol, with and without a certificate.
    for identity in [None, Some(&admin)] {
        for protocol in [b"http/1.1".as_slice(), b"h2".as_slice(), b"".as_slice()] {
            let mut config = server.client_tls(identity, protocol);
            config
                .alpn_protocols
                .retain(|protocol| !protocol.is_empty());
            let mut silent = server.stream(config).await.unwrap();
            let mut said = Vec::new();
            let ended = tokio::time::timeout(PATIENCE, silent.read_to_end(&mut said)).await;
            assert!(
                ended.is_ok(),
                "{:?}: it stays open",
                String::from_utf8_lossy(protocol)
            );
        }
        // An HTTP/2 client that answers every ping.
        let stream = server
            .stream(server.client_tls(identity, b"h2"))
            .await
            .unwrap();
        let handshake = hyper::client::conn::http2::handshake::<_, _, Full<Bytes>>;
        let (_sender, connection) =
            handshake(hyper_util::rt::TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
        let ended = tokio::time::timeout(PATIENCE, connection).await;
        assert!(ended.is_ok(), "an idle HTTP/2 connection stays open");
    }
    let mut watcher = server.connect(Some(&admin)).await;
    let mut watch = watcher
        .open(Method::GET, "/api/v1/configmaps?watch=1", "")
        .await
        .into_body();
    let quiet = tokio::time::timeout(short * 4, watch.frame()).await;
    assert!(quiet.is_err(), "an open watch is cut: {quiet:?}");
    assert_eq!(
        watcher.ask(Method::GET, "/api/v1/nodes", "").await.0,
        StatusCode::OK
    );
    server.stop().await;
}

/// An HTTP/2 client controls the flow of each answer, and this one never reads; its pings and its
/// certificate do not help it.
#[tokio::test]
async fn a_connection_whose_client_takes_nothing_of_an_answer_ends() {
    let limits = ServeOptions {
        unread: Duration::from_millis(300),
        ..ServeOptions::default()
    };
    assert!(
        limits.idle > PATIENCE && limits.write > PATIENCE,
        "what ends in time ends by this limit"
    );
    let server = Server::start(Options::default(), limits).await;
    let admin = server.admin_identity();
    let stream = server
        .stream(server.client_tls(Some(&admin), b"h2"))
        .await
        .unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
            .timer(hyper_util::rt::TokioTimer::new())
            .initial_stream_window_size(0)
            .keep_alive_interval(Duration::from_millis(50))
            .handshake::<_, Full<Bytes>>(TokioIo::new(stream))
            .await
            .unwrap();
    let ended = tokio::spawn(connection);
    let request = http::Request::get("https://127.0.0.1/api/v1/nodes").body(Full::default());
    let answer = sender.send_request(request.unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let ended = tokio::time::timeout(PATIENCE, ended).await;
    assert!(ended.is_ok(), "an answer that is not taken holds it open");
    server.stop().await;
}

#[tokio::test]
async fn headers_without_end_and_silent_clients_are_dropped() {
    // Two servers: with the short time limit, no handshake is sure to complete on a busy machine.
    let hasty = ServeOptions {
        handshake: Duration::from_millis(300),
        ..ServeOptions::default()
    };
    let hasty = Server::start(Options::default(), hasty).await;
    let mut silent = tokio::net::TcpStream::connect(hasty.address).await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, silent.read(&mut [0; 1]))
        .await
        .expect("no handshake, no connection");
    assert!(matches!(ended, Ok(0) | Err(_)));
    hasty.stop().await;
    // Far below the default, and still enough for a real header.
    let limits = ServeOptions {
        header: Duration::from_secs(3),
        ..ServeOptions::default()
    };
    assert!(
        ServeOptions::default().header > PATIENCE,
        "what ends in time ends by this limit"
    );
    let server = Server::start(Options::default(), limits).await;
    let mut slow = server
        .stream(server.client_tls(None, b"http/1.1"))
        .await
        .unwrap();
    slow.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, slow.read_to_end(&mut answer)).await;
    assert!(
        ended.is_ok(),
        "a header that does not end is not waited for"
    );
    let mut large = server
        .stream(server.client_tls(None, b"http/1.1"))
        .await
        .unwrap();
    let header = format!(
        "GET /livez HTTP/1.1\r\nhost: x\r\na: {}\r\n\r\n",
        "b".repeat(1 << 20)
    );
    let mut answer = Vec::new();
    let (mut read, mut write) = tokio::io::split(&mut large);
    let written = async {
        // The server may close the connection before everything is written.
        drop(write.write_all(header.as_bytes()).await);
    };
    let ((), read) = tokio::join!(
        written,
        tokio::time::timeout(PATIENCE, read.read_to_end(&mut answer))
    );
    assert!(read.is_ok(), "the connection ends");
    assert!(
        !answer.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    let mut admin = server.connect(Some(&server.admin_identity())).await;
    assert_eq!(
        admin.ask(Method::GET, "/livez", "").await.0,
        StatusCode::OK,
        "the server lives on"
    );
    server.stop().await;
}

#[tokio::test]
async fn shutdown_lets_requests_finish_and_ends_watches() {
    let server = server().await;
    let mut admin = server.connect(Some(&server.admin_identity())).await;
    let watch = admin
        .open(Method::GET, "/api/v1/configmaps?watch=1", "")
        .await;
    let task = server.task;
    server.shutdown.cancel();
    let body = tokio::time::timeout(PATIENCE, watch.into_body().collect())
        .await
        .expect("the watch ends");
    assert!(body.is_ok(), "in order, not cut");
    tokio::time::timeout(PATIENCE, task)
        .await
        .expect("serve returns")
        .unwrap();
}

const PODS_OF_LOGS: &str = "/api/v1/namespaces/default/pods";

/// Log options, with the code and text of the refusal.
const REFUSED_LOGS: &[(&str, u16, &str)] = &[
    (
        "two/log",
        400,
        "a container name must be specified for pod two, choose one of: [a b]",
    ),
    (
        "two/log?container=c",
        400,
        "container c is not valid for pod two",
    ),
    ("unbound/log", 400, "does not have a host assigned"),
    ("lost/log", 404, "nodes \"nowhere\" not found"),
    ("one/log?tailLines=x", 422, "tailLines"),
    ("one/log?limitBytes=0", 422, "limitBytes"),
    ("one/log?sinceTime=%26container%3Db", 400, "sinceTime"),
];

/// A node that can be dialled, and pods of one container, of two, without a node, and with one that
/// is not there.
async fn a_node_and_four_pods(admin: &mut crate::common::Connection) {
    let node = json!({"metadata": {"name": "n1"}, "status": {
        "addresses": [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "10.0.0.9"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10251}},
    }});
    admin
        .ask(Method::POST, "/api/v1/nodes", &node.to_string())
        .await;
    let two = [
        json!({"name": "a", "image": "x:1"}),
        json!({"name": "b", "image": "x:1"}),
    ];
    for (name, spec) in [
        ("one", json!({"nodeName": "n1", "containers": two[..1]})),
        ("two", json!({"nodeName": "n1", "containers": two})),
        ("unbound", json!({"containers": two[..1]})),
        (
            "lost",
            json!({"nodeName": "nowhere", "containers": two[..1]}),
        ),
    ] {
        let pod = json!({"metadata": {"name": name}, "spec": spec}).to_string();
        assert_eq!(
            admin.ask(Method::POST, PODS_OF_LOGS, &pod).await.0,
            StatusCode::CREATED
        );
    }
}

#[tokio::test]
async fn log_requests_reach_the_pods_node_with_their_options() {
    let server = server().await;
    let kubelet = Kubelet::default();
    server.local.api.set_node_dialer(Arc::new(kubelet.clone()));
    let mut admin = server.connect(Some(&server.admin_identity())).await;
    a_node_and_four_pods(&mut admin).await;
    let pods = PODS_OF_LOGS;
    let path = format!("{pods}/one/log?follow=true&tailLines=5&timestamps=true&pretty=1");
    let log = admin.open(Method::GET, &path, "").await;
    assert_eq!(
        (log.status(), &log.headers()["content-type"]),
        (
            StatusCode::OK,
            &http::HeaderValue::from_static("text/plain")
        )
    );
    assert_eq!(
        log.into_body().collect().await.unwrap().to_bytes(),
        "line 1\nline 2\n"
    );
    let asked = kubelet.asked.lock().unwrap().pop().unwrap();
    assert_eq!(
        asked.0,
        NodeTarget {
            name: "n1".to_owned(),
            address: [10, 0, 0, 9].into(),
            port: 10251
        }
    );
    assert_eq!(
        asked.1,
        "/containerLogs/default/one/a?follow=true&tailLines=5&timestamps=true"
    );
    for (path, code, text) in REFUSED_LOGS {
        let (status, error) = admin.ask(Method::GET, &format!("{pods}/{path}"), "").await;
        assert_eq!(status.as_u16(), *code, "{path}: {error}");
        assert!(
            error["message"].as_str().unwrap().contains(text),
            "{path}: {error}"
        );
    }
    server.stop().await;
}
