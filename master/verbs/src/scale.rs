//! The scale subresource: an object's number of replicas as an `autoscaling/v1 Scale`.

use super::answer::{Answer, value_answer};
use super::call::Call;
use super::managed::Ownership;
use super::writer::ObjectWriter;
use super::{patch, update};
use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use master_client::Body;
use master_merge::patch::Patch;
use master_merge::scale::SCALE;
use master_schema::error::{ApiError, Reason, no_resource};
use master_schema::object::metadata;
use master_schema::registry::{Kind, Scale, Subresource};
use master_schema::validate::{Faults, FieldPath, Fields, get};
use master_store::Entry;
use master_wire::path::Verb;
use master_wire::table::{self, Include};
use master_wire::{Accept, Form};
use serde_json::{Map, Value, json};

/// Attempts of a write without a resource version, as other writers may change the object.
const TRIES: usize = 16;

/// Answers any verb of the subresource.
pub(super) async fn run(call: &Call, writer: &ObjectWriter<'_>, content: Body) -> Answer {
    let places = call.kind.scale.as_ref().ok_or_else(no_resource)?;
    let verb = call.target.verb;
    if verb == Verb::Get {
        let entry = call.entry(writer.reader).await?;
        return answer(
            call,
            &show(
                places,
                &master_objects::decode_without_managed(&call.kind, &entry)?,
            ),
        );
    }
    let bytes = call.bytes(content).await?;
    for _ in 0..TRIES {
        let entry = call.entry(writer.reader).await?;
        let mut old = master_objects::decode_for_update(&call.kind, &entry)?;
        let live = master_objects::take_managed(&mut old);
        let before = fields(show(places, &old));
        let (wanted, managed) = wanted(call, &bytes, live.as_deref(), &before)?;
        let replicas = check(call, &entry, &old, &wanted)?;
        let mut new = old.clone();
        put(&mut new, &places.replicas, replicas.into());
        master_objects::put_managed(&mut old, live);
        let demanded = wanted
            .pointer("/metadata/resourceVersion")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let (plain, scale) = (call.plain(), Some(Subresource::Scale));
        let ownership = Ownership::Applied(managed);
        match update::write(&plain, writer, scale, &entry, old, new, &ownership).await? {
            Some(response) => return answer(call, &show(places, &written(response).await?)),
            None if verb == Verb::Patch || matches!(demanded, "" | "0") => {}
            None => return Err(call.conflict(update::MODIFIED)),
        }
    }
    Err(call.conflict(update::MODIFIED))
}

/// The requested scale, and the object's managed fields with it.
fn wanted(
    call: &Call,
    bytes: &Bytes,
    live: Option<&str>,
    before: &Fields,
) -> Result<(Value, Option<String>), ApiError> {
    if call.target.verb == Verb::Patch && call.content_type() == patch::APPLY {
        let (config, _) = patch::configuration(call, bytes, SCALE, "Scale")?;
        let (scale, managed) = call.scale_applied(live, before, &config)?;
        return Ok((Value::Object(scale), managed));
    }
    let after = if call.target.verb == Verb::Patch {
        let (patch, _) = Patch::parse(call.content_type(), bytes, true)?;
        let place = call.registry.schemas().place("");
        patch.apply(before.clone(), place)?
    } else {
        fields(call.decode(bytes)?.value)
    };
    let managed = call.scale_managed_fields(live, before, &after)?;
    Ok((Value::Object(after), managed))
}

/// The old object with the new one's number of replicas.
pub(super) fn compose(kind: &Kind, old: &Fields, new: &Fields) -> Fields {
    let mut result = old.clone();
    if let Some(places) = &kind.scale {
        put(&mut result, &places.replicas, at(new, &places.replicas));
    }
    result
}

/// The value at a JSON pointer of an object.
fn at(object: &Fields, pointer: &str) -> Value {
    let pointer = pointer.trim_start_matches('/');
    match pointer.split_once('/') {
        Some((first, rest)) => get(object, first)
            .pointer(&format!("/{rest}"))
            .cloned()
            .unwrap_or_default(),
        None => get(object, pointer).clone(),
    }
}

fn fields(value: Value) -> Fields {
    match value {
        Value::Object(fields) => fields,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    }
}

/// The object in the answer to a write.
async fn written(response: Response<Body>) -> Result<Fields, ApiError> {
    let unreadable = |error: &dyn std::fmt::Display| {
        ApiError::new(
            Reason::InternalError,
            format!("the scaled object cannot be read: {error}"),
        )
    };
    let bytes = response
        .into_body()
        .collect()
        .await
        .map_err(|error| unreadable(&error))?
        .to_bytes();
    serde_json::from_slice(&bytes).map_err(|error| unreadable(&error))
}

/// The scale of an object.
fn show(places: &Scale, object: &Fields) -> Value {
    let number = |pointer: &str| at(object, pointer).as_i64().unwrap_or_default();
    let mut about = Map::new();
    for key in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
    ] {
        if let Some(value) = metadata(object).get(key) {
            about.insert(key.to_owned(), value.clone());
        }
    }
    let mut status = json!({"replicas": number(&places.observed)});
    if let Some(text) = master_schema::selector::label_text(&at(object, &places.selector))
        .filter(|text| !text.is_empty())
    {
        status["selector"] = text.into();
    }
    let mut scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": about, "spec": {}, "status": status,
    });
    // A number of 0 is left out, as upstream does.
    if number(&places.replicas) != 0 {
        scale["spec"]["replicas"] = number(&places.replicas).into();
    }
    scale
}

/// Validates a scale of this object and returns the requested number of replicas.
fn check(call: &Call, entry: &Entry, old: &Fields, wanted: &Value) -> Result<i64, ApiError> {
    let word = |pointer: &str| {
        wanted
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let bad = |text: String| Err(ApiError::new(Reason::BadRequest, text));
    if !matches!(
        (word("/apiVersion"), word("/kind")),
        ("" | "autoscaling/v1", "" | "Scale")
    ) {
        return bad(format!(
            "expected input object type to be Scale, but {} was given",
            word("/kind")
        ));
    }
    let name = word("/metadata/name");
    if !name.is_empty() {
        call.check_name(name)?;
    }
    let (version, uid) = (word("/metadata/resourceVersion"), word("/metadata/uid"));
    update::check_preconditions(call, entry, old, version, uid)?;
    let replicas = wanted.pointer("/spec/replicas").unwrap_or(&Value::Null);
    let number = if replicas.is_null() {
        Some(0)
    } else {
        replicas.as_i64()
    };
    let Some(number) = number.filter(|number| i32::try_from(*number).is_ok()) else {
        return bad(format!(
            "Scale in version \"v1\" cannot be handled as a Scale: spec.replicas: expected int32, found {replicas}"
        ));
    };
    let mut faults = Faults::default();
    if number < 0 {
        let detail = "must be greater than or equal to 0";
        faults.invalid(&FieldPath::root("spec").field("replicas"), replicas, detail);
    }
    faults.into_error("autoscaling", "Scale", &call.target.name)?;
    Ok(number)
}

/// Sets a value at a JSON pointer and creates objects on the way.
fn put(object: &mut Fields, pointer: &str, value: Value) {
    let Some((first, rest)) = pointer.trim_start_matches('/').split_once('/') else {
        object.insert(pointer.trim_start_matches('/').to_owned(), value);
        return;
    };
    if let Some(inner) = master_schema::validate::object_mut(object, first) {
        put(inner, rest, value);
    }
}

/// The answer in the form that the client accepts.
fn answer(call: &Call, scale: &Value) -> Answer {
    let accept = call.accept()?;
    let about = scale.get("metadata").cloned().unwrap_or_default();
    let shaped = match accept.form {
        Form::Object | Form::PartialList(_) => scale.clone(),
        Form::Partial(version) => {
            json!({"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": about})
        }
        Form::Table(version) => {
            let object = match Include::of(call.query.get("includeObject"))? {
                Include::Nothing => Value::Null,
                Include::Metadata => table::partial(&fields(scale.clone()), version),
                Include::Object => scale.clone(),
            };
            table_of(scale, version, &object, call.clock.now())
        }
    };
    value_answer(
        StatusCode::OK,
        &shaped,
        Accept {
            form: Form::Object,
            ..accept
        },
    )
}

fn table_of(scale: &Value, version: &str, object: &Value, now: jiff::Timestamp) -> Value {
    let column = |name: &str, kind: &str| {
        json!({
            "name": name, "type": kind, "format": "", "priority": 0, "description": format!("{name} of the Scale."),
        })
    };
    let at = |pointer: &str| scale.pointer(pointer).cloned().unwrap_or_default();
    let created = at("/metadata/creationTimestamp");
    let age = master_schema::cells::since(created.as_str().unwrap_or_default(), now);
    json!({
        "kind": "Table", "apiVersion": version,
        "metadata": {"resourceVersion": at("/metadata/resourceVersion")},
        "columnDefinitions": [
            column("Name", "string"), column("Desired", "integer"), column("Available", "integer"),
            column("Age", "string"),
        ],
        "rows": [{
            "cells": [
                at("/metadata/name"), at("/spec/replicas").as_i64().unwrap_or_default(), at("/status/replicas"), age,
            ],
            "object": object,
        }],
    })
}
