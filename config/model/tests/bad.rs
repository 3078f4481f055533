//! One invalid document for each fault, with its rendering: `bad/NAME.toml` and `bad/NAME.txt`.
//!
//! After a change of wording, `BLESS=1 cargo test -p config-model --test bad` writes the renderings
//! again; read the diff.

use config_model::{FaultKind, Faults, defaults, parse};
use std::collections::HashSet;
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/bad")
}

fn names() -> Vec<String> {
    let entries = std::fs::read_dir(folder()).expect("the folder is there");
    let files = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = files
        .filter_map(|name| Some(name.strip_suffix(".toml")?.to_owned()))
        .collect();
    names.sort();
    names
}

fn faults(name: &str) -> Faults {
    let text = std::fs::read(folder().join(format!("{name}.toml"))).expect(name);
    parse(text, &format!("{name}.toml")).expect_err(name)
}

#[test]
fn every_fault_is_rendered_as_recorded() {
    let bless = std::env::var_os("BLESS").is_some();
    let mut differing = Vec::new();
    for name in names() {
        let path = folder().join(format!("{name}.txt"));
        let rendered = faults(&name).to_string();
        if bless {
            std::fs::write(&path, &rendered).unwrap();
        }
        let recorded = std::fs::read_to_string(&path).unwrap_or_default();
        if recorded != rendered {
            differing.push(format!(
                "--- {name}, recorded:\n{recorded}+++ now:\n{rendered}"
            ));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

#[test]
fn every_kind_of_fault_has_a_document() {
    let mut seen: HashSet<FaultKind> = names()
        .iter()
        .flat_map(|name| faults(name).list)
        .map(|f| f.kind)
        .collect();
    seen.extend(
        parse("#".repeat(defaults::MAX_DOCUMENT_BYTES + 1), "x")
            .expect_err("too large")
            .list
            .iter()
            .map(|f| f.kind),
    );
    seen.extend(
        parse(b"version = 1\nx = \"\xff\"", "x")
            .expect_err("no text")
            .list
            .iter()
            .map(|f| f.kind),
    );
    assert_eq!(seen.len(), 13, "{seen:?}");
}

#[test]
fn bytes_that_are_not_utf8_are_reported_with_their_position() {
    let faults = parse(b"version = 1\nname = \"\xc3\x28\"", "user-data").expect_err("no text");
    assert_eq!(
        faults.lines(),
        ["user-data:2:9: found the byte 0xc3, expected text in UTF-8"]
    );
}

#[test]
fn all_faults_come_at_once_and_in_order() {
    let text = "version = 1\n[machine]\nname = 5\nnmae = \"a\"\n[master]\nendpoints = [\"http://m.example:1\"]\n";
    let faults = parse(text, "w.toml").expect_err("four faults");
    let places: Vec<(usize, usize)> = faults.list.iter().map(|f| (f.line, f.column)).collect();
    assert_eq!(places, [(3, 8), (4, 1), (5, 1), (6, 14)], "{faults}");
}

#[test]
fn the_list_of_faults_is_bounded() {
    let text = (0..1000).fold(String::new(), |text, n| text + &format!("key-{n} = 1\n"));
    let faults = parse(text, "w.toml").expect_err("many faults");
    assert_eq!(faults.list.len(), defaults::MAX_FAULTS);
    assert!(faults.omitted > 900);
    assert!(faults.to_string().contains("more faults are not shown"));
}

#[test]
fn a_fault_never_sends_control_characters_to_a_console() {
    let faults = faults("control-characters");
    let shown = faults.to_string() + &faults.lines().concat();
    assert!(
        shown.chars().all(|c| !c.is_control() || c == '\n'),
        "{shown:?}"
    );
}

#[test]
fn no_fault_shows_a_secret() {
    for name in names().iter().filter(|name| name.starts_with("registry-")) {
        let faults = faults(name);
        let shown = faults.to_string() + &faults.lines().concat() + &format!("{faults:?}");
        assert!(
            !shown.contains("hunter") && !shown.contains("22222"),
            "{name}: {shown}"
        );
    }
}
