//! Images: the encoding of the whole state in one file, as frames of records. State files and
//! snapshots are images.
//!
//! Frames: `id ‖ Start, Compact`; then tables, each followed by its entries at its floor; then the
//! events after the floors, sorted by revision (none in a snapshot); then `End` with the counts. A
//! file without `End` is truncated, and a frame whose checksum fails is damaged.

use super::frame::{self, Broken, FileId, Frames};
use super::record::{self, Purpose, Record, Records, VERSION};
use crate::history::{Capture, HistoryLimits, Published};
use crate::model::{Entry, Event, Revision};
use crate::packing::Samples;
use bytes::Bytes;
use std::io::{self, Read};
use std::sync::Arc;

/// Size at which a frame is completed.
const FRAME: usize = 256 << 10;

/// A new random file id.
pub(super) fn file_id() -> io::Result<FileId> {
    let mut id = FileId::default();
    getrandom::fill(&mut id).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(id)
}

/// Encodes an image: collects records, and returns a frame when one is full.
#[derive(Debug)]
pub(crate) struct ImageWriter {
    id: FileId,
    offset: u64,
    buffer: Vec<u8>,
    entries: u64,
    events: u64,
}

impl ImageWriter {
    /// Starts a file of a `purpose` at `revision` whose history starts after `floor`; `made` in
    /// seconds since 1970.
    pub(crate) fn new(
        purpose: Purpose,
        revision: Revision,
        floor: Revision,
        made: u64,
    ) -> io::Result<Self> {
        let id = file_id()?;
        let mut packer = Self {
            id,
            offset: 0,
            buffer: Vec::new(),
            entries: 0,
            events: 0,
        };
        frame::start(&mut packer.buffer);
        packer.buffer.extend_from_slice(&id);
        Record::Start {
            version: VERSION,
            purpose,
            revision,
            made,
        }
        .write(&mut packer.buffer);
        Record::Compact { revision: floor }.write(&mut packer.buffer);
        Ok(packer)
    }

    fn close(&mut self) -> Vec<u8> {
        frame::seal(&mut self.buffer, &self.id, self.offset);
        self.offset += self.buffer.len() as u64;
        let mut next = Vec::with_capacity(FRAME + 4096);
        frame::start(&mut next);
        std::mem::replace(&mut self.buffer, next)
    }

    /// Adds a record; returns a frame when one is full.
    pub(crate) fn push(&mut self, record: &Record<'_>) -> Option<Vec<u8>> {
        match record {
            Record::Entry { .. } => self.entries += 1,
            Record::Event { .. } => self.events += 1,
            Record::Start { .. }
            | Record::Table { .. }
            | Record::Compact { .. }
            | Record::End { .. } => {}
        }
        record.write(&mut self.buffer);
        (self.buffer.len() >= FRAME).then(|| self.close())
    }

    /// The last frame.
    pub(crate) fn end(&mut self) -> Vec<u8> {
        Record::End {
            entries: self.entries,
            events: self.events,
        }
        .write(&mut self.buffer);
        self.close()
    }
}

/// Writes a captured state and returns its size in bytes.
pub(super) fn write_state(capture: &Capture, made: u64, to: &mut dyn io::Write) -> io::Result<u64> {
    let mut packer = ImageWriter::new(Purpose::State, capture.head, capture.floor, made)?;
    let mut put = |frame: Option<Vec<u8>>| frame.map_or(Ok(()), |frame| to.write_all(&frame));
    let mut events: Vec<&Arc<Event>> = Vec::new();
    // Entries at the floor and the events after it: the history is kept, so that watches can
    // resume after a restart.
    for table in &capture.tables {
        put(packer.push(&Record::Table {
            name: &table.name,
            floor: table.floor,
        }))?;
        for entry in &table.entries_at_floor() {
            put(packer.push(&Record::of_entry(entry, &entry.value.bytes())))?;
        }
        events.extend(&table.events);
    }
    // Tables were written one after the other, but their events come back as one history. The sort
    // is stable, so those of one transaction keep their order.
    events.sort_by_key(|event| event.revision);
    for event in events {
        let value = event.value();
        put(packer.push(&Record::of_event(event, value.as_ref())))?;
    }
    let last = packer.end();
    put(Some(last))?;
    Ok(packer.offset)
}

/// The header and counts of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) purpose: Purpose,
    pub(crate) revision: Revision,
    /// Seconds since 1970.
    pub(crate) made: u64,
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

/// The reason why an image cannot be read.
#[derive(Debug)]
pub(crate) enum Unreadable {
    Io(io::Error),
    Foreign,
    Version(u32),
    Truncated,
    Changed(u64),
    Records(u64),
    Counts,
    Trailing,
}

impl From<Broken> for Unreadable {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Io(error) => Self::Io(error),
            Broken::Truncated => Self::Truncated,
            Broken::Changed(offset) => Self::Changed(offset),
        }
    }
}

impl Unreadable {
    /// The reason, for humans.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Io(error) => format!("it cannot be read: {error}"),
            Self::Foreign => "it does not start like a file of this store".to_owned(),
            Self::Version(version) => {
                format!("it has format {version}, and this version reads format {VERSION}")
            }
            Self::Truncated => "it is cut short: its end is missing".to_owned(),
            Self::Changed(offset) => {
                format!("its bytes were changed at or after offset {offset}: the checksum fails")
            }
            Self::Records(offset) => {
                format!("its content before offset {offset} is not in the format of this version")
            }
            Self::Counts => {
                "the number of its records differs from the count at its end".to_owned()
            }
            Self::Trailing => "bytes follow its end".to_owned(),
        }
    }
}

/// Receives the content of an image, in the order of the file. Checksums are verified before;
/// whether the file is complete is known only when [`read`] returns.
pub(crate) trait Visitor {
    /// The revision of the state, and the one up to which all history is compacted.
    fn begin(&mut self, revision: Revision, floor: Revision);
    /// The entries until the next table belong to this one, at `floor`.
    fn table(&mut self, name: &str, floor: Revision);
    fn entry(&mut self, entry: Entry);
    /// A change after the floor of its table.
    fn event(&mut self, revision: Revision, key: &str, value: Option<Bytes>);
}

/// Entries and events of an image.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    entries: u64,
    events: u64,
}

/// The position of a reader in an image.
#[derive(Debug, Default)]
struct Progress {
    /// Bytes of the frames that were read.
    bytes: u64,
    /// From the image's first record.
    summary: Option<Summary>,
    counted: Counts,
    /// The counts in the image's last record.
    ended: Option<Counts>,
}

impl Progress {
    /// Passes on one record, if it is allowed at this position.
    fn take(&mut self, record: Record<'_>, take: &mut dyn Visitor) -> Result<(), Unreadable> {
        match (record, self.summary) {
            (Record::Start { version, .. }, None) if version != VERSION => {
                return Err(Unreadable::Version(version));
            }
            (
                Record::Start {
                    purpose,
                    revision,
                    made,
                    ..
                },
                None,
            ) => {
                self.summary = Some(Summary {
                    purpose,
                    revision,
                    made,
                    entries: 0,
                    bytes: 0,
                });
            }
            (Record::Compact { revision }, Some(start)) => take.begin(start.revision, revision),
            (Record::Table { name, floor }, Some(_)) => take.table(name, floor),
            (
                Record::Entry {
                    key,
                    created,
                    modified,
                    value,
                },
                Some(_),
            ) => {
                self.counted.entries += 1;
                take.entry(record::entry(key, created, modified, value));
            }
            (
                Record::Event {
                    revision,
                    key,
                    value,
                },
                Some(_),
            ) => {
                self.counted.events += 1;
                take.event(revision, key, value.map(Bytes::copy_from_slice));
            }
            (Record::End { entries, events }, Some(_)) if self.ended.is_none() => {
                self.ended = Some(Counts { entries, events });
            }
            _ => return Err(Unreadable::Records(self.bytes)),
        }
        Ok(())
    }
}

/// Reads a whole image and verifies it.
pub(crate) fn read(from: impl Read, take: &mut dyn Visitor) -> Result<Summary, Unreadable> {
    let mut frames = Frames::new(from);
    let mut progress = Progress::default();
    while progress.ended.is_none() {
        let first = progress.summary.is_none();
        // Stops at the first fault: the content that was passed on must not be used ([`Visitor`]).
        let payload = match frames.next() {
            // The first frame has the magic: without it, the file is most likely another program's.
            Err(Broken::Changed(0)) => return Err(Unreadable::Foreign),
            other => other?,
        };
        progress.bytes += (payload.len() + frame::HEADER) as u64;
        // Without the file's id, with which the first payload begins.
        let mut records = Records::new(if first {
            payload.get(16..).unwrap_or_default()
        } else {
            payload
        });
        while let Some(record) = records
            .next()
            .map_err(|_unknown| Unreadable::Records(progress.bytes))?
        {
            progress.take(record, take)?;
        }
    }
    // A checksum covers one frame: missing frames are found only here.
    if progress.ended != Some(progress.counted) {
        return Err(Unreadable::Counts);
    }
    if !frames.ended()? {
        return Err(Unreadable::Trailing);
    }
    let summary = progress.summary.ok_or(Unreadable::Foreign)?;
    Ok(Summary {
        entries: progress.counted.entries,
        bytes: progress.bytes,
        ..summary
    })
}

/// Builds the published state from an image.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) published: Published,
    head: Revision,
    table: Option<(String, Revision)>,
    entries: Vec<Entry>,
    samples: Samples,
}

impl Load {
    pub(super) fn new(limits: HistoryLimits) -> Self {
        Self {
            published: Published::unpacked(1, limits),
            head: 1,
            table: None,
            entries: Vec::new(),
            samples: Samples::default(),
        }
    }

    fn close_table(&mut self) {
        if let Some((name, floor)) = self.table.take() {
            let entries = std::mem::take(&mut self.entries);
            let samples = std::mem::take(&mut self.samples);
            self.published.install(&name, floor, entries, samples);
        }
    }

    /// The state, after everything has been read.
    pub(super) fn finish(mut self) -> Published {
        self.close_table();
        // The last changes may belong to tables without history.
        self.published.set_head(self.head);
        self.published
    }
}

impl Visitor for Load {
    fn begin(&mut self, revision: Revision, floor: Revision) {
        self.head = revision;
        self.published.set_head(revision);
        self.published.compact(floor);
    }

    fn table(&mut self, name: &str, floor: Revision) {
        self.close_table();
        self.table = Some((name.to_owned(), floor));
    }

    fn entry(&mut self, entry: Entry) {
        let value = self.samples.pack(&entry.value, None);
        self.entries.push(Entry { value, ..entry });
    }

    fn event(&mut self, revision: Revision, key: &str, value: Option<Bytes>) {
        self.close_table();
        self.published.replay(revision, key, value);
    }
}
