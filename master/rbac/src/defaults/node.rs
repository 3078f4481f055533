//! Rules of nodes, beside what the Node authorizer decides per object.

use super::terms::{READ, on};
use crate::rule::Rule;

/// The rules of `system:node`. The role has no subjects: the Node authorizer limits each rule to
/// the node's own objects.
pub fn rules() -> Vec<Rule> {
    vec![
        on("create", "authentication.k8s.io", "tokenreviews"),
        on(
            "create",
            "authorization.k8s.io",
            "subjectaccessreviews localsubjectaccessreviews",
        ),
        on(READ, "core", "services"),
        on("create get list watch", "core", "nodes"),
        on("update patch", "core", "nodes/status"),
        on("update patch", "core", "nodes"),
        on("create update patch", "core events.k8s.io", "events"),
        on(READ, "core", "pods"),
        on("create delete", "core", "pods"),
        on("update patch", "core", "pods/status"),
        on("create", "core", "pods/eviction"),
        on(READ, "core", "secrets configmaps"),
        on("get", "core", "persistentvolumeclaims persistentvolumes"),
        // Narrower than upstream, where a node may also read requests: they name every machine that
        // waits to join, and a node gets its own certificates with its attestation.
        on(
            "create",
            "certificates.k8s.io",
            "certificatesigningrequests",
        ),
        on(
            "get create update patch delete",
            "coordination.k8s.io",
            "leases",
        ),
        on("get", "storage.k8s.io", "volumeattachments"),
        on("create", "core", "serviceaccounts/token"),
        on("get update patch", "core", "persistentvolumeclaims/status"),
        on("get", "storage.k8s.io", "csidrivers"),
        on(
            "get create update patch delete",
            "storage.k8s.io",
            "csinodes",
        ),
        on("get", "node.k8s.io", "runtimeclasses"),
        on("get", "resource.k8s.io", "resourceclaims"),
        on("deletecollection", "resource.k8s.io", "resourceslices"),
        on("get", "core", "serviceaccounts"),
    ]
}
