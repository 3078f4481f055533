//! RBAC: rights apply at once, cannot be escalated, and can be queried.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use http::{Method, StatusCode};
use master_api::Options;
use master_auth::Mode;
use master_client::UserInfo;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
const CLUSTER_ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const CLUSTER_BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";

fn user(name: &str) -> UserInfo {
    UserInfo::authenticated(name, Vec::<String>::new())
}

async fn made(server: &Local, path: &str, object: Value) {
    let (status, answer) = server.admin_ask(Method::POST, path, &object).await;
    assert_eq!(status, StatusCode::CREATED, "{path}: {answer}");
}

fn rule(verbs: &[&str], group: &str, resources: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": [group], "resources": resources})
}

fn bound(name: &str, kind: &str, role: &str, user: &str) -> Value {
    json!({
        "metadata": {"name": name}, "roleRef": {"kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": user}],
    })
}

async fn lists(server: &Local, who: &UserInfo) -> u16 {
    server
        .ask(who, Method::GET, PODS, &Value::Null)
        .await
        .0
        .as_u16()
}

#[tokio::test]
async fn a_role_counts_for_the_very_next_request() {
    let server = Local::new().await;
    let alice = user("alice");
    for round in 0..20 {
        assert_eq!(lists(&server, &alice).await, 403, "{round}");
        made(
            &server,
            ROLES,
            json!({"metadata": {"name": "r"}, "rules": [rule(&["list"], "", &["pods"])]}),
        )
        .await;
        made(&server, BINDINGS, bound("b", "Role", "r", "alice")).await;
        assert_eq!(lists(&server, &alice).await, 200, "{round}");
        server
            .admin_ask(Method::DELETE, &format!("{ROLES}/r"), &Value::Null)
            .await;
        let (status, error) = server.ask(&alice, Method::GET, PODS, &Value::Null).await;
        assert_eq!(status, StatusCode::FORBIDDEN);
        let text = error["message"].as_str().unwrap();
        assert!(
            text.ends_with("RBAC: role.rbac.authorization.k8s.io \"r\" not found"),
            "{text}"
        );
        server
            .admin_ask(Method::DELETE, &format!("{BINDINGS}/b"), &Value::Null)
            .await;
    }
}

/// A role for all paths, as roles have that show metrics and health, reads no stored object.
#[tokio::test]
async fn a_snapshot_needs_a_right_to_list_every_object() {
    let server = Local::new().await;
    let alice = user("alice");
    let paths = json!({"verbs": ["get", "head"], "nonResourceURLs": ["*"]});
    // What a role "everything but secrets" has, and more: each lacks a part of `*` in `*`.
    let rules = json!([
        paths,
        rule(&["list"], "", &["*"]),
        rule(&["list"], "*", &["secrets", "configmaps", "pods"]),
        rule(&["get", "watch"], "*", &["*"]),
    ]);
    let role = json!({"metadata": {"name": "paths"}, "rules": rules});
    made(&server, CLUSTER_ROLES, role).await;
    let binding = bound("paths", "ClusterRole", "paths", "alice");
    made(&server, CLUSTER_BINDINGS, binding).await;
    let ask = async |method: Method, path: &str| {
        let (status, _, bytes) = server.send(&alice, method, path, &[], "").await;
        let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        (status.as_u16(), answer["message"].clone())
    };
    assert_eq!(ask(Method::GET, "/metrics").await.0, 200);
    assert_eq!(ask(Method::HEAD, "/snapshot").await.0, 403);
    for path in ["/snapshot", "/snapshot/"] {
        let (status, why) = ask(Method::GET, path).await;
        assert_eq!(status, 403, "{path}");
        let missing =
            r#"User "alice" cannot list resource "*" in API group "*" at the cluster scope"#;
        assert!(why.as_str().unwrap().contains(missing), "{why}");
    }
    let every = json!({"metadata": {"name": "every"}, "rules": [rule(&["list"], "*", &["*"])]});
    made(&server, CLUSTER_ROLES, every).await;
    // Within a namespace it is not enough.
    let within = bound("every", "ClusterRole", "every", "alice");
    made(&server, BINDINGS, within.clone()).await;
    assert_eq!(ask(Method::GET, "/snapshot").await.0, 403);
    made(&server, CLUSTER_BINDINGS, within).await;
    assert_eq!(ask(Method::GET, "/snapshot").await.0, 200);
}

/// Alice, who may write roles and bindings, and of pods may read one.
async fn keeper_of_roles(server: &Local) -> UserInfo {
    let alice = user("alice");
    let rules = [
        rule(
            &["create", "update", "patch"],
            "rbac.authorization.k8s.io",
            &["roles", "rolebindings", "clusterroles"],
        ),
        rule(
            &["create"],
            "rbac.authorization.k8s.io",
            &["clusterrolebindings"],
        ),
        rule(&["get"], "", &["pods"]),
    ];
    made(
        server,
        CLUSTER_ROLES,
        json!({"metadata": {"name": "keeper"}, "rules": rules}),
    )
    .await;
    made(
        server,
        CLUSTER_BINDINGS,
        bound("keeper", "ClusterRole", "keeper", "alice"),
    )
    .await;
    alice
}

#[tokio::test]
async fn no_caller_can_grant_rights_that_it_lacks() {
    let server = Local::new().await;
    let alice = keeper_of_roles(&server).await;
    let wide = json!({"metadata": {"name": "wide"}, "rules": [rule(&["get", "list"], "", &["pods", "secrets"])]});
    let (status, error) = server.ask(&alice, Method::POST, ROLES, &wide).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{error}");
    assert_eq!(
        error["message"],
        "roles.rbac.authorization.k8s.io \"wide\" is forbidden: user \"alice\" (groups=[\"system:authenticated\"]) is \
         attempting to grant RBAC permissions not currently held:\n\
         {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"list\"]}\n\
         {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\"]}"
    );
    let narrow = json!({"metadata": {"name": "narrow"}, "rules": [rule(&["get"], "", &["pods"])]});
    assert_eq!(
        server.ask(&alice, Method::POST, ROLES, &narrow).await.0,
        StatusCode::CREATED
    );
    let widen = json!({"rules": [rule(&["*"], "*", &["*"])]});
    let patched = server
        .ask(&alice, Method::PATCH, &format!("{ROLES}/narrow"), &widen)
        .await;
    assert_eq!(patched.0, StatusCode::FORBIDDEN, "by a patch");
    let gathers = json!({"metadata": {"name": "all"}, "rules": [], "aggregationRule": {
        "clusterRoleSelectors": [{"matchLabels": {"a": "b"}}],
    }});
    let (status, error) = server
        .ask(&alice, Method::POST, CLUSTER_ROLES, &gathers)
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN, "by gathering");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .ends_with("must have cluster-admin privileges to use an aggregationRule")
    );
    for (path, object) in [
        (
            BINDINGS,
            bound("b", "ClusterRole", "cluster-admin", "alice"),
        ),
        (
            CLUSTER_BINDINGS,
            bound("b", "ClusterRole", "cluster-admin", "alice"),
        ),
    ] {
        let (status, error) = server.ask(&alice, Method::POST, path, &object).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "by a binding: {error}");
    }
    let own = bound("own", "Role", "narrow", "carol");
    assert_eq!(
        server.ask(&alice, Method::POST, BINDINGS, &own).await.0,
        StatusCode::CREATED
    );
    let gone = bound("gone", "Role", "gone", "carol");
    assert_eq!(
        server.ask(&alice, Method::POST, BINDINGS, &gone).await.0,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn a_caller_with_bind_or_escalate_may_grant_other_rights() {
    let server = Local::new().await;
    let alice = user("alice");
    let group = "rbac.authorization.k8s.io";
    let bind = json!({
        "verbs": ["bind"], "apiGroups": [group], "resources": ["clusterroles"], "resourceNames": ["view"],
    });
    let rules = [rule(&["create"], group, &["rolebindings", "roles"]), bind];
    made(
        &server,
        CLUSTER_ROLES,
        json!({"metadata": {"name": "binder"}, "rules": rules}),
    )
    .await;
    made(
        &server,
        CLUSTER_BINDINGS,
        bound("binder", "ClusterRole", "binder", "alice"),
    )
    .await;
    let view = bound("v", "ClusterRole", "view", "carol");
    assert_eq!(
        server.ask(&alice, Method::POST, BINDINGS, &view).await.0,
        StatusCode::CREATED
    );
    let admin = bound("a", "ClusterRole", "cluster-admin", "carol");
    assert_eq!(
        server.ask(&alice, Method::POST, BINDINGS, &admin).await.0,
        StatusCode::FORBIDDEN
    );
    let wide = json!({"metadata": {"name": "wide"}, "rules": [rule(&["get"], "", &["secrets"])]});
    assert_eq!(
        server.ask(&alice, Method::POST, ROLES, &wide).await.0,
        StatusCode::FORBIDDEN
    );
    made(
        &server,
        CLUSTER_ROLES,
        json!({"metadata": {"name": "up"}, "rules": [rule(&["escalate"], group, &["roles"])]}),
    )
    .await;
    made(
        &server,
        CLUSTER_BINDINGS,
        bound("up", "ClusterRole", "up", "alice"),
    )
    .await;
    assert_eq!(
        server.ask(&alice, Method::POST, ROLES, &wide).await.0,
        StatusCode::CREATED
    );
}

async fn acts(server: &Local, who: &UserInfo, headers: &[(&str, &str)]) -> (StatusCode, Value) {
    let mut all = vec![("content-type", "application/json")];
    all.extend_from_slice(headers);
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let (status, _, bytes) = server.send(who, Method::POST, path, &all, "{}").await;
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

#[tokio::test]
async fn an_admin_may_impersonate_anyone_with_only_their_rights() {
    let server = Local::new().await;
    let admin = UserInfo::admin("admin");
    let (status, answer) = acts(
        &server,
        &admin,
        &[
            ("impersonate-user", "carol"),
            ("impersonate-group", "team"),
            ("impersonate-uid", "u1"),
            ("impersonate-extra-example.com%2f%53cope", "one"),
        ],
    )
    .await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    let info = &answer["status"]["userInfo"];
    assert_eq!(
        (&info["username"], &info["uid"]),
        (&"carol".into(), &"u1".into())
    );
    assert_eq!(info["groups"], json!(["team", "system:authenticated"]));
    assert_eq!(info["extra"], json!({"example.com/Scope": ["one"]}));
    let (_, answer) = acts(
        &server,
        &admin,
        &[("impersonate-user", "system:serviceaccount:n:a")],
    )
    .await;
    assert_eq!(
        answer["status"]["userInfo"]["groups"],
        json!([
            "system:serviceaccounts",
            "system:serviceaccounts:n",
            "system:authenticated"
        ])
    );
    let (status, _) = acts(&server, &admin, &[("impersonate-group", "team")]).await;
    assert_eq!(
        status,
        StatusCode::INTERNAL_SERVER_ERROR,
        "groups without a user, as upstream refuses it"
    );
}

#[tokio::test]
async fn impersonation_needs_a_right_for_each_part() {
    let server = Local::new().await;
    let alice = user("alice");
    let (status, error) = acts(&server, &alice, &[("impersonate-user", "admin")]).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert_eq!(
        error["message"],
        "users \"admin\" is forbidden: User \"alice\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope"
    );
    let rules = [
        json!({"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["bob"]}),
    ];
    made(
        &server,
        CLUSTER_ROLES,
        json!({"metadata": {"name": "as-bob"}, "rules": rules}),
    )
    .await;
    made(
        &server,
        CLUSTER_BINDINGS,
        bound("as-bob", "ClusterRole", "as-bob", "alice"),
    )
    .await;
    assert_eq!(
        acts(&server, &alice, &[("impersonate-user", "bob")])
            .await
            .0,
        StatusCode::CREATED
    );
    for more in [
        ("impersonate-group", "system:masters"),
        ("impersonate-uid", "x"),
        ("impersonate-extra-a", "b"),
    ] {
        assert_eq!(
            acts(&server, &alice, &[("impersonate-user", "bob"), more])
                .await
                .0,
            StatusCode::FORBIDDEN,
            "{more:?}"
        );
    }
    assert_eq!(
        acts(&server, &alice, &[("impersonate-user", "carol")])
            .await
            .0,
        StatusCode::FORBIDDEN
    );
}

const REVIEWS: &str = "/apis/authorization.k8s.io/v1";

/// Alice, who may get pods of the default namespace.
async fn reader_of_pods(server: &Local) -> UserInfo {
    let alice = user("alice");
    made(
        server,
        ROLES,
        json!({"metadata": {"name": "r"}, "rules": [rule(&["get"], "", &["pods"])]}),
    )
    .await;
    made(server, BINDINGS, bound("b", "Role", "r", "alice")).await;
    alice
}

fn attributes(verb: &str, namespace: &str) -> Value {
    json!({"verb": verb, "resource": "pods", "namespace": namespace})
}

#[tokio::test]
async fn access_reviews_return_the_decision() {
    let server = Local::new().await;
    let alice = reader_of_pods(&server).await;
    for (verb, namespace, allowed) in [
        ("get", "default", true),
        ("list", "default", false),
        ("get", "other", false),
    ] {
        let own = json!({"spec": {"resourceAttributes": attributes(verb, namespace)}});
        let (status, answer) = server
            .ask(
                &alice,
                Method::POST,
                &format!("{REVIEWS}/selfsubjectaccessreviews"),
                &own,
            )
            .await;
        assert_eq!(
            (status, &answer["status"]["allowed"]),
            (StatusCode::CREATED, &allowed.into()),
            "{answer}"
        );
        let of =
            json!({"spec": {"user": "alice", "resourceAttributes": attributes(verb, namespace)}});
        let (_, answer) = server
            .admin_ask(
                Method::POST,
                &format!("{REVIEWS}/subjectaccessreviews"),
                &of,
            )
            .await;
        assert_eq!(answer["status"]["allowed"], allowed, "{answer}");
    }
}

#[tokio::test]
async fn a_review_of_others_needs_a_right_and_names_the_granting_rule() {
    let server = Local::new().await;
    let alice = reader_of_pods(&server).await;
    let of = json!({"spec": {"user": "alice", "resourceAttributes": attributes("get", "default")}});
    let local = format!("{REVIEWS}/namespaces/default/localsubjectaccessreviews");
    let (_, answer) = server.admin_ask(Method::POST, &local, &of).await;
    assert_eq!(
        answer["status"]["reason"],
        "RBAC: allowed by RoleBinding \"b/default\" of Role \"r\" to User \"alice\""
    );
    let elsewhere =
        json!({"spec": {"user": "alice", "resourceAttributes": attributes("get", "other")}});
    assert_eq!(
        server
            .admin_ask(Method::POST, &local, &elsewhere)
            .await
            .0
            .as_u16(),
        422
    );
    let (status, _) = server
        .ask(
            &alice,
            Method::POST,
            &format!("{REVIEWS}/subjectaccessreviews"),
            &of,
        )
        .await;
    assert_eq!(
        status,
        StatusCode::FORBIDDEN,
        "about others one needs a right"
    );
    for spec in [
        json!({}),
        json!({"user": "a"}),
        json!({"resourceAttributes": {}}),
    ] {
        let asked = json!({ "spec": spec });
        let (status, _) = server
            .admin_ask(
                Method::POST,
                &format!("{REVIEWS}/subjectaccessreviews"),
                &asked,
            )
            .await;
        assert_eq!(status.as_u16(), 422, "{asked}");
    }
}

#[tokio::test]
async fn reviews_tell_of_paths_and_of_all_that_one_may() {
    let server = Local::new().await;
    let alice = reader_of_pods(&server).await;
    let path = json!({"spec": {"nonResourceAttributes": {"verb": "get", "path": "/version"}}});
    let (_, answer) = server
        .ask(
            &alice,
            Method::POST,
            &format!("{REVIEWS}/selfsubjectaccessreviews"),
            &path,
        )
        .await;
    assert_eq!(answer["status"]["allowed"], true);
    let rules = json!({"spec": {"namespace": "default"}});
    let (_, answer) = server
        .ask(
            &alice,
            Method::POST,
            &format!("{REVIEWS}/selfsubjectrulesreviews"),
            &rules,
        )
        .await;
    let granted = answer["status"]["resourceRules"].as_array().unwrap();
    assert!(
        granted.contains(&json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]})),
        "{answer}"
    );
    assert_eq!(answer["status"]["incomplete"], false);
}

#[tokio::test]
async fn a_role_in_a_namespace_grants_access_to_it() {
    let server = Local::new().await;
    let alice = user("alice");
    made(
        &server,
        ROLES,
        json!({"metadata": {"name": "r"}, "rules": [rule(&["get"], "", &["namespaces"])]}),
    )
    .await;
    made(&server, BINDINGS, bound("b", "Role", "r", "alice")).await;
    for (path, code) in [
        ("/api/v1/namespaces/default", 200),
        ("/api/v1/namespaces/kube-system", 403),
        ("/api/v1/namespaces", 403),
    ] {
        assert_eq!(
            server
                .ask(&alice, Method::GET, path, &Value::Null)
                .await
                .0
                .as_u16(),
            code,
            "{path}"
        );
    }
}

#[tokio::test]
async fn where_everything_is_allowed_everything_is() {
    let open = Local::with(Options {
        authorization: vec![Mode::AlwaysAllow],
        ..Options::default()
    })
    .await;
    assert_eq!(lists(&open, &user("anybody")).await, 200);
    let admin = bound("b", "ClusterRole", "cluster-admin", "anybody");
    assert_eq!(
        open.ask(&user("anybody"), Method::POST, CLUSTER_BINDINGS, &admin)
            .await
            .0,
        StatusCode::CREATED
    );
}

#[tokio::test]
async fn defaults_that_an_admin_changed_are_completed_at_the_next_start_and_protected_ones_left() {
    let server = Local::new().await;
    let path = format!("{CLUSTER_ROLES}/system:kube-dns");
    let own = json!({"rules": [rule(&["get"], "", &["pods"])]});
    assert_eq!(
        server.admin_ask(Method::PATCH, &path, &own).await.0,
        StatusCode::OK
    );
    let left = format!("{CLUSTER_ROLES}/system:heapster");
    let annotated = json!({"rules": [], "metadata": {"annotations": {
        "rbac.authorization.kubernetes.io/autoupdate": "false",
    }}});
    assert_eq!(
        server.admin_ask(Method::PATCH, &left, &annotated).await.0,
        StatusCode::OK
    );
    server
        .admin_ask(
            Method::DELETE,
            &format!("{CLUSTER_BINDINGS}/system:discovery"),
            &Value::Null,
        )
        .await;
    server.api.prepare().await.unwrap();
    let (_, role) = server.admin_ask(Method::GET, &path, &Value::Null).await;
    let rules = role["rules"].as_array().unwrap();
    assert!(rules.contains(&rule(&["get"], "", &["pods"])), "{role}");
    assert!(rules.len() > 1, "what was missing is there again: {role}");
    let (_, role) = server.admin_ask(Method::GET, &left, &Value::Null).await;
    assert!(role["rules"].as_array().is_none_or(Vec::is_empty), "{role}");
    let found = server
        .admin_ask(
            Method::GET,
            &format!("{CLUSTER_BINDINGS}/system:discovery"),
            &Value::Null,
        )
        .await
        .0;
    assert_eq!(found, StatusCode::OK);
}
