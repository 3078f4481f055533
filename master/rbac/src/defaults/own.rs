//! Roles of the master's own components. Upstream gives each controller a service account; here all
//! controllers run in the master's process as one user with the sum of their rights.

use super::{ALL, READ, bind, cluster_role, controllers, events, on, user};
use crate::object::{Binding, Role};
use crate::rule::Rule;
use config_kube::identity;

const ATTESTATION: &str = "system:pratique:attestation";
const CONTROLLERS: &str = "system:pratique:controllers";
const KUBELET_CLIENT: &str = "system:pratique:kubelet-client";

pub(super) fn roles() -> Vec<Role> {
    vec![
        cluster_role(ATTESTATION, attestation()),
        cluster_role(CONTROLLERS, all_controllers()),
    ]
}

/// The attestation service: machines, their nodes and their certificates.
fn attestation() -> Vec<Rule> {
    let certificates = "certificates.k8s.io";
    vec![
        on(ALL, identity::GROUP, "*"),
        on(ALL, "core", "nodes nodes/status"),
        on(ALL, certificates, "certificatesigningrequests"),
        on("get update patch", certificates, "certificatesigningrequests/approval certificatesigningrequests/status"),
        on("approve sign", certificates, "signers").named(
            "pratique.dev/node-client pratique.dev/node-serving kubernetes.io/kube-apiserver-client \
             kubernetes.io/kube-apiserver-client-kubelet kubernetes.io/kubelet-serving",
        ),
        // Certificates of static machines are approved by an admin only.
        on("sign", certificates, "signers").named("pratique.dev/static-client pratique.dev/static-serving"),
        on(READ, "core", "pods namespaces configmaps"),
        events(),
    ]
}

/// The rights of upstream's controllers together, and what this project's controllers need beyond
/// them.
fn all_controllers() -> Vec<Rule> {
    let mut rules: Vec<Rule> = vec![
        on(
            ALL,
            "core",
            "nodes pods namespaces configmaps serviceaccounts secrets events",
        ),
        on(
            "get update patch",
            "core",
            "nodes/status pods/status namespaces/status resourcequotas/status",
        ),
        // Upstream's controllers replace whole statuses; here each writes what differs.
        on(
            "patch",
            "apps",
            "deployments deployments/status replicasets/status daemonsets/status statefulsets/status",
        ),
        on("patch", "batch", "jobs/status cronjobs/status"),
        on(
            "patch",
            "core",
            "replicationcontrollers/status persistentvolumeclaims",
        ),
        on("patch", "policy", "poddisruptionbudgets/status"),
        on("update", "core", "namespaces/finalize"),
        on("create", "core", "pods/eviction serviceaccounts/token"),
        on(ALL, "coordination.k8s.io", "leases"),
        on(ALL, "certificates.k8s.io", "certificatesigningrequests"),
        on(
            "get update patch",
            "certificates.k8s.io",
            "certificatesigningrequests/approval certificatesigningrequests/status",
        ),
        on(ALL, identity::GROUP, "nodeattestations"),
    ];
    for rule in controllers::roles().into_iter().flat_map(|role| role.rules) {
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    rules
}

pub(super) fn bindings() -> Vec<Binding> {
    let own =
        |name: &str, role: &str, who: &str| bind("", name, "ClusterRole", role, vec![user(who)]);
    vec![
        own(ATTESTATION, ATTESTATION, identity::ATTESTATION_USER),
        own(CONTROLLERS, CONTROLLERS, identity::CONTROLLER_MANAGER_USER),
        own(
            KUBELET_CLIENT,
            "system:kubelet-api-admin",
            identity::APISERVER_KUBELET_USER,
        ),
    ]
}
