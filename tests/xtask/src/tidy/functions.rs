//! A function is read at once, and each of its parameters has a name of its own. Clippy's limit of
//! lines is for tests, too, which may list more; this one is for what runs in a cluster.

use crate::source::{bare, closing, item_end, program, test_modules};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Lines of a function at most, from its `fn` to its last bracket.
const MAX_LINES: usize = 70;
/// How a function begins; a type such as `fn(u8)` has no space.
const KEYWORD: &str = "fn ";
/// Folders that hold no program.
const TESTS: &[&str] = &["/tests/", "/testing/", "/benches/", "/examples/"];

/// A function that is too long, and a parameter that is a tuple: a struct names what it holds, two
/// parameters name it, too, and a tuple does neither.
pub(super) fn functions(texts: &BTreeMap<PathBuf, String>, faults: &mut Vec<String>) {
    let modules = test_files(texts);
    for (file, text) in texts {
        let name = file.display().to_string();
        let of_tests = name.starts_with("tests/")
            || TESTS.iter().any(|folder| name.contains(folder))
            || file
                .with_extension("")
                .ancestors()
                .any(|module| modules.contains(module));
        if !of_tests {
            in_program(&name, text, faults);
        }
    }
}

/// The faults of one file, the tests in it aside.
fn in_program(file: &str, text: &str, faults: &mut Vec<String>) {
    let (lines, kept): (Vec<usize>, Vec<&str>) = program(text).into_iter().unzip();
    let bare = bare(&kept.join("\n"));
    for function in all(&bare) {
        let line = bare[..function.start].matches('\n').count();
        let place = format!("{file}:{}", lines[line] + 1);
        let name = function.name;
        let length = bare[function.start..function.end].matches('\n').count() + 1;
        if length > MAX_LINES {
            faults.push(format!(
                "{place}: {name} has {length} lines; cut it at its seams ({MAX_LINES} at most)"
            ));
        }
        for parameter in function.parameters.into_iter().filter(|it| is_tuple(it)) {
            faults.push(format!(
                "{place}: {name} takes the tuple `{}`; name its parts, by a struct or as parameters",
                parameter.split_whitespace().collect::<Vec<_>>().join(" ")
            ));
        }
    }
}

/// The modules that files declare for their tests alone, as paths without an ending. Files in a
/// folder of such a name belong to the module.
fn test_files(texts: &BTreeMap<PathBuf, String>) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for (file, text) in texts {
        let folder = file.parent().unwrap_or(Path::new(""));
        let own = match file.file_stem().and_then(OsStr::to_str) {
            Some("lib" | "main" | "mod") => folder.to_owned(),
            _ => file.with_extension(""),
        };
        for module in test_modules(text) {
            found.insert(match module.path {
                Some(path) => folder.join(path).with_extension(""),
                None => own.join(module.name),
            });
        }
    }
    found
}

/// One function of a text.
struct Function<'a> {
    name: &'a str,
    /// Where its `fn` is.
    start: usize,
    /// Behind its last bracket, or its semicolon.
    end: usize,
    parameters: Vec<&'a str>,
}

/// All functions of a text without strings and comments.
fn all(bare: &str) -> Vec<Function<'_>> {
    let mut found = Vec::new();
    for (start, _) in bare.match_indices(KEYWORD) {
        let behind = start + KEYWORD.len();
        let length = bare[behind..]
            .find(|letter: char| !in_name(letter))
            .unwrap_or(bare.len() - behind);
        let open = behind_generics(bare, behind + length);
        let is_function = length > 0
            && !bare[..start].ends_with(in_name)
            && bare.as_bytes().get(open) == Some(&b'(');
        if is_function {
            let inside = &bare[open + 1..closing(bare, open)];
            let inside = inside.strip_suffix(')').unwrap_or(inside);
            found.push(Function {
                name: &bare[behind..behind + length],
                start,
                end: item_end(bare, start),
                parameters: parts(inside),
            });
        }
    }
    found
}

fn in_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// The offset behind the generic parameters that begin at `at`, or `at` where there are none.
fn behind_generics(bare: &str, at: usize) -> usize {
    let (mut depth, mut before) = (0_usize, b' ');
    for (offset, byte) in bare.bytes().enumerate().skip(at) {
        match byte {
            b'<' => depth += 1,
            // Not the arrow of `Fn() -> T`.
            b'>' if before != b'-' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return if byte == b'>' { offset + 1 } else { offset };
        }
        before = byte;
    }
    bare.len()
}

/// What the commas of a list part; those inside of brackets do not.
fn parts(list: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut depth, mut start, mut before) = (0_usize, 0, b' ');
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'(' | b'[' | b'{' | b'<' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b'>' if before != b'-' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                found.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
        before = byte;
    }
    found.push(list[start..].trim());
    found.retain(|part| !part.is_empty());
    found
}

/// Whether a parameter is a tuple of two values or more, by its pattern or by its type. `()`, which
/// a trait may ask for, is none, nor are the brackets of `&mut (impl Read + Seek)`.
fn is_tuple(parameter: &str) -> bool {
    let (pattern, kind) = parameter.split_once(": ").unwrap_or((parameter, ""));
    [pattern, kind].into_iter().any(|text| {
        let inside = behind_reference(text).strip_prefix('(');
        let inside = inside.and_then(|text| text.trim_end().strip_suffix(')'));
        inside.is_some_and(|inside| parts(inside).len() > 1)
    })
}

/// A type or a pattern without the `&`, the lifetime and the `mut` before it.
fn behind_reference(text: &str) -> &str {
    let text = text.trim_start();
    let rest = text
        .strip_prefix('&')
        .or_else(|| text.strip_prefix("mut "))
        .or_else(|| {
            text.strip_prefix('\'')
                .and_then(|name| name.split_once(' '))
                .map(|(_, rest)| rest)
        });
    rest.map_or(text, behind_reference)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(file: &str, text: &str) -> Vec<String> {
        let others = [(
            "agent/sys/src/lib.rs",
            "#[cfg(test)]\nmod fakes;\n#[cfg(test)]\n#[path = \"inner/other.rs\"]\nmod tests;\n",
        )];
        let files = others.into_iter().chain([(file, text)]);
        let texts = files.map(|(file, text)| (PathBuf::from(file), text.to_owned()));
        let mut faults = Vec::new();
        functions(&texts.collect(), &mut faults);
        faults
    }

    fn faults_in(text: &str) -> usize {
        faults_of("agent/sys/src/x.rs", text).len()
    }

    /// A function with as many lines.
    fn long(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    a();\n".repeat(lines - 2))
    }

    #[test]
    fn a_long_function_is_a_fault() {
        assert_eq!(faults_in(&long(MAX_LINES)), 0);
        let text = format!("struct A;\n\n{}", long(MAX_LINES + 1));
        let faults = faults_of("agent/sys/src/x.rs", &text);
        assert_eq!(faults.len(), 1);
        assert!(faults[0].starts_with("agent/sys/src/x.rs:3: long has 71 lines"));
    }

    #[test]
    fn functions_of_tests_may_be_long() {
        let text = long(MAX_LINES + 1);
        for file in [
            "tests/cluster/src/x.rs",
            "agent/sys/tests/x.rs",
            "agent/sys/src/fakes.rs",
            "agent/sys/src/fakes/deeper/x.rs",
            "agent/sys/src/inner/other.rs",
        ] {
            assert_eq!(faults_of(file, &text).len(), 0, "{file}");
        }
        assert_eq!(faults_of("agent/sys/src/inner/fakes.rs", &text).len(), 1);
        assert_eq!(
            faults_in(&format!("#[cfg(test)]\nmod tests {{\n{text}}}\n")),
            0
        );
    }

    #[test]
    fn a_tuple_is_no_parameter() {
        for taken in [
            "pair: (u8, u16)",
            "(a, b): (u8, u16)",
            "(a, b): Pair",
            "pair: &(u8, u16)",
            "a: u8, pair: &'a mut (u8, u16)",
            "mut pair: (HashMap<u8, u8>, u16)",
            "\n    pair: (\n        u8,\n        u16,\n    ),\n",
        ] {
            assert_eq!(faults_in(&format!("fn f({taken}) {{}}")), 1, "{taken}");
            let generic = format!("fn f<'a, F: Fn(u8, u8) -> Option<u8>>({taken}) {{}}");
            assert_eq!(faults_in(&generic), 1, "{taken}");
        }
        for taken in [
            "",
            "self, (): &()",
            "file: &mut (impl Read + Seek)",
            "pairs: &[(u8, u16)]",
            "pairs: HashMap<u8, (u8, u16)>",
            "pair: Option<(u8, u16)>",
            "each: impl Fn((u8, u16)) -> Vec<(u8, u16)>, other: u8",
        ] {
            assert_eq!(faults_in(&format!("fn f({taken}) {{}}")), 0, "{taken}");
        }
        assert_eq!(faults_in("fn f() { g(|(a, b): (u8, u16)| a + b) }"), 0);
        assert_eq!(faults_in("struct A { f: fn((u8, u16)) }"), 0);
        assert_eq!(faults_in("// fn f(a: (u8, u16)) {}"), 0);
    }
}
