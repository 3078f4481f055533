//! Each component of the master has, by the default roles alone, the rights that its code uses, and
//! not those that it never needs.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use config_kube::identity;
use master_rbac::{Request, Resource, Snapshot, Verdict, Who, defaults};

/// Verbs, group and resources: every combination.
type Need = (&'static str, &'static str, &'static str);

const RECORDS: Need = ("create patch update", "", "events");

const SCHEDULER: &[Need] = &[
    ("list watch", "", "pods nodes namespaces"),
    ("create", "", "pods/binding"),
    ("patch", "", "pods/status"),
    RECORDS,
];

const CONTROLLERS: &[Need] = &[
    ("list watch", "", "nodes pods namespaces secrets"),
    ("list watch", "example.com", "widgets"),
];

const ATTESTATION: &[Need] = &[
    (
        "get list watch create update patch delete",
        identity::GROUP,
        "machines nodeattestations",
    ),
    (
        "get list watch create",
        identity::GROUP,
        "certificatepolicies imagereleases",
    ),
    (
        "update patch",
        identity::GROUP,
        "machines/status nodeattestations/status certificatepolicies/status",
    ),
    ("get list watch create patch", "", "nodes"),
    ("patch update", "", "nodes/status"),
    (
        "get list watch create delete",
        "certificates.k8s.io",
        "certificatesigningrequests",
    ),
    (
        "update",
        "certificates.k8s.io",
        "certificatesigningrequests/approval certificatesigningrequests/status",
    ),
    RECORDS,
];

const KUBELET_CLIENT: &[Need] = &[(
    "get create",
    "",
    "nodes/proxy nodes/log nodes/metrics nodes/stats",
)];

fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot::default();
    defaults::cluster_roles()
        .into_iter()
        .chain(defaults::roles())
        .for_each(|role| snapshot.set_role(role));
    let bindings = defaults::cluster_role_bindings()
        .into_iter()
        .chain(defaults::role_bindings());
    bindings.for_each(|binding| snapshot.set_binding(binding));
    snapshot
}

fn may(snapshot: &Snapshot, user: &str, verb: &str, group: &str, path: &str, name: &str) -> bool {
    let groups = [identity::AUTHENTICATED_GROUP.to_owned()];
    let (resource, subresource) = path.split_once('/').unwrap_or((path, ""));
    let request = Request::Resource(
        verb,
        Resource {
            group,
            resource,
            subresource,
            namespace: "n",
            name,
        },
    );
    matches!(
        snapshot.decide(
            &Who {
                name: user,
                groups: &groups
            },
            &request
        ),
        Verdict::Allowed(_)
    )
}

#[test]
fn every_part_of_the_master_may_do_what_it_does() {
    let snapshot = snapshot();
    for (user, needs) in [
        (identity::SCHEDULER_USER, SCHEDULER),
        (identity::CONTROLLER_MANAGER_USER, CONTROLLERS),
        (identity::ATTESTATION_USER, ATTESTATION),
        (identity::APISERVER_KUBELET_USER, KUBELET_CLIENT),
    ] {
        for (verbs, group, resources) in needs {
            for verb in verbs.split(' ') {
                for resource in resources.split(' ') {
                    assert!(
                        may(&snapshot, user, verb, group, resource, "x"),
                        "{user} {verb} {resource} in {group:?}"
                    );
                }
            }
        }
    }
    for (signer, own) in [
        ("pratique.dev/node-client", true),
        ("pratique.dev/node-serving", true),
        ("pratique.dev/static-client", false),
        ("kubernetes.io/kube-apiserver-client", false),
    ] {
        for verb in ["approve", "sign"] {
            let (user, group) = (identity::ATTESTATION_USER, "certificates.k8s.io");
            let allowed = may(&snapshot, user, verb, group, "signers", signer);
            assert_eq!(allowed, own, "{verb} {signer}");
        }
    }
}

#[test]
fn no_part_of_the_master_has_what_it_never_needs() {
    let snapshot = snapshot();
    for (user, verb, group, resource) in [
        (identity::SCHEDULER_USER, "get", "", "secrets"),
        (identity::SCHEDULER_USER, "delete", "", "nodes"),
        (identity::SCHEDULER_USER, "patch", "", "nodes"),
        (identity::SCHEDULER_USER, "create", "", "pods"),
        (identity::CONTROLLER_MANAGER_USER, "patch", "", "nodes"),
        (identity::CONTROLLER_MANAGER_USER, "delete", "", "pods"),
        (
            identity::CONTROLLER_MANAGER_USER,
            "create",
            identity::GROUP,
            "machines",
        ),
        (
            identity::CONTROLLER_MANAGER_USER,
            "create",
            "rbac.authorization.k8s.io",
            "clusterrolebindings",
        ),
        (
            identity::CONTROLLER_MANAGER_USER,
            "impersonate",
            "",
            "users",
        ),
        (identity::ATTESTATION_USER, "get", "", "secrets"),
        (identity::ATTESTATION_USER, "create", "", "pods"),
        (
            identity::ATTESTATION_USER,
            "create",
            "rbac.authorization.k8s.io",
            "clusterrolebindings",
        ),
        (identity::APISERVER_KUBELET_USER, "get", "", "secrets"),
        (identity::APISERVER_KUBELET_USER, "patch", "", "nodes"),
    ] {
        let allowed = may(&snapshot, user, verb, group, resource, "x");
        assert!(!allowed, "{user} {verb} {resource} in {group:?}");
    }
}
