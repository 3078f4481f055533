//! CronJobs.

use super::columns::{label_selector, names, number, template};
use super::job_spec::{template_defaults, validate_spec};
use super::rules::default_number;
use config_kube::k8s_openapi::api::batch::v1::CronJob;
use master_cron::{Fault, Schedule};
use master_pods::podspec;
use master_schema::cells::{AGE, at, since};
use master_schema::object::spec;
use master_schema::object::{meta_text, metadata};
use master_schema::registry::{Kind, Strategy, Subresource, boolean, column, wide, words};
use master_schema::validate::forms::{choice, has, not_negative, on};
use master_schema::validate::{
    Faults, FieldPath, Fields, default_to, get, items, object, object_mut, text,
};
use serde_json::Value;

/// `CronJob`.
pub fn cron_job() -> Kind {
    Kind {
        short_names: words(&["cj"]),
        categories: words(&["all"]),
        subresources: vec![Subresource::Status],
        columns: vec![
            column("Schedule", |fields, _| {
                object(fields, "spec")
                    .map_or("", |spec| text(spec, "schedule"))
                    .into()
            }),
            column("Timezone", |fields, _| {
                at(fields, "spec", "/timeZone").into()
            }),
            boolean("Suspend", |fields, _| suspend(fields).into()),
            number("Active", |fields, _| {
                object(fields, "status")
                    .map_or(0, |status| items(status, "active").len())
                    .into()
            }),
            column("Last Schedule", |fields, now| {
                match at(fields, "status", "/lastScheduleTime") {
                    "<none>" => "<none>".into(),
                    time => since(time, now).into(),
                }
            }),
            AGE,
            wide("Containers", |fields, _| {
                names(template(fields, "/jobTemplate/spec/template"), "name").into()
            }),
            wide("Images", |fields, _| {
                names(template(fields, "/jobTemplate/spec/template"), "image").into()
            }),
            wide("Selector", |fields, _| {
                label_selector(
                    fields
                        .get("spec")
                        .and_then(|spec| spec.pointer("/jobTemplate/spec/selector")),
                )
                .into()
            }),
        ],
        strategy: Strategy {
            defaults,
            validate,
            validate_create,
            validate_update,
            generation: true,
            ..Strategy::default()
        },
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

fn defaults(fields: &mut Fields) {
    let Some(spec) = object_mut(fields, "spec") else {
        return;
    };
    default_to(spec, "concurrencyPolicy", "Allow");
    default_to(spec, "suspend", false);
    default_number(spec, "successfulJobsHistoryLimit", 3);
    default_number(spec, "failedJobsHistoryLimit", 1);
    if let Some(job) = object_mut(spec, "jobTemplate") {
        default_to(job, "metadata", Value::Object(serde_json::Map::new()));
        if let Some(spec) = object_mut(job, "spec") {
            template_defaults(spec);
        }
    }
}

fn validate(fields: &Fields, faults: &mut Faults) {
    let (spec, at) = (spec(fields), FieldPath::root("spec"));
    let schedule = get(spec, "schedule");
    let place = at.field("schedule");
    match text(spec, "schedule") {
        "" => faults.required(&place, ""),
        words => {
            if let Err(fault) = Schedule::parse(words, None) {
                faults.invalid(&place, schedule, fault);
            }
            if words.contains("TZ") && has(spec, "timeZone") {
                let fault = "cannot use both timeZone field and TZ or CRON_TZ in schedule";
                faults.invalid(&place, schedule, fault);
            }
        }
    }
    not_negative(spec, "startingDeadlineSeconds", &at, faults);
    if has(spec, "timeZone") {
        time_zone(get(spec, "timeZone"), &at.field("timeZone"), faults);
    }
    choice(
        spec,
        "concurrencyPolicy",
        &at,
        &["Allow", "Forbid", "Replace"],
        faults,
    );
    let place = at.field("jobTemplate");
    let place = place.field("spec");
    let nothing = podspec::no_fields();
    let job = object(spec, "jobTemplate")
        .and_then(|job| object(job, "spec"))
        .unwrap_or(nothing);
    validate_spec(job, &place, faults);
    // Each Job selects by its own UID.
    if has(job, "selector") {
        faults.invalid(
            &place.field("selector"),
            get(job, "selector"),
            "`selector` will be auto-generated",
        );
    }
    if on(job, "manualSelector") {
        faults.unsupported(
            &place.field("manualSelector"),
            get(job, "manualSelector"),
            &["nil", "false"],
        );
    }
    not_negative(spec, "successfulJobsHistoryLimit", &at, faults);
    not_negative(spec, "failedJobsHistoryLimit", &at, faults);
}

/// Maximum length of a name: names of jobs add eleven characters.
const NAME: usize = 52;

fn validate_create(fields: &Fields, faults: &mut Faults) {
    if meta_text(fields, "name").len() > NAME {
        let place = FieldPath::root("metadata");
        let name = get(metadata(fields), "name");
        faults.invalid(
            &place.field("name"),
            name,
            format!("must be no more than {NAME} characters"),
        );
    }
    // KEP-3140: the field took the place of `TZ=`, which only worked because the library reads it.
    zoned(fields, false, faults);
}

/// `TZ` in a schedule is allowed only if the old schedule had it.
fn validate_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    zoned(new, text(spec(old), "schedule").contains("TZ"), faults);
}

fn zoned(fields: &Fields, before: bool, faults: &mut Faults) {
    let schedule = get(spec(fields), "schedule");
    if !before
        && schedule
            .as_str()
            .is_some_and(|schedule| schedule.contains("TZ"))
    {
        let words = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        let at = FieldPath::root("spec");
        faults.invalid(&at.field("schedule"), schedule, words);
    }
}

/// Validates the name of a zone in the IANA time zone database.
fn time_zone(value: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    let name = value.as_str().unwrap_or_default();
    if name.is_empty() {
        faults.invalid(at, value, "timeZone must be nil or non-empty string");
        return;
    }
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'+');
    let part = |part: &str| {
        !matches!(part, "." | "..")
            && !part.starts_with('-')
            && (1..=14).contains(&part.len())
            && part.bytes().all(fits)
    };
    if !name.split('/').all(part) {
        faults.invalid(at, value, Fault::Zone(name.to_owned()));
        return;
    }
    // Go takes it for the server's own zone, which another server need not have.
    if name.eq_ignore_ascii_case("local") {
        let words =
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        faults.invalid(at, value, words);
    }
    if let Err(fault) = master_cron::time_zone(name) {
        faults.invalid(at, value, fault);
    }
}
