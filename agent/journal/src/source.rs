//! A line, and where lines come from.

use std::io;

/// Microseconds since 1970, within the range of a timestamp.
pub(crate) type Micros = i64;
/// The end of the year 9998.
const LAST: Micros = 253_370_764_800_000_000;

/// A line of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// When it was written.
    pub(crate) time: Micros,
    /// Without a newline and without control characters.
    pub(crate) text: String,
}

/// Returns lines one after another, and never waits for more.
pub(crate) trait Source: Send {
    /// The next line; `None` at the current end.
    ///
    /// # Errors
    /// The file, or the kernel's log, can't be read. The end of what is written is no error.
    fn next(&mut self) -> io::Result<Option<Line>>;
}

/// Milliseconds as microseconds, within the range of a timestamp.
pub(crate) fn micros(millis: u64) -> Micros {
    let all = i64::try_from(millis).map_or(LAST, |millis| millis.saturating_mul(1000));
    within(all)
}

/// A timestamp clamped to the representable range: a torn line may hold any number.
pub(crate) fn within(time: Micros) -> Micros {
    time.clamp(0, LAST)
}

/// The text of a line as it may reach a terminal.
pub(crate) fn clean(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let plain = |c: char| {
        if c.is_control() && c != '\t' {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        }
    };
    text.chars().map(plain).collect()
}
