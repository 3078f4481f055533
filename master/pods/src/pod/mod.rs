//! Pods: defaults, fields set at creation and updates, grace period of deletion.

mod change;
mod columns;
mod resize;
mod status;
#[cfg(test)]
mod tests;

use crate::podspec::{self, GRACE, SpecOwner};
use config_kube::k8s_openapi::api::core::v1::Pod;
use master_schema::object::{metadata, spec};
use master_schema::registry::{Kind, Strategy, Subresource, selectable, words};
use master_schema::validate::{
    Faults, FieldPath, Fields, default_to, get, items, object, object_mut, text,
};
use serde_json::{Map, Value, json};

/// The kind `Pod`.
pub fn pod() -> Kind {
    Kind {
        short_names: words(&["po"]),
        categories: words(&["all"]),
        subresources: vec![
            Subresource::Attach,
            Subresource::Binding,
            Subresource::EphemeralContainers,
            Subresource::Eviction,
            Subresource::Exec,
            Subresource::Log,
            Subresource::PortForward,
            Subresource::Proxy,
            Subresource::Resize,
            Subresource::Status,
        ],
        columns: columns::COLUMNS.to_vec(),
        selectable: vec![
            selectable("spec.nodeName", "/spec/nodeName"),
            selectable("spec.restartPolicy", "/spec/restartPolicy"),
            selectable("spec.schedulerName", "/spec/schedulerName"),
            selectable("spec.serviceAccountName", "/spec/serviceAccountName"),
            selectable("spec.hostNetwork", "/spec/hostNetwork"),
            selectable("status.phase", "/status/phase"),
            selectable("status.podIP", "/status/podIP"),
            selectable("status.nominatedNodeName", "/status/nominatedNodeName"),
        ],
        strategy: Strategy {
            defaults: |fields| {
                if let Some(spec) = object_mut(fields, "spec") {
                    podspec::pod_defaults(spec);
                }
            },
            create,
            through: change::through,
            validate,
            validate_create,
            validate_update: change::validate,
            validate_through: change::validate_through,
            status_at_creation: true,
            generation: true,
            graceful: true,
            ..Strategy::default()
        },
        ..Kind::of::<Pod>(true)
    }
}

/// The annotations of a pod.
fn annotations(fields: &Fields) -> Option<&Fields> {
    object(metadata(fields), "annotations")
}

/// Validates a pod.
fn validate(fields: &Fields, faults: &mut Faults) {
    let (spec, at) = (spec(fields), FieldPath::root("spec"));
    let place = FieldPath::root("metadata");
    podspec::pod_annotations(
        annotations(fields),
        spec,
        &place.field("annotations"),
        faults,
    );
    let name = text(metadata(fields), "name");
    podspec::validate(spec, SpecOwner { pod: true, name }, &at, faults);
    podspec::tokens_without_account(spec, &at, faults);
}

/// Validates what applies to new pods only.
fn validate_create(fields: &Fields, faults: &mut Faults) {
    let (spec, at) = (spec(fields), FieldPath::root("spec"));
    if !items(spec, "ephemeralContainers").is_empty() {
        faults.forbidden(&at.field("ephemeralContainers"), "cannot be set on create");
    }
    // A gate keeps a pod from the scheduler (KEP-3521); one with a node is past it.
    if !text(spec, "nodeName").is_empty() && !items(spec, "schedulingGates").is_empty() {
        faults.forbidden(
            &at.field("nodeName"),
            "cannot be set until all schedulingGates have been cleared",
        );
    }
    podspec::annotations_on_create(annotations(fields), spec, &at, faults);
}

/// Sets the status and merges label keys into affinity selectors, as upstream does at creation.
fn create(fields: &mut Fields) {
    let quality = podspec::quality_of_service(spec(fields));
    let mut status = json!({"phase": "Pending", "qosClass": quality});
    if !items(spec(fields), "schedulingGates").is_empty() {
        status["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
    fields.insert("status".to_owned(), status);
    let labels = object(metadata(fields), "labels")
        .cloned()
        .unwrap_or_default();
    let Some(spec) = object_mut(fields, "spec") else {
        return;
    };
    for key in ["podAffinity", "podAntiAffinity"] {
        let Some(affinity) = spec
            .get_mut("affinity")
            .and_then(|affinity| affinity.get_mut(key))
        else {
            continue;
        };
        let list = "requiredDuringSchedulingIgnoredDuringExecution";
        for term in affinity
            .get_mut(list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            own_labels(term, &labels);
        }
        let list = "preferredDuringSchedulingIgnoredDuringExecution";
        for weighted in affinity
            .get_mut(list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(term) = weighted.get_mut("podAffinityTerm") {
                own_labels(term, &labels);
            }
        }
    }
}

/// `matchLabelKeys` become requirements of the selector, with the pod's own label values.
fn own_labels(term: &mut Value, labels: &Fields) {
    let Some(term) = term.as_object_mut() else {
        return;
    };
    // KEP-3633: resolved once, so that a later change of the pod's labels does not move the rule.
    let mut more = Vec::new();
    for (list, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        for key in items(term, list).iter().filter_map(Value::as_str) {
            if let Some(value) = labels.get(key) {
                more.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    // Without a selector, validation refuses the keys.
    let Some(selector) = term.get_mut("labelSelector").and_then(Value::as_object_mut) else {
        return;
    };
    if more.is_empty() {
        return;
    }
    default_to(selector, "matchExpressions", Value::Array(Vec::new()));
    if let Some(expressions) = selector
        .get_mut("matchExpressions")
        .and_then(Value::as_array_mut)
    {
        expressions.extend(more);
    }
}

/// Grace period of a deletion in seconds: the requested one, else the pod's; 0 if no kubelet runs
/// the pod.
pub fn grace(fields: &Fields, requested: Option<i64>) -> i64 {
    let spec = object(fields, "spec");
    let own = spec
        .and_then(|spec| get(spec, "terminationGracePeriodSeconds").as_i64())
        .unwrap_or(GRACE);
    let bound = spec.is_some_and(|spec| !text(spec, "nodeName").is_empty());
    let ended = object(fields, "status")
        .is_some_and(|status| matches!(text(status, "phase"), "Succeeded" | "Failed"));
    if !bound || ended {
        return 0;
    }
    match requested.unwrap_or(own) {
        // Upstream's reading: the shortest period, not an immediate end.
        negative if negative < 0 => 1,
        seconds => seconds,
    }
}

/// Sets a container's field to the value in another container.
fn keep(into: &mut Map<String, Value>, from: &Fields, key: &str) {
    match from.get(key) {
        Some(value) => drop(into.insert(key.to_owned(), value.clone())),
        None => drop(into.remove(key)),
    }
}
