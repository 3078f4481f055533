//! Schemas of the served kinds: compiled for checking and pruning objects, and as OpenAPI documents
//! for clients.
//!
//! They come from `definitions.json` beside this file, which `tests/schemas` generates from the
//! types of `k8s-openapi` and `config-kube`. The master contains the document, not the code that
//! writes it.

mod check;
mod merge;
mod omitted;
mod position;
mod source;

pub use check::{Checked, Wrong};
pub use merge::Merge;
pub use position::{Absent, Leaf, List, ListKey, SchemaPosition, Shape};
pub use source::{Source, definitions};

use serde_json::{Map, Value};
use std::collections::HashMap;

/// Where definitions are in OpenAPI documents.
pub const DEFINITIONS: &str = "#/components/schemas/";

/// The zero value of upstream's times: one that is not set.
pub const UNSET_TIME: &str = "0001-01-01T00:00:00Z";
/// The same of upstream's `MicroTime`.
pub const UNSET_MICRO_TIME: &str = "0001-01-01T00:00:00.000000Z";

/// A known field.
#[derive(Debug, Clone, PartialEq)]
struct Field {
    node: usize,
    /// How strategic merge patch merges it.
    merge: Merge,
    /// How server-side apply merges it, if it is a list.
    list: List,
    /// Whether an object or map is atomic, if this differs from its definition.
    atomic: Option<bool>,
    /// The value if the field is absent.
    absent: Absent,
    /// Whether the zero value of its type is its absence.
    omitted: bool,
}

/// The type of a value.
#[derive(Debug, Clone, PartialEq)]
enum Node {
    /// An object that has known fields only.
    Object(Object),
    /// A map with any keys and one type of value.
    Map(usize),
    Array(usize),
    String,
    /// RFC 3339.
    Time,
    /// RFC 3339 with six digits of the second's fraction.
    MicroTime,
    /// Base64.
    Bytes,
    Integer(Integer),
    Number,
    Boolean,
    Quantity,
    IntOrString,
    /// Anything.
    Any,
}

/// The range of an integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Integer {
    I32,
    I64,
    U32,
    U64,
}

/// An object with known fields.
#[derive(Debug, Clone, PartialEq)]
struct Object {
    fields: HashMap<Box<str>, Field>,
    /// Required times. Upstream's types write null for one that is not set.
    times: Box<[Box<str>]>,
    /// Whether it is atomic: owned as a whole.
    atomic: bool,
}

/// Compiled schemas of all served kinds, found by the name of their definition.
#[derive(Debug)]
pub struct Schemas {
    nodes: Vec<Node>,
    names: HashMap<String, usize>,
}

impl Schemas {
    /// Compiles definitions.
    pub fn compile(definitions: &Map<String, Value>) -> Self {
        let mut schemas = Self {
            nodes: Vec::new(),
            names: HashMap::new(),
        };
        // Names first, so that definitions may refer to each other in cycles.
        for name in definitions.keys() {
            schemas.names.insert(name.clone(), schemas.nodes.len());
            schemas.nodes.push(Node::Any);
        }
        for (name, definition) in definitions {
            let node = schemas.node(name, definition, definitions);
            if let Some(index) = schemas.names.get(name) {
                schemas.nodes[*index] = node;
            }
        }
        schemas
    }

    /// The position at the root of a definition, from which [`SchemaPosition::field`] descends.
    pub fn place(&self, name: &str) -> SchemaPosition<'_> {
        SchemaPosition::new(self, self.names.get(name).copied())
    }

    fn add(&mut self, schema: &Value, definitions: &Map<String, Value>) -> usize {
        if let Some(index) = target(schema).and_then(|target| self.names.get(target)) {
            return *index;
        }
        let node = self.node("", schema, definitions);
        // Simple types are shared.
        let simple = !matches!(node, Node::Object(_) | Node::Map(_) | Node::Array(_));
        // Not with definitions: those that are yet to be compiled look like anything.
        let mut shared = self.nodes.iter().enumerate().skip(self.names.len());
        if simple && let Some((index, _)) = shared.find(|(_, known)| **known == node) {
            return index;
        }
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn node(&mut self, name: &str, schema: &Value, definitions: &Map<String, Value>) -> Node {
        if name.ends_with(".api.resource.Quantity") {
            return Node::Quantity;
        }
        // Its schema is that of a time: only its name says how many digits it has.
        if name.ends_with(".meta.v1.MicroTime") {
            return Node::MicroTime;
        }
        let format = schema
            .get("format")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if format == "int-or-string" {
            return Node::IntOrString;
        }
        match schema.get("type").and_then(Value::as_str) {
            Some("object") => self.object(name, schema, definitions),
            Some("array") => match schema.get("items") {
                Some(items) => Node::Array(self.add(items, definitions)),
                None => Node::Any,
            },
            Some("string") if format == "date-time" => Node::Time,
            Some("string") if format == "byte" => Node::Bytes,
            Some("string") => Node::String,
            Some("integer") => Node::Integer(match format {
                "int32" => Integer::I32,
                "uint32" => Integer::U32,
                "uint64" => Integer::U64,
                _ => Integer::I64,
            }),
            Some("number") => Node::Number,
            Some("boolean") => Node::Boolean,
            Some(_) | None => Node::Any,
        }
    }

    fn object(&mut self, name: &str, schema: &Value, definitions: &Map<String, Value>) -> Node {
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            let required = schema.get("required").and_then(Value::as_array);
            let is_required =
                |field: &str| required.is_some_and(|names| names.iter().any(|name| name == field));
            let fields = properties.iter().map(|(field, schema)| {
                let found = Field {
                    node: self.add(schema, definitions),
                    merge: Merge::of(schema),
                    list: list(schema, definitions),
                    atomic: schema.get(MAP_TYPE).map(|kind| kind == "atomic"),
                    absent: absent(schema, is_required(field)),
                    omitted: omitted::is_omitted(name, field),
                };
                (field.as_str().into(), found)
            });
            let fields = fields.collect();
            let times = properties
                .iter()
                .filter(|(field, schema)| is_required(field) && is_time(schema, definitions));
            return Node::Object(Object {
                fields,
                times: times.map(|(field, _)| field.as_str().into()).collect(),
                atomic: schema.get(MAP_TYPE).is_some_and(|kind| kind == "atomic"),
            });
        }
        match schema.get("additionalProperties") {
            Some(values @ Value::Object(_)) => Node::Map(self.add(values, definitions)),
            Some(_) | None => Node::Any,
        }
    }
}

const MAP_TYPE: &str = "x-kubernetes-map-type";

/// The definition that a schema refers to.
fn target(schema: &Value) -> Option<&str> {
    let target = schema
        .pointer("/allOf/0/$ref")
        .or_else(|| schema.get("$ref"))?;
    target.as_str()?.strip_prefix(DEFINITIONS)
}

/// Whether a schema is that of a time, perhaps by way of a definition that is yet to be compiled.
fn is_time(schema: &Value, definitions: &Map<String, Value>) -> bool {
    let schema = target(schema)
        .and_then(|name| definitions.get(name))
        .unwrap_or(schema);
    schema
        .get("format")
        .is_some_and(|format| format == "date-time")
}

/// The value of an absent field, in upstream's types.
fn absent(schema: &Value, required: bool) -> Absent {
    // Upstream's generator gives a struct that is no pointer the default `{}`.
    if schema
        .get("default")
        .and_then(Value::as_object)
        .is_some_and(Map::is_empty)
    {
        return Absent::Empty;
    }
    // Lists, maps and structs that are required have no `omitempty`, so that Go writes null.
    let whole = matches!(
        schema.get("type").and_then(Value::as_str),
        Some("array" | "object")
    ) || target(schema).is_some();
    if required && whole {
        Absent::Null
    } else {
        Absent::Missing
    }
}

/// How server-side apply merges a list, as its schema says.
fn list(schema: &Value, definitions: &Map<String, Value>) -> List {
    match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
        Some("set") => List::Set,
        Some("map") => {
            let keys = schema
                .get("x-kubernetes-list-map-keys")
                .and_then(Value::as_array);
            let items = schema.get("items").map(|items| {
                target(items)
                    .and_then(|name| definitions.get(name))
                    .unwrap_or(items)
            });
            let keys = keys.into_iter().flatten().filter_map(Value::as_str);
            List::Map(
                keys.map(|name| ListKey {
                    name: name.into(),
                    default: items.and_then(|items| key_default(items, name)),
                })
                .collect(),
            )
        }
        Some(_) | None => List::Atomic,
    }
}

/// The value of a key that an item leaves out: its default, or the empty value if it is required.
fn key_default(items: &Value, key: &str) -> Option<Value> {
    let schema = items.get("properties")?.get(key)?;
    if let Some(default) = schema.get("default") {
        return Some(default.clone());
    }
    let required = items.get("required").and_then(Value::as_array);
    if !required.is_some_and(|required| required.iter().any(|name| name == key)) {
        return None;
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => Some("".into()),
        Some("integer" | "number") => Some(0.into()),
        Some(_) | None => None,
    }
}
