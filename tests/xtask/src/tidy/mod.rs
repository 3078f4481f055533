//! `cargo xtask tidy`: the architecture's rules as checks over the tree's text.

mod commits;
mod edges;
mod functions;
mod logs;
mod words;

use crate::host::repository;
use crate::map::{Extent, extent};
use crate::rooms::{Room, rooms};
use crate::source::program;
use crate::steps::{Failure, Outcome};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The longest file that a reader should meet.
const MAX_FILE: usize = 700;
/// Characters of a line: rustfmt's width, which it does not apply to comments.
const WIDTH: usize = 100;
/// Where the help of a key is one line, which a macro reads.
const WIDE: &str = "config/model/src/raw.rs";
/// Files and folders that are allowed at the top of the repository.
const TOP: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "LICENSE",
    "README.md",
    "agent",
    "config",
    "image",
    "master",
    "target",
    "tests",
];
/// Lines of a room at most, its tests aside.
const MAX_ROOM: usize = 8_000;
/// Files of a room at most that all need one another.
const MAX_CIRCLE: usize = 5;
/// The one room that may say `unsafe`.
const UNSAFE_ROOM: &str = "agent/sys";
/// The program with which tests attack a machine from inside a container; no crate, and compiled by
/// those tests alone.
const HOSTILE: &str = "tests/cluster/hostile/";
/// What `config` must not know: it does no I/O, reads no clock and runs in no runtime.
const NOT_IN_CONFIG: &[&str] = &[
    "std::fs",
    "TcpStream",
    "UdpSocket",
    "std::process",
    "std::env::",
    "SystemTime::now",
    "Instant::now",
    "tokio::",
];
/// The way to a server of which nothing is proven, and the rooms that may name it: its own, and
/// that of probes and hooks.
const UNPROVEN: (&str, [&str; 2]) = ("unproven_probe_server", ["config/tls/", "agent/handlers/"]);
/// Where the stories are listed that `cargo xtask test` doesn't run.
const STORIES: &str = "tests/cluster/tests/stories/main.rs";
/// What stands behind such a story in a table of promises.
const TAIL_MARK: &str = " (tail)";
/// The files whose tables say which test enforces which promise.
const PROMISES: [&str; 2] = ["tests/PROMISES.md", "config/attest/SECURITY.md"];
/// Bytes of README at most: it is the entry, and the guides are beside their rooms.
const MAX_README: usize = 12 << 10;
/// Where a policy may be called by its name, except in tests: the table of policies, their own
/// files, and the rule that a bootstrap chooses.
const POLICIES: &[&str] = &[
    "config/kube/src/policy.rs",
    "master/attest/src/policy/",
    "master/admin/src/bootstrap/",
];
/// Checks the tree; prints every fault.
pub(crate) fn tidy() -> Outcome {
    let root = repository();
    let mut faults = Vec::new();
    top_level(&root, &mut faults);
    let rooms = rooms(&root, &mut faults);
    for room in &rooms {
        edges::edges(room, &rooms, &mut faults);
        naming(&root, room, &mut faults);
        limits(
            &room.address,
            &extent(&root.join(&room.address).join("src")),
            &mut faults,
        );
    }
    edges::unused(&rooms, &mut faults);
    let texts = read_all(&root, &["rs"]);
    for (file, text) in &texts {
        source(&file.display().to_string(), text, &mut faults);
    }
    functions::functions(&texts, &mut faults);
    words::vocabulary(&texts, &mut faults);
    words::names(&texts, &mut faults);
    words::prose(&texts, &mut faults);
    commits::commits(&root, &mut faults);
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
    logs::keys(&texts, &read(logs::GUIDE), &mut faults);
    let readme = read("README.md");
    door(&readme, &mut faults);
    let mut documents = read_all(&root, &["md", "toml"]);
    documents.insert(PathBuf::from("README.md"), readme);
    words::prose(&documents, &mut faults);
    let stories = read(STORIES);
    let tail = tail(&stories);
    for file in PROMISES {
        promises(file, &read(file), &texts, &tail, &mut faults);
    }
    if faults.is_empty() {
        println!(
            "tidy: {} rooms, {} files, no fault",
            rooms.len(),
            texts.len()
        );
        return Ok(());
    }
    for fault in &faults {
        eprintln!("{fault}");
    }
    Err(Failure::new(
        format!("tidy found {} faults, listed above", faults.len()),
        "each line names the place and the rule",
    ))
}

fn top_level(root: &Path, faults: &mut Vec<String>) {
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && !TOP.contains(&name.as_str()) {
            faults.push(format!(
                "{name}: the top level is fixed; give it a room inside one of the folders"
            ));
        }
    }
}

/// A room is small enough to be read, and its files depend on one another in one direction, up to
/// small circles.
fn limits(address: &str, extent: &Extent, faults: &mut Vec<String>) {
    if extent.lines > MAX_ROOM {
        faults.push(format!(
            "{address}: {} lines; split the room by purpose ({MAX_ROOM} at most)",
            extent.lines
        ));
    }
    let circles = extent.circles.iter();
    for circle in circles.filter(|circle| circle.len() > MAX_CIRCLE) {
        faults.push(format!(
            "{address}: {} files need one another ({MAX_CIRCLE} at most): {}",
            circle.len(),
            circle.join(" ")
        ));
    }
}

fn naming(tree: &Path, room: &Room, faults: &mut Vec<String>) {
    if room.name != room.address.replace('/', "-") {
        faults.push(format!(
            "{}: the crate is named {:?}, not by its address",
            room.address, room.name
        ));
    }
    for file in ["src/lib.rs", "src/main.rs"] {
        let path = tree.join(&room.address).join(file);
        if let Ok(text) = std::fs::read_to_string(path)
            && !text.starts_with("//!")
        {
            faults.push(format!(
                "{}/{file}: the first line must say in //! what the room is for",
                room.address
            ));
        }
    }
}

fn source(file: &str, text: &str, faults: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > MAX_FILE {
        faults.push(format!(
            "{file}: {lines} lines; split it by purpose ({MAX_FILE} at most)"
        ));
    }
    for (index, line) in text.lines().enumerate() {
        // An address and a row of a table can't be broken.
        let comment = line.trim_start().strip_prefix("//");
        let breakable = |text: &str| !text.contains("://") && !text.contains('|');
        if line.chars().count() > WIDTH && comment.is_some_and(breakable) && file != WIDE {
            faults.push(format!(
                "{file}:{}: a comment of more than {WIDTH} columns",
                index + 1
            ));
        }
    }
    if file.starts_with("tests/xtask/") {
        return; // this file names what it looks for
    }
    let tests = file.starts_with("tests/")
        || ["/tests/", "/testing/"]
            .iter()
            .any(|room| file.contains(room));
    let policies = tests || POLICIES.iter().any(|room| file.starts_with(room));
    for (index, line) in program(text) {
        let code = line.split("//").next().unwrap_or(line);
        let place = format!("{file}:{}", index + 1);
        if code.contains("#[path = \"..") {
            faults.push(format!(
                "{place}: a module of another folder; what tests share has a crate (tests/support)"
            ));
        }
        if ![UNSAFE_ROOM, HOSTILE]
            .iter()
            .any(|room| file.starts_with(room))
            && ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"]
                .iter()
                .any(|word| code.contains(word))
        {
            faults.push(format!("{place}: unsafe belongs into {UNSAFE_ROOM}"));
        }
        if file.starts_with("config/")
            && !file.contains("/tests/")
            && !file.contains("/examples/")
            && let Some(word) = NOT_IN_CONFIG.iter().find(|word| code.contains(**word))
        {
            faults.push(format!(
                "{place}: {word} in config, which does no I/O and reads no clock"
            ));
        }
        let (unproven, may) = UNPROVEN;
        if code.contains(unproven) && !may.iter().any(|room| file.starts_with(room)) {
            faults.push(format!(
                "{place}: {unproven} proves nothing; it is for probes and hooks alone"
            ));
        }
        if !policies && names_policy(code) {
            faults.push(format!(
                "{place}: a policy by its name; ask PolicyName::decides, or its own file"
            ));
        }
    }
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("#[ignore") {
            faults.push(format!(
                "{file}:{}: a test that is switched off proves nothing",
                index + 1
            ));
        }
    }
}

/// Whether a line names a policy: a variant, and no constant or function of the type.
fn names_policy(code: &str) -> bool {
    let other = |rest: &str| rest.starts_with("ALL") || rest.starts_with(char::is_lowercase);
    code.split("PolicyName::").skip(1).any(|rest| !other(rest))
}

/// README stays short.
fn door(readme: &str, faults: &mut Vec<String>) {
    if readme.is_empty() || readme.len() > MAX_README {
        faults.push(format!(
            "README.md: {} bytes; 1 to {MAX_README}, and the rest beside its room",
            readme.len()
        ));
    }
}

/// The names in `TAIL` of the stories.
fn tail(stories: &str) -> BTreeSet<&str> {
    let list = stories
        .split_once("const TAIL")
        .map_or("", |(_, rest)| rest);
    let list = list.split_once("];").map_or("", |(list, _)| list);
    let names = list.split('"').skip(1).step_by(2);
    names.filter_map(|name| name.rsplit("::").next()).collect()
}

/// Every row of a table whose second column is `test` names tests that exist, and marks those that
/// `cargo xtask test` doesn't run.
fn promises(
    file: &str,
    document: &str,
    texts: &BTreeMap<PathBuf, String>,
    tail: &BTreeSet<&str>,
    faults: &mut Vec<String>,
) {
    let mut inside = false;
    for line in document.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        match cells.as_slice() {
            ["", _, second, ""] if second.starts_with("test") => inside = true,
            ["", _, rule, ""] if rule.starts_with("--") => {}
            ["", _, proofs, ""] if inside => {
                let named: Vec<&str> = proofs.split('`').skip(1).step_by(2).collect();
                if named.is_empty() {
                    faults.push(format!("{file}: a promise names no test: {line}"));
                }
                for test in named.iter().filter(|test| !exists(test, texts)) {
                    faults.push(format!("{file}: no test `{test}` for the promise: {line}"));
                }
                let after = proofs.split('`').skip(2).step_by(2);
                for (test, after) in named.iter().zip(after) {
                    let name = test.rsplit("::").next().unwrap_or_default();
                    if tail.contains(name) != after.starts_with(TAIL_MARK) {
                        faults.push(format!(
                            "{file}: `{test}` is marked{TAIL_MARK} where it is run by that name alone, and nowhere else"
                        ));
                    }
                }
            }
            _ => inside = false,
        }
    }
}

/// `room/path::test_name`: some file below the path has that function.
fn exists(test: &str, texts: &BTreeMap<PathBuf, String>) -> bool {
    let Some((place, name)) = test.rsplit_once("::") else {
        return false;
    };
    texts.iter().any(|(file, text)| {
        file.to_string_lossy().starts_with(place) && text.contains(&format!("fn {name}("))
    })
}

/// The texts of all files of the rooms whose names end so.
fn read_all(root: &Path, endings: &[&str]) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders: Vec<PathBuf> = ["agent", "config", "image", "master", "tests"]
        .iter()
        .map(PathBuf::from)
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root.join(&folder))
            .into_iter()
            .flatten()
            .flatten()
        {
            let path = folder.join(entry.file_name());
            let name = entry.file_name().to_string_lossy().into_owned();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && name != "target" && !name.starts_with('.') => {
                    folders.push(path);
                }
                Ok(kind) if kind.is_file() => {
                    let ending = path.extension().and_then(|ending| ending.to_str());
                    if ending.is_some_and(|ending| endings.contains(&ending))
                        && let Ok(text) = std::fs::read_to_string(root.join(&path))
                    {
                        found.insert(path, text);
                    }
                }
                _ => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_or_a_circle_that_is_too_large_is_a_fault() {
        let faults_of = |address: &str, lines: usize, circle: usize| {
            let circles = vec![vec!["a".to_owned(); circle]];
            let mut faults = Vec::new();
            limits(
                address,
                &Extent {
                    files: 1,
                    lines,
                    circles,
                },
                &mut faults,
            );
            faults.len()
        };
        assert_eq!(faults_of("master/auth", MAX_ROOM, MAX_CIRCLE), 0);
        assert_eq!(faults_of("master/auth", MAX_ROOM + 1, 1), 1);
        assert_eq!(faults_of("master/auth", 1, MAX_CIRCLE + 1), 1);
    }

    #[test]
    fn unsafe_outside_its_room_is_a_fault() {
        let text = "//! x\nfn f() { unsafe { g() } }\n";
        let mut faults = Vec::new();
        source("agent/init/src/main.rs", text, &mut faults);
        assert_eq!(faults.len(), 1);
        source("agent/sys/src/lib.rs", text, &mut faults);
        assert_eq!(faults.len(), 1);
    }

    #[test]
    fn a_comment_that_is_too_wide_is_a_fault() {
        let faults_of = |line: String| {
            let mut faults = Vec::new();
            source("agent/sys/src/lib.rs", &line, &mut faults);
            faults.len()
        };
        assert_eq!(faults_of(format!("    /// {}", "x".repeat(93))), 1);
        assert_eq!(faults_of(format!("    /// {}", "ä".repeat(92))), 0);
        assert_eq!(faults_of(format!("//! <https://{}>", "x".repeat(93))), 0);
        assert_eq!(faults_of(format!("//! | {} |", "x".repeat(93))), 0);
        assert_eq!(faults_of(format!("let x = \"{}\";", "x".repeat(93))), 0);
    }

    #[test]
    fn a_clock_in_config_is_a_fault_but_not_in_its_tests() {
        let mut faults = Vec::new();
        source(
            "config/attest/src/x.rs",
            "#[cfg(test)]\nmod tests { fn f() { SystemTime::now(); } }",
            &mut faults,
        );
        assert!(faults.is_empty());
        source(
            "config/attest/src/x.rs",
            "fn f() { SystemTime::now(); }",
            &mut faults,
        );
        assert_eq!(faults.len(), 1);
        source(
            "config/attest/src/x.rs",
            "#[cfg(test)]\nuse x::y;\nfn f() { SystemTime::now(); }",
            &mut faults,
        );
        assert_eq!(faults.len(), 2, "also behind a test item");
    }

    #[test]
    fn a_policy_is_named_in_its_own_rooms_and_in_tests_only() {
        let faults_of = |file: &str, text: &str| {
            let mut faults = Vec::new();
            source(file, text, &mut faults);
            faults.len()
        };
        let named = "fn f() { g(PolicyName::Queue) }";
        assert_eq!(faults_of("master/attest/src/record.rs", named), 1);
        assert_eq!(
            faults_of(
                "master/attest/src/record.rs",
                "use config_kube::PolicyName::{Queue};"
            ),
            1
        );
        assert_eq!(
            faults_of(
                "master/attest/src/record.rs",
                "fn f() { g(PolicyName::ALL, PolicyName::default()) }"
            ),
            0
        );
        for file in [
            "config/kube/src/policy.rs",
            "master/attest/src/policy/mod.rs",
            "config/attest/tests/properties.rs",
        ] {
            assert_eq!(faults_of(file, named), 0, "{file}");
        }
    }

    #[test]
    fn a_server_of_which_nothing_is_proven_is_for_probes_and_hooks_alone() {
        let faults_of = |file: &str| {
            let mut faults = Vec::new();
            let text = "fn f() { config_tls::unproven_probe_server(); }";
            source(file, text, &mut faults);
            faults.len()
        };
        assert_eq!(faults_of("agent/handlers/src/http.rs"), 0);
        assert_eq!(faults_of("agent/images/src/http.rs"), 1);
        assert_eq!(faults_of("master/gateway/src/pod_tls.rs"), 1);
    }

    #[test]
    fn a_promise_must_name_a_test_that_exists() {
        let texts = BTreeMap::from([(
            PathBuf::from("agent/init/src/gpt.rs"),
            "fn grows() {} fn shrinks() {}".to_owned(),
        )]);
        let tail = tail("const TAIL: &[&str] = &[\n    \"gpt::shrinks\",\n];\n\"gpt::grows\"");
        let table = |test: &str| {
            format!(
                "| promise | test |\n|---|---|\n| it grows | {test} |\n\n| a | b |\n|---|---|\n| c | d |\n"
            )
        };
        let faults_of = |test: &str| {
            let mut faults = Vec::new();
            promises("a.md", &table(test), &texts, &tail, &mut faults);
            faults.len()
        };
        assert_eq!(faults_of("`agent/init::grows`"), 0);
        assert_eq!(faults_of("`agent/init::grows` (tail)"), 1);
        assert_eq!(
            faults_of("`agent/init::grows`, `agent/init::shrinks` (tail)"),
            0
        );
        assert_eq!(faults_of("`agent/init::shrinks`, `agent/init::grows`"), 1);
        assert_eq!(faults_of("`agent/init::fades`"), 1);
        assert_eq!(faults_of("none"), 1);
    }

    #[test]
    fn a_long_readme_is_a_fault() {
        let faults_of = |bytes: usize| {
            let mut faults = Vec::new();
            door(&"x".repeat(bytes), &mut faults);
            faults.len()
        };
        assert_eq!(
            [0, 1, MAX_README, MAX_README + 1].map(faults_of),
            [1, 0, 0, 1]
        );
    }
}
