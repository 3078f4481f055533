//! Objects that every cluster has, canonical quantities, and warnings about deprecated fields, end
//! to end.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use http::{Method, StatusCode};
use master_api::{ApiServer, Options};
use master_client::UserInfo;
use master_store::{EmbeddedStore, Op, Store};
use serde_json::{Value, json};
use std::sync::Arc;

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
const FLOWS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";

async fn get(local: &Local, path: &str) -> Value {
    let (status, answer) = local.admin_ask(Method::GET, path, &Value::Null).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer
}

/// Warnings of an answer, without their code.
async fn warnings(local: &Local, method: Method, path: &str, body: &Value) -> Vec<String> {
    let user = UserInfo::admin("admin");
    let (_, headers, _) = local
        .send(
            &user,
            method,
            path,
            &[("content-type", "application/json")],
            body.to_string(),
        )
        .await;
    let plain = |value: &http::HeaderValue| {
        value
            .to_str()
            .unwrap()
            .trim_start_matches("299 - ")
            .trim_matches('"')
            .to_owned()
    };
    headers.get_all("warning").iter().map(plain).collect()
}

/// Server-side apply.
async fn apply(local: &Local, manager: &str, path: &str, body: &Value) -> (StatusCode, Value) {
    let path = format!("{path}?fieldManager={manager}");
    let headers = [("content-type", "application/apply-patch+yaml")];
    let (status, _, bytes) = local
        .send(
            &UserInfo::admin("admin"),
            Method::PATCH,
            &path,
            &headers,
            body.to_string(),
        )
        .await;
    (status, serde_json::from_slice(&bytes).unwrap())
}

#[tokio::test]
async fn every_cluster_has_upstreams_flow_schemas_and_they_are_kept() {
    let local = Local::new().await;
    let names = |list: &Value| -> Vec<String> {
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let flows = get(&local, &format!("{FLOWS}/flowschemas")).await;
    assert_eq!(
        names(&flows),
        [
            "catch-all",
            "exempt",
            "global-default",
            "kube-controller-manager",
            "kube-scheduler",
            "kube-system-service-accounts",
            "probes",
            "service-accounts",
            "system-leader-election",
            "system-node-high",
            "system-nodes",
        ]
    );
    let levels = get(&local, &format!("{FLOWS}/prioritylevelconfigurations")).await;
    assert_eq!(names(&levels).len(), 8);
    assert_eq!(
        flows["items"][0]["metadata"]["annotations"]["apf.kubernetes.io/autoupdate-spec"],
        "true"
    );
    let own = json!({"metadata": {"annotations": {"apf.kubernetes.io/autoupdate-spec": "false"}}, "spec": {"matchingPrecedence": 77}});
    local
        .admin_ask(Method::PATCH, &format!("{FLOWS}/flowschemas/probes"), &own)
        .await;
    local
        .admin_ask(
            Method::DELETE,
            &format!("{FLOWS}/flowschemas/catch-all"),
            &Value::Null,
        )
        .await;
    local.api.prepare().await.unwrap();
    let after = get(&local, &format!("{FLOWS}/flowschemas")).await;
    assert_eq!(names(&after), names(&flows), "what is missing comes back");
    assert_eq!(
        get(&local, &format!("{FLOWS}/flowschemas/probes")).await["spec"]["matchingPrecedence"],
        77
    );
}

#[tokio::test]
async fn amounts_are_kept_in_the_one_way_to_write_them() {
    let local = Local::new().await;
    let quota = |cpu: &Value| json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"cpu": cpu, "memory": "1024Mi"}}});
    let (_, made) = local
        .admin_ask(Method::POST, QUOTAS, &quota(&json!(0.5)))
        .await;
    assert_eq!(
        made["spec"]["hard"],
        json!({"cpu": "500m", "memory": "1Gi"})
    );
    let path = format!("{QUOTAS}/q");
    let (_, patched) = local
        .admin_ask(
            Method::PATCH,
            &path,
            &json!({"spec": {"hard": {"cpu": "1000m"}}}),
        )
        .await;
    assert_eq!(patched["spec"]["hard"]["cpu"], "1");
    let (_, same) = local
        .admin_ask(
            Method::PATCH,
            &path,
            &json!({"spec": {"hard": {"cpu": "1.0"}}}),
        )
        .await;
    assert_eq!(
        same["metadata"]["resourceVersion"], patched["metadata"]["resourceVersion"],
        "nothing changed"
    );
}

#[tokio::test]
async fn an_amount_that_is_applied_in_another_way_is_no_change_and_no_conflict() {
    let local = Local::new().await;
    let path = format!("{QUOTAS}/q");
    let quota = |cpu: &str| json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"cpu": cpu}}});
    let (_, first) = apply(&local, "one", &path, &quota("0.5")).await;
    assert_eq!(first["spec"]["hard"]["cpu"], "500m");
    let (_, again) = apply(&local, "one", &path, &quota("0.5")).await;
    assert_eq!(again["metadata"], first["metadata"], "applied again");
    let (status, shared) = apply(&local, "two", &path, &quota("500m")).await;
    assert_eq!(status, StatusCode::OK, "{shared}");
    let (status, _) = apply(&local, "two", &path, &quota("0.6")).await;
    assert_eq!(status, StatusCode::CONFLICT);
}

#[tokio::test]
async fn nothing_is_made_under_a_quota_before_it_is_counted() {
    let local = Local::new().await;
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"configmaps": "5"}}});
    local.admin_ask(Method::POST, QUOTAS, &quota).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let (status, answer) = local
        .admin_ask(Method::POST, maps, &json!({"metadata": {"name": "m"}}))
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert_eq!(
        answer["message"],
        "configmaps \"m\" is forbidden: status unknown for quota: q, resources: configmaps"
    );
    let counted = json!({"status": {"hard": {"configmaps": "5"}, "used": {"configmaps": "0"}}});
    local
        .admin_ask(Method::PATCH, &format!("{QUOTAS}/q/status"), &counted)
        .await;
    let (status, _) = local
        .admin_ask(Method::POST, maps, &json!({"metadata": {"name": "m"}}))
        .await;
    assert_eq!(status, StatusCode::CREATED);
}

#[tokio::test]
async fn component_statuses_are_read_only() {
    let local = Local::new().await;
    let path = "/api/v1/componentstatuses";
    let list = get(&local, path).await;
    assert_eq!(list["kind"], "ComponentStatusList");
    let conditions = json!([{"type": "Healthy", "status": "True", "message": "ok"}]);
    assert!(
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .all(|part| part["conditions"] == conditions),
        "{list}"
    );
    let one = get(&local, &format!("{path}/scheduler")).await;
    assert_eq!(
        (&one["kind"], &one["conditions"]),
        (&json!("ComponentStatus"), &conditions)
    );
    assert_eq!(
        warnings(&local, Method::GET, path, &Value::Null).await,
        ["v1 ComponentStatus is deprecated in v1.19+"]
    );
    let (status, _) = local
        .admin_ask(Method::POST, path, &json!({"metadata": {"name": "x"}}))
        .await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    let headers = [("accept", "application/json;as=Table;g=meta.k8s.io;v=v1")];
    let (_, _, bytes) = local
        .send(&UserInfo::admin("admin"), Method::GET, path, &headers, "")
        .await;
    let table: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(
        table["rows"][0]["cells"],
        json!(["controller-manager", "Healthy", "ok", ""])
    );
}

#[tokio::test]
async fn deprecated_apis_warn_with_each_answer() {
    let local = Local::new().await;
    let words = "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice";
    let path = "/api/v1/namespaces/default/endpoints";
    assert_eq!(
        warnings(&local, Method::GET, path, &Value::Null).await,
        [words]
    );
    assert_eq!(
        warnings(&local, Method::GET, &format!("{path}/none"), &Value::Null).await,
        [words],
        "a refusal tells it too"
    );
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "nodeSelector": {"beta.kubernetes.io/os": "linux"}, "containers": [{"name": "c", "image": "i"}],
        "automountServiceAccountToken": false,
    }});
    let pods = "/api/v1/namespaces/default/pods";
    let old = "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \\\"kubernetes.io/os\\\" instead";
    assert_eq!(warnings(&local, Method::POST, pods, &pod).await, [old]);
    let audited = json!({"metadata": {"name": "n", "labels": {"pod-security.kubernetes.io/audit": "baseline"}}});
    assert_eq!(
        warnings(&local, Method::POST, "/api/v1/namespaces", &audited).await,
        ["the PodSecurity level of \\\"audit\\\" has no effect: this version keeps no audit log"]
    );
}

#[tokio::test]
async fn name_columns_of_tables_have_the_format_name() {
    let local = Local::new().await;
    for path in [
        "/api/v1/namespaces/default/events",
        "/apis/storage.k8s.io/v1/storageclasses",
        "/api/v1/nodes",
    ] {
        let headers = [("accept", "application/json;as=Table;g=meta.k8s.io;v=v1")];
        let (_, _, bytes) = local
            .send(&UserInfo::admin("admin"), Method::GET, path, &headers, "")
            .await;
        let table: Value = serde_json::from_slice(&bytes).unwrap();
        let columns = table["columnDefinitions"].as_array().unwrap();
        let formats: Vec<&str> = columns
            .iter()
            .filter(|column| column["name"] == "Name")
            .filter_map(|column| column["format"].as_str())
            .collect();
        assert_eq!(formats, ["name"], "{path}");
    }
}

#[tokio::test]
async fn devices_are_had_as_an_admin_where_the_namespace_is_labelled_for_it() {
    let local = Local::new().await;
    let request = json!({"name": "r", "exactly": {"deviceClassName": "c", "adminAccess": true}});
    let claim = json!({"metadata": {"name": "a"}, "spec": {"devices": {"requests": [request]}}});
    let template = json!({"metadata": {"name": "a"}, "spec": {"spec": claim["spec"]}});
    let root = "/apis/resource.k8s.io/v1/namespaces/default";
    for (path, object, field) in [
        (
            "resourceclaims",
            &claim,
            "spec.devices.requests[0].exactly.adminAccess",
        ),
        (
            "resourceclaimtemplates",
            &template,
            "spec.spec.devices.requests[0].exactly.adminAccess",
        ),
    ] {
        let (status, answer) = local
            .admin_ask(Method::POST, &format!("{root}/{path}"), object)
            .await;
        assert_eq!(
            (status, &answer["details"]["causes"][0]["field"]),
            (StatusCode::UNPROCESSABLE_ENTITY, &json!(field))
        );
    }
    let label = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}});
    local
        .admin_ask(Method::PATCH, "/api/v1/namespaces/default", &label)
        .await;
    let (status, answer) = local
        .admin_ask(Method::POST, &format!("{root}/resourceclaims"), &claim)
        .await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
}

#[tokio::test]
async fn an_owner_that_is_named_twice_is_kept_once() {
    let local = Local::new().await;
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"});
    let map = json!({"metadata": {"name": "m", "ownerReferences": [owner, owner]}});
    let path = "/api/v1/namespaces/default/configmaps";
    let words = warnings(&local, Method::POST, path, &map).await;
    assert!(
        words.len() == 1 && words[0].ends_with("duplicate UID(s) observed: u"),
        "{words:?}"
    );
    assert_eq!(
        get(&local, &format!("{path}/m")).await["metadata"]["ownerReferences"],
        json!([owner])
    );
}

#[tokio::test]
async fn objects_older_than_a_rule_may_stay_and_new_ones_must_keep_it() {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(folder.path()).unwrap());
    let api = ApiServer::new(Arc::clone(&store), Options::default());
    api.prepare().await.unwrap();
    let local = Local::of(api, folder);
    let path = "/api/v1/namespaces/default/configmaps";
    local
        .admin_ask(
            Method::POST,
            path,
            &json!({"metadata": {"name": "m"}, "data": {"good": "1"}}),
        )
        .await;
    let key = "configmaps/default/m";
    let entry = store.get(key).await.unwrap().entry.unwrap();
    let spoiled = String::from_utf8(entry.value.bytes().to_vec())
        .unwrap()
        .replace("\"good\":\"1\"", "\"not good\":\"1\"");
    assert!(spoiled.contains("not good"));
    store
        .commit(vec![Op::update(key, entry.modified, spoiled.into())])
        .await
        .unwrap();
    let change = |data: Value| {
        let (local, path) = (&local, format!("{path}/m"));
        async move {
            local
                .admin_ask(Method::PATCH, &path, &json!({"data": data}))
                .await
        }
    };
    let (status, answer) = change(json!({"more": "2"})).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let (status, answer) = change(json!({"nor this": "2"})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let causes = answer["details"]["causes"].as_array().unwrap();
    assert!(
        causes.len() == 1 && causes[0]["field"] == "data[nor this]",
        "{answer}"
    );
}

#[tokio::test]
async fn extensions_of_the_api_are_found_and_refused_with_the_reason() {
    let local = Local::new().await;
    for (group, plural) in [
        ("apiextensions.k8s.io", "customresourcedefinitions"),
        ("apiregistration.k8s.io", "apiservices"),
    ] {
        let groups = get(&local, "/apis").await;
        let mut named = groups["groups"].as_array().unwrap().iter();
        assert!(named.any(|one| one["name"] == group), "{group}");
        let own = get(&local, &format!("/apis/{group}")).await;
        assert_eq!(own["preferredVersion"]["version"], "v1");
        let served = get(&local, &format!("/apis/{group}/v1")).await;
        let mut served = served["resources"].as_array().unwrap().iter();
        let found = served.find(|one| one["name"] == plural).unwrap();
        let verbs = found["verbs"].as_array().unwrap();
        assert!(!verbs.contains(&json!("create")), "{verbs:?}");
        let path = format!("/apis/{group}/v1/{plural}");
        for (method, path) in [
            (Method::POST, path.clone()),
            (Method::PUT, format!("{path}/a")),
            (Method::DELETE, path.clone()),
        ] {
            let body = json!({"metadata": {"name": "a"}, "spec": {}});
            let (status, answer) = local.admin_ask(method, &path, &body).await;
            assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{answer}");
            let why = answer["message"].as_str().unwrap();
            assert!(why.contains("not supported by this version"), "{why}");
        }
        let (status, _) = local
            .admin_ask(Method::GET, &format!("{path}/a"), &Value::Null)
            .await;
        assert_eq!(status, StatusCode::NOT_FOUND);
    }
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(get(&local, definitions).await["items"], json!([]));
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    let list = get(&local, services).await;
    assert_eq!(list["kind"], "APIServiceList");
    let names: Vec<&str> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["metadata"]["name"].as_str().unwrap())
        .collect();
    for name in [
        "v1.",
        "v1.apps",
        "v2.autoscaling",
        "v1.autoscaling",
        "v1beta1.metrics.k8s.io",
    ] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    let apps = get(&local, &format!("{services}/v1.apps")).await;
    assert_eq!(
        (&apps["spec"]["group"], &apps["spec"]["version"]),
        (&json!("apps"), &json!("v1"))
    );
    let available = &apps["status"]["conditions"][0];
    assert_eq!(
        (
            &available["type"],
            &available["status"],
            &available["reason"]
        ),
        (&json!("Available"), &json!("True"), &json!("Local"))
    );
}
