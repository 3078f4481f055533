//! Snapshots: the whole state as a file that can be exported, verified and restored.

use super::disk::LocalDisk;
use super::folder::{self, Folder};
use super::image::{self, ImageWriter, Unreadable, Visitor};
use super::keeper::now;
use super::record::{Purpose, Record};
use crate::error::StoreError;
use crate::history::table_of;
use crate::model::{Entry, Listing, Revision};
use bytes::Bytes;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A restored store continues this many revisions after its snapshot: more than any store writes
/// while snapshots of it are kept, so that no revision that a client remembers is assigned twice.
pub const RESTORED_AHEAD: Revision = 1 << 32;

/// The header and counts of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotSummary {
    /// The revision of its state.
    pub revision: Revision,
    /// The time when it was made, in seconds since 1970.
    pub made: u64,
    /// How many objects it holds.
    pub entries: u64,
    /// Its approximate size in bytes.
    pub bytes: u64,
}

/// The reason why a snapshot was not restored.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file is not a complete, unchanged snapshot of this format.
    #[error("{} cannot be used: {why}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The target folder is not empty.
    #[error("{} is not empty: a snapshot is restored into an empty folder only; move its content away first", .0.display())]
    NotEmpty(PathBuf),
    /// A file operation failed.
    #[error("cannot {what} {}", path.display())]
    File {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The new store cannot be created.
    #[error("the new store cannot be created")]
    Store(#[source] StoreError),
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SnapshotError {
    let path = path.to_owned();
    move |source| SnapshotError::File { what, path, source }
}

/// A snapshot's bytes, piece by piece: the entries are shared with the store, and at most one
/// further piece is in memory.
#[derive(Debug)]
pub struct SnapshotBytes {
    packer: ImageWriter,
    entries: std::vec::IntoIter<Entry>,
    table: String,
    ready: VecDeque<Vec<u8>>,
    ended: bool,
}

impl SnapshotBytes {
    /// A snapshot of [`crate::Store::everything`].
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new(everything: Listing) -> io::Result<Self> {
        let revision = everything.revision;
        let packer = ImageWriter::new(Purpose::Snapshot, revision, revision, now())?;
        let entries = everything.entries.into_iter();
        Ok(Self {
            packer,
            entries,
            table: String::new(),
            ready: VecDeque::new(),
            ended: false,
        })
    }
}

impl Iterator for SnapshotBytes {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(frame.into());
            }
            if self.ended {
                return None;
            }
            let Some(entry) = self.entries.next() else {
                self.ended = true;
                self.ready.push_back(self.packer.end());
                continue;
            };
            let table = table_of(&entry.key).unwrap_or_default();
            if table != self.table {
                table.clone_into(&mut self.table);
                self.ready.extend(self.packer.push(&Record::Table {
                    name: table,
                    floor: 0,
                }));
            }
            let value = entry.value.bytes();
            self.ready
                .extend(self.packer.push(&Record::of_entry(&entry, &value)));
        }
    }
}

/// Writes a snapshot's entries as a state file, at another revision.
struct Convert<'a> {
    packer: ImageWriter,
    floor: Revision,
    to: &'a mut dyn Write,
    failed: Option<io::Error>,
}

impl Convert<'_> {
    fn put(&mut self, frame: Option<Vec<u8>>) {
        // A visitor cannot stop the reader: after the first error nothing more is written.
        if let Some(frame) = frame
            && self.failed.is_none()
        {
            self.failed = self.to.write_all(&frame).err();
        }
    }
}

impl Visitor for Convert<'_> {
    fn begin(&mut self, _revision: Revision, _floor: Revision) {}

    fn table(&mut self, name: &str, _floor: Revision) {
        let frame = self.packer.push(&Record::Table {
            name,
            floor: self.floor,
        });
        self.put(frame);
    }

    fn entry(&mut self, entry: Entry) {
        let value = entry.value.bytes();
        let frame = self.packer.push(&Record::of_entry(&entry, &value));
        self.put(frame);
    }

    fn event(&mut self, _revision: Revision, _key: &str, _value: Option<Bytes>) {}
}

/// Reads an image only to verify it.
struct Discard;

impl Visitor for Discard {
    fn begin(&mut self, _revision: Revision, _floor: Revision) {}
    fn table(&mut self, _name: &str, _floor: Revision) {}
    fn entry(&mut self, _entry: Entry) {}
    fn event(&mut self, _revision: Revision, _key: &str, _value: Option<Bytes>) {}
}

fn read(path: &Path, take: &mut dyn Visitor) -> Result<SnapshotSummary, SnapshotError> {
    let file = File::open(path).map_err(failed("open", path))?;
    let unusable = |why: String| SnapshotError::Unusable {
        path: path.to_owned(),
        why,
    };
    let summary =
        image::read(BufReader::with_capacity(1 << 20, file), take).map_err(|why| match why {
            Unreadable::Io(source) => SnapshotError::File {
                what: "read",
                path: path.to_owned(),
                source,
            },
            other @ (Unreadable::Foreign
            | Unreadable::Version(_)
            | Unreadable::Truncated
            | Unreadable::Changed(_)
            | Unreadable::Records(_)
            | Unreadable::Counts
            | Unreadable::Trailing) => unusable(other.text()),
        })?;
    if summary.purpose != Purpose::Snapshot {
        return Err(unusable(
            "it is a file of a store, not a snapshot".to_owned(),
        ));
    }
    let image::Summary {
        revision,
        made,
        entries,
        bytes,
        ..
    } = summary;
    Ok(SnapshotSummary {
        revision,
        made,
        entries,
        bytes,
    })
}

/// Reads a snapshot to its end and returns its summary.
///
/// # Errors
/// The file cannot be read, is truncated, damaged, or not a snapshot of this format.
pub fn verify_snapshot(path: &Path) -> Result<SnapshotSummary, SnapshotError> {
    read(path, &mut Discard)
}

/// Restores a snapshot into a folder that is empty or does not exist.
///
/// Guarantee: the folder holds a complete store or none, whenever this is interrupted. The store's
/// revisions start [`RESTORED_AHEAD`] of the snapshot's and its history is empty, so that watches
/// on the lost store get 410 and list again.
///
/// # Errors
/// The snapshot is unusable, the folder is not empty, or a file operation fails.
pub fn restore_snapshot(from: &Path, folder: &Path) -> Result<SnapshotSummary, SnapshotError> {
    // The whole file is verified before the target is touched.
    let summary = verify_snapshot(from)?;
    if !folder::is_empty(folder).map_err(failed("look into", folder))? {
        return Err(SnapshotError::NotEmpty(folder.to_owned()));
    }
    let target = Folder::open(folder, Arc::new(LocalDisk)).map_err(SnapshotError::Store)?;
    let path = target.unfinished("state");
    let head = summary.revision + RESTORED_AHEAD;
    let file = File::create(&path).map_err(failed("make", &path))?;
    let mut to = BufWriter::with_capacity(1 << 20, file);
    let packer = ImageWriter::new(Purpose::State, head, head, now())
        .map_err(failed("make an id for", &path))?;
    let mut convert = Convert {
        packer,
        floor: head,
        to: &mut to,
        failed: None,
    };
    // Read a second time, so that a snapshot of any size needs little memory.
    let again = read(from, &mut convert)?;
    let last = convert.packer.end();
    convert.put(Some(last));
    if let Some(error) = convert.failed {
        std::fs::remove_file(&path).ok();
        return Err(failed("write", &path)(error));
    }
    if again != summary {
        std::fs::remove_file(&path).ok();
        let why = "it changed while it was read".to_owned();
        return Err(SnapshotError::Unusable {
            path: from.to_owned(),
            why,
        });
    }
    // The rename creates the store. Before it the folder has only an unfinished file, which the
    // next start removes.
    to.flush()
        .and_then(|()| to.get_ref().sync_all())
        .map_err(failed("write", &path))?;
    target
        .adopt(&path, &target.state(head))
        .map_err(SnapshotError::Store)?;
    Ok(summary)
}
