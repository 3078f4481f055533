//! Every code of a refusal is expected by an assertion of an attack here, at a running master or,
//! where it is the admin's tool that refuses, at the running tool. That each assertion is reached
//! is for the attacks to show.

use config_protocol::Code;
use std::path::Path;

/// Files that name codes without raising them.
const NO_ATTACKS: [&str; 3] = ["coverage.rs", "lab.rs", "main.rs"];

/// What fails unless the code among its arguments comes.
const ASSERTIONS: [&str; 9] = [
    "refused(",
    "refused_as_seen(",
    "comes(",
    "comes_by(",
    "until(",
    "Case::proven(",
    "Case::anonymous(",
    "assert!(",
    "assert_eq!(",
];

/// Codes that stand above the assertion that expects them.
const ABOVE: [(Code, &str); 5] = [
    (Code::CsrMalformed, "a table in csr.rs"),
    (Code::CsrSignature, "a table in csr.rs"),
    (Code::BootstrapRoot, "a table in takeover.rs"),
    (Code::RateLimited, "a condition in freshness.rs"),
    (Code::NotProven, "a condition in no_tpm.rs"),
];

/// Codes that no attack here raises, each with its reason.
const ELSEWHERE: [(Code, &str); 0] = [];

/// The arguments of all assertions in all files of attacks.
fn attacks() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attacks");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let own = |path: &std::path::PathBuf| {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        path.extension().is_some_and(|ending| ending == "rs") && !NO_ATTACKS.contains(&name)
    };
    let texts = files
        .filter(own)
        .map(|path| std::fs::read_to_string(path).unwrap());
    texts.map(|text| asserted(&text)).collect()
}

/// The arguments of all assertions in a source, one after another.
fn asserted(text: &str) -> String {
    let mut all = String::new();
    for assertion in ASSERTIONS {
        for (at, _) in text.match_indices(assertion) {
            let rest = &text[at + assertion.len()..];
            let mut depth = 1;
            let end = rest.find(|letter| {
                depth += match letter {
                    '(' => 1,
                    ')' => -1,
                    _ => 0,
                };
                depth == 0
            });
            all.push_str(&rest[..end.unwrap_or(rest.len())]);
            all.push('\n');
        }
    }
    all
}

/// Whether a text contains a code, by its name in Rust or its text on the wire.
fn named(text: &str, code: Code) -> bool {
    let name = format!("Code::{code:?}");
    let whole =
        |at: usize| !text[at + name.len()..].starts_with(|next: char| next.is_ascii_alphanumeric());
    text.contains(&format!("\"{code}\"")) || text.match_indices(&name).any(|(at, _)| whole(at))
}

pub(crate) async fn every_refusal_code_has_an_attack() {
    let attacks = attacks();
    let excused = |code: &Code| {
        let mut known = ELSEWHERE.iter().chain(&ABOVE);
        known.any(|(one, _)| one == code)
    };
    let without: Vec<_> = Code::ALL
        .iter()
        .filter(|code| !excused(code) && !named(&attacks, **code))
        .collect();
    assert!(without.is_empty(), "no attack expects {without:?}");
    let needless: Vec<_> = ELSEWHERE
        .iter()
        .filter(|(code, _)| named(&attacks, *code))
        .collect();
    assert!(
        needless.is_empty(),
        "an attack raises {needless:?} after all"
    );
}
