//! Answers in other forms: tables and metadata alone.

use crate::error::ApiError;
use crate::object;
use crate::path::Query;
use crate::registry::{Column, Kind};
use crate::validate::Fields;
use jiff::Timestamp;
use master_store::Entry;
use serde_json::{Value, json};

/// Column definitions of a kind.
fn columns(kind: &Kind) -> Value {
    let mut columns = Vec::new();
    if kind.named {
        columns.push(json!({
            "name": "Name", "type": "string", "format": "name", "priority": 0,
            "description": "Name must be unique within a namespace. Is required when creating resources.",
        }));
    }
    columns.extend(kind.columns.iter().map(|column: &Column| {
        json!({
            "name": column.name, "type": column.kind, "format": "", "priority": column.priority,
            "description": format!("{} of the {}.", column.name, kind.kind),
        })
    }));
    Value::Array(columns)
}

/// The object of a row, as `includeObject` asks.
fn row_object(query: &Query, fields: &Fields) -> Option<Value> {
    match query.get("includeObject") {
        "None" => None,
        "Object" => Some(Value::Object(fields.clone())),
        _ => Some(partial(fields)),
    }
}

/// Metadata alone.
pub(crate) fn partial(fields: &Fields) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": fields.get("metadata").cloned().unwrap_or_default(),
    })
}

/// A table of entries with a list's metadata.
pub(crate) fn table(kind: &Kind, entries: &[Entry], metadata: &Value, query: &Query) -> Result<Value, ApiError> {
    let now = Timestamp::now();
    let mut rows = Vec::with_capacity(entries.len());
    for entry in entries {
        let fields = object::decode(kind, entry)?;
        let mut cells = Vec::with_capacity(kind.columns.len() + 1);
        if kind.named {
            cells.push(Value::String(object::meta_text(&fields, "name").to_owned()));
        }
        cells.extend(kind.columns.iter().map(|column| (column.cell)(&fields, now)));
        let mut row = json!({ "cells": cells });
        if let Some(object) = row_object(query, &fields) {
            row["object"] = object;
        }
        rows.push(row);
    }
    Ok(json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": columns(kind), "rows": rows,
    }))
}
