//! The master's document of definitions matches the types, and contains every served kind.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use master_schema::schema;
use std::path::Path;

#[test]
fn the_document_is_what_the_types_say() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../master/schema/src/schema/definitions.json");
    let document = tests_schemas::document();
    if std::fs::read_to_string(&kept).unwrap_or_default() != document {
        let made = std::env::temp_dir().join("definitions.json");
        std::fs::write(&made, &document).unwrap();
        panic!(
            "{} is not what the types say: copy {} there",
            kept.display(),
            made.display()
        );
    }
}

#[test]
fn every_kind_and_all_that_it_refers_to_is_in_the_document() {
    let generated = tests_schemas::generate();
    let kinds = master_kinds::builtin::all();
    let sources: Vec<_> = kinds.iter().map(|kind| kind.source.clone()).collect();
    let definitions = schema::definitions(&sources);
    for kind in &kinds {
        let name = kind.source.name();
        assert!(definitions.contains_key(name), "{}: {name}", kind.kind);
    }
    for (name, definition) in &definitions {
        assert_eq!(generated.get(name), Some(definition), "{name}");
    }
}
