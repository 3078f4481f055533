//! The parser is total: any bytes give a document, or faults at positions inside the document.

use config_model::{Faults, parse};
use proptest::prelude::*;

const EXAMPLES: [&str; 7] = [
    include_str!("../examples/worker-registries.toml"),
    include_str!("../examples/worker.cloud-config.yaml"),
    include_str!("../examples/worker-static-network.toml"),
    include_str!("../examples/master.toml"),
    include_str!("../examples/cluster.toml"),
    include_str!("../examples/policy.toml"),
    include_str!("../examples/image.toml"),
];

/// Fragments from which nearly valid documents are built.
const PIECES: [&str; 43] = [
    "#cloud-config\n",
    "pratique: |\n",
    "  version = 1\n",
    "version = 1\n",
    "kind = \"cluster\"\n",
    "[master]\n",
    "[cluster]\n",
    "[[rule]]\n",
    "[[network.interface]]\n",
    "[a",
    "]",
    "[[",
    "]]",
    "{",
    "}",
    "[",
    ",",
    "=",
    ".",
    "\"",
    "\"\"\"",
    "'",
    "\n",
    "\r\n",
    "#",
    "name",
    "endpoints",
    "ca_pins",
    "a.b.c = 1\n",
    "a = 1\n",
    "a.b = 1\n",
    "[a.b]\n",
    "[a]\n",
    "[[a]]\n",
    "[[a.b]]\n",
    "1979-05-27",
    "0x1f",
    "-inf",
    "true",
    "é",
    "\u{feff}",
    "\t",
    "\u{0}",
];

fn check(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Err(faults) = parse(bytes, "any.toml") {
        inside(bytes, &faults)?;
    }
    Ok(())
}

fn inside(bytes: &[u8], faults: &Faults) -> Result<(), TestCaseError> {
    prop_assert!(!faults.list.is_empty());
    let lines: Vec<&[u8]> = bytes.split(|b| *b == b'\n').collect();
    for fault in &faults.list {
        prop_assert!(
            fault.span.start <= fault.span.end && fault.span.end <= bytes.len(),
            "{fault:?}"
        );
        prop_assert!((1..=lines.len()).contains(&fault.line), "{fault:?}");
        let line = String::from_utf8_lossy(lines[fault.line - 1]);
        prop_assert!(
            (1..=line.chars().count() + 1).contains(&fault.column),
            "{fault:?}"
        );
    }
    let rendered = faults.to_string();
    prop_assert_eq!(
        rendered.matches("any.toml:").count(),
        faults.list.len() + usize::from(faults.omitted > 0)
    );
    let control = |c: char| c.is_control() && c != '\n';
    prop_assert!(!rendered.contains(control), "{rendered:?}");
    prop_assert!(
        faults
            .lines()
            .iter()
            .all(|line| !line.contains(char::is_control))
    );
    Ok(())
}

proptest! {
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        check(&bytes)?;
    }

    #[test]
    fn any_text(text in any::<String>()) {
        check(text.as_bytes())?;
    }

    #[test]
    fn pieces_of_documents(pieces in proptest::collection::vec(0..PIECES.len(), 0..40)) {
        let text: String = pieces.iter().map(|piece| PIECES[*piece]).collect();
        check(text.as_bytes())?;
    }

    #[test]
    fn examples_with_a_change(which in 0..EXAMPLES.len(), at in any::<prop::sample::Index>(), cut in 0_usize..12, put in "[\\PC\n]{0,6}") {
        let text: Vec<char> = EXAMPLES[which].chars().collect();
        let at = at.index(text.len());
        let changed: String = text[..at].iter().copied().chain(put.chars()).chain(text[(at + cut).min(text.len())..].iter().copied()).collect();
        check(changed.as_bytes())?;
    }
}

#[test]
fn documents_of_nothing_but_brackets_are_refused_quickly() {
    for piece in ["[", "{", "[[", "a.", "a={", "a=[[", "\"\"\"", "a=[{"] {
        let text = piece.repeat(60_000 / piece.len());
        let faults = parse(&text, "any.toml").expect_err("brackets are no document");
        assert!(!faults.list.is_empty());
    }
}
