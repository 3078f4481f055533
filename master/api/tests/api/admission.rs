//! Admission end to end: what plugins fill in and refuse, and quotas under concurrent writers.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use http::{Method, StatusCode};
use master_admission::EnabledPlugins;
use master_api::Options;
use master_client::UserInfo;
use serde_json::{Value, json};

fn pod(name: &str, more: &Value) -> Value {
    let mut spec = json!({"containers": [{"name": "a", "image": "x"}]});
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().cloned().unwrap_or_default());
    json!({"metadata": {"name": name}, "spec": spec})
}

async fn create(local: &Local, path: &str, object: &Value) -> Value {
    let (status, answer) = local.admin_ask(Method::POST, path, object).await;
    assert_eq!(status, StatusCode::CREATED, "{path}: {answer}");
    answer
}

async fn refused(local: &Local, path: &str, object: &Value, code: u16) -> String {
    let (status, answer) = local.admin_ask(Method::POST, path, object).await;
    assert_eq!(status.as_u16(), code, "{path}: {answer}");
    answer["message"].as_str().unwrap().to_owned()
}

/// A namespace with its service account.
async fn namespace(local: &Local, name: &str, labels: &Value) {
    create(
        local,
        "/api/v1/namespaces",
        &json!({"metadata": {"name": name, "labels": labels}}),
    )
    .await;
    let path = format!("/api/v1/namespaces/{name}/serviceaccounts");
    create(local, &path, &json!({"metadata": {"name": "default"}})).await;
}

const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test]
async fn a_plain_pod_gets_account_token_priority_and_tolerations() {
    let local = Local::new().await;
    let made = create(&local, PODS, &pod("a", &json!({}))).await;
    let spec = &made["spec"];
    assert_eq!(spec["serviceAccountName"], "default");
    assert_eq!(spec["priority"], 0);
    assert_eq!(spec["preemptionPolicy"], "PreemptLowerPriority");
    assert_eq!(spec["tolerations"].as_array().unwrap().len(), 2);
    let volume = &spec["volumes"][0];
    assert_eq!(
        volume["projected"]["sources"][0]["serviceAccountToken"]["path"],
        "token"
    );
    assert_eq!(
        spec["containers"][0]["volumeMounts"][0]["name"],
        volume["name"]
    );
}

#[tokio::test]
async fn pods_of_unknown_accounts_and_classes_are_refused() {
    let local = Local::new().await;
    let text = refused(
        &local,
        PODS,
        &pod("a", &json!({"serviceAccountName": "x"})),
        403,
    )
    .await;
    assert_eq!(
        text,
        "pods \"a\" is forbidden: error looking up service account default/x: serviceaccount \"x\" not found"
    );
    let text = refused(
        &local,
        PODS,
        &pod("a", &json!({"priorityClassName": "x"})),
        403,
    )
    .await;
    assert_eq!(
        text,
        "pods \"a\" is forbidden: no PriorityClass with name x was found"
    );
    let critical = create(
        &local,
        PODS,
        &pod("a", &json!({"priorityClassName": "system-node-critical"})),
    )
    .await;
    assert_eq!(critical["spec"]["priority"], 2_000_001_000);
    let text = refused(
        &local,
        PODS,
        &pod("b", &json!({"runtimeClassName": "x"})),
        403,
    )
    .await;
    assert_eq!(
        text,
        "pods \"b\" is forbidden: pod rejected: RuntimeClass \"x\" not found"
    );
}

#[tokio::test]
async fn a_disabled_plugin_is_not_called() {
    let admission = EnabledPlugins::new(&[], &["ServiceAccount"]).unwrap();
    let local = Local::with(Options {
        admission,
        ..Options::default()
    })
    .await;
    let made = create(&local, PODS, &pod("a", &json!({"serviceAccountName": "x"}))).await;
    assert_eq!(made["spec"].get("volumes"), None);
}

#[tokio::test]
async fn limit_ranges_fill_in_and_refuse() {
    let local = Local::new().await;
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [
        {"type": "Container", "max": {"cpu": "1"}, "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"}}]}});
    create(&local, "/api/v1/namespaces/default/limitranges", &range).await;
    let made = create(&local, PODS, &pod("a", &json!({}))).await;
    let resources = &made["spec"]["containers"][0]["resources"];
    assert_eq!(
        resources,
        &json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}})
    );
    let big =
        json!({"containers": [{"name": "a", "image": "x", "resources": {"limits": {"cpu": "2"}}}]});
    let text = refused(&local, PODS, &pod("b", &big), 403).await;
    assert_eq!(
        text,
        "pods \"b\" is forbidden: maximum cpu usage per Container is 1, but limit is 2"
    );
}

#[tokio::test]
async fn invalid_objects_are_reported_before_admission_refuses_them() {
    let local = Local::new().await;
    namespace(
        &local,
        "tight",
        &json!({"pod-security.kubernetes.io/enforce": "restricted"}),
    )
    .await;
    let path = "/api/v1/namespaces/tight/pods";
    let text = refused(
        &local,
        path,
        &pod("a", &json!({"restartPolicy": "Sometimes"})),
        422,
    )
    .await;
    assert!(text.contains("spec.restartPolicy"), "{text}");
    let text = refused(&local, path, &pod("a", &json!({})), 403).await;
    assert!(
        text.starts_with(
            "pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\": allowPriv"
        ),
        "{text}"
    );
}

#[tokio::test]
async fn a_namespace_warns_about_workloads_and_about_pods_that_are_there() {
    let local = Local::new().await;
    namespace(
        &local,
        "warned",
        &json!({"pod-security.kubernetes.io/warn": "baseline"}),
    )
    .await;
    let admin = UserInfo::admin("admin");
    let host =
        json!({"metadata": {"name": "t"}, "template": pod("x", &json!({"hostNetwork": true}))});
    let send = |path: &'static str, method: Method, object: Value| {
        let (local, admin) = (&local, &admin);
        async move {
            let kind = if method == Method::POST {
                "application/json"
            } else {
                "application/merge-patch+json"
            };
            local
                .send(
                    admin,
                    method,
                    path,
                    &[("content-type", kind)],
                    object.to_string(),
                )
                .await
        }
    };
    let (status, headers, _) =
        send("/api/v1/namespaces/warned/podtemplates", Method::POST, host).await;
    assert_eq!(status, StatusCode::CREATED);
    let warning = headers["warning"].to_str().unwrap();
    assert!(
        warning.contains("would violate PodSecurity \\\"baseline:latest\\\": host namespaces"),
        "{warning}"
    );
    let (status, _, _) = send(
        "/api/v1/namespaces/warned/pods",
        Method::POST,
        pod("p", &json!({"hostNetwork": true})),
    )
    .await;
    assert_eq!(status, StatusCode::CREATED);
    let enforce =
        json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
    let (status, headers, _) = send("/api/v1/namespaces/warned", Method::PATCH, enforce).await;
    assert_eq!(status, StatusCode::OK);
    let warnings: Vec<&str> = headers
        .get_all("warning")
        .iter()
        .map(|value| value.to_str().unwrap())
        .collect();
    assert!(
        warnings[0]
            .contains("existing pods in namespace \\\"warned\\\" violate the new PodSecurity"),
        "{warnings:?}"
    );
    assert!(
        warnings[1].contains("p: host namespaces (hostNetwork=true)"),
        "{warnings:?}"
    );
    let wrong =
        json!({"metadata": {"name": "w", "labels": {"pod-security.kubernetes.io/enforce": "x"}}});
    refused(&local, "/api/v1/namespaces", &wrong, 422).await;
}

/// Named invariant: under concurrent creations, `used` never exceeds `hard`, and equals the number
/// of created objects.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_quota_is_never_exceeded_by_concurrent_writers() {
    const ALLOWED: usize = 7;
    let local = Local::new().await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let hard = json!({"count/configmaps": ALLOWED.to_string(), "configmaps": "100"});
    create(
        &local,
        quotas,
        &json!({"metadata": {"name": "q"}, "spec": {"hard": hard}}),
    )
    .await;
    let status =
        json!({"status": {"hard": hard, "used": {"count/configmaps": "0", "configmaps": "0"}}});
    let (code, _) = local
        .admin_ask(Method::PATCH, &format!("{quotas}/q/status"), &status)
        .await;
    assert_eq!(code, StatusCode::OK);
    let maps = "/api/v1/namespaces/default/configmaps";
    let tries = (0..40).map(|number| {
        let local = &local;
        async move {
            local
                .admin_ask(
                    Method::POST,
                    maps,
                    &json!({"metadata": {"name": format!("m{number}")}}),
                )
                .await
        }
    });
    let answers = futures_util::future::join_all(tries).await;
    let made = answers
        .iter()
        .filter(|(status, _)| *status == StatusCode::CREATED)
        .count();
    let messages: Vec<&Value> = answers
        .iter()
        .filter(|(status, _)| *status == StatusCode::FORBIDDEN)
        .map(|(_, answer)| &answer["message"])
        .collect();
    assert_eq!(
        (made, messages.len()),
        (ALLOWED, 40 - ALLOWED),
        "{answers:?}"
    );
    assert!(messages[0].as_str().unwrap().ends_with(
        "is forbidden: exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=7, limited: count/configmaps=7"
    ), "{messages:?}");
    let (_, quota) = local
        .admin_ask(Method::GET, &format!("{quotas}/q"), &Value::Null)
        .await;
    assert_eq!(
        quota["status"]["used"],
        json!({"configmaps": "7", "count/configmaps": "7"})
    );
    let (_, list) = local.admin_ask(Method::GET, maps, &Value::Null).await;
    assert_eq!(list["items"].as_array().unwrap().len(), ALLOWED);
}

/// A pod that gets a deadline leaves one scope for another, whose quota may have no room for it.
#[tokio::test]
async fn a_deadline_is_charged_to_the_quota_of_pods_that_end() {
    let local = Local::new().await;
    for name in ["a", "b"] {
        create(&local, PODS, &pod(name, &json!({}))).await;
    }
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let hard = json!({"pods": "1"});
    let quota =
        json!({"metadata": {"name": "q"}, "spec": {"hard": hard, "scopes": ["Terminating"]}});
    create(&local, quotas, &quota).await;
    let status = json!({"status": {"hard": hard, "used": {"pods": "0"}}});
    let path = format!("{quotas}/q");
    let change = async |path: String, change: Value| {
        let (code, answer) = local.admin_ask(Method::PATCH, &path, &change).await;
        (code.as_u16(), answer)
    };
    assert_eq!(change(format!("{path}/status"), status).await.0, 200);
    let deadline = |seconds: u32| json!({"spec": {"activeDeadlineSeconds": seconds}});
    let (code, text) = change(format!("{PODS}/a"), deadline(60)).await;
    assert_eq!(code, 200, "{text}");
    let (code, text) = change(format!("{PODS}/b"), deadline(60)).await;
    assert_eq!(code, 403, "{text}");
    assert_eq!(
        text["message"],
        "pods \"b\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"
    );
    // Neither of these moves a pod.
    let (code, text) = change(format!("{PODS}/a"), deadline(30)).await;
    assert_eq!(code, 200, "{text}");
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let (code, text) = change(format!("{PODS}/b"), label).await;
    assert_eq!(code, 200, "{text}");
    let (_, quota) = local.admin_ask(Method::GET, &path, &Value::Null).await;
    assert_eq!(quota["status"]["used"], json!({"pods": "1"}));
}

#[tokio::test]
async fn a_dry_run_pays_nothing() {
    let local = Local::new().await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let hard = json!({"count/configmaps": "1"});
    create(
        &local,
        quotas,
        &json!({"metadata": {"name": "q"}, "spec": {"hard": hard}}),
    )
    .await;
    let status = json!({"status": {"hard": hard, "used": {"count/configmaps": "0"}}});
    local
        .admin_ask(Method::PATCH, &format!("{quotas}/q/status"), &status)
        .await;
    let map = json!({"metadata": {"name": "m"}});
    create(
        &local,
        "/api/v1/namespaces/default/configmaps?dryRun=All",
        &map,
    )
    .await;
    create(&local, "/api/v1/namespaces/default/configmaps", &map).await;
    refused(
        &local,
        "/api/v1/namespaces/default/configmaps",
        &json!({"metadata": {"name": "n"}}),
        403,
    )
    .await;
}

#[tokio::test]
async fn no_request_may_ask_for_the_admins_group() {
    let local = Local::new().await;
    let request = crate::common::signing_request("system:masters");
    let object = json!({"metadata": {"name": "c"}, "spec": {
        "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"], "request": request}});
    let text = refused(
        &local,
        "/apis/certificates.k8s.io/v1/certificatesigningrequests",
        &object,
        403,
    )
    .await;
    assert!(text.ends_with(
        "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"
    ));
}

#[tokio::test]
async fn a_resize_that_the_node_can_never_carry_out_is_refused() {
    let local = Local::new().await;
    let node = |name: &str, system: &str| json!({"metadata": {"name": name, "labels": {"kubernetes.io/os": system}}});
    let nodes = "/api/v1/nodes";
    create(&local, nodes, &node("n1", "linux")).await;
    create(&local, nodes, &node("n2", "windows")).await;
    let room = json!({"status": {"allocatable": {"cpu": "2", "memory": "1Gi"}}});
    local
        .admin_ask(Method::PATCH, &format!("{nodes}/n1/status"), &room)
        .await;
    let needs = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}});
    let with = |resources: Value| json!([{"name": "a", "image": "x", "resources": resources}]);
    for (name, on) in [("p", "n1"), ("q", "n2"), ("r", "n3"), ("s", "")] {
        let spec = json!({"nodeName": on, "containers": with(needs("1", "64Mi"))});
        create(&local, PODS, &pod(name, &spec)).await;
    }
    let resize = async |name: &str, cpu: &str, memory: &str| {
        let change =
            json!({"spec": {"containers": [{"name": "a", "resources": needs(cpu, memory)}]}});
        let path = format!("{PODS}/{name}/resize");
        local.admin_ask(Method::PATCH, &path, &change).await
    };
    let refusal = |answer: &Value| {
        (
            answer["message"].as_str().unwrap_or_default().to_owned(),
            answer["details"]["causes"][0]["reason"].clone(),
        )
    };
    let (status, answer) = resize("p", "3", "2Gi").await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{answer}");
    assert_eq!(
        refusal(&answer),
        (
            "pods \"p\" is forbidden: node didn't have enough allocatable resources: cpu, requested: 3000, \
             allocatable: 2000; memory, requested: 2147483648, allocatable: 1073741824"
                .to_owned(),
            json!("NodeCapacity")
        )
    );
    let (status, answer) = resize("p", "2", "1Gi").await;
    assert_eq!(status, StatusCode::OK, "all that the node has: {answer}");
    let (status, answer) = resize("q", "1100m", "64Mi").await;
    let platform = "pods \"q\" is forbidden: pod resize is only supported on linux nodes, node \"n2\" is \"windows\"";
    assert_eq!(
        (status, refusal(&answer)),
        (
            StatusCode::FORBIDDEN,
            (platform.to_owned(), json!("UnsupportedPlatform"))
        )
    );
    let (status, answer) = resize("r", "1100m", "64Mi").await;
    let missing = "pods \"r\" is forbidden: node \"n3\" not found";
    assert_eq!(
        (status, refusal(&answer).0),
        (StatusCode::FORBIDDEN, missing.to_owned())
    );
    for (name, cpu) in [("r", "1"), ("s", "100")] {
        let (status, answer) = resize(name, cpu, "64Mi").await;
        assert_eq!(
            status,
            StatusCode::OK,
            "nothing changes, or no node has it: {answer}"
        );
    }
}

#[tokio::test]
async fn a_claim_grows_only_where_its_class_expands_volumes() {
    let local = Local::new().await;
    let classes = "/apis/storage.k8s.io/v1/storageclasses";
    for (name, grows) in [("fixed", false), ("grows", true)] {
        let class = json!({"metadata": {"name": name}, "provisioner": "example.com/disk", "allowVolumeExpansion": grows});
        create(&local, classes, &class).await;
    }
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let size = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
    let grow = async |name: &str| {
        let path = format!("{claims}/{name}");
        let (status, answer) = local.admin_ask(Method::PATCH, &path, &size("2Gi")).await;
        (
            status,
            answer["message"].as_str().unwrap_or_default().to_owned(),
        )
    };
    for name in ["fixed", "grows", "gone", ""] {
        let claim = if name.is_empty() { "none" } else { name };
        let mut made = size("1Gi");
        made["metadata"] = json!({"name": claim});
        made["spec"]["accessModes"] = json!(["ReadWriteOnce"]);
        made["spec"]["storageClassName"] = json!(name);
        create(&local, claims, &made).await;
        let (status, _) = grow(claim).await;
        assert_eq!(
            status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{claim} has no volume yet"
        );
        let bound = json!({"status": {"phase": "Bound"}});
        let path = format!("{claims}/{claim}/status");
        let (status, answer) = local.admin_ask(Method::PATCH, &path, &bound).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        let expected = match claim {
            "grows" => (StatusCode::OK, String::new()),
            _ => (
                StatusCode::FORBIDDEN,
                format!(
                    "persistentvolumeclaims {claim:?} is forbidden: only dynamically provisioned pvc can be resized and \
                     the storageclass that provisions the pvc must support resize"
                ),
            ),
        };
        assert_eq!(grow(claim).await, expected);
    }
}
