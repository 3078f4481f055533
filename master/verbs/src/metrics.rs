//! NodeMetrics and PodMetrics: computed for each request from the stored Nodes and Pods, and from
//! the usage that their nodes report.

use super::answer::Answer;
use super::call::{Call, stored};
use super::read::matches;
use super::turns::Turns;
use http::StatusCode;
use master_objects::store_error;
use master_schema::error::{ApiError, Reason, no_resource, shown};
use master_schema::validate::Fields;
use master_store::{ListQuery, Reader};
use master_usage::Usage;
use master_wire::path::{Verb, not_allowed};

/// Answers for one node or pod, or for all that are selected.
pub(super) async fn read(call: &Call, reader: &dyn Reader, usage: &Usage) -> Answer {
    let target = &call.target;
    let measured = call.registry.find("", "v1", &target.plural);
    let measured = measured.ok_or_else(no_resource)?;
    let made = |of: &Fields| {
        if measured.namespaced {
            usage.of_pod(of)
        } else {
            usage.of_node(of)
        }
    };
    match target.verb {
        Verb::Get => {
            let key = measured.key(&target.namespace, &target.name);
            let stored = stored(reader, &key).await?;
            let stored =
                stored.map(|entry| master_objects::decode_without_managed(measured, &entry));
            let found = stored.transpose()?.as_ref().and_then(made);
            let fields = found.ok_or_else(|| unknown(call))?;
            call.fields_answer(StatusCode::OK, fields)
        }
        Verb::List => {
            let selector = call.selector()?;
            let query = ListQuery {
                prefix: measured.prefix(&target.namespace),
                ..ListQuery::default()
            };
            let listing = reader.list(query).await.map_err(store_error)?;
            let (mut items, mut turns) = (Vec::new(), Turns::of(&call.user.name));
            for entry in &listing.entries {
                turns.hold(entry.value.len()).await;
                if matches(entry, &selector)? {
                    items.extend(made(&master_objects::decode_without_managed(
                        measured, entry,
                    )?));
                }
            }
            call.made_list(items)
        }
        Verb::Watch
        | Verb::Create
        | Verb::Update
        | Verb::Patch
        | Verb::Delete
        | Verb::DeleteCollection => Err(not_allowed()),
    }
}

/// The error that the usage is not known, in the words of upstream's metrics server.
fn unknown(call: &Call) -> ApiError {
    let (group, kind) = (&call.kind.group, call.kind.kind.to_lowercase());
    let (namespace, name) = (&call.target.namespace, &call.target.name);
    let name = if namespace.is_empty() {
        name.clone()
    } else {
        format!("{namespace}/{name}")
    };
    let name = shown(&name);
    let text = format!("{kind}.{group} {name:?} not found");
    ApiError::new(Reason::NotFound, text).about(group, &kind, &name)
}
