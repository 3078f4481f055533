//! The keys of log lines are one set, which the developer's guide documents: who searches a log for
//! a cause or a pod looks for one word. A failure is logged with its causes.

use crate::source::{bare, closing, program};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The document that has the table of keys.
pub(super) const GUIDE: &str = "tests/GUIDE.md";
/// How the table begins.
const HEAD: &str = "| log key |";
/// Macros that write a log line.
const MACROS: &[&str] = &[
    "tracing::trace!(",
    "tracing::debug!(",
    "tracing::info!(",
    "tracing::warn!(",
    "tracing::error!(",
];
/// The key of a failure with its causes; no other key has them.
const ERROR: &str = "error";

/// A key that the table does not have, a failure under another key or in a message, a line without
/// a sentence, and a row that no line uses.
pub(super) fn keys(texts: &BTreeMap<PathBuf, String>, guide: &str, faults: &mut Vec<String>) {
    let known = table(guide);
    let mut used = BTreeSet::new();
    let programs = texts.iter().filter(|(file, _)| !file.starts_with("tests"));
    for (file, text) in programs {
        for log in log_lines(text) {
            let place = format!("{}:{}", file.display(), log.line + 1);
            if !log.is_sentence {
                faults.push(format!(
                    "{place}: a log line without a sentence that says what happens"
                ));
            }
            if log.hides_failure {
                faults.push(format!(
                    "{place}: a failure in a log line's message; its key is `{ERROR}`"
                ));
            }
            fields(file, &log.fields, &known, faults);
            used.extend(log.fields.into_iter().map(|field| field.key));
        }
    }
    for key in known.iter().filter(|key| !used.contains(**key)) {
        faults.push(format!(
            "{GUIDE}: no log line has the key `{key}`; take it from the table"
        ));
    }
}

/// What is wrong with the fields of one log line.
fn fields(file: &Path, fields: &[Field], known: &BTreeSet<&str>, faults: &mut Vec<String>) {
    for field in fields {
        let place = format!("{}:{}", file.display(), field.line + 1);
        if !known.contains(field.key.as_str()) {
            faults.push(format!(
                "{place}: the log key `{}` is not in the table of {GUIDE}; use one that is there, or add it",
                field.key
            ));
        }
        if field.key == ERROR && field.loses_causes {
            faults.push(format!(
                "{place}: a failure without its causes; write `{ERROR} = chain(&error)` of config_errors"
            ));
        }
        if field.is_chain && field.key != ERROR {
            faults.push(format!(
                "{place}: a failure under the log key `{}`; its key is `{ERROR}`",
                field.key
            ));
        }
    }
}

/// The keys of the table: the texts in backticks in its first column.
fn table(guide: &str) -> BTreeSet<&str> {
    let rows = guide.lines().skip_while(|line| !line.starts_with(HEAD));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect()
}

/// A log line.
struct LogLine {
    line: usize,
    fields: Vec<Field>,
    /// Whether it has a message, with a word besides its values; or with keys, where a sentence
    /// that is recorded elsewhere, too, is a value.
    is_sentence: bool,
    /// Whether an error is a value of its message.
    hides_failure: bool,
}

/// One `key = value` of a log line.
struct Field {
    line: usize,
    key: String,
    /// Whether the value is an error with its causes.
    is_chain: bool,
    /// Whether the value shows a failure's own text alone: by its `Display` or `Debug`. A plain
    /// value is text already, as the macros take no error as it is.
    loses_causes: bool,
}

/// All log lines of a program.
fn log_lines(text: &str) -> Vec<LogLine> {
    let mut found = Vec::new();
    if !text.contains("tracing::") {
        return found;
    }
    let (lines, kept): (Vec<usize>, Vec<&str>) = program(text).into_iter().unzip();
    let text = kept.join("\n");
    let bare = bare(&text);
    let starts = MACROS
        .iter()
        .flat_map(|name| bare.match_indices(name).map(|(at, name)| at + name.len()));
    for start in starts {
        let line = lines[bare[..start].matches('\n').count()];
        let end = closing(&bare, start - 1) - 1;
        let mut log = LogLine {
            line,
            fields: Vec::new(),
            is_sentence: false,
            hides_failure: false,
        };
        for (from, to) in arguments(&bare[start..end]) {
            let argument = text[start + from..start + to].trim();
            if argument.starts_with('"') {
                log.is_sentence = has_words(argument) || !log.fields.is_empty();
                let values = &text[start + to..end];
                log.hides_failure = argument.contains("{error") || values.contains("chain(");
                break; // what follows are the message's values
            }
            let (name, value) = argument.split_once('=').unwrap_or((argument, argument));
            let value = value.trim();
            let is_chain = value.contains("chain(");
            let shown = value.starts_with(['%', '?']) || value.contains("to_string()");
            let name = name.trim().trim_start_matches(['%', '?']);
            if name.contains(':') {
                continue; // `target: …`
            }
            log.fields.push(Field {
                line,
                key: name.to_owned(),
                is_chain,
                loses_causes: shown && !is_chain,
            });
        }
        found.push(log);
    }
    found
}

/// Whether a message says something besides the values in its braces.
fn has_words(message: &str) -> bool {
    let outside = message.split('{').map(|part| part.rsplit('}').next());
    outside
        .flatten()
        .any(|part| part.contains(char::is_alphabetic))
}

/// Where the arguments of a call stand, in a text without strings and comments.
fn arguments(bare: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let (mut at, mut start) = (0, 0);
    while let Some(byte) = bare.as_bytes().get(at) {
        match byte {
            b'(' | b'[' | b'{' => at = closing(bare, at),
            b',' => {
                found.push((start, at));
                at += 1;
                start = at;
            }
            _ => at += 1,
        }
    }
    found.push((start, bare.len()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "text\n\n| log key | value |\n|---|---|\n| `error` | it |\n| `pod`, `node` | names |\n\n| `other` |\n";

    fn faults_of(line: &str) -> usize {
        let all = "tracing::info!(error = a.chain(), pod, %node, \"x\");";
        let mut faults = Vec::new();
        let files = [("agent/a/src/a.rs", all), ("agent/a/src/b.rs", line)];
        let texts = files.map(|(file, text)| (PathBuf::from(file), text.to_owned()));
        keys(&BTreeMap::from(texts), TABLE, &mut faults);
        faults.len()
    }

    #[test]
    fn a_log_line_has_keys_of_the_table_alone() {
        assert_eq!(
            faults_of("tracing::warn!(pod = f(a, b), ?node, \"why = {why}\", why = 1);"),
            0
        );
        assert_eq!(faults_of("tracing::warn!(pods = 1, \"x\");"), 1);
        assert_eq!(faults_of("tracing::debug!(other, \"x\");"), 1);
        assert_eq!(faults_of("tracing::debug!(target: \"x\", pod, \"x\");"), 0);
        assert_eq!(
            faults_of("tracing::debug!(\n    self.name,\n    \"x\",\n);"),
            1
        );
        assert_eq!(
            faults_of("#[cfg(test)]\nmod tests { fn f() { tracing::info!(x) } }"),
            0
        );
    }

    #[test]
    fn a_failure_with_its_causes_has_the_key_error() {
        assert_eq!(faults_of("tracing::warn!(pod = error.chain(), \"x\");"), 1);
        assert_eq!(
            faults_of("tracing::warn!(error = %chain(&error), \"x\");"),
            0
        );
    }

    #[test]
    fn a_failure_is_logged_with_its_causes() {
        for bare in [
            "%error",
            "?error",
            "error = %error",
            "error = ?other",
            "error = error.to_string()",
        ] {
            assert_eq!(
                faults_of(&format!("tracing::warn!({bare}, \"x\");")),
                1,
                "{bare}"
            );
        }
        for whole in [
            "error = chain(&error)",
            "error = %config_errors::chain(&error)",
            "error = error.chain()",
            "error = text",
            "error",
        ] {
            assert_eq!(
                faults_of(&format!("tracing::warn!({whole}, \"x\");")),
                0,
                "{whole}"
            );
        }
    }

    #[test]
    fn a_log_line_says_what_happens_and_has_its_failure_under_a_key() {
        for (line, faults) in [
            ("tracing::error!(\"{}\", text);", 1),
            ("tracing::error!(\"{text}: {}\", text);", 1),
            ("tracing::error!(pod);", 1),
            ("tracing::warn!(pod, \"{message}\");", 0),
            ("tracing::error!(\"{}\", chain(&error));", 2),
            ("tracing::error!(\"{error}\");", 2),
            ("tracing::error!(pod, \"it ends: {}\", error.chain());", 1),
            ("tracing::error!(pod, \"it ends: {error:?}\");", 1),
            ("tracing::error!(pod, \"{node} ends after {} s\", 7);", 0),
            ("tracing::error!(error = chain(&error), \"it ends\");", 0),
        ] {
            assert_eq!(faults_of(line), faults, "{line}");
        }
    }

    #[test]
    fn a_key_of_the_table_is_used() {
        let mut faults = Vec::new();
        keys(&BTreeMap::new(), TABLE, &mut faults);
        assert_eq!(faults.len(), 3);
    }
}
