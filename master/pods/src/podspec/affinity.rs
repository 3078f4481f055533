//! Validation of node affinity, pod affinity and anti-affinity.

use master_schema::validate::forms::{formed, number, word};
use master_schema::validate::limits::{self, at_most};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, labels, names, object, text};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap, HashSet};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Validates affinities.
pub(super) fn validate(affinity: Option<&Fields>, at: &FieldPath<'_>, faults: &mut Faults) {
    let Some(affinity) = affinity else { return };
    if let Some(nodes) = object(affinity, "nodeAffinity") {
        of_nodes(nodes, &at.field("nodeAffinity"), faults);
    }
    for key in ["podAffinity", "podAntiAffinity"] {
        if let Some(pods) = object(affinity, key) {
            of_pods(pods, &at.field(key), faults);
        }
    }
}

fn of_nodes(affinity: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    if let Some(required) = object(affinity, REQUIRED) {
        labels::node_selector(required, &at.field(REQUIRED), faults);
    }
    at_most(affinity, PREFERRED, limits::AFFINITY_TERMS, at, faults);
    let list = at.field(PREFERRED);
    for (index, term) in items(affinity, PREFERRED).iter().enumerate() {
        let Some(term) = term.as_object() else {
            continue;
        };
        let at = list.index(index);
        weight(term, &at, faults);
        if let Some(preference) = object(term, "preference") {
            labels::node_preference(preference, &at.field("preference"), faults);
        }
    }
}

fn weight(term: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let weight = number(term, "weight");
    if !(1..=100).contains(&weight) {
        faults.invalid(
            &at.field("weight"),
            &weight.into(),
            "must be in the range 1-100",
        );
    }
}

fn of_pods(affinity: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    for list in [REQUIRED, PREFERRED] {
        at_most(affinity, list, limits::AFFINITY_TERMS, at, faults);
    }
    let list = at.field(REQUIRED);
    for (index, term) in items(affinity, REQUIRED).iter().enumerate() {
        if let Some(term) = term.as_object() {
            pod_term(term, &list.index(index), faults);
        }
    }
    let list = at.field(PREFERRED);
    for (index, weighted) in items(affinity, PREFERRED).iter().enumerate() {
        let Some(weighted) = weighted.as_object() else {
            continue;
        };
        let at = list.index(index);
        weight(weighted, &at, faults);
        let term = object(weighted, "podAffinityTerm").unwrap_or(super::context::no_fields());
        pod_term(term, &at.field("podAffinityTerm"), faults);
    }
}

fn pod_term(term: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    for key in ["labelSelector", "namespaceSelector"] {
        labels::selector(object(term, key), &at.field(key), faults);
    }
    at_most(term, "namespaces", limits::OF_POD, at, faults);
    for list in ["matchLabelKeys", "mismatchLabelKeys"] {
        at_most(term, list, limits::LABEL_KEYS, at, faults);
    }
    // Upstream's path has no index, and not the list's name.
    for namespace in items(term, "namespaces") {
        formed(namespace, &at.field("namespace"), names::label, faults);
    }
    label_keys(term, at, faults);
    if text(term, "topologyKey").is_empty() {
        faults.required(&at.field("topologyKey"), "can not be empty");
    }
    formed(
        word(term, "topologyKey"),
        &at.field("topologyKey"),
        names::qualified,
        faults,
    );
}

/// `matchLabelKeys` and `mismatchLabelKeys`: valid, disjoint, and absent from the selector.
fn label_keys(term: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let selector = object(term, "labelSelector");
    for list in ["matchLabelKeys", "mismatchLabelKeys"] {
        let place = at.field(list);
        let keys = items(term, list);
        if !keys.is_empty() && selector.is_none() {
            faults.forbidden(
                &place,
                "must not be specified when labelSelector is not set",
            );
            continue;
        }
        for (index, key) in keys.iter().enumerate() {
            formed(key, &place.index(index), names::qualified, faults);
        }
    }
    let keys = items(term, "matchLabelKeys");
    // Of equal keys the first counts.
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (index, key) in keys.iter().enumerate() {
        if let Some(key) = key.as_str() {
            places.entry(key).or_insert(index);
        }
    }
    let mut selected: BTreeSet<&str> = BTreeSet::new();
    if let Some(selector) = selector {
        selected.extend(
            object(selector, "matchLabels")
                .into_iter()
                .flatten()
                .map(|(key, _)| key.as_str()),
        );
        for expression in items(selector, "matchExpressions")
            .iter()
            .filter_map(Value::as_object)
        {
            let key = text(expression, "key");
            // KEP-3633: the creation has made each key a requirement of the selector already, so
            // that only a second one is a fault.
            if let Some(index) = places.get(key)
                && selected.contains(key)
            {
                faults.invalid(
                    &at.index(*index),
                    get(expression, "key"),
                    "exists in both matchLabelKeys and labelSelector",
                );
            }
            selected.insert(key);
        }
    }
    let place = at.field("matchLabelKeys");
    let unequal: HashSet<&Value> = items(term, "mismatchLabelKeys").iter().collect();
    for (index, key) in keys.iter().enumerate() {
        if unequal.contains(key) {
            faults.invalid(
                &place.index(index),
                key,
                "exists in both matchLabelKeys and mismatchLabelKeys",
            );
        }
    }
}
