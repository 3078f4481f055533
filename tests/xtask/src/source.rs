//! A partial parser of Rust for checks of a file's text: strings and comments, matching brackets,
//! and which lines are tests.

use std::ops::Range;

/// What marks an item that is compiled for tests alone.
const TEST: &str = "#[cfg(test)]";

/// The lines of a file that are not part of a test item, with their indexes.
pub(crate) fn program(text: &str) -> Vec<(usize, &str)> {
    let tests = test_items(text);
    let mut start = 0;
    let mut lines = Vec::new();
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let first = start + line.len() - line.trim_start().len();
        if !tests.iter().any(|item| item.contains(&first)) {
            lines.push((index, line.trim_end_matches('\n')));
        }
        start += line.len();
    }
    lines
}

/// A module that a file has for its tests alone, and that is a file of its own.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TestModule<'a> {
    pub(crate) name: &'a str,
    /// Its file, where an attribute says so.
    pub(crate) path: Option<&'a str>,
}

/// The modules of a file that are compiled for tests alone.
pub(crate) fn test_modules(text: &str) -> Vec<TestModule<'_>> {
    let items = test_items(text).into_iter().map(|item| &text[item]);
    let modules = items.filter_map(|item| {
        let (before, name) = item.strip_suffix(';')?.rsplit_once("mod ")?;
        let path = before.split_once("#[path = \"").map(|(_, path)| path);
        let path = path.and_then(|path| path.split('"').next());
        name.bytes()
            .all(in_name)
            .then_some(TestModule { name, path })
    });
    modules.collect()
}

/// The text with spaces in the place of what comments, strings and characters contain. It has the
/// same length and the same lines, so an offset in the one is an offset in the other.
pub(crate) fn bare(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut bare = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => find(bytes, at, b"\n"),
            b'/' if bytes[at..].starts_with(b"/*") => block_comment(bytes, at),
            b'"' => string(bytes, at),
            b'r' => raw_string(bytes, at),
            b'\'' => character(bytes, at),
            _ => at,
        };
        // An offset may be inside a character of several bytes; a line's end stays.
        for byte in &mut bare[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    String::from_utf8(bare).unwrap_or_default()
}

/// Where the bracket that opens at `open` closes, in a text without strings and comments: the
/// offset behind it.
pub(crate) fn closing(bare: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (offset, byte) in bare.bytes().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' if depth <= 1 => return offset + 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
    }
    bare.len()
}

/// Where the items are that [`TEST`] marks, with their attributes.
fn test_items(text: &str) -> Vec<Range<usize>> {
    if !text.contains(TEST) {
        return Vec::new();
    }
    let bare = bare(text);
    let starts = bare.match_indices(TEST).map(|(start, _)| start);
    starts.map(|start| start..item_end(&bare, start)).collect()
}

/// Where the item ends that begins at `start` with its attributes: behind its `;` or its block.
pub(crate) fn item_end(bare: &str, start: usize) -> usize {
    let mut at = start;
    while let Some(byte) = bare.as_bytes().get(at) {
        match byte {
            b';' => return at + 1,
            // The attribute's own bracket, a list of parameters, or a type.
            b'(' | b'[' => at = closing(bare, at),
            b'{' => {
                let end = closing(bare, at);
                let follows = bare[end..].trim_start();
                if !follows.starts_with(';') {
                    return end;
                }
                at = end;
            }
            b')' | b']' | b'}' => return at,
            _ => at += 1,
        }
    }
    bare.len()
}

/// The offset of `wanted` at or behind `at`, or the end of the text.
fn find(bytes: &[u8], at: usize, wanted: &[u8]) -> usize {
    let found = bytes[at..]
        .windows(wanted.len())
        .position(|window| window == wanted);
    found.map_or(bytes.len(), |offset| at + offset)
}

fn in_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The offset behind the comment that begins at `at`; such comments nest.
fn block_comment(bytes: &[u8], at: usize) -> usize {
    let mut depth = 0_usize;
    let mut here = at;
    while here < bytes.len() {
        if bytes[here..].starts_with(b"/*") {
            depth += 1;
            here += 2;
        } else if bytes[here..].starts_with(b"*/") {
            depth -= 1;
            here += 2;
            if depth == 0 {
                return here;
            }
        } else {
            here += 1;
        }
    }
    bytes.len()
}

/// The offset behind the string whose quote opens at `at`.
fn string(bytes: &[u8], at: usize) -> usize {
    let mut here = at + 1;
    while here < bytes.len() {
        match bytes[here] {
            b'\\' => here += 2,
            b'"' => return here + 1,
            _ => here += 1,
        }
    }
    bytes.len()
}

/// The offset behind the raw string whose `r` is at `at`, or `at` where that is part of a name.
fn raw_string(bytes: &[u8], at: usize) -> usize {
    let before = bytes[..at].iter().rev();
    let word = at - before.take_while(|byte| in_name(**byte)).count();
    if !matches!(&bytes[word..=at], b"r" | b"br" | b"cr") {
        return at;
    }
    let hashes = bytes[at + 1..]
        .iter()
        .take_while(|byte| **byte == b'#')
        .count();
    let quote = at + 1 + hashes;
    if bytes.get(quote) != Some(&b'"') {
        return at;
    }
    let mut end = vec![b'"'];
    end.resize(1 + hashes, b'#');
    (find(bytes, quote + 1, &end) + end.len()).min(bytes.len())
}

/// The offset behind the character that begins at `at`, or `at` where it is a lifetime.
fn character(bytes: &[u8], at: usize) -> usize {
    if bytes.get(at + 1) == Some(&b'\\') {
        return (find(bytes, at + 3, b"'") + 1).min(bytes.len());
    }
    // A character has up to four bytes, and of several bytes none is ASCII.
    let length = (2..=5).find(|length| bytes.get(at + length) == Some(&b'\''));
    match length {
        Some(2) => at + 3,
        Some(length) if !bytes[at + 1..at + length].is_ascii() => at + length + 1,
        _ => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_a_file_without_its_test_items() {
        let text = "\
fn first() {}
#[cfg(test)]
use std::{fs, io};
#[cfg(test)]
#[path = \"other.rs\"]
mod other;
fn second<'a>() -> char { '{' }
#[cfg(test)]
mod tests {
    const TEXT: &str = r#\"
}
\"#; // }
    fn inner() { \"}\"; /* } */ }
}
impl X {
    #[cfg(test)]
    fn of<A, B>(a: [A; 2], b: B) -> Self {
        X { a, b }
    }
    fn third() {}
}
";
        let kept: Vec<&str> = program(text).iter().map(|(_, line)| *line).collect();
        let expected = [
            "fn first() {}",
            "fn second<'a>() -> char { '{' }",
            "impl X {",
            "    fn third() {}",
            "}",
        ];
        assert_eq!(kept, expected);
        assert_eq!(program(text)[1].0, 6);
        let other = TestModule {
            name: "other",
            path: Some("other.rs"),
        };
        assert_eq!(test_modules(text), [other]);
    }

    #[test]
    fn what_strings_and_comments_contain_is_blank() {
        let text =
            "a(\"(\\\"\", b'\\'', '\u{e9}', r##\"x\"# \"##, br\"(\") // )\n/* /* */ */ &'a brr";
        let bare = bare(text);
        assert_eq!(bare.len(), text.len());
        let words: Vec<&str> = bare.split_whitespace().collect();
        assert_eq!(
            words,
            ["a(", ",", "b", ",", ",", ",", "b", ")", "&'a", "brr"]
        );
        assert_eq!(closing(&bare, 1), bare.find(')').unwrap() + 1);
    }
}
