//! HorizontalPodAutoscalers, in both versions.

use super::columns::{count, number};
use super::{autoscaler_spec, autoscaler_versions};
use config_kube::k8s_openapi::api::autoscaling;
use master_schema::cells::AGE;
use master_schema::registry::{Column, Conversion, Kind, Strategy, Subresource, column, words};
use master_schema::validate::{Fields, get, items, object, text};
use serde_json::Value;

/// Metrics that a row shows.
const SHOWN: usize = 2;

const COLUMNS: &[Column] = &[
    column("Reference", |fields, _| reference(fields).into()),
    column("Targets", |fields, _| targets(fields).into()),
    column("MinPods", |fields, _| minimum(fields).into()),
    number("MaxPods", |fields, _| {
        count(fields, "spec", "/maxReplicas").into()
    }),
    number("Replicas", |fields, _| {
        count(fields, "status", "/currentReplicas").into()
    }),
    AGE,
];

/// The same for the older version, whose metrics are in other fields.
fn older() -> Vec<Column> {
    let mut columns = COLUMNS.to_vec();
    if let Some(column_of_targets) = columns.get_mut(1) {
        *column_of_targets = column("Targets", |fields, _| targets(&newer(fields)).into());
    }
    columns
}

/// Converts an object of the older version to the newer.
fn newer(fields: &Fields) -> Fields {
    let mut fields = fields.clone();
    autoscaler_versions::to_v2(&mut fields);
    fields
}

/// `HorizontalPodAutoscaler`, version 2.
pub fn v2() -> Kind {
    Kind {
        short_names: words(&["hpa"]),
        categories: words(&["all"]),
        subresources: vec![Subresource::Status],
        columns: COLUMNS.to_vec(),
        strategy: Strategy {
            defaults: autoscaler_spec::defaults,
            validate: autoscaler_spec::validate,
            validate_through: autoscaler_spec::validate_through,
            ..Strategy::default()
        },
        ..Kind::of::<autoscaling::v2::HorizontalPodAutoscaler>(true)
    }
}

/// `HorizontalPodAutoscaler`, version 1.
pub fn v1() -> Kind {
    Kind {
        short_names: words(&["hpa"]),
        categories: words(&["all"]),
        subresources: vec![Subresource::Status],
        columns: older(),
        strategy: Strategy {
            defaults: |fields| {
                autoscaler_versions::to_v2(fields);
                autoscaler_spec::defaults(fields);
                autoscaler_versions::to_v1(fields);
            },
            validate: |fields, faults| autoscaler_spec::validate(&newer(fields), faults),
            validate_through: autoscaler_spec::validate_through,
            ..Strategy::default()
        },
        conversion: Some(Conversion {
            to_stored: autoscaler_versions::to_v2,
            to_served: autoscaler_versions::to_v1,
        }),
        ..Kind::of::<autoscaling::v1::HorizontalPodAutoscaler>(true)
    }
}

fn reference(fields: &Fields) -> String {
    let target = object(fields, "spec").and_then(|spec| object(spec, "scaleTargetRef"));
    target.map_or(String::new(), |target| {
        format!("{}/{}", text(target, "kind"), text(target, "name"))
    })
}

fn minimum(fields: &Fields) -> String {
    let least = object(fields, "spec").and_then(|spec| get(spec, "minReplicas").as_i64());
    least.map_or("<unset>".to_owned(), |least| least.to_string())
}

fn targets(fields: &Fields) -> String {
    let list = |field, key| object(fields, field).map_or(&[][..], |inner| items(inner, key));
    let (specs, statuses) = (list("spec", "metrics"), list("status", "currentMetrics"));
    if specs.is_empty() {
        return "<none>".to_owned();
    }
    let shown: Vec<String> = specs
        .iter()
        .take(SHOWN)
        .enumerate()
        .map(|(number, spec)| target(spec, statuses.get(number).unwrap_or(&Value::Null)))
        .collect();
    let shown = shown.join(", ");
    if specs.len() > SHOWN {
        format!("{shown} + {} more...", specs.len() - SHOWN)
    } else {
        shown
    }
}

/// A metric: current and target value.
fn target(spec: &Value, status: &Value) -> String {
    let word = |value: &Value, pointer: &str| {
        value
            .pointer(pointer)
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    let percent = |value: &Value, pointer: &str| {
        value
            .pointer(pointer)
            .and_then(Value::as_i64)
            .map(|share| format!("{share}%"))
    };
    let unknown = || "<unknown>".to_owned();
    let (source, resource) = match spec.get("type").and_then(Value::as_str) {
        Some("External") => ("external", false),
        Some("Pods") => ("pods", false),
        Some("Object") => ("object", false),
        Some("Resource") => ("resource", true),
        Some("ContainerResource") => ("containerResource", true),
        Some(_) | None => return "<unknown type>".to_owned(),
    };
    let at = |end: &str| format!("/{source}{end}");
    if resource {
        let name = word(spec, &at("/name")).unwrap_or_default();
        return match word(spec, &at("/target/averageValue")) {
            Some(target) => {
                format!(
                    "{name}: {}/{target}",
                    word(status, &at("/current/averageValue")).unwrap_or_else(unknown)
                )
            }
            None => format!(
                "{name}: {}/{}",
                percent(status, &at("/current/averageUtilization")).unwrap_or_else(unknown),
                percent(spec, &at("/target/averageUtilization"))
                    .unwrap_or_else(|| "<auto>".to_owned()),
            ),
        };
    }
    if let Some(target) = word(spec, &at("/target/averageValue")) {
        let current = word(status, &at("/current/averageValue")).unwrap_or_else(unknown);
        let end = if source == "pods" { "" } else { " (avg)" };
        return format!("{current}/{target}{end}");
    }
    let current = word(status, &at("/current/value")).unwrap_or_else(unknown);
    format!(
        "{current}/{}",
        word(spec, &at("/target/value")).unwrap_or_default()
    )
}
