//! Recovery: reads the newest state file, then the logs after it.

use super::folder::Folder;
use super::image::{self, Load};
use super::log;
use super::record::Purpose;
use crate::error::StoreError;
use crate::history::{HistoryLimits, Published};
use std::fs::File;
use std::io::BufReader;

/// The recovered state.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) published: Published,
    /// Bytes of changes since the state file.
    pub(super) log_bytes: u64,
    /// Bytes of the state file.
    pub(super) state_bytes: u64,
}

/// Reads the folder. Removes files that a newer state file replaced.
pub(super) fn recover(folder: &Folder, limits: HistoryLimits) -> Result<Recovered, StoreError> {
    folder.sweep()?;
    let mut files = folder.files()?;
    let mut load = Load::new(limits);
    let mut state_bytes = 0;
    // The newest is complete: it got its name only after its flush. Older ones were not removed in
    // time.
    if let Some((_, path)) = files.states.pop() {
        let file = File::open(&path).map_err(StoreError::file("open", &path))?;
        let summary = image::read(BufReader::with_capacity(1 << 20, file), &mut load)
            .map_err(|why| StoreError::Corrupt(format!("{}: {}", path.display(), why.text())))?;
        if summary.purpose != Purpose::State {
            let what = "it is a snapshot; restore it with `master restore`";
            return Err(StoreError::Corrupt(format!("{}: {what}", path.display())));
        }
        state_bytes = summary.bytes;
    }
    let mut published = load.finish();
    // A store without a state file begins at revision 1, with the first log.
    let start = published.head();
    let mut log_bytes = 0;
    for (base, path) in &files.logs {
        // Earlier logs are in the state file. They are left over if the process ended between the
        // rename of that file and their removal.
        if *base >= start {
            log_bytes += log::replay(folder, path, *base, &mut published)?;
        }
    }
    published.pack();
    // Only now that everything was read: after a fault, all files are there for a repair.
    let replaced = files.logs.iter().filter(|(base, _)| *base < start);
    for (_, path) in replaced.chain(&files.states) {
        std::fs::remove_file(path).map_err(StoreError::file("remove", path))?;
    }
    Ok(Recovered {
        published,
        log_bytes,
        state_bytes,
    })
}
