//! Cluster roles of all callers and of upstream's components.

use super::node;
use super::terms::{
    ALL, READ, account, bind, bind_cluster, cluster_role, events, group, on, paths, user,
};
use crate::object::{Binding, Role};
use crate::rule::Rule;
use config_kube::identity;

const READ_UPDATE: &str = "get list watch update patch";
const MONITORING: &str = "system:monitoring";
const ACCOUNTS: &str = "system:serviceaccounts";

pub(super) fn roles() -> Vec<Role> {
    let mut roles = callers();
    roles.extend(components());
    roles.extend(nodes());
    roles.extend(storage());
    roles.extend(certificates());
    roles
}

/// Roles of authenticated and of unauthenticated callers.
fn callers() -> Vec<Role> {
    vec![
        cluster_role(
            "system:discovery",
            vec![paths(
                "get",
                "/livez /readyz /healthz /version /version/ /openapi /openapi/* /api /api/* /apis /apis/*",
            )],
        ),
        cluster_role(
            "system:monitoring",
            vec![
                paths(
                    "get",
                    "/metrics /metrics/slis /livez /readyz /healthz /livez/* /readyz/* /healthz/*",
                ),
                on("get", "core", "nodes/metrics"),
            ],
        ),
        cluster_role(
            "system:basic-user",
            vec![
                on(
                    "create",
                    "authorization.k8s.io",
                    "selfsubjectaccessreviews selfsubjectrulesreviews",
                ),
                on("create", "authentication.k8s.io", "selfsubjectreviews"),
            ],
        ),
        cluster_role(
            "system:public-info-viewer",
            vec![paths("get", "/livez /readyz /healthz /version /version/")],
        ),
        cluster_role(
            "system:service-account-issuer-discovery",
            vec![paths(
                "get",
                "/.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks /openid/v1/jwks/",
            )],
        ),
    ]
}

fn components() -> Vec<Role> {
    vec![
        cluster_role(
            "system:heapster",
            vec![
                on(READ, "core", "events pods nodes namespaces"),
                on(READ, "extensions", "deployments"),
            ],
        ),
        cluster_role(
            "system:auth-delegator",
            vec![
                on("create", "authentication.k8s.io", "tokenreviews"),
                on("create", "authorization.k8s.io", "subjectaccessreviews"),
            ],
        ),
        cluster_role(
            "system:kube-aggregator",
            vec![on(READ, "core", "services endpoints")],
        ),
        cluster_role("system:kube-controller-manager", controller_manager()),
        cluster_role(
            "system:kube-dns",
            vec![on("list watch", "core", "endpoints services")],
        ),
        cluster_role(
            "system:node-proxier",
            vec![
                on("list watch", "core", "services endpoints"),
                on(READ, "core", "nodes"),
                events(),
                on("list watch", "networking.k8s.io", "servicecidrs"),
                on("list watch", "discovery.k8s.io", "endpointslices"),
            ],
        ),
        cluster_role("system:kube-scheduler", scheduler()),
    ]
}

/// Roles of nodes: the kubelet, the programs that watch nodes, and the clients of the kubelet's
/// API.
fn nodes() -> Vec<Role> {
    vec![
        cluster_role("system:node", node::rules()),
        cluster_role(
            "system:node-problem-detector",
            vec![
                on("get", "core", "nodes"),
                on("patch", "core", "nodes/status"),
                events(),
            ],
        ),
        cluster_role(
            "system:kubelet-api-admin",
            vec![
                on(READ, "core", "nodes"),
                on("proxy", "core", "nodes"),
                on(
                    "*",
                    "core",
                    "nodes/proxy nodes/metrics nodes/stats nodes/log",
                ),
                on("*", "core", "nodes/pods nodes/healthz nodes/configz"),
            ],
        ),
        cluster_role(
            "system:node-bootstrapper",
            vec![on(
                "create get list watch",
                "certificates.k8s.io",
                "certificatesigningrequests",
            )],
        ),
    ]
}

fn storage() -> Vec<Role> {
    vec![
        cluster_role(
            "system:persistent-volume-provisioner",
            vec![
                on("get list watch create delete", "core", "persistentvolumes"),
                on("get list watch update", "core", "persistentvolumeclaims"),
                on(READ, "storage.k8s.io", "storageclasses"),
                on("watch", "core", "events"),
                events(),
            ],
        ),
        cluster_role(
            "system:volume-scheduler",
            vec![
                on(READ_UPDATE, "core", "persistentvolumes"),
                on(READ, "storage.k8s.io", "storageclasses"),
                on(READ_UPDATE, "core", "persistentvolumeclaims"),
            ],
        ),
    ]
}

fn controller_manager() -> Vec<Rule> {
    vec![
        events(),
        on("create", "coordination.k8s.io", "leases"),
        on("get update", "coordination.k8s.io", "leases").named("kube-controller-manager"),
        on("create", "core", "secrets serviceaccounts"),
        on("delete", "core", "secrets"),
        on(
            "get",
            "core",
            "namespaces secrets serviceaccounts configmaps",
        ),
        on("update", "core", "secrets serviceaccounts"),
        on("create", "authentication.k8s.io", "tokenreviews"),
        on("create", "authorization.k8s.io", "subjectaccessreviews"),
        on("list watch", "*", "*"),
        on("create", "core", "serviceaccounts/token"),
    ]
}

fn scheduler() -> Vec<Rule> {
    vec![
        events(),
        on("create", "coordination.k8s.io", "leases"),
        on("get update list watch", "coordination.k8s.io", "leases").named("kube-scheduler"),
        on(ALL, "coordination.k8s.io", "leasecandidates"),
        on(READ, "core", "nodes"),
        on("get list watch delete", "core", "pods"),
        on("create", "core", "pods/binding bindings"),
        on("patch update", "core", "pods/status"),
        on(READ, "core", "services replicationcontrollers"),
        on(READ, "apps extensions", "replicasets"),
        on(READ, "apps", "statefulsets"),
        on(READ, "policy", "poddisruptionbudgets"),
        on(READ, "core", "persistentvolumeclaims persistentvolumes"),
        on("create", "authentication.k8s.io", "tokenreviews"),
        on("create", "authorization.k8s.io", "subjectaccessreviews"),
        on(READ, "storage.k8s.io", "csinodes"),
        on(READ, "storage.k8s.io", "volumeattachments"),
        on(READ, "core", "namespaces"),
        on(READ, "storage.k8s.io", "csidrivers"),
        on(READ, "storage.k8s.io", "csistoragecapacities"),
        on(READ, "resource.k8s.io", "deviceclasses"),
        on(READ_UPDATE, "resource.k8s.io", "resourceclaims"),
        on(READ_UPDATE, "resource.k8s.io", "resourceclaims/status"),
        on("update", "core", "pods/finalizers"),
        on(READ, "resource.k8s.io", "resourceslices"),
        on("create delete", "resource.k8s.io", "resourceclaims"),
        on("update patch", "resource.k8s.io", "resourceclaims/binding"),
    ]
}

/// Roles that approve certificate requests.
fn certificates() -> Vec<Role> {
    let group = "certificates.k8s.io";
    let mut roles: Vec<Role> = ["nodeclient", "selfnodeclient"]
        .iter()
        .map(|what| {
            let resource = format!("certificatesigningrequests/{what}");
            let name = format!("system:certificates.k8s.io:certificatesigningrequests:{what}");
            cluster_role(&name, vec![on("create", group, &resource)])
        })
        .collect();
    let signers = [
        "legacy-unknown",
        "kubelet-serving",
        "kube-apiserver-client",
        "kube-apiserver-client-kubelet",
    ];
    roles.extend(signers.iter().map(|signer| {
        let rule = on("approve", group, "signers").named(&format!("kubernetes.io/{signer}"));
        cluster_role(
            &format!("system:certificates.k8s.io:{signer}-approver"),
            vec![rule],
        )
    }));
    roles
}

pub(super) fn bindings() -> Vec<Binding> {
    let authenticated = || group(identity::AUTHENTICATED_GROUP);
    vec![
        bind_cluster("cluster-admin", vec![group(identity::MASTERS_GROUP)]),
        bind_cluster("system:monitoring", vec![group(MONITORING)]),
        bind_cluster("system:discovery", vec![authenticated()]),
        bind_cluster("system:basic-user", vec![authenticated()]),
        bind_cluster(
            "system:public-info-viewer",
            vec![authenticated(), group(identity::UNAUTHENTICATED_GROUP)],
        ),
        bind_cluster("system:node-proxier", vec![user("system:kube-proxy")]),
        bind_cluster(
            "system:kube-controller-manager",
            vec![user(identity::CONTROLLER_MANAGER_USER)],
        ),
        bind_cluster("system:kube-dns", vec![account("kube-dns")]),
        bind_cluster(
            "system:kube-scheduler",
            vec![user(identity::SCHEDULER_USER)],
        ),
        bind_cluster(
            "system:volume-scheduler",
            vec![user(identity::SCHEDULER_USER)],
        ),
        // Without a subject: the Node authorizer decides about nodes.
        bind("", "system:node", "ClusterRole", "system:node", Vec::new()),
        bind_cluster(
            "system:service-account-issuer-discovery",
            vec![group(ACCOUNTS)],
        ),
    ]
}
