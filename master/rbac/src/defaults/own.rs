//! Roles of the master's own components. Those of single controllers are made where the controllers
//! are (`master/control`).

use super::terms::{ALL, READ, bind, cluster_role, events, group, on, user};
use crate::object::{Binding, Role};
use crate::rule::Rule;
use config_kube::identity;

const ATTESTATION: &str = "system:pratique:attestation";
const CONTROLLERS: &str = "system:pratique:controllers";
const NODE_PROXY: &str = "system:pratique:node-proxy";
const NODE_POLICIES: &str = "system:pratique:node-network-policies";
const USAGE: &str = "system:pratique:usage";
const STATIC_PODS: &str = "system:pratique:static-pods";
const KUBELET_CLIENT: &str = "system:pratique:kubelet-client";

pub(super) fn roles() -> Vec<Role> {
    vec![
        cluster_role(ATTESTATION, attestation()),
        cluster_role(CONTROLLERS, all_controllers()),
        cluster_role(
            USAGE,
            vec![
                on("list watch", "core", "nodes"),
                on("get", "core", "nodes/proxy"),
            ],
        ),
        // Bound to no one by default: an admin decides whether nodes may show their static pods.
        // Admission accepts only mirror pods.
        cluster_role(STATIC_PODS, vec![on("create", "core", "pods")]),
        // A part of upstream's `system:node-proxier`: an agent reads no Endpoints, and its own Node
        // by the Node authorizer, which lets it write events, too.
        cluster_role(
            NODE_PROXY,
            vec![
                on("list watch", "core", "services nodes"),
                on("list watch", "discovery.k8s.io", "endpointslices"),
                on("list watch", "networking.k8s.io", "servicecidrs"),
            ],
        ),
        // The Node authorizer lets a node read only the parts of pods that policies need.
        cluster_role(
            NODE_POLICIES,
            vec![
                on("list watch", "networking.k8s.io", "networkpolicies"),
                on("list watch", "core", "namespaces"),
            ],
        ),
    ]
}

/// The attestation service: machines, their nodes and their certificates.
fn attestation() -> Vec<Rule> {
    let certificates = "certificates.k8s.io";
    vec![
        on(ALL, identity::GROUP, "*"),
        on(ALL, "core", "nodes nodes/status"),
        on(ALL, certificates, "certificatesigningrequests"),
        on(
            "get update patch",
            certificates,
            "certificatesigningrequests/approval certificatesigningrequests/status",
        ),
        // It signs what it verified itself; a controller signs what was approved.
        on("approve sign", certificates, "signers")
            .named("pratique.dev/node-client pratique.dev/node-serving"),
        on(READ, "core", "pods namespaces configmaps"),
        events(),
    ]
}

/// The kinds that controllers follow, which one user reads for all of them. Each controller writes
/// with its own user, whose role has the rights that the controller declares (`master/control`).
fn all_controllers() -> Vec<Rule> {
    vec![on(READ, "*", "*")]
}

pub(super) fn bindings() -> Vec<Binding> {
    let own =
        |name: &str, role: &str, who: &str| bind("", name, "ClusterRole", role, vec![user(who)]);
    vec![
        own(ATTESTATION, ATTESTATION, identity::ATTESTATION_USER),
        own(CONTROLLERS, CONTROLLERS, identity::CONTROLLER_MANAGER_USER),
        own(USAGE, USAGE, identity::USAGE_USER),
        // A node's agent is its service proxy, too: it reads services, their ranges and endpoints,
        // and where other nodes' pods are.
        bind(
            "",
            NODE_PROXY,
            "ClusterRole",
            NODE_PROXY,
            vec![group(identity::NODES_GROUP)],
        ),
        bind(
            "",
            NODE_POLICIES,
            "ClusterRole",
            NODE_POLICIES,
            vec![group(identity::NODES_GROUP)],
        ),
        own(
            KUBELET_CLIENT,
            "system:kubelet-api-admin",
            identity::APISERVER_KUBELET_USER,
        ),
    ]
}
