//! Service output as bounded lines, and how much of it may go to the console. Pure.

use std::time::Duration;

pub use config_machine::journal::MAX_TEXT;

const BURST: u32 = 200;
const PER_SECOND: u32 = 50;

/// Cuts a byte stream into lines of at most [`MAX_TEXT`] bytes, without newlines; a longer line
/// becomes several.
#[derive(Debug, Default)]
pub struct Splitter {
    rest: Vec<u8>,
}

impl Splitter {
    /// Takes more bytes and returns the lines that are complete now.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        for byte in bytes {
            if *byte == b'\n' {
                lines.push(std::mem::take(&mut self.rest));
                continue;
            }
            // Not before the next byte has come: that may be the end of a line of this length.
            if self.rest.len() >= MAX_TEXT {
                lines.push(std::mem::take(&mut self.rest));
            }
            self.rest.push(*byte);
        }
        lines
    }

    /// The last line of a stream that ended without a line end.
    pub fn finish(&mut self) -> Option<Vec<u8>> {
        let rest = std::mem::take(&mut self.rest);
        (!rest.is_empty()).then_some(rest)
    }
}

/// Limits the lines that one service may put on the console, which is a slow serial line.
#[derive(Debug)]
pub struct Gate {
    tokens: u32,
    filled: Duration,
    held_back: u64,
}

impl Gate {
    /// A full allowance at `now`.
    pub fn new(now: Duration) -> Self {
        Self {
            tokens: BURST,
            filled: now,
            held_back: 0,
        }
    }

    /// Whether a line may pass at `now`; `Some(n)` says that `n` were held back before it.
    pub fn pass(&mut self, now: Duration) -> Option<u64> {
        let whole = u32::try_from(now.saturating_sub(self.filled).as_secs()).unwrap_or(u32::MAX);
        if whole > 0 {
            self.tokens = self
                .tokens
                .saturating_add(whole.saturating_mul(PER_SECOND))
                .min(BURST);
            self.filled = now;
        }
        if self.tokens == 0 {
            self.held_back += 1;
            return None;
        }
        self.tokens -= 1;
        Some(std::mem::take(&mut self.held_back))
    }
}

/// Size and number of a service's log files.
#[derive(Debug, Clone, Copy)]
pub struct Rotation {
    /// Largest size of one file in bytes.
    pub limit: u64,
    /// Number of old files kept, `<name>.1` being the newest.
    pub keep: u32,
}

impl Rotation {
    /// The renames, in order, to make before `more` bytes are added to a file of `size` bytes; none
    /// while it has room.
    pub fn before(self, path: &str, size: u64, more: u64) -> Vec<(String, String)> {
        if size == 0 || size.saturating_add(more) <= self.limit {
            return Vec::new();
        }
        let name = |number: u32| {
            if number == 0 {
                path.to_owned()
            } else {
                format!("{path}.{number}")
            }
        };
        (0..self.keep)
            .rev()
            .map(|number| (name(number), name(number + 1)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Gate, MAX_TEXT, Rotation, Splitter};
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn the_gate_holds_back_floods_and_counts_them() {
        let mut gate = Gate::new(Duration::ZERO);
        let passed = (0..1000)
            .filter(|_| gate.pass(Duration::ZERO).is_some())
            .count();
        assert_eq!(passed, 200);
        assert_eq!(gate.pass(Duration::from_secs(1)), Some(800));
    }

    #[test]
    fn the_longest_line_is_followed_by_no_empty_one() {
        let text = "x".repeat(MAX_TEXT);
        let mut splitter = Splitter::default();
        let lines = splitter.push(format!("{text}\n{text}y\n").as_bytes());
        assert_eq!(lines, [text.as_bytes(), text.as_bytes(), b"y"]);
        assert_eq!(splitter.finish(), None);
    }

    #[test]
    fn files_move_up_when_full_and_the_oldest_is_overwritten() {
        let rotation = Rotation {
            limit: 100,
            keep: 2,
        };
        assert_eq!(rotation.before("a.log", 90, 10), []);
        let moves = [
            ("a.log.1".to_owned(), "a.log.2".to_owned()),
            ("a.log".to_owned(), "a.log.1".to_owned()),
        ];
        assert_eq!(rotation.before("a.log", 90, 11), moves);
        assert_eq!(
            rotation.before("a.log", 0, 500),
            [],
            "one line longer than the limit still has to go somewhere"
        );
    }

    proptest! {
        /// No byte is lost or invented but line ends, however the stream is cut, and no line is too
        /// long.
        #[test]
        fn lines_hold_all_bytes(text in "[a-c\n]{0,300}", cut in 1_usize..50, long in 0_usize..10_000) {
            let stream = format!("{text}{}", "x".repeat(long));
            let mut splitter = Splitter::default();
            let mut lines: Vec<Vec<u8>> = stream.as_bytes().chunks(cut).flat_map(|bytes| splitter.push(bytes)).collect();
            lines.extend(splitter.finish());
            prop_assert!(lines.iter().all(|line| line.len() <= MAX_TEXT));
            prop_assert_eq!(lines.concat(), stream.replace('\n', "").into_bytes());
        }
    }
}
