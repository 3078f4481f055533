//! Every code of a refusal is raised by an attack here, at a running master or, where it is the admin's tool that refuses, at
//! the running tool.

use config_protocol::Code;
use std::path::Path;

/// Files that name codes without raising them.
const NO_ATTACKS: [&str; 3] = ["coverage.rs", "lab.rs", "main.rs"];

/// Codes that no attack here raises, each with its reason.
const ELSEWHERE: [(Code, &str); 0] = [];

/// The names and the texts of codes in all files of attacks.
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
    files
        .filter(own)
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect()
}

/// Whether a code stands in a text, by its name or as what the wire says.
fn named(text: &str, code: Code) -> bool {
    let name = format!("Code::{code:?}");
    let whole =
        |at: usize| !text[at + name.len()..].starts_with(|next: char| next.is_ascii_alphanumeric());
    text.contains(&format!("\"{code}\"")) || text.match_indices(&name).any(|(at, _)| whole(at))
}

pub(crate) async fn every_refusal_code_has_an_attack() {
    let attacks = attacks();
    let excused = |code: &Code| ELSEWHERE.iter().any(|(one, _)| one == code);
    let without: Vec<_> = Code::ALL
        .iter()
        .filter(|code| !excused(code) && !named(&attacks, **code))
        .collect();
    assert!(without.is_empty(), "no attack raises {without:?}");
    let needless: Vec<_> = ELSEWHERE
        .iter()
        .filter(|(code, _)| named(&attacks, *code))
        .collect();
    assert!(
        needless.is_empty(),
        "an attack raises {needless:?} after all"
    );
}
