//! Schemas of the served kinds: compiled for checking and pruning objects, and as documents for clients.
//!
//! The source is each kind's own JSON schema (`k8s-openapi`, `config-kube`); nothing is written down twice.

mod check;
pub mod merge;
mod normalize;

use merge::Merge;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Registers a kind's schema and tells the definition's name.
pub type Source = fn(&mut SchemaGenerator) -> schemars::Schema;

/// Where definitions live in `OpenAPI` documents.
pub const DEFINITIONS: &str = "#/components/schemas/";

/// The definitions that sources need, in `OpenAPI` v3 form, and the name of each source's own.
pub fn definitions(sources: &[Source]) -> (Map<String, Value>, Vec<String>) {
    let mut generator = SchemaSettings::draft07()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .for_serialize()
        .into_generator();
    let names = sources
        .iter()
        .map(|source| {
            let schema = source(&mut generator);
            let target = schema.get("$ref").and_then(Value::as_str).unwrap_or_default();
            normalize::full_name(target.strip_prefix(DEFINITIONS).unwrap_or(target))
        })
        .collect();
    (normalize::definitions(generator.take_definitions(false)), names)
}

/// A known field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Field {
    node: usize,
    merge: Merge,
}

/// What a value must be.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    /// Known fields only.
    Object(HashMap<Box<str>, Field>),
    /// Any keys, one form of value.
    Map(usize),
    Array(usize),
    String,
    /// RFC 3339.
    Time,
    /// Base64.
    Bytes,
    Integer {
        narrow: bool,
    },
    Number,
    Boolean,
    Quantity,
    IntOrString,
    /// Anything.
    Any,
}

/// Compiled schemas of all served kinds; kinds are found by their definition's name.
#[derive(Debug)]
pub struct Schemas {
    nodes: Vec<Node>,
    names: HashMap<String, usize>,
}

impl Schemas {
    /// Compiles definitions.
    pub fn compile(definitions: &Map<String, Value>) -> Self {
        let mut schemas = Self { nodes: Vec::new(), names: HashMap::new() };
        // Names first, so that definitions may refer to each other in circles.
        for name in definitions.keys() {
            schemas.names.insert(name.clone(), schemas.nodes.len());
            schemas.nodes.push(Node::Any);
        }
        for (name, definition) in definitions {
            let node = schemas.node(name, definition);
            if let Some(index) = schemas.names.get(name) {
                schemas.nodes[*index] = node;
            }
        }
        schemas
    }

    /// The place of a definition, from which [`Place::field`] leads on.
    pub fn place(&self, name: &str) -> Place<'_> {
        Place { schemas: self, node: self.names.get(name).copied() }
    }

    fn add(&mut self, schema: &Value) -> usize {
        let target = schema.pointer("/allOf/0/$ref").or_else(|| schema.get("$ref")).and_then(Value::as_str);
        if let Some(index) = target.and_then(|target| self.names.get(target.strip_prefix(DEFINITIONS)?)) {
            return *index;
        }
        let node = self.node("", schema);
        // Simple forms are shared.
        let simple = !matches!(node, Node::Object(_) | Node::Map(_) | Node::Array(_));
        if simple && let Some(index) = self.nodes.iter().position(|known| *known == node) {
            return index;
        }
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn node(&mut self, name: &str, schema: &Value) -> Node {
        if name.ends_with(".api.resource.Quantity") {
            return Node::Quantity;
        }
        let format = schema.get("format").and_then(Value::as_str).unwrap_or_default();
        if format == "int-or-string" {
            return Node::IntOrString;
        }
        match schema.get("type").and_then(Value::as_str) {
            Some("object") => self.object(name, schema),
            Some("array") => match schema.get("items") {
                Some(items) => Node::Array(self.add(items)),
                None => Node::Any,
            },
            Some("string") if format == "date-time" => Node::Time,
            Some("string") if format == "byte" => Node::Bytes,
            Some("string") => Node::String,
            Some("integer") => Node::Integer { narrow: format == "int32" },
            Some("number") => Node::Number,
            Some("boolean") => Node::Boolean,
            Some(_) | None => Node::Any,
        }
    }

    fn object(&mut self, name: &str, schema: &Value) -> Node {
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            let fields = properties.iter().map(|(field, schema)| {
                let found = Field { node: self.add(schema), merge: merge::merge(name, field) };
                (field.as_str().into(), found)
            });
            return Node::Object(fields.collect());
        }
        match schema.get("additionalProperties") {
            Some(values @ Value::Object(_)) => Node::Map(self.add(values)),
            Some(_) | None => Node::Any,
        }
    }
}

/// A place in a schema while an object is walked; nowhere, where the schema knows no more.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    schemas: &'a Schemas,
    node: Option<usize>,
}

impl Place<'_> {
    /// The place of a field's value, or of a list's items, and how such a list is merged.
    pub fn field(self, name: &str) -> (Self, Merge) {
        let (node, merge) = match self.node.map(|node| &self.schemas.nodes[node]) {
            Some(Node::Object(fields)) => match fields.get(name) {
                Some(field) => (Some(field.node), field.merge),
                None => (None, Merge::Atomic),
            },
            Some(Node::Map(inner)) => (Some(*inner), Merge::Atomic),
            _ => (None, Merge::Atomic),
        };
        let node = node.map(|node| if let Node::Array(items) = &self.schemas.nodes[node] { *items } else { node });
        (Self { schemas: self.schemas, node }, merge)
    }
}
