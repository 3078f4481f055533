//! Validation of nodes and their updates (upstream: `ValidateNode`, `ValidateNodeUpdate`).

use master_schema::object::spec;
use master_schema::validate::forms;
use master_schema::validate::{
    Faults, FieldPath, Fields, get, items, limits, net, object, resource, text,
};
use serde_json::Value;
use std::collections::HashSet;

const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Validates a node.
pub(super) fn node(fields: &Fields, faults: &mut Faults) {
    let spec = spec(fields);
    // Upstream reports taints below the metadata, although they belong to the spec.
    let meta = FieldPath::root("metadata");
    taints(items(spec, "taints"), &meta.field("taints"), faults);
    room(fields, faults);
    ranges(items(spec, "podCIDRs"), get(spec, "podCIDRs"), faults);
}

/// Validates taints; key and effect together are unique.
fn taints(taints: &[Value], at: &FieldPath<'_>, faults: &mut Faults) {
    if taints.len() > limits::TAINTS {
        faults.too_many(at, taints.len(), limits::TAINTS);
    }
    let mut known: HashSet<[&str; 2]> = HashSet::new();
    for (index, value) in taints.iter().enumerate() {
        let (at, Some(taint)) = (at.index(index), value.as_object()) else {
            continue;
        };
        forms::taint(taint, EFFECTS, &at, faults);
        if !known.insert([text(taint, "key"), text(taint, "effect")]) {
            faults.duplicate_of(&at, value, "taints must be unique by key and effect pair");
        }
    }
}

/// Validates capacity and allocatable.
fn room(fields: &Fields, faults: &mut Faults) {
    let root = FieldPath::root("status");
    for key in ["capacity", "allocatable"] {
        let at = root.field(key);
        let list = object(fields, "status").and_then(|status| object(status, key));
        for (name, value) in list.into_iter().flatten() {
            resource::amount(name, value, &at.field(name), faults);
        }
    }
}

fn ranges(list: &[Value], shown: &Value, faults: &mut Faults) {
    let root = FieldPath::root("spec");
    let at = root.field("podCIDRs");
    let read: Vec<_> = list
        .iter()
        .enumerate()
        .filter_map(|(index, range)| net::range(range, &at.index(index), faults))
        .collect();
    let families = read.iter().filter(|range| range.is_ipv6()).count();
    // Two ranges are one of each family (KEP-563).
    if list.len() > 2 || list.len() == 2 && read.len() == 2 && families != 1 {
        faults.invalid(
            &at,
            shown,
            "may specify no more than one CIDR for each IP family",
        );
    }
}

/// Provider ID and pod ranges are immutable once set: other parts of the cluster have acted on
/// them.
pub(super) fn change(new: &Fields, old: &Fields, faults: &mut Faults) {
    let root = FieldPath::root("status");
    let at = root.field("addresses");
    let addresses = object(new, "status").map_or(&[][..], |status| items(status, "addresses"));
    let mut known = HashSet::new();
    for (index, address) in addresses.iter().enumerate() {
        if !known.insert(address) {
            faults.duplicate(&at.index(index), address);
        }
    }
    let (new, old, at) = (spec(new), spec(old), FieldPath::root("spec"));
    if !items(old, "podCIDRs").is_empty() && items(new, "podCIDRs") != items(old, "podCIDRs") {
        let words = "node updates may not change podCIDR except from \"\" to valid";
        faults.forbidden(&at.field("podCIDRs"), words);
    }
    let id = text(old, "providerID");
    if !id.is_empty() && text(new, "providerID") != id {
        let words = "node updates may not change providerID except from \"\" to valid";
        faults.forbidden(&at.field("providerID"), words);
    }
    if text(new, "externalID") != text(old, "externalID") {
        faults.forbidden(&at.field("externalID"), "may not be updated");
    }
}

/// Warns about fields of a node's spec that nothing reads.
pub(super) fn warn(fields: &Fields, _: Option<&Fields>, warnings: &mut Vec<String>) {
    if !text(spec(fields), "externalID").is_empty() {
        warnings.push(
            "spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned(),
        );
    }
}
