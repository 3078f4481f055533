//! Converts HorizontalPodAutoscalers between versions: they are stored as `v2`; `v1` has
//! annotations for the fields that it lacks.

use master_schema::object::metadata_mut;
use master_schema::validate::{Fields, get, items, object, object_mut, text};
use serde_json::{Map, Value, json};

/// Metrics other than CPU utilization, as JSON.
const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
/// Current metrics.
const CURRENT: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
/// Conditions of the status.
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
/// Scaling behavior.
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const ALL: [&str; 4] = [METRICS, CURRENT, CONDITIONS, BEHAVIOR];

/// Default target of CPU utilization in percent.
const SHARE: i64 = 80;

/// The metric for a CPU utilization.
pub(super) fn processor(share: i64) -> Value {
    json!({
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": share}},
    })
}

/// The default metric.
pub(super) fn usual() -> Value {
    processor(SHARE)
}

/// The sources of metrics: name as type and as field.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
    ("External", "external"),
];

/// Moves a value, if present.
fn carry(from: &Fields, key: &str, into: &mut Fields, name: &str) {
    if let Some(value) = from.get(key).filter(|value| !value.is_null()) {
        into.insert(name.to_owned(), value.clone());
    }
}

fn source_of(metric: &Fields) -> Option<(&'static str, &Fields)> {
    SOURCES
        .into_iter()
        .find_map(|(_, field)| Some((field, object(metric, field)?)))
}

/// Converts a metric to the form in annotations; `wanted` for a target, otherwise a measured value.
fn older(metric: &Fields, wanted: bool) -> Value {
    let mut result = Map::new();
    carry(metric, "type", &mut result, "type");
    let Some((field, source)) = source_of(metric) else {
        return Value::Object(result);
    };
    let nothing = Map::new();
    let amounts = object(source, if wanted { "target" } else { "current" }).unwrap_or(&nothing);
    let identity = object(source, "metric").unwrap_or(&nothing);
    let mut own = Map::new();
    let name = |name: &'static str, measured: &'static str| if wanted { name } else { measured };
    let average = name("targetAverageValue", "currentAverageValue");
    match field {
        "resource" | "containerResource" => {
            carry(source, "name", &mut own, "name");
            carry(source, "container", &mut own, "container");
            let share = name("targetAverageUtilization", "currentAverageUtilization");
            carry(amounts, "averageUtilization", &mut own, share);
            carry(amounts, "averageValue", &mut own, average);
        }
        "object" => {
            carry(source, "describedObject", &mut own, "target");
            carry(identity, "name", &mut own, "metricName");
            carry(identity, "selector", &mut own, "selector");
            carry(
                amounts,
                "value",
                &mut own,
                name("targetValue", "currentValue"),
            );
            carry(amounts, "averageValue", &mut own, "averageValue");
        }
        "external" => {
            carry(identity, "name", &mut own, "metricName");
            carry(identity, "selector", &mut own, "metricSelector");
            carry(
                amounts,
                "value",
                &mut own,
                name("targetValue", "currentValue"),
            );
            carry(amounts, "averageValue", &mut own, average);
        }
        _ => {
            carry(identity, "name", &mut own, "metricName");
            carry(identity, "selector", &mut own, "selector");
            carry(amounts, "averageValue", &mut own, average);
        }
    }
    result.insert(field.to_owned(), Value::Object(own));
    Value::Object(result)
}

/// Converts a metric from the form in annotations.
fn newer(metric: &Fields, wanted: bool) -> Value {
    let mut result = Map::new();
    carry(metric, "type", &mut result, "type");
    let Some((field, own)) = source_of(metric) else {
        return Value::Object(result);
    };
    let (mut source, mut identity, mut amounts) = (Map::new(), Map::new(), Map::new());
    let name = |name: &'static str, measured: &'static str| if wanted { name } else { measured };
    let average = if field == "object" {
        "averageValue"
    } else {
        name("targetAverageValue", "currentAverageValue")
    };
    let share = name("targetAverageUtilization", "currentAverageUtilization");
    carry(own, "name", &mut source, "name");
    carry(own, "container", &mut source, "container");
    carry(own, "target", &mut source, "describedObject");
    carry(own, "metricName", &mut identity, "name");
    carry(
        own,
        if field == "external" {
            "metricSelector"
        } else {
            "selector"
        },
        &mut identity,
        "selector",
    );
    carry(own, share, &mut amounts, "averageUtilization");
    carry(own, average, &mut amounts, "averageValue");
    carry(
        own,
        name("targetValue", "currentValue"),
        &mut amounts,
        "value",
    );
    if wanted {
        let kind = ["averageUtilization", "averageValue"]
            .into_iter()
            .find(|key| amounts.contains_key(*key));
        let kind = match kind {
            Some("averageUtilization") => "Utilization",
            Some(_) => "AverageValue",
            None => "Value",
        };
        amounts.insert("type".to_owned(), kind.into());
    }
    if !identity.is_empty() {
        source.insert("metric".to_owned(), Value::Object(identity));
    }
    source.insert(
        if wanted { "target" } else { "current" }.to_owned(),
        Value::Object(amounts),
    );
    result.insert(field.to_owned(), Value::Object(source));
    Value::Object(result)
}

/// The CPU utilization of a metric, if that is its type.
fn share(metric: &Fields, amounts: &str) -> Option<i64> {
    let resource = object(metric, "resource").filter(|_| text(metric, "type") == "Resource")?;
    let amounts = object(resource, amounts).filter(|_| text(resource, "name") == "cpu")?;
    get(amounts, "averageUtilization").as_i64()
}

fn metrics(fields: &Fields, part: &str, list: &str) -> Vec<Fields> {
    let found = object(fields, part).map_or(&[][..], |part| items(part, list));
    found.iter().filter_map(Value::as_object).cloned().collect()
}

/// Converts `v2` to `v1`.
pub(super) fn to_v1(fields: &mut Fields) {
    let wanted = metrics(fields, "spec", "metrics");
    let measured = metrics(fields, "status", "currentMetrics");
    let conditions = metrics(fields, "status", "conditions");
    let behavior = object(fields, "spec")
        .and_then(|spec| spec.get("behavior"))
        .cloned();
    let mut kept = Map::new();
    let others: Vec<Value> = wanted
        .iter()
        .filter(|metric| share(metric, "target").is_none())
        .map(|metric| older(metric, true))
        .collect();
    let values: Vec<Value> = measured.iter().map(|metric| older(metric, false)).collect();
    for (key, list) in [(METRICS, others), (CURRENT, values)] {
        if !list.is_empty() {
            kept.insert(key.to_owned(), Value::Array(list).to_string().into());
        }
    }
    if !conditions.is_empty() {
        kept.insert(CONDITIONS.to_owned(), json!(conditions).to_string().into());
    }
    if let Some(behavior) = behavior {
        kept.insert(BEHAVIOR.to_owned(), behavior.to_string().into());
    }
    annotate(fields, kept);
    if let Some(spec) = object_mut(fields, "spec") {
        spec.remove("metrics");
        spec.remove("behavior");
        if let Some(share) = wanted.iter().find_map(|metric| share(metric, "target")) {
            spec.insert("targetCPUUtilizationPercentage".to_owned(), share.into());
        }
    }
    if let Some(status) = fields.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("currentMetrics");
        status.remove("conditions");
        if let Some(share) = measured.iter().find_map(|metric| share(metric, "current")) {
            status.insert("currentCPUUtilizationPercentage".to_owned(), share.into());
        }
    }
}

/// Replaces the annotations that `v1` uses.
fn annotate(fields: &mut Fields, kept: Fields) {
    let metadata = metadata_mut(fields);
    if kept.is_empty() && object(metadata, "annotations").is_none() {
        return;
    }
    if let Some(annotations) = object_mut(metadata, "annotations") {
        annotations.retain(|key, _| !ALL.contains(&key.as_str()));
        annotations.extend(kept);
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
}

/// Converts `v1` to `v2`.
pub(super) fn to_v2(fields: &mut Fields) {
    let kept = object(metadata_mut(fields), "annotations")
        .cloned()
        .unwrap_or_default();
    let read = |key: &str| serde_json::from_str::<Value>(text(&kept, key)).ok();
    let list = |key: &str| -> Option<Vec<Value>> {
        let found = read(key)?;
        Some(found.as_array()?.clone())
    };
    let (wanted, measured, conditions, behavior) = (
        list(METRICS),
        list(CURRENT),
        list(CONDITIONS),
        read(BEHAVIOR),
    );
    annotate(fields, Map::new());
    let convert = |list: Vec<Value>, wanted: bool| -> Vec<Value> {
        list.iter()
            .filter_map(Value::as_object)
            .map(|metric| newer(metric, wanted))
            .collect()
    };
    if let Some(spec) = object_mut(fields, "spec") {
        let mut metrics = wanted.map(|list| convert(list, true)).unwrap_or_default();
        if let Some(share) = spec
            .remove("targetCPUUtilizationPercentage")
            .and_then(|share| share.as_i64())
        {
            metrics.push(processor(share));
        }
        if metrics.is_empty() {
            metrics.push(usual());
        }
        spec.insert("metrics".to_owned(), Value::Array(metrics));
        if let Some(behavior) = behavior.filter(Value::is_object) {
            spec.insert("behavior".to_owned(), behavior);
        }
    }
    let Some(status) = fields.get_mut("status").and_then(Value::as_object_mut) else {
        return;
    };
    let share = status
        .remove("currentCPUUtilizationPercentage")
        .and_then(|share| share.as_i64());
    let measured = measured.map(|list| convert(list, false)).or_else(|| {
        let current = json!({"averageUtilization": share?});
        Some(vec![
            json!({"type": "Resource", "resource": {"name": "cpu", "current": current}}),
        ])
    });
    if let Some(measured) = measured {
        status.insert("currentMetrics".to_owned(), Value::Array(measured));
    }
    if let Some(conditions) = conditions {
        status.insert("conditions".to_owned(), Value::Array(conditions));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::needless_pass_by_value, reason = "cases are written in place")]
    use super::*;

    fn fields(value: Value) -> Fields {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn fields_that_the_older_version_lacks_round_trip_in_annotations() {
        let new = fields(json!({
            "metadata": {"name": "a", "annotations": {"own": "x"}},
            "spec": {
                "scaleTargetRef": {"kind": "Deployment", "name": "d"}, "maxReplicas": 3,
                "metrics": [
                    {"type": "Object", "object": {
                        "describedObject": {"kind": "Service", "name": "s"}, "metric": {"name": "hits", "selector": {"matchLabels": {"a": "b"}}},
                        "target": {"type": "Value", "value": "10"},
                    }},
                    {"type": "Pods", "pods": {"metric": {"name": "p"}, "target": {"type": "AverageValue", "averageValue": "1"}}},
                    {"type": "External", "external": {"metric": {"name": "e"}, "target": {"type": "AverageValue", "averageValue": "1"}}},
                    {"type": "ContainerResource", "containerResource": {
                        "name": "memory", "container": "c", "target": {"type": "Utilization", "averageUtilization": 50},
                    }},
                    processor(70),
                ],
                "behavior": {"scaleUp": {"selectPolicy": "Max"}},
            },
            "status": {
                "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 30, "averageValue": "300m"}}}],
                "conditions": [{"type": "AbleToScale", "status": "True"}],
            },
        }));
        let mut old = new.clone();
        to_v1(&mut old);
        assert_eq!(old["spec"]["targetCPUUtilizationPercentage"], 70);
        assert_eq!(old["status"]["currentCPUUtilizationPercentage"], 30);
        assert_eq!(old["spec"].get("metrics"), None);
        assert!(
            ALL.iter()
                .all(|key| old["metadata"]["annotations"].get(key).is_some())
        );
        to_v2(&mut old);
        assert_eq!(old, new);
    }

    #[test]
    fn an_older_object_without_settings_gets_the_defaults() {
        let mut old = fields(json!({"metadata": {}, "spec": {"maxReplicas": 3}}));
        to_v2(&mut old);
        assert_eq!(old["spec"]["metrics"], json!([usual()]));
        to_v1(&mut old);
        assert_eq!(
            old,
            fields(
                json!({"metadata": {}, "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 80}})
            )
        );
    }

    #[test]
    fn annotations_that_are_no_json_are_dropped() {
        let mut old =
            fields(json!({"metadata": {"annotations": {METRICS: "[", BEHAVIOR: "1"}}, "spec": {}}));
        to_v2(&mut old);
        assert_eq!(
            old,
            fields(json!({"metadata": {}, "spec": {"metrics": [usual()]}}))
        );
    }
}
