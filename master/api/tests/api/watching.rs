//! Watches: no event missing, none twice, ended when they must.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use config_kube::k8s_openapi::api::core::v1::ConfigMap;
use futures_util::FutureExt as _;
use http::Method;
use http_body_util::BodyExt;
use master_api::Options;
use master_client::{BoxFuture, Client, ListParams, UserInfo, WatchEvent, Watcher};
use master_listener::{DenyList, Peer};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PATIENCE: Duration = Duration::from_secs(120);

async fn next(watcher: &mut Watcher<ConfigMap>) -> (&'static str, String) {
    let event = tokio::time::timeout(PATIENCE, watcher.next())
        .await
        .expect("an event comes")
        .unwrap()
        .unwrap();
    let name = |object: &ConfigMap| object.metadata.name.clone().unwrap_or_default();
    match &event {
        WatchEvent::Added(object) => ("ADDED", name(object)),
        WatchEvent::Modified(object) => ("MODIFIED", name(object)),
        WatchEvent::Deleted(gone) => ("DELETED", gone.key.name.clone()),
        WatchEvent::Bookmark(version) => ("BOOKMARK", version.clone()),
    }
}

fn owned(kind: &'static str, name: &str) -> (&'static str, String) {
    (kind, name.to_owned())
}

/// A watch from now on; the bookmark after its (absent) initial events has been read.
async fn open(client: &Client, namespace: Option<&str>, params: &ListParams) -> Watcher<ConfigMap> {
    let mut watcher = client
        .watch::<ConfigMap>(namespace, params, "")
        .await
        .unwrap();
    assert_eq!(next(&mut watcher).await.0, "BOOKMARK");
    watcher
}

#[tokio::test]
async fn a_watch_from_a_list_returns_later_changes() {
    after_a_list(&Local::new().await).await;
}

#[tokio::test]
async fn a_server_whose_store_is_elsewhere_answers_from_a_copy() {
    after_a_list(&Local::replicated(Options::default()).await).await;
}

/// A write can be read at once, and a watch continues where a list ended.
async fn after_a_list(server: &Local) {
    let client = server.admin();
    server
        .admin_ask(Method::POST, MAPS, &json!({"metadata": {"name": "before"}}))
        .await;
    let list = client
        .list::<ConfigMap>(None, &ListParams::default())
        .await
        .unwrap();
    server
        .admin_ask(Method::POST, MAPS, &json!({"metadata": {"name": "a"}}))
        .await;
    let mut watcher = client
        .watch::<ConfigMap>(None, &ListParams::default(), &list.resource_version)
        .await
        .unwrap();
    assert_eq!(next(&mut watcher).await, owned("ADDED", "a"));
    server
        .admin_ask(
            Method::PATCH,
            &format!("{MAPS}/a"),
            &json!({"data": {"x": "1"}}),
        )
        .await;
    assert_eq!(next(&mut watcher).await, owned("MODIFIED", "a"));
    server
        .admin_ask(Method::DELETE, &format!("{MAPS}/a"), &Value::Null)
        .await;
    assert_eq!(next(&mut watcher).await, owned("DELETED", "a"));
}

#[tokio::test]
async fn an_object_that_begins_to_match_is_added_and_one_that_stops_is_deleted() {
    let server = Local::new().await;
    let params = ListParams {
        labels: Some("on=1".to_owned()),
        ..ListParams::default()
    };
    let mut watcher = open(&server.admin(), Some("default"), &params).await;
    server
        .admin_ask(Method::POST, MAPS, &json!({"metadata": {"name": "a"}}))
        .await;
    let label = |value: Value| json!({"metadata": {"labels": {"on": value}}});
    server
        .admin_ask(Method::PATCH, &format!("{MAPS}/a"), &label(json!("1")))
        .await;
    assert_eq!(next(&mut watcher).await, owned("ADDED", "a"));
    server
        .admin_ask(
            Method::PATCH,
            &format!("{MAPS}/a"),
            &json!({"data": {"x": "1"}}),
        )
        .await;
    assert_eq!(next(&mut watcher).await, owned("MODIFIED", "a"));
    server
        .admin_ask(Method::PATCH, &format!("{MAPS}/a"), &label(Value::Null))
        .await;
    assert_eq!(next(&mut watcher).await, owned("DELETED", "a"));
}

#[tokio::test]
async fn initial_events_end_with_a_marked_bookmark() {
    let server = Local::new().await;
    server
        .admin_ask(Method::POST, MAPS, &json!({"metadata": {"name": "a"}}))
        .await;
    let path = format!(
        "{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1"
    );
    let (_, _, bytes) = server
        .send(&UserInfo::admin("a"), Method::GET, &path, &[], "")
        .await;
    let events: Vec<Value> = String::from_utf8(bytes.to_vec())
        .unwrap()
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(
        (&events[0]["type"], &events[0]["object"]["metadata"]["name"]),
        (&json!("ADDED"), &json!("a"))
    );
    assert_eq!(events[1]["type"], "BOOKMARK");
    assert_eq!(
        events[1]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    let without = format!("{MAPS}?watch=1&sendInitialEvents=true");
    let (status, _) = server.admin_ask(Method::GET, &without, &Value::Null).await;
    assert_eq!(status.as_u16(), 422);
}

#[tokio::test]
async fn a_list_that_is_streamed_is_never_a_table() {
    let server = Local::new().await;
    let map = json!({"metadata": {"name": "a"}});
    server.admin_ask(Method::POST, MAPS, &map).await;
    let streamed =
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let either = format!("{table},application/json");
    let first = async |options: &str, accept: &str| {
        let path = format!("{MAPS}?watch=1&timeoutSeconds=1&{options}");
        let accept = [("accept", accept)];
        let admin = UserInfo::admin("a");
        let (status, _, bytes) = server.send(&admin, Method::GET, &path, &accept, "").await;
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let line: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        (status.as_u16(), line["object"]["kind"].clone())
    };
    assert_eq!(first(streamed, table).await.0, 406);
    assert_eq!(first(streamed, &either).await, (200, json!("ConfigMap")));
    // A watch of changes may have rows.
    assert_eq!(
        first("resourceVersion=0", &either).await,
        (200, json!("Table"))
    );
}

#[tokio::test]
async fn a_watch_with_much_to_send_lets_other_tasks_run_in_between() {
    let server = Local::new().await;
    let (_, list) = server.admin_ask(Method::GET, MAPS, &Value::Null).await;
    let begin = list["metadata"]["resourceVersion"].as_str().unwrap();
    for number in 0..40 {
        let map = json!({"metadata": {"name": format!("m{number}")}});
        server.admin_ask(Method::POST, MAPS, &map).await;
    }
    let path = format!("{MAPS}?watch=1&resourceVersion={begin}&timeoutSeconds=1");
    let request = http::Request::get(path).body(master_client::body(""));
    let admin = UserInfo::admin("a");
    let answer = server
        .api
        .handle_as(request.unwrap(), admin, Peer::default());
    let mut body = answer.await.into_body();
    let mut frame = Box::pin(body.frame());
    // All of it could be made at once.
    assert!(frame.as_mut().now_or_never().is_none());
    let first = frame.await.unwrap().unwrap().into_data().unwrap();
    let rest = body.collect().await.unwrap().to_bytes();
    let lines = String::from_utf8([&first[..], &rest[..]].concat()).unwrap();
    let added = lines.lines().filter(|line| line.contains("\"ADDED\""));
    assert_eq!(added.count(), 40, "{lines}");
}

#[tokio::test]
async fn a_watch_from_the_forgotten_past_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let options = master_store::Options {
        history_events: 3,
        ..master_store::Options::default()
    };
    let store = Arc::new(master_store::EmbeddedStore::open_with(folder.path(), &options).unwrap());
    let api = master_api::ApiServer::new(store, Options::default());
    api.prepare().await.unwrap();
    let client = api.client(UserInfo::admin("a"));
    let old = client
        .list::<ConfigMap>(None, &ListParams::default())
        .await
        .unwrap()
        .resource_version;
    for number in 0..6 {
        let object = json!({"metadata": {"name": format!("m{number}"), "namespace": "default"}});
        client
            .create::<ConfigMap>(&serde_json::from_value(object).unwrap())
            .await
            .unwrap();
    }
    let mut watcher = client
        .watch::<ConfigMap>(None, &ListParams::default(), &old)
        .await
        .unwrap();
    let error = watcher.next().await.unwrap_err();
    assert!(error.is_expired() && error.code == 410, "{error:?}");
}

#[derive(Debug)]
struct Switch(AtomicBool, tokio::sync::watch::Sender<u64>);

impl DenyList for Switch {
    fn denied(&self, user: &UserInfo, _: &Peer) -> Option<String> {
        (self.0.load(Ordering::Acquire) && user.name == "bad")
            .then(|| "machine is untrusted".to_owned())
    }

    fn changed(&self) -> tokio::sync::watch::Receiver<u64> {
        self.1.subscribe()
    }
}

#[tokio::test]
async fn the_deny_list_cuts_requests_and_open_watches_of_the_denied_only() {
    let server = Local::new().await;
    let list = Arc::new(Switch(
        AtomicBool::new(false),
        tokio::sync::watch::Sender::new(0),
    ));
    assert!(server.api.set_deny_list(list.clone()));
    let (bad, good) = (
        server.api.client(UserInfo::admin("bad")),
        server.api.client(UserInfo::admin("good")),
    );
    let mut cut = open(&bad, None, &ListParams::default()).await;
    let mut kept = open(&good, None, &ListParams::default()).await;
    list.0.store(true, Ordering::Release);
    list.1.send_replace(1);
    let ended = tokio::time::timeout(PATIENCE, cut.next())
        .await
        .expect("the watch is cut")
        .unwrap();
    assert!(ended.is_none());
    assert_eq!(
        bad.list::<ConfigMap>(None, &ListParams::default())
            .await
            .unwrap_err()
            .code,
        401
    );
    server
        .admin_ask(Method::POST, MAPS, &json!({"metadata": {"name": "a"}}))
        .await;
    assert_eq!(next(&mut kept).await, owned("ADDED", "a"));
}

#[tokio::test]
async fn draining_ends_watches_and_readiness() {
    let server = Local::new().await;
    let mut watcher = open(&server.admin(), None, &ListParams::default()).await;
    assert_eq!(
        server
            .admin_ask(Method::GET, "/readyz", &Value::Null)
            .await
            .0
            .as_u16(),
        200
    );
    server.api.drain();
    assert!(
        tokio::time::timeout(PATIENCE, watcher.next())
            .await
            .unwrap()
            .unwrap()
            .is_none()
    );
    assert_eq!(
        server
            .admin_ask(Method::GET, "/readyz", &Value::Null)
            .await
            .0
            .as_u16(),
        500
    );
    assert_eq!(
        server
            .admin_ask(Method::GET, "/livez", &Value::Null)
            .await
            .0
            .as_u16(),
        200
    );
}

/// Else a client that reads slowly, for which changes always wait, would keep a server from its
/// end.
#[tokio::test]
async fn a_watch_for_which_changes_wait_ends_with_the_server_too() {
    let server = Local::new().await;
    let (_, list) = server.admin_ask(Method::GET, MAPS, &Value::Null).await;
    let begin = list["metadata"]["resourceVersion"].as_str().unwrap();
    // Two of them are more than a watch takes at once.
    let large = "x".repeat(600_000);
    for number in 0..4 {
        let map = json!({"metadata": {"name": format!("m{number}")}, "data": {"a": large}});
        let (status, _) = server.admin_ask(Method::POST, MAPS, &map).await;
        assert_eq!(status.as_u16(), 201);
    }
    let path = format!("{MAPS}?watch=1&resourceVersion={begin}");
    let request = http::Request::get(path).body(master_client::body(""));
    let admin = UserInfo::admin("a");
    let answer = server
        .api
        .handle_as(request.unwrap(), admin, Peer::default());
    let mut body = answer.await.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    server.api.drain();
    let rest = tokio::time::timeout(PATIENCE, body.collect()).await;
    let rest = rest.expect("it ends").unwrap().to_bytes();
    let lines = String::from_utf8([&first[..], &rest[..]].concat()).unwrap();
    // What it had taken is sent whole.
    assert_eq!(lines.lines().count(), 2);
    assert!(lines.ends_with('\n'));
}

#[tokio::test]
async fn many_watchers_see_the_same_order() {
    let server = Local::new().await;
    let client = server.admin();
    let mut watchers = Vec::new();
    for _ in 0..20 {
        watchers.push(open(&client, None, &ListParams::default()).await);
    }
    let mut writers = tokio::task::JoinSet::new();
    for task in 0..4 {
        let client = client.clone();
        writers.spawn(async move {
            for number in 0..10 {
                let object = json!({"metadata": {"name": format!("m{task}-{number}"), "namespace": "default"}});
                client.create::<ConfigMap>(&serde_json::from_value(object).unwrap()).await.unwrap();
            }
        });
    }
    writers.join_all().await;
    let mut orders = Vec::new();
    for mut watcher in watchers {
        let mut order = Vec::new();
        while order.len() < 40 {
            order.push(next(&mut watcher).await.1);
        }
        orders.push(order);
    }
    assert!(orders.iter().all(|order| *order == orders[0]));
}

#[derive(Debug)]
struct Echo;

impl master_listener::Extensions for Echo {
    fn claims(&self, path: &str) -> bool {
        path.starts_with("/attest/")
    }

    fn in_force(&self, _: &str, _: &str) -> BoxFuture<'static, bool> {
        Box::pin(std::future::ready(true))
    }

    fn handle(
        &self,
        request: http::Request<master_client::Body>,
        _: Peer,
        user: UserInfo,
    ) -> BoxFuture<'static, http::Response<master_client::Body>> {
        Box::pin(async move {
            match request.into_body().collect().await {
                Ok(body) => http::Response::new(master_client::body(format!(
                    "{} {}",
                    user.name,
                    body.to_bytes().len()
                ))),
                Err(_too_large) => http::Response::new(master_client::body("too large")),
            }
        })
    }
}

#[tokio::test]
async fn extensions_answer_their_own_paths_for_every_caller() {
    let server = Local::new().await;
    server.api.set_extensions(Arc::new(Echo));
    let nobody = UserInfo::anonymous();
    let (status, _, bytes) = server
        .send(&nobody, Method::POST, "/attest/v1/sessions", &[], "12345")
        .await;
    assert_eq!(
        (status.as_u16(), &bytes[..]),
        (200, &b"system:anonymous 5"[..])
    );
    let (_, _, bytes) = server
        .send(
            &nobody,
            Method::POST,
            "/attest/v1/sessions",
            &[],
            vec![b'x'; (3 << 20) + 1],
        )
        .await;
    assert_eq!(&bytes[..], b"too large", "their bodies are bounded too");
    assert_eq!(
        server
            .ask(&nobody, Method::GET, "/attested", &Value::Null)
            .await
            .0
            .as_u16(),
        403
    );
}
