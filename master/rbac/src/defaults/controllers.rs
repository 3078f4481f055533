//! One cluster role for each of upstream's controllers, bound to the service account of its name.

use super::{READ, account, bind_cluster, cluster_role, events, on};
use crate::object::{Binding, Role};
use crate::rule::Rule;

const PREFIX: &str = "system:controller:";

/// Name of a controller's account, and its rules besides events.
type Controller = (&'static str, Vec<Rule>, bool);

const RECORDS: bool = true;
const SILENT: bool = false;

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
        upkeep(),
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
            RECORDS,
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
            RECORDS,
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
            RECORDS,
        ),
    ]
}

/// What scales workloads, and what holds evictions back.
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
            RECORDS,
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
            RECORDS,
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
            RECORDS,
        ),
        (
            "replicaset-controller",
            vec![
                on("get list watch update", "extensions apps", "replicasets"),
                on("update", "extensions apps", "replicasets/status"),
                on("update", "extensions apps", "replicasets/finalizers"),
                on("list watch patch create delete", "core", "pods"),
            ],
            RECORDS,
        ),
        (
            "replication-controller",
            vec![
                on("get list watch update", "core", "replicationcontrollers"),
                on("update", "core", "replicationcontrollers/status"),
                on("update", "core", "replicationcontrollers/finalizers"),
                on("list watch patch create delete", "core", "pods"),
            ],
            RECORDS,
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
            RECORDS,
        ),
        (
            "ttl-after-finished-controller",
            vec![on("get list watch delete", "batch", "jobs")],
            RECORDS,
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
            RECORDS,
        ),
        (
            "endpointslice-controller",
            vec![
                on(READ, "core", "services pods nodes"),
                on("update", "core", "services/finalizers"),
                slices(),
            ],
            RECORDS,
        ),
        (
            "endpointslicemirroring-controller",
            vec![
                on(READ, "core", "services endpoints"),
                on("update", "core", "services/finalizers"),
                on("update", "core", "endpoints/finalizers"),
                slices(),
            ],
            RECORDS,
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
            RECORDS,
        ),
        (
            "service-controller",
            vec![
                on(READ, "core", "services"),
                on("patch update", "core", "services/status"),
                on("list watch", "core", "nodes"),
            ],
            RECORDS,
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
            RECORDS,
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
            RECORDS,
        ),
        (
            "expand-controller",
            vec![
                on("get list watch update patch", "core", "persistentvolumes"),
                on("update patch", "core", "persistentvolumeclaims/status"),
                on(READ, "core", "persistentvolumeclaims"),
            ],
            RECORDS,
        ),
        (
            "ephemeral-volume-controller",
            vec![
                on(READ, "core", "pods"),
                on("update", "core", "pods/finalizers"),
                on("get list watch create", "core", "persistentvolumeclaims"),
            ],
            RECORDS,
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
            RECORDS,
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
            RECORDS,
        ),
        (
            "pv-protection-controller",
            vec![on("get list watch update", "core", "persistentvolumes")],
            RECORDS,
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
            RECORDS,
        ),
        (
            "selinux-warning-controller",
            vec![
                on(READ, "core", "persistentvolumes"),
                on(READ, "core", "persistentvolumeclaims"),
                on(READ, "core", "pods"),
                on(READ, "storage.k8s.io", "csidrivers"),
            ],
            RECORDS,
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
            RECORDS,
        ),
        (
            "pod-garbage-collector",
            vec![
                on("list watch delete", "core", "pods"),
                on(READ, "core", "nodes"),
                on("patch", "core", "pods/status"),
            ],
            SILENT,
        ),
        (
            "ttl-controller",
            vec![on("update patch list watch", "core", "nodes")],
            RECORDS,
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
            RECORDS,
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
            RECORDS,
        ),
    ]
}

fn upkeep() -> Vec<Controller> {
    vec![
        (
            "clusterrole-aggregation-controller",
            vec![on(
                "escalate get list watch update patch",
                "rbac.authorization.k8s.io",
                "clusterroles",
            )],
            SILENT,
        ),
        (
            "generic-garbage-collector",
            vec![on("get list watch patch update delete", "*", "*")],
            RECORDS,
        ),
        (
            "namespace-controller",
            vec![
                on("get list watch delete", "core", "namespaces"),
                on("update", "core", "namespaces/finalize namespaces/status"),
                on("get list watch delete deletecollection", "*", "*"),
            ],
            SILENT,
        ),
        (
            "resourcequota-controller",
            vec![
                on("list watch", "*", "*"),
                on("update", "core", "resourcequotas/status"),
            ],
            RECORDS,
        ),
        (
            "service-account-controller",
            vec![on("create", "core", "serviceaccounts")],
            RECORDS,
        ),
        ("certificate-controller", certificates(), RECORDS),
        (
            "root-ca-cert-publisher",
            vec![on("create update", "core", "configmaps")],
            RECORDS,
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
            RECORDS,
        ),
        (
            "legacy-service-account-token-cleaner",
            vec![
                on("get", "core", "configmaps")
                    .named("kube-apiserver-legacy-service-account-token-tracking"),
                on("patch delete", "core", "secrets"),
            ],
            SILENT,
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
