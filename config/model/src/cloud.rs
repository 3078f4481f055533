//! cloud-config as an envelope: YAML that contains the document as one literal block, for tools
//! that write only cloud-configs.
//!
//! Either `pratique: |` with the document below it, or a `write_files` entry of [`PATH`] with the
//! document as `content: |`. All other keys are refused with their line, as nothing here would
//! execute them. Faults in the document have their position in the envelope, where its author reads
//! them.

use crate::check::quoted;
use crate::fault::{FaultKind, Faults, Position, Sink};
use serde_yaml_ng::{Mapping, Value};

/// The path of the `write_files` entry that contains the document.
pub const PATH: &str = "/etc/pratique/config.toml";
const HEADER: &str = "#cloud-config";
/// Limit of brackets in a cloud-config: a few thousand cost the YAML parser milliseconds, 64 KiB of
/// them seconds.
const MAX_BRACKETS: usize = 8 << 10;
const EXPECTED: &str = "`pratique: |` with the TOML document below it, indented, and nothing else";

/// Whether a text is marked as a cloud-config.
pub(crate) fn is_one(text: &str) -> bool {
    text.trim_start_matches('\u{feff}').starts_with(HEADER)
}

/// A document and its position in the envelope.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Carried<'t> {
    envelope: &'t str,
    /// The document, without the block's indentation.
    pub(crate) text: String,
    /// Lines of the envelope before it.
    lines: usize,
    /// Spaces before each of its lines.
    indent: usize,
}

/// A document that was found: where its key stands, and its text if it is one.
type Found = (Position, Option<String>);

/// Parses the envelope.
pub(crate) fn open<'t>(envelope: &'t str, sink: &mut Sink<'t>) -> Option<Carried<'t>> {
    let keys = keys(envelope, sink)?;
    let mut found = documents(envelope, &keys, sink).into_iter();
    let Some((at, text)) = found.next() else {
        if sink.is_empty() {
            sink.fault(
                FaultKind::Missing,
                &Position::default(),
                "a cloud-config without our document",
                EXPECTED,
            );
        }
        return None;
    };
    for (again, _) in found {
        sink.fault(
            FaultKind::Duplicate,
            &again,
            "a second document",
            "one document",
        );
    }
    let carried = text.and_then(|text| Carried::locate(envelope, text));
    if carried.is_none() {
        let found = format!("`{}` that is not a literal block", at.key);
        sink.fault(
            FaultKind::WrongType,
            &at,
            found,
            "`|` after the key, and the TOML document below it, indented",
        );
    }
    carried
}

/// The envelope's keys; `None`, after recording the fault, if it is not YAML or has no keys.
fn keys<'t>(envelope: &'t str, sink: &mut Sink<'t>) -> Option<Mapping> {
    // The YAML parser's time grows with the square of open brackets; the document itself is one
    // string.
    if envelope.bytes().filter(|byte| b"[{".contains(byte)).count() > MAX_BRACKETS {
        sink.fault(
            FaultKind::TooDeep,
            &Position::default(),
            "more brackets than any document has",
            EXPECTED,
        );
        return None;
    }
    match serde_yaml_ng::from_str::<Value>(envelope.trim_start_matches('\u{feff}')) {
        Ok(Value::Mapping(keys)) => Some(keys),
        Ok(_) => {
            sink.fault(
                FaultKind::OtherFormat,
                &Position::default(),
                "a cloud-config without keys",
                EXPECTED,
            );
            None
        }
        Err(error) => {
            let at = error.location().map_or(0, |location| location.index());
            let place = Position {
                span: at..at,
                key: String::new(),
            };
            sink.fault(
                FaultKind::Syntax,
                &place,
                format!("no YAML: {error}"),
                "a cloud-config document in YAML",
            );
            None
        }
    }
}

/// The documents under the envelope's keys, normally one; every other key is a fault.
fn documents<'t>(envelope: &'t str, keys: &Mapping, sink: &mut Sink<'t>) -> Vec<Found> {
    let mut found = Vec::new();
    for (key, value) in keys {
        let key = key.as_str().unwrap_or_default();
        match key {
            "pratique" => {
                found.push((place(envelope, key, key), value.as_str().map(str::to_owned)));
            }
            "write_files" => found.extend(files(envelope, value, sink)),
            _ => {
                let shown = format!("the key {}", quoted(key));
                sink.fault(
                    FaultKind::UnknownKey,
                    &place(envelope, key, key),
                    shown,
                    EXPECTED,
                );
            }
        }
    }
    found
}

/// The documents among `write_files`, normally one.
fn files(envelope: &str, list: &Value, sink: &mut Sink<'_>) -> Vec<Found> {
    let whole = place(envelope, "write_files", "write_files");
    let Value::Sequence(entries) = list else {
        sink.fault(
            FaultKind::WrongType,
            &whole,
            "`write_files` that is not a list",
            "a list of files",
        );
        return Vec::new();
    };
    let mut found = Vec::new();
    for entry in entries {
        let Value::Mapping(entry) = entry else {
            sink.fault(
                FaultKind::WrongType,
                &whole,
                "an entry that is not a table",
                "`path` and `content`",
            );
            continue;
        };
        found.extend(file(envelope, entry, sink));
    }
    found
}

fn file(
    envelope: &str,
    entry: &Mapping,
    sink: &mut Sink<'_>,
) -> Option<(Position, Option<String>)> {
    let path = entry
        .get("path")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if path != PATH {
        let at = place(envelope, path, "write_files.path");
        let found = format!("the file {}", quoted(path));
        sink.fault(
            FaultKind::BadValue,
            &at,
            found,
            &format!("`{PATH}`: no other file can be written on this image"),
        );
        return None;
    }
    for key in entry.keys().map(|key| key.as_str().unwrap_or_default()) {
        // Owner and mode of the file are ignored, as no file is written.
        if !["path", "content", "owner", "permissions"].contains(&key) {
            let at = place(envelope, key, &format!("write_files.{key}"));
            sink.fault(
                FaultKind::UnknownKey,
                &at,
                format!("the key {}", quoted(key)),
                "`path` and `content`",
            );
        }
    }
    let at = place(envelope, PATH, "write_files.content");
    Some((
        at,
        entry
            .get("content")
            .and_then(Value::as_str)
            .map(str::to_owned),
    ))
}

/// The position of the first line with a word, comments excepted; the start of the text if there is
/// none.
fn place(envelope: &str, word: &str, key: &str) -> Position {
    let mut at = 0;
    for line in envelope.split_inclusive('\n') {
        if let Some(column) = line
            .find(word)
            .filter(|_| !word.is_empty() && !line.trim_start().starts_with('#'))
        {
            return Position {
                span: at + column..at + column + word.len(),
                key: key.to_owned(),
            };
        }
        at += line.len();
    }
    Position {
        span: 0..0,
        key: key.to_owned(),
    }
}

impl<'t> Carried<'t> {
    /// Finds the lines of the envelope that hold the text, all with the same indentation, as in a
    /// literal block.
    fn locate(envelope: &'t str, text: String) -> Option<Self> {
        let wanted: Vec<&str> = text.lines().collect();
        let first = wanted.iter().position(|line| !line.is_empty())?;
        let all: Vec<&str> = envelope.lines().collect();
        let fits = |lines: &usize| {
            let indent = all[lines + first].strip_suffix(wanted[first])?.len();
            let same = |(line, wanted): (&&str, &&str)| {
                let rest = line
                    .strip_prefix(&*" ".repeat(indent))
                    .unwrap_or(line.trim_start());
                rest == *wanted
            };
            let block = all.get(lines.checked_sub(1)?)?.contains('|');
            let same = all[*lines..].iter().zip(&wanted).all(same);
            (block && same && indent > 0).then_some((*lines, indent))
        };
        let starts = 1..(all.len() + 1).checked_sub(wanted.len())?;
        let (lines, indent) = starts.into_iter().find_map(|lines| fits(&lines))?;
        Some(Self {
            envelope,
            text,
            lines,
            indent,
        })
    }

    /// The document's faults with their positions in the envelope.
    pub(crate) fn placed(&self, mut faults: Faults) -> Faults {
        for fault in &mut faults.list {
            fault.span = self.outer(fault.span.start)..self.outer(fault.span.end);
            fault.line += self.lines;
            fault.column += self.indent;
        }
        faults
    }

    /// The offset in the envelope of an offset in the document.
    fn outer(&self, at: usize) -> usize {
        let before = &self.text[..at.min(self.text.len())];
        let line = before.matches('\n').count();
        let column = before.len() - before.rfind('\n').map_or(0, |end| end + 1);
        let start: usize = self
            .envelope
            .split_inclusive('\n')
            .take(self.lines + line)
            .map(str::len)
            .sum();
        (start + self.indent + column).min(self.envelope.len())
    }

    /// The bytes of the envelope that hold the document.
    #[cfg(test)]
    fn range(&self) -> std::ops::Range<usize> {
        self.outer(0)..self.outer(self.text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(envelope: &str) -> Option<Carried<'_>> {
        let mut sink = Sink::new(envelope);
        open(envelope, &mut sink).filter(|_| sink.is_empty())
    }

    #[test]
    fn both_envelopes_carry_the_exact_text() {
        let block = "#cloud-config\npratique: |\n  a = 1\n\n  b = '''\n   x\n  '''\n";
        assert_eq!(carried(block).unwrap().text, "a = 1\n\nb = '''\n x\n'''\n");
        let file = format!(
            "#cloud-config\n# pratique\nwrite_files:\n- content: |-\n    a = 1\n  path: {PATH}\n  owner: root:root\n"
        );
        let found = carried(&file).unwrap();
        assert_eq!(
            (found.text.as_str(), &file[found.range()]),
            ("a = 1", "a = 1")
        );
    }

    #[test]
    fn what_is_not_a_literal_block_is_refused() {
        for value in [
            "\"a = 1\"",
            ">\n  a = 1\n  b = 2",
            "{a: 1}",
            "[]",
            "",
            "|\n",
        ] {
            assert_eq!(
                carried(&format!("#cloud-config\npratique: {value}\n")),
                None,
                "{value}"
            );
        }
    }
}
