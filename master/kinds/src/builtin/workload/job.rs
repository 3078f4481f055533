//! Jobs and cron jobs.

use super::columns::{CONTAINERS, IMAGES, SELECTOR, count, label_selector, names, number, template};
use crate::builtin::cells::{AGE, at, human, since};
use crate::object::metadata;
use crate::registry::{Column, Kind, Strategy, Subresource, column, wide};
use crate::validate::{Fields, get, items, object, text};
use config_kube::k8s_openapi::api::batch::v1::{CronJob, Job};
use jiff::Timestamp;
use serde_json::Value;

pub(in crate::builtin) fn job() -> Kind {
    Kind {
        categories: &["all"],
        subresources: &[Subresource::Status],
        columns: const {
            &[
                column("Status", |fields, _| status(fields).into()),
                column("Completions", |fields, _| completions(fields).into()),
                column("Duration", |fields, now| duration(fields, now).into()),
                AGE,
                CONTAINERS,
                IMAGES,
                SELECTOR,
            ]
        },
        selectable: &[("status.successful", "/status/succeeded")],
        strategy: Strategy { generation: true, ..Strategy::default() },
        ..Kind::of::<Job>(true)
    }
}

/// The first of these conditions that holds says how a job is; a job that is being deleted comes in between.
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
    ["Suspended", "FailureTarget", "SuccessCriteriaMet"].into_iter().find(|kind| holds(kind)).unwrap_or("Running")
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
    let time = |key: &str| -> Option<Timestamp> { text(object(fields, "status")?, key).parse().ok() };
    let Some(start) = time("startTime") else { return String::new() };
    human(time("completionTime").unwrap_or(now).as_second() - start.as_second())
}

pub(in crate::builtin) fn cron_job() -> Kind {
    Kind {
        short_names: &["cj"],
        categories: &["all"],
        subresources: &[Subresource::Status],
        columns: const {
            &[
                column("Schedule", |fields, _| object(fields, "spec").map_or("", |spec| text(spec, "schedule")).into()),
                column("Timezone", |fields, _| at(fields, "spec", "/timeZone").into()),
                Column { kind: "boolean", ..column("Suspend", |fields, _| suspend(fields).into()) },
                number("Active", |fields, _| {
                    object(fields, "status").map_or(0, |status| items(status, "active").len()).into()
                }),
                column("Last Schedule", |fields, now| match at(fields, "status", "/lastScheduleTime") {
                    "<none>" => "<none>".into(),
                    time => since(time, now).into(),
                }),
                AGE,
                wide("Containers", |fields, _| names(template(fields, "/jobTemplate/spec/template"), "name").into()),
                wide("Images", |fields, _| names(template(fields, "/jobTemplate/spec/template"), "image").into()),
                wide("Selector", |fields, _| {
                    label_selector(fields.get("spec").and_then(|spec| spec.pointer("/jobTemplate/spec/selector")))
                        .into()
                }),
            ]
        },
        strategy: Strategy { generation: true, ..Strategy::default() },
        ..Kind::of::<CronJob>(true)
    }
}

fn suspend(fields: &Fields) -> &'static str {
    match object(fields, "spec").and_then(|spec| get(spec, "suspend").as_bool()) {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    }
}
