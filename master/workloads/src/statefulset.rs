//! StatefulSets.

use super::columns::{CONTAINERS, IMAGES, count};
use super::rules::{
    collisions, counts, default_number, part, selector, selects_template, status, template,
};
use config_kube::k8s_openapi::api::apps::v1::StatefulSet;
use master_pods::podspec;
use master_schema::cells::AGE;
use master_schema::object::spec;
use master_schema::registry::{Kind, Scale, Strategy, Subresource, column, words};
use master_schema::validate::forms::{has, not_negative, number, number_or_share, word};
use master_schema::validate::{
    Faults, FieldPath, Fields, alike, default_to, get, limits, names, object, object_mut, text,
};
use serde_json::{Value, json};

/// `StatefulSet`.
pub fn stateful_set() -> Kind {
    Kind {
        short_names: words(&["sts"]),
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
            AGE,
            CONTAINERS,
            IMAGES,
        ],
        strategy: Strategy {
            // Pods are named after it, and a host name is a label.
            names: names::label,
            defaults,
            validate,
            validate_update,
            validate_through,
            generation: true,
            ..Strategy::default()
        },
        ..Kind::of::<StatefulSet>(true)
    }
}

fn defaults(fields: &mut Fields) {
    let Some(spec) = object_mut(fields, "spec") else {
        return;
    };
    default_to(spec, "podManagementPolicy", "OrderedReady");
    if let Some(strategy) = object_mut(spec, "updateStrategy") {
        if text(strategy, "type").is_empty() {
            strategy.insert("type".to_owned(), "RollingUpdate".into());
            default_to(strategy, "rollingUpdate", json!({}));
        }
        if text(strategy, "type") == "RollingUpdate"
            && let Some(rolling) = strategy
                .get_mut("rollingUpdate")
                .and_then(Value::as_object_mut)
        {
            default_number(rolling, "partition", 0);
        }
    }
    if let Some(retention) = object_mut(spec, "persistentVolumeClaimRetentionPolicy") {
        // KEP-1847: data outlives the set unless its owner wants it otherwise.
        default_to(retention, "whenDeleted", "Retain");
        default_to(retention, "whenScaled", "Retain");
    }
    default_number(spec, "replicas", 1);
    default_number(spec, "revisionHistoryLimit", 10);
    podspec::template_defaults(spec);
    let claims = spec
        .get_mut("volumeClaimTemplates")
        .and_then(Value::as_array_mut);
    for claim in claims
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        default_to(claim, "kind", "PersistentVolumeClaim");
        default_to(claim, "apiVersion", "v1");
        default_to(claim, "status", json!({}));
        if let Some(status) = object_mut(claim, "status") {
            default_to(status, "phase", "Pending");
        }
        podspec::claim_defaults(claim);
    }
}

fn validate(fields: &Fields, faults: &mut Faults) {
    let (spec, at) = (spec(fields), FieldPath::root("spec"));
    match text(spec, "podManagementPolicy") {
        "" => faults.required(&at.field("podManagementPolicy"), ""),
        "OrderedReady" | "Parallel" => {}
        _ => {
            let value = get(spec, "podManagementPolicy");
            faults.invalid(
                &at.field("podManagementPolicy"),
                value,
                "must be 'OrderedReady' or 'Parallel'",
            );
        }
    }
    if let Some(strategy) = object(spec, "updateStrategy") {
        rollout(strategy, &at.field("updateStrategy"), faults);
    }
    if let Some(retention) = object(spec, "persistentVolumeClaimRetentionPolicy") {
        let place = at.field("persistentVolumeClaimRetentionPolicy");
        for key in ["whenDeleted", "whenScaled"] {
            faults.one_of(
                &place.field(key),
                word(retention, key),
                &["Retain", "Delete"],
            );
        }
    }
    limits::at_most(spec, "volumeClaimTemplates", limits::OF_POD, &at, faults);
    not_negative(spec, "replicas", &at, faults);
    not_negative(spec, "minReadySeconds", &at, faults);
    not_negative(spec, "revisionHistoryLimit", &at, faults);
    if let Some(ordinals) = object(spec, "ordinals")
        && number(ordinals, "start") < 0
    {
        let words = master_schema::validate::forms::NOT_NEGATIVE;
        // KEP-3335; upstream's path has the dot in a name.
        faults.invalid(&at.field("ordinals.start"), get(ordinals, "start"), words);
    }
    selector(
        spec,
        "empty selector is invalid for statefulset",
        &at,
        faults,
    );
    selects_template(spec, Some(""), &at, faults);
    // The volumes of claim templates are not in the pod's spec, so upstream validates only the
    // template's metadata.
    let place = at.field("template");
    podspec::template_metadata(template(spec), &place, faults);
    podspec::kept_running(template(spec), "StatefulSet", &place, faults);
}

fn rollout(strategy: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let place = at.field("rollingUpdate");
    match text(strategy, "type") {
        "" => faults.required(at, ""),
        "OnDelete" if has(strategy, "rollingUpdate") => {
            let words = "only allowed for updateStrategy 'RollingUpdate'";
            faults.invalid(&place, get(strategy, "rollingUpdate"), words);
        }
        "OnDelete" => {}
        "RollingUpdate" => {
            let Some(rolling) = object(strategy, "rollingUpdate") else {
                return;
            };
            not_negative(rolling, "partition", &place, faults);
            part(rolling, "maxUnavailable", &place, faults);
            let most = get(rolling, "maxUnavailable");
            // KEP-961: an update would never begin.
            if !most.is_null() && number_or_share(most) == 0 {
                faults.invalid(&place.field("maxUnavailable"), most, "cannot be 0");
            }
        }
        _ => {
            let whole = Value::Object(strategy.clone());
            faults.invalid(at, &whole, "must be 'RollingUpdate' or 'OnDelete'");
        }
    }
}

/// The mutable fields of a spec.
// Not `volumeClaimTemplates`: claims that exist would not follow.
const MUTABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

fn validate_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    let rest = |fields| {
        let mut rest = spec(fields).clone();
        rest.retain(|key, _| !MUTABLE.contains(&key.as_str()));
        Value::Object(rest)
    };
    if !alike(&rest(new), &rest(old)) {
        let words = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                     'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                     'minReadySeconds' are forbidden";
        faults.forbidden(&FieldPath::root("spec"), words);
    }
}

fn validate_through(subresource: Subresource, new: &Fields, old: &Fields, faults: &mut Faults) {
    if subresource == Subresource::Status {
        let plain = ["replicas", "observedGeneration", "collisionCount"];
        let parts = [
            "readyReplicas",
            "currentReplicas",
            "updatedReplicas",
            "availableReplicas",
        ];
        counts(status(new), &plain, &parts, "status.readyReplicas", faults);
        collisions(status(new), status(old), faults);
    }
}
