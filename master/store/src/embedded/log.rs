//! The log: every acknowledged change since the state file, in segments, one frame per flush.
//!
//! A segment is filled with zeros before its use: flushing into new blocks needs a journal commit
//! of the file system, which costs many times as much as flushing into allocated ones, and a full
//! disk is noticed before the current segment is full. A segment is named by the revision before
//! its first change. At most one frame is unflushed at any time, so a broken frame before a
//! complete one is damage, and a broken last frame is a torn write that was never acknowledged.

use super::folder::Folder;
use super::frame::{self, FileId};
use super::image::file_id;
use super::record::{Purpose, Record, Records, VERSION};
use crate::error::StoreError;
use crate::history::Published;
use crate::model::Revision;
use bytes::Bytes;
use config_errors::chain;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of the first segment after a start: small, as the start waits for it.
const FIRST_SEGMENT: u64 = 1 << 20;
/// Bytes at the end of a segment that only deletions may use when no further segment can be
/// created, so that an admin can still free room.
const RESERVE: u64 = 64 << 10;
/// Pause between two attempts to create a segment on a full disk.
const RETRY: Duration = Duration::from_millis(500);

/// How segments are created.
#[derive(Debug, Clone, Copy)]
pub(super) struct SegmentOptions {
    /// Bytes of a segment.
    pub(super) bytes: u64,
    /// Bytes to leave free on the file system.
    pub(super) spare: u64,
}

/// A new segment file filled with zeros.
#[derive(Debug)]
pub(super) struct BlankSegment {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl BlankSegment {
    /// Creates one of `bytes`, flushed when it returns.
    pub(super) fn make(
        folder: &Folder,
        segments: &SegmentOptions,
        bytes: u64,
    ) -> Result<Self, StoreError> {
        let path = folder.unfinished("log-next");
        let free = folder.disk().free(folder.path());
        let free = free.map_err(StoreError::file("ask for the free space of", folder.path()))?;
        if free < bytes.saturating_add(segments.spare) {
            let (place, need) = (
                folder.path().display(),
                bytes.saturating_add(segments.spare) >> 20,
            );
            return Err(StoreError::Full(format!(
                "the file system of {place} has {} MiB left, {need} MiB are needed; free some, and writes go on",
                free >> 20
            )));
        }
        match Self::write(folder, &path, bytes) {
            Ok(file) => Ok(Self { file, path, bytes }),
            Err(error) => {
                // Frees the partly allocated file. A flush that failed on a full disk is no reason
                // to stop: nothing of this file is used, and the next attempt creates another.
                std::fs::remove_file(&path).ok();
                Err(StoreError::full_or("write zeros to", &path, error))
            }
        }
    }

    fn write(folder: &Folder, path: &Path, bytes: u64) -> io::Result<File> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        let zeros = vec![0; 256 << 10];
        let mut done = 0;
        while done < bytes {
            let now = usize::try_from(bytes - done)
                .unwrap_or(zeros.len())
                .min(zeros.len());
            folder.disk().write(&file, &zeros[..now], done)?;
            done += now as u64;
        }
        folder.disk().flush(&file)?;
        Ok(file)
    }
}

/// The segment that is written to.
#[derive(Debug)]
struct Segment {
    file: File,
    path: PathBuf,
    id: FileId,
    /// The offset of the next frame: all before it is flushed.
    position: u64,
    /// Bytes of the file.
    bytes: u64,
}

/// The writing side of the log.
#[derive(Debug)]
pub(super) struct Log {
    folder: Arc<Folder>,
    segments: SegmentOptions,
    active: Option<Segment>,
    next: Option<BlankSegment>,
    /// Whether the keeper is creating the next segment.
    pub(super) preparing: bool,
    /// Bytes of changes since the state file.
    pub(super) bytes: u64,
    /// The last attempt to create a segment that failed on a full disk: when, and why.
    tried: Option<(Instant, String)>,
}

impl Log {
    /// Continues the log after recovery. On a full disk it opens as well, but accepts no writes.
    pub(super) fn open(
        folder: Arc<Folder>,
        segments: SegmentOptions,
        bytes: u64,
        head: Revision,
    ) -> Result<Self, StoreError> {
        let mut log = Self {
            folder,
            segments,
            active: None,
            next: None,
            preparing: false,
            bytes,
            tried: None,
        };
        match log.rotate(head, FIRST_SEGMENT.min(segments.bytes)) {
            Ok(()) => {}
            Err(error @ StoreError::Full(_)) => {
                tracing::error!(
                    error = chain(&error),
                    "the store opens read-only; free disk space"
                );
            }
            Err(error) => return Err(error),
        }
        Ok(log)
    }

    /// Starts a new segment after `head`.
    fn rotate(&mut self, head: Revision, bytes: u64) -> Result<(), StoreError> {
        let blank = match self.next.take() {
            // A group that does not fit into the prepared segment gets one of its own size.
            Some(blank) if blank.bytes >= bytes => blank,
            Some(_) | None => BlankSegment::make(&self.folder, &self.segments, bytes)?,
        };
        let path = self.folder.log(head);
        let id = file_id().map_err(StoreError::file("make an id for", &path))?;
        let mut first = Vec::new();
        frame::start(&mut first);
        first.extend_from_slice(&id);
        Record::Start {
            version: VERSION,
            purpose: Purpose::Log,
            revision: head,
            made: 0,
        }
        .write(&mut first);
        frame::seal(&mut first, &id, 0);
        // Before the rename: each log that recovery finds by name has a valid first frame.
        let disk = self.folder.disk();
        let written = disk
            .write(&blank.file, &first, 0)
            .and_then(|()| disk.flush(&blank.file));
        written.map_err(|error| StoreError::full_or("begin", &blank.path, error))?;
        self.folder.adopt(&blank.path, &path)?;
        // Only now: recovery reads only files with a final name, so no change may be written to
        // this one before.
        self.active = Some(Segment {
            file: blank.file,
            path,
            id,
            position: first.len() as u64,
            bytes: blank.bytes,
        });
        self.tried = None;
        Ok(())
    }

    /// Starts a new segment after `head`, so that a state file can replace the earlier ones: the
    /// one that the keeper created or, as the writer waits for it, a small one.
    pub(super) fn cut(&mut self, head: Revision) -> Result<(), StoreError> {
        self.rotate(head, self.segments.bytes.min(FIRST_SEGMENT))
    }

    /// Ensures that a frame of about `bytes` fits without the reserve.
    pub(super) fn room(&mut self, bytes: u64, head: Revision) -> Result<(), StoreError> {
        // 4 KiB for what `bytes` does not count: the frame's header and padding, and lengths.
        let needed = bytes + RESERVE + 4096;
        if self
            .active
            .as_ref()
            .is_some_and(|active| active.position + needed <= active.bytes)
        {
            return Ok(());
        }
        // An attempt on a full disk writes a file and removes it. So attempts are
        // limited to one per `RETRY`, or retries of many writers would keep the disk busy.
        if let Some((when, why)) = &self.tried
            && when.elapsed() < RETRY
        {
            return Err(StoreError::Full(why.clone()));
        }
        // A segment of just this size would be full after one frame.
        let outcome = self.rotate(head, self.segments.bytes.max(needed * 2));
        if let Err(StoreError::Full(why)) = &outcome {
            self.tried = Some((Instant::now(), why.clone()));
        }
        outcome
    }

    /// Whether the next segment should be created now.
    pub(super) fn wants_next(&self) -> bool {
        // Half a segment early, as the keeper has to write the next one full of zeros.
        let half = self
            .active
            .as_ref()
            .is_none_or(|active| active.position * 2 > active.bytes);
        half && self.next.is_none() && !self.preparing && self.tried.is_none()
    }

    /// How the next segment is to be created.
    pub(super) fn segments(&self) -> (Arc<Folder>, SegmentOptions) {
        (self.folder.clone(), self.segments)
    }

    /// Accepts the next segment from the keeper. A full disk is reported again when the segment is
    /// needed.
    ///
    /// # Errors
    /// The disk failed in another way.
    pub(super) fn prepared(
        &mut self,
        made: Result<BlankSegment, StoreError>,
    ) -> Result<(), StoreError> {
        self.preparing = false;
        match made {
            Ok(blank) => self.next = Some(blank),
            Err(StoreError::Full(why)) => {
                tracing::warn!(
                    reason = why,
                    "cannot create the store's next log segment yet"
                );
                self.tried = Some((Instant::now(), why));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Writes and flushes a frame. After an error other than [`StoreError::Full`] nothing may be
    /// written any more.
    pub(super) fn append(&mut self, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
        let full = || {
            StoreError::Full(
                "there is no room left in the log; free some room on the disk".to_owned(),
            )
        };
        let active = self.active.as_mut().ok_or_else(full)?;
        frame::seal(buffer, &active.id, active.position);
        let end = active.position + buffer.len() as u64;
        // Only deletions come here without [`Log::room`], and may use up the reserve.
        if end > active.bytes {
            return Err(full());
        }
        let disk = self.folder.disk();
        let written = disk.write(&active.file, buffer, active.position);
        written.map_err(|error| StoreError::full_or("write to", &active.path, error))?;
        // A flush is never repeated, and no error of it counts as a full disk: see `Disk`.
        disk.flush(&active.file)
            .map_err(StoreError::file("flush", &active.path))?;
        active.position = end;
        self.bytes += buffer.len() as u64;
        Ok(())
    }
}

/// Replays one segment into the state and returns the bytes of its changes.
///
/// The last frame is written and flushed again before it counts. The process that wrote it may have
/// failed at the flush: then the frame exists only in the kernel's page cache, where it reads as if
/// it were on disk.
pub(super) fn replay(
    folder: &Folder,
    path: &Path,
    base: Revision,
    published: &mut Published,
) -> Result<u64, StoreError> {
    let corrupt = |what: String| StoreError::Corrupt(format!("{}: {what}", path.display()));
    if published.head() != base {
        return Err(corrupt(format!(
            "it continues from revision {base}, but {} is reached: a file is missing",
            published.head()
        )));
    }
    let bytes = std::fs::read(path).map_err(StoreError::file("read", path))?;
    // The file's id, with which the first payload begins.
    let id = bytes
        .get(frame::HEADER..)
        .and_then(|rest| rest.first_chunk::<16>())
        .copied()
        .unwrap_or_default();
    let (mut offset, mut last, mut first) = (0, 0..0, true);
    while let Some((payload, next)) = frame::at(&bytes, offset, &id) {
        let mut records = Records::new(if first {
            payload.get(16..).unwrap_or_default()
        } else {
            payload
        });
        let place = FramePosition {
            base,
            offset,
            first,
        };
        while let Some(record) = records
            .next()
            .map_err(|_unknown| corrupt(place.foreign()))?
        {
            place.apply(&record, published).map_err(corrupt)?;
        }
        (last, offset, first) = (offset..next, next, false);
    }
    // A write that was cut off is the last one, as each is flushed before the next begins. A whole
    // frame behind a broken one shows that what was on disk has changed.
    if first || frame::any_after(&bytes, offset, &id) {
        return Err(corrupt(format!(
            "its bytes were changed at or after offset {offset}: the checksum fails"
        )));
    }
    rewrite_last_frame(folder, path, &bytes, last)?;
    Ok(offset as u64)
}

/// Writes and flushes the segment's last frame again: its bytes could be read, but need not be on
/// disk.
fn rewrite_last_frame(
    folder: &Folder,
    path: &Path,
    bytes: &[u8],
    last: Range<usize>,
) -> Result<(), StoreError> {
    let file = OpenOptions::new()
        .write(true)
        .open(path)
        .map_err(StoreError::file("open", path))?;
    let disk = folder.disk();
    let again = disk.write(
        &file,
        &bytes[last.start..last.end.min(bytes.len())],
        last.start as u64,
    );
    again
        .and_then(|()| disk.flush(&file))
        .map_err(StoreError::file("rewrite the last frame of", path))
}

/// The position of the frame whose records are applied.
struct FramePosition {
    /// The revision before the segment's first change.
    base: Revision,
    offset: usize,
    /// It is the segment's first, which only describes the segment.
    first: bool,
}

impl FramePosition {
    /// Applies a record, or returns the fault of the segment.
    fn apply(&self, record: &Record<'_>, published: &mut Published) -> Result<(), String> {
        match *record {
            Record::Start {
                version,
                purpose: Purpose::Log,
                revision,
                ..
            } if self.first && revision == self.base => {
                if version != VERSION {
                    return Err(format!(
                        "it has format {version}, and this version reads format {VERSION}"
                    ));
                }
            }
            Record::Event {
                revision,
                key,
                value,
            } if !self.first => {
                // The events of one transaction share a revision.
                let head = published.head();
                if revision != head + 1 && (revision != head || self.offset == 0) {
                    return Err(format!(
                        "revision {revision} follows {head}: a change is missing"
                    ));
                }
                published.replay(revision, key, value.map(Bytes::copy_from_slice));
            }
            Record::Compact { revision } if !self.first => published.compact(revision),
            Record::Start { .. }
            | Record::Table { .. }
            | Record::Entry { .. }
            | Record::Event { .. }
            | Record::Compact { .. }
            | Record::End { .. } => return Err(self.foreign()),
        }
        Ok(())
    }

    fn foreign(&self) -> String {
        format!(
            "its content at offset {} is not in the format of this version",
            self.offset
        )
    }
}
