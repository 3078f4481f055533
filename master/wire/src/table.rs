//! Other representations of objects: tables, and metadata alone.

use jiff::Timestamp;
use master_schema::error::{ApiError, Reason, shown};
use master_schema::registry::{Column, Kind};
use master_schema::validate::Fields;
use serde_json::{Value, json};

/// Column definitions of a kind.
pub fn columns(kind: &Kind) -> Value {
    let mut columns = Vec::new();
    if kind.named {
        columns.push(json!({
            "name": "Name", "type": "string", "format": "name", "priority": 0,
            "description": "Name must be unique within a namespace. Is required when creating resources.",
        }));
    }
    columns.extend(kind.columns.iter().map(|column: &Column| {
        let format = if column.name == "Name" { "name" } else { "" };
        json!({
            "name": column.name, "type": column.kind, "format": format, "priority": column.priority,
            "description": format!("{} of the {}.", column.name, kind.kind),
        })
    }));
    Value::Array(columns)
}

/// What a row contains of its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    /// Only the cells.
    Nothing,
    /// Its metadata.
    Metadata,
    /// The whole object.
    Object,
}

impl Include {
    /// Reads the query parameter `includeObject`.
    ///
    /// # Errors
    /// It is another text than the three that upstream knows.
    pub fn of(parameter: &str) -> Result<Self, ApiError> {
        match parameter {
            "" | "Metadata" => Ok(Self::Metadata),
            "None" => Ok(Self::Nothing),
            "Object" => Ok(Self::Object),
            other => Err(ApiError::new(
                Reason::BadRequest,
                format!(
                    "Unable to convert to Table as requested: includeObject: Invalid value: {:?}: must be \
                     'Metadata', 'Object', 'None', or empty",
                    shown(other)
                ),
            )),
        }
    }
}

/// How a table is made.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// `meta.k8s.io/v1` or `v1beta1`.
    pub version: &'static str,
    /// What a row contains of its object.
    pub include: Include,
    /// Whether column definitions are included; later events of a watch leave them out.
    pub headings: bool,
}

/// The cells of an object's row; ages are those at `now`.
pub fn cells(kind: &Kind, fields: &Fields, now: Timestamp) -> Vec<Value> {
    let mut cells = Vec::with_capacity(kind.columns.len() + 1);
    if kind.named {
        cells.push(Value::String(
            master_schema::object::meta_text(fields, "name").to_owned(),
        ));
    }
    cells.extend(
        kind.columns
            .iter()
            .map(|column| column.cell.value(fields, now)),
    );
    cells
}

/// PartialObjectMetadata of an object.
pub fn partial(fields: &Fields, version: &str) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": version,
        "metadata": fields.get("metadata").cloned().unwrap_or_default(),
    })
}

/// A table of objects with a list's metadata.
///
/// # Errors
/// As the iterator of objects; a table itself can always be made.
pub fn table(
    kind: &Kind,
    style: Style,
    objects: impl IntoIterator<Item = Result<Fields, ApiError>>,
    metadata: &Value,
) -> Result<Value, ApiError> {
    let now = Timestamp::now();
    let rows = objects.into_iter();
    let rows = rows.map(|fields| Ok(row(kind, style, fields?, now)));
    let rows = rows.collect::<Result<Vec<_>, ApiError>>()?;
    Ok(with_rows(kind, style, rows, metadata))
}

/// An object's row of a table; ages are those at `now`.
pub fn row(kind: &Kind, style: Style, fields: Fields, now: Timestamp) -> Value {
    let cells = cells(kind, &fields, now);
    let object = match style.include {
        Include::Nothing => Value::Null,
        Include::Metadata => partial(&fields, style.version),
        Include::Object => Value::Object(fields),
    };
    json!({ "cells": cells, "object": object })
}

/// A table of rows ([`row`]) with a list's metadata.
pub fn with_rows(kind: &Kind, style: Style, rows: Vec<Value>, metadata: &Value) -> Value {
    let columns = if style.headings {
        columns(kind)
    } else {
        Value::Null
    };
    let mut table = json!({
        "kind": "Table", "apiVersion": style.version, "metadata": metadata, "columnDefinitions": columns,
        "rows": [],
    });
    // Moved: `json!` would copy them.
    table["rows"] = Value::Array(rows);
    table
}
