//! Validation of LimitRanges and ResourceQuotas (upstream: `ValidateLimitRange`,
//! `ValidateResourceQuota`).

use master_schema::object::spec;
use master_schema::quantity::Quantity;
use master_schema::validate::resource;
use master_schema::validate::{
    Faults, FieldPath, Fields, get, items, names, object, object_mut, text,
};
use serde_json::Value;
use std::collections::{BTreeSet, HashSet};

const SCOPES: &[&str] = &[
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];
/// Resources that a quota may limit for pods of class BestEffort, and for other pods.
const PODS: &[&str] = &["pods"];
const COMPUTE: &[&str] = &[
    "pods",
    "cpu",
    "memory",
    "requests.cpu",
    "requests.memory",
    "limits.cpu",
    "limits.memory",
];

/// The default limit defaults to the maximum, the default request to the default limit or else the
/// minimum.
pub(super) fn range_defaults(fields: &mut Fields) {
    let Some(spec) = object_mut(fields, "spec") else {
        return;
    };
    for limit in spec
        .get_mut("limits")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let Some(limit) = limit
            .as_object_mut()
            .filter(|limit| text(limit, "type") == "Container")
        else {
            continue;
        };
        // In this order (upstream's `SetDefaults_LimitRangeItem`): the request can be filled from
        // the limit that was just filled, and takes the minimum only where there is none.
        fill(limit, "default", "max");
        fill(limit, "defaultRequest", "default");
        fill(limit, "defaultRequest", "min");
    }
}

fn fill(limit: &mut Fields, into: &str, from: &str) {
    let Some(from) = object(limit, from).cloned().filter(|from| !from.is_empty()) else {
        return;
    };
    if let Some(into) = object_mut(limit, into) {
        for (name, value) in from {
            into.entry(name).or_insert(value);
        }
    }
}

/// Validates a LimitRange.
pub(super) fn range(fields: &Fields, faults: &mut Faults) {
    let root = FieldPath::root("spec");
    let at = root.field("limits");
    let mut known = HashSet::new();
    for (number, limit) in items(spec(fields), "limits").iter().enumerate() {
        let (at, Some(limit)) = (at.index(number), limit.as_object()) else {
            continue;
        };
        let kind = text(limit, "type");
        let place = at.field("type");
        if let Err(fault) = names::qualified(kind) {
            faults.invalid(&place, get(limit, "type"), fault);
        } else if !kind.contains('/')
            && !matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim")
        {
            faults.invalid(
                &place,
                get(limit, "type"),
                "must be a standard limit type or fully qualified",
            );
        }
        if !known.insert(kind) {
            faults.duplicate(&place, get(limit, "type"));
        }
        bounds(limit, kind, &at, faults);
    }
}

fn bounds(limit: &Fields, kind: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    let maps = [
        "max",
        "min",
        "default",
        "defaultRequest",
        "maxLimitRequestRatio",
    ];
    let mut resources = BTreeSet::new();
    for key in maps {
        let place = at.field(key);
        for name in object(limit, key).into_iter().flat_map(Fields::keys) {
            if matches!(kind, "Pod" | "Container") {
                resource::container_name(name, &place.key(name), faults);
            } else {
                resource::name(name, &place.key(name), faults);
            }
            resources.insert(name.as_str());
        }
    }
    if kind == "Pod" {
        for key in ["default", "defaultRequest"] {
            if object(limit, key).is_some_and(|map| !map.is_empty()) {
                faults.forbidden(&at.field(key), "may not be specified when `type` is 'Pod'");
            }
        }
    }
    let has_storage = |key: &str| object(limit, key).is_some_and(|map| map.contains_key("storage"));
    if kind == "PersistentVolumeClaim" && !has_storage("min") && !has_storage("max") {
        let text = "either minimum or maximum storage value is required, but neither was provided";
        // Upstream's path, although an item has no such field.
        faults.required(&at.field("limits"), text);
    }
    for name in resources {
        order(limit, name, at, faults);
        ratio(limit, name, at, faults);
    }
}

fn milli(quantity: Quantity) -> i128 {
    quantity.amount().ceil_milli().into()
}

/// The quantity of a resource in one of the maps of a limit (`min`, `default`, …).
fn amount<'a>(limit: &'a Fields, map: &str, resource: &str) -> Option<&'a str> {
    object(limit, map)
        .map(|map| text(map, resource))
        .filter(|text| !text.is_empty())
}

/// In this order: min, default request, default, max.
fn order(limit: &Fields, name: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    let value = |map: &str| amount(limit, map, name);
    let rules = [
        ("min", "max", "min", "min value", "max value"),
        (
            "min",
            "defaultRequest",
            "defaultRequest",
            "min value",
            "default request value",
        ),
        (
            "defaultRequest",
            "max",
            "defaultRequest",
            "default request value",
            "max value",
        ),
        (
            "defaultRequest",
            "default",
            "defaultRequest",
            "default request value",
            "default limit value",
        ),
        ("min", "default", "default", "min value", "default value"),
        ("default", "max", "default", "default value", "max value"),
    ];
    for (small, large, place, small_name, large_name) in rules {
        let (Some(low), Some(high)) = (value(small), value(large)) else {
            continue;
        };
        if Quantity::parse(low) > Quantity::parse(high) {
            let shown = value(place).unwrap_or_default();
            let text = format!("{small_name} {low} is greater than {large_name} {high}");
            faults.invalid(&at.field(place).key(name), &shown.into(), text);
        }
    }
}

/// A limit can't be more than the ratio times the request; the ratio is at least one, and no more
/// than max and min allow.
fn ratio(limit: &Fields, name: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    let value = |map: &str| amount(limit, map, name);
    let Some(ratio) = value("maxLimitRequestRatio") else {
        return;
    };
    let place = at.field("maxLimitRequestRatio");
    let Some(parsed) = Quantity::parse(ratio) else {
        return;
    };
    if parsed < Quantity::count(1) {
        faults.invalid(
            &place.key(name),
            &ratio.into(),
            format!("ratio {ratio} is less than 1"),
        );
    }
    let (min, max) = (
        value("min").and_then(Quantity::parse),
        value("max").and_then(Quantity::parse),
    );
    // By products: a rounded quotient would let a ratio pass that is a little too large.
    if let (Some(min), Some(max)) = (min, max)
        && !min.is_zero()
        && milli(parsed) * milli(min) > milli(max) * 1000
    {
        let text = format!(
            "ratio {ratio} is greater than max/min = {}",
            milli(max) / milli(min)
        );
        faults.invalid(&place.key(name), &ratio.into(), text);
    }
}

/// Validates a ResourceQuota.
pub(super) fn quota(fields: &Fields, faults: &mut Faults) {
    let spec = spec(fields);
    let at = FieldPath::root("spec");
    let hard = object(spec, "hard");
    amounts(hard, &at.field("hard"), faults);
    scopes(spec, hard, &at, faults);
}

fn amounts(amounts: Option<&Fields>, at: &FieldPath<'_>, faults: &mut Faults) {
    for (name, value) in amounts.into_iter().flatten() {
        let at = at.key(name);
        resource::quota_name(name, &at, faults);
        resource::amount(name, value, &at, faults);
    }
}

fn scopes(spec: &Fields, hard: Option<&Fields>, at: &FieldPath<'_>, faults: &mut Faults) {
    let own = items(spec, "scopes");
    if !own.is_empty() {
        let names: Vec<&str> = own.iter().filter_map(Value::as_str).collect();
        scope_set(
            &names,
            get(spec, "scopes"),
            hard,
            &at.field("scopes"),
            faults,
        );
    }
    let Some(selector) = object(spec, "scopeSelector") else {
        return;
    };
    let place = at.field("scopeSelector");
    let place = place.field("matchExpressions");
    let expressions = items(selector, "matchExpressions");
    let mut names = Vec::new();
    for (number, expression) in expressions.iter().enumerate() {
        let (at, Some(expression)) = (place.index(number), expression.as_object()) else {
            continue;
        };
        names.push(text(expression, "scopeName"));
        let values = !items(expression, "values").is_empty();
        match text(expression, "operator") {
            "In" | "NotIn" if !values => {
                faults.required(
                    &at.field("values"),
                    "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
                );
            }
            "Exists" | "DoesNotExist" if values => {
                let text = "must be no value when `operator` is 'Exists' or 'DoesNotExist' for scope selector";
                faults.invalid(&at.field("values"), get(expression, "values"), text);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => faults.invalid(
                &at.field("operator"),
                get(expression, "operator"),
                "not a valid selector operator",
            ),
        }
    }
    scope_set(
        &names,
        get(selector, "matchExpressions"),
        hard,
        &place,
        faults,
    );
}

fn scope_set(
    names: &[&str],
    shown: &Value,
    hard: Option<&Fields>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    for name in names {
        if !SCOPES.contains(name) {
            faults.invalid(at, shown, "unsupported scope");
        }
        let counted: &[&str] = match *name {
            "BestEffort" => PODS,
            "NotBestEffort"
            | "Terminating"
            | "NotTerminating"
            | "PriorityClass"
            | "CrossNamespacePodAffinity" => COMPUTE,
            _ => continue,
        };
        // Names that are no standard ones may be in a quota of any scope (upstream).
        let unfit = |resource: &&String| {
            resource::is_of_quotas(resource) && !counted.contains(&resource.as_str())
        };
        if hard
            .into_iter()
            .flat_map(Fields::keys)
            .any(|resource| unfit(&resource))
        {
            faults.invalid(at, shown, "unsupported scope applied to resource");
        }
    }
    for pair in [
        ["BestEffort", "NotBestEffort"],
        ["Terminating", "NotTerminating"],
    ] {
        if pair.iter().all(|scope| names.contains(scope)) {
            faults.invalid(at, shown, "conflicting scopes");
        }
    }
}

/// Scopes are immutable: usage was counted by them.
pub(super) fn quota_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    let at = FieldPath::root("spec");
    let set = |fields: &Fields| -> BTreeSet<String> {
        items(spec(fields), "scopes")
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    if set(new) != set(old) {
        faults.invalid(
            &at.field("scopes"),
            get(spec(new), "scopes"),
            "field is immutable",
        );
    }
    if let Some(status) = object(new, "status").filter(|_| get(new, "status") != get(old, "status"))
    {
        let at = FieldPath::root("status");
        amounts(object(status, "hard"), &at.field("hard"), faults);
        amounts(object(status, "used"), &at.field("used"), faults);
    }
}
