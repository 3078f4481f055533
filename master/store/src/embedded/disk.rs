//! The file: current values, and for each change of the history what was there before (an undo log).
//!
//! A create is thus written once; the new value of every event of the history is either the current value or
//! what a later event of the same key found. Layout, all integers big-endian:
//! - `objects`: key → created u64 ‖ modified u64 ‖ value
//! - `undo`: (table, revision, number within the transaction) → key length u32 ‖ key ‖ flags u8 ‖
//!   old created u64 ‖ old modified u64 ‖ old value (the last three where flag 1, "existed before", is set)
//! - `floors`: table → revision up to which its history is gone
//! - `meta`: `head` → u64, `format` → 1

use crate::error::StoreError;
use crate::history::{HistoryLimits, Published, table_of};
use crate::model::{Entry, Event, Revision};
use bytes::Bytes;
use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
const UNDO: TableDefinition<'_, (&str, u64, u32), &[u8]> = TableDefinition::new("undo");
const FLOORS: TableDefinition<'_, &str, u64> = TableDefinition::new("floors");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const FORMAT: u64 = 1;

/// The store's file name in its folder.
const FILE: &str = "store.redb";

pub(super) struct Disk {
    database: Database,
}

/// One event as it goes to disk.
pub(super) struct Write<'a>(&'a Event);

impl<'a> Write<'a> {
    pub(super) fn of(event: &'a Event) -> Self {
        Self(event)
    }
}

impl Disk {
    /// Opens or makes the file and reads what it holds.
    pub(super) fn open(folder: &Path, cache: usize, limits: HistoryLimits) -> Result<(Self, Published), StoreError> {
        std::fs::create_dir_all(folder).map_err(StoreError::Folder)?;
        let fail = StoreError::engine("opening its file");
        let database =
            Database::builder().set_cache_size(cache).create(folder.join(FILE)).map_err(|e| fail(e.into()))?;
        let disk = Self { database };
        disk.prepare()?;
        let transaction = disk.database.begin_read().map_err(|e| fail(e.into()))?;
        let published = load(&transaction, limits)?;
        Ok((disk, published))
    }

    fn begin(&self) -> Result<WriteTransaction, StoreError> {
        let mut transaction = self.database.begin_write().map_err(|e| StoreError::engine("beginning")(e.into()))?;
        // Reopening after a crash must not walk the whole file.
        transaction.set_quick_repair(true);
        Ok(transaction)
    }

    fn prepare(&self) -> Result<(), StoreError> {
        let transaction = self.begin()?;
        let format = prepare_tables(&transaction).map_err(StoreError::engine("making its tables"))?;
        if format != FORMAT {
            return Err(StoreError::Corrupt(format!("format {format}; this version reads {FORMAT}")));
        }
        transaction.commit().map_err(|e| StoreError::engine("making its tables")(e.into()))
    }

    /// Writes events and flushes; tells how many there were.
    pub(super) fn commit<'a>(&self, writes: impl Iterator<Item = Write<'a>>) -> Result<usize, StoreError> {
        let transaction = self.begin()?;
        let count = write_events(&transaction, writes).map_err(StoreError::engine("writing"))?;
        transaction.commit().map_err(|e| StoreError::engine("flushing")(e.into()))?;
        Ok(count)
    }

    /// Cuts each table's history below its floor.
    pub(super) fn trim(&self, floors: &[(String, Revision)]) -> Result<(), StoreError> {
        let transaction = self.begin()?;
        trim(&transaction, floors).map_err(StoreError::engine("cutting the history"))?;
        transaction.commit().map_err(|e| StoreError::engine("cutting the history")(e.into()))
    }
}

fn prepare_tables(transaction: &WriteTransaction) -> Result<u64, redb::Error> {
    drop(transaction.open_table(OBJECTS)?);
    drop(transaction.open_table(UNDO)?);
    drop(transaction.open_table(FLOORS)?);
    let mut meta = transaction.open_table(META)?;
    if let Some(format) = meta.get("format")? {
        return Ok(format.value());
    }
    meta.insert("format", FORMAT)?;
    meta.insert("head", 1)?;
    Ok(FORMAT)
}

fn write_events<'a>(
    transaction: &WriteTransaction,
    writes: impl Iterator<Item = Write<'a>>,
) -> Result<usize, redb::Error> {
    let mut objects = transaction.open_table(OBJECTS)?;
    let mut undo = transaction.open_table(UNDO)?;
    let mut meta = transaction.open_table(META)?;
    let (mut count, mut last, mut number) = (0, 0, 0u32);
    let mut record = Vec::new();
    for Write(event) in writes {
        number = if event.revision == last { number + 1 } else { 0 };
        last = event.revision;
        match &event.now {
            Some(entry) => {
                record.clear();
                record.extend_from_slice(&entry.created.to_be_bytes());
                record.extend_from_slice(&entry.modified.to_be_bytes());
                record.extend_from_slice(&entry.value);
                objects.insert(&*event.key, record.as_slice())?;
            }
            None => drop(objects.remove(&*event.key)?),
        }
        encode_undo(event, &mut record);
        let table = table_of(&event.key).unwrap_or_default();
        undo.insert((table, event.revision, number), record.as_slice())?;
        count += 1;
    }
    meta.insert("head", last)?;
    Ok(count)
}

fn trim(transaction: &WriteTransaction, floors: &[(String, Revision)]) -> Result<(), redb::Error> {
    let mut undo = transaction.open_table(UNDO)?;
    let mut kept = transaction.open_table(FLOORS)?;
    for (table, floor) in floors {
        undo.retain_in((table.as_str(), 0, 0)..=(table.as_str(), *floor, u32::MAX), |_, _| false)?;
        kept.insert(table.as_str(), *floor)?;
    }
    Ok(())
}

fn encode_undo(event: &Event, record: &mut Vec<u8>) {
    record.clear();
    let length = u32::try_from(event.key.len()).unwrap_or(u32::MAX);
    record.extend_from_slice(&length.to_be_bytes());
    record.extend_from_slice(event.key.as_bytes());
    match &event.before {
        None => record.push(0),
        Some(entry) => {
            record.push(1);
            record.extend_from_slice(&entry.created.to_be_bytes());
            record.extend_from_slice(&entry.modified.to_be_bytes());
            record.extend_from_slice(&entry.value);
        }
    }
}

/// Splits `created ‖ modified ‖ value`.
fn decode_entry(key: Arc<str>, record: &[u8]) -> Option<Entry> {
    let (created, rest) = record.split_first_chunk::<8>()?;
    let (modified, value) = rest.split_first_chunk::<8>()?;
    let value = Bytes::copy_from_slice(value);
    Some(Entry { key, value, created: u64::from_be_bytes(*created), modified: u64::from_be_bytes(*modified) })
}

/// The key of an undo record and the entry before.
fn decode_undo(record: &[u8]) -> Option<(Arc<str>, Option<Entry>)> {
    let (length, rest) = record.split_first_chunk::<4>()?;
    let (key, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    let key: Arc<str> = std::str::from_utf8(key).ok()?.into();
    match rest.split_first()? {
        (0, _) => Some((key, None)),
        (_, entry) => decode_entry(key.clone(), entry).map(|entry| (key, Some(entry))),
    }
}

fn load(transaction: &ReadTransaction, limits: HistoryLimits) -> Result<Published, StoreError> {
    let fail = StoreError::engine("reading its file");
    let head = read_head(transaction).map_err(&fail)?;
    let mut published = Published::new(head, limits);
    load_objects(transaction, &mut published)?;
    load_history(transaction, &mut published)?;
    for (table, floor) in read_floors(transaction).map_err(&fail)? {
        published.restore_floor(&table, floor);
    }
    published.compact(0);
    Ok(published)
}

fn read_head(transaction: &ReadTransaction) -> Result<Revision, redb::Error> {
    let meta = transaction.open_table(META)?;
    Ok(meta.get("head")?.map_or(1, |head| head.value()))
}

fn read_floors(transaction: &ReadTransaction) -> Result<Vec<(String, Revision)>, redb::Error> {
    let floors = transaction.open_table(FLOORS)?;
    let mut found = Vec::new();
    for row in floors.iter()? {
        let (table, floor) = row?;
        found.push((table.value().to_owned(), floor.value()));
    }
    Ok(found)
}

fn load_objects(transaction: &ReadTransaction, published: &mut Published) -> Result<(), StoreError> {
    let fail = StoreError::engine("reading the objects");
    let objects = transaction.open_table(OBJECTS).map_err(|e| fail(e.into()))?;
    for row in objects.iter().map_err(|e| fail(e.into()))? {
        let (key, record) = row.map_err(|e| fail(e.into()))?;
        let key: Arc<str> = key.value().into();
        let entry = decode_entry(key.clone(), record.value())
            .ok_or_else(|| StoreError::Corrupt(format!("the object {key} is cut short")))?;
        published.table_mut(table_of(&key)?).entries.insert(key.clone(), entry);
    }
    Ok(())
}

/// Walks the undo log from the newest change back, so that each event's new entry is known when it is met.
fn load_history(transaction: &ReadTransaction, published: &mut Published) -> Result<(), StoreError> {
    let fail = StoreError::engine("reading the history");
    let undo = transaction.open_table(UNDO).map_err(|e| fail(e.into()))?;
    let mut found: HashMap<String, Vec<Event>> = HashMap::new();
    let mut later: HashMap<Arc<str>, Option<Entry>> = HashMap::new();
    for row in undo.iter().map_err(|e| fail(e.into()))?.rev() {
        let (key, record) = row.map_err(|e| fail(e.into()))?;
        let (table, revision, _) = key.value();
        let (key, before) = decode_undo(record.value())
            .ok_or_else(|| StoreError::Corrupt(format!("the history of {table} at {revision} is cut short")))?;
        let now = match later.insert(key.clone(), before.clone()) {
            Some(entry) => entry,
            None => published.get(&key).cloned(),
        };
        found.entry(table.to_owned()).or_default().push(Event::new(revision, key, now, before));
    }
    for (table, mut events) in found {
        events.reverse();
        published.restore_events(&table, events);
    }
    Ok(())
}
