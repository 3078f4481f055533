//! The verbs, as clients use them.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Pod};
use http::{Method, StatusCode};
use master_api::Options;
use master_client::{DeleteParams, Patch, Reason, UserInfo};
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(
        json!({"metadata": {"name": name, "namespace": "default"}, "data": {"a": "1"}}),
    )
    .unwrap()
}

pub(crate) fn pod(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

pub(crate) fn one_container() -> Value {
    json!({"containers": [{"name": "c", "image": "a:1"}]})
}

pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn an_object_lives_from_create_to_delete() {
    let server = Local::new().await;
    let client = server.admin();
    let created = client.create(&config_map("a")).await.unwrap();
    assert!(created.metadata.uid.is_some() && created.metadata.creation_timestamp.is_some());
    assert!(
        client
            .create(&config_map("a"))
            .await
            .unwrap_err()
            .is_already_exists()
    );
    let mut changed = created.clone();
    changed
        .data
        .as_mut()
        .unwrap()
        .insert("b".to_owned(), "2".to_owned());
    let updated = client.update(&changed).await.unwrap();
    assert_ne!(
        updated.metadata.resource_version,
        created.metadata.resource_version
    );
    assert!(
        client.update(&changed).await.unwrap_err().is_conflict(),
        "the resource version is old"
    );
    assert_eq!(
        client.update(&updated).await.unwrap(),
        updated,
        "nothing changed, nothing is written"
    );
    let wrong = DeleteParams {
        uid: Some("other".to_owned()),
        ..DeleteParams::default()
    };
    assert!(
        client
            .delete::<ConfigMap>(Some("default"), "a", &wrong)
            .await
            .unwrap_err()
            .is_conflict()
    );
    client
        .delete::<ConfigMap>(Some("default"), "a", &DeleteParams::default())
        .await
        .unwrap();
    assert!(
        client
            .get::<ConfigMap>(Some("default"), "a")
            .await
            .unwrap_err()
            .is_not_found()
    );
}

#[tokio::test]
async fn names_are_generated_and_namespaces_must_exist() {
    let server = Local::new().await;
    let object = json!({"metadata": {"generateName": "job-"}});
    let (status, made) = server.admin_ask(Method::POST, MAPS, &object).await;
    assert_eq!(status, StatusCode::CREATED);
    let name = made["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("job-") && name.len() == 9, "{name}");
    let path = "/api/v1/namespaces/nowhere/configmaps";
    let (status, error) = server
        .admin_ask(Method::POST, path, &json!({"metadata": {"name": "a"}}))
        .await;
    assert_eq!(
        (status, &error["message"]),
        (
            StatusCode::NOT_FOUND,
            &json!("namespaces \"nowhere\" not found")
        )
    );
    let other = json!({"metadata": {"name": "a", "namespace": "kube-system"}});
    assert_eq!(
        server.admin_ask(Method::POST, MAPS, &other).await.0,
        StatusCode::BAD_REQUEST
    );
    let versioned = json!({"metadata": {"name": "a", "resourceVersion": "1"}});
    assert_eq!(
        server.admin_ask(Method::POST, MAPS, &versioned).await.0,
        StatusCode::BAD_REQUEST
    );
}

#[tokio::test]
async fn all_faults_of_an_object_are_reported_at_once_with_their_paths() {
    let server = Local::new().await;
    let bad = pod(
        "Bad",
        &json!({
            "restartPolicy": "Sometimes",
            "containers": [
                {"name": "A", "image": "", "ports": [{"containerPort": 70000}]},
                {"name": "b", "image": "x", "volumeMounts": [{"name": "none", "mountPath": "/m"}],
                 "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}},
            ],
        }),
    );
    let (status, error) = server.admin_ask(Method::POST, PODS, &bad).await;
    assert_eq!(
        (status, &error["reason"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("Invalid"))
    );
    let causes = error["details"]["causes"].as_array().unwrap();
    let fields: Vec<&str> = causes
        .iter()
        .map(|cause| cause["field"].as_str().unwrap())
        .collect();
    for field in [
        "metadata.name",
        "spec.restartPolicy",
        "spec.containers[0].name",
        "spec.containers[0].image",
        "spec.containers[0].ports[0].containerPort",
        "spec.containers[1].volumeMounts[0].name",
        "spec.containers[1].resources.requests",
    ] {
        assert!(fields.contains(&field), "{field} is not in {fields:?}");
    }
}

#[tokio::test]
async fn unknown_and_duplicate_fields_are_ignored_warned_of_or_refused() {
    let server = Local::new().await;
    let admin = UserInfo::admin("admin");
    let body = r#"{"metadata":{"name":"x"},"data":{"a":"1","a":"2"},"spek":{}}"#;
    let json = [("content-type", "application/json")];
    let strict = format!("{MAPS}?fieldValidation=Strict");
    let (status, _, text) = server
        .send(&admin, Method::POST, &strict, &json, body)
        .await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(
        text.contains(
            "strict decoding error: unknown field \\\"spek\\\", duplicate field \\\"data.a\\\""
        ),
        "{text}"
    );
    let (status, headers, _) = server.send(&admin, Method::POST, MAPS, &json, body).await;
    assert_eq!(status, StatusCode::CREATED);
    let warnings: Vec<_> = headers
        .get_all("warning")
        .iter()
        .map(|w| w.to_str().unwrap())
        .collect();
    assert_eq!(
        warnings,
        [
            "299 - \"unknown field \\\"spek\\\"\"",
            "299 - \"duplicate field \\\"data.a\\\"\""
        ]
    );
    let ignore = format!("{MAPS}?fieldValidation=Ignore&dryRun=All");
    let other = body.replace("\"x\"", "\"y\"");
    let (status, headers, _) = server
        .send(&admin, Method::POST, &ignore, &json, other)
        .await;
    assert_eq!(
        (status, headers.get("warning")),
        (StatusCode::CREATED, None)
    );
    assert_eq!(
        server
            .admin_ask(Method::GET, &format!("{MAPS}/y"), &Value::Null)
            .await
            .0,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn a_malformed_body_is_refused_with_its_position() {
    let server = Local::new().await;
    let admin = UserInfo::admin("admin");
    for (kind, body, code) in [
        ("application/json", "{".to_owned(), 400),
        ("application/json", "[]".to_owned(), 400),
        ("application/json", "\u{0}".to_owned(), 400),
        ("application/json", "[".repeat(100_000), 400),
        ("application/yaml", "a: [".to_owned(), 400),
        ("text/plain", "{}".to_owned(), 415),
        ("application/json", " ".repeat((3 << 20) + 1), 413),
        (
            "application/json",
            r#"{"metadata":{"name":"a"},"data":{"a":1}}"#.to_owned(),
            400,
        ),
        (
            "application/json",
            r#"{"kind":"Secret","metadata":{"name":"a"}}"#.to_owned(),
            400,
        ),
    ] {
        let shown: String = body.chars().take(50).collect();
        let (status, _, answer) = server
            .send(&admin, Method::POST, MAPS, &[("content-type", kind)], body)
            .await;
        assert_eq!(status.as_u16(), code, "{shown}");
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(
            (&answer["kind"], &answer["code"]),
            (&json!("Status"), &json!(code)),
            "{shown}"
        );
    }
    let (_, error) = server
        .admin_ask(
            Method::POST,
            PODS,
            &pod("p", &json!({"containers": [{"name": 1}]})),
        )
        .await;
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("spec.containers[0].name: expected a string"),
        "{error}"
    );
    let yaml = "metadata: {name: from-yaml}\ndata:\n  a: b\n";
    let (status, _, _) = server
        .send(
            &admin,
            Method::POST,
            MAPS,
            &[("content-type", "application/yaml")],
            yaml,
        )
        .await;
    assert_eq!(status, StatusCode::CREATED);
}

/// A server with a pod of two containers.
async fn with_two_containers() -> Local {
    let server = Local::new().await;
    server
        .admin_ask(
            Method::POST,
            PODS,
            &pod(
                "p",
                &json!({"containers": [
                    {"name": "a", "image": "a:1", "env": [{"name": "X", "value": "1"}]}, {"name": "b", "image": "b:1"},
                ]}),
            ),
        )
        .await;
    server
}

#[tokio::test]
async fn patches_of_all_types_are_applied() {
    let server = with_two_containers().await;
    let client = server.admin();
    let strategic = Patch::Strategic(json!({
        "metadata": {"labels": {"l": "1"}},
        "spec": {"containers": [{"name": "b", "image": "b:2"}], "$setElementOrder/containers": [{"name": "a"}, {"name": "b"}]},
    }));
    let pod: Pod = client
        .patch(Some("default"), "p", &strategic)
        .await
        .unwrap();
    let images: Vec<_> = pod
        .spec
        .unwrap()
        .containers
        .into_iter()
        .map(|c| c.image.unwrap())
        .collect();
    assert_eq!(images, ["a:1", "b:2"]);
    let merge = Patch::Merge(json!({"metadata": {"labels": {"l": null, "m": "2"}}}));
    let pod: Pod = client.patch(Some("default"), "p", &merge).await.unwrap();
    assert_eq!(
        pod.metadata.labels.unwrap().into_iter().collect::<Vec<_>>(),
        [("m".to_owned(), "2".to_owned())]
    );
    let test = Patch::Json(json!([{"op": "test", "path": "/metadata/labels/m", "value": "3"}]));
    assert_eq!(
        client
            .patch::<Pod>(Some("default"), "p", &test)
            .await
            .unwrap_err()
            .reason,
        Reason::Invalid
    );
    let replace =
        Patch::Json(json!([{"op": "replace", "path": "/metadata/labels/m", "value": "4"}]));
    let pod: Pod = client.patch(Some("default"), "p", &replace).await.unwrap();
    assert_eq!(pod.metadata.labels.unwrap()["m"], "4");
}

#[tokio::test]
async fn patches_that_say_too_little_or_move_a_pod_are_refused() {
    let server = with_two_containers().await;
    let client = server.admin();
    let no_key = Patch::Strategic(json!({"spec": {"containers": [{"image": "x"}]}}));
    let error = client
        .patch::<Pod>(Some("default"), "p", &no_key)
        .await
        .unwrap_err();
    assert!(
        error
            .message
            .contains("does not contain declared merge key: name"),
        "{}",
        error.message
    );
    let moved = Patch::Merge(json!({"spec": {"nodeName": "elsewhere"}}));
    assert_eq!(
        client
            .patch::<Pod>(Some("default"), "p", &moved)
            .await
            .unwrap_err()
            .code,
        422
    );
    let apply = [("content-type", "application/apply-patch+yaml")];
    let admin = UserInfo::admin("admin");
    let (status, _, _) = server
        .send(&admin, Method::PATCH, &format!("{PODS}/p"), &apply, "{}")
        .await;
    assert_eq!(
        status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "an apply says who applies"
    );
}

#[tokio::test]
async fn status_and_the_rest_are_written_by_different_paths() {
    let server = Local::new().await;
    let client = server.admin();
    server
        .admin_ask(Method::POST, PODS, &pod("p", &one_container()))
        .await;
    let status = Patch::Merge(json!({"status": {"phase": "Running"}, "spec": {"nodeName": "n"}}));
    let pod: Pod = client
        .patch_status(Some("default"), "p", &status)
        .await
        .unwrap();
    assert_eq!(pod.status.unwrap().phase.unwrap(), "Running");
    assert_eq!(
        pod.spec.unwrap().node_name,
        None,
        "the status path leaves the spec alone"
    );
    let main = Patch::Merge(json!({"status": {"phase": "Failed"}}));
    let pod: Pod = client.patch(Some("default"), "p", &main).await.unwrap();
    assert_eq!(
        pod.status.unwrap().phase.unwrap(),
        "Running",
        "the main path leaves the status alone"
    );
}

#[tokio::test]
async fn secrets_keep_their_plain_data_encoded() {
    let server = Local::new().await;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"k": "v"}});
    let (_, made) = server
        .admin_ask(Method::POST, "/api/v1/namespaces/default/secrets", &secret)
        .await;
    assert_eq!(
        (&made["data"], &made["type"], &made["stringData"]),
        (&json!({"k": "dg=="}), &json!("Opaque"), &Value::Null)
    );
    let tls =
        json!({"metadata": {"name": "t"}, "type": "kubernetes.io/tls", "data": {"tls.crt": ""}});
    let (status, error) = server
        .admin_ask(Method::POST, "/api/v1/namespaces/default/secrets", &tls)
        .await;
    assert_eq!(
        (status.as_u16(), &error["details"]["causes"][0]["field"]),
        (422, &json!("data[tls.key]"))
    );
}

#[tokio::test]
async fn objects_survive_a_restart_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let store = master_store::EmbeddedStore::open(folder.path()).unwrap();
        master_api::ApiServer::new(Arc::new(store), Options::default())
    };
    let api = open();
    api.prepare().await.unwrap();
    let made = api
        .client(UserInfo::admin("a"))
        .create(&config_map("kept"))
        .await
        .unwrap();
    drop(api);
    let api = open();
    api.prepare().await.unwrap();
    let found: ConfigMap = api
        .client(UserInfo::admin("a"))
        .get(Some("default"), "kept")
        .await
        .unwrap();
    assert_eq!(found, made);
}

#[tokio::test]
async fn a_dry_run_of_any_request_writes_nothing() {
    let server = Local::new().await;
    server
        .admin_ask(Method::POST, MAPS, &json!({"metadata": {"name": "a"}}))
        .await;
    let path = format!("{MAPS}/a");
    let (_, before) = server.admin_ask(Method::GET, &path, &Value::Null).await;
    for (method, suffix, body) in [
        (Method::PATCH, "?dryRun=All", json!({"data": {"x": "1"}})),
        (
            Method::PUT,
            "?dryRun=All",
            json!({"metadata": {"name": "a"}, "data": {"x": "1"}}),
        ),
        (Method::DELETE, "?dryRun=All", Value::Null),
        (Method::DELETE, "", json!({"dryRun": ["All"]})),
    ] {
        let (status, answer) = server
            .admin_ask(method.clone(), &format!("{path}{suffix}"), &body)
            .await;
        assert_eq!(status, StatusCode::OK, "{method} {answer}");
    }
    let (status, _) = server
        .admin_ask(Method::DELETE, &format!("{path}?dryRun=Some"), &Value::Null)
        .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        server.admin_ask(Method::GET, &path, &Value::Null).await.1,
        before
    );
}

#[tokio::test]
async fn unknown_kinds_and_methods_are_reported() {
    let server = Local::new().await;
    for (method, path, code) in [
        (Method::GET, "/api/v1/nothings", 404),
        (Method::GET, "/apis/apps/v9/deployments", 404),
        (Method::GET, "/api/v1/pods/p", 404),
        (Method::POST, "/api/v1/pods", 405),
        (Method::GET, "/api/v1/namespaces/default/nodes", 404),
        (
            Method::GET,
            "/api/v1/namespaces/default/pods/p/nothing",
            404,
        ),
        (
            Method::POST,
            "/api/v1/namespaces/default/pods/p/status",
            405,
        ),
        (Method::PUT, "/api/v1/namespaces/default/pods", 405),
        (Method::DELETE, "/version", 405),
        (Method::GET, "/openapi/v9", 404),
    ] {
        let (status, answer) = server.admin_ask(method.clone(), path, &Value::Null).await;
        assert_eq!(status.as_u16(), code, "{method} {path}: {answer}");
        assert_eq!(answer["kind"], "Status");
    }
}

/// Upstream takes "0" in a write as no version at all: other writers never refuse it.
#[tokio::test]
async fn a_write_with_resource_version_0_is_never_in_conflict() {
    let server = Local::new().await;
    server.admin().create(&config_map("a")).await.unwrap();
    let path = format!("{MAPS}/a");
    let map = |number: usize| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": number.to_string()},
            "metadata": {"name": "a", "resourceVersion": "0"}})
    };
    let applied = format!("{path}?fieldManager=test&force=true");
    for (method, path, form) in [
        (Method::PUT, &path, "application/json"),
        (Method::PATCH, &path, "application/merge-patch+json"),
        (Method::PATCH, &applied, "application/apply-patch+yaml"),
    ] {
        // All read before the first one is written.
        let writes = (0..8).map(|number| {
            let (server, method) = (&server, method.clone());
            async move {
                let user = UserInfo::admin("admin");
                let body = map(number).to_string();
                let headers = [("content-type", form)];
                let (status, _, text) = server.send(&user, method, path, &headers, body).await;
                (status, text)
            }
        });
        for (status, text) in futures_util::future::join_all(writes).await {
            assert_eq!(status, StatusCode::OK, "{form}: {text:?}");
        }
    }
}

#[tokio::test]
async fn no_object_grows_beyond_the_largest_request() {
    let local = Local::new().await;
    let path = "/api/v1/namespaces/default/events";
    let about = json!({"kind": "Pod", "namespace": "default", "name": "p"});
    let event = json!({"metadata": {"name": "e"}, "involvedObject": about, "message": "m".repeat(3_000_000)});
    let (status, _) = local.admin_ask(Method::POST, path, &event).await;
    assert_eq!(status, StatusCode::CREATED);
    let more = json!({"metadata": {"annotations": {"a": "b".repeat(200_000)}}});
    let path = format!("{path}/e");
    let (status, answer) = local.admin_ask(Method::PATCH, &path, &more).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    let message = answer["message"].as_str().unwrap();
    assert!(
        message.ends_with("and can have at most 3145728"),
        "{message}"
    );
}
