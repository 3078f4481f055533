//! Pod templates, as clients of several sorts write them.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use http::{Method, StatusCode};
use master_client::UserInfo;
use serde_json::{Value, json};

const WEB: &str = "/apis/apps/v1/namespaces/default/deployments/web";

/// A Deployment whose template has zero values, as people and charts write them.
fn with_zeros() -> Value {
    let container = json!({"name": "c", "image": "a:1", "env": [], "tty": false, "workingDir": "",
        "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": false}]});
    let pods = json!({"hostNetwork": false, "nodeName": "", "tolerations": [], "enableServiceLinks": false,
        "containers": [container], "volumes": [{"name": "v", "emptyDir": {"medium": ""}}]});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 0, "paused": false, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": pods}}})
}

async fn write(local: &Local, method: Method, kind: &str, path: &str, body: &Value) -> Value {
    let headers = [("content-type", kind)];
    let (status, _, bytes) = local
        .send(
            &UserInfo::admin("admin"),
            method,
            path,
            &headers,
            body.to_string(),
        )
        .await;
    let answer: Value = serde_json::from_slice(&bytes).unwrap();
    let done = [StatusCode::OK, StatusCode::CREATED].contains(&status);
    assert!(done, "{answer}");
    answer
}

/// Clients with Go's types leave these fields out of what they write, so the pods of a workload
/// would be replaced for nothing.
#[tokio::test]
async fn zero_values_that_gos_types_leave_out_are_no_change() {
    let local = Local::new().await;
    let path = WEB.strip_suffix("/web").unwrap();
    let json = "application/json";
    let made = write(&local, Method::POST, json, path, &with_zeros()).await;
    let pods = &made["spec"]["template"]["spec"];
    for absent in [
        "/hostNetwork",
        "/nodeName",
        "/tolerations",
        "/containers/0/env",
        "/containers/0/tty",
        "/containers/0/volumeMounts/0/readOnly",
        "/volumes/0/emptyDir/medium",
    ] {
        assert_eq!(pods.pointer(absent), None, "{absent}");
    }
    // Those to which Go's types have pointers.
    assert_eq!(
        (&pods["enableServiceLinks"], &made["spec"]["replicas"]),
        (&json!(false), &json!(0))
    );
    let replaced = write(&local, Method::PUT, json, WEB, &with_zeros()).await;
    assert_eq!(replaced, made, "nothing changed, not even who owns what");
    let undo = json!([{"op": "replace", "path": "/spec/template", "value": with_zeros()["spec"]["template"]}]);
    let undone = write(
        &local,
        Method::PATCH,
        "application/json-patch+json",
        WEB,
        &undo,
    )
    .await;
    assert_eq!(undone["metadata"]["generation"], 1);
    for kind in [
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
    ] {
        let change = json!({"spec": {"template": {"spec": {"hostIPC": false, "hostAliases": []}}}});
        let same = write(&local, Method::PATCH, kind, WEB, &change).await;
        assert_eq!(same["metadata"]["generation"], 1);
    }
    let change = json!({"spec": {"template": {"spec": {"hostIPC": true}}}});
    let kind = "application/merge-patch+json";
    let changed = write(&local, Method::PATCH, kind, WEB, &change).await;
    assert_eq!(changed["metadata"]["generation"], 2);
}

/// Who applies a field owns it with any value, as upstream, and applies it again without a change.
#[tokio::test]
async fn zero_values_that_are_applied_are_owned() {
    let local = Local::new().await;
    let apply = |manager: &str| format!("{WEB}?fieldManager={manager}");
    let kind = "application/apply-patch+yaml";
    let made = write(&local, Method::PATCH, kind, &apply("a"), &with_zeros()).await;
    assert_eq!(made["spec"]["template"]["spec"]["hostNetwork"], Value::Null);
    let owned = &made["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:template"]["f:spec"];
    for field in ["f:hostNetwork", "f:tolerations", "f:enableServiceLinks"] {
        assert_eq!(owned[field], json!({}), "{field} in {owned}");
    }
    let same = write(&local, Method::PATCH, kind, &apply("a"), &with_zeros()).await;
    assert_eq!(same, made);
    let mut other = with_zeros();
    other["spec"]["template"]["spec"]["hostNetwork"] = true.into();
    let forced = format!("{}&force=true", apply("b"));
    let taken = write(&local, Method::PATCH, kind, &forced, &other).await;
    assert_eq!(taken["spec"]["template"]["spec"]["hostNetwork"], true);
    assert_eq!(taken["metadata"]["generation"], 2);
}
