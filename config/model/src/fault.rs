//! Faults of a document: position, what was found, what was expected, and a suggestion.

use crate::defaults::{MAX_EXCERPT, MAX_FAULTS};
use std::fmt;
use std::ops::Range;

/// The kind of a fault; stable, for tests and programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// More bytes than a document may have.
    TooLarge,
    /// Bytes that are not UTF-8 text.
    NotText,
    /// A document of another format.
    OtherFormat,
    /// Not TOML, or a cloud-config that is not YAML.
    Syntax,
    /// Tables or arrays nested too deep.
    TooDeep,
    /// A version that this program does not support, or `version` not first.
    Version,
    /// A key that the schema does not have.
    UnknownKey,
    /// A required key is missing.
    Missing,
    /// A value of another type.
    WrongType,
    /// A value of the right type with a wrong format or out of range.
    BadValue,
    /// A duplicate name.
    Duplicate,
    /// A name that refers to nothing in the document.
    Dangling,
    /// Two parts of the document that exclude each other.
    Conflict,
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Its kind.
    pub kind: FaultKind,
    /// Byte range in the document.
    pub span: Range<usize>,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Dotted path of the key; empty for the document as a whole.
    pub key: String,
    /// What was found.
    pub found: String,
    /// What was expected.
    pub expected: String,
    /// What to do, if there is a likely cause.
    pub suggestion: Option<String>,
    /// The document's line, shortened, and the columns to mark.
    excerpt: Excerpt,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Excerpt {
    text: String,
    marks: Range<usize>,
}

/// All faults of a document, sorted by position. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    /// Name of the document.
    pub file: String,
    /// The faults, sorted by position.
    pub list: Vec<Fault>,
    /// Number of faults that are not listed.
    pub omitted: usize,
}

impl std::error::Error for Faults {}

impl fmt::Display for Faults {
    /// Several lines for each fault, with the line of the document that contains it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.list.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            self.long(fault, f)?;
        }
        if self.omitted > 0 {
            writeln!(
                f,
                "\n{}: {} more faults are not shown",
                self.file, self.omitted
            )?;
        }
        Ok(())
    }
}

impl Faults {
    /// One line for each fault, without quoting the document: for consoles and logs.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.list.iter().map(|fault| self.short(fault)).collect();
        if self.omitted > 0 {
            lines.push(format!(
                "{}: {} more faults are not shown",
                self.file, self.omitted
            ));
        }
        lines
    }

    fn short(&self, fault: &Fault) -> String {
        let key = if fault.key.is_empty() {
            String::new()
        } else {
            format!("{}: ", fault.key)
        };
        let suggestion = fault
            .suggestion
            .as_deref()
            .map(|text| format!("; {text}"))
            .unwrap_or_default();
        format!(
            "{}:{}:{}: {key}found {}, expected {}{suggestion}",
            self.file, fault.line, fault.column, fault.found, fault.expected
        )
    }

    fn long(&self, fault: &Fault, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, fault.line, fault.column)?;
        if !fault.key.is_empty() {
            write!(f, ": {}", fault.key)?;
        }
        writeln!(f)?;
        let number = fault.line.to_string();
        let gutter = " ".repeat(number.len());
        if !fault.excerpt.text.is_empty() {
            writeln!(f, "  {number} | {}", fault.excerpt.text)?;
            let before = " ".repeat(fault.excerpt.marks.start);
            let marks = "^".repeat(fault.excerpt.marks.len().max(1));
            writeln!(f, "  {gutter} | {before}{marks}")?;
        }
        writeln!(f, "  {gutter} = found {}", fault.found)?;
        writeln!(f, "  {gutter} = expected {}", fault.expected)?;
        if let Some(suggestion) = &fault.suggestion {
            writeln!(f, "  {gutter} = {suggestion}")?;
        }
        Ok(())
    }
}

/// The position of a value or key: its bytes, and its dotted path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) span: Range<usize>,
    pub(crate) key: String,
}

impl Position {
    /// The position of a key below this one.
    pub(crate) fn below(&self, key: &str, span: Range<usize>) -> Self {
        let dot = if self.key.is_empty() { "" } else { "." };
        Self {
            span,
            key: format!("{}{dot}{}", self.key, shorten(key, 40)),
        }
    }

    /// The position of an entry in a table with arbitrary keys.
    pub(crate) fn entry(&self, key: &str, span: Range<usize>) -> Self {
        Self {
            span,
            key: format!("{}[{}]", self.key, shorten(key, 64)),
        }
    }

    /// The position of an element in an array.
    pub(crate) fn element(&self, index: usize, span: Range<usize>) -> Self {
        Self {
            span,
            key: format!("{}[{index}]", self.key),
        }
    }
}

/// Collects the faults of one document.
#[derive(Debug)]
pub(crate) struct Sink<'t> {
    text: &'t str,
    list: Vec<Fault>,
    misspelt: Vec<String>,
    omitted: usize,
    /// The document contains a secret, so no fault may quote it.
    secret: bool,
}

/// Keys whose values are secrets.
const SECRETS: [&str; 3] = ["password", "identity_token", "registry_token"];
/// The table in which an unknown key may be a misspelt one of these.
const SECRET_TABLE: &str = "registry";

impl<'t> Sink<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        let secret = SECRETS.iter().any(|key| text.contains(key));
        Self {
            text,
            list: Vec::new(),
            misspelt: Vec::new(),
            omitted: 0,
            secret,
        }
    }

    /// Whether text that was not understood must not be shown.
    pub(crate) fn hides(&self) -> bool {
        self.secret
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether the value of a key already has a fault, or the key was misspelt: then it is wrong,
    /// not missing.
    pub(crate) fn has_fault_at(&self, key: &str) -> bool {
        self.misspelt.iter().any(|meant| meant == key)
            || self.list.iter().any(|fault| fault.key == key)
    }

    /// Records the key that an unknown key was probably meant to be.
    pub(crate) fn misspelt(&mut self, meant: String) {
        if self.misspelt.len() < MAX_FAULTS {
            self.misspelt.push(meant);
        }
    }

    /// Adds a fault without a suggestion.
    pub(crate) fn fault(
        &mut self,
        kind: FaultKind,
        place: &Position,
        found: impl Into<String>,
        expected: &str,
    ) {
        self.suggest(kind, place, found, expected, None);
    }

    /// Adds a fault.
    pub(crate) fn suggest(
        &mut self,
        kind: FaultKind,
        place: &Position,
        found: impl Into<String>,
        expected: &str,
        suggestion: Option<String>,
    ) {
        if self.list.len() >= MAX_FAULTS {
            self.omitted += 1;
            return;
        }
        let span = inside(self.text, &place.span);
        let (line, column) = position(self.text, span.start);
        let key = place.key.clone();
        let hidden = self.secret || kind == FaultKind::UnknownKey && key.starts_with(SECRET_TABLE);
        let excerpt = if hidden {
            Excerpt::default()
        } else {
            excerpt(self.text, &span)
        };
        self.list.push(Fault {
            kind,
            span,
            line,
            column,
            key,
            found: found.into(),
            expected: expected.to_owned(),
            suggestion,
            excerpt,
        });
    }

    /// Drops faults that syntax errors of the same document may have caused: missing keys, anything
    /// on an unreadable line and, after an unreadable table header (`shifted`), everything that
    /// follows.
    pub(crate) fn drop_consequences(&mut self, shifted: bool) {
        let broken: Vec<usize> = self
            .list
            .iter()
            .filter(|f| f.kind == FaultKind::Syntax)
            .map(|f| f.line)
            .collect();
        let first = broken.iter().copied().min().unwrap_or(usize::MAX);
        self.list.retain(|fault| match fault.kind {
            FaultKind::Syntax | FaultKind::TooDeep => true,
            FaultKind::Missing | FaultKind::Conflict | FaultKind::Dangling | FaultKind::Version => {
                false
            }
            FaultKind::TooLarge
            | FaultKind::NotText
            | FaultKind::OtherFormat
            | FaultKind::UnknownKey
            | FaultKind::WrongType
            | FaultKind::BadValue
            | FaultKind::Duplicate => {
                !(broken.contains(&fault.line) || shifted && fault.line > first)
            }
        });
    }

    /// All faults, sorted by position.
    pub(crate) fn into_faults(mut self, file: &str) -> Faults {
        self.list
            .sort_by_key(|fault| (fault.span.start, fault.span.end));
        Faults {
            file: file.to_owned(),
            list: self.list,
            omitted: self.omitted,
        }
    }
}

/// The text with at most `most` characters, control characters made visible.
pub(crate) fn shorten(text: &str, most: usize) -> String {
    let mut short: String = text.chars().take(most).flat_map(visible).collect();
    if text.chars().nth(most).is_some() {
        short.push('…');
    }
    short
}

fn visible(c: char) -> Vec<char> {
    if c.is_control() {
        c.escape_default().collect()
    } else {
        vec![c]
    }
}

/// The range limited to the text and moved onto character boundaries.
fn inside(text: &str, span: &Range<usize>) -> Range<usize> {
    let floor = |mut at: usize| {
        at = at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let start = floor(span.start);
    start..floor(span.end).max(start)
}

/// Line and column in characters, from 1.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let column = before
        .rsplit('\n')
        .next()
        .map_or(0, |rest| rest.chars().count())
        + 1;
    (line, column)
}

/// The line that a range starts in, cut around the range so that it fits, and the columns of the
/// range in it.
fn excerpt(text: &str, span: &Range<usize>) -> Excerpt {
    const LEAD: usize = 40;
    let start = text[..span.start].rfind('\n').map_or(0, |at| at + 1);
    let end = text[span.start..]
        .find('\n')
        .map_or(text.len(), |at| span.start + at);
    let line: Vec<char> = text[start..end].trim_end_matches('\r').chars().collect();
    let from = text[start..span.start].chars().count().min(line.len());
    let to = (from
        + text[span.start..span.end.min(end).max(span.start)]
            .chars()
            .count())
    .min(line.len());
    // A private key in the wrong place must not be printed on a console or in a log.
    if text[start..end].contains("PRIVATE KEY") {
        return Excerpt::default();
    }
    let cut = if from > MAX_EXCERPT - 20 {
        from - LEAD
    } else {
        0
    };
    let visible: String = line[cut..]
        .iter()
        .take(MAX_EXCERPT)
        .map(|c| if c.is_control() { ' ' } else { *c })
        .collect();
    let last = cut + MAX_EXCERPT;
    let lead = if cut > 0 { "…" } else { "" };
    let tail = if line.len() > last { "…" } else { "" };
    let shift = lead.chars().count();
    Excerpt {
        text: format!("{lead}{visible}{tail}").trim_end().to_owned(),
        marks: (from - cut + shift)..(to.min(last) - cut + shift),
    }
}
