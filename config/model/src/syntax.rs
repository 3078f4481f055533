//! Turns errors of the TOML parser into faults: one per line, without the consequences of an
//! unclosed bracket.

use crate::fault::{FaultKind, Position, Sink, shorten};

/// One error of the parser.
struct Error<'t> {
    message: String,
    place: Position,
    /// Number of the line, from 0.
    line: usize,
    /// The text that the error is about.
    text: &'t str,
}

/// Records the errors; returns true if what follows the first one may have been read into the wrong
/// table.
pub(crate) fn note(errors: Vec<toml::de::Error>, text: &str, sink: &mut Sink<'_>) -> bool {
    let mut errors: Vec<Error<'_>> = errors
        .into_iter()
        .map(|error| located(&error, text))
        .collect();
    errors.sort_by_key(|error| error.place.span.start);
    let unclosed = errors
        .iter()
        .position(|error| inside_bracket(&error.message));
    if let Some(first) = unclosed {
        let line = errors[first].line;
        let place = errors[first].place.clone();
        let array = errors[first].message.contains("in array");
        let (what, bracket) = if array {
            ("an array", "]")
        } else {
            ("an inline table", "}")
        };
        errors.retain(|error| error.line < line);
        let expected = format!("`{bracket}` before the next key");
        sink.fault(
            FaultKind::Syntax,
            &place,
            format!("{what} that is still open here"),
            &expected,
        );
    }
    errors.dedup_by_key(|error| error.line);
    for error in &errors {
        let (found, expected) = words(error, sink.hides());
        sink.fault(FaultKind::Syntax, &error.place, found, &expected);
    }
    let headers = |error: &Error<'_>| {
        text.lines()
            .nth(error.line)
            .is_some_and(|line| line.trim_start().starts_with('['))
    };
    unclosed.is_some()
        || errors
            .iter()
            .any(|error| headers(error) && error.message != DUPLICATE)
}

const DUPLICATE: &str = "duplicate key";

/// Whether the message means that the parser read the next line as part of a bracket.
fn inside_bracket(message: &str) -> bool {
    ["unexpected `=` in array", "missing key for inline table"]
        .iter()
        .any(|start| message.starts_with(start))
}

fn located<'t>(error: &toml::de::Error, text: &'t str) -> Error<'t> {
    let span = error.span().unwrap_or(text.len()..text.len());
    let line = text.get(..span.start).unwrap_or(text).matches('\n').count();
    let about = text.get(span.clone()).unwrap_or_default();
    Error {
        message: error.message().to_owned(),
        place: Position {
            span,
            key: String::new(),
        },
        line,
        text: about,
    }
}

/// What was found and what was expected.
fn words(error: &Error<'_>, hides: bool) -> (String, String) {
    let shown = if hides {
        String::new()
    } else {
        shorten(error.text, 40)
    };
    let unquoted = [
        "string values must be quoted",
        "invalid float",
        "invalid boolean",
    ];
    if error.message == DUPLICATE {
        let key = if hides {
            "a key".to_owned()
        } else {
            format!("the key `{shown}`")
        };
        return (
            format!("{key} a second time"),
            "each key once in its table".to_owned(),
        );
    }
    if unquoted
        .iter()
        .any(|start| error.message.starts_with(start))
    {
        let found = if shown.is_empty() {
            "no value".to_owned()
        } else {
            format!("`{shown}` without quotes")
        };
        return (
            found,
            "a string in double quotes, a number, `true`, `false`, an array or a table".to_owned(),
        );
    }
    let (what, expected) = error
        .message
        .split_once(", expected ")
        .unwrap_or((&error.message, "TOML"));
    let about = if shown.is_empty() {
        String::new()
    } else {
        format!(" at `{shown}`")
    };
    (
        format!("a syntax error{about}: {what}"),
        expected.to_owned(),
    )
}
