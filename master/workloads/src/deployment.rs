//! Deployments.

use super::columns::{CONTAINERS, IMAGES, SELECTOR, count, number};
use super::replica::{immutable_selector, template_of};
use super::rules::{collisions, counts, default_number, is_nothing, status};
use config_kube::k8s_openapi::api::apps::v1::Deployment;
use master_pods::podspec;
use master_schema::cells::AGE;
use master_schema::object::{metadata_mut, spec};
use master_schema::registry::{Kind, Scale, Strategy, Subresource, column, words};
use master_schema::validate::forms::{at_most_all, count_or_share, has, not_negative, word};
use master_schema::validate::{
    Faults, FieldPath, Fields, default_to, get, object, object_mut, text,
};
use serde_json::Value;

/// `Deployment`.
pub fn deployment() -> Kind {
    Kind {
        short_names: words(&["deploy"]),
        categories: words(&["all"]),
        scale: Some(Scale::WORKLOAD),
        subresources: vec![Subresource::Scale, Subresource::Status],
        columns: vec![
            column("Ready", |fields, _| {
                let (ready, desired) = (
                    count(fields, "status", "/readyReplicas"),
                    count(fields, "spec", "/replicas"),
                );
                format!("{ready}/{desired}").into()
            }),
            number("Up-to-date", |fields, _| {
                count(fields, "status", "/updatedReplicas").into()
            }),
            number("Available", |fields, _| {
                count(fields, "status", "/availableReplicas").into()
            }),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        strategy: Strategy {
            defaults,
            validate,
            validate_update: |new, old, faults| immutable_selector(new, old, faults),
            validate_through,
            through: keep_labels,
            generation: true,
            ..Strategy::default()
        },
        ..Kind::of::<Deployment>(true)
    }
}

fn defaults(fields: &mut Fields) {
    let Some(spec) = object_mut(fields, "spec") else {
        return;
    };
    default_number(spec, "replicas", 1);
    default_number(spec, "revisionHistoryLimit", 10);
    default_number(spec, "progressDeadlineSeconds", 600);
    if let Some(strategy) = object_mut(spec, "strategy") {
        default_to(strategy, "type", "RollingUpdate");
        if text(strategy, "type") == "RollingUpdate"
            && let Some(rolling) = object_mut(strategy, "rollingUpdate")
        {
            for key in ["maxUnavailable", "maxSurge"] {
                if get(rolling, key).is_null() {
                    rolling.insert(key.to_owned(), "25%".into());
                }
            }
        }
    }
    podspec::template_defaults(spec);
}

/// What is written of the status carries annotations, but no labels (upstream, for this kind
/// alone).
fn keep_labels(_: Subresource, result: &mut Fields, _: &Fields, old: &Fields) {
    let metadata = metadata_mut(result);
    match object(old, "metadata").and_then(|old| old.get("labels")) {
        Some(labels) => drop(metadata.insert("labels".to_owned(), labels.clone())),
        None => drop(metadata.remove("labels")),
    }
}

fn validate(fields: &Fields, faults: &mut Faults) {
    let (spec, at) = (spec(fields), FieldPath::root("spec"));
    not_negative(spec, "replicas", &at, faults);
    template_of(spec, &at, faults);
    if let Some(strategy) = object(spec, "strategy") {
        rollout(strategy, &at.field("strategy"), faults);
    }
    not_negative(spec, "minReadySeconds", &at, faults);
    not_negative(spec, "revisionHistoryLimit", &at, faults);
    not_negative(spec, "progressDeadlineSeconds", &at, faults);
    let deadline = get(spec, "progressDeadlineSeconds");
    let least = get(spec, "minReadySeconds").as_i64().unwrap_or_default();
    // Else every rollout fails before its first pod can be available.
    if deadline.as_i64().is_some_and(|deadline| deadline <= least) {
        faults.invalid(
            &at.field("progressDeadlineSeconds"),
            deadline,
            "must be greater than minReadySeconds",
        );
    }
}

fn rollout(strategy: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let place = at.field("rollingUpdate");
    match text(strategy, "type") {
        // A patch of the type alone leaves the old parameters: they are refused, not ignored.
        "Recreate" if has(strategy, "rollingUpdate") => {
            faults.forbidden(
                &place,
                "may not be specified when strategy `type` is 'Recreate'",
            );
        }
        "Recreate" => {}
        "RollingUpdate" => match object(strategy, "rollingUpdate") {
            None => faults.required(&place, "this should be defaulted and never be nil"),
            Some(rolling) => {
                for key in ["maxUnavailable", "maxSurge"] {
                    count_or_share(get(rolling, key), &place.field(key), faults);
                }
                let unavailable = get(rolling, "maxUnavailable");
                // Neither could an old pod go, nor a new one come first.
                if is_nothing(rolling, "maxUnavailable") && is_nothing(rolling, "maxSurge") {
                    faults.invalid(
                        &place.field("maxUnavailable"),
                        unavailable,
                        "may not be 0 when `maxSurge` is 0",
                    );
                }
                at_most_all(unavailable, &place.field("maxUnavailable"), faults);
            }
        },
        _ => faults.unsupported(at, word(strategy, "type"), &["Recreate", "RollingUpdate"]),
    }
}

fn validate_through(subresource: Subresource, new: &Fields, old: &Fields, faults: &mut Faults) {
    if subresource != Subresource::Status {
        return;
    }
    let plain = [
        "observedGeneration",
        "replicas",
        "unavailableReplicas",
        "collisionCount",
    ];
    counts(
        status(new),
        &plain,
        &["updatedReplicas", "readyReplicas", "availableReplicas"],
        "readyReplicas",
        faults,
    );
    if get(status(new), "terminatingReplicas") != &Value::Null {
        not_negative(
            status(new),
            "terminatingReplicas",
            &FieldPath::root("status"),
            faults,
        );
    }
    collisions(status(new), status(old), faults);
}
