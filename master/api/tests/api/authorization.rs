//! Authorization: each refusal beside the permission that differs from it.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use config_kube::identity;
use http::{Method, StatusCode};
use master_api::Options;
use master_client::UserInfo;
use serde_json::{Value, json};

pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";

pub(crate) fn node(name: &str) -> UserInfo {
    UserInfo::authenticated(&identity::node_user(name), [identity::NODES_GROUP])
}

/// Two nodes, a pod on each, and the objects that the pods reference.
pub(crate) async fn cluster() -> Local {
    cluster_with(Options::default()).await
}

pub(crate) async fn cluster_with(options: Options) -> Local {
    let server = Local::with(options).await;
    for name in ["n1", "n2"] {
        let object = json!({"metadata": {"name": name, "labels": {"pratique.dev/role": "worker"}}});
        assert_eq!(
            server
                .admin_ask(Method::POST, "/api/v1/nodes", &object)
                .await
                .0,
            StatusCode::CREATED
        );
        let pod = json!({"metadata": {"name": format!("on-{name}")}, "spec": {
            "nodeName": name,
            "containers": [{"name": "c", "image": "x:1", "envFrom": [{"configMapRef": {"name": format!("map-{name}")}}]}],
            "volumes": [{"name": "v", "secret": {"secretName": format!("secret-{name}")}}],
        }});
        assert_eq!(
            server.admin_ask(Method::POST, PODS, &pod).await.0,
            StatusCode::CREATED
        );
        let secret = json!({"metadata": {"name": format!("secret-{name}")}});
        server
            .admin_ask(Method::POST, "/api/v1/namespaces/default/secrets", &secret)
            .await;
        let map = json!({"metadata": {"name": format!("map-{name}")}});
        server
            .admin_ask(Method::POST, "/api/v1/namespaces/default/configmaps", &map)
            .await;
    }
    server
}

/// A caller of the server.
pub(crate) struct Caller<'a> {
    server: &'a Local,
    pub(crate) user: UserInfo,
}

impl<'a> Caller<'a> {
    pub(crate) fn new(server: &'a Local, user: UserInfo) -> Self {
        Self { server, user }
    }

    /// One of the control plane's parts, by its name alone.
    fn part(server: &'a Local, name: &str) -> Self {
        Self::new(server, UserInfo::authenticated(name, Vec::<String>::new()))
    }

    /// Asks, and expects an answer of this code.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: &Value, code: u16) {
        let (status, answer) = self
            .server
            .ask(&self.user, method.clone(), path, body)
            .await;
        assert_eq!(
            status.as_u16(),
            code,
            "{} {method} {path} {body}: {answer}",
            self.user.name
        );
        if code == 403 {
            assert_eq!(answer["reason"], "Forbidden");
        }
    }

    pub(crate) async fn gets(&self, path: &str, code: u16) {
        self.ask(Method::GET, path, &Value::Null, code).await;
    }

    pub(crate) async fn posts(&self, path: &str, body: &Value, code: u16) {
        self.ask(Method::POST, path, body, code).await;
    }

    pub(crate) async fn patches(&self, path: &str, body: &Value, code: u16) {
        self.ask(Method::PATCH, path, body, code).await;
    }

    async fn deletes(&self, path: &str, body: &Value, code: u16) {
        self.ask(Method::DELETE, path, body, code).await;
    }
}

#[tokio::test]
async fn a_stranger_sees_health_and_version_and_nothing_else() {
    let server = cluster().await;
    let nobody = Caller::new(&server, UserInfo::anonymous());
    let known = Caller::part(&server, "somebody");
    for path in [
        "/livez",
        "/readyz",
        "/readyz?verbose",
        "/healthz",
        "/version",
    ] {
        nobody.gets(path, 200).await;
    }
    for path in [
        "/api",
        "/apis",
        "/apis/pratique.dev/v1alpha1",
        "/openapi/v3",
        "/metrics",
        "/",
        "/anything",
    ] {
        nobody.gets(path, 403).await;
    }
    for path in ["/api", "/apis", "/openapi/v3"] {
        known.gets(path, 200).await;
    }
    for user in [&nobody, &known] {
        for path in [
            "/api/v1/nodes",
            PODS,
            "/api/v1/secrets",
            "/apis/pratique.dev/v1alpha1/machines",
            "/api/v1/none",
        ] {
            user.gets(path, 403).await;
        }
        user.posts(
            "/api/v1/namespaces",
            &json!({"metadata": {"name": "x"}}),
            403,
        )
        .await;
    }
    let (_, error) = server
        .ask(
            &nobody.user,
            Method::GET,
            "/api/v1/namespaces/default/pods/p",
            &Value::Null,
        )
        .await;
    assert_eq!(
        error["message"],
        "pods \"p\" is forbidden: User \"system:anonymous\" cannot get resource \"pods\" in API group \"\" in the namespace \"default\""
    );
}

#[tokio::test]
async fn the_admin_may_everything() {
    let server = cluster().await;
    let admin = Caller::new(&server, UserInfo::admin("admin"));
    for path in [
        "/api/v1/nodes",
        "/api/v1/secrets",
        "/metrics",
        "/apis/pratique.dev/v1alpha1/machines",
    ] {
        admin.gets(path, 200).await;
    }
}

#[tokio::test]
async fn a_node_reads_itself_and_what_is_bound_to_it() {
    let server = cluster().await;
    let own = Caller::new(&server, node("n1"));
    for (path, code) in [
        ("/api/v1/nodes/n1", 200),
        // As service proxy and router it needs the other nodes' addresses, and the endpoints of
        // services; it reads them by lists, and endpoints by their slices.
        ("/api/v1/nodes/n2", 403),
        ("/api/v1/nodes", 200),
        ("/api/v1/services", 200),
        ("/apis/discovery.k8s.io/v1/endpointslices", 200),
        ("/api/v1/endpoints", 403),
        ("/apis/networking.k8s.io/v1/servicecidrs", 200),
        // As packet filter it needs what network policies select.
        ("/apis/networking.k8s.io/v1/networkpolicies", 200),
        ("/api/v1/namespaces", 200),
        ("/api/v1/namespaces/default", 403),
        ("/api/v1/pods", 200),
        ("/api/v1/pods?labelSelector=app%3Dweb", 403),
        (
            "/api/v1/pods?fieldSelector=spec.serviceAccountName%3Ddefault",
            403,
        ),
        ("/api/v1/namespaces/default/pods", 403),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", 200),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn2", 403),
        ("/api/v1/pods?fieldSelector=spec.nodeName!%3Dn1", 403),
        ("/api/v1/namespaces/default/pods/on-n1", 200),
        ("/api/v1/namespaces/default/pods/on-n2", 403),
        ("/api/v1/namespaces/default/pods/on-n1/log", 403),
        ("/api/v1/namespaces/default/secrets/secret-n1", 200),
        ("/api/v1/namespaces/default/secrets/secret-n2", 403),
        ("/api/v1/namespaces/default/secrets", 403),
        (
            "/api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3Dsecret-n1",
            200,
        ),
        ("/api/v1/namespaces/kube-system/secrets/secret-n1", 403),
        ("/api/v1/namespaces/default/configmaps/map-n1", 200),
        ("/api/v1/namespaces/default/configmaps/map-n2", 403),
        ("/apis/pratique.dev/v1alpha1/machines", 403),
        ("/api/v1/namespaces/default/serviceaccounts", 403),
    ] {
        own.gets(path, code).await;
    }
    let merely_called_so = Caller::part(&server, "system:node:n1");
    merely_called_so.gets("/api/v1/nodes/n1", 403).await;
}

#[tokio::test]
async fn a_node_reads_only_what_policies_need_of_other_nodes_pods() {
    let server = cluster().await;
    let pod = json!({
        "metadata": {"name": "rich", "labels": {"app": "web"}, "annotations": {"a": "hidden"}, "finalizers": ["example.com/hidden"]},
        "spec": {
            "nodeName": "n2", "serviceAccountName": "hidden",
            "containers": [{"name": "c", "image": "hidden:1", "args": ["hidden"], "env": [{"name": "HIDDEN", "value": "hidden"}],
                "ports": [{"name": "http", "containerPort": 80}]}],
            "volumes": [{"name": "hidden", "secret": {"secretName": "hidden"}}],
        },
    });
    let account = json!({"metadata": {"name": "hidden"}});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    for (path, body) in [(accounts, &account), (PODS, &pod)] {
        let (status, answer) = server.admin_ask(Method::POST, path, body).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
    }
    let status = json!({"status": {"podIP": "10.1.1.2", "podIPs": [{"ip": "10.1.1.2"}], "phase": "Running", "message": "hidden"}});
    let path = format!("{PODS}/rich/status");
    server.admin_ask(Method::PATCH, &path, &status).await;
    let all = "/api/v1/pods";
    let watch = "/api/v1/pods?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1";
    for path in [all, watch] {
        let (code, _, bytes) = server.send(&node("n1"), Method::GET, path, &[], "").await;
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        assert_eq!(code, StatusCode::OK, "{text}");
        for part in ["rich", "\"app\":\"web\"", "10.1.1.2", "\"http\"", "Running"] {
            assert!(text.contains(part), "{path}: {part} in {text}");
        }
        assert!(!text.to_lowercase().contains("hidden"), "{path}: {text}");
        for form in [
            "PartialObjectMetadataList",
            "PartialObjectMetadata",
            "Table",
        ] {
            let form = format!("application/json;as={form};g=meta.k8s.io;v=v1");
            let accept = [("accept", form.as_str())];
            let (code, ..) = server
                .send(&node("n1"), Method::GET, path, &accept, "")
                .await;
            assert_eq!(code, StatusCode::NOT_ACCEPTABLE, "{path} as {form}");
        }
        let (_, _, bytes) = server
            .send(&UserInfo::admin("a"), Method::GET, path, &[], "")
            .await;
        assert!(
            String::from_utf8_lossy(&bytes).contains("hidden"),
            "an admin sees all"
        );
    }
}

#[tokio::test]
async fn a_node_writes_its_own_status_and_never_its_labels_taints_or_spec() {
    let server = cluster().await;
    let own = Caller::new(&server, node("n1"));
    let (n1, n1_status) = ("/api/v1/nodes/n1", "/api/v1/nodes/n1/status");
    let (n2, n2_status) = ("/api/v1/nodes/n2", "/api/v1/nodes/n2/status");
    for (path, body, code) in [
        (n1_status, json!({"status": {"phase": "Running"}}), 200),
        (n2_status, json!({"status": {"phase": "Running"}}), 403),
        (n1, json!({"metadata": {"annotations": {"a": "b"}}}), 200),
        (
            n1,
            json!({"metadata": {"labels": {"kubernetes.io/hostname": "n1"}}}),
            200,
        ),
        (
            n1,
            json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
            403,
        ),
        (
            n1,
            json!({"metadata": {"labels": {"pratique.dev/role": "master"}}}),
            403,
        ),
        (
            n1,
            json!({"metadata": {"labels": {"pratique.dev/role": null}}}),
            403,
        ),
        (
            n1_status,
            json!({"metadata": {"labels": {"pratique.dev/role": "master"}}}),
            403,
        ),
        (
            n1,
            json!({"metadata": {"labels": {"evilkubelet.kubernetes.io/a": "b"}}}),
            403,
        ),
        (
            n1,
            json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
            403,
        ),
        (n1, json!({"spec": {"unschedulable": true}}), 403),
        (n1, json!({"metadata": {"finalizers": ["a.b/c"]}}), 403),
        (n2, json!({"metadata": {"annotations": {"a": "b"}}}), 403),
    ] {
        own.patches(path, &body, code).await;
    }
    own.posts("/api/v1/nodes", &json!({"metadata": {"name": "n3"}}), 403)
        .await;
    own.deletes(n1, &Value::Null, 403).await;
}

#[tokio::test]
async fn a_node_keeps_its_pods_and_its_lease_and_no_others() {
    let server = cluster().await;
    let own = Caller::new(&server, node("n1"));
    let running = json!({"status": {"phase": "Running"}});
    own.patches(&format!("{PODS}/on-n1/status"), &running, 200)
        .await;
    own.patches(&format!("{PODS}/on-n2/status"), &running, 403)
        .await;
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    own.patches(&format!("{PODS}/on-n1/status"), &labels, 403)
        .await;
    own.patches(&format!("{PODS}/on-n1"), &labels, 403).await;
    own.posts(PODS, &json!({"metadata": {"name": "x"}}), 403)
        .await;
    let binding = json!({"target": {"name": "n1"}});
    own.posts(&format!("{PODS}/on-n2/binding"), &binding, 403)
        .await;
    own.deletes(
        &format!("{PODS}/on-n2"),
        &json!({"gracePeriodSeconds": 0}),
        403,
    )
    .await;
    own.deletes(
        &format!("{PODS}/on-n1"),
        &json!({"gracePeriodSeconds": 0}),
        200,
    )
    .await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    own.posts(leases, &json!({"metadata": {"name": "n1"}}), 201)
        .await;
    own.posts(leases, &json!({"metadata": {"name": "n2"}}), 403)
        .await;
    own.gets(&format!("{leases}/n1"), 200).await;
    own.gets(&format!("{leases}/n2"), 403).await;
    own.deletes(leases, &Value::Null, 403).await;
    let elsewhere = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    own.posts(elsewhere, &json!({"metadata": {"name": "n1"}}), 403)
        .await;
}

async fn json_patch(caller: &Caller<'_>, path: &str, change: &Value) -> (StatusCode, Value) {
    let kind = [("content-type", "application/json-patch+json")];
    let (status, _, bytes) = caller
        .server
        .send(&caller.user, Method::PATCH, path, &kind, change.to_string())
        .await;
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

/// A refusal reveals nothing about another node's objects: neither their fields (by a patch that
/// makes the object invalid), nor their values (by a JSON patch test), nor their UID (by a
/// precondition).
#[tokio::test]
async fn a_refusal_reveals_nothing_of_others_objects_to_a_node() {
    let server = cluster().await;
    let own = Caller::new(&server, node("n1"));
    let copied = json!([{"op": "copy", "from": "/spec", "path": "/metadata/annotations"}]);
    let tested = json!([{"op": "test", "path": "/spec/nodeName", "value": "n9"}]);
    let precondition = json!({"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}});
    let evicted = json!({"metadata": {"name": "on-n2"}, "deleteOptions": precondition});
    let asked = [
        (Method::PATCH, format!("{PODS}/on-n2/status"), &copied),
        (Method::PATCH, format!("{PODS}/on-n2/status"), &tested),
        (Method::PATCH, "/api/v1/nodes/n2".to_owned(), &copied),
        (Method::PATCH, "/api/v1/nodes/n2/status".to_owned(), &tested),
        (Method::DELETE, format!("{PODS}/on-n2"), &precondition),
        (Method::POST, format!("{PODS}/on-n2/eviction"), &evicted),
    ];
    for (method, path, body) in asked {
        let (status, answer) = match method {
            Method::PATCH => json_patch(&own, &path, body).await,
            _ => server.ask(&own.user, method.clone(), &path, body).await,
        };
        assert_eq!(
            status,
            StatusCode::FORBIDDEN,
            "{method} {path} {body}: {answer}"
        );
        for word in ["x:1", "secret-n2", "map-n2", "UID"] {
            assert!(
                !answer.to_string().contains(word),
                "{method} {path} tells {word}: {answer}"
            );
        }
    }
    // The control: about its own pod it may learn everything.
    let (status, answer) = json_patch(&own, &format!("{PODS}/on-n1/status"), &copied).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer}");
    let (status, _) = server
        .ask(
            &own.user,
            Method::DELETE,
            &format!("{PODS}/on-n1"),
            &precondition,
        )
        .await;
    assert_eq!(status, StatusCode::CONFLICT);
}

/// The status of a pod gives its node access to claims, and the status of a claim publishes a
/// volume's state: in both, a node writes only what it knows, and nothing that grants it more.
#[tokio::test]
async fn a_node_gives_itself_no_claims() {
    let server = cluster().await;
    let own = Caller::new(&server, node("n1"));
    let pod = json!({"metadata": {"name": "claims"}, "spec": {"nodeName": "n1",
        "containers": [{"name": "c", "image": "x:1", "resources": {"claims": [{"name": "a"}]}}],
        "resourceClaims": [{"name": "a", "resourceClaimTemplateName": "t"}]}});
    let made = server.admin_ask(Method::POST, PODS, &pod).await;
    assert_eq!(made.0, StatusCode::CREATED, "{}", made.1);
    let status = format!("{PODS}/claims/status");
    let given = json!({"status": {"resourceClaimStatuses": [{"name": "a", "resourceClaimName": "others"}]}});
    own.patches(&status, &given, 403).await;
    let given_too = json!({"status": {"extendedResourceClaimStatus": {"resourceClaimName": "others",
        "requestMappings": [{"containerName": "c", "resourceName": "example.com/a", "requestName": "r"}]}}});
    own.patches(&status, &given_too, 403).await;
    // The control: the control plane may write it, and the node then continues with its own fields.
    assert_eq!(
        server.admin_ask(Method::PATCH, &status, &given).await.0,
        StatusCode::OK
    );
    own.patches(&status, &json!({"status": {"phase": "Running"}}), 200)
        .await;
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = json!({"metadata": {"name": "disk"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    assert_eq!(
        server.admin_ask(Method::POST, claims, &claim).await.0,
        StatusCode::CREATED
    );
    let pod = json!({"metadata": {"name": "keeper"}, "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "x:1"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "disk"}}]}});
    assert_eq!(
        server.admin_ask(Method::POST, PODS, &pod).await.0,
        StatusCode::CREATED
    );
    let status = format!("{claims}/disk/status");
    let grown = json!({"status": {"capacity": {"storage": "2Gi"}}});
    own.patches(&status, &grown, 200).await;
    for more in [
        json!({"metadata": {"labels": {"a": "b"}}}),
        json!({"metadata": {"annotations": {"a": "b"}}}),
        json!({"status": {"phase": "Lost"}}),
    ] {
        own.patches(&status, &more, 403).await;
    }
}

#[tokio::test]
async fn a_node_records_events_and_requests_node_certificates() {
    let server = cluster().await;
    let own = Caller::new(&server, node("n1"));
    let events = "/api/v1/namespaces/default/events";
    let about = json!({"kind": "Pod", "name": "on-n1", "namespace": "default"});
    own.posts(
        events,
        &json!({"metadata": {"name": "e"}, "involvedObject": about, "source": {"component": "kubelet", "host": "n1"}}),
        201,
    )
    .await;
    own.gets(events, 403).await;
    own.deletes(&format!("{events}/e"), &Value::Null, 403).await;
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let request = |name: &str, signer: &str, node: &str| {
        json!({"metadata": {"name": name}, "spec": {
            "request": crate::common::node_request(node), "usages": ["client auth"], "signerName": signer, "username": "system:admin",
        }})
    };
    own.posts(
        requests,
        &request("a", identity::NODE_CLIENT_SIGNER, "n1"),
        201,
    )
    .await;
    own.posts(
        requests,
        &request("b", "kubernetes.io/kube-apiserver-client", "n1"),
        403,
    )
    .await;
    // A node cannot request another node's certificate, from any signer.
    for signer in [
        "kubernetes.io/kube-apiserver-client-kubelet",
        "kubernetes.io/kubelet-serving",
    ] {
        own.posts(requests, &request("c", signer, "n2"), 403).await;
    }
    let mut other = request("c", "kubernetes.io/kube-apiserver-client-kubelet", "n1");
    other["spec"]["request"] = crate::common::signing_request("system:nodes").into();
    own.posts(requests, &other, 403).await;
    own.posts(
        requests,
        &request("c", "kubernetes.io/kubelet-serving", "n1"),
        201,
    )
    .await;
    let (_, made) = server
        .admin_ask(Method::GET, &format!("{requests}/a"), &Value::Null)
        .await;
    assert_eq!(
        made["spec"]["username"], "system:node:n1",
        "who asks is said by the server"
    );
    let approval =
        json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "x"}]}});
    own.patches(&format!("{requests}/a/approval"), &approval, 403)
        .await;
    // Approval has a subresource of its own.
    Caller::new(&server, UserInfo::admin("a"))
        .patches(&format!("{requests}/a/status"), &approval, 422)
        .await;
    Caller::new(&server, UserInfo::admin("a"))
        .patches(&format!("{requests}/a/approval"), &approval, 200)
        .await;
    let (_, done) = server
        .admin_ask(Method::GET, &format!("{requests}/a"), &Value::Null)
        .await;
    assert_eq!(done["status"]["conditions"][0]["type"], "Approved");
}

#[tokio::test]
async fn the_masters_parts_have_their_roles_and_no_more() {
    let server = cluster().await;
    let scheduler = Caller::part(&server, identity::SCHEDULER_USER);
    scheduler.gets("/api/v1/pods", 200).await;
    scheduler.gets("/api/v1/secrets", 403).await;
    scheduler
        .posts(PODS, &json!({"metadata": {"name": "x"}}), 403)
        .await;
    scheduler
        .deletes("/api/v1/nodes/n1", &Value::Null, 403)
        .await;
    let controllers = Caller::part(&server, identity::CONTROLLER_MANAGER_USER);
    let taint = json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}});
    // It reads for all controllers; each writes as a user of its own.
    controllers.gets("/api/v1/nodes/n1", 200).await;
    controllers.patches("/api/v1/nodes/n1", &taint, 403).await;
    let machines = "/apis/pratique.dev/v1alpha1/machines";
    let machine = json!({"metadata": {"name": "m"}, "spec": {"role": "worker"}});
    controllers.posts(machines, &machine, 403).await;
    let attestation = Caller::part(&server, identity::ATTESTATION_USER);
    attestation.posts(machines, &machine, 201).await;
    attestation
        .posts("/api/v1/nodes", &json!({"metadata": {"name": "n9"}}), 201)
        .await;
    attestation.gets("/api/v1/secrets", 403).await;
}
