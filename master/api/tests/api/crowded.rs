//! One caller that takes all it can get: others are still served, and nodes before all.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use bytes::Bytes;
use config_kube::identity::NODES_GROUP;
use futures_util::FutureExt as _;
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use master_api::Options;
use master_auth::Mode;
use master_client::{Body, BodyError, UserInfo};
use master_listener::Peer;
use serde_json::{Value, json};
use std::future::Future;
use tokio::sync::mpsc;

/// What every authenticated user may create.
pub(crate) const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
pub(crate) const REVIEW: &str =
    r#"{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}"#;

/// A caller over the network.
pub(crate) fn peer() -> Peer {
    let mut peer = Peer::default();
    peer.remote = Some(([127, 0, 0, 1], 40_000).into());
    peer
}

/// A body whose pieces the test sends.
pub(crate) fn slow() -> (mpsc::UnboundedSender<&'static str>, Body) {
    let (sender, mut pieces) = mpsc::unbounded_channel::<&'static str>();
    let frames = futures_util::stream::poll_fn(move |context| {
        let piece = pieces.poll_recv(context);
        piece.map(|piece| {
            piece.map(|piece| Ok::<_, BodyError>(Frame::data(Bytes::from_static(piece.as_bytes()))))
        })
    });
    (sender, StreamBody::new(frames).boxed_unsync())
}

fn post<'a>(
    local: &'a Local,
    user: &UserInfo,
    body: Body,
) -> impl Future<Output = Response<Body>> + use<'a> {
    let request = Request::builder()
        .method(Method::POST)
        .uri(REVIEWS)
        .header("content-type", "application/json")
        .body(body)
        .unwrap();
    local.api.handle_as(request, user.clone(), peer())
}

#[tokio::test]
async fn a_slow_sender_delays_no_other_caller() {
    let options = Options {
        in_flight_mutating: 4,
        ..Options::default()
    };
    let local = Local::with(options).await;
    let pod = UserInfo::authenticated("system:serviceaccount:default:default", [""; 0]);
    let mut open = Vec::new();
    for _ in 0..32 {
        let (sender, body) = slow();
        sender.send("{").unwrap();
        let mut answer = Box::pin(post(&local, &pod, body));
        // The request without the rest of its body.
        for _ in 0..64 {
            assert!(answer.as_mut().now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        open.push((sender, answer));
    }
    let node = UserInfo::authenticated("system:node:n", [NODES_GROUP]);
    for user in [&node, &UserInfo::authenticated("jane", [""; 0]), &pod] {
        let answer = post(&local, user, master_client::body(REVIEW)).await;
        assert_eq!(answer.status(), StatusCode::CREATED, "{}", user.name);
    }
    // A slow body is answered like any other.
    let (sender, answer) = open.swap_remove(0);
    sender.send(&REVIEW[1..]).unwrap();
    drop(sender);
    assert_eq!(answer.await.status(), StatusCode::CREATED);
}

#[tokio::test]
async fn one_caller_takes_watches_until_it_is_refused_and_leaves_others_theirs() {
    let node = |name: &str| UserInfo::authenticated(&format!("system:node:{name}"), [NODES_GROUP]);
    let token = UserInfo::authenticated("system:serviceaccount:a:taker", [""; 0]);
    for greedy in [node("n1"), token, UserInfo::authenticated("joe", [""; 0])] {
        let options = Options {
            watches: 8,
            authorization: vec![Mode::AlwaysAllow],
            ..Options::default()
        };
        let local = Local::with(options).await;
        let watch = async |user: &UserInfo, path: &str| {
            let request = Request::get(path).body(master_client::body("")).unwrap();
            local.api.handle_as(request, user.clone(), peer()).await
        };
        let mut open = Vec::new();
        while open.len() < 64 {
            let answer = watch(&greedy, "/api/v1/services?watch=1").await;
            if answer.status() == StatusCode::TOO_MANY_REQUESTS {
                break;
            }
            assert_eq!(answer.status(), StatusCode::OK);
            open.push(answer);
        }
        assert!((1..=8).contains(&open.len()), "{}", open.len());
        for (user, path) in [
            (
                node("n2"),
                "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn2",
            ),
            (
                UserInfo::authenticated("jane", [""; 0]),
                "/api/v1/pods?watch=1",
            ),
            (UserInfo::admin("admin"), "/api/v1/pods?watch=1"),
        ] {
            let answer = watch(&user, path).await;
            let by = (&greedy.name, &user.name);
            assert_eq!(answer.status(), StatusCode::OK, "{by:?}");
            open.push(answer);
        }
    }
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn make_map(local: &Local, name: &str, bytes: usize) {
    let map = json!({"metadata": {"name": name}, "data": {"a": "x".repeat(bytes)}});
    let (status, answer) = local.admin_ask(Method::POST, MAPS, &map).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
}

/// What a watch begins with is kept until its client has read it.
#[tokio::test]
async fn watches_that_nobody_reads_hold_their_callers_part_of_the_memory() {
    let options = Options {
        authorization: vec![Mode::AlwaysAllow],
        ..Options::default()
    };
    let local = Local::with(options).await;
    for name in ["a", "b", "c"] {
        make_map(&local, name, 900_000).await;
    }
    let watch = async |name: &str| {
        let request = Request::get(format!("{MAPS}?watch=1"));
        let request = request.body(master_client::body("")).unwrap();
        let user = UserInfo::authenticated(name, [""; 0]);
        local.api.handle_as(request, user, peer()).await
    };
    let mut open = Vec::new();
    while open.len() < 64 {
        let answer = watch("joe").await;
        if answer.status() == StatusCode::TOO_MANY_REQUESTS {
            break;
        }
        assert_eq!(answer.status(), StatusCode::OK);
        open.push(answer.into_body());
    }
    assert!((2..=12).contains(&open.len()), "{}", open.len());
    assert_eq!(watch("jane").await.status(), StatusCode::OK);
    let (body, mut read) = (&mut open[0], 0);
    while let Some(Some(frame)) = body.frame().now_or_never() {
        read += frame.unwrap().into_data().unwrap().len();
    }
    assert!(read > 2_700_000, "{read}");
    assert_eq!(watch("joe").await.status(), StatusCode::OK, "it is read");
}

/// A watch that fell behind makes a copy of its own of what it sends.
#[tokio::test]
async fn watches_that_fell_behind_hold_their_callers_part_for_what_is_large() {
    let options = Options {
        authorization: vec![Mode::AlwaysAllow],
        ..Options::default()
    };
    let local = Local::with(options).await;
    let (_, list) = local.admin_ask(Method::GET, MAPS, &Value::Null).await;
    let begin = list["metadata"]["resourceVersion"].as_str().unwrap();
    make_map(&local, "large", 900_000).await;
    for number in 0..70 {
        make_map(&local, &format!("m{number}"), 1).await;
    }
    let joe = UserInfo::authenticated("joe", [""; 0]);
    let watch = async |selector: &str| {
        let path = format!("{MAPS}?watch=1&resourceVersion={begin}{selector}");
        let request = Request::get(path).body(master_client::body("")).unwrap();
        let answer = local.api.handle_as(request, joe.clone(), peer()).await;
        let mut body = answer.into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        let is_refused = String::from_utf8_lossy(&first).contains("\"ERROR\"");
        (body, is_refused)
    };
    let (mut open, mut refused) = (Vec::new(), 0);
    for _ in 0..40 {
        let (body, is_refused) = watch("").await;
        refused += usize::from(is_refused);
        open.push(body);
    }
    assert!((1..39).contains(&refused), "{refused}");
    let (_, is_refused) = watch("&fieldSelector=metadata.name%21%3Dlarge").await;
    assert!(!is_refused, "it does not select the large object");
}
