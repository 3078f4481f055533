//! Generates `master/schema/src/schema/definitions.json`: the definitions of all served kinds and
//! of all types that they consist of, in the OpenAPI v3 form that upstream serves.
//!
//! The source is each type's own JSON schema (`k8s-openapi`, `config-kube`). It is generated here
//! and not in the master, whose program would otherwise contain some megabytes of code that write
//! the same document at each start. `tests/document.rs` fails when the two differ, and names the
//! command to run.
//!
//! [`generate`] is the start: [`types`] lists what is served, [`normalize`] brings a schema into
//! upstream's form, [`merge`] adds facts that the types lack.

mod facts;
pub mod merge;
mod normalize;
mod types;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

/// Where definitions are in OpenAPI documents.
const DEFINITIONS: &str = "#/components/schemas/";

/// All definitions by name.
pub fn generate() -> Map<String, Value> {
    let mut generator = SchemaSettings::draft07()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .for_serialize()
        .into_generator();
    types::register(&mut generator);
    normalize::definitions(generator.take_definitions(false))
}

/// The document: one definition a line, so that a change of one type is a change of one line.
pub fn document() -> String {
    let lines: Vec<String> = generate()
        .iter()
        .map(|(name, definition)| format!("{}: {definition}", Value::from(name.as_str())))
        .collect();
    format!("{{\n{}\n}}\n", lines.join(",\n"))
}
