//! The file beside the log of verdicts that says how many records could not be written.
//!
//! Its one block is allocated when there is room, and written in place: also on a full disk.

use crate::error::{Error, file};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

/// The file's name in the log's folder; not one that `*` names beside the segments.
pub(crate) const COUNT: &str = ".missing";

/// What the file [`COUNT`] says: how many records are missing after which record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Noted {
    pub(crate) after: u64,
    pub(crate) missing: u64,
}

impl Noted {
    /// Always of one length, so that it is written in place.
    pub(crate) fn text(self) -> String {
        format!("{:020} {:020}\n", self.after, self.missing)
    }

    /// The reverse; nothing is missing by what can't be read.
    fn parse(text: &str) -> Self {
        let both = text.trim_end().split_once(' ');
        let numbers = both.and_then(|(after, missing)| {
            Some(Self {
                after: after.parse().ok()?,
                missing: missing.parse().ok()?,
            })
        });
        numbers.unwrap_or_default()
    }
}

/// Opens the file that counts, or makes it with a block of its own.
pub(crate) fn open_count(path: &Path) -> Result<(File, Noted), Error> {
    let fail = |source| file("open", path, source);
    let mut open = std::fs::OpenOptions::new();
    let mut count = open
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(fail)?;
    let mut text = Vec::new();
    let limit = Noted::default().text().len() as u64;
    Read::by_ref(&mut count)
        .take(limit)
        .read_to_end(&mut text)
        .map_err(fail)?;
    let noted = Noted::parse(&String::from_utf8_lossy(&text));
    let folder = path.parent().unwrap_or(path);
    count
        .write_all_at(noted.text().as_bytes(), 0)
        .and_then(|()| count.sync_all())
        .and_then(|()| File::open(folder)?.sync_all())
        .map_err(fail)?;
    Ok((count, noted))
}
