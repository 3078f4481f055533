//! The rooms of the house, read from the manifests: crates by their folders, with what they depend
//! on.

use std::path::Path;

/// One crate: its folder and the workspace crates and libraries it depends on.
#[derive(Debug, Default)]
pub(crate) struct Room {
    pub(crate) address: String,
    pub(crate) name: String,
    pub(crate) dependencies: Vec<String>,
    pub(crate) tests_depend_on: Vec<String>,
}

/// The members of the workspace. A manifest that cannot be read is a fault.
pub(crate) fn rooms(root: &Path, faults: &mut Vec<String>) -> Vec<Room> {
    let text = std::fs::read_to_string(root.join("Cargo.toml")).unwrap_or_default();
    let members = text
        .split_once("members = [")
        .and_then(|(_, rest)| rest.split_once(']'))
        .map(|(list, _)| list)
        .unwrap_or_default();
    let addresses = members
        .split(',')
        .map(|word| word.trim().trim_matches('"'))
        .filter(|word| !word.is_empty());
    addresses
        .filter_map(|address| {
            let manifest = root.join(address).join("Cargo.toml");
            match std::fs::read_to_string(&manifest) {
                Ok(text) => Some(room(address, &text)),
                Err(error) => {
                    faults.push(format!("{}: {error}", manifest.display()));
                    None
                }
            }
        })
        .collect()
}

/// Reads what tidy needs of a manifest; manifests here are written a dependency a line.
fn room(address: &str, manifest: &str) -> Room {
    let mut room = Room {
        address: address.to_owned(),
        ..Room::default()
    };
    let mut section = "";
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
            continue;
        }
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        let name = key.trim().split('.').next().unwrap_or_default().to_owned();
        match section {
            "[package]" if name == "name" => {
                value.trim().trim_matches('"').clone_into(&mut room.name);
            }
            "[dependencies]" => room.dependencies.push(name),
            "[dev-dependencies]" => room.tests_depend_on.push(name),
            _ => {}
        }
    }
    room
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_read_by_its_sections() {
        let read = room(
            "a/b",
            "[package]\nname = \"a-b\"\n[dependencies]\nserde.workspace = true\nx = { path = \"y\" }\n[dev-dependencies]\nz = \"1\"\n",
        );
        assert_eq!(
            (
                read.name.as_str(),
                read.dependencies.len(),
                read.tests_depend_on.len()
            ),
            ("a-b", 2, 1)
        );
    }
}
