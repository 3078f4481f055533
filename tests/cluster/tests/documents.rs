//! Documents that people copy are documents that parse.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may stop at the first surprise")]

use std::path::Path;

/// The fenced blocks of a language in a Markdown text.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    text.split(fence.as_str()).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

#[test]
fn every_toml_example_in_readme_parses() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let examples = blocks(&readme, "toml");
    assert!(!examples.is_empty(), "README quotes no TOML");
    for example in examples {
        if let Err(faults) = config_model::parse(example, "README.md") {
            panic!("{faults}\nin:\n{example}");
        }
    }
}
