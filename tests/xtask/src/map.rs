//! `cargo xtask map`: the present structure, read off the tree: rooms with their sizes, edges
//! between them, and the circles of files inside each room that import one another.
//!
//! Files count as modules by their paths (`src/a/b.rs` and `src/a/b/mod.rs` are `a::b`). An edge is
//! a path, in a `use` or elsewhere, that begins with `crate`, `super`, `self` or the name of a
//! child module and leads to another module. A path to a name that a module only re-exports leads
//! on to the module that defines it. Tests inside a file do not count. It reads text, so a path
//! that a macro makes is missed.

use crate::host::repository;
use crate::rooms::{Room, rooms};
use crate::source::{bare, program};
use crate::steps::{Failure, Outcome};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The module of `lib.rs` and `main.rs`.
const ROOT: &str = "crate";
/// The keyword of an import; `use<…>` has no space.
const USE: &str = "use ";
/// Re-exports that are followed one after another.
const MAX_HOPS: usize = 4;

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
                "lib" | "main" if module.is_empty() => ROOT.to_owned(),
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

/// Which module refers to which. References to the crate's own root are followed to the module from
/// which it re-exports, and are left out where it defines the item: it refers to all.
fn graph(files: &BTreeMap<String, String>) -> Graph {
    let parsed: BTreeMap<&str, Module> = files
        .iter()
        .map(|(name, text)| (name.as_str(), Module::parse(text)))
        .collect();
    let mut graph = Graph::new();
    for (&name, module) in parsed.iter().filter(|(name, _)| **name != ROOT) {
        let targets = module.references().filter_map(|path| {
            let target = resolve(path, name, &parsed, MAX_HOPS)?;
            (target != name && target != ROOT).then_some(target)
        });
        graph.insert(name.to_owned(), targets.collect());
    }
    graph
}

/// One name that a `use` brings into a module.
#[derive(Debug)]
struct Import {
    /// Its path, each word by itself.
    path: Vec<String>,
    name: String,
    /// Whether other modules can take it from here.
    public: bool,
}

/// What a file says about other modules.
#[derive(Debug, Default)]
struct Module {
    imports: Vec<Import>,
    /// Paths of at least two words outside of `use`.
    paths: Vec<Vec<String>>,
    /// Words outside of `use`.
    words: BTreeSet<String>,
}

impl Module {
    fn parse(text: &str) -> Self {
        let mut rest = bare(text);
        let mut module = Self::default();
        while let Some((start, end)) = next_use(&rest) {
            let public = is_public(&rest[..start]);
            let tree = rest[start + USE.len()..end].to_owned();
            flatten(&tree, &[], &mut |path, name| {
                module.imports.push(Import {
                    path: path.to_vec(),
                    name: name.to_owned(),
                    public,
                });
            });
            // The same length, so that the loop goes on behind it.
            rest.replace_range(start..end, &" ".repeat(end - start));
        }
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':' | '.' | '$');
        let mut before = "";
        for part in rest
            .split(|c: char| !is_part(c))
            .filter(|part| !part.is_empty())
        {
            if std::mem::replace(&mut before, part) == "mod" {
                continue;
            }
            let mut range = false;
            for (number, piece) in part.split('.').enumerate() {
                // What stands behind one dot is a method or a field, behind two a range's end.
                if (number == 0 || range && number > 1) && !piece.contains('$') {
                    let path = words(piece);
                    module.words.extend(path.iter().cloned());
                    // Behind a type in `<…>` the path is the type's.
                    if path.len() > 1 && !piece.starts_with(':') {
                        module.paths.push(path);
                    }
                }
                range = piece.is_empty();
            }
        }
        module
    }

    /// The paths by which this module depends on others. A name that it only hands on is none: who
    /// takes it from here depends on the module that defines it.
    fn references(&self) -> impl Iterator<Item = &[String]> {
        let own = move |import: &&Import| !import.public || self.words.contains(&import.name);
        let imports = self.imports.iter().filter(own);
        let imports = imports.map(|import| import.path.as_slice());
        imports.chain(self.paths.iter().map(Vec::as_slice))
    }

    /// The path of a name that others can take from here: from the root also what it only imports.
    fn export(&self, name: &str, root: bool) -> Option<&[String]> {
        let mut all = self.imports.iter();
        let found = all.find(|import| (root || import.public) && import.name == name)?;
        Some(&found.path)
    }
}

/// The words of a path.
fn words(path: &str) -> Vec<String> {
    let words = path.split("::").map(|word| word.trim_matches(':'));
    words
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Where the next `use` of a text stands, up to its semicolon. `use<…>` in a type is none.
fn next_use(bare: &str) -> Option<(usize, usize)> {
    let is_item = |start: &usize| {
        let before = bare[..*start].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && c != '_')
    };
    let mut all = bare.match_indices(USE).map(|(start, _)| start);
    let start = all.find(is_item)?;
    let length = bare[start..].find(';')?;
    Some((start, start + length))
}

/// Whether an item is visible outside of its module, by the text before it.
fn is_public(before: &str) -> bool {
    let before = before.trim_end();
    let keyword = match before.strip_suffix(')') {
        Some(within) => within.rsplit_once('(').map_or("", |(before, _)| before),
        None => before,
    };
    keyword.ends_with("pub")
}

/// Calls `found` with path and name of each name in the tree of a `use`.
fn flatten(tree: &str, above: &[String], found: &mut impl FnMut(&[String], &str)) {
    let tree = tree.trim();
    // Behind a trailing comma.
    if tree.is_empty() {
        return;
    }
    let Some((head, group)) = tree.split_once('{') else {
        let (path, name) = tree.split_once(" as ").unwrap_or((tree, ""));
        let mut path = [above, &words(path.trim())].concat();
        // `self` in a group is the module before it; a glob leads to its module.
        if path.len() > 1 {
            path.pop_if(|last| *last == "self" || *last == "*");
        }
        if let Some(last) = path.last() {
            let name = if name.is_empty() { last } else { name.trim() };
            found(&path, name);
        }
        return;
    };
    let above = [above, &words(head.trim())].concat();
    let group = group.strip_suffix('}').unwrap_or(group);
    let (mut depth, mut start) = (0_usize, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                flatten(&group[start..at], &above, found);
                start = at + 1;
            }
            _ => {}
        }
    }
    flatten(&group[start..], &above, found);
}

/// The module to which a path in `module` leads: the longest part of it that is one, and from there
/// on by what that module re-exports. A path that begins with another crate leads nowhere.
fn resolve(
    path: &[String],
    module: &str,
    parsed: &BTreeMap<&str, Module>,
    hops: usize,
) -> Option<String> {
    let own = (module != ROOT).then(|| module.split("::"));
    let mut at: Vec<&str> = own.into_iter().flatten().collect();
    let mut words = path.iter().map(String::as_str).peekable();
    let first = *words.peek()?;
    match first {
        "crate" => {
            at.clear();
            words.next();
        }
        "self" => {
            words.next();
        }
        "super" => {}
        _ => {
            let child = [at.as_slice(), &[first]].concat().join("::");
            if !parsed.contains_key(child.as_str()) {
                return None;
            }
        }
    }
    while words.next_if_eq(&"super").is_some() {
        at.pop();
    }
    at.extend(words);
    let length = (1..=at.len())
        .rev()
        .find(|&length| parsed.contains_key(at[..length].join("::").as_str()))
        .unwrap_or(0);
    let found = match length {
        0 => ROOT.to_owned(),
        length => at[..length].join("::"),
    };
    let export = at.get(length).and_then(|name| {
        let path = parsed.get(found.as_str())?.export(name, found == ROOT)?;
        resolve(path, &found, parsed, hops.checked_sub(1)?)
    });
    Some(export.unwrap_or(found))
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
            (
                "d",
                "use crate::a::X; // crate::e\nconst TEXT: &str = \"crate::e::X\";",
            ),
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

    #[test]
    fn a_module_that_calls_its_child_needs_it() {
        let child = ("a::b", "use super::Call;");
        for parent in ["fn f() { b::g() }", "use b::X;", "use b::{self, X,};"] {
            assert_eq!(house(&[("a", parent), child]), [["a", "a::b"]], "{parent}");
        }
        for parent in ["mod b;", "fn f(b: B) { b.g(); x.b::<u8>(); other::b::g() }"] {
            assert!(house(&[("a", parent), child]).is_empty(), "{parent}");
        }
    }

    #[test]
    fn a_name_that_another_module_re_exports_leads_to_the_one_that_defines_it() {
        for root in [
            "pub use a::X;",
            "pub(crate) use crate::a::Y as X;",
            "use a::X;",
        ] {
            let files = [
                ("crate", root),
                ("a", "use crate::b::Z;"),
                ("b", "use crate::X;"),
            ];
            assert_eq!(house(&files), [["a", "b"]], "{root}");
        }
        let files = [
            ("a", "pub use b::X;"),
            ("a::b", "use super::c::Y;"),
            ("a::c", "use crate::a::X;"),
        ];
        assert_eq!(house(&files), [["a::b", "a::c"]]);
    }

    #[test]
    fn a_module_that_uses_what_it_re_exports_needs_it() {
        let child = ("a::b", "use super::Call;");
        assert!(house(&[("a", "mod b; pub use b::{X, f as b,};"), child]).is_empty());
        let parent = "pub use b::X; fn f(x: X) {}";
        assert_eq!(house(&[("a", parent), child]), [["a", "a::b"]]);
    }

    #[test]
    fn every_member_of_a_nested_group_counts() {
        let files = [
            ("a", "use crate::{b::{c, d}, e::X,\n  f};"),
            ("e", "use crate::a::X;"),
            ("b::c", ""),
            ("b::d", "use super::super::a;"),
            ("f", "use crate::{self as root, a as other};"),
        ];
        assert_eq!(house(&files), [["a", "b::d", "e", "f"]]);
    }

    #[test]
    fn captured_lifetimes_and_macros_own_paths_are_no_imports() {
        let files = [
            (
                "a",
                "fn f() -> impl X + use<'_> { $crate::b::g() } use crate::c::Z;",
            ),
            ("b", "use crate::a::X;"),
            ("c", ""),
        ];
        assert!(house(&files).is_empty());
    }
}
