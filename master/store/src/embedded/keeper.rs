//! The keeper thread does slow work that must not delay writes: it creates the next log segment and
//! writes state files.

use super::disk::Appending;
use super::folder::Folder;
use super::image;
use super::log::{BlankSegment, SegmentOptions};
use super::queue::Queue;
use super::writer::Job;
use crate::error::StoreError;
use crate::history::Capture;
use std::fs::File;
use std::io::{self, BufWriter};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A task of the keeper; it answers with a job in the writer's queue.
#[derive(Debug)]
pub(super) enum Task {
    /// Create a log file filled with zeros.
    Prepare(Arc<Folder>, SegmentOptions),
    /// Write the state and remove the logs before it.
    Save(Arc<Folder>, Box<Capture>),
}

/// Works until the sender of `tasks` is dropped.
pub(super) fn run(tasks: &mpsc::Receiver<Task>, answers: &Queue<Job>) {
    for task in tasks {
        match task {
            Task::Prepare(folder, segments) => {
                answers.push_own(Job::Prepared(BlankSegment::make(
                    &folder,
                    &segments,
                    segments.bytes,
                )));
            }
            Task::Save(folder, capture) => answers.push_own(Job::Saved(save(&folder, &capture))),
        }
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

fn save(folder: &Folder, capture: &Capture) -> Result<u64, StoreError> {
    let path = folder.unfinished("state");
    let written = (|| {
        let to = Appending::new(folder.disk().clone(), File::create(&path)?);
        let mut to = BufWriter::with_capacity(1 << 20, to);
        let bytes = image::write_state(capture, now(), &mut to)?;
        let file = to
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?
            .into_file();
        folder.disk().flush(&file)?;
        Ok(bytes)
    })();
    // The logs before it stay until the state file is complete, so a failed flush loses nothing.
    let written = written.map_err(|error| StoreError::full_or("write the state to", &path, error));
    let named = written.and_then(|bytes| {
        folder
            .adopt(&path, &folder.state(capture.head))
            .map(|()| bytes)
    });
    let bytes = match named {
        Ok(bytes) => bytes,
        Err(error) => {
            std::fs::remove_file(&path).ok();
            return Err(error);
        }
    };
    // From here on a start uses the new state file. If the process ends before the old files are
    // removed, the next start removes them.
    let files = folder.files()?;
    let states = files.states.iter().filter(|(head, _)| *head < capture.head);
    for (_, path) in files
        .logs
        .iter()
        .filter(|(base, _)| *base < capture.head)
        .chain(states)
    {
        std::fs::remove_file(path).map_err(StoreError::file("remove", path))?;
    }
    Ok(bytes)
}
