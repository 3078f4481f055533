//! Documents that people copy from are documents that hold: their TOML parses, their links lead
//! somewhere, and the functions that they name exist. (Command lines are read by the programs' own
//! tests.)

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests may stop at the first surprise"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Every document for people, from the repository's root.
const DOCUMENTS: [&str; 11] = [
    "README.md",
    "config/attest/SECURITY.md",
    "config/protocol/WIRE.md",
    "config/discovery/WIRE.md",
    "config/model/GUIDE.md",
    "config/model/REFERENCE.md",
    "image/build/GUIDE.md",
    "master/admin/GUIDE.md",
    "tests/FIGURES.md",
    "tests/GUIDE.md",
    "tests/PROMISES.md",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .to_owned()
}

fn read(document: &str) -> String {
    std::fs::read_to_string(root().join(document))
        .unwrap_or_else(|error| panic!("{document}: {error}"))
}

/// The fenced blocks of a language in a Markdown text.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    text.split(fence.as_str())
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect()
}

/// The targets of Markdown links, `[…](target)`, without their anchors.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    targets
        .map(|target| target.split('#').next().unwrap())
        .filter(|target| !target.is_empty())
}

#[test]
fn every_document_for_people_is_known_here() {
    let mut found = BTreeSet::from(["README.md".to_owned()]);
    let mut folders: Vec<PathBuf> = ["agent", "config", "image", "master", "tests"]
        .iter()
        .map(PathBuf::from)
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).unwrap().flatten() {
            let path = folder.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                found.insert(path.display().to_string());
            }
        }
    }
    assert_eq!(
        found,
        DOCUMENTS.iter().map(|&name| name.to_owned()).collect()
    );
}

#[test]
fn every_toml_example_parses() {
    let mut count = 0;
    for document in DOCUMENTS {
        let text = read(document);
        for example in blocks(&text, "toml") {
            count += 1;
            let parsed = config_model::parse(example, document);
            let parsed = parsed.unwrap_or_else(|faults| panic!("{faults}\nin:\n{example}"));
            if let config_model::Document::Machine(machine) = parsed {
                for manifest in &machine.node.static_pods {
                    config_static_pods::read(manifest, "node").unwrap();
                }
            }
        }
    }
    assert!(count > 5, "{count} examples");
}

#[test]
fn every_link_leads_to_a_file_of_the_tree() {
    for document in DOCUMENTS {
        let folder = root().join(document).parent().unwrap().to_owned();
        for target in links(&read(document)).filter(|target| !target.starts_with("http")) {
            assert!(folder.join(target).exists(), "{document}: {target}");
        }
    }
}

/// The anchor of a heading, as the web shows it: lower case, `-` for a space, no punctuation.
fn anchor(heading: &str) -> String {
    heading
        .trim_start_matches('#')
        .trim()
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// A reader in a hurry follows the table of contents.
#[test]
fn every_anchor_leads_to_a_heading() {
    let mut count = 0;
    for document in DOCUMENTS {
        let text = read(document);
        let folder = root().join(document).parent().unwrap().to_owned();
        for link in text.split("](").skip(1) {
            let target = link.split(')').next().unwrap();
            let Some((file, wanted)) = target.split_once('#') else {
                continue;
            };
            if target.starts_with("http") {
                continue;
            }
            count += 1;
            let page = match file {
                "" => text.clone(),
                file => std::fs::read_to_string(folder.join(file)).unwrap(),
            };
            assert!(
                page.lines()
                    .any(|line| line.starts_with('#') && anchor(line) == wanted),
                "{document}: no heading for {target}"
            );
        }
    }
    assert!(count > 15, "{count} anchors");
}

/// The names in backticks of a text.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn the_guide_names_each_family_of_cadvisors_metrics_and_denies_none() {
    let guide = read("master/admin/GUIDE.md");
    let part = guide.split("`/metrics/cadvisor` has, ").nth(1).unwrap();
    let part = part.split("\n## ").next().unwrap();
    let (there, absent) = part.split_once("Not there: ").unwrap();
    let metrics = read("agent/resources/src/golden/cadvisor.txt");
    let families = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    for family in families {
        let is_named = |text: &str| {
            names(text).any(|name| match name.strip_suffix('*') {
                Some(prefix) => !prefix.is_empty() && family.starts_with(prefix),
                None => name == family,
            })
        };
        assert!(is_named(there), "{family} is not in the guide");
        assert!(!is_named(absent), "{family} is not absent");
    }
}

/// Links of the form [`function`](…/file.rs): the function's name and the file.
fn functions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("[`").skip(1).filter_map(|rest| {
        let (name, rest) = rest.split_once("`](")?;
        let file = rest.split(')').next()?;
        let a_name = name.chars().all(|c| c.is_alphanumeric() || c == '_');
        let is_code = Path::new(file).extension().is_some_and(|end| end == "rs");
        (a_name && is_code).then_some((name, file))
    })
}

#[test]
fn every_function_that_a_walk_names_is_in_its_file() {
    let mut count = 0;
    for document in DOCUMENTS {
        let folder = root().join(document).parent().unwrap().to_owned();
        for (name, file) in functions(&read(document)) {
            count += 1;
            let code = std::fs::read_to_string(folder.join(file)).unwrap();
            let found = [format!("fn {name}("), format!("fn {name}<")];
            assert!(
                found.iter().any(|text| code.contains(text)),
                "{document}: no function `{name}` in {file}"
            );
        }
    }
    assert!(count > 15, "{count} functions");
}

/// The walks of the developer's guide, by title, with the text of each.
fn walks(guide: &str) -> Vec<(&str, &str)> {
    let section = guide.split("\n## ").find(|part| part.contains(" walks "));
    let bold = section.unwrap().split("\n**").skip(1);
    bold.map(|walk| walk.split_once("**").unwrap()).collect()
}

/// The room of a file that a guide in `tests` names: `../master/api/src/server.rs` is in
/// `master/api`.
fn room(file: &str) -> String {
    let parts = file.split('/').skip_while(|part| *part == "..");
    parts.take(2).collect::<Vec<_>>().join("/")
}

/// A reader who follows a walk keeps his bearings: he leaves a room, and comes back to it once.
#[test]
fn a_walk_returns_to_a_room_at_most_once() {
    let guide = read("tests/GUIDE.md");
    let walks = walks(&guide);
    assert_eq!(walks.len(), 3, "{walks:?}");
    for (title, text) in walks {
        let mut rooms: Vec<String> = functions(text).map(|(_, file)| room(file)).collect();
        rooms.dedup();
        assert!(rooms.len() > 2, "{title}: {rooms:?}");
        for room in &rooms {
            let visits = rooms.iter().filter(|other| *other == room).count();
            assert!(visits <= 2, "{title}: {visits} visits to {room}: {rooms:?}");
        }
    }
}

/// A block of code in a guide is made of parts, each behind a comment that names its file.
#[test]
fn every_example_of_code_stands_in_its_file() {
    let mut count = 0;
    for document in DOCUMENTS {
        for block in blocks(&read(document), "rust") {
            let mut parts: Vec<(&str, String)> = Vec::new();
            for line in block.lines() {
                let rust = |file: &&str| Path::new(file).extension().is_some_and(|end| end == "rs");
                if let Some(file) = line.strip_prefix("// ").filter(rust) {
                    parts.push((file, String::new()));
                    continue;
                }
                let (_, text) = parts.last_mut().unwrap_or_else(|| {
                    panic!("{document}: an example begins without the name of its file")
                });
                text.push_str(line);
                text.push('\n');
            }
            for (file, text) in parts {
                count += 1;
                assert!(
                    read(file).contains(&text),
                    "{document}: {file} does not hold\n{text}"
                );
            }
        }
    }
    assert!(count > 5, "{count} parts");
}
