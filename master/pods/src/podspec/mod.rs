//! Validation of a pod's spec, in pods and in pod templates (upstream: `pkg/apis/core/validation`),
//! with upstream's paths, reasons and words.
//!
//! Start at [`validate`] for a spec and [`template`] for a template; [`defaults`] sets default
//! values.

mod affinity;
mod annotations;
mod containers;
mod context;
mod defaults;
mod env;
mod handlers;
mod mounts;
mod network;
mod placement;
mod qos;
mod resources;
mod security;
mod sources;
mod system;
mod template;
mod volumes;
pub mod warnings;

#[cfg(test)]
mod tests;

pub use annotations::{
    is_mirror, of_pod as pod_annotations, on_create as annotations_on_create,
    tokens_without_account, update as annotations_update,
};
pub use context::{SpecOwner, change_containers, each_container, is_sidecar, no_fields};
pub(crate) use defaults::GRACE;
pub use defaults::{
    claim as claim_defaults, of_pod as pod_defaults, of_spec as spec_defaults,
    template as template_defaults,
};
pub use network::pull_policy_of;
pub use placement::tolerations;
pub use qos::class as quality_of_service;
pub use resources::{aggregate as aggregate_requests, requirements};
pub use sources::requests_token_for;
pub use template::{kept_running, template, template_metadata};

use context::Context;
use master_schema::validate::forms::{choice, formed, has, optional_choice, optional_form, within};
use master_schema::validate::limits::{self, at_most};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, labels, names, object, text};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Lists of a spec that other parts of the cluster compare or multiply, and that nothing else
/// limits.
const LISTS: &[&str] = &[
    "containers",
    "initContainers",
    "ephemeralContainers",
    "hostAliases",
    "imagePullSecrets",
    "readinessGates",
    "resourceClaims",
    "schedulingGates",
    "volumes",
];

/// Validates a pod's spec.
pub fn validate(spec: &Fields, owner: SpecOwner<'_>, at: &FieldPath<'_>, faults: &mut Faults) {
    for list in LISTS {
        at_most(spec, list, limits::OF_POD, at, faults);
    }
    network::number_of_ports(spec, at, faults);
    let grace = get(spec, "terminationGracePeriodSeconds").as_i64();
    if grace.is_none() {
        faults.required(&at.field("terminationGracePeriodSeconds"), "");
    }
    let context = Context {
        owner,
        volumes: volumes::validate(spec, owner, &at.field("volumes"), faults),
        claims: resources::claims(spec, &at.field("resourceClaims"), faults),
        grace,
        restart: text(spec, "restartPolicy"),
        // Absent means true: the node's user namespace, as before KEP-127.
        host_users: get(spec, "hostUsers") != &Value::Bool(false),
    };
    containers::main(spec, &context, at, faults);
    containers::initial(spec, &context, at, faults);
    containers::ephemeral(spec, &context, at, faults);
    resources::of_pod(spec, at, faults);
    network::host_ports(spec, owner, at, faults);
    choice(
        spec,
        "restartPolicy",
        at,
        &["Always", "OnFailure", "Never"],
        faults,
    );
    choice(
        spec,
        "dnsPolicy",
        at,
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
        faults,
    );
    labels::labels(
        object(spec, "nodeSelector"),
        &at.field("nodeSelector"),
        faults,
    );
    security::of_pod(spec, at, faults);
    affinity::validate(object(spec, "affinity"), &at.field("affinity"), faults);
    network::dns(spec, at, faults);
    gates(spec, at, faults);
    placement::spread(spec, &at.field("topologySpreadConstraints"), faults);
    security::host_process(spec, at, faults);
    security::host_users(spec, at, faults);
    identity(spec, at, faults);
    network::names(spec, at, faults);
    tolerations(items(spec, "tolerations"), &at.field("tolerations"), faults);
    network::host_aliases(spec, at, faults);
    // Checked as a list of limits; the admission plugin has set it from the RuntimeClass (KEP-688).
    if has(spec, "overhead") {
        let limits = Map::from_iter([("limits".to_owned(), get(spec, "overhead").clone())]);
        resources::validate(&limits, None, &at.field("overhead"), faults);
    }
    system::validate(spec, at, faults);
}

/// Validates the names of service account, node, priority class and runtime class, the deadline and
/// the preemption policy.
fn identity(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    for key in ["serviceAccountName", "nodeName"] {
        optional_form(spec, key, at, names::subdomain, faults);
    }
    within(
        spec,
        "activeDeadlineSeconds",
        at,
        1,
        i64::from(i32::MAX),
        faults,
    );
    optional_form(spec, "priorityClassName", at, names::subdomain, faults);
    if has(spec, "runtimeClassName") {
        formed(
            get(spec, "runtimeClassName"),
            &at.field("runtimeClassName"),
            names::subdomain,
            faults,
        );
    }
    optional_choice(
        spec,
        "preemptionPolicy",
        at,
        &["PreemptLowerPriority", "Never"],
        faults,
    );
}

/// Validates readiness gates and scheduling gates.
fn gates(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    // Unlike a scheduling gate, a type may be listed twice (upstream).
    let list = at.field("readinessGates");
    for (number, gate) in items(spec, "readinessGates").iter().enumerate() {
        let Some(gate) = gate.as_object() else {
            continue;
        };
        let kind = master_schema::validate::forms::word(gate, "conditionType");
        formed(
            kind,
            &list.index(number).field("conditionType"),
            names::qualified,
            faults,
        );
    }
    let list = at.field("schedulingGates");
    let mut seen = BTreeSet::new();
    for (number, gate) in items(spec, "schedulingGates").iter().enumerate() {
        let Some(gate) = gate.as_object() else {
            continue;
        };
        let name = master_schema::validate::forms::word(gate, "name");
        formed(name, &list.index(number), names::qualified, faults);
        if !seen.insert(text(gate, "name")) {
            faults.duplicate(&list.index(number), name);
        }
    }
}
