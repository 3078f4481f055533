//! Lists: pages, selection, forms, and the revision that they show.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use crate::verbs::{MAPS, PODS, one_container, pod};
use config_kube::k8s_openapi::api::core::v1::ConfigMap;
use http::{Method, StatusCode};
use master_api::Options;
use master_client::{ListParams, UserInfo};
use serde_json::{Value, json};
use std::sync::Arc;

#[tokio::test]
async fn lists_are_paged_selected_and_show_one_revision() {
    let server = Local::new().await;
    for number in 0..5 {
        let map = json!({"metadata": {"name": format!("m{number}"), "labels": {"odd": (number % 2).to_string()}}});
        server.admin_ask(Method::POST, MAPS, &map).await;
    }
    let (_, first) = server
        .admin_ask(Method::GET, &format!("{MAPS}?limit=2"), &Value::Null)
        .await;
    assert_eq!(
        (
            first["items"].as_array().unwrap().len(),
            &first["metadata"]["remainingItemCount"]
        ),
        (2, &json!(3))
    );
    server
        .admin_ask(Method::DELETE, &format!("{MAPS}/m4"), &Value::Null)
        .await;
    let next = first["metadata"]["continue"].as_str().unwrap();
    let (_, rest) = server
        .admin_ask(
            Method::GET,
            &format!("{MAPS}?continue={next}"),
            &Value::Null,
        )
        .await;
    let names: Vec<_> = rest["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|i| i["metadata"]["name"].clone())
        .collect();
    assert_eq!(names, ["m2", "m3", "m4"], "as when the list began");
    assert_eq!(
        rest["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    let params = ListParams {
        labels: Some("odd in (1)".to_owned()),
        limit: Some(1),
        ..ListParams::default()
    };
    let page = server
        .admin()
        .list::<ConfigMap>(None, &params)
        .await
        .unwrap();
    assert_eq!(page.items.len(), 1);
    assert!(!page.continue_token.is_empty());
    let bad = format!("{MAPS}?continue=x");
    assert_eq!(
        server.admin_ask(Method::GET, &bad, &Value::Null).await.0,
        StatusCode::BAD_REQUEST
    );
    let (status, _) = server
        .admin_ask(
            Method::GET,
            &format!("{MAPS}?resourceVersion=9999"),
            &Value::Null,
        )
        .await;
    assert_eq!(
        status,
        StatusCode::GATEWAY_TIMEOUT,
        "the future is not there yet"
    );
    let all = format!("{MAPS}?labelSelector=odd%3D0");
    let (_, deleted) = server.admin_ask(Method::DELETE, &all, &Value::Null).await;
    assert_eq!(deleted["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_page_of_large_objects_ends_before_its_limit() {
    let server = Local::new().await;
    let large = "x".repeat(1_000_000);
    for number in 0..10 {
        let metadata = json!({"name": format!("m{number}"), "labels": {"a": "b"}});
        let map = json!({"metadata": metadata, "data": {"a": large}});
        let (status, _) = server.admin_ask(Method::POST, MAPS, &map).await;
        assert_eq!(status, StatusCode::CREATED);
    }
    let ask = async |query: &str| {
        let path = format!("{MAPS}?{query}");
        server.admin_ask(Method::GET, &path, &Value::Null).await.1
    };
    let count = |list: &Value| list["items"].as_array().unwrap().len();
    // Bytes are counted for those who ask for pages alone: others don't know that there are more.
    for (query, pages, remaining) in [
        ("limit=500", vec![8, 2], json!(2)),
        ("limit=500&labelSelector=a%3Db", vec![8, 2], Value::Null),
        ("limit=9", vec![8, 2], json!(2)),
        ("limit=7", vec![7, 3], json!(3)),
        ("labelSelector=a%3Db", vec![10], Value::Null),
        ("", vec![10], Value::Null),
    ] {
        let mut list = ask(query).await;
        assert_eq!(list["metadata"]["remainingItemCount"], remaining, "{query}");
        let mut seen = vec![count(&list)];
        let mut end = list["items"][count(&list) - 1].clone();
        while let Some(next) = list["metadata"]["continue"].as_str() {
            list = ask(&format!("{query}&continue={next}")).await;
            seen.push(count(&list));
            end = list["items"][count(&list) - 1].clone();
        }
        assert_eq!(seen, pages, "{query}");
        assert_eq!(end["metadata"]["name"], "m9", "{query}");
    }
}

#[tokio::test]
async fn events_are_one_table_under_two_groups() {
    let server = Local::new().await;
    let event = json!({
        "metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Pulled", "message": "hello", "type": "Normal", "count": 3,
    });
    let (status, made) = server
        .admin_ask(Method::POST, "/api/v1/namespaces/default/events", &event)
        .await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let other = "/apis/events.k8s.io/v1/namespaces/default/events/e";
    let (_, seen) = server.admin_ask(Method::GET, other, &Value::Null).await;
    assert_eq!(
        (
            &seen["note"],
            &seen["regarding"]["name"],
            &seen["deprecatedCount"]
        ),
        (&json!("hello"), &json!("p"), &json!(3))
    );
    assert_eq!(seen["apiVersion"], "events.k8s.io/v1");
    let selected = "/apis/events.k8s.io/v1/events?fieldSelector=regarding.name%3Dp";
    let (_, list) = server.admin_ask(Method::GET, selected, &Value::Null).await;
    assert_eq!(list["items"][0]["note"], "hello");
}

#[tokio::test]
async fn tables_and_metadata_are_other_forms_of_the_same() {
    let server = Local::new().await;
    let admin = UserInfo::admin("admin");
    server
        .admin_ask(Method::POST, PODS, &pod("p", &one_container()))
        .await;
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let (_, _, bytes) = server.send(&admin, Method::GET, PODS, &table, "").await;
    let table: Value = serde_json::from_slice(&bytes).unwrap();
    let names: Vec<_> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "Name",
            "Ready",
            "Status",
            "Restarts",
            "Age",
            "IP",
            "Node",
            "Nominated Node",
            "Readiness Gates"
        ]
    );
    assert_eq!(
        table["rows"][0]["cells"].as_array().unwrap()[..4],
        [json!("p"), json!("0/1"), json!("Pending"), json!("0")]
    );
    let partial = [(
        "accept",
        "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    )];
    let (_, _, bytes) = server.send(&admin, Method::GET, PODS, &partial, "").await;
    let list: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(
        (&list["kind"], &list["items"][0]["spec"]),
        (&json!("PartialObjectMetadataList"), &Value::Null)
    );
    let yaml = [("accept", "application/yaml")];
    let (_, headers, bytes) = server
        .send(&admin, Method::GET, &format!("{PODS}/p"), &yaml, "")
        .await;
    assert_eq!(headers["content-type"], "application/yaml");
    assert!(String::from_utf8_lossy(&bytes).contains("restartPolicy: Always"));
}

/// Options of a list or a watch, the code of the refusal, and words of it.
const CONTRADICTIONS: &[(&str, u16, &str)] = &[
    (
        "resourceVersionMatch=Exact",
        422,
        "resourceVersionMatch is forbidden unless resourceVersion is provided",
    ),
    (
        "resourceVersionMatch=Exact&resourceVersion=0",
        422,
        "is forbidden for resourceVersion \"0\"",
    ),
    (
        "resourceVersionMatch=Some&resourceVersion=1",
        422,
        "Unsupported value: \"Some\": supported values: \"Exact\"",
    ),
    (
        "resourceVersionMatch=NotOlderThan&resourceVersion=1&continue=x",
        422,
        "when continue is provided",
    ),
    (
        "sendInitialEvents=true",
        422,
        "sendInitialEvents is forbidden for list",
    ),
    ("resourceVersion=x", 400, "invalid resource version"),
    (
        "resourceVersion=99999",
        504,
        "Too large resource version: 99999, current: ",
    ),
    (
        "fieldSelector=spec.x%3D1",
        400,
        "\"spec.x\" is not a known field selector",
    ),
    ("fieldSelector=metadata.name", 400, "invalid selector"),
    (
        "watch=1&sendInitialEvents=true",
        422,
        "sendInitialEvents requires setting resourceVersionMatch",
    ),
    (
        "watch=1&resourceVersionMatch=NotOlderThan",
        422,
        "unless sendInitialEvents is provided",
    ),
];

#[tokio::test]
async fn list_options_that_contradict_each_other_are_refused_all_at_once() {
    let server = Local::new().await;
    for (query, code, text) in CONTRADICTIONS {
        let (status, error) = server
            .admin_ask(Method::GET, &format!("{MAPS}?{query}"), &Value::Null)
            .await;
        assert_eq!(status.as_u16(), *code, "{query}: {error}");
        assert!(
            error["message"].as_str().unwrap().contains(text),
            "{query}: {error}"
        );
    }
    let too_large = server
        .admin_ask(
            Method::GET,
            &format!("{MAPS}?resourceVersion=99999"),
            &Value::Null,
        )
        .await
        .1;
    assert_eq!(
        too_large["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
}

#[tokio::test]
async fn an_expired_list_returns_a_token_to_continue() {
    let folder = tempfile::tempdir().unwrap();
    let options = master_store::Options {
        history_events: 3,
        ..master_store::Options::default()
    };
    let store = Arc::new(master_store::EmbeddedStore::open_with(folder.path(), &options).unwrap());
    let api = master_api::ApiServer::new(store, Options::default());
    api.prepare().await.unwrap();
    let server = Local::of(api, folder);
    for number in 0..4 {
        server
            .admin_ask(
                Method::POST,
                MAPS,
                &json!({"metadata": {"name": format!("m{number}")}}),
            )
            .await;
    }
    let (_, first) = server
        .admin_ask(Method::GET, &format!("{MAPS}?limit=2"), &Value::Null)
        .await;
    let revision = first["metadata"]["resourceVersion"].as_str().unwrap();
    let exact = format!("{MAPS}?resourceVersion={revision}&resourceVersionMatch=Exact");
    server
        .admin_ask(Method::POST, MAPS, &json!({"metadata": {"name": "m9"}}))
        .await;
    let (_, then) = server.admin_ask(Method::GET, &exact, &Value::Null).await;
    assert_eq!(then["items"].as_array().unwrap().len(), 4, "as it was then");
    for number in 0..6 {
        server
            .admin_ask(
                Method::POST,
                MAPS,
                &json!({"metadata": {"name": format!("n{number}")}}),
            )
            .await;
    }
    let (status, gone) = server.admin_ask(Method::GET, &exact, &Value::Null).await;
    assert_eq!((status.as_u16(), &gone["reason"]), (410, &json!("Expired")));
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (status, gone) = server
        .admin_ask(
            Method::GET,
            &format!("{MAPS}?continue={token}"),
            &Value::Null,
        )
        .await;
    assert_eq!(status.as_u16(), 410);
    let token = gone["metadata"]["continue"]
        .as_str()
        .expect("a token to go on with");
    let (status, rest) = server
        .admin_ask(
            Method::GET,
            &format!("{MAPS}?continue={token}"),
            &Value::Null,
        )
        .await;
    let names: Vec<&str> = rest["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        (status.as_u16(), &names[..3]),
        (200, &["m2", "m3", "m9"][..])
    );
}

#[tokio::test]
async fn one_name_is_listed_watched_and_deleted_by_field_and_by_the_legacy_path() {
    let server = Local::new().await;
    for name in ["a", "ab"] {
        server
            .admin_ask(Method::POST, MAPS, &json!({"metadata": {"name": name}}))
            .await;
    }
    let one = format!("{MAPS}?fieldSelector=metadata.name%3Da");
    let (_, list) = server.admin_ask(Method::GET, &one, &Value::Null).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    for path in [
        format!("{one}&watch=1&timeoutSeconds=1"),
        "/api/v1/watch/namespaces/default/configmaps/a?timeoutSeconds=1".to_owned(),
    ] {
        let (status, _, bytes) = server
            .send(&UserInfo::admin("a"), Method::GET, &path, &[], "")
            .await;
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        assert_eq!(
            (status.as_u16(), text.lines().count()),
            (200, 1),
            "{path}: {text}"
        );
        assert!(text.starts_with("{\"type\":\"ADDED\""), "{text}");
    }
    let (_, deleted) = server.admin_ask(Method::DELETE, &one, &Value::Null).await;
    assert_eq!(deleted["items"].as_array().unwrap().len(), 1);
    assert_eq!(
        server
            .admin_ask(Method::GET, &format!("{MAPS}/ab"), &Value::Null)
            .await
            .0,
        StatusCode::OK
    );
}
