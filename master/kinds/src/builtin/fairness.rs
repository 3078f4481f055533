//! FlowSchemas and PriorityLevelConfigurations.

use super::fairness_validate as rules;
use config_kube::k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use master_schema::cells::{AGE, at};
use master_schema::registry::{Kind, Strategy, Subresource, column, integer};
use master_schema::validate::{Fields, items, object};
use serde_json::Value;

pub(super) fn schema() -> Kind {
    Kind {
        subresources: vec![Subresource::Status],
        columns: vec![
            column("PriorityLevel", |fields, _| {
                at(fields, "spec", "/priorityLevelConfiguration/name").into()
            }),
            integer("MatchingPrecedence", |fields, _| {
                value(fields, "/spec/matchingPrecedence")
            }),
            column("DistinguisherMethod", |fields, _| {
                at(fields, "spec", "/distinguisherMethod/type").into()
            }),
            AGE,
            column("MissingPL", |fields, _| missing(fields).into()),
        ],
        strategy: Strategy {
            defaults: rules::schema_defaults,
            validate: rules::schema,
            validate_through: |_, new, _, faults| rules::status(new, faults),
            generation: true,
            status_carries_metadata: false,
            ..Strategy::default()
        },
        ..Kind::of::<FlowSchema>(false)
    }
}

fn value(fields: &Fields, pointer: &str) -> Value {
    let below = pointer.split('/').skip(2);
    let mut found = fields.get(pointer.split('/').nth(1).unwrap_or_default());
    for step in below {
        found = found.and_then(|value| value.get(step));
    }
    found.cloned().unwrap_or_else(|| "<none>".into())
}

/// The status of the condition `Dangling`.
fn missing(fields: &Fields) -> &str {
    let conditions = object(fields, "status").map_or(&[][..], |status| items(status, "conditions"));
    let dangling = conditions
        .iter()
        .find(|condition| condition["type"] == "Dangling");
    dangling
        .and_then(|condition| condition["status"].as_str())
        .unwrap_or("?")
}

pub(super) fn level() -> Kind {
    Kind {
        subresources: vec![Subresource::Status],
        columns: vec![
            column("Type", |fields, _| at(fields, "spec", "/type").into()),
            integer("NominalConcurrencyShares", |fields, _| shares(fields)),
            integer("Queues", |fields, _| {
                value(fields, "/spec/limited/limitResponse/queuing/queues")
            }),
            integer("HandSize", |fields, _| {
                value(fields, "/spec/limited/limitResponse/queuing/handSize")
            }),
            integer("QueueLengthLimit", |fields, _| {
                value(
                    fields,
                    "/spec/limited/limitResponse/queuing/queueLengthLimit",
                )
            }),
            AGE,
        ],
        strategy: Strategy {
            defaults: rules::level_defaults,
            validate: rules::level,
            validate_through: |_, new, _, faults| rules::status(new, faults),
            generation: true,
            status_carries_metadata: false,
            ..Strategy::default()
        },
        ..Kind::of::<PriorityLevelConfiguration>(false)
    }
}

fn shares(fields: &Fields) -> Value {
    let limited = value(fields, "/spec/limited/nominalConcurrencyShares");
    if limited.is_number() {
        limited
    } else {
        value(fields, "/spec/exempt/nominalConcurrencyShares")
    }
}
