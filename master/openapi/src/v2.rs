//! The OpenAPI v2 document, for older clients: the same schemas and paths in the older form.

use crate::v3;
use master_schema::registry::Registry;
use master_schema::schema::DEFINITIONS;
use serde_json::{Map, Value, json};

/// Where v2 keeps definitions.
const OLDER: &str = "#/definitions/";

/// The document.
pub(crate) fn document(registry: &Registry) -> Value {
    let (mut definitions, mut paths) = (Map::new(), Map::new());
    for (_, mut document) in v3::documents(registry) {
        if let Some(Value::Object(schemas)) =
            document.pointer_mut("/components/schemas").map(Value::take)
        {
            for (name, mut schema) in schemas {
                older_schema(&mut schema);
                definitions.insert(name, schema);
            }
        }
        if let Some(Value::Object(methods)) = document.get_mut("paths").map(Value::take) {
            paths.extend(
                methods
                    .into_iter()
                    .map(|(path, methods)| (path, older_methods(methods))),
            );
        }
    }
    json!({
        "swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1.36.0+pratique"},
        "paths": paths, "definitions": definitions,
    })
}

/// Rewrites references for v2 and removes the wrapping that v3 needs; numbers that may be strings
/// become strings.
fn older_schema(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(older_schema),
        Value::Object(fields) => {
            let wrapped = fields
                .get("allOf")
                .and_then(|all| all.pointer("/0/$ref"))
                .cloned();
            if let Some(reference) = wrapped {
                fields.remove("allOf");
                fields.remove("default");
                fields.insert("$ref".to_owned(), reference);
            }
            if fields.remove("oneOf").is_some() {
                fields.insert("type".to_owned(), "string".into());
            }
            if let Some(Value::String(reference)) = fields.get_mut("$ref")
                && let Some(name) = reference.strip_prefix(DEFINITIONS)
            {
                *reference = format!("{OLDER}{name}");
            }
            fields.values_mut().for_each(older_schema);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn older_methods(methods: Value) -> Value {
    let Value::Object(methods) = methods else {
        return Value::Null;
    };
    let converted = methods.into_iter().map(|(method, value)| {
        let value = if let Value::Array(parameters) = value {
            Value::Array(parameters.into_iter().map(older_parameter).collect())
        } else {
            older_operation(value)
        };
        (method, value)
    });
    Value::Object(converted.collect())
}

/// In v2, a parameter's schema is part of the parameter.
fn older_parameter(parameter: Value) -> Value {
    let Value::Object(mut parameter) = parameter else {
        return Value::Null;
    };
    if let Some(Value::Object(schema)) = parameter.remove("schema") {
        parameter.extend(schema);
    }
    Value::Object(parameter)
}

/// In v2, the body is a parameter, and media types are a list of their own.
fn older_operation(operation: Value) -> Value {
    let Value::Object(mut operation) = operation else {
        return Value::Null;
    };
    let mut parameters: Vec<Value> = match operation.remove("parameters") {
        Some(Value::Array(parameters)) => parameters.into_iter().map(older_parameter).collect(),
        Some(_) | None => Vec::new(),
    };
    if let Some(request) = operation.remove("requestBody") {
        let content = request
            .get("content")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        let forms: Vec<&String> = content.keys().collect();
        operation.insert("consumes".to_owned(), json!(forms));
        if let Some(mut schema) = content
            .values()
            .next()
            .and_then(|form| form.get("schema"))
            .cloned()
        {
            older_schema(&mut schema);
            let required = request
                .get("required")
                .cloned()
                .unwrap_or(Value::Bool(false));
            parameters.push(
                json!({"name": "body", "in": "body", "required": required, "schema": schema}),
            );
        }
    }
    operation.insert(
        "produces".to_owned(),
        json!(["application/json", "application/yaml"]),
    );
    operation.insert("schemes".to_owned(), json!(["https"]));
    if let Some(Value::Object(responses)) = operation.get_mut("responses") {
        for response in responses.values_mut().filter_map(Value::as_object_mut) {
            let content = response.remove("content");
            let schema = content
                .and_then(|content| content.as_object()?.values().next()?.get("schema").cloned());
            if let Some(mut schema) = schema {
                older_schema(&mut schema);
                response.insert("schema".to_owned(), schema);
            }
        }
    }
    if !parameters.is_empty() {
        operation.insert("parameters".to_owned(), Value::Array(parameters));
    }
    Value::Object(operation)
}
