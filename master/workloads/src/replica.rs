//! ReplicationControllers and ReplicaSets.

use super::columns::{CONTAINERS, IMAGES, SELECTOR, count, label_map, number};
use super::rules::{
    counts, default_number, selector, selects_template, status, template, unselected,
};
use config_kube::k8s_openapi::api::apps::v1::ReplicaSet;
use config_kube::k8s_openapi::api::core::v1::ReplicationController;
use master_pods::podspec;
use master_schema::cells::AGE;
use master_schema::object::metadata_mut;
use master_schema::object::spec;
use master_schema::registry::{
    Column, Dependents, Kind, Scale, Strategy, Subresource, selectable, wide, words,
};
use master_schema::validate::forms::not_negative;
use master_schema::validate::{Faults, FieldPath, Fields, labels, object, object_mut};
use serde_json::Value;

const DESIRED: Column = number("Desired", |fields, _| {
    count(fields, "spec", "/replicas").into()
});
const CURRENT: Column = number("Current", |fields, _| {
    count(fields, "status", "/replicas").into()
});
const READY: Column = number("Ready", |fields, _| {
    count(fields, "status", "/readyReplicas").into()
});

/// `ReplicationController`.
pub fn replication_controller() -> Kind {
    Kind {
        short_names: words(&["rc"]),
        categories: words(&["all"]),
        scale: Some(Scale::WORKLOAD),
        subresources: vec![Subresource::Scale, Subresource::Status],
        columns: vec![
            DESIRED,
            CURRENT,
            READY,
            AGE,
            CONTAINERS,
            IMAGES,
            wide("Selector", |fields, _| {
                label_map(object(fields, "spec").and_then(|spec| object(spec, "selector"))).into()
            }),
        ],
        selectable: vec![selectable("status.replicas", "/status/replicas")],
        strategy: Strategy {
            defaults: controller_defaults,
            validate: controller,
            validate_through,
            generation: true,
            dependents: Dependents::Orphaned,
            ..Strategy::default()
        },
        ..Kind::of::<ReplicationController>(true)
    }
}

/// Selector and labels default to the template's labels.
fn controller_defaults(fields: &mut Fields) {
    let own = labels::of(template(spec(fields)))
        .filter(|own| !own.is_empty())
        .cloned();
    if let Some(own) = own {
        let metadata = metadata_mut(fields);
        if object(metadata, "labels").is_none_or(serde_json::Map::is_empty) {
            metadata.insert("labels".to_owned(), Value::Object(own.clone()));
        }
        if let Some(spec) = object_mut(fields, "spec")
            && object(spec, "selector").is_none_or(serde_json::Map::is_empty)
        {
            spec.insert("selector".to_owned(), Value::Object(own));
        }
    }
    replica_defaults(fields);
}

fn replica_defaults(fields: &mut Fields) {
    if let Some(spec) = object_mut(fields, "spec") {
        default_number(spec, "replicas", 1);
        podspec::template_defaults(spec);
    }
}

fn controller(fields: &Fields, faults: &mut Faults) {
    let (spec, at) = (spec(fields), FieldPath::root("spec"));
    not_negative(spec, "minReadySeconds", &at, faults);
    let chosen = object(spec, "selector").filter(|selector| !selector.is_empty());
    if chosen.is_none() {
        faults.required(&at.field("selector"), "");
    }
    not_negative(spec, "replicas", &at, faults);
    let place = at.field("template");
    let Some(template) = object(spec, "template") else {
        faults.required(&place, "");
        return;
    };
    let own = labels::of(template).unwrap_or(podspec::no_fields());
    if chosen.is_some_and(|chosen| {
        chosen
            .iter()
            .any(|(key, value)| own.get(key) != Some(value))
    }) {
        unselected(template, &place, faults);
    }
    podspec::template(template, &place, faults);
    podspec::kept_running(template, "ReplicationController", &place, faults);
}

/// `ReplicaSet`.
pub fn replica_set() -> Kind {
    Kind {
        short_names: words(&["rs"]),
        categories: words(&["all"]),
        scale: Some(Scale::WORKLOAD),
        subresources: vec![Subresource::Scale, Subresource::Status],
        columns: vec![DESIRED, CURRENT, READY, AGE, CONTAINERS, IMAGES, SELECTOR],
        selectable: vec![selectable("status.replicas", "/status/replicas")],
        strategy: Strategy {
            defaults: replica_defaults,
            validate: set,
            validate_update: |new, old, faults| immutable_selector(new, old, faults),
            validate_through,
            generation: true,
            ..Strategy::default()
        },
        ..Kind::of::<ReplicaSet>(true)
    }
}

fn set(fields: &Fields, faults: &mut Faults) {
    let (spec, at) = (spec(fields), FieldPath::root("spec"));
    not_negative(spec, "replicas", &at, faults);
    not_negative(spec, "minReadySeconds", &at, faults);
    template_of(spec, &at, faults);
}

/// Validates the template of ReplicaSets and Deployments, with upstream's words.
pub(super) fn template_of(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    selector(spec, "empty selector is invalid for deployment", at, faults);
    selects_template(spec, Some("invalid label selector"), at, faults);
    let place = at.field("template");
    podspec::template(template(spec), &place, faults);
    podspec::kept_running(template(spec), "ReplicaSet", &place, faults);
}

/// The selector is immutable: pods of the old one would lose their controller.
pub(super) fn immutable_selector(new: &Fields, old: &Fields, faults: &mut Faults) {
    let at = FieldPath::root("spec");
    let of = |fields| master_schema::validate::get(spec(fields), "selector");
    faults.immutable(&at.field("selector"), of(new), of(old));
}

fn validate_through(subresource: Subresource, new: &Fields, _old: &Fields, faults: &mut Faults) {
    if subresource == Subresource::Status {
        let parts = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
        counts(
            status(new),
            &["replicas", "observedGeneration"],
            &parts,
            "readyReplicas",
            faults,
        );
    }
}
