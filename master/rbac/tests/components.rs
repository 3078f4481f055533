//! Each component of the master has, by the default roles alone, the rights that its code uses, and
//! not those that it never needs.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use config_kube::identity;
use master_rbac::{Request, Resource, Snapshot, Verdict, Who, defaults};
use std::collections::BTreeSet;

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
        "get list watch create update delete",
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

/// What an agent reads of the whole cluster. The rest is decided by the node's own objects (the
/// Node authorizer).
const NODES: &[Need] = &[
    ("list watch", "", "services nodes namespaces"),
    ("list watch", "discovery.k8s.io", "endpointslices"),
    (
        "list watch",
        "networking.k8s.io",
        "networkpolicies servicecidrs",
    ),
];

/// What upstream's service proxy may do that a node may not do by its group.
const UPSTREAMS_PROXY_ALONE: &[Need] = &[
    ("get", "", "nodes"),
    ("list watch", "", "endpoints"),
    RECORDS,
    ("create patch update", "events.k8s.io", "events"),
];

fn each(needs: &[Need]) -> BTreeSet<[String; 3]> {
    let one = |(verbs, group, resources): &Need| {
        let pairs = verbs
            .split(' ')
            .flat_map(|verb| resources.split(' ').map(move |resource| (verb, resource)));
        let all = pairs.map(|(verb, resource)| [verb, *group, resource].map(str::to_owned));
        all.collect::<Vec<_>>()
    };
    needs.iter().flat_map(one).collect()
}

/// What a default cluster role allows.
fn allows(name: &str) -> BTreeSet<[String; 3]> {
    let roles = defaults::cluster_roles().into_iter();
    let role = roles.filter(|role| role.metadata.name == name);
    let mut all = BTreeSet::new();
    for rule in role.flat_map(|role| role.rules) {
        assert_eq!(
            (rule.non_resource_urls, rule.resource_names),
            (vec![], vec![])
        );
        for verb in &rule.verbs {
            for group in &rule.api_groups {
                let resources = rule.resources.iter();
                all.extend(resources.map(|one| [verb, group, one].map(String::clone)));
            }
        }
    }
    all
}

#[test]
fn nodes_read_of_the_cluster_what_their_agents_need_and_nothing_else() {
    let bindings = defaults::cluster_role_bindings().into_iter();
    let of_nodes = bindings.filter(|binding| {
        let mut subjects = binding.subjects.iter();
        subjects.any(|one| one.kind == "Group" && one.name == identity::NODES_GROUP)
    });
    let theirs: BTreeSet<_> = of_nodes
        .flat_map(|binding| allows(&binding.role_ref.name))
        .collect();
    assert_eq!(theirs, each(NODES));
    let upstreams = allows("system:node-proxier");
    let alone: BTreeSet<_> = upstreams.difference(&theirs).cloned().collect();
    assert_eq!(alone, each(UPSTREAMS_PROXY_ALONE));
}

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
