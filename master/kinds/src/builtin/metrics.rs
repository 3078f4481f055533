//! The kinds of `metrics.k8s.io`, which are computed from the nodes' figures and never stored.

use config_kube::metrics::{NodeMetrics, PodMetrics};
use master_schema::quantity::Quantity;
use master_schema::registry::{Column, Kind, Review, column};
use master_schema::validate::{Fields, items, object, text};
use serde_json::Value;

pub(super) fn all() -> Vec<Kind> {
    vec![
        Kind {
            review: Some(Review::Metrics),
            columns: columns(),
            ..Kind::of::<NodeMetrics>(false)
        },
        Kind {
            review: Some(Review::Metrics),
            columns: columns(),
            ..Kind::of::<PodMetrics>(true)
        },
    ]
}

/// Upstream's metrics server has the columns cpu, memory and Window.
fn columns() -> Vec<Column> {
    vec![
        column("cpu", |fields, _| total(fields, "cpu")),
        column("memory", |fields, _| total(fields, "memory")),
        column("Window", |fields, _| text(fields, "window").into()),
    ]
}

/// The usage of a resource by a node, or by all containers of a pod.
fn total(fields: &Fields, resource: &str) -> Value {
    let containers = items(fields, "containers")
        .iter()
        .filter_map(Value::as_object);
    let usage = |of: &Fields| Quantity::parse(text(object(of, "usage")?, resource));
    let all = containers.chain([fields]).filter_map(usage);
    all.fold(Quantity::ZERO, Quantity::plus).to_string().into()
}
