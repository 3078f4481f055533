//! `cargo xtask map`: the present structure, read off the tree: rooms with their sizes, edges
//! between them, and the circles of files inside each room that import one another.
//!
//! Files count as modules by their paths (`src/a/b.rs` and `src/a/b/mod.rs` are `a::b`), and an
//! edge is a path that begins with `crate::`, `super::` or `self::` and leads to another module.
//! Tests inside a file do not count. It reads text, so a path that a macro makes is missed.

use crate::host::repository;
use crate::rooms::{Room, rooms};
use crate::source::program;
use crate::steps::{Failure, Outcome};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Modules of one room and what each refers to.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// The content of a room.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) files: usize,
    /// Lines, without those of test items inside files.
    pub(crate) lines: usize,
    /// The sets of files that all need one another.
    pub(crate) circles: Vec<Vec<String>>,
}

/// Reads a room's folder of sources.
pub(crate) fn extent(folder: &Path) -> Extent {
    let files = sources(folder, "");
    Extent {
        files: files.len(),
        lines: files.values().map(|text| text.lines().count()).sum(),
        circles: knots(&graph(&files)),
    }
}

/// Prints rooms, edges and circles.
pub(crate) fn map() -> Outcome {
    let root = repository();
    let mut faults = Vec::new();
    let rooms = rooms(&root, &mut faults);
    if let Some(fault) = faults.first() {
        return Err(Failure::new(fault.clone(), "see Cargo.toml's members"));
    }
    println!("{:<24} {:>6} {:>6}  depends on", "room", "files", "lines");
    let mut circles = Vec::new();
    for room in &rooms {
        let extent = extent(&root.join(&room.address).join("src"));
        println!(
            "{:<24} {:>6} {:>6}  {}",
            room.address,
            extent.files,
            extent.lines,
            edges(room, &rooms).join(" ")
        );
        circles.extend(
            extent
                .circles
                .into_iter()
                .map(|knot| (room.address.clone(), knot)),
        );
    }
    circles.sort_by_key(|(_, knot)| std::cmp::Reverse(knot.len()));
    println!("\ncircles of files, the largest first:");
    for (room, knot) in &circles {
        println!("{:>4}  {room}: {}", knot.len(), knot.join(" "));
    }
    if circles.is_empty() {
        println!("   none");
    }
    Ok(())
}

/// The rooms that a room's program or library depends on.
fn edges(room: &Room, rooms: &[Room]) -> Vec<String> {
    let others = rooms
        .iter()
        .filter(|other| room.dependencies.contains(&other.name));
    others.map(|other| other.address.clone()).collect()
}

/// Each module below a folder with its text, without the tests in it.
fn sources(folder: &Path, module: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (
            entry.path(),
            entry.file_name().to_string_lossy().into_owned(),
        );
        let below = |name: &str| {
            if module.is_empty() {
                name.to_owned()
            } else {
                format!("{module}::{name}")
            }
        };
        if path.is_dir() {
            found.extend(sources(&path, &below(&name)));
        } else if let Some(stem) = name.strip_suffix(".rs")
            && let Ok(text) = std::fs::read_to_string(&path)
        {
            let module = match stem {
                "lib" | "main" if module.is_empty() => "crate".to_owned(),
                "mod" => module.to_owned(),
                stem => below(stem),
            };
            let own = found.entry(module).or_insert_with(String::new);
            for (_, line) in program(&text) {
                own.push_str(line);
                own.push('\n');
            }
        }
    }
    found
}

/// Which module refers to which. References to the crate's own root are left out: it re-exports and
/// refers to all.
fn graph(files: &BTreeMap<String, String>) -> Graph {
    let mut graph = Graph::new();
    for (module, text) in files.iter().filter(|(module, _)| *module != "crate") {
        let targets = paths(text)
            .into_iter()
            .filter_map(|path| resolve(&path, module, files));
        graph.insert(
            module.clone(),
            targets.filter(|target| target != module).collect(),
        );
    }
    graph
}

/// Every path of a text that begins with `crate::`, `super::` or `self::`; a group in braces is one
/// path for each member.
fn paths(text: &str) -> Vec<String> {
    let code: String = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join(" ");
    let mut found = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            // `pub(crate)` has no `::`, and `super::super::` begins at its first word.
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
                continue;
            }
            let rest = &code[at..];
            let end = rest
                .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
                .unwrap_or(rest.len());
            let (path, rest) = rest.split_at(end);
            match rest
                .strip_prefix('{')
                .and_then(|group| group.split('}').next())
            {
                Some(group) => found.extend(
                    group
                        .split(',')
                        .map(|member| format!("{path}{}", member.trim())),
                ),
                None => found.push(path.to_owned()),
            }
        }
    }
    found
}

/// The module to which a path of `module` leads: the longest part of it that is one.
fn resolve(path: &str, module: &str, files: &BTreeMap<String, String>) -> Option<String> {
    let mut at: Vec<&str> = module.split("::").collect();
    let mut words = path.split("::").filter(|word| !word.is_empty()).peekable();
    match words.next()? {
        "crate" => at.clear(),
        "super" => drop(at.pop()),
        _ => {}
    }
    while words.next_if_eq(&"super").is_some() {
        at.pop();
    }
    at.extend(words);
    (1..=at.len())
        .rev()
        .map(|length| at[..length].join("::"))
        .find(|name| files.contains_key(name))
}

/// Sets of modules each of which reaches all the others, by what each one reaches.
fn knots(graph: &Graph) -> Vec<Vec<String>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> = graph
        .keys()
        .map(|module| (module.as_str(), reached(graph, module)))
        .collect();
    let mut knots = BTreeSet::new();
    for (module, all) in &reach {
        let mutual = |other: &&&str| reach.get(**other).is_some_and(|back| back.contains(module));
        let knot: Vec<String> = all
            .iter()
            .filter(mutual)
            .map(|other| (*other).to_owned())
            .collect();
        if knot.len() > 1 {
            knots.insert(knot);
        }
    }
    knots.into_iter().collect()
}

fn reached<'a>(graph: &'a Graph, from: &'a str) -> BTreeSet<&'a str> {
    let (mut found, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for target in graph.get(module).into_iter().flatten() {
            if found.insert(target.as_str()) {
                next.push(target);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn house(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let files = files
            .iter()
            .map(|(module, text)| ((*module).to_owned(), (*text).to_owned()))
            .collect();
        knots(&graph(&files))
    }

    #[test]
    fn files_that_need_one_another_are_a_circle_and_others_are_not() {
        let files = [
            ("a", "use crate::b::{X, Y};"),
            ("b", "fn f() { crate::c::deep::g() }"),
            ("c", "use super::a::Z;"),
            ("d", "use crate::a::X; // crate::e"),
            ("e", "use crate::d::X;"),
        ];
        assert_eq!(house(&files), [["a", "b", "c"]]);
    }

    #[test]
    fn a_path_is_followed_to_the_deepest_module_that_exists() {
        let files = [
            ("a", "use self::b::X;"),
            ("a::b", "use super::super::c::Y;"),
            ("c", "use crate::a::b::Z;"),
        ];
        assert_eq!(house(&files), [["a::b", "c"]]);
    }
}
