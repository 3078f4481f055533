//! Server-side apply and managed fields, over the API and with an unmodified kubectl.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may stop at the first surprise"
)]

use crate::common::Local;
use crate::common::kubectl::Cluster;
use http::{Method, StatusCode};
use master_client::UserInfo;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const MAP: &str = "/api/v1/namespaces/default/configmaps/c";
const YAML: &str = "application/apply-patch+yaml";

fn config(data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data})
}

/// A patch of a type; the answer's status and JSON.
async fn patch(local: &Local, kind: &str, path: &str, body: &str) -> (StatusCode, Value) {
    let user = UserInfo::admin("admin");
    let headers = [("content-type", kind), ("user-agent", "robot/1.0 (x)")];
    let (status, _, bytes) = local
        .send(&user, Method::PATCH, path, &headers, body.to_owned())
        .await;
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

async fn apply(local: &Local, manager: &str, body: &Value) -> (StatusCode, Value) {
    patch(
        local,
        YAML,
        &format!("{MAP}?fieldManager={manager}"),
        &body.to_string(),
    )
    .await
}

async fn read(local: &Local) -> Value {
    local.admin_ask(Method::GET, MAP, &Value::Null).await.1
}

/// What each manager owns, by `name operation subresource`.
fn owners(object: &Value) -> Vec<(String, Value)> {
    let entries = object["metadata"]["managedFields"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = |entry: &Value| {
        format!(
            "{} {} {}",
            text(&entry["manager"]),
            text(&entry["operation"]),
            text(&entry["subresource"])
        )
        .trim()
        .to_owned()
    };
    entries
        .iter()
        .map(|entry| (name(entry), entry["fieldsV1"].clone()))
        .collect()
}

#[tokio::test]
async fn an_apply_creates_changes_and_leaves_alone() {
    let local = Local::new().await;
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {x: '1', y: '1'}\n";
    let (status, made) = patch(&local, YAML, &format!("{MAP}?fieldManager=a"), yaml).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    assert_eq!(
        owners(&made),
        [(
            "a Apply".to_owned(),
            json!({"f:data": {"f:x": {}, "f:y": {}}})
        )]
    );
    let (status, same) = apply(&local, "a", &config(&json!({"x": "1", "y": "1"}))).await;
    assert_eq!(
        (status, &same["metadata"]),
        (StatusCode::OK, &made["metadata"]),
        "nothing changed, not even the version"
    );
    let (status, less) = apply(&local, "a", &config(&json!({"x": "2"}))).await;
    assert_eq!(
        (status, &less["data"]),
        (StatusCode::OK, &json!({"x": "2"}))
    );
    assert_eq!(read(&local).await, less);
}

#[tokio::test]
async fn a_conflict_is_upstreams_status_and_force_overrides_it() {
    let local = Local::new().await;
    let (status, _) = local
        .admin_ask(
            Method::POST,
            "/api/v1/namespaces/default/configmaps?fieldManager=maker",
            &config(&json!({"x": "1"})),
        )
        .await;
    assert_eq!(status, StatusCode::CREATED);
    let (status, refusal) = apply(&local, "a", &config(&json!({"x": "2"}))).await;
    assert_eq!(status, StatusCode::CONFLICT);
    let expected = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Conflict", "code": 409,
        "message": "Apply failed with 1 conflict: conflict with \"maker\" using v1: .data.x",
        "details": {"causes": [{
            "reason": "FieldManagerConflict", "message": "conflict with \"maker\" using v1", "field": ".data.x",
        }]},
    });
    assert_eq!(refusal, expected);
    let (status, forced) = apply(&local, "a&force=true", &config(&json!({"x": "2"}))).await;
    assert_eq!(
        (status, &forced["data"]["x"]),
        (StatusCode::OK, &json!("2"))
    );
    let owned = owners(&forced);
    assert_eq!(
        owned[0],
        ("a Apply".to_owned(), json!({"f:data": {"f:x": {}}}))
    );
    assert_eq!(owned[1], ("maker Update".to_owned(), json!({"f:data": {}})));
}

#[tokio::test]
async fn malformed_parameters_and_bodies_are_refused() {
    let local = Local::new().await;
    let good = config(&json!({"x": "1"})).to_string();
    let refusal = |(status, body): (StatusCode, Value)| {
        (
            status.as_u16(),
            body["message"].as_str().unwrap_or_default().to_owned(),
        )
    };
    let (code, message) = refusal(patch(&local, YAML, MAP, &good).await);
    assert_eq!(code, 422);
    assert!(
        message.contains("fieldManager: Required value: is required for apply patch"),
        "{message}"
    );
    let forced = format!("{MAP}?force=true");
    let (code, message) =
        refusal(patch(&local, "application/merge-patch+json", &forced, "{}").await);
    assert_eq!(code, 422);
    assert!(
        message.contains("force: Forbidden: may not be specified for non-apply patch"),
        "{message}"
    );
    let mut managed = config(&json!({}));
    managed["metadata"]["managedFields"] = json!([]);
    assert_eq!(
        refusal(apply(&local, "a", &managed).await),
        (400, "metadata.managedFields must be nil".to_owned())
    );
    let other = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "c"}});
    assert_eq!(
        refusal(apply(&local, "a", &other).await),
        (400, "invalid object type: v1, Kind=Secret".to_owned())
    );
    let unknown = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}, "dta": {}});
    let expected = "failed to create typed patch object (default/c; v1, Kind=ConfigMap): .dta: field not declared in schema";
    assert_eq!(
        refusal(apply(&local, "a", &unknown).await),
        (500, expected.to_owned())
    );
    let twice = "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"c\"},\"data\":{\"x\":\"1\",\"x\":\"2\"}}";
    let (code, message) = refusal(
        patch(
            &local,
            YAML,
            &format!("{MAP}?fieldManager=a&fieldValidation=Strict"),
            twice,
        )
        .await,
    );
    assert_eq!(code, 400);
    assert!(
        message.starts_with("error strict decoding YAML: duplicate field"),
        "{message}"
    );
    let uid =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "uid": "u"}});
    let (code, message) = refusal(apply(&local, "a", &uid).await);
    assert_eq!(code, 409);
    assert!(
        message.contains(
            "uid mismatch: the provided object specified uid u, and no existing object was found"
        ),
        "{message}"
    );
    assert_eq!(
        local.admin_ask(Method::GET, MAP, &Value::Null).await.0,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn a_dry_run_answers_and_writes_nothing() {
    let local = Local::new().await;
    let (status, made) = apply(&local, "a&dryRun=All", &config(&json!({"x": "1"}))).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    assert_eq!(owners(&made)[0].0, "a Apply");
    assert_eq!(
        local.admin_ask(Method::GET, MAP, &Value::Null).await.0,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn every_write_keeps_account() {
    let local = Local::new().await;
    apply(&local, "a", &config(&json!({"x": "1"}))).await;
    let (status, merged) = patch(
        &local,
        "application/merge-patch+json",
        MAP,
        r#"{"data":{"y":"1"}}"#,
    )
    .await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        owners(&merged)[1],
        ("robot Update".to_owned(), json!({"f:data": {"f:y": {}}}))
    );
    let (_, kept) = patch(
        &local,
        "application/merge-patch+json",
        MAP,
        r#"{"data":{"y":"1"}}"#,
    )
    .await;
    assert_eq!(kept, merged);
    let (_, labelled) = patch(
        &local,
        "application/json-patch+json",
        &format!("{MAP}?fieldManager=b"),
        r#"[{"op":"add","path":"/metadata/labels","value":{"l":"1"}}]"#,
    )
    .await;
    // They are sorted by time, and a second may have passed or not.
    assert!(
        owners(&labelled).iter().any(|(who, _)| who == "b Update"),
        "{labelled}"
    );
    // A client that does not send managed fields removes nothing.
    let mut plain = labelled.clone();
    plain["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("managedFields");
    plain["data"]["z"] = json!("1");
    let (status, put) = local
        .admin_ask(Method::PUT, &format!("{MAP}?fieldManager=c"), &plain)
        .await;
    assert_eq!(status, StatusCode::OK, "{put}");
    let names: BTreeSet<String> = owners(&put).into_iter().map(|(name, _)| name).collect();
    assert_eq!(
        Vec::from_iter(names),
        ["a Apply", "b Update", "c Update", "robot Update"]
    );
}

#[tokio::test]
async fn managed_fields_can_be_edited_and_cleared_by_hand() {
    let local = Local::new().await;
    let (_, made) = apply(&local, "a", &config(&json!({"x": "1"}))).await;
    let move_over = json!([
        {"op": "test", "path": "/metadata/managedFields/0/manager", "value": "a"},
        {"op": "replace", "path": "/metadata/managedFields/0/manager", "value": "b"},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": made["metadata"]["resourceVersion"]},
    ]);
    let (status, moved) = patch(
        &local,
        "application/json-patch+json",
        MAP,
        &move_over.to_string(),
    )
    .await;
    assert_eq!(status, StatusCode::OK, "{moved}");
    assert_eq!(owners(&moved)[0].0, "b Apply");
    let (status, _) = patch(
        &local,
        "application/json-patch+json",
        MAP,
        &move_over.to_string(),
    )
    .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let clear = r#"{"metadata":{"managedFields":[{}]}}"#;
    let (status, cleared) = patch(&local, "application/merge-patch+json", MAP, clear).await;
    assert_eq!(
        (status, &cleared["metadata"]["managedFields"]),
        (StatusCode::OK, &Value::Null)
    );
    let (_, again) = apply(&local, "c", &config(&json!({"x": "1"}))).await;
    let names: Vec<String> = owners(&again).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["c Apply", "before-first-apply Update"]);
}

#[tokio::test]
async fn the_status_is_owned_by_its_writer() {
    let local = Local::new().await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    let (status, _) = local
        .admin_ask(Method::POST, "/api/v1/nodes?fieldManager=maker", &node)
        .await;
    assert_eq!(status, StatusCode::CREATED);
    let ready = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"unschedulable": true},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    let (status, applied) = patch(
        &local,
        YAML,
        "/api/v1/nodes/n/status?fieldManager=kubelet",
        &ready.to_string(),
    )
    .await;
    assert_eq!(status, StatusCode::OK, "{applied}");
    assert_eq!(applied["spec"].get("unschedulable"), None);
    let condition = json!({".": {}, "f:status": {}, "f:type": {}});
    let own = json!({"f:status": {"f:conditions": {"k:{\"type\":\"Ready\"}": condition}}});
    assert!(
        owners(&applied).contains(&("kubelet Apply status".to_owned(), own)),
        "{applied}"
    );
    let (status, _) = patch(
        &local,
        YAML,
        "/api/v1/nodes/missing/status?fieldManager=kubelet",
        &json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "missing"},
        })
        .to_string(),
    )
    .await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn tables_leave_managed_fields_out_and_lists_and_metadata_have_them() {
    let local = Local::new().await;
    apply(&local, "a", &config(&json!({"x": "1"}))).await;
    let ask = async |accept: &str| {
        let path = "/api/v1/namespaces/default/configmaps?fieldSelector=metadata.name=c";
        let headers = [("accept", accept)];
        let (_, _, bytes) = local
            .send(&UserInfo::admin("admin"), Method::GET, path, &headers, "")
            .await;
        String::from_utf8(bytes.to_vec()).unwrap()
    };
    assert!(
        !ask("application/json;as=Table;v=v1;g=meta.k8s.io")
            .await
            .contains("fieldsV1")
    );
    for accept in [
        "application/json",
        "application/yaml",
        "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    ] {
        let text = ask(accept).await;
        assert!(
            text.contains("fieldsV1") && !text.contains("\\\"fieldsV1"),
            "{accept}: {text}"
        );
    }
}

#[tokio::test]
async fn replicas_are_owned_by_the_manager_that_scales() {
    let local = Local::new().await;
    let path = "/apis/apps/v1/namespaces/default/deployments/web";
    let (status, made) = patch(&local, YAML, &format!("{path}?fieldManager=a"), DEPLOYMENT).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let scale = |replicas: u32| {
        json!({
            "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web"}, "spec": {"replicas": replicas},
        })
    };
    let through = format!("{path}/scale?fieldManager=b");
    let (status, refusal) = patch(&local, YAML, &through, &scale(3).to_string()).await;
    assert_eq!(status, StatusCode::CONFLICT);
    let message = refusal["message"].as_str().unwrap();
    assert_eq!(
        message,
        "Apply failed with 1 conflict: conflict with \"a\": .spec.replicas"
    );
    let (status, scaled) = patch(
        &local,
        YAML,
        &format!("{through}&force=true"),
        &scale(3).to_string(),
    )
    .await;
    assert_eq!(
        (status, &scaled["spec"]["replicas"]),
        (StatusCode::OK, &json!(3)),
        "{scaled}"
    );
    let owned = owners(&local.admin_ask(Method::GET, path, &Value::Null).await.1);
    let replicas = json!({"f:spec": {"f:replicas": {}}});
    assert!(
        owned.contains(&("b Apply scale".to_owned(), replicas.clone())),
        "{owned:?}"
    );
    assert_eq!(owned[0].1["f:spec"].get("f:replicas"), None);
    let merge = r#"{"spec":{"replicas":4}}"#;
    let (status, _) = patch(
        &local,
        "application/merge-patch+json",
        &format!("{path}/scale?fieldManager=c"),
        merge,
    )
    .await;
    assert_eq!(status, StatusCode::OK);
    let owned = owners(&local.admin_ask(Method::GET, path, &Value::Null).await.1);
    assert!(
        owned.contains(&("c Update scale".to_owned(), replicas)),
        "{owned:?}"
    );
    assert!(
        !owned.iter().any(|(name, _)| name.starts_with('b')),
        "{owned:?}"
    );
}

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: 'reg/x:1', ports: [{containerPort: 80}]}
";

#[tokio::test]
async fn kubectl_applies_on_the_server() {
    let cluster = Cluster::start().await;
    let apply = "apply --server-side -f -";
    cluster
        .says(
            apply,
            DEPLOYMENT,
            &["deployment.apps/web serverside-applied"],
        )
        .await;
    let version = cluster
        .says(
            "get deployment web -o jsonpath={.metadata.resourceVersion}",
            "",
            &[],
        )
        .await;
    cluster
        .says(apply, DEPLOYMENT, &["serverside-applied"])
        .await;
    let same = cluster
        .says(
            "get deployment web -o jsonpath={.metadata.resourceVersion}",
            "",
            &[],
        )
        .await;
    assert_eq!(
        version, same,
        "an apply that changes nothing writes nothing"
    );
    let shown = cluster.says("get deployment web -o yaml", "", &[]).await;
    assert!(!shown.contains("managedFields"), "{shown}");
    cluster
        .says(
            "get deployment web -o yaml --show-managed-fields",
            "",
            &["manager: kubectl", "f:replicas"],
        )
        .await;
    cluster
        .says(
            "apply --server-side --field-manager=other --dry-run=server -f -",
            DEPLOYMENT,
            &["serverside-applied (server dry run)"],
        )
        .await;
}

#[tokio::test]
async fn kubectl_gets_conflicts_and_can_force_them() {
    let cluster = Cluster::start().await;
    let apply = "apply --server-side -f -";
    let replicas = "get deployment web -o jsonpath={.spec.replicas}";
    cluster
        .says(apply, DEPLOYMENT, &["serverside-applied"])
        .await;
    let scaled = DEPLOYMENT.replace("replicas: 2", "replicas: 3");
    let other = "apply --server-side --field-manager=other -f -";
    cluster
        .refuses(
            other,
            &scaled,
            "Apply failed with 1 conflict: conflict with \"kubectl\": .spec.replicas",
        )
        .await;
    cluster
        .says(
            &format!("{other} --force-conflicts"),
            &scaled,
            &["serverside-applied"],
        )
        .await;
    cluster.says(replicas, "", &["3"]).await;
    cluster
        .refuses(apply, DEPLOYMENT, "conflict with \"other\"")
        .await;
    // A manager that no longer applies a field loses its ownership; the other manager keeps it.
    let without = DEPLOYMENT.replace("  replicas: 2\n", "");
    cluster.says(apply, &without, &["serverside-applied"]).await;
    cluster.says(replicas, "", &["3"]).await;
    let (clean, said) = cluster
        .run(
            &["diff", "--server-side", "--force-conflicts", "-f", "-"],
            &without,
        )
        .await;
    assert!(clean, "{said}");
    let (clean, said) = cluster
        .run(
            &["diff", "--server-side", "--force-conflicts", "-f", "-"],
            &without.replace("reg/x:1", "reg/x:2"),
        )
        .await;
    assert!(!clean && said.contains("+      - image: reg/x:2"), "{said}");
}

#[tokio::test]
async fn kubectl_takes_over_from_its_client_side_apply() {
    let cluster = Cluster::start().await;
    cluster
        .says("apply -f -", DEPLOYMENT, &["deployment.apps/web created"])
        .await;
    cluster.says("apply -f -", DEPLOYMENT, &["unchanged"]).await;
    let changed = DEPLOYMENT
        .replace("reg/x:1", "reg/x:2")
        .replace("        ports", "");
    cluster
        .says(
            "apply --server-side -f -",
            &changed,
            &["serverside-applied"],
        )
        .await;
    let managers = cluster
        .says(
            "get deployment web -o jsonpath={.metadata.managedFields[*].manager} --show-managed-fields",
            "",
            &["kubectl"],
        )
        .await;
    assert!(
        !managers.contains("kubectl-client-side-apply"),
        "{managers}"
    );
    // What only client-side apply set is removed by the next apply without it.
    let without = changed.replace(", ports: [{containerPort: 80}]", "");
    cluster
        .says(
            "apply --server-side -f -",
            &without,
            &["serverside-applied"],
        )
        .await;
    let ports = cluster
        .says(
            "get deployment web -o jsonpath={.spec.template.spec.containers[0].ports}",
            "",
            &[],
        )
        .await;
    assert_eq!(ports, "");
    // The annotation is updated too, so that client-side apply can continue.
    cluster
        .says(
            "apply -f -",
            &without.replace("replicas: 2", "replicas: 4"),
            &["configured"],
        )
        .await;
    cluster
        .says(
            "get deployment web -o jsonpath={.spec.replicas}/{.spec.template.spec.containers[0].image}",
            "",
            &["4/reg/x:2"],
        )
        .await;
}

#[tokio::test]
async fn kubectl_edits_labels_and_sets_under_its_own_names() {
    let cluster = Cluster::start().await;
    cluster
        .says(
            "create configmap c --from-literal=a=1",
            "",
            &["configmap/c created"],
        )
        .await;
    cluster
        .says("label configmap c l=1", "", &["labeled"])
        .await;
    cluster
        .says("annotate configmap c n=1", "", &["annotated"])
        .await;
    cluster
        .says(
            "patch configmap c --type=merge -p {\"data\":{\"b\":\"2\"}}",
            "",
            &["patched"],
        )
        .await;
    let managers =
        "get configmap c -o jsonpath={.metadata.managedFields[*].manager} --show-managed-fields";
    cluster
        .says(
            managers,
            "",
            &[
                "kubectl-create",
                "kubectl-label",
                "kubectl-annotate",
                "kubectl-patch",
            ],
        )
        .await;
}
