//! Events: one table, served as `v1` and, with other field names, as `events.k8s.io/v1`.

use super::event_validate as rules;
use config_kube::k8s_openapi::api::{core, events};
use jiff::Timestamp;
use master_schema::cells::since;
use master_schema::registry::{Column, Kind, Strategy, column, renamed, selectable, wide, words};
use master_schema::validate::{Fields, get, object, text};
use serde_json::Value;

pub(super) fn core() -> Kind {
    Kind {
        short_names: words(&["ev"]),
        named: false,
        columns: COLUMNS.to_vec(),
        selectable: vec![
            selectable("involvedObject.kind", "/involvedObject/kind"),
            selectable("involvedObject.namespace", "/involvedObject/namespace"),
            selectable("involvedObject.name", "/involvedObject/name"),
            selectable("involvedObject.uid", "/involvedObject/uid"),
            selectable("involvedObject.apiVersion", "/involvedObject/apiVersion"),
            selectable(
                "involvedObject.resourceVersion",
                "/involvedObject/resourceVersion",
            ),
            selectable("involvedObject.fieldPath", "/involvedObject/fieldPath"),
            selectable("reason", "/reason"),
            selectable("reportingComponent", "/reportingComponent"),
            // Newer reporters set no `source`: upstream's selector then takes the controller's
            // name.
            selectable("source", "/source/component").or("/reportingComponent"),
            selectable("type", "/type"),
        ],
        strategy: Strategy {
            validate: rules::legacy,
            // A reporter counts up an event that may have expired since: the update makes it anew.
            made_by_update: true,
            ..Strategy::default()
        },
        ..Kind::of::<core::v1::Event>(true)
    }
}

pub(super) fn events() -> Kind {
    Kind {
        short_names: words(&["ev"]),
        table: "events".to_owned(),
        named: false,
        columns: COLUMNS.to_vec(),
        selectable: vec![
            selectable("regarding.kind", "/involvedObject/kind"),
            selectable("regarding.namespace", "/involvedObject/namespace"),
            selectable("regarding.name", "/involvedObject/name"),
            selectable("regarding.uid", "/involvedObject/uid"),
            selectable("regarding.apiVersion", "/involvedObject/apiVersion"),
            selectable(
                "regarding.resourceVersion",
                "/involvedObject/resourceVersion",
            ),
            selectable("regarding.fieldPath", "/involvedObject/fieldPath"),
            selectable("reason", "/reason"),
            selectable("reportingController", "/reportingComponent"),
            selectable("type", "/type"),
        ],
        renames: vec![
            renamed("regarding", "involvedObject"),
            renamed("note", "message"),
            renamed("reportingController", "reportingComponent"),
            renamed("deprecatedSource", "source"),
            renamed("deprecatedFirstTimestamp", "firstTimestamp"),
            renamed("deprecatedLastTimestamp", "lastTimestamp"),
            renamed("deprecatedCount", "count"),
        ],
        strategy: Strategy {
            validate: rules::legacy,
            validate_create: rules::create,
            validate_update: rules::change,
            made_by_update: true,
            ..Strategy::default()
        },
        ..Kind::of::<events::v1::Event>(true)
    }
}

/// Cells read either form.
const COLUMNS: &[Column] = &[
    column("Last Seen", |fields, now| last_seen(fields, now).into()),
    column("Type", |fields, _| text(fields, "type").into()),
    column("Reason", |fields, _| text(fields, "reason").into()),
    column("Object", |fields, _| subject(fields).into()),
    wide("Subobject", |fields, _| {
        text(about(fields), "fieldPath").into()
    }),
    wide("Source", |fields, _| source(fields).into()),
    column("Message", |fields, _| {
        either(fields, "message", "note").trim().into()
    }),
    wide("First Seen", |fields, now| {
        since(first_time(fields), now).into()
    }),
    wide("Count", |fields, _| count(fields)),
    wide("Name", |fields, _| {
        master_schema::object::meta_text(fields, "name").into()
    }),
];

/// The first of two fields that is not empty.
pub(super) fn either<'a>(fields: &'a Fields, one: &str, other: &str) -> &'a str {
    match text(fields, one) {
        "" => text(fields, other),
        found => found,
    }
}

/// The object that an event is about.
pub(super) fn about(fields: &Fields) -> &Fields {
    static EMPTY: std::sync::LazyLock<Fields> = std::sync::LazyLock::new(Fields::new);
    object(fields, "involvedObject")
        .or_else(|| object(fields, "regarding"))
        .unwrap_or(&EMPTY)
}

fn subject(fields: &Fields) -> String {
    let about = about(fields);
    format!(
        "{}/{}",
        text(about, "kind").to_lowercase(),
        text(about, "name")
    )
}

fn first_time(fields: &Fields) -> &str {
    match either(fields, "firstTimestamp", "deprecatedFirstTimestamp") {
        "" => text(fields, "eventTime"),
        found => found,
    }
}

fn last_seen(fields: &Fields, now: Timestamp) -> String {
    let last = object(fields, "series").map_or("", |series| text(series, "lastObservedTime"));
    let last = if last.is_empty() {
        either(fields, "lastTimestamp", "deprecatedLastTimestamp")
    } else {
        last
    };
    since(
        if last.is_empty() {
            first_time(fields)
        } else {
            last
        },
        now,
    )
}

fn source(fields: &Fields) -> String {
    let source = object(fields, "source").or_else(|| object(fields, "deprecatedSource"));
    let part = |key: &str| source.map_or("", |source| text(source, key));
    let component = match part("component") {
        "" => either(fields, "reportingComponent", "reportingController"),
        component => component,
    };
    match part("host") {
        "" => component.to_owned(),
        host => format!("{component}, {host}"),
    }
}

fn count(fields: &Fields) -> Value {
    // A series counts for itself; the other fields are of older reporters.
    if let Some(series) = object(fields, "series") {
        return get(series, "count").clone();
    }
    fields
        .get("count")
        .unwrap_or(get(fields, "deprecatedCount"))
        .clone()
}
