//! Jobs.

use super::columns::{CONTAINERS, IMAGES, SELECTOR, count};
use super::job_spec::{defaults, validate_spec};
use super::job_status;
use super::rules::{selects_template, status as status_of, template};
use config_kube::k8s_openapi::api::batch::v1::Job;
use jiff::Timestamp;
use master_schema::cells::{AGE, human};
use master_schema::object::spec;
use master_schema::object::{meta_text, metadata, metadata_mut};
use master_schema::registry::{Dependents, Kind, Strategy, Subresource, column, selectable, words};
use master_schema::validate::forms::{has, on};
use master_schema::validate::{
    Faults, FieldPath, Fields, get, items, labels, names, object, object_mut, text,
};
use serde_json::{Value, json};

/// `Job`.
pub fn job() -> Kind {
    Kind {
        categories: words(&["all"]),
        subresources: vec![Subresource::Status],
        columns: vec![
            column("Status", |fields, _| status(fields).into()),
            column("Completions", |fields, _| completions(fields).into()),
            column("Duration", |fields, now| duration(fields, now).into()),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        selectable: vec![selectable("status.successful", "/status/succeeded")],
        strategy: Strategy {
            defaults: |fields| {
                default_labels(fields);
                if let Some(spec) = object_mut(fields, "spec") {
                    defaults(spec);
                }
            },
            create: own_selector,
            validate,
            validate_update,
            validate_through: |subresource, new, old, faults| {
                if subresource == Subresource::Status {
                    job_status::validate(new, old, faults);
                }
            },
            generation: true,
            // Compatibility of `batch/v1` (upstream: `OrphanDependents`).
            dependents: Dependents::Orphaned,
            ..Strategy::default()
        },
        ..Kind::of::<Job>(true)
    }
}

/// The first of these conditions that is true is the job's status; `Terminating` comes between
/// them.
fn status(fields: &Fields) -> &'static str {
    let conditions = object(fields, "status").map_or(&[][..], |status| items(status, "conditions"));
    let holds = |kind: &str| {
        conditions
            .iter()
            .filter_map(Value::as_object)
            .any(|one| text(one, "type") == kind && text(one, "status") == "True")
    };
    if holds("Complete") {
        return "Complete";
    }
    if holds("Failed") {
        return "Failed";
    }
    if metadata(fields).contains_key("deletionTimestamp") {
        return "Terminating";
    }
    ["Suspended", "FailureTarget", "SuccessCriteriaMet"]
        .into_iter()
        .find(|kind| holds(kind))
        .unwrap_or("Running")
}

fn completions(fields: &Fields) -> String {
    let done = count(fields, "status", "/succeeded");
    let spec = object(fields, "spec");
    if let Some(wanted) = spec.and_then(|spec| get(spec, "completions").as_i64()) {
        return format!("{done}/{wanted}");
    }
    match count(fields, "spec", "/parallelism") {
        parallel if parallel > 1 => format!("{done}/1 of {parallel}"),
        _ => format!("{done}/1"),
    }
}

fn duration(fields: &Fields, now: Timestamp) -> String {
    let time =
        |key: &str| -> Option<Timestamp> { text(object(fields, "status")?, key).parse().ok() };
    let Some(start) = time("startTime") else {
        return String::new();
    };
    human(time("completionTime").unwrap_or(now).as_second() - start.as_second())
}

/// The job's labels default to the template's.
fn default_labels(fields: &mut Fields) {
    let own = labels::of(template(spec(fields)))
        .filter(|own| !own.is_empty())
        .cloned();
    let metadata = metadata_mut(fields);
    if let Some(own) = own
        && object(metadata, "labels").is_none_or(serde_json::Map::is_empty)
    {
        metadata.insert("labels".to_owned(), Value::Object(own));
    }
}

/// Labels of a job's pods: its name and its UID, each under a prefixed and an older key.
const NAME: [&str; 2] = ["batch.kubernetes.io/job-name", "job-name"];
const ID: [&str; 2] = ["batch.kubernetes.io/controller-uid", "controller-uid"];

/// Unless `manualSelector` is set, the selector is the job's UID; validation checks labels that are
/// set already.
fn own_selector(fields: &mut Fields) {
    let (name, id) = (
        meta_text(fields, "name").to_owned(),
        meta_text(fields, "uid").to_owned(),
    );
    let Some(spec) = object_mut(fields, "spec") else {
        return;
    };
    if on(spec, "manualSelector") {
        return;
    }
    if let Some(labels) = object_mut(spec, "template")
        .and_then(|template| object_mut(template, "metadata"))
        .and_then(|metadata| object_mut(metadata, "labels"))
    {
        for (keys, value) in [(NAME, &name), (ID, &id)] {
            for key in keys {
                labels.entry(key).or_insert_with(|| value.as_str().into());
            }
        }
    }
    if let Some(chosen) =
        object_mut(spec, "selector").and_then(|selector| object_mut(selector, "matchLabels"))
    {
        chosen.entry(ID[0]).or_insert_with(|| id.into());
    }
}

fn validate(fields: &Fields, faults: &mut Faults) {
    let (spec, at) = (spec(fields), FieldPath::root("spec"));
    generated(fields, faults);
    validate_spec(spec, &at, faults);
    if object(spec, "selector").is_none() {
        faults.required(&at.field("selector"), "");
    }
    labels::selector(object(spec, "selector"), &at.field("selector"), faults);
    selects_template(spec, None, &at, faults);
    let completions = get(spec, "completions").as_i64().unwrap_or_default();
    // The host name of a pod has its index (KEP-2214).
    if text(spec, "completionMode") == "Indexed" && completions > 0 {
        let name = meta_text(fields, "name");
        let host = format!("{name}-{}", completions - 1);
        if names::label(&host).is_err() {
            let words = format!("will not able to create pod with invalid DNS label: {host}");
            let place = FieldPath::root("metadata");
            faults.invalid(&place.field("name"), &Value::from(name), words);
        }
    }
}

/// Generated labels and selector must not be contradicted.
fn generated(fields: &Fields, faults: &mut Faults) {
    let (spec, at) = (spec(fields), FieldPath::root("spec"));
    if on(spec, "manualSelector") || object(spec, "selector").is_none() {
        return;
    }
    let (name, id) = (meta_text(fields, "name"), meta_text(fields, "uid"));
    if id.is_empty() {
        let place = FieldPath::root("metadata");
        faults.required(&place.field("uid"), "");
    }
    let place = at.field("template");
    let place = place.field("metadata");
    let place = place.field("labels");
    let own = labels::of(template(spec));
    for (key, value) in [(ID[1], id), (NAME[1], name), (ID[0], id), (NAME[0], name)] {
        match own.and_then(|own| own.get(key)) {
            None => faults.required(&place.key(key), &format!("must be '{value}'")),
            Some(found) if found != value => {
                let all = own.map_or(Value::Null, |own| Value::Object(own.clone()));
                faults.invalid(&place.key(key), &all, format!("must be '{value}'"));
            }
            Some(_) => {}
        }
    }
    let expected = json!({NAME[0]: name, NAME[1]: name, ID[0]: id, ID[1]: id});
    if labels::selects(object(spec, "selector"), expected.as_object()) == Some(false) {
        faults.invalid(
            &at.field("selector"),
            get(spec, "selector"),
            "`selector` not auto-generated",
        );
    }
}

fn validate_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    let at = FieldPath::root("spec");
    let (after, before) = (spec(new), spec(old));
    completions_update(after, before, &at, faults);
    for key in [
        "selector",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
    ] {
        faults.immutable(&at.field(key), get(after, key), get(before, key));
    }
    let mut allowed = template(before).clone();
    if rests(old) {
        copy_scheduling(&mut allowed, template(after));
        copy_resources(&mut allowed, template(after));
    }
    if template(after) != &allowed {
        faults.invalid(
            &at.field("template"),
            get(after, "template"),
            "field is immutable",
        );
    }
}

/// `completions` of an indexed job may only change together with `parallelism`.
fn completions_update(new: &Fields, old: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let place = at.field("completions");
    let value = get(new, "completions");
    // KEP-3715: an indexed Job grows and shrinks by both numbers.
    if text(new, "completionMode") != "Indexed" {
        faults.immutable(&place, value, get(old, "completions"));
    } else if value != get(old, "completions")
        && !value.is_null()
        && value != get(new, "parallelism")
    {
        faults.invalid(
            &place,
            value,
            "can only be modified in tandem with spec.parallelism",
        );
    }
}

/// Whether a Job is suspended and none of its pods runs: one that never began, or one whose
/// controller has ended its pods (upstream: the gates `MutableSchedulingDirectivesForSuspendedJobs`
/// and `MutablePodResourcesForSuspendedJobs`).
fn rests(job: &Fields) -> bool {
    let status = status_of(job);
    let suspended = |condition: &Value| {
        let is = |key: &str, value: &str| condition.get(key).is_some_and(|own| own == value);
        is("type", "Suspended") && is("status", "True")
    };
    on(spec(job), "suspend")
        && get(status, "active").as_i64().unwrap_or_default() == 0
        && (!has(status, "startTime") || items(status, "conditions").iter().any(suspended))
}

/// The resources of a resting Job's containers may change: copies them from the new template, where
/// a container of the same name has the same place.
fn copy_resources(allowed: &mut Fields, new: &Fields) {
    let from = object(new, "spec").cloned().unwrap_or_default();
    let Some(own) = object_mut(allowed, "spec") else {
        return;
    };
    for list in ["containers", "initContainers"] {
        let into = own.get_mut(list).and_then(Value::as_array_mut);
        let pairs = into.into_iter().flatten().zip(items(&from, list));
        for (into, from) in pairs.filter(|(into, from)| into.get("name") == from.get("name")) {
            if let (Some(into), Some(resources)) = (into.as_object_mut(), from.get("resources")) {
                into.insert("resources".to_owned(), resources.clone());
            }
        }
    }
}

/// While a suspended Job rests, its scheduling fields may change: copies them from the new
/// template.
fn copy_scheduling(allowed: &mut Fields, new: &Fields) {
    let take = |into: &mut Fields, from: &Fields, key: &str| match from.get(key) {
        Some(value) => drop(into.insert(key.to_owned(), value.clone())),
        None => drop(into.remove(key)),
    };
    if let Some(metadata) = object_mut(allowed, "metadata") {
        let from = object(new, "metadata").cloned().unwrap_or_default();
        take(metadata, &from, "annotations");
        take(metadata, &from, "labels");
    }
    let from = object(new, "spec").cloned().unwrap_or_default();
    let Some(own) = object_mut(allowed, "spec") else {
        return;
    };
    for key in ["nodeSelector", "tolerations", "schedulingGates"] {
        take(own, &from, key);
    }
    let nodes = from
        .get("affinity")
        .and_then(|affinity| affinity.get("nodeAffinity"))
        .cloned();
    let was_there = has(own, "affinity");
    if let Some(affinity) = object_mut(own, "affinity") {
        match nodes {
            Some(nodes) => drop(affinity.insert("nodeAffinity".to_owned(), nodes)),
            None => drop(affinity.remove("nodeAffinity")),
        }
        if affinity.is_empty()
            && !(was_there && from.contains_key("affinity"))
            && !from.contains_key("affinity")
        {
            own.remove("affinity");
        }
    }
}
