//! The spec of HorizontalPodAutoscalers (`v2`): defaults and validation.

use super::rules::{default_number, status};
use config_kube::Amount;
use master_pods::podspec;
use master_schema::object::spec;
use master_schema::registry::Subresource;
use master_schema::validate::forms::{
    has, needed_form, not_negative, number, optional_choice, word,
};
use master_schema::validate::limits::{self, at_most};
use master_schema::validate::names::path_segment;
use master_schema::validate::{
    Faults, FieldPath, Fields, default_to, get, items, labels, names, object, object_mut, resource,
    text,
};
use serde_json::{Map, Value, json};

/// Sets defaults.
pub(super) fn defaults(fields: &mut Fields) {
    let Some(spec) = object_mut(fields, "spec") else {
        return;
    };
    default_number(spec, "minReplicas", 1);
    if items(spec, "metrics").is_empty() {
        spec.insert(
            "metrics".to_owned(),
            json!([super::autoscaler_versions::usual()]),
        );
    }
    let Some(behavior) = spec.get_mut("behavior").and_then(Value::as_object_mut) else {
        return;
    };
    let all = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    let some = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
    for (way, wait, policies) in [
        ("scaleUp", Some(0), json!([some, all])),
        // Without a window: the controller's own option counts (KEP-853).
        ("scaleDown", None, json!([all])),
    ] {
        let Some(rules) = object_mut(behavior, way) else {
            continue;
        };
        if let Some(wait) = wait {
            default_number(rules, "stabilizationWindowSeconds", wait);
        }
        default_to(rules, "selectPolicy", "Max");
        default_to(rules, "policies", policies);
    }
}

/// Maximum stabilization window and maximum period of a policy, in seconds.
const WINDOW: i64 = 3600;
const PERIOD: i64 = 1800;

/// Validates an autoscaler.
pub(super) fn validate(fields: &Fields, faults: &mut Faults) {
    let (spec, at) = (spec(fields), FieldPath::root("spec"));
    let (least, most) = (get(spec, "minReplicas"), number(spec, "maxReplicas"));
    // Zero needs the gate `HPAScaleToZero`, which is off by default upstream.
    if least.as_i64().is_some_and(|least| least < 1) {
        faults.invalid(
            &at.field("minReplicas"),
            least,
            "must be greater than or equal to 1",
        );
    }
    if most < 1 {
        faults.invalid(
            &at.field("maxReplicas"),
            &most.into(),
            "must be greater than 0",
        );
    }
    if least.as_i64().is_some_and(|least| most < least) {
        faults.invalid(
            &at.field("maxReplicas"),
            &most.into(),
            "must be greater than or equal to `minReplicas`",
        );
    }
    reference(
        object(spec, "scaleTargetRef").unwrap_or(podspec::no_fields()),
        &at.field("scaleTargetRef"),
        faults,
    );
    at_most(spec, "metrics", limits::METRICS, &at, faults);
    let list = at.field("metrics");
    let metrics = items(spec, "metrics");
    for (index, metric) in metrics.iter().enumerate() {
        if let Some(metric) = metric.as_object() {
            self::metric(metric, &list.index(index), faults);
        }
    }
    let outside = |metric: &Value| {
        metric
            .get("type")
            .is_some_and(|kind| kind == "Object" || kind == "External")
    };
    if least.as_i64() == Some(0) && !metrics.iter().any(outside) {
        let words = "must specify at least one Object or External metric to support scaling to zero replicas";
        faults.forbidden(&list, words);
    }
    if let Some(behavior) = object(spec, "behavior") {
        let place = at.field("behavior");
        for way in ["scaleUp", "scaleDown"] {
            if let Some(rules) = object(behavior, way) {
                scaling(rules, &place.field(way), faults);
            }
        }
    }
}

fn reference(reference: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed_form(reference, "kind", at, path_segment, faults);
    needed_form(reference, "name", at, path_segment, faults);
}

fn scaling(rules: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let window = get(rules, "stabilizationWindowSeconds");
    let place = at.field("stabilizationWindowSeconds");
    if window.as_i64().is_some_and(|window| window < 0) {
        faults.invalid(&place, window, "must be greater than or equal to zero");
    }
    if window.as_i64().is_some_and(|window| window > WINDOW) {
        faults.invalid(
            &place,
            window,
            format!("must be less than or equal to {WINDOW}"),
        );
    }
    optional_choice(
        rules,
        "selectPolicy",
        at,
        &["Disabled", "Max", "Min"],
        faults,
    );
    if text(rules, "tolerance")
        .parse::<Amount>()
        .is_ok_and(|tolerance| tolerance < Amount::ZERO)
    {
        faults.invalid(
            &at.field("tolerance"),
            get(rules, "tolerance"),
            "must be greater or equal to zero",
        );
    }
    at_most(rules, "policies", limits::SCALING_POLICIES, at, faults);
    let list = at.field("policies");
    if items(rules, "policies").is_empty() {
        faults.required(&list, "must specify at least one Policy");
    }
    for (index, policy) in items(rules, "policies").iter().enumerate() {
        let Some(policy) = policy.as_object() else {
            continue;
        };
        let at = list.index(index);
        faults.one_of(
            &at.field("type"),
            word(policy, "type"),
            &["Percent", "Pods"],
        );
        for key in ["value", "periodSeconds"] {
            if number(policy, key) <= 0 {
                faults.invalid(
                    &at.field(key),
                    &number(policy, key).into(),
                    "must be greater than zero",
                );
            }
        }
        if number(policy, "periodSeconds") > PERIOD {
            let words = format!("must be less than or equal to {PERIOD}");
            faults.invalid(
                &at.field("periodSeconds"),
                get(policy, "periodSeconds"),
                words,
            );
        }
    }
}

/// Types of metrics in order, with their fields, in the order in which upstream reports the first
/// one set.
const TYPES: [&str; 5] = [
    "ContainerResource",
    "External",
    "Object",
    "Pods",
    "Resource",
];
const FIELDS: [(&str, &str); 5] = [
    ("object", "Object"),
    ("external", "External"),
    ("pods", "Pods"),
    ("resource", "Resource"),
    ("containerResource", "ContainerResource"),
];

fn metric(metric: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let kind = text(metric, "type");
    if kind.is_empty() {
        faults.required(&at.field("type"), "must specify a metric source type");
    }
    faults.one_of(&at.field("type"), word(metric, "type"), &TYPES);
    let present: Vec<&str> = FIELDS
        .iter()
        .map(|(field, _)| *field)
        .filter(|field| has(metric, field))
        .collect();
    if let Some(first) = present.first()
        && let Some(source) = object(metric, first)
    {
        self::source(first, source, &at.field(first), faults);
    }
    let expected = FIELDS
        .iter()
        .find(|(_, known)| *known == kind)
        .map(|(field, _)| *field);
    if let Some(expected) = expected.filter(|expected| !present.contains(expected)) {
        faults.required(
            &at.field(expected),
            "must populate information for the given metric source",
        );
    }
    if present.len() != 1 {
        for field in present.iter().filter(|field| Some(**field) != expected) {
            faults.forbidden(
                &at.field(field),
                "must populate the given metric source only",
            );
        }
    }
}

fn source(field: &str, source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let nothing = Map::new();
    match field {
        "resource" | "containerResource" => return resource_source(field, source, at, faults),
        "object" => {
            reference(
                object(source, "describedObject").unwrap_or(&nothing),
                &at.field("describedObject"),
                faults,
            );
        }
        _ => {}
    }
    let identity = object(source, "metric").unwrap_or(&nothing);
    let named = at.field("metric");
    if text(identity, "name").is_empty() {
        faults.required(&named.field("name"), "must specify a metric name");
    } else {
        needed_form(identity, "name", &named, path_segment, faults);
    }
    labels::selector(
        object(identity, "selector"),
        &named.field("selector"),
        faults,
    );
    let target = object(source, "target").unwrap_or(&nothing);
    let place = at.field("target");
    self::target(target, &place, faults);
    let given = |key: &str| has(target, key);
    match (field, given("value"), given("averageValue")) {
        ("object", false, false) => {
            faults.required(
                &place.field("averageValue"),
                "must set either a target value or averageValue",
            );
        }
        ("external", false, false) => {
            let words = "must set either a target value for metric or a per-pod target";
            faults.required(&place.field("averageValue"), words);
        }
        ("external", true, true) => {
            let words = "may not set both a target value for metric and a per-pod target";
            faults.forbidden(&place.field("value"), words);
        }
        ("pods", _, false) => {
            faults.required(
                &place.field("averageValue"),
                "must specify a positive target averageValue",
            );
        }
        _ => {}
    }
}

/// A resource of all of a pod's containers, or of one.
fn resource_source(field: &str, source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    if text(source, "name").is_empty() {
        faults.required(&at.field("name"), "must specify a resource name");
    } else if field == "containerResource" {
        resource::container_name(text(source, "name"), &at.field("name"), faults);
    }
    if field == "containerResource" {
        if text(source, "container").is_empty() {
            faults.required(&at.field("container"), "must specify a container");
        } else {
            needed_form(source, "container", at, names::label, faults);
        }
    }
    let nothing = Map::new();
    let target = object(source, "target").unwrap_or(&nothing);
    let place = at.field("target");
    self::target(target, &place, faults);
    match (
        has(target, "averageUtilization"),
        has(target, "averageValue"),
    ) {
        (false, false) => faults.required(
            &place.field("averageUtilization"),
            "must set either a target raw value or a target utilization",
        ),
        (true, true) => faults.forbidden(
            &place.field("averageValue"),
            "may not set both a target raw value and a target utilization",
        ),
        (true, false) | (false, true) => {}
    }
}

fn target(target: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let kind = text(target, "type");
    if kind.is_empty() {
        faults.required(&at.field("type"), "must specify a metric target type");
    }
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        let words = "must be either Utilization, Value, or AverageValue";
        faults.invalid(&at.field("type"), word(target, "type"), words);
    }
    for key in ["value", "averageValue"]
        .into_iter()
        .filter(|key| has(target, key))
    {
        if text(target, key)
            .parse::<Amount>()
            .is_ok_and(|amount| amount <= Amount::ZERO)
        {
            faults.invalid(&at.field(key), get(target, key), "must be positive");
        }
    }
    let share = get(target, "averageUtilization");
    if share.as_i64().is_some_and(|share| share < 1) {
        faults.invalid(
            &at.field("averageUtilization"),
            share,
            "must be greater than 0",
        );
    }
}

/// Validates a status.
pub(super) fn validate_through(
    subresource: Subresource,
    new: &Fields,
    _old: &Fields,
    faults: &mut Faults,
) {
    if subresource == Subresource::Status {
        for key in ["currentReplicas", "desiredReplicas"] {
            not_negative(status(new), key, &FieldPath::root("status"), faults);
        }
    }
}
