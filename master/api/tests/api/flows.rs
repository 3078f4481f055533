//! The flow that answers name, and the health checks.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use http::{HeaderMap, Method, StatusCode};
use master_client::UserInfo;
use serde_json::{Value, json};

const FLOWS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    let value = headers.get(name);
    value.map_or("", |value| value.to_str().unwrap())
}

/// The names of the flow schema and the priority level whose UIDs an answer has.
async fn flow(
    local: &Local,
    user: &UserInfo,
    method: Method,
    path: &str,
    more: &[(&str, &str)],
) -> (String, String) {
    let (_, headers, _) = local.send(user, method, path, more, "{}").await;
    let mut names = [
        ("x-kubernetes-pf-flowschema-uid", "flowschemas"),
        (
            "x-kubernetes-pf-prioritylevel-uid",
            "prioritylevelconfigurations",
        ),
    ]
    .map(|(name, plural)| (header(&headers, name).to_owned(), plural, String::new()));
    for (uid, plural, name) in &mut names {
        let path = format!("{FLOWS}/{plural}");
        let (_, list) = local.admin_ask(Method::GET, &path, &Value::Null).await;
        let mut items = list["items"].as_array().unwrap().iter();
        if let Some(found) = items.find(|item| item["metadata"]["uid"] == **uid) {
            name.push_str(found["metadata"]["name"].as_str().unwrap());
        }
    }
    let [(_, _, schema), (_, _, level)] = names;
    (schema, level)
}

fn pair(schema: &str, level: &str) -> (String, String) {
    (schema.to_owned(), level.to_owned())
}

#[tokio::test]
async fn each_answer_names_the_flow_of_its_request() {
    let local = Local::new().await;
    let user = |name: &str, groups: &[&str]| {
        let all = groups.iter().copied().chain(["system:authenticated"]);
        UserInfo::authenticated(name, all)
    };
    let admin = UserInfo::admin("admin");
    let account = |name: &str, namespace: &str| {
        let own = format!("system:serviceaccounts:{namespace}");
        user(
            &format!("system:serviceaccount:{namespace}:{name}"),
            &["system:serviceaccounts", &own],
        )
    };
    let node = user("system:node:n1", &["system:nodes"]);
    let manager = user("system:kube-controller-manager", &[]);
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";
    let pods = "/api/v1/pods";
    let cases = [
        (&admin, pods, pair("exempt", "exempt")),
        (&UserInfo::anonymous(), "/livez", pair("probes", "exempt")),
        (
            &UserInfo::anonymous(),
            pods,
            pair("global-default", "global-default"),
        ),
        (
            &node,
            "/api/v1/nodes/n1",
            pair("system-node-high", "node-high"),
        ),
        (
            &node,
            "/api/v1/nodes/n1/status",
            pair("system-node-high", "node-high"),
        ),
        (&node, lease, pair("system-node-high", "node-high")),
        (&node, pods, pair("system-nodes", "system")),
        (
            &manager,
            lease,
            pair("system-leader-election", "leader-election"),
        ),
        (
            &manager,
            pods,
            pair("kube-controller-manager", "workload-high"),
        ),
        (
            &account("a", "kube-system"),
            pods,
            pair("kube-system-service-accounts", "workload-high"),
        ),
        (
            &account("a", "default"),
            pods,
            pair("service-accounts", "workload-low"),
        ),
        (
            &user("jane", &[]),
            "/version",
            pair("global-default", "global-default"),
        ),
    ];
    for (user, path, expected) in cases {
        let found = flow(&local, user, Method::GET, path, &[]).await;
        assert_eq!(found, expected, "{} {path}", user.name);
    }
}

#[tokio::test]
async fn a_new_flow_schema_counts_from_its_answer_on() {
    let local = Local::new().await;
    let jane = UserInfo::authenticated("jane", ["system:authenticated"]);
    let schema = |name: &str, precedence: i32, level: &str, rule: &Value| {
        json!({"metadata": {"name": name}, "spec": {
            "matchingPrecedence": precedence, "priorityLevelConfiguration": {"name": level}, "rules": [rule],
        }})
    };
    let janes = json!([{"kind": "User", "user": {"name": "jane"}}]);
    let level = json!({"metadata": {"name": "own"}, "spec": {"type": "Limited", "limited": {
        "nominalConcurrencyShares": 1, "limitResponse": {"type": "Reject"}}}});
    let maps = json!({"subjects": janes, "resourceRules": [{"verbs": ["get", "delete"], "apiGroups": [""],
        "resources": ["configmaps"], "namespaces": ["default"]}]});
    let below = json!({"subjects": janes, "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/openapi/*"]}]});
    let dangling = json!({"subjects": janes, "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]});
    let made = [
        ("prioritylevelconfigurations", level),
        ("flowschemas", schema("maps", 3, "own", &maps)),
        ("flowschemas", schema("below", 3, "own", &below)),
        ("flowschemas", schema("dangling", 2, "missing", &dangling)),
    ];
    for (plural, object) in &made {
        let path = format!("{FLOWS}/{plural}");
        let (status, answer) = local.admin_ask(Method::POST, &path, object).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
    }
    let rest = || pair("global-default", "global-default");
    let map = "/api/v1/namespaces/default/configmaps/a";
    let cases = [
        (Method::GET, map, pair("maps", "own")),
        (Method::DELETE, map, pair("maps", "own")),
        (Method::GET, "/api/v1/namespaces/default/configmaps", rest()),
        (
            Method::GET,
            "/api/v1/namespaces/kube-system/configmaps/a",
            rest(),
        ),
        (Method::GET, "/api/v1/namespaces/default/secrets/a", rest()),
        (Method::GET, "/openapi/v3", pair("below", "own")),
        (Method::GET, "/openapi", rest()),
        (Method::GET, "/", rest()),
    ];
    for (method, path, expected) in cases {
        let found = flow(&local, &jane, method.clone(), path, &[]).await;
        assert_eq!(found, expected, "{method} {path}");
    }
    // A request that is made for another user is that user's, refused ones too.
    let admin = UserInfo::admin("admin");
    let found = flow(
        &local,
        &admin,
        Method::GET,
        map,
        &[("impersonate-user", "jane")],
    )
    .await;
    assert_eq!(found, pair("maps", "own"));
    let path = format!("{FLOWS}/flowschemas/maps");
    local.admin_ask(Method::DELETE, &path, &Value::Null).await;
    assert_eq!(flow(&local, &jane, Method::GET, map, &[]).await, rest());
}

#[tokio::test]
async fn health_checks_have_upstreams_names_where_they_check_the_same() {
    let local = Local::new().await;
    let hooks = [
        "poststarthook/start-system-namespaces-controller",
        "poststarthook/scheduling/bootstrap-system-priority-classes",
        "poststarthook/rbac/bootstrap-roles",
        "poststarthook/priority-and-fairness-config-producer",
        "poststarthook/bootstrap-controller",
    ];
    let nobody = UserInfo::anonymous();
    let common: Vec<&str> = ["ping", "log", "etcd"].into_iter().chain(hooks).collect();
    for (path, more) in [
        ("/livez", &[][..]),
        ("/readyz", &["informer-sync", "shutdown"]),
        ("/healthz", &["informer-sync", "shutdown"]),
    ] {
        let verbose = format!("{path}?verbose=1");
        let (status, _, text) = local.send(&nobody, Method::GET, &verbose, &[], "").await;
        assert_eq!(status, StatusCode::OK);
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        for name in common.iter().chain(more) {
            assert!(
                lines.contains(&&*format!("[+]{name} ok")),
                "{path} {name}: {text}"
            );
            let (status, _, one) = local
                .send(
                    &UserInfo::admin("admin"),
                    Method::GET,
                    &format!("{path}/{name}"),
                    &[],
                    "",
                )
                .await;
            assert_eq!(
                (status, &one[..]),
                (StatusCode::OK, &b"ok"[..]),
                "{path} {name}"
            );
        }
        // Upstream has these, too; here is nothing that they would check.
        for name in [
            "crd-informer-synced",
            "apiservice-",
            "autoregist",
            "apiextensions",
            "identity-lease",
        ] {
            assert!(!text.contains(name), "{path} {name}: {text}");
        }
        let missing = format!("{path}/poststarthook/nothing");
        let admin = UserInfo::admin("admin");
        let (status, ..) = local.send(&admin, Method::GET, &missing, &[], "").await;
        assert_eq!(status, StatusCode::NOT_FOUND);
    }
}

/// Upstream's indicators: how each check ended last, and how often each way.
#[tokio::test]
async fn the_checks_of_health_are_counted_at_metrics_slis() {
    let local = Local::new().await;
    let admin = UserInfo::admin("admin");
    let read = async |path: &str| {
        let (status, headers, text) = local.send(&admin, Method::GET, path, &[], "").await;
        assert_eq!(status, StatusCode::OK, "{path}");
        (headers, String::from_utf8_lossy(&text).into_owned())
    };
    let (_, index) = read("/").await;
    assert!(index.contains("\"/metrics/slis\""), "{index}");
    let (headers, first) = read("/metrics/slis").await;
    assert_eq!(
        headers["content-type"],
        "text/plain; version=0.0.4; charset=utf-8"
    );
    let of = |name: &str, kind: &str| format!("{{name=\"{name}\",type=\"{kind}\"}} 1");
    for (name, kind) in [
        ("etcd", "livez"),
        ("shutdown", "readyz"),
        ("ping", "healthz"),
    ] {
        let line = format!("kubernetes_healthcheck{}", of(name, kind));
        assert!(first.lines().any(|one| one == line), "{line}: {first}");
    }
    assert!(
        !first.contains("name=\"shutdown\",type=\"livez\""),
        "{first}"
    );
    let passed = |text: &str| {
        let name =
            "kubernetes_healthchecks_total{name=\"etcd\",status=\"success\",type=\"readyz\"} ";
        let count = text.lines().find_map(|line| line.strip_prefix(name));
        count.map(|count| count.parse::<u64>().unwrap()).unwrap()
    };
    read("/readyz").await;
    let (_, then) = read("/metrics/slis").await;
    // The question itself checks, too.
    assert_eq!(passed(&then), passed(&first) + 2, "{then}");
    assert!(!then.contains("status=\"error\""), "{then}");
}

#[tokio::test]
async fn a_server_that_is_not_prepared_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let store = master_store::EmbeddedStore::open(folder.path()).unwrap();
    let api =
        master_api::ApiServer::new(std::sync::Arc::new(store), master_api::Options::default());
    let local = Local::of(api, folder);
    // Others have no right to ask yet.
    let admin = UserInfo::admin("admin");
    let (status, _, text) = local.send(&admin, Method::GET, "/readyz", &[], "").await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    let text = String::from_utf8_lossy(&text).into_owned();
    for line in [
        "[+]etcd ok",
        "[-]poststarthook/rbac/bootstrap-roles failed: reason withheld",
    ] {
        assert!(text.lines().any(|one| one == line), "{text}");
    }
    let (_, _, text) = local
        .send(&admin, Method::GET, "/metrics/slis", &[], "")
        .await;
    let text = String::from_utf8_lossy(&text).into_owned();
    let roles = "name=\"poststarthook/rbac/bootstrap-roles\"";
    for line in [
        format!("kubernetes_healthcheck{{{roles},type=\"livez\"}} 0"),
        format!("kubernetes_healthchecks_total{{{roles},status=\"error\",type=\"livez\"}} 1"),
    ] {
        assert!(text.lines().any(|one| one == line), "{text}");
    }
}
