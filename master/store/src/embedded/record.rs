//! Records: the content of frames, in the log, in state files and in snapshots.
//!
//! A record is a tag and its fields; strings and values are preceded by their length (u32);
//! integers are big-endian.

use crate::model::{Entry, Event, Revision};
use bytes::Bytes;
use std::sync::Arc;

/// The format that this version writes and reads.
pub(crate) const VERSION: u32 = 1;

/// The purpose of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Changes after a revision.
    Log,
    /// The state from which logs continue, with history.
    State,
    /// An exported state without history.
    Snapshot,
}

/// One record, borrowed from its frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    /// The first record of each file, after the file's id.
    Start {
        version: u32,
        purpose: Purpose,
        revision: Revision,
        made: u64,
    },
    /// A table; the entries that follow belong to it, at `floor`.
    Table { name: &'a str, floor: Revision },
    /// An entry.
    Entry {
        key: &'a str,
        created: Revision,
        modified: Revision,
        value: &'a [u8],
    },
    /// A change; without a value if the key was deleted.
    Event {
        revision: Revision,
        key: &'a str,
        value: Option<&'a [u8]>,
    },
    /// History up to this revision was compacted.
    Compact { revision: Revision },
    /// The last record of a state file or snapshot.
    End { entries: u64, events: u64 },
}

fn text(buffer: &mut Vec<u8>, bytes: &[u8]) {
    // The engine's limits keep every value far below 4 GiB.
    buffer.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    buffer.extend_from_slice(bytes);
}

impl Record<'_> {
    /// Appends the record.
    pub(crate) fn write(&self, buffer: &mut Vec<u8>) {
        match self {
            Record::Start {
                version,
                purpose,
                revision,
                made,
            } => {
                buffer.push(b'S');
                buffer.extend_from_slice(&version.to_be_bytes());
                buffer.push(match purpose {
                    Purpose::Log => b'L',
                    Purpose::State => b'S',
                    Purpose::Snapshot => b'B',
                });
                buffer.extend_from_slice(&revision.to_be_bytes());
                buffer.extend_from_slice(&made.to_be_bytes());
            }
            Record::Table { name, floor } => {
                buffer.push(b'T');
                buffer.extend_from_slice(&floor.to_be_bytes());
                text(buffer, name.as_bytes());
            }
            Record::Entry {
                key,
                created,
                modified,
                value,
            } => {
                buffer.push(b'E');
                buffer.extend_from_slice(&created.to_be_bytes());
                buffer.extend_from_slice(&modified.to_be_bytes());
                text(buffer, key.as_bytes());
                text(buffer, value);
            }
            Record::Event {
                revision,
                key,
                value,
            } => {
                buffer.push(if value.is_some() { b'P' } else { b'D' });
                buffer.extend_from_slice(&revision.to_be_bytes());
                text(buffer, key.as_bytes());
                if let Some(value) = value {
                    text(buffer, value);
                }
            }
            Record::Compact { revision } => {
                buffer.push(b'C');
                buffer.extend_from_slice(&revision.to_be_bytes());
            }
            Record::End { entries, events } => {
                buffer.push(b'Z');
                buffer.extend_from_slice(&entries.to_be_bytes());
                buffer.extend_from_slice(&events.to_be_bytes());
            }
        }
    }
}

impl<'a> Record<'a> {
    /// An entry of the published state, with the bytes of its value.
    pub(crate) fn of_entry(entry: &'a Entry, value: &'a Bytes) -> Self {
        Record::Entry {
            key: &entry.key,
            created: entry.created,
            modified: entry.modified,
            value,
        }
    }

    /// An event of the published history, with the bytes of its [`Event::value`].
    pub(crate) fn of_event(event: &'a Event, value: Option<&'a Bytes>) -> Self {
        Record::Event {
            revision: event.revision,
            key: &event.key,
            value: value.map(|bytes| &**bytes),
        }
    }
}

/// Decodes the records of a frame's payload.
#[derive(Debug)]
pub(crate) struct Records<'a>(&'a [u8]);

impl<'a> Records<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Self(payload)
    }

    /// The next record; `None` at the end. The error is for a payload that this version does not
    /// write.
    pub(crate) fn next(&mut self) -> Result<Option<Record<'a>>, Unknown> {
        if self.0.is_empty() {
            return Ok(None);
        }
        self.read().map(Some).ok_or(Unknown)
    }

    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn number(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_be_bytes)
    }

    fn value(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(u32::from_be_bytes(self.bytes()?)).ok()?;
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.value()?).ok()
    }

    fn read(&mut self) -> Option<Record<'a>> {
        let [tag] = self.bytes()?;
        Some(match tag {
            b'S' => {
                let version = u32::from_be_bytes(self.bytes()?);
                let purpose = match self.bytes()? {
                    [b'L'] => Purpose::Log,
                    [b'S'] => Purpose::State,
                    [b'B'] => Purpose::Snapshot,
                    _ => return None,
                };
                Record::Start {
                    version,
                    purpose,
                    revision: self.number()?,
                    made: self.number()?,
                }
            }
            b'T' => Record::Table {
                floor: self.number()?,
                name: self.text()?,
            },
            b'E' => {
                let (created, modified) = (self.number()?, self.number()?);
                Record::Entry {
                    created,
                    modified,
                    key: self.text()?,
                    value: self.value()?,
                }
            }
            b'P' => Record::Event {
                revision: self.number()?,
                key: self.text()?,
                value: Some(self.value()?),
            },
            b'D' => Record::Event {
                revision: self.number()?,
                key: self.text()?,
                value: None,
            },
            b'C' => Record::Compact {
                revision: self.number()?,
            },
            b'Z' => Record::End {
                entries: self.number()?,
                events: self.number()?,
            },
            _ => return None,
        })
    }
}

/// A payload with a valid checksum and unknown content.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unknown;

/// An entry that owns a copy of key and value.
pub(crate) fn entry(key: &str, created: Revision, modified: Revision, value: &[u8]) -> Entry {
    Entry {
        key: Arc::from(key),
        value: Bytes::copy_from_slice(value).into(),
        created,
        modified,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_as_written_and_cut_ones_are_refused() {
        let records = [
            Record::Start {
                version: VERSION,
                purpose: Purpose::Snapshot,
                revision: 7,
                made: 1,
            },
            Record::Table {
                name: "pods",
                floor: 3,
            },
            Record::Entry {
                key: "pods/a/b",
                created: 1,
                modified: 2,
                value: b"{}",
            },
            Record::Event {
                revision: 4,
                key: "pods/a/b",
                value: Some(b""),
            },
            Record::Event {
                revision: 5,
                key: "pods/a/b",
                value: None,
            },
            Record::Compact { revision: 6 },
            Record::End {
                entries: 1,
                events: 2,
            },
        ];
        let mut bytes = Vec::new();
        for record in &records {
            let from = bytes.len();
            record.write(&mut bytes);
            for cut in from + 1..bytes.len() {
                assert_eq!(
                    Records::new(&bytes[from..cut]).next(),
                    Err(Unknown),
                    "{record:?} cut at {cut}"
                );
            }
        }
        let mut reader = Records::new(&bytes);
        for record in records {
            assert_eq!(reader.next(), Ok(Some(record)));
        }
        assert_eq!(reader.next(), Ok(None));
    }
}
