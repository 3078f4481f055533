//! OpenAPI v2 in protobuf (`openapi.v2.Document` of gnostic's models): clients of older releases
//! accept nothing else.

use serde_json::{Map, Value};

/// Field numbers of the operations in a path's item.
const METHODS: [(&str, u64); 7] = [
    ("get", 2),
    ("put", 3),
    ("post", 4),
    ("delete", 5),
    ("options", 6),
    ("head", 7),
    ("patch", 8),
];

/// A message being written; empty fields are omitted, as the encoding prescribes.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0
                .push(u8::try_from(number & 0x7f).unwrap_or_default() | 0x80);
            number >>= 7;
        }
        self.0.push(u8::try_from(number).unwrap_or_default());
    }

    fn bytes(&mut self, number: u64, bytes: &[u8]) {
        self.varint(number << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn inner(&mut self, number: u64, inner: &Self) {
        self.bytes(number, &inner.0);
    }

    fn text(&mut self, number: u64, value: Option<&Value>) {
        if let Some(text) = value
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
        {
            self.bytes(number, text.as_bytes());
        }
    }

    fn texts(&mut self, number: u64, value: Option<&Value>) {
        for item in value.and_then(Value::as_array).into_iter().flatten() {
            self.bytes(number, item.as_str().unwrap_or_default().as_bytes());
        }
    }

    fn flag(&mut self, number: u64, value: Option<&Value>) {
        if value.and_then(Value::as_bool) == Some(true) {
            self.varint(number << 3);
            self.varint(1);
        }
    }

    /// Any value: encoded as YAML, of which JSON is a subset.
    fn any(&mut self, number: u64, value: Option<&Value>) {
        if let Some(value) = value {
            let mut any = Self::default();
            any.bytes(2, value.to_string().as_bytes());
            self.inner(number, &any);
        }
    }

    /// An entry of a map: name and value.
    fn entry(&mut self, number: u64, name: &str, value: &Self) {
        let mut entry = Self::default();
        entry.bytes(1, name.as_bytes());
        entry.inner(2, value);
        self.inner(number, &entry);
    }

    /// Kubernetes' extensions, which begin with `x-`.
    fn extensions(&mut self, number: u64, fields: &Map<String, Value>) {
        for (name, value) in fields.iter().filter(|(name, _)| name.starts_with("x-")) {
            let (mut any, mut entry) = (Self::default(), Self::default());
            any.bytes(2, value.to_string().as_bytes());
            entry.bytes(1, name.as_bytes());
            entry.inner(2, &any);
            self.inner(number, &entry);
        }
    }

    /// A message of one field, for choices and wrappers.
    fn wrapping(number: u64, inner: &Self) -> Self {
        let mut outer = Self::default();
        outer.inner(number, inner);
        outer
    }
}

/// The whole document.
pub(crate) fn encode(document: &Value) -> Vec<u8> {
    let (mut out, mut info, mut paths, mut definitions) = (
        Message::default(),
        Message::default(),
        Message::default(),
        Message::default(),
    );
    out.text(1, document.get("swagger"));
    info.text(1, document.pointer("/info/title"));
    info.text(2, document.pointer("/info/version"));
    out.inner(2, &info);
    for (name, item) in fields(document.get("paths")) {
        paths.entry(2, name, &path(fields(Some(item))));
    }
    out.inner(8, &paths);
    for (name, definition) in fields(document.get("definitions")) {
        definitions.entry(1, name, &schema(fields(Some(definition))));
    }
    out.inner(9, &definitions);
    out.0
}

fn fields(value: Option<&Value>) -> &Map<String, Value> {
    static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    value.and_then(Value::as_object).unwrap_or(&EMPTY)
}

fn items<'a>(
    fields: &'a Map<String, Value>,
    key: &str,
) -> impl Iterator<Item = &'a Map<String, Value>> {
    fields
        .get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object)
}

fn path(item: &Map<String, Value>) -> Message {
    let mut out = Message::default();
    for (method, number) in METHODS {
        if let Some(Value::Object(found)) = item.get(method) {
            out.inner(number, &operation(found));
        }
    }
    for one in items(item, "parameters") {
        out.inner(9, &parameter(one));
    }
    out.extensions(10, item);
    out
}

fn operation(operation: &Map<String, Value>) -> Message {
    let mut out = Message::default();
    out.texts(1, operation.get("tags"));
    out.text(2, operation.get("summary"));
    out.text(3, operation.get("description"));
    out.text(5, operation.get("operationId"));
    out.texts(6, operation.get("produces"));
    out.texts(7, operation.get("consumes"));
    for one in items(operation, "parameters") {
        out.inner(8, &parameter(one));
    }
    let mut responses = Message::default();
    for (code, found) in fields(operation.get("responses")) {
        let (mut response, found) = (Message::default(), fields(Some(found)));
        response.text(1, found.get("description"));
        if let Some(Value::Object(body)) = found.get("schema") {
            response.inner(2, &Message::wrapping(1, &schema(body)));
        }
        responses.entry(1, code, &Message::wrapping(1, &response));
    }
    out.inner(9, &responses);
    out.texts(10, operation.get("schemes"));
    out.flag(11, operation.get("deprecated"));
    out.extensions(13, operation);
    out
}

/// A parameter, as an item of a list of parameters or references.
fn parameter(parameter: &Map<String, Value>) -> Message {
    let place = parameter
        .get("in")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let mut own = Message::default();
    if place == "body" {
        own.text(1, parameter.get("description"));
        own.text(2, parameter.get("name"));
        own.text(3, parameter.get("in"));
        own.flag(4, parameter.get("required"));
        own.inner(5, &schema(fields(parameter.get("schema"))));
        own.extensions(6, parameter);
        return Message::wrapping(1, &Message::wrapping(1, &own));
    }
    // Query parameters have one field more before their type than path and header parameters.
    let (choice, after) = match place {
        "header" => (1, 0),
        "query" => (3, 1),
        _ => (4, 0),
    };
    own.flag(1, parameter.get("required"));
    own.text(2, parameter.get("in"));
    own.text(3, parameter.get("description"));
    own.text(4, parameter.get("name"));
    own.text(5 + after, parameter.get("type"));
    own.text(6 + after, parameter.get("format"));
    own.flag(19 + after, parameter.get("uniqueItems"));
    own.extensions(22 + after, parameter);
    let other = Message::wrapping(choice, &own);
    Message::wrapping(1, &Message::wrapping(2, &other))
}

fn schema(schema: &Map<String, Value>) -> Message {
    let mut out = Message::default();
    out.text(1, schema.get("$ref"));
    out.text(2, schema.get("format"));
    out.text(3, schema.get("title"));
    out.text(4, schema.get("description"));
    out.any(5, schema.get("default"));
    out.text(12, schema.get("pattern"));
    out.flag(16, schema.get("uniqueItems"));
    out.texts(19, schema.get("required"));
    for value in schema
        .get("enum")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        out.any(20, Some(value));
    }
    match schema.get("additionalProperties") {
        Some(Value::Object(inner)) => out.inner(21, &Message::wrapping(1, &self::schema(inner))),
        Some(Value::Bool(true)) => out.bytes(21, &[2 << 3, 1]),
        Some(_) | None => {}
    }
    if let Some(kind) = schema.get("type").filter(|kind| kind.is_string()) {
        let mut list = Message::default();
        list.text(1, Some(kind));
        out.inner(22, &list);
    }
    if let Some(Value::Object(inner)) = schema.get("items") {
        out.inner(23, &Message::wrapping(1, &self::schema(inner)));
    }
    for one in items(schema, "allOf") {
        out.inner(24, &self::schema(one));
    }
    if let Some(Value::Object(properties)) = schema.get("properties") {
        let mut all = Message::default();
        for (name, inner) in properties {
            all.entry(1, name, &self::schema(fields(Some(inner))));
        }
        out.inner(25, &all);
    }
    out.flag(27, schema.get("readOnly"));
    out.extensions(31, schema);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The content of the fields that a path of field numbers leads to.
    fn at<'a>(message: &'a [u8], way: &[u64]) -> Vec<&'a [u8]> {
        let Some((first, rest)) = way.split_first() else {
            return vec![message];
        };
        let (mut found, mut left) = (Vec::new(), message);
        let varint = |left: &mut &[u8]| {
            let (mut number, mut shift) = (0_u64, 0);
            loop {
                let byte = left[0];
                *left = &left[1..];
                number |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 {
                    return number;
                }
            }
        };
        while !left.is_empty() {
            let tag = varint(&mut left);
            let length = varint(&mut left);
            if tag & 7 != 2 {
                continue;
            }
            let (content, after) = left.split_at(usize::try_from(length).unwrap());
            left = after;
            if tag >> 3 == *first {
                found.extend(at(content, rest));
            }
        }
        found
    }

    #[test]
    fn the_binary_form_equals_the_text_form() {
        let long = "d".repeat(300);
        let bytes = encode(&json!({
            "swagger": "2.0", "info": {"title": "t", "version": "v"},
            "paths": {"/a": {
                "get": {
                    "operationId": "readA", "x-kubernetes-action": "get",
                    "parameters": [{"name": "q", "in": "query", "type": "string"}, {
                        "name": "body", "in": "body", "schema": {"$ref": "#/definitions/A"},
                    }],
                    "responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/A"}}},
                },
                "parameters": [{"name": "p", "in": "path", "required": true, "type": "integer"}],
            }},
            "definitions": {"A": {"type": "object", "description": long, "required": ["b"], "properties": {
                "b": {"type": "array", "items": {"type": "string"}},
                "c": {"type": "object", "additionalProperties": {"type": "string", "default": ""}},
            }}},
        }));
        let text = |way: &[u64]| {
            at(&bytes, way)
                .into_iter()
                .map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(text(&[1]), ["2.0"]);
        assert_eq!(text(&[8, 2, 1]), ["/a"]);
        let get = [8, 2, 2, 2];
        let below = |way: &[u64]| text(&[&get, way].concat());
        assert_eq!(below(&[5]), ["readA"]);
        assert_eq!(below(&[13, 1]), ["x-kubernetes-action"]);
        assert_eq!(below(&[13, 2, 2]), ["\"get\""]);
        assert_eq!(
            below(&[8, 1, 2, 3, 6]),
            ["string"],
            "the type of a query's parameter"
        );
        assert_eq!(below(&[8, 1, 1, 5, 1]), ["#/definitions/A"]);
        assert_eq!(below(&[9, 1, 2, 1, 2, 1, 1]), ["#/definitions/A"]);
        assert_eq!(
            text(&[8, 2, 2, 9, 1, 2, 4, 5]),
            ["integer"],
            "the type of a path's parameter"
        );
        assert_eq!(text(&[9, 1, 1]), ["A"]);
        assert_eq!(text(&[9, 1, 2, 4]), [long]);
        assert_eq!(text(&[9, 1, 2, 25, 1, 1]), ["b", "c"]);
        assert_eq!(text(&[9, 1, 2, 25, 1, 2, 23, 1, 22, 1]), ["string"]);
        assert_eq!(text(&[9, 1, 2, 25, 1, 2, 21, 1, 5, 2]), ["\"\""]);
    }
}
