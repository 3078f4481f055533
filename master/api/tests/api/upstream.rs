//! Texts in answers that upstream's own suites read.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use http::{Method, StatusCode};
use master_client::UserInfo;
use serde_json::{Value, json};

const DEFAULT: &str = "/api/v1/namespaces/default";

/// Status, message and warnings of an answer.
async fn ask(
    server: &Local,
    method: Method,
    path: &str,
    kind: &str,
    body: &str,
) -> (StatusCode, String, Vec<String>) {
    let admin = UserInfo::admin("admin");
    let (status, headers, bytes) = server
        .send(
            &admin,
            method,
            path,
            &[("content-type", kind)],
            body.to_owned(),
        )
        .await;
    let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let warnings = headers
        .get_all("warning")
        .iter()
        .map(|value| value.to_str().unwrap().to_owned())
        .collect();
    (
        status,
        answer["message"].as_str().unwrap_or_default().to_owned(),
        warnings,
    )
}

#[tokio::test]
async fn a_body_of_another_kind_is_distinguished_from_one_that_cannot_be_read() {
    let server = Local::new().await;
    for (body, message) in [
        (
            r#"{"apiVersion":"v1","kind":"Pod"}"#,
            "Pod in version \"v1\" cannot be handled as a Namespace: converting (v1.Pod) to (core.Namespace): unknown \
             conversion",
        ),
        (
            r#"{"apiVersion":"example.com/v2","kind":"Odd"}"#,
            "Odd in version \"v2\" cannot be handled as a Namespace: no kind \"Odd\" is registered for version \
             \"example.com/v2\" in scheme",
        ),
        (
            "apiVersion: v1",
            "the object provided is unrecognized (must be of type Namespace): couldn't get version/kind; json parse error",
        ),
        ("apiVersion: v1", "(61706956657273696f6e3a207631)"),
        (
            r#"{"metadata":{"name":"much longer"#,
            r#"({"metadata":{"name":"much long ...)"#,
        ),
        ("", "(<empty>)"),
    ] {
        let (status, answer, _) = ask(
            &server,
            Method::POST,
            "/api/v1/namespaces",
            "application/json",
            body,
        )
        .await;
        assert!(
            status == StatusCode::BAD_REQUEST && answer.contains(message),
            "{body}: {answer}"
        );
    }
    let path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let older = r#"{"apiVersion":"autoscaling/v1","kind":"HorizontalPodAutoscaler"}"#;
    let (_, answer, _) = ask(&server, Method::POST, path, "application/json", older).await;
    assert_eq!(
        answer,
        "the API version in the data (autoscaling/v1) does not match the expected API version (autoscaling/v2)"
    );
}

#[tokio::test]
async fn a_patch_that_leaves_behind_no_object_is_shown_as_upstream_shows_it() {
    let server = Local::new().await;
    let map = json!({"metadata": {"name": "m", "labels": {"a": "b"}}, "data": {"k": "v"}});
    server
        .admin_ask(Method::POST, &format!("{DEFAULT}/configmaps"), &map)
        .await;
    for (kind, patch, message) in [
        (
            "application/strategic-merge-patch+json",
            r#"{"metadata":{"labels":"odd"}}"#,
            "patch: Invalid value: \"map[metadata:map[labels:odd]]\": cannot restore map from string",
        ),
        (
            "application/strategic-merge-patch+json",
            r#"{"metadata":{"ownerReferences":"odd"}}"#,
            "cannot restore slice from string",
        ),
        (
            "application/strategic-merge-patch+json",
            r#"{"immutable":"odd"}"#,
            "cannot convert string to bool",
        ),
        (
            "application/merge-patch+json",
            r#"{"metadata":{"labels":"odd"}}"#,
            "patch: Invalid value: \"{\\\"",
        ),
    ] {
        let path = format!("{DEFAULT}/configmaps/m");
        let (status, answer, _) = ask(&server, Method::PATCH, &path, kind, patch).await;
        assert!(
            status == StatusCode::UNPROCESSABLE_ENTITY && answer.contains(message),
            "{patch}: {answer}"
        );
    }
}

#[tokio::test]
async fn maps_that_are_empty_are_not_there() {
    let server = Local::new().await;
    let map = json!({"metadata": {"name": "m", "labels": {"a": "b"}, "annotations": {}}, "data": {"k": "v"}});
    let (_, made) = server
        .admin_ask(Method::POST, &format!("{DEFAULT}/configmaps"), &map)
        .await;
    assert!(made["metadata"].get("annotations").is_none(), "{made}");
    let patch = json!({"metadata": {"labels": {"a": null}}, "data": {"k": null}});
    let (_, bare) = server
        .admin_ask(Method::PATCH, &format!("{DEFAULT}/configmaps/m"), &patch)
        .await;
    assert!(
        bare["metadata"].get("labels").is_none() && bare.get("data").is_none(),
        "{bare}"
    );
}

#[tokio::test]
async fn a_new_objects_status_shows_its_zeros() {
    let server = Local::new().await;
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "minAvailable": 1});
    let path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let (_, made) = server
        .admin_ask(
            Method::POST,
            path,
            &json!({"metadata": {"name": "p"}, "spec": spec}),
        )
        .await;
    assert_eq!(made["status"]["disruptionsAllowed"], 0, "{made}");
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    let (_, made) = server
        .admin_ask(Method::POST, &format!("{DEFAULT}/services"), &service)
        .await;
    assert_eq!(made["status"], json!({"loadBalancer": {}}));
    let (_, made) = server
        .admin_ask(
            Method::POST,
            "/api/v1/nodes",
            &json!({"metadata": {"name": "n"}}),
        )
        .await;
    assert!(
        made["status"].is_object() && made["spec"].is_object(),
        "{made}"
    );
}

#[tokio::test]
async fn refusals_and_deprecated_kinds_have_warnings() {
    let server = Local::new().await;
    let bad = r#"{"metadata":{"name":"Bad"},"odd":1}"#;
    let path = format!("{DEFAULT}/configmaps");
    let (status, _, warnings) = ask(&server, Method::POST, &path, "application/json", bad).await;
    assert_eq!(
        (status, &*warnings),
        (
            StatusCode::UNPROCESSABLE_ENTITY,
            &["299 - \"unknown field \\\"odd\\\"\"".to_owned()][..]
        )
    );
    let (_, _, warnings) = ask(
        &server,
        Method::GET,
        &format!("{DEFAULT}/endpoints"),
        "",
        "",
    )
    .await;
    let words =
        "299 - \"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice\"";
    assert_eq!(warnings, [words]);
}

#[tokio::test]
async fn resources_are_discovered_in_upstreams_order_of_fields() {
    let server = Local::new().await;
    let (_, _, bytes) = server
        .send(&UserInfo::admin("a"), Method::GET, "/api/v1", &[], "")
        .await;
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let pods = r#"{"name":"pods","singularName":"pod","namespaced":true,"kind":"Pod","verbs":["create","delete","deletecollection","get","list","patch","update","watch"],"shortNames":["po"],"categories":["all"]"#;
    assert!(text.contains(pods), "{text}");
    assert!(text.starts_with(
        r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":["#
    ));
}

#[tokio::test]
async fn the_older_document_is_there_in_both_forms() {
    let server = Local::new().await;
    let admin = UserInfo::admin("a");
    let binary = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let ask = async |accept: &str| {
        server
            .send(
                &admin,
                Method::GET,
                "/openapi/v2",
                &[("accept", accept)],
                "",
            )
            .await
    };
    let (_, headers, bytes) = ask(binary).await;
    assert_eq!(
        headers["content-type"],
        "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
    );
    assert!(
        bytes.windows(19).any(|text| text == b"#/definitions/io.k8")
            && bytes.starts_with(b"\n\x032.0")
    );
    for accept in ["", "*/*", "application/json", "application/json;q=0.9, */*"] {
        let (_, headers, bytes) = ask(accept).await;
        assert_eq!(headers["content-type"], "application/json", "{accept}");
        let document: Value = serde_json::from_slice(&bytes).unwrap();
        assert!(document["definitions"].is_object());
        let list = &document["definitions"]["io.k8s.api.core.v1.ServiceList"];
        let items = &list["properties"]["items"]["description"];
        assert_eq!(items, "List of services.");
        let list = &document["paths"]["/api/v1/services"]["get"]["parameters"];
        let words = |name: &str| {
            let mut all = list.as_array().unwrap().iter();
            let found = all.find(|parameter| parameter["name"] == name).unwrap();
            found["description"].as_str().unwrap().to_owned()
        };
        for selector in ["fieldSelector", "labelSelector"] {
            assert!(words(selector).contains("restrict the list of returned objects"));
        }
        assert!(words("watch").starts_with("Watch for changes to the described resources and"));
    }
    assert_eq!(ask("text/html").await.0, StatusCode::NOT_ACCEPTABLE);
}
