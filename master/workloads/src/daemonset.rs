//! DaemonSets.

use super::columns::{
    CONTAINERS, IMAGES, SELECTOR, count, label_map, number, template as template_at,
};
use super::replica::immutable_selector;
use super::rules::{
    collisions, default_number, is_nothing, part, selects_template, status, template,
};
use config_kube::k8s_openapi::api::apps::v1::DaemonSet;
use master_pods::podspec;
use master_schema::cells::AGE;
use master_schema::object::spec;
use master_schema::object::{metadata, metadata_mut};
use master_schema::registry::{Kind, Strategy, Subresource, column, words};
use master_schema::validate::forms::{not_negative, word};
use master_schema::validate::{
    Faults, FieldPath, Fields, default_to, get, labels, object, object_mut, text,
};

/// `DaemonSet`.
pub fn daemon_set() -> Kind {
    Kind {
        short_names: words(&["ds"]),
        categories: words(&["all"]),
        subresources: vec![Subresource::Status],
        columns: vec![
            number("Desired", |fields, _| {
                count(fields, "status", "/desiredNumberScheduled").into()
            }),
            number("Current", |fields, _| {
                count(fields, "status", "/currentNumberScheduled").into()
            }),
            number("Ready", |fields, _| {
                count(fields, "status", "/numberReady").into()
            }),
            number("Up-to-date", |fields, _| {
                count(fields, "status", "/updatedNumberScheduled").into()
            }),
            number("Available", |fields, _| {
                count(fields, "status", "/numberAvailable").into()
            }),
            column("Node Selector", |fields, _| {
                let spec = template_at(fields, "/template/spec");
                label_map(spec.and_then(|spec| object(spec, "nodeSelector"))).into()
            }),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        strategy: Strategy {
            defaults,
            create: |fields| set_generation(fields, 1),
            update,
            validate,
            validate_update: |new, old, faults| immutable_selector(new, old, faults),
            validate_through,
            generation: true,
            ..Strategy::default()
        },
        ..Kind::of::<DaemonSet>(true)
    }
}

fn defaults(fields: &mut Fields) {
    let Some(spec) = object_mut(fields, "spec") else {
        return;
    };
    default_number(spec, "revisionHistoryLimit", 10);
    if let Some(strategy) = object_mut(spec, "updateStrategy") {
        default_to(strategy, "type", "RollingUpdate");
        if text(strategy, "type") == "RollingUpdate"
            && let Some(rolling) = object_mut(strategy, "rollingUpdate")
        {
            default_number(rolling, "maxUnavailable", 1);
            default_number(rolling, "maxSurge", 0);
        }
    }
    podspec::template_defaults(spec);
}

/// Annotation that counts changes of the template, for old clients.
const GENERATION: &str = "deprecated.daemonset.template.generation";

fn set_generation(fields: &mut Fields, generation: i64) {
    if let Some(annotations) = object_mut(metadata_mut(fields), "annotations") {
        annotations.insert(GENERATION.to_owned(), generation.to_string().into());
    }
}

fn update(new: &mut Fields, old: &Fields) {
    let before = object(metadata(old), "annotations")
        .map_or("", |all| text(all, GENERATION))
        .parse()
        .unwrap_or(0);
    let changed = template(spec(new)) != template(spec(old));
    set_generation(new, before + i64::from(changed));
}

fn validate(fields: &Fields, faults: &mut Faults) {
    let (spec, at) = (spec(fields), FieldPath::root("spec"));
    let selector = object(spec, "selector");
    labels::selector(selector, &at.field("selector"), faults);
    selects_template(spec, None, &at, faults);
    if selector.is_some_and(labels::is_empty) {
        faults.invalid(
            &at.field("selector"),
            get(spec, "selector"),
            "empty selector is invalid for daemonset",
        );
    }
    let place = at.field("template");
    podspec::template(template(spec), &place, faults);
    podspec::kept_running(template(spec), "DaemonSet", &place, faults);
    not_negative(spec, "minReadySeconds", &at, faults);
    if let Some(strategy) = object(spec, "updateStrategy") {
        rollout(strategy, &at.field("updateStrategy"), faults);
    }
    not_negative(spec, "revisionHistoryLimit", &at, faults);
}

fn rollout(strategy: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let place = at.field("rollingUpdate");
    match text(strategy, "type") {
        "OnDelete" => {}
        "RollingUpdate" => {
            let Some(rolling) = object(strategy, "rollingUpdate") else {
                faults.required(&place, "");
                return;
            };
            part(rolling, "maxUnavailable", &place, faults);
            part(rolling, "maxSurge", &place, faults);
            match (
                is_nothing(rolling, "maxUnavailable"),
                is_nothing(rolling, "maxSurge"),
            ) {
                (false, false) => {
                    let words = "may not be set when maxUnavailable is non-zero";
                    faults.invalid(&place.field("maxSurge"), get(rolling, "maxSurge"), words);
                }
                (true, true) => faults.required(
                    &place.field("maxUnavailable"),
                    "cannot be 0 when maxSurge is 0",
                ),
                (true, false) | (false, true) => {}
            }
        }
        _ => faults.unsupported(at, word(strategy, "type"), &["RollingUpdate", "OnDelete"]),
    }
}

fn validate_through(subresource: Subresource, new: &Fields, old: &Fields, faults: &mut Faults) {
    if subresource != Subresource::Status {
        return;
    }
    let counts = [
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ];
    for key in counts {
        not_negative(status(new), key, &FieldPath::root("status"), faults);
    }
    collisions(status(new), status(old), faults);
}
