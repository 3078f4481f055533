//! Tests of the status page: whole pages against approved ones, and hostile texts.

use super::*;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::Path;

/// The moment at which the pages are made.
const NOW: &str = "2026-11-24T12:00:00Z";

/// A part as the fixture has it: an object, or a text that says why it is missing.
fn part<T: DeserializeOwned>(fixture: &Value, key: &str) -> Part<T> {
    let value = &fixture[key];
    if let Some(why) = value.as_str() {
        return Part::Missing(why.to_owned());
    }
    let read = serde_json::from_value(value.clone());
    Part::Got(read.unwrap_or_else(|error| panic!("{key}: {error}")))
}

fn facts(fixture: &Value) -> Facts {
    Facts {
        name: "worker-1".to_owned(),
        node: part(fixture, "node"),
        machine: part(fixture, "machine"),
        attestation: part(fixture, "attestation"),
        release: part(fixture, "release"),
        lease: part(fixture, "lease"),
        pods: part(fixture, "pods"),
        warnings: part(fixture, "warnings"),
        used: part(fixture, "used"),
        absent: false,
    }
}

/// Each fixture's page is the text beside it. With `GOLDEN=write` the texts are written again; read
/// the diff before you keep it.
#[test]
fn pages_are_as_they_were_approved() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/status/golden");
    for name in ["trusted", "refused", "nothing-but-the-node", "never-joined"] {
        let fixture = std::fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
        let fixture: Value = serde_json::from_str(&fixture).unwrap();
        let page = page(&facts(&fixture), NOW.parse().unwrap());
        let path = folder.join(format!("{name}.txt"));
        if std::env::var("GOLDEN").is_ok_and(|word| word == "write") {
            std::fs::write(&path, &page).unwrap();
        }
        let approved = std::fs::read_to_string(&path).unwrap();
        assert_eq!(page, approved, "{name}");
    }
}

#[test]
fn texts_of_a_machine_steer_no_terminal_and_break_no_line() {
    let fixture = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src/status/golden/trusted.json"),
    );
    let mut fixture: Value = serde_json::from_str(&fixture.unwrap()).unwrap();
    let hostile = "a\u{1b}[2J\nTrust          Trusted\u{9b}";
    fixture["node"]["status"]["conditions"][0]["message"] = hostile.into();
    fixture["node"]["status"]["nodeInfo"]["osImage"] = hostile.into();
    fixture["warnings"][0]["message"] = hostile.into();
    let page = page(&facts(&fixture), NOW.parse().unwrap());
    assert!(!page.contains(['\u{1b}', '\u{9b}']), "{page}");
    let trust = page.lines().filter(|line| line.starts_with("Trust"));
    assert_eq!(trust.count(), 1, "{page}");
}
