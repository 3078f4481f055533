//! Clients that read no answer: what they may hold in the server's memory.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::{Identity, Server};
use crate::crowded::{REVIEW, REVIEWS};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use config_limits::Rate;
use futures_util::future::join_all;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use master_api::Options;
use master_client::{Body, BoxFuture, UserInfo, body};
use master_listener::{Extensions, Peer, ServeOptions, UnauthenticatedLimits};
use std::sync::Arc;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// An HTTP/2 connection whose client reads no body.
async fn unreading(server: &Server, identity: Option<&Identity>) -> SendRequest<Full<Bytes>> {
    let stream = server.stream(server.client_tls(identity, b"h2"));
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(0)
        .initial_max_send_streams(250)
        .handshake(TokioIo::new(stream.await.unwrap()))
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

/// Sends as many requests at once; the answers' bodies are not read.
async fn answers(
    client: &SendRequest<Full<Bytes>>,
    count: usize,
    path: &str,
    token: Option<&str>,
) -> Vec<Response<Incoming>> {
    let request = || {
        let mut request = Request::get(format!("https://127.0.0.1{path}"));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request.body(Full::default()).unwrap()
    };
    all_answers(client, count, request).await
}

async fn all_answers(
    client: &SendRequest<Full<Bytes>>,
    count: usize,
    request: impl Fn() -> Request<Full<Bytes>>,
) -> Vec<Response<Incoming>> {
    let send = |_| {
        let (mut client, request) = (client.clone(), request());
        async move { client.send_request(request).await.unwrap() }
    };
    let all = join_all((0..count).map(send));
    tokio::time::timeout(PATIENCE, all)
        .await
        .expect("every request is answered")
}

fn size(answer: &Response<Incoming>) -> u64 {
    let length = answer.headers().get("content-length");
    length.map_or(0, |length| length.to_str().unwrap().parse().unwrap())
}

/// Refusals that repeat a path of 4,000 characters, each of which takes four bytes there; with and
/// without a token, which may turn out to be somebody's.
#[tokio::test]
async fn a_stranger_who_reads_no_refusal_holds_a_few_small_ones() {
    let limits = ServeOptions {
        // None of these connections times out in this test.
        unread_stranger: PATIENCE * 10,
        ..ServeOptions::default()
    };
    let most = limits.streams_stranger;
    let server = Server::start(Options::default(), limits).await;
    let path = format!("/{}", "\"".repeat(4000));
    for token in [None, Some("nonsense")] {
        let client = unreading(&server, None).await;
        let got = answers(&client, 250, &path, token).await;
        let held: Vec<u64> = got.iter().map(size).filter(|size| *size > 0).collect();
        assert_eq!(
            held.len(),
            most,
            "{token:?}: answers that wait for their reader"
        );
        assert!(held.iter().all(|size| *size < 2048), "{token:?}: {held:?}");
        for answer in got {
            let (expected, size) = match (token, size(&answer)) {
                (Some(_), size) => (StatusCode::UNAUTHORIZED, size),
                (None, 0) => (StatusCode::TOO_MANY_REQUESTS, 0),
                (None, size) => (StatusCode::FORBIDDEN, size),
            };
            assert_eq!(answer.status(), expected, "{token:?}, {size} bytes");
        }
    }
    // One that reads is answered as often as it asks.
    let mut reader = server.connect(None).await;
    for _ in 0..3 * most {
        let (status, refusal) = reader.ask(Method::GET, &path, "").await;
        assert_eq!(status, StatusCode::FORBIDDEN);
        assert!(refusal["message"].as_str().unwrap().contains('…'));
    }
    server.stop().await;
}

#[tokio::test]
async fn a_stranger_has_less_time_to_read() {
    let limits = ServeOptions {
        unread_stranger: Duration::from_millis(300),
        ..ServeOptions::default()
    };
    assert!(
        limits.unread > PATIENCE,
        "what ends in time ends by this limit"
    );
    let server = Server::start(Options::default(), limits).await;
    let client = unreading(&server, None).await;
    let mut answers = answers(&client, 1, "/version", None).await;
    let body = answers.remove(0).into_body();
    let ended = tokio::time::timeout(PATIENCE, body.collect()).await;
    assert!(
        ended.is_ok_and(|read| read.is_err()),
        "an unread answer ends"
    );
    // A known caller keeps its answer.
    let admin = server.admin_identity();
    let client = unreading(&server, Some(&admin)).await;
    let mut answers = self::answers(&client, 1, "/version", None).await;
    let body = answers.remove(0).into_body();
    let ended = tokio::time::timeout(Duration::from_secs(1), body.collect()).await;
    assert!(ended.is_err(), "a known caller has more time");
    server.stop().await;
}

/// A large document that all known callers may read.
const DOCUMENT: &str = "/openapi/v2";

/// A server of so many places, whose document is there: it is made at its first request, which
/// takes a while and holds a place meanwhile.
async fn with_document(in_flight: usize) -> Server {
    let options = Options {
        in_flight,
        ..Options::default()
    };
    let server = Server::start(options, ServeOptions::default()).await;
    let mut admin = server.connect(Some(&server.admin_identity())).await;
    let (status, _) = admin.ask(Method::GET, DOCUMENT, "").await;
    assert_eq!(status, StatusCode::OK);
    server
}

/// All who proved a name, by token or certificate, may read the documents: about a megabyte each.
#[tokio::test]
async fn unread_documents_hold_their_readers_places_and_nobody_elses() {
    let server = with_document(4).await;
    let pod = server
        .authority
        .issue("system:serviceaccount:a:b", &[], &[]);
    let client = unreading(&server, Some(&pod)).await;
    let held = answers(&client, 8, DOCUMENT, None).await;
    let of = |status: StatusCode| held.iter().filter(|one| one.status() == status).count();
    assert_eq!(
        (of(StatusCode::OK), of(StatusCode::TOO_MANY_REQUESTS)),
        (1, 7),
        "a quarter of four places"
    );
    let small = answers(&client, 1, "/version", None).await;
    assert_eq!(
        small[0].status(),
        StatusCode::OK,
        "what is small takes no place"
    );
    for (name, groups) in [("system:node:n1", &["system:nodes"][..]), ("jane", &[])] {
        let other = server.authority.issue(name, groups, &[]);
        let mut other = server.connect(Some(&other)).await;
        let (status, _) = other.ask(Method::GET, DOCUMENT, "").await;
        assert_eq!(status, StatusCode::OK, "{name}");
    }
    drop((held, client));
    let again = async {
        let mut pod = server.connect(Some(&pod)).await;
        while pod.open(Method::GET, DOCUMENT, "").await.status() != StatusCode::OK {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, again)
        .await
        .expect("places come back when the reader is gone");
    server.stop().await;
}

/// A rooted worker with the tokens of its pods, and its own certificate: what is small waits for
/// its reader without a place, so that nobody's answers keep others from theirs.
#[tokio::test]
async fn accounts_of_a_namespace_and_a_node_that_read_nothing_leave_places_to_all_others() {
    let options = Options {
        in_flight: 16,
        in_flight_mutating: 8,
        ..Options::default()
    };
    let server = Server::start(options, ServeOptions::default()).await;
    let review = || {
        Request::post(format!("https://127.0.0.1{REVIEWS}"))
            .header("content-type", "application/json")
            .body(Full::from(REVIEW))
            .unwrap()
    };
    let mut held = Vec::new();
    for taker in 0..7 {
        let taker = match taker {
            6 => server
                .authority
                .issue("system:node:n1", &["system:nodes"], &[]),
            _ => server
                .authority
                .issue(&format!("system:serviceaccount:a:{taker}"), &[], &[]),
        };
        let client = unreading(&server, Some(&taker)).await;
        held.extend(all_answers(&client, 20, review).await);
        held.extend(answers(&client, 20, "/api", None).await);
    }
    for status in [StatusCode::OK, StatusCode::CREATED] {
        assert!(held.iter().any(|answer| answer.status() == status));
    }
    let node = server
        .authority
        .issue("system:node:n2", &["system:nodes"], &[]);
    let mut node = server.connect(Some(&node)).await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = r#"{"metadata":{"name":"n2"},"spec":{"holderIdentity":"n2"}}"#;
    let jane = server.authority.issue("jane", &[], &[]);
    let mut jane = server.connect(Some(&jane)).await;
    for _ in 0..3 {
        let (status, answer) = jane.ask(Method::GET, "/api", "").await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        let (status, answer) = jane.ask(Method::POST, REVIEWS, REVIEW).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
    }
    let (status, answer) = node.ask(Method::POST, leases, lease).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    for _ in 0..3 {
        let path = format!("{leases}/n2");
        let (status, answer) = node.ask(Method::PUT, &path, lease).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
    server.stop().await;
}

/// What is large holds a place until it was read: those of one host take no more than half of what
/// all hosts have for it, whatever the number of its namespaces.
#[tokio::test]
async fn unread_documents_of_many_namespaces_leave_places_to_all_others() {
    let server = with_document(16).await;
    let mut held = Vec::new();
    for taker in 0..7 {
        let taker = match taker {
            6 => server
                .authority
                .issue("system:node:n1", &["system:nodes"], &[]),
            _ => server
                .authority
                .issue(&format!("system:serviceaccount:{taker}:a"), &[], &[]),
        };
        let client = unreading(&server, Some(&taker)).await;
        held.extend(answers(&client, 20, DOCUMENT, None).await);
    }
    assert!(held.iter().any(|answer| answer.status() == StatusCode::OK));
    for (name, groups) in [("jane", &[][..]), ("system:node:n2", &["system:nodes"])] {
        let other = server.authority.issue(name, groups, &[]);
        let mut other = server.connect(Some(&other)).await;
        let (status, answer) = other.ask(Method::GET, "/api", "").await;
        assert_eq!(status, StatusCode::OK, "{name}: {answer}");
    }
    let node = server
        .authority
        .issue("system:node:n2", &["system:nodes"], &[]);
    let mut node = server.connect(Some(&node)).await;
    let (status, _) = node.ask(Method::GET, DOCUMENT, "").await;
    assert_eq!(status, StatusCode::OK, "a large one of another node");
    server.stop().await;
}

/// Limits by which an unauthenticated connection has 20 free requests, and its host 10 more that do
/// not come back within a test.
fn thirty_requests() -> ServeOptions {
    ServeOptions {
        unauthenticated: UnauthenticatedLimits {
            free: 20,
            host: Rate {
                burst: 10,
                every: PATIENCE * 10,
            },
            ..UnauthenticatedLimits::default()
        },
        ..ServeOptions::default()
    }
}

/// Tokens that look like the cluster's own: each costs a look at its signature.
#[tokio::test]
async fn forged_tokens_are_looked_at_a_bounded_number_of_times() {
    let limits = thirty_requests();
    let closes_after = limits.unauthenticated.refusals;
    let server = Server::start(Options::default(), limits).await;
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let token = format!(
        "{}.{}.{}",
        part(r#"{"alg":"ES256"}"#),
        part(r#"{"iss":"kubernetes/serviceaccount"}"#),
        part(&"x".repeat(64))
    );
    let mut flood = unreading(&server, None).await;
    let (mut looked, mut refused) = (0, 0);
    loop {
        let request = Request::get("https://127.0.0.1/version")
            .header("authorization", format!("Bearer {token}"));
        let request = request.body(Full::default()).unwrap();
        let answer = tokio::time::timeout(PATIENCE, flood.send_request(request)).await;
        match answer
            .expect("it is answered or closed")
            .map(|one| one.status())
        {
            Ok(StatusCode::UNAUTHORIZED) => looked += 1,
            Ok(StatusCode::TOO_MANY_REQUESTS) => refused += 1,
            Ok(other) => panic!("{other}"),
            Err(_closed) => break,
        }
        assert!(looked + refused < 1000, "it is closed some time");
    }
    assert_eq!(looked, 30, "its own and its network's");
    assert!(refused > closes_after, "{refused}");
    // Others of the same address have their own.
    let mut other = server.connect(None).await;
    for _ in 0..20 {
        let answer = other.open(Method::GET, "/livez", "").await;
        assert_eq!(answer.status(), StatusCode::OK);
    }
    let mut admin = server.connect(Some(&server.admin_identity())).await;
    for _ in 0..100 {
        let (status, _) = admin.ask(Method::GET, "/version", "").await;
        assert_eq!(status, StatusCode::OK);
    }
    server.stop().await;
}

/// A service that limits by itself what is posted to one of its paths.
#[derive(Debug)]
struct Joins;

impl Extensions for Joins {
    fn claims(&self, path: &str) -> bool {
        path.starts_with("/attest/")
    }

    fn limits_itself(&self, method: &Method, path: &str) -> bool {
        method == Method::POST && path == "/attest/own"
    }

    fn in_force(&self, _: &str, _: &str) -> BoxFuture<'static, bool> {
        Box::pin(std::future::ready(true))
    }

    fn handle(&self, _: Request<Body>, _: Peer, _: UserInfo) -> BoxFuture<'static, Response<Body>> {
        Box::pin(std::future::ready(Response::new(body(""))))
    }
}

/// Paths and methods at which such a service has nothing.
#[tokio::test]
async fn a_service_is_asked_for_nothing_a_bounded_number_of_times() {
    let limits = thirty_requests();
    let server = Server::start(Options::default(), limits).await;
    server.local.api.set_extensions(Arc::new(Joins));
    let mut stranger = server.connect(None).await;
    let mut answered = 0;
    for number in 0..60 {
        let (method, path) = match number % 2 {
            0 => (Method::GET, "/attest/own"),
            _ => (Method::POST, "/attest/nothing"),
        };
        match stranger.ask(method, path, "").await.0 {
            StatusCode::OK => answered += 1,
            status => assert_eq!(status, StatusCode::TOO_MANY_REQUESTS),
        }
        let (status, _) = stranger.ask(Method::POST, "/attest/own", "").await;
        assert_eq!(status, StatusCode::OK, "what it limits itself");
    }
    assert_eq!(answered, 30, "its own and its network's");
    server.stop().await;
}
