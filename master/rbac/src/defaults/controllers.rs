//! One cluster role for each of upstream's controllers, bound to the service account of its name.

use super::terms::{READ, account, bind_cluster, cluster_role, events, on};
use crate::object::{Binding, Role};
use crate::rule::Rule;

const PREFIX: &str = "system:controller:";

/// Name of a controller's service account, its rules, and whether it also writes events.
type Controller = (&'static str, Vec<Rule>, bool);

const WRITES_EVENTS: bool = true;
const NO_EVENTS: bool = false;

pub(super) fn roles() -> Vec<Role> {
    let all = [
        workloads(),
        scale(),
        sets(),
        endpoints(),
        network(),
        volumes(),
        protection(),
        nodes(),
        every_kind(),
        trust(),
    ]
    .into_iter()
    .flatten();
    all.map(|(name, mut rules, records)| {
        if records {
            rules.push(events());
        }
        cluster_role(&format!("{PREFIX}{name}"), rules)
    })
    .collect()
}

pub(super) fn bindings() -> Vec<Binding> {
    let bound = |role: Role| {
        let name = role.metadata.name;
        let own = account(name.trim_start_matches(PREFIX));
        bind_cluster(&name, vec![own])
    };
    roles().into_iter().map(bound).collect()
}

fn workloads() -> Vec<Controller> {
    vec![
        (
            "cronjob-controller",
            vec![
                on("get list watch update", "batch", "cronjobs"),
                on("get list watch create update delete patch", "batch", "jobs"),
                on("update", "batch", "cronjobs/status"),
                on("update", "batch", "cronjobs/finalizers"),
                on("list watch delete", "core", "pods"),
            ],
            WRITES_EVENTS,
        ),
        (
            "daemon-set-controller",
            vec![
                on(READ, "extensions apps", "daemonsets"),
                on("update", "extensions apps", "daemonsets/status"),
                on("update", "extensions apps", "daemonsets/finalizers"),
                on("list watch", "core", "nodes"),
                on("list watch create delete patch", "core", "pods"),
                on("create", "core", "pods/binding"),
                on(
                    "get list watch create delete update patch",
                    "apps",
                    "controllerrevisions",
                ),
            ],
            WRITES_EVENTS,
        ),
        (
            "deployment-controller",
            vec![
                on("get list watch update", "extensions apps", "deployments"),
                on("update", "extensions apps", "deployments/status"),
                on("update", "extensions apps", "deployments/finalizers"),
                on(
                    "get list watch create update patch delete",
                    "extensions apps",
                    "replicasets",
                ),
                on("get list watch update", "core", "pods"),
            ],
            WRITES_EVENTS,
        ),
    ]
}

/// Controllers that scale workloads, and disruption budgets.
fn scale() -> Vec<Controller> {
    vec![
        (
            "disruption-controller",
            vec![
                on(READ, "extensions apps", "deployments"),
                on(READ, "extensions apps", "replicasets"),
                on(READ, "core", "replicationcontrollers"),
                on(READ, "policy", "poddisruptionbudgets"),
                on(READ, "apps", "statefulsets"),
                on("update", "policy", "poddisruptionbudgets/status"),
                on("patch update", "core", "pods/status"),
                on("get", "*", "*/scale"),
            ],
            WRITES_EVENTS,
        ),
        (
            "horizontal-pod-autoscaler",
            vec![
                on(READ, "autoscaling", "horizontalpodautoscalers"),
                on("update", "autoscaling", "horizontalpodautoscalers/status"),
                on("get update", "*", "*/scale"),
                on("list watch", "core", "pods"),
                on("list watch", "metrics.k8s.io", "pods"),
                on(READ, "custom.metrics.k8s.io", "*"),
                on(READ, "external.metrics.k8s.io", "*"),
            ],
            WRITES_EVENTS,
        ),
    ]
}

fn sets() -> Vec<Controller> {
    vec![
        (
            "job-controller",
            vec![
                on("get list watch update patch", "batch", "jobs"),
                on("update", "batch", "jobs/status"),
                on("update", "batch", "jobs/finalizers"),
                on("list watch create delete patch", "core", "pods"),
            ],
            WRITES_EVENTS,
        ),
        (
            "replicaset-controller",
            vec![
                on("get list watch update", "extensions apps", "replicasets"),
                on("update", "extensions apps", "replicasets/status"),
                on("update", "extensions apps", "replicasets/finalizers"),
                on("list watch patch create delete", "core", "pods"),
            ],
            WRITES_EVENTS,
        ),
        (
            "replication-controller",
            vec![
                on("get list watch update", "core", "replicationcontrollers"),
                on("update", "core", "replicationcontrollers/status"),
                on("update", "core", "replicationcontrollers/finalizers"),
                on("list watch patch create delete", "core", "pods"),
            ],
            WRITES_EVENTS,
        ),
        (
            "statefulset-controller",
            vec![
                on("list watch", "core", "pods"),
                on(READ, "apps", "statefulsets"),
                on("update", "apps", "statefulsets/status"),
                on("update", "apps", "statefulsets/finalizers"),
                on("get create delete update patch", "core", "pods"),
                on(
                    "get create delete update patch list watch",
                    "apps",
                    "controllerrevisions",
                ),
                on("get create list watch", "core", "persistentvolumeclaims"),
                on("update delete", "core", "persistentvolumeclaims"),
                on("update", "core", "pods/finalizers"),
            ],
            WRITES_EVENTS,
        ),
        (
            "ttl-after-finished-controller",
            vec![on("get list watch delete", "batch", "jobs")],
            WRITES_EVENTS,
        ),
    ]
}

/// Which pods stand behind a Service.
fn endpoints() -> Vec<Controller> {
    let slices = || {
        on(
            "get list watch create update delete",
            "discovery.k8s.io",
            "endpointslices",
        )
    };
    vec![
        (
            "endpoint-controller",
            vec![
                on(READ, "core", "services pods"),
                on("get list watch create update delete", "core", "endpoints"),
                on("create", "core", "endpoints/restricted"),
            ],
            WRITES_EVENTS,
        ),
        (
            "endpointslice-controller",
            vec![
                on(READ, "core", "services pods nodes"),
                on("update", "core", "services/finalizers"),
                slices(),
            ],
            WRITES_EVENTS,
        ),
        (
            "endpointslicemirroring-controller",
            vec![
                on(READ, "core", "services endpoints"),
                on("update", "core", "services/finalizers"),
                on("update", "core", "endpoints/finalizers"),
                slices(),
            ],
            WRITES_EVENTS,
        ),
    ]
}

/// Addresses and routes.
fn network() -> Vec<Controller> {
    vec![
        (
            "route-controller",
            vec![
                on("list watch", "core", "nodes"),
                on("patch", "core", "nodes/status"),
            ],
            WRITES_EVENTS,
        ),
        (
            "service-controller",
            vec![
                on(READ, "core", "services"),
                on("patch update", "core", "services/status"),
                on("list watch", "core", "nodes"),
            ],
            WRITES_EVENTS,
        ),
        (
            "service-cidrs-controller",
            vec![
                on(
                    "get list watch patch update",
                    "networking.k8s.io",
                    "servicecidrs",
                ),
                on(
                    "patch update",
                    "networking.k8s.io",
                    "servicecidrs/finalizers",
                ),
                on("patch update", "networking.k8s.io", "servicecidrs/status"),
                on(READ, "networking.k8s.io", "ipaddresses"),
            ],
            WRITES_EVENTS,
        ),
    ]
}

fn volumes() -> Vec<Controller> {
    vec![
        (
            "attachdetach-controller",
            vec![
                on(
                    "list watch",
                    "core",
                    "persistentvolumes persistentvolumeclaims",
                ),
                on(READ, "core", "nodes"),
                on("patch update", "core", "nodes/status"),
                on("list watch", "core", "pods"),
                on(
                    "get create delete list watch",
                    "storage.k8s.io",
                    "volumeattachments",
                ),
                on(READ, "storage.k8s.io", "csidrivers"),
                on(READ, "storage.k8s.io", "csinodes"),
            ],
            WRITES_EVENTS,
        ),
        (
            "expand-controller",
            vec![
                on("get list watch update patch", "core", "persistentvolumes"),
                on("update patch", "core", "persistentvolumeclaims/status"),
                on(READ, "core", "persistentvolumeclaims"),
            ],
            WRITES_EVENTS,
        ),
        (
            "ephemeral-volume-controller",
            vec![
                on(READ, "core", "pods"),
                on("update", "core", "pods/finalizers"),
                on("get list watch create", "core", "persistentvolumeclaims"),
            ],
            WRITES_EVENTS,
        ),
        (
            "persistent-volume-binder",
            vec![
                on(
                    "get list watch update create delete",
                    "core",
                    "persistentvolumes",
                ),
                on("update", "core", "persistentvolumes/status"),
                on("get list watch update", "core", "persistentvolumeclaims"),
                on("update", "core", "persistentvolumeclaims/status"),
                on("list watch get create delete", "core", "pods"),
                on(READ, "storage.k8s.io", "storageclasses"),
                on("list watch", "core", "nodes"),
                on("watch", "core", "events"),
            ],
            WRITES_EVENTS,
        ),
    ]
}

fn protection() -> Vec<Controller> {
    vec![
        (
            "pvc-protection-controller",
            vec![
                on("get list watch update", "core", "persistentvolumeclaims"),
                on("update", "core", "persistentvolumeclaims/status"),
                on(READ, "core", "pods"),
            ],
            WRITES_EVENTS,
        ),
        (
            "pv-protection-controller",
            vec![on("get list watch update", "core", "persistentvolumes")],
            WRITES_EVENTS,
        ),
        (
            "volumeattributesclass-protection-controller",
            vec![
                on(READ, "core", "persistentvolumeclaims"),
                on(READ, "core", "persistentvolumes"),
                on(
                    "get list watch update",
                    "storage.k8s.io",
                    "volumeattributesclasses",
                ),
            ],
            WRITES_EVENTS,
        ),
        (
            "selinux-warning-controller",
            vec![
                on(READ, "core", "persistentvolumes"),
                on(READ, "core", "persistentvolumeclaims"),
                on(READ, "core", "pods"),
                on(READ, "storage.k8s.io", "csidrivers"),
            ],
            WRITES_EVENTS,
        ),
    ]
}

fn nodes() -> Vec<Controller> {
    vec![
        (
            "node-controller",
            vec![
                on("get list watch update delete patch", "core", "nodes"),
                on("patch update", "core", "nodes/status"),
                on("patch update", "core", "pods/status"),
                on("list watch get delete", "core", "pods"),
                on(READ, "coordination.k8s.io", "leases"),
            ],
            WRITES_EVENTS,
        ),
        (
            "pod-garbage-collector",
            vec![
                on("list watch delete", "core", "pods"),
                on(READ, "core", "nodes"),
                on("patch", "core", "pods/status"),
            ],
            NO_EVENTS,
        ),
        (
            "ttl-controller",
            vec![on("update patch list watch", "core", "nodes")],
            WRITES_EVENTS,
        ),
        (
            "resource-claim-controller",
            vec![
                on(READ, "core", "pods"),
                on("update", "core", "pods/finalizers"),
                on(
                    "get list watch create delete",
                    "resource.k8s.io",
                    "resourceclaims",
                ),
                on(
                    "update patch",
                    "resource.k8s.io",
                    "resourceclaims resourceclaims/status",
                ),
                on("update patch", "core", "pods/status"),
                on("update patch", "resource.k8s.io", "resourceclaims/binding"),
            ],
            WRITES_EVENTS,
        ),
        (
            "device-taint-eviction-controller",
            vec![
                on("get list watch delete", "core", "pods"),
                on("update patch", "core", "pods/status"),
                on(READ, "resource.k8s.io", "resourceclaims"),
                on(READ, "resource.k8s.io", "resourceslices"),
                on(READ, "resource.k8s.io", "deviceclasses"),
            ],
            WRITES_EVENTS,
        ),
    ]
}

/// Controllers that act on objects of every kind.
fn every_kind() -> Vec<Controller> {
    vec![
        (
            "generic-garbage-collector",
            vec![on("get list watch patch update delete", "*", "*")],
            WRITES_EVENTS,
        ),
        (
            "namespace-controller",
            vec![
                on("get list watch delete", "core", "namespaces"),
                on("update", "core", "namespaces/finalize namespaces/status"),
                on("get list watch delete deletecollection", "*", "*"),
            ],
            NO_EVENTS,
        ),
        (
            "resourcequota-controller",
            vec![
                on("list watch", "*", "*"),
                on("update", "core", "resourcequotas/status"),
            ],
            WRITES_EVENTS,
        ),
    ]
}

/// Controllers of roles, certificates and tokens.
fn trust() -> Vec<Controller> {
    vec![
        (
            "clusterrole-aggregation-controller",
            vec![on(
                "escalate get list watch update patch",
                "rbac.authorization.k8s.io",
                "clusterroles",
            )],
            NO_EVENTS,
        ),
        (
            "service-account-controller",
            vec![on("create", "core", "serviceaccounts")],
            WRITES_EVENTS,
        ),
        ("certificate-controller", certificates(), WRITES_EVENTS),
        (
            "root-ca-cert-publisher",
            vec![on("create update", "core", "configmaps")],
            WRITES_EVENTS,
        ),
        (
            "validatingadmissionpolicy-status-controller",
            vec![
                on(
                    READ,
                    "admissionregistration.k8s.io",
                    "validatingadmissionpolicies",
                ),
                on(
                    "get patch update",
                    "admissionregistration.k8s.io",
                    "validatingadmissionpolicies/status",
                ),
            ],
            WRITES_EVENTS,
        ),
        (
            "legacy-service-account-token-cleaner",
            vec![
                on("get", "core", "configmaps")
                    .named("kube-apiserver-legacy-service-account-token-tracking"),
                on("patch delete", "core", "secrets"),
            ],
            NO_EVENTS,
        ),
    ]
}

fn certificates() -> Vec<Rule> {
    let group = "certificates.k8s.io";
    vec![
        on("get list watch delete", group, "certificatesigningrequests"),
        on(
            "update",
            group,
            "certificatesigningrequests/status certificatesigningrequests/approval",
        ),
        on("approve", group, "signers").named("kubernetes.io/kube-apiserver-client-kubelet"),
        on("sign", group, "signers").named(
            "kubernetes.io/legacy-unknown kubernetes.io/kube-apiserver-client \
             kubernetes.io/kube-apiserver-client-kubelet kubernetes.io/kubelet-serving",
        ),
        on("create", "authorization.k8s.io", "subjectaccessreviews"),
    ]
}
