//! Subresources: scale, eviction, bindings, the node's proxy.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::{Kubelet, Local};
use http::{Method, StatusCode};
use master_client::UserInfo;
use serde_json::{Value, json};
use std::sync::Arc;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const PODS: &str = "/api/v1/namespaces/default/pods";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

async fn create(server: &Local, path: &str, object: Value) {
    let (status, answer) = server.admin_ask(Method::POST, path, &object).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
}

fn deployment(name: &str, replicas: u32) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "x:1"}]}},
    }})
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "x:1"}]}})
}

#[tokio::test]
async fn a_scale_is_read_replaced_and_patched() {
    let server = Local::new().await;
    create(&server, DEPLOYMENTS, deployment("web", 2)).await;
    let path = format!("{DEPLOYMENTS}/web/scale");
    let (_, mut scale) = server.admin_ask(Method::GET, &path, &Value::Null).await;
    assert_eq!(
        (&scale["kind"], &scale["apiVersion"]),
        (&json!("Scale"), &json!("autoscaling/v1"))
    );
    assert_eq!(
        (&scale["spec"]["replicas"], &scale["status"]["selector"]),
        (&json!(2), &json!("app=web"))
    );
    scale["spec"]["replicas"] = json!(5);
    let (status, scaled) = server.admin_ask(Method::PUT, &path, &scale).await;
    assert_eq!(
        (status, &scaled["spec"]["replicas"]),
        (StatusCode::OK, &json!(5)),
        "{scaled}"
    );
    let (status, outdated) = server.admin_ask(Method::PUT, &path, &scale).await;
    assert_eq!(
        (status, &outdated["reason"]),
        (StatusCode::CONFLICT, &json!("Conflict"))
    );
    let (_, scaled) = server
        .admin_ask(Method::PATCH, &path, &json!({"spec": {"replicas": 1}}))
        .await;
    assert_eq!(scaled["spec"]["replicas"], 1);
    let (_, own) = server
        .admin_ask(Method::GET, &format!("{DEPLOYMENTS}/web"), &Value::Null)
        .await;
    assert_eq!(
        (&own["spec"]["replicas"], &own["metadata"]["generation"]),
        (&json!(1), &json!(3))
    );
    let (status, bad) = server
        .admin_ask(Method::PATCH, &path, &json!({"spec": {"replicas": -1}}))
        .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        bad["message"],
        "Scale.autoscaling \"web\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0"
    );
    let dry = format!("{path}?dryRun=All");
    let (_, answer) = server
        .admin_ask(Method::PATCH, &dry, &json!({"spec": {"replicas": 9}}))
        .await;
    assert_eq!(answer["spec"]["replicas"], 9);
    let (_, same) = server.admin_ask(Method::GET, &path, &Value::Null).await;
    assert_eq!(same["spec"]["replicas"], 1);
    let (status, _) = server
        .admin_ask(
            Method::GET,
            &format!("{DEPLOYMENTS}/none/scale"),
            &Value::Null,
        )
        .await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

/// Pods a and b, of which the budget p wants one.
async fn two_ready_pods_under_a_budget(server: &Local) {
    for name in ["a", "b"] {
        create(server, PODS, pod(name)).await;
        let running = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        let (status, answer) = server
            .admin_ask(Method::PATCH, &format!("{PODS}/{name}/status"), &running)
            .await;
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
    let selector = json!({"matchLabels": {"app": "web"}});
    let budget =
        json!({"metadata": {"name": "p"}, "spec": {"minAvailable": 1, "selector": selector}});
    create(server, BUDGETS, budget).await;
}

#[tokio::test]
async fn a_budget_pays_for_evictions_until_it_is_spent() {
    let server = Local::new().await;
    two_ready_pods_under_a_budget(&server).await;
    let evict = |name: &str| json!({"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": name}});
    let (status, refused) = server
        .admin_ask(Method::POST, &format!("{PODS}/a/eviction"), &evict("a"))
        .await;
    assert_eq!(
        status,
        StatusCode::TOO_MANY_REQUESTS,
        "its controller has not seen it: {refused}"
    );
    let counted = json!({"status": {
        "observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2,
    }});
    let (status, answer) = server
        .admin_ask(Method::PATCH, &format!("{BUDGETS}/p/status"), &counted)
        .await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let (status, _) = server
        .admin_ask(
            Method::POST,
            &format!("{PODS}/a/eviction?dryRun=All"),
            &evict("a"),
        )
        .await;
    assert_eq!(status, StatusCode::CREATED);
    let (status, answer) = server
        .admin_ask(Method::POST, &format!("{PODS}/a/eviction"), &evict("a"))
        .await;
    assert_eq!(
        (status, &answer["status"]),
        (StatusCode::CREATED, &json!("Success")),
        "{answer}"
    );
    assert_eq!(
        server
            .admin_ask(Method::GET, &format!("{PODS}/a"), &Value::Null)
            .await
            .0,
        StatusCode::NOT_FOUND
    );
    let (status, spent) = server
        .admin_ask(Method::POST, &format!("{PODS}/b/eviction"), &evict("b"))
        .await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(spent["details"]["causes"][0]["reason"], "DisruptionBudget");
    let (_, paid) = server
        .admin_ask(Method::GET, &format!("{BUDGETS}/p"), &Value::Null)
        .await;
    assert_eq!(paid["status"]["disruptionsAllowed"], 0);
    assert!(paid["status"]["disruptedPods"]["a"].is_string(), "{paid}");
    assert_eq!(
        server
            .admin_ask(Method::GET, &format!("{PODS}/b"), &Value::Null)
            .await
            .0,
        StatusCode::OK
    );
    let (status, wrong) = server
        .admin_ask(Method::POST, &format!("{PODS}/b/eviction"), &evict("c"))
        .await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{wrong}");
}

/// One that is ready pays in any case.
#[tokio::test]
async fn a_pod_that_is_not_ready_is_evicted_as_its_budgets_policy_says() {
    // The policy, healthy and wanted pods, and whether the pod may go.
    for (policy, healthy, wanted, goes) in [
        (Value::Null, 1, 1, true),
        (Value::Null, 1, 2, false),
        (json!("IfHealthyBudget"), 1, 1, true),
        (json!("IfHealthyBudget"), 1, 2, false),
        (json!("IfHealthyBudget"), 0, 0, false),
        (json!("AlwaysAllow"), 1, 2, true),
    ] {
        let server = Local::new().await;
        two_ready_pods_under_a_budget(&server).await;
        let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
        let counted = json!({"status": {"observedGeneration": 2, "disruptionsAllowed": 0,
            "currentHealthy": healthy, "desiredHealthy": wanted, "expectedPods": 2}});
        let says = json!({"spec": {"unhealthyPodEvictionPolicy": policy}});
        for (path, change) in [
            (format!("{PODS}/a/status"), unready),
            (format!("{BUDGETS}/p"), says),
            (format!("{BUDGETS}/p/status"), counted),
        ] {
            let (status, answer) = server.admin_ask(Method::PATCH, &path, &change).await;
            assert_eq!(status, StatusCode::OK, "{answer}");
        }
        for (name, may_go) in [("a", goes), ("b", false)] {
            let evict =
                json!({"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": name}});
            let path = format!("{PODS}/{name}/eviction");
            let (status, answer) = server.admin_ask(Method::POST, &path, &evict).await;
            let expected = if may_go {
                StatusCode::CREATED
            } else {
                StatusCode::TOO_MANY_REQUESTS
            };
            assert_eq!(
                status, expected,
                "{name}: {policy}, {healthy} of {wanted}: {answer}"
            );
        }
        let path = format!("{BUDGETS}/p");
        let (_, budget) = server.admin_ask(Method::GET, &path, &Value::Null).await;
        let paid = &budget["status"]["disruptedPods"];
        assert_eq!(*paid, Value::Null, "nothing is paid for it");
    }
}

/// So a Job whose failure policy ignores disruptions does not count it, whatever it was doing.
#[tokio::test]
async fn a_pod_that_has_not_run_yet_says_that_it_is_evicted() {
    let server = Local::new().await;
    create(&server, PODS, pod("p")).await;
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    create(&server, &format!("{PODS}/p/binding"), binding).await;
    let evict = json!({"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": "p"}});
    create(&server, &format!("{PODS}/p/eviction"), evict).await;
    let (_, going) = server
        .admin_ask(Method::GET, &format!("{PODS}/p"), &Value::Null)
        .await;
    assert!(going["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(going["status"]["phase"], "Pending");
    let conditions = going["status"]["conditions"].as_array().unwrap();
    let target = conditions
        .iter()
        .find(|one| one["type"] == "DisruptionTarget");
    let target = target.unwrap();
    assert_eq!(
        (&target["status"], &target["reason"]),
        (&json!("True"), &json!("EvictionByEvictionAPI"))
    );
}

#[tokio::test]
async fn pods_are_bound_by_the_older_path_too() {
    let server = Local::new().await;
    create(&server, PODS, pod("p")).await;
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    let path = "/api/v1/namespaces/default/bindings";
    let (status, answer) = server.admin_ask(Method::POST, path, &binding).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    let (_, bound) = server
        .admin_ask(Method::GET, &format!("{PODS}/p"), &Value::Null)
        .await;
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(
        server.admin_ask(Method::POST, path, &binding).await.0,
        StatusCode::CONFLICT
    );
    assert_eq!(
        server.admin_ask(Method::GET, path, &Value::Null).await.0,
        StatusCode::METHOD_NOT_ALLOWED
    );
}

/// As upstream, so that a scheduler binds the pod that it looked at.
#[tokio::test]
async fn a_binding_that_names_a_version_of_its_pod_binds_no_other() {
    let server = Local::new().await;
    create(&server, PODS, pod("p")).await;
    let path = format!("{PODS}/p");
    let (_, seen) = server.admin_ask(Method::GET, &path, &Value::Null).await;
    let label = json!({"metadata": {"labels": {"zone": "a"}}});
    let (_, now) = server.admin_ask(Method::PATCH, &path, &label).await;
    for (at, expected) in [(&seen, StatusCode::CONFLICT), (&now, StatusCode::CREATED)] {
        let version = &at["metadata"]["resourceVersion"];
        let metadata = json!({"name": "p", "resourceVersion": version});
        let binding = json!({"metadata": metadata, "target": {"kind": "Node", "name": "n1"}});
        let path = format!("{path}/binding");
        let (status, answer) = server.admin_ask(Method::POST, &path, &binding).await;
        assert_eq!(status, expected, "{answer}");
    }
}

/// A binding's labels and annotations become the pod's, and its document has no schema: a pod that
/// nobody could read would hold up every part that follows pods.
#[tokio::test]
async fn a_binding_adds_to_its_pod_what_the_pod_could_have_itself_and_nothing_else() {
    let server = Local::new().await;
    let mut full = pod("p");
    full["metadata"]["annotations"] = json!({"a": "x".repeat(200 << 10)});
    create(&server, PODS, full).await;
    let mut large = pod("large");
    large["spec"]["containers"][0]["args"] = json!(vec!["a"; 200_000]);
    create(&server, PODS, large).await;
    let many: serde_json::Map<String, Value> = (0..70_000)
        .map(|number| (format!("k{number}"), Value::from("")))
        .collect();
    let node = json!({"kind": "Node", "name": "n1"});
    let long = "x".repeat(100 << 10);
    // Pod, metadata, target, code, and words of the refusal.
    let refused = json!([
        ["p", {"labels": {"a": 1}}, node, 400, "metadata.labels: expected a map of strings"],
        ["p", {"labels": ["a"]}, node, 400, "metadata.labels"],
        ["p", {"annotations": {"b": {"c": "d"}}}, node, 400, "metadata.annotations"],
        ["p", {"annotations": {"b": null}}, node, 400, "metadata.annotations"],
        ["p", {"labels": {"a b": "c"}}, node, 422, "metadata.labels: Invalid value"],
        ["p", {"labels": {"a": "not a value"}}, node, 422, "metadata.labels: Invalid value"],
        ["p", {"annotations": {"\"}": "c"}}, node, 422, "metadata.annotations: Invalid value"],
        ["p", {"annotations": {"b": long}}, node, 422, "metadata.annotations: Too long"],
        ["p", {}, {"name": "a/b"}, 422, "target.name: Invalid value"],
        ["p", {}, {"kind": "Node"}, 422, "target.name: Required value"],
        ["p", {}, {"kind": "Pod", "name": "n1"}, 422, "target.kind: Unsupported value"],
        ["large", {"labels": many}, node, 413, "more than 262144 values"],
    ]);
    for case in refused.as_array().unwrap() {
        let path = format!("{PODS}/{}", case[0].as_str().unwrap());
        let binding = json!({"metadata": case[1], "target": case[2]});
        let at = format!("{path}/binding");
        let (status, answer) = server.admin_ask(Method::POST, &at, &binding).await;
        let (text, words) = (answer["message"].as_str(), case[4].as_str().unwrap());
        assert_eq!(json!(status.as_u16()), case[3], "{words}: {text:?}");
        assert!(text.unwrap().contains(words), "{words}: {text:?}");
        let (_, stored) = server.admin_ask(Method::GET, &path, &Value::Null).await;
        assert_eq!(stored["spec"]["nodeName"], Value::Null, "{words}");
    }
    let metadata = json!({"labels": {"zone": "a"}, "annotations": {"b": "c"}});
    let binding = json!({"metadata": metadata, "target": node});
    create(&server, &format!("{PODS}/p/binding"), binding).await;
    let (_, bound) = server
        .admin_ask(Method::GET, &format!("{PODS}/p"), &Value::Null)
        .await;
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(
        bound["metadata"]["labels"],
        json!({"app": "web", "zone": "a"})
    );
    assert_eq!(bound["metadata"]["annotations"]["b"], "c");
}

#[tokio::test]
async fn a_nodes_own_api_is_reached() {
    let server = Local::new().await;
    let kubelet = Kubelet::default();
    server.api.set_node_dialer(Arc::new(kubelet.clone()));
    let node = json!({"metadata": {"name": "n1"}, "status": {
        "addresses": [{"type": "InternalIP", "address": "10.0.0.9"}],
    }});
    create(&server, "/api/v1/nodes", node).await;
    let admin = UserInfo::admin("a");
    for (path, port, seen) in [
        (
            "n1/proxy/metrics/resource?x=1",
            10250,
            "/metrics/resource?x=1",
        ),
        ("n1:10255/proxy/pods", 10255, "/pods"),
        ("https:n1:10250/proxy/a%2Fb/", 10250, "/a%2Fb/"),
    ] {
        let (status, _, bytes) = server
            .send(
                &admin,
                Method::GET,
                &format!("/api/v1/nodes/{path}"),
                &[],
                "",
            )
            .await;
        assert_eq!(
            (status, &bytes[..]),
            (StatusCode::OK, &b"line 1\nline 2\n"[..]),
            "{path}"
        );
        let (target, asked) = kubelet.asked.lock().unwrap().pop().unwrap();
        assert_eq!((target.port, asked.as_str()), (port, seen));
    }
    let (status, headers, _) = server
        .send(&admin, Method::GET, "/api/v1/nodes/n1/proxy?a=b", &[], "")
        .await;
    assert_eq!(
        (status.as_u16(), &headers["location"]),
        (301, &"/api/v1/nodes/n1/proxy/?a=b".parse().unwrap())
    );
    for (path, code) in [
        ("/api/v1/nodes/none/proxy/x", 404),
        ("/api/v1/nodes/http:n1:80/proxy/x", 400),
        ("/api/v1/nodes/n1:x/proxy/x", 400),
        ("/api/v1/namespaces/default/services/none/proxy/x", 404),
    ] {
        let (status, _, _) = server.send(&admin, Method::GET, path, &[], "").await;
        assert_eq!(status.as_u16(), code, "{path}");
    }
}

/// Policies select a namespace by the label with its name, and a write of its status has labels.
#[tokio::test]
async fn a_namespace_has_the_label_with_its_name_whatever_its_status_brings() {
    const LABEL: &str = "kubernetes.io/metadata.name";
    let server = Local::new().await;
    let namespace = json!({"metadata": {"name": "mine"}});
    create(&server, "/api/v1/namespaces", namespace).await;
    let path = "/api/v1/namespaces/mine/status";
    for labels in [json!({LABEL: "kube-system"}), json!({LABEL: null})] {
        let change = json!({"metadata": {"labels": labels}});
        let (status, answer) = server.admin_ask(Method::PATCH, path, &change).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_eq!(answer["metadata"]["labels"][LABEL], "mine");
    }
}
