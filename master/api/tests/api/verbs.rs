//! The verbs, as clients use them.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Pod};
use http::{Method, StatusCode};
use master_api::Options;
use master_client::{DeleteParams, ListParams, Patch, Reason, UserInfo};
use serde_json::{Value, json};
use std::sync::Arc;

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(
        json!({"metadata": {"name": name, "namespace": "default"}, "data": {"a": "1"}}),
    )
    .unwrap()
}

fn pod(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

fn one_container() -> Value {
    json!({"containers": [{"name": "c", "image": "a:1"}]})
}

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

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
async fn all_faults_of_an_object_are_told_at_once_with_their_paths() {
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
async fn what_cannot_be_read_is_refused_with_its_place() {
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

#[tokio::test]
async fn patches_of_all_kinds_do_what_they_say() {
    let server = Local::new().await;
    let client = server.admin();
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
async fn a_pod_is_bound_once_and_goes_when_its_kubelet_says_so() {
    let server = Local::new().await;
    server
        .admin_ask(Method::POST, PODS, &pod("p", &one_container()))
        .await;
    let binding =
        |node: &str| json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": node}});
    let path = format!("{PODS}/p/binding");
    assert_eq!(
        server
            .admin_ask(Method::POST, &path, &binding("n1"))
            .await
            .0,
        StatusCode::CREATED
    );
    assert_eq!(
        server
            .admin_ask(Method::POST, &path, &binding("n2"))
            .await
            .0,
        StatusCode::CONFLICT
    );
    let (_, bound) = server
        .admin_ask(Method::GET, &format!("{PODS}/p"), &Value::Null)
        .await;
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
    let (_, going) = server
        .admin_ask(Method::DELETE, &format!("{PODS}/p"), &Value::Null)
        .await;
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 30);
    let now = json!({"gracePeriodSeconds": 0});
    let (status, gone) = server
        .admin_ask(Method::DELETE, &format!("{PODS}/p"), &now)
        .await;
    assert_eq!(
        (status, &gone["kind"]),
        (StatusCode::OK, &json!("Pod")),
        "a pod's deletion answers with the pod"
    );
    server
        .admin_ask(Method::POST, PODS, &pod("q", &one_container()))
        .await;
    let (_, gone) = server
        .admin_ask(Method::DELETE, &format!("{PODS}/q"), &Value::Null)
        .await;
    assert_eq!(
        gone["metadata"]["deletionGracePeriodSeconds"], 0,
        "no kubelet has it, so it goes at once"
    );
    assert_eq!(
        server
            .admin_ask(Method::GET, &format!("{PODS}/q"), &Value::Null)
            .await
            .0,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn finalizers_hold_an_object_until_they_are_taken_away() {
    let server = Local::new().await;
    let held = json!({"metadata": {"name": "h", "finalizers": ["example.com/hold"]}});
    server.admin_ask(Method::POST, MAPS, &held).await;
    let path = format!("{MAPS}/h");
    let (_, going) = server.admin_ask(Method::DELETE, &path, &Value::Null).await;
    assert!(going["metadata"]["deletionTimestamp"].is_string());
    let more = json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}});
    assert_eq!(
        server.admin_ask(Method::PATCH, &path, &more).await.0,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    server
        .admin_ask(
            Method::PATCH,
            &path,
            &json!({"metadata": {"finalizers": null}}),
        )
        .await;
    assert_eq!(
        server.admin_ask(Method::GET, &path, &Value::Null).await.0,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn a_namespace_goes_when_it_is_finalized_and_takes_nothing_new_before() {
    let server = Local::new().await;
    let spaces = "/api/v1/namespaces";
    server
        .admin_ask(Method::POST, spaces, &json!({"metadata": {"name": "n"}}))
        .await;
    let (_, going) = server
        .admin_ask(Method::DELETE, &format!("{spaces}/n"), &Value::Null)
        .await;
    assert_eq!(going["status"]["phase"], "Terminating");
    let map = json!({"metadata": {"name": "a"}});
    let (status, error) = server
        .admin_ask(Method::POST, "/api/v1/namespaces/n/configmaps", &map)
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{error}");
    let mut done = going;
    done["spec"]["finalizers"] = json!([]);
    let (status, _) = server
        .admin_ask(Method::PUT, &format!("{spaces}/n/finalize"), &done)
        .await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        server
            .admin_ask(Method::GET, &format!("{spaces}/n"), &Value::Null)
            .await
            .0,
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        server
            .admin_ask(Method::DELETE, &format!("{spaces}/default"), &Value::Null)
            .await
            .0,
        StatusCode::FORBIDDEN
    );
}

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
async fn a_dry_run_writes_nothing_wherever_it_is_asked_for() {
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
async fn kinds_that_are_not_served_and_methods_that_are_not_there_are_said_so() {
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

#[tokio::test]
async fn list_options_that_contradict_each_other_are_refused_all_at_once() {
    let server = Local::new().await;
    for (query, code, text) in [
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
    ] {
        let (status, error) = server
            .admin_ask(Method::GET, &format!("{MAPS}?{query}"), &Value::Null)
            .await;
        assert_eq!(status.as_u16(), code, "{query}: {error}");
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
async fn a_list_whose_history_is_forgotten_says_how_to_go_on() {
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

#[tokio::test]
async fn dependents_are_orphaned_or_deleted_first_by_a_finalizer() {
    let server = Local::new().await;
    for (name, body) in [
        ("f", json!({"propagationPolicy": "Foreground"})),
        ("o", json!({"propagationPolicy": "Orphan"})),
        ("d", json!({"orphanDependents": true})),
    ] {
        server
            .admin_ask(Method::POST, MAPS, &json!({"metadata": {"name": name}}))
            .await;
        let (status, going) = server
            .admin_ask(Method::DELETE, &format!("{MAPS}/{name}"), &body)
            .await;
        assert_eq!(status, StatusCode::OK, "{going}");
        let expected = if name == "f" {
            "foregroundDeletion"
        } else {
            "orphan"
        };
        assert_eq!(going["metadata"]["finalizers"], json!([expected]));
        assert!(going["metadata"]["deletionTimestamp"].is_string());
        let done = json!({"metadata": {"finalizers": null}});
        server
            .admin_ask(Method::PATCH, &format!("{MAPS}/{name}"), &done)
            .await;
        assert_eq!(
            server
                .admin_ask(Method::GET, &format!("{MAPS}/{name}"), &Value::Null)
                .await
                .0
                .as_u16(),
            404
        );
    }
    let both = json!({"orphanDependents": true, "propagationPolicy": "Orphan"});
    assert_eq!(
        server
            .admin_ask(Method::DELETE, &format!("{MAPS}/x"), &both)
            .await
            .0
            .as_u16(),
        422
    );
}

#[tokio::test]
async fn thousands_go_at_once() {
    let server = Local::new().await;
    let mut writers = tokio::task::JoinSet::new();
    for task in 0..8 {
        let client = server.admin();
        writers.spawn(async move {
            for number in 0..64 {
                let object = json!({"metadata": {"name": format!("m{task}-{number}"), "namespace": "default"}});
                client.create::<ConfigMap>(&serde_json::from_value(object).unwrap()).await.unwrap();
            }
        });
    }
    writers.join_all().await;
    let (status, deleted) = server.admin_ask(Method::DELETE, MAPS, &Value::Null).await;
    assert_eq!(
        (status, deleted["items"].as_array().unwrap().len()),
        (StatusCode::OK, 512)
    );
    let (_, left) = server.admin_ask(Method::GET, MAPS, &Value::Null).await;
    assert_eq!(left["items"], json!([]));
}
