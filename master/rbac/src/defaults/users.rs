//! Roles of users: `cluster-admin`, `admin`, `edit`, `view` and the roles that they aggregate.

use super::terms::{ALL, READ, WRITE, aggregated_into, aggregated_role, cluster_role, on, paths};
use crate::object::Role;
use crate::rule::Rule;

pub(super) fn roles() -> Vec<Role> {
    vec![
        cluster_role("cluster-admin", vec![on("*", "*", "*"), paths("*", "*")]),
        aggregated_role("admin", None),
        aggregated_role("edit", Some("admin")),
        aggregated_role("view", Some("edit")),
        aggregated_into(
            "system:aggregate-to-admin",
            "admin",
            vec![
                on(
                    "create",
                    "authorization.k8s.io",
                    "localsubjectaccessreviews",
                ),
                on(ALL, "rbac.authorization.k8s.io", "roles rolebindings"),
            ],
        ),
        aggregated_into("system:aggregate-to-edit", "edit", edit()),
        aggregated_into("system:aggregate-to-view", "view", view()),
        metrics_reader(),
    ]
}

/// The role with which the project of upstream's metrics server gives `view`, `edit` and `admin`
/// what pods use.
fn metrics_reader() -> Role {
    let mut role = cluster_role(
        "system:aggregated-metrics-reader",
        vec![on(READ, "metrics.k8s.io", "pods nodes")],
    );
    for into in ["view", "edit", "admin"] {
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{into}");
        role.metadata.labels.insert(label, "true".to_owned());
    }
    role
}

fn edit() -> Vec<Rule> {
    vec![
        // A read of these is as powerful as a write: `get pods/exec` runs a program, and a Secret
        // may hold the credential of a mightier user. So `view` lacks them.
        on(
            READ,
            "core",
            "pods/attach pods/proxy pods/exec pods/portforward secrets services/proxy",
        ),
        on("impersonate", "core", "serviceaccounts"),
        on(
            WRITE,
            "core",
            "pods pods/attach pods/proxy pods/exec pods/portforward",
        ),
        on("create", "core", "pods/eviction"),
        on(
            WRITE,
            "core",
            "replicationcontrollers replicationcontrollers/scale serviceaccounts services services/proxy \
             persistentvolumeclaims configmaps secrets",
        ),
        on("create", "core", "serviceaccounts/token"),
        on(WRITE, "core events.k8s.io", "events"),
        on(
            WRITE,
            "apps",
            "statefulsets statefulsets/scale daemonsets deployments deployments/scale deployments/rollback replicasets \
             replicasets/scale",
        ),
        on(WRITE, "autoscaling", "horizontalpodautoscalers"),
        on(WRITE, "batch", "jobs cronjobs"),
        on(
            WRITE,
            "extensions",
            "daemonsets deployments deployments/scale deployments/rollback ingresses replicasets replicasets/scale \
             replicationcontrollers/scale networkpolicies",
        ),
        on(WRITE, "policy", "poddisruptionbudgets"),
        on(WRITE, "networking.k8s.io", "networkpolicies ingresses"),
        on(ALL, "coordination.k8s.io", "leases"),
        on(
            WRITE,
            "resource.k8s.io",
            "resourceclaims resourceclaimtemplates",
        ),
    ]
}

fn view() -> Vec<Rule> {
    vec![
        on(
            READ,
            "core",
            "pods replicationcontrollers replicationcontrollers/scale serviceaccounts services services/status \
             endpoints persistentvolumeclaims persistentvolumeclaims/status configmaps",
        ),
        on(
            READ,
            "core",
            "limitranges resourcequotas bindings pods/status resourcequotas/status namespaces/status \
             replicationcontrollers/status pods/log",
        ),
        // In a role of a namespace this is the namespace object itself.
        on(READ, "core", "namespaces"),
        on(READ, "core events.k8s.io", "events"),
        on(READ, "discovery.k8s.io", "endpointslices"),
        on(
            READ,
            "apps",
            "controllerrevisions statefulsets statefulsets/status statefulsets/scale daemonsets daemonsets/status \
             deployments deployments/status deployments/scale replicasets replicasets/status replicasets/scale",
        ),
        on(
            READ,
            "autoscaling",
            "horizontalpodautoscalers horizontalpodautoscalers/status",
        ),
        on(READ, "batch", "jobs cronjobs cronjobs/status jobs/status"),
        on(
            READ,
            "extensions",
            "daemonsets daemonsets/status deployments deployments/scale deployments/status ingresses ingresses/status \
             replicasets replicasets/scale replicasets/status replicationcontrollers/scale networkpolicies",
        ),
        on(
            READ,
            "policy",
            "poddisruptionbudgets poddisruptionbudgets/status",
        ),
        on(
            READ,
            "networking.k8s.io",
            "networkpolicies ingresses ingresses/status",
        ),
        on(
            READ,
            "resource.k8s.io",
            "resourceclaims resourceclaims/status resourceclaimtemplates",
        ),
    ]
}
