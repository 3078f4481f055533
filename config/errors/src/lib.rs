//! How an error and its causes are written. Each layer's `Display` describes that layer only and
//! gives its cause as `source`. The edge of a program prints the whole chain by one of these
//! functions.

use std::error::Error;

/// The error and its causes in one line, for a log, a condition or an event:
/// `what failed: why: why that`.
pub fn chain(error: &dyn Error) -> String {
    joined(error, ": ")
}

/// The error and its causes, one a line, for a person at a terminal.
pub fn lines(error: &dyn Error) -> String {
    joined(error, "\n  because: ")
}

fn joined(error: &dyn Error, between: &str) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(between);
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the disk is full")]
    struct Disk;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot write the file")]
    struct File(#[source] Disk);

    #[derive(Debug, thiserror::Error)]
    #[error("cannot save")]
    struct Save(#[source] File);

    #[test]
    fn every_cause_is_written_once_from_the_outermost_inwards() {
        let error = Save(File(Disk));
        assert_eq!(
            chain(&error),
            "cannot save: cannot write the file: the disk is full"
        );
        assert_eq!(
            lines(&error),
            "cannot save\n  because: cannot write the file\n  because: the disk is full"
        );
        assert_eq!(chain(&Disk), "the disk is full");
    }
}
