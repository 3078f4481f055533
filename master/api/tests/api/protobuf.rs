//! Answers in protobuf, to clients that accept nothing else.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use master_client::UserInfo;
use master_listener::Peer;
use master_wire::protobuf::decode;
use serde_json::{Map, Value, json};
use std::time::Duration;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const METADATA: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const PATIENCE: Duration = Duration::from_secs(120);

/// The answer to a client that accepts this alone: status, media type, and the object.
async fn ask(
    server: &Local,
    method: Method,
    path: &str,
    accept: &str,
    body: &Value,
) -> (StatusCode, String, Value) {
    let kind = match method.as_str() {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let headers = [("content-type", kind), ("accept", accept)];
    let admin = UserInfo::admin("admin");
    let answer = server.send(&admin, method, path, &headers, body.to_string());
    let (status, headers, bytes) = answer.await;
    let media = headers["content-type"].to_str().unwrap().to_owned();
    let object = match &*media {
        PROTOBUF => decode(&bytes).unwrap(),
        _ => serde_json::from_slice(&bytes).unwrap(),
    };
    (status, media, object)
}

/// Without what protobuf cannot tell from nothing, and without the type of a list's items.
fn bare(value: Value, is_item: bool) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(name, _)| {
                let of_type = matches!(name.as_str(), "kind" | "apiVersion");
                !(is_item && of_type)
            });
            let fields = fields.map(|(name, value)| {
                let value = bare(value, name == "items");
                (name, value)
            });
            let nothing = [json!(""), json!(0), json!(false), json!([]), json!({})];
            let given = fields.filter(|(_, value)| !(value.is_null() || nothing.contains(value)));
            Value::Object(given.collect::<Map<_, _>>())
        }
        Value::Array(items) => items.into_iter().map(|item| bare(item, is_item)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}

#[tokio::test]
async fn answers_in_protobuf_are_those_in_json() {
    let server = Local::new().await;
    let map = json!({"metadata": {"name": "m", "labels": {"a": "b"}}, "data": {"k": "v"}, "binaryData": {"b": "/w=="}});
    let (status, media, made) = ask(&server, Method::POST, MAPS, PROTOBUF, &map).await;
    assert_eq!((status, &*media), (StatusCode::CREATED, PROTOBUF));
    assert_eq!(made["binaryData"]["b"], "/w==");
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "automountServiceAccountToken": false, "volumes": [{"name": "v", "emptyDir": {}}],
        "containers": [{"name": "c", "image": "x:1", "resources": {"limits": {"cpu": "1500m"}},
            "livenessProbe": {"httpGet": {"port": "web"}}}],
    }});
    let pods = "/api/v1/namespaces/default/pods";
    ask(&server, Method::POST, pods, PROTOBUF, &pod).await;
    let path = format!("{MAPS}/m");
    let change = json!({"data": {"k": "w"}});
    let (_, _, changed) = ask(&server, Method::PATCH, &path, PROTOBUF, &change).await;
    assert_eq!(changed["data"]["k"], "w");
    for (path, media) in [
        (&*path, PROTOBUF),
        (&*path, METADATA),
        (MAPS, PROTOBUF),
        (MAPS, METADATA_LIST),
        ("/api/v1/namespaces/default/pods/p", PROTOBUF),
        (pods, PROTOBUF),
        ("/api/v1/services", PROTOBUF),
        ("/api/v1/namespaces", PROTOBUF),
        ("/api/v1/componentstatuses", PROTOBUF),
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles", PROTOBUF),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterroles?limit=1",
            PROTOBUF,
        ),
        ("/api/v1", PROTOBUF),
        ("/apis", PROTOBUF),
        ("/apis/apps", PROTOBUF),
        ("/api/v1/namespaces/default/configmaps/absent", PROTOBUF),
        ("/api/v1/namespaces/default/odd", PROTOBUF),
        ("/api/v1/configmaps?limit=odd", PROTOBUF),
    ] {
        let text = media.replace("vnd.kubernetes.protobuf", "json");
        let (status, _, expected) = ask(&server, Method::GET, path, &text, &Value::Null).await;
        let answer = ask(&server, Method::GET, path, media, &Value::Null).await;
        let (found, content, object) = answer;
        assert_eq!((found, &*content), (status, PROTOBUF), "{path}");
        assert_eq!(bare(object, false), bare(expected, false), "{path} {media}");
    }
    let both = format!("{PROTOBUF}, application/json");
    let (_, media, _) = ask(&server, Method::GET, MAPS, &both, &Value::Null).await;
    assert_eq!(media, "application/json");
    let (status, _, gone) = ask(&server, Method::DELETE, &path, PROTOBUF, &Value::Null).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        (&gone["kind"], &gone["status"]),
        (&json!("Status"), &json!("Success"))
    );
}

#[tokio::test]
async fn a_kind_without_a_message_is_refused_before_anything_is_written() {
    let server = Local::new().await;
    let policies = "/apis/pratique.dev/v1alpha1/certificatepolicies";
    let (status, media, refusal) = ask(&server, Method::POST, policies, PROTOBUF, &json!({})).await;
    assert_eq!((status, &*media), (StatusCode::NOT_ACCEPTABLE, PROTOBUF));
    assert_eq!(refusal["reason"], "NotAcceptable");
    let (status, _, list) = ask(&server, Method::GET, policies, METADATA_LIST, &Value::Null).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    let table = "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1";
    let (status, media, _) = ask(&server, Method::GET, MAPS, table, &Value::Null).await;
    assert_eq!(
        (status, &*media),
        (StatusCode::NOT_ACCEPTABLE, "application/json")
    );
    // The events of a watch are no list, and would be whole objects.
    let watch = format!("{policies}?watch=1&timeoutSeconds=1");
    let (status, ..) = ask(&server, Method::GET, &watch, METADATA_LIST, &Value::Null).await;
    assert_eq!(status, StatusCode::NOT_ACCEPTABLE);
    let map = json!({"metadata": {"name": "m"}});
    for accept in [table, "text/html"] {
        let (status, ..) = ask(&server, Method::POST, MAPS, accept, &map).await;
        assert_eq!(status, StatusCode::NOT_ACCEPTABLE, "{accept}");
    }
    let path = format!("{MAPS}/m");
    let (status, ..) = ask(&server, Method::GET, &path, PROTOBUF, &Value::Null).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

/// The type and object of each whole frame.
fn events(mut bytes: &[u8]) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap();
        let Some((event, rest)) = rest.split_at_checked(length) else {
            break;
        };
        bytes = rest;
        assert_eq!(event[0], 0x0a);
        let what = std::str::from_utf8(&event[2..2 + usize::from(event[1])]).unwrap();
        let document = event.windows(4).position(|bytes| bytes == b"k8s\0");
        found.push((
            what.to_owned(),
            decode(&event[document.unwrap()..]).unwrap(),
        ));
    }
    found
}

#[tokio::test]
async fn a_watch_in_protobuf_sends_a_frame_for_each_event() {
    let server = Local::new().await;
    for (name, accept) in [("whole", PROTOBUF), ("bare", METADATA)] {
        let map = json!({"metadata": {"name": name}, "data": {"k": "v".repeat(5000)}});
        server.admin_ask(Method::POST, MAPS, &map).await;
        let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        let request = Request::get(format!(
            "{MAPS}?{query}&fieldSelector=metadata.name%3D{name}"
        ))
        .header("accept", format!("{accept};stream=watch"))
        .body(master_client::body(""))
        .unwrap();
        let admin = UserInfo::admin("admin");
        let answer = server.api.handle_as(request, admin, Peer::default()).await;
        assert_eq!(
            answer.headers()["content-type"],
            "application/vnd.kubernetes.protobuf;stream=watch"
        );
        let path = format!("{MAPS}/{name}");
        server.admin_ask(Method::DELETE, &path, &Value::Null).await;
        let (mut body, mut bytes) = (answer.into_body(), Vec::new());
        while events(&bytes).len() < 3 {
            let frame = tokio::time::timeout(PATIENCE, body.frame()).await;
            let frame = frame.expect("an event comes").unwrap().unwrap();
            bytes.extend(frame.into_data().unwrap());
        }
        let events = events(&bytes);
        let kinds: Vec<&str> = events.iter().map(|(what, _)| &**what).collect();
        assert_eq!(kinds, ["ADDED", "BOOKMARK", "DELETED"]);
        for (what, object) in &events {
            let expected = match accept {
                METADATA => "PartialObjectMetadata",
                _ => "ConfigMap",
            };
            assert_eq!(object["kind"], expected, "{what}");
            let whole = *what != "BOOKMARK";
            assert_eq!(object["metadata"]["name"] == name, whole);
            assert_eq!(object.get("data").is_some(), whole && accept == PROTOBUF);
        }
        let annotations = &events[1].1["metadata"]["annotations"];
        assert_eq!(annotations["k8s.io/initial-events-end"], "true");
    }
}
