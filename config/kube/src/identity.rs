//! Names in certificates, objects and requests: users, groups, signers, labels and paths.

/// Group of every attested node (Kubernetes: Node authorization).
pub const NODES_GROUP: &str = "system:nodes";
/// Prefix of a node's user name; the rest is the node's name.
pub const NODE_USER_PREFIX: &str = "system:node:";
/// Group with all rights; the organization of the admin's certificate.
pub const MASTERS_GROUP: &str = "system:masters";
/// Group of every authenticated caller.
pub const AUTHENTICATED_GROUP: &str = "system:authenticated";
/// Group of unauthenticated callers.
pub const UNAUTHENTICATED_GROUP: &str = "system:unauthenticated";
/// What the names of service accounts begin with; their namespace and name follow.
pub const ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// User of unauthenticated callers.
pub const ANONYMOUS_USER: &str = "system:anonymous";
/// User of the scheduler.
pub const SCHEDULER_USER: &str = "system:kube-scheduler";
/// User of the controllers.
pub const CONTROLLER_MANAGER_USER: &str = "system:kube-controller-manager";
/// User of the API server's own work on its objects.
pub const APISERVER_USER: &str = "system:apiserver";
/// Prefix of the users of this project's components inside the master.
pub const OWN_USER_PREFIX: &str = "system:pratique:";
/// User with which the master calls the kubelet API of nodes.
pub const APISERVER_KUBELET_USER: &str = "system:kube-apiserver";
/// User with which the master asks nodes what they and their pods use.
pub const USAGE_USER: &str = "system:pratique:usage";
/// User of the attestation service inside the master.
pub const ATTESTATION_USER: &str = "system:pratique:attestation";

/// Signer of a node's client certificate after a verified attestation.
pub const NODE_CLIENT_SIGNER: &str = "pratique.dev/node-client";
/// Signer of a node's serving certificate after a verified attestation.
pub const NODE_SERVING_SIGNER: &str = "pratique.dev/node-serving";
/// Signer of a static machine's client certificate, on an admin's approval.
pub const STATIC_CLIENT_SIGNER: &str = "pratique.dev/static-client";
/// Signer of a static machine's serving certificate, on an admin's approval.
pub const STATIC_SERVING_SIGNER: &str = "pratique.dev/static-serving";

/// The project's API group.
pub const GROUP: &str = "pratique.dev";
/// The version of the project's API group.
pub const VERSION: &str = "v1alpha1";

/// Namespace and name of the service through which pods reach the API (upstream's).
pub const API_SERVICE: (&str, &str) = ("default", "kubernetes");
/// Namespace and name of the service by whose address programs find the cluster's name server, as
/// upstream's clusters have it.
pub const NAMES_SERVICE: (&str, &str) = ("kube-system", "kube-dns");

/// Label on a Node: the id of the image that it proved.
pub const IMAGE_LABEL: &str = "pratique.dev/image";
/// Label on a Node: the role of the image that it proved.
pub const ROLE_LABEL: &str = "pratique.dev/role";
/// Label on the Node of a machine that proves nothing: `static` or `no-tpm`.
pub const JOIN_LABEL: &str = "pratique.dev/join";
/// Label on a Node that a policy admitted without verification, or that has no TPM:
/// `always-approve` or `no-tpm`.
pub const INSECURE_LABEL: &str = "pratique.dev/insecure";
/// Label on the Node of a machine whose configuration lets pods be privileged: `true`.
pub const PRIVILEGED_LABEL: &str = "pratique.dev/privileged-pods";
/// Annotation on a Node: the public key of the first link of its tunnel to other machines' pods,
/// signed by the node's key. What agents of versions before key renewal read and write.
pub const TUNNEL_ANNOTATION: &str = "pratique.dev/tunnel";
/// Annotation on a Node: the public keys of both links, with one signature.
pub const TUNNEL_KEYS_ANNOTATION: &str = "pratique.dev/tunnel-keys";

/// The label of a Service that another program than nodes' usual proxy serves (upstream's).
pub const SERVICE_PROXY_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// Its value on the Service that each node's own name server answers.
pub const NAME_SERVER_PROXY: &str = "pratique-name-server";
/// The extension of node certificates that names the Machine. The arc below `1.3.6.1.4.1` is the
/// one that RFC 5612 sets aside: the project has no enterprise number of its own yet, and nothing
/// outside a cluster reads the extension.
pub const NODE_EXTENSION_OID: [u64; 9] = [1, 3, 6, 1, 4, 1, 32473, 80, 1];
/// Upstream's label prefix from which `kubectl get nodes` shows roles.
pub const NODE_ROLE_LABEL_PREFIX: &str = "node-role.kubernetes.io/";
/// Label on a Node: its name, which charts select.
pub const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
/// Labels on a Node with its operating system, in Go's notation (`linux`); the second is upstream's
/// deprecated name, which charts still select.
pub const OS_LABELS: [&str; 2] = ["kubernetes.io/os", "beta.kubernetes.io/os"];
/// Labels on a Node with its architecture, in Go's notation (`amd64`); the second is upstream's
/// deprecated name.
pub const ARCH_LABELS: [&str; 2] = ["kubernetes.io/arch", "beta.kubernetes.io/arch"];
/// The operating system of all nodes, in Go's notation.
pub const OS: &str = "linux";

/// Labels of kubernetes.io that a kubelet may set on its own Node (upstream: `NodeRestriction`).
pub const KUBELET_LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
];
/// Taint of master machines (upstream's name).
pub const CONTROL_PLANE_TAINT: &str = "node-role.kubernetes.io/control-plane";

/// Annotation on a Machine or a certificate request, set by the server: who last decided whether
/// the machine may join, or on the request, and when.
pub const DECIDED_BY: &str = "pratique.dev/decided-by";

/// Annotation on a CertificatePolicy: `RULE=SVN`, the lower minimum SVN that an admin explicitly
/// allows; `all` before the policy is deleted.
pub const LOWER_SVN: &str = "pratique.dev/lower-min-svn";

/// Annotation on a CertificatePolicy, set by the server: the minimum SVNs of its rules, removed
/// rules included, as JSON.
pub const FLOORS: &str = "pratique.dev/min-svn";

/// Namespace of node leases.
pub const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";

/// The user name of a node.
pub fn node_user(node: &str) -> String {
    format!("{NODE_USER_PREFIX}{node}")
}

/// The node's name in a user name; `None` if the user is not a node.
pub fn node_of_user(user: &str) -> Option<&str> {
    user.strip_prefix(NODE_USER_PREFIX)
        .filter(|name| !name.is_empty())
}

/// Who has a part of what callers share: a user, or all service accounts of a namespace together,
/// as who may make one there makes many.
pub fn party(user: &str) -> &str {
    let account = user.strip_prefix(ACCOUNT_PREFIX);
    account
        .and_then(|account| account.split_once(':'))
        .and_then(|(namespace, _)| user.get(..ACCOUNT_PREFIX.len() + namespace.len()))
        .unwrap_or(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_of_a_namespace_are_one_party() {
        for (user, whose) in [
            ("system:serviceaccount:a:b", "system:serviceaccount:a"),
            ("system:serviceaccount:a:b:c", "system:serviceaccount:a"),
            ("system:serviceaccount:a", "system:serviceaccount:a"),
            ("system:serviceaccounts:a:b", "system:serviceaccounts:a:b"),
            ("system:node:n1", "system:node:n1"),
            ("jane", "jane"),
        ] {
            assert_eq!(party(user), whose);
        }
    }

    #[test]
    fn node_user_round_trips() {
        assert_eq!(node_of_user(&node_user("worker-1")), Some("worker-1"));
        assert_eq!(node_of_user("system:node:"), None);
        assert_eq!(node_of_user("admin"), None);
    }
}
