//! The console: milestones and failures, one line each, so that a person or a test can follow the boot.

use std::fs::File;
use std::io::Write;

use crate::fatal::Fatal;

/// The system console, or nothing where it can't be opened (a machine without one boots all the same).
#[derive(Debug)]
pub struct Console(Option<File>);

impl Console {
    /// Opens `/dev/console` for writing.
    pub fn open() -> Self {
        Self(File::options().write(true).open("/dev/console").ok())
    }

    /// Writes `pratique: <ms since kernel start> <text>`.
    pub fn milestone(&self, text: &str) {
        self.line(&format!("pratique: {} {text}", agent_sys::clock::since_boot().as_millis()));
    }

    /// Writes a failure with what to do about it.
    pub fn fatal(&self, fatal: &Fatal) {
        self.line(&fatal.line());
    }

    /// Writes one line, cleaned of control characters, in a single call.
    pub fn line(&self, text: &str) {
        let mut line = clean(text);
        line.push('\n');
        if let Some(mut file) = self.0.as_ref() {
            // A console that refuses text leaves nobody to tell.
            drop(file.write_all(line.as_bytes()));
        }
    }
}

/// `text` with control characters replaced, so that no program can steer the terminal of who reads.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '\u{FFFD}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::clean;

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(clean("a\u{1b}[2Jb\tc\r"), "a\u{FFFD}[2Jb\tc\u{FFFD}");
    }
}
