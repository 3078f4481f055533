//! Kinds come and go while requests are answered: a request sees one set of kinds from its begin to
//! its end, and documents describe the current kinds.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use config_kube::k8s_openapi::api::core::v1::ConfigMap;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use http::{Method, StatusCode};
use master_api::ApiServer;
use master_client::{Body, UserInfo};
use master_kinds::builtin;
use master_schema::registry::Kind;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
/// How often the kinds are replaced while requests run.
const SWAPS: usize = 10;

/// A kind of another group that is built at run time; its schema is that of a ConfigMap.
fn widget() -> Kind {
    Kind {
        group: "example.com".to_owned(),
        kind: "Widget".to_owned(),
        plural: "widgets".to_owned(),
        singular: "widget".to_owned(),
        table: "widgets.example.com".to_owned(),
        ..Kind::of::<ConfigMap>(true)
    }
}

fn with_widgets() -> Vec<Kind> {
    builtin::all().into_iter().chain([widget()]).collect()
}

fn admin() -> UserInfo {
    UserInfo::admin("admin")
}

#[tokio::test]
async fn a_new_kind_is_served_and_a_removed_one_is_not() {
    let local = Local::new().await;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "data": {"size": "3"}});
    let (status, _) = local.admin_ask(Method::POST, WIDGETS, &widget).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    local.api.serve_kinds(with_widgets());
    let (status, made) = local.admin_ask(Method::POST, WIDGETS, &widget).await;
    assert_eq!(
        (status, &made["data"]["size"]),
        (StatusCode::CREATED, &json!("3")),
        "{made}"
    );
    let wrong = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "b"}, "data": {"size": []}});
    let (status, refused) = local.admin_ask(Method::POST, WIDGETS, &wrong).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{refused}");
    let (_, resources) = local
        .admin_ask(Method::GET, "/apis/example.com/v1", &Value::Null)
        .await;
    assert_eq!(resources["resources"][0]["name"], "widgets");
    let (status, _) = local
        .admin_ask(Method::GET, "/openapi/v3/apis/example.com/v1", &Value::Null)
        .await;
    assert_eq!(status, StatusCode::OK);

    local.api.serve_kinds(builtin::all());
    for path in [
        WIDGETS,
        "/apis/example.com/v1",
        "/openapi/v3/apis/example.com/v1",
    ] {
        let (status, _) = local.admin_ask(Method::GET, path, &Value::Null).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
    }
    // The objects of a kind stay in the store and are there again with it.
    local.api.serve_kinds(with_widgets());
    let path = format!("{WIDGETS}/a");
    let (status, _) = local.admin_ask(Method::GET, &path, &Value::Null).await;
    assert_eq!(status, StatusCode::OK);
}

/// Whether an answer is one that a client may get.
type Good = fn(StatusCode, &Value) -> bool;

/// Asks at least once, and until `stop`; each answer is judged by `good`.
async fn ask(api: ApiServer, path: &'static str, stop: Arc<AtomicBool>, good: Good) {
    loop {
        let request = http::Request::get(path)
            .body(master_client::body(""))
            .unwrap();
        let (status, answer) = read(
            api.handle_as(request, admin(), master_listener::Peer::default())
                .await,
        )
        .await;
        assert!(good(status, &answer), "{path}: {status} {answer}");
        if stop.load(Ordering::Acquire) {
            return;
        }
        tokio::task::yield_now().await;
    }
}

async fn read(response: http::Response<Body>) -> (StatusCode, Value) {
    let status = response.status();
    let bytes = http_body_util::BodyExt::collect(response.into_body())
        .await
        .unwrap()
        .to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

fn lists_pods(status: StatusCode, answer: &Value) -> bool {
    status == StatusCode::OK && answer["kind"] == "PodList"
}

/// Widgets are listed, or their path names nothing; nothing in between.
fn lists_widgets_or_nothing(status: StatusCode, answer: &Value) -> bool {
    match status {
        StatusCode::OK => answer["kind"] == "WidgetList" && answer["items"].is_array(),
        _ => status == StatusCode::NOT_FOUND && answer["reason"] == "NotFound",
    }
}

/// The group's document is whole, or absent.
fn describes_widgets_or_nothing(status: StatusCode, answer: &Value) -> bool {
    let whole = || {
        answer["paths"]["/apis/example.com/v1/widgets"].is_object()
            && answer["components"]["schemas"].is_object()
    };
    status == StatusCode::NOT_FOUND || status == StatusCode::OK && whole()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn kinds_are_replaced_while_requests_go_on() {
    let local = Local::new().await;
    let stop = Arc::new(AtomicBool::new(false));
    let loops: [(&str, Good); 3] = [
        ("/api/v1/pods", lists_pods),
        (WIDGETS, lists_widgets_or_nothing),
        (
            "/openapi/v3/apis/example.com/v1",
            describes_widgets_or_nothing,
        ),
    ];
    let asking: Vec<_> = loops
        .into_iter()
        .map(|(path, good)| tokio::spawn(ask(local.api.clone(), path, stop.clone(), good)))
        .collect();
    // Writes go on, too: each name is made once and every object is kept.
    let made = Arc::new(AtomicUsize::new(0));
    let writing = tokio::spawn({
        let (client, stop, made) = (local.admin(), stop.clone(), made.clone());
        async move {
            while !stop.load(Ordering::Acquire) {
                let name = format!("m{}", made.load(Ordering::Acquire));
                let map = ConfigMap {
                    metadata: ObjectMeta {
                        name: Some(name),
                        namespace: Some("default".to_owned()),
                        ..ObjectMeta::default()
                    },
                    ..ConfigMap::default()
                };
                client.create(&map).await.unwrap();
                made.fetch_add(1, Ordering::AcqRel);
            }
        }
    });
    for swap in 0..SWAPS {
        let kinds = if swap % 2 == 0 {
            with_widgets()
        } else {
            builtin::all()
        };
        local.api.serve_kinds(kinds);
        // Each set of kinds is asked for at least once before the next.
        let (status, answer) = local.admin_ask(Method::GET, WIDGETS, &Value::Null).await;
        assert_eq!(status == StatusCode::OK, swap % 2 == 0, "{answer}");
    }
    stop.store(true, Ordering::Release);
    writing.await.unwrap();
    for asked in asking {
        asked.await.unwrap();
    }
    let (_, list) = local
        .admin_ask(
            Method::GET,
            "/api/v1/namespaces/default/configmaps",
            &Value::Null,
        )
        .await;
    assert_eq!(
        list["items"].as_array().unwrap().len(),
        made.load(Ordering::Acquire)
    );
}
