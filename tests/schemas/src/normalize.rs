//! Converts the generator's JSON schema to the OpenAPI v3 form that upstream serves.

use crate::{DEFINITIONS, merge};
use serde_json::{Map, Value, json};

/// Kinds of this project have short names in the generator; upstream's are complete.
pub(crate) fn full_name(name: &str) -> String {
    if name.contains('.') {
        name.to_owned()
    } else {
        format!("dev.pratique.v1alpha1.{name}")
    }
}

pub(crate) fn definitions(generated: Map<String, Value>) -> Map<String, Value> {
    let named = generated.into_iter().map(|(name, schema)| {
        let mut schema = definition(&name, schema);
        if let Some(fields) = schema.as_object_mut() {
            merge::extend(&name, fields);
        }
        (full_name(&name), schema)
    });
    named.collect()
}

fn definition(name: &str, mut schema: Value) -> Value {
    if name.ends_with(".api.resource.Quantity") {
        let description = schema.get("description").cloned().unwrap_or_default();
        return json!({"description": description, "oneOf": [{"type": "string"}, {"type": "number"}]});
    }
    if name.ends_with(".intstr.IntOrString") {
        let description = schema.get("description").cloned().unwrap_or_default();
        return json!({
            "description": description, "format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}],
        });
    }
    normalize(&mut schema);
    schema
}

fn normalize(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else {
        return;
    };
    fields.remove("$schema");
    fields.remove("title");
    strip_null(fields);
    if let Some(Value::String(target)) = fields.remove("$ref") {
        let name = full_name(target.strip_prefix(DEFINITIONS).unwrap_or(&target));
        fields.insert(
            "allOf".to_owned(),
            json!([{"$ref": format!("{DEFINITIONS}{name}")}]),
        );
        return;
    }
    constants(fields);
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(key) {
            normalize(inner);
        }
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(normalize);
    }
}

/// `null` means absent and is never a value of its own.
fn strip_null(fields: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = fields.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            fields.insert("type".to_owned(), only);
        }
    }
    let null = json!({"type": "null"});
    if let Some(Value::Array(forms)) = fields.get("anyOf")
        && let [form, other] = forms.as_slice()
        && *other == null
        && let Some(form) = form.as_object().cloned()
    {
        fields.remove("anyOf");
        for (key, value) in form {
            fields.entry(key).or_insert(value);
        }
    }
}

/// An enumeration with a description per variant becomes a plain one.
fn constants(fields: &mut Map<String, Value>) {
    let Some(Value::Array(forms)) = fields.get("oneOf") else {
        return;
    };
    let mut values = Vec::new();
    for form in forms {
        if let Some(value) = form.get("const") {
            values.push(value.clone());
        } else if let Some(Value::Array(several)) = form.get("enum") {
            values.extend(several.iter().cloned());
        } else {
            return;
        }
    }
    fields.remove("oneOf");
    fields.insert("type".to_owned(), json!("string"));
    fields.insert("enum".to_owned(), Value::Array(values));
}
