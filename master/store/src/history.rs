//! The published state: current entries and a bounded history for each table, in memory.
//!
//! Guarantee: what is here is on disk. Events of a table are kept from its floor (exclusive) to the head; a
//! list as of a past revision is the current one with the later events undone.

use crate::error::StoreError;
use crate::model::{Entry, Event, ListQuery, Listing, Revision};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use tokio::sync::watch;

/// How much history a table keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HistoryLimits {
    pub(crate) events: usize,
    pub(crate) bytes: usize,
}

/// Events of a table that keep what readers make of them: as many as come while a crowd of watchers is told of one.
const NEWS: usize = 64;

/// One table.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) entries: BTreeMap<Arc<str>, Entry>,
    events: VecDeque<Arc<Event>>,
    /// Bytes that only the history holds.
    bytes: usize,
    /// Events after this revision are all here.
    floor: Revision,
    changed: watch::Sender<Revision>,
}

impl Table {
    fn new(floor: Revision) -> Self {
        Self {
            entries: BTreeMap::new(),
            events: VecDeque::new(),
            bytes: 0,
            floor,
            changed: watch::Sender::new(0),
        }
    }

    fn weight(event: &Event) -> usize {
        event.before.as_ref().map_or(0, |before| before.value.len()) + event.key.len()
    }

    /// Position of the first event after `revision`.
    fn position(&self, revision: Revision) -> usize {
        self.events
            .partition_point(|event| event.revision <= revision)
    }

    fn push(&mut self, event: Arc<Event>) {
        self.bytes += Self::weight(&event);
        match &event.now {
            Some(entry) => drop(self.entries.insert(event.key.clone(), entry.clone())),
            None => drop(self.entries.remove(&event.key)),
        }
        self.events.push_back(event);
        if let Some(past) = self
            .events
            .len()
            .checked_sub(NEWS + 1)
            .and_then(|at| self.events.get(at))
        {
            past.pass();
        }
    }

    /// Drops events until the limits hold or the floor is at `at_least`; whole transactions only.
    fn trim(&mut self, limits: HistoryLimits, at_least: Revision) {
        while let Some(first) = self.events.front() {
            let over = self.events.len() > limits.events || self.bytes > limits.bytes;
            if !over && first.revision > at_least && first.revision > self.floor {
                break;
            }
            self.floor = self.floor.max(first.revision);
            self.bytes -= Self::weight(first);
            self.events.pop_front();
        }
        self.floor = self.floor.max(at_least);
    }
}

/// The published state at one revision, by handles.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) head: Revision,
    pub(crate) floor: Revision,
    pub(crate) tables: Vec<CapturedTable>,
}

/// One table of a [`Capture`].
#[derive(Debug)]
pub(crate) struct CapturedTable {
    pub(crate) name: String,
    pub(crate) floor: Revision,
    entries: Vec<Entry>,
    pub(crate) events: Vec<Arc<Event>>,
}

impl CapturedTable {
    /// The entries as they were at the floor: the events go on from there.
    pub(crate) fn entries_at_floor(&self) -> Vec<Entry> {
        let mut then: HashMap<&str, Option<&Entry>> = HashMap::new();
        for event in &self.events {
            then.entry(&event.key).or_insert(event.before.as_ref());
        }
        let kept = self
            .entries
            .iter()
            .filter(|entry| !then.contains_key(&*entry.key))
            .cloned();
        let mut entries: Vec<Entry> = kept
            .chain(then.values().filter_map(|entry| entry.cloned()))
            .collect();
        // Two sorted runs at most where little changed; the sort is made for that.
        entries.sort_by(|one, other| one.key.cmp(&other.key));
        entries
    }
}

/// Everything published.
#[derive(Debug)]
pub(crate) struct Published {
    tables: HashMap<String, Table>,
    head: Revision,
    floor: Revision,
    limits: HistoryLimits,
}

/// The table's name inside a key or a prefix.
pub(crate) fn table_of(key: &str) -> Result<&str, StoreError> {
    match key.split_once('/') {
        Some((table, _)) if !table.is_empty() => Ok(table),
        _ => Err(StoreError::Invalid(format!(
            "{key:?} does not start with a table's name and `/`"
        ))),
    }
}

impl Published {
    pub(crate) fn new(head: Revision, limits: HistoryLimits) -> Self {
        Self {
            tables: HashMap::new(),
            head,
            floor: 0,
            limits,
        }
    }

    pub(crate) fn head(&self) -> Revision {
        self.head
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        self.tables.get(table_of(key).ok()?)?.entries.get(key)
    }

    /// The table, made where there is none yet.
    fn table_mut(&mut self, name: &str) -> &mut Table {
        let floor = self.floor;
        self.tables
            .entry(name.to_owned())
            .or_insert_with(|| Table::new(floor))
    }

    /// Applies an event; those of one transaction share its revision.
    pub(crate) fn publish(&mut self, revision: Revision, event: Event) {
        let limits = self.limits;
        self.head = revision;
        let key = event.key.clone();
        let Ok(name) = table_of(&key) else { return };
        let table = match self.tables.get_mut(name) {
            Some(table) => table,
            None => self.table_mut(name),
        };
        table.push(Arc::new(event));
        let floor = table.floor;
        table.trim(limits, floor);
    }

    /// Whom to wake for what happened after `since`: one sender for each table that changed.
    pub(crate) fn to_wake(&self, since: Revision) -> Vec<watch::Sender<Revision>> {
        let changed = self
            .tables
            .values()
            .filter(|table| table.events.back().is_some_and(|e| e.revision > since));
        changed
            .filter(|table| table.changed.receiver_count() > 0)
            .map(|table| table.changed.clone())
            .collect()
    }

    /// The senders of every table that is watched: compaction and the end concern all.
    pub(crate) fn all_watched(&self) -> Vec<watch::Sender<Revision>> {
        let watched = self
            .tables
            .values()
            .filter(|table| table.changed.receiver_count() > 0);
        watched.map(|table| table.changed.clone()).collect()
    }

    /// Up to where all history is gone.
    pub(crate) fn floor(&self) -> Revision {
        self.floor
    }

    /// Forgets history up to `revision` in all tables.
    pub(crate) fn compact(&mut self, revision: Revision) {
        self.floor = self.floor.max(revision.min(self.head));
        for table in self.tables.values_mut() {
            table.trim(self.limits, self.floor);
        }
    }

    /// Sets the head where the state is rebuilt from disk.
    pub(crate) fn set_head(&mut self, head: Revision) {
        self.head = head;
    }

    /// A table as it was read from disk; entries are in the order of their keys.
    pub(crate) fn install(&mut self, name: &str, floor: Revision, entries: Vec<Entry>) {
        let table = self.table_mut(name);
        table.floor = table.floor.max(floor);
        table.entries = entries
            .into_iter()
            .map(|entry| (entry.key.clone(), entry))
            .collect();
    }

    /// A change as it was read from disk.
    pub(crate) fn replay(&mut self, revision: Revision, key: &str, value: Option<Bytes>) {
        let before = self.get(key).cloned();
        let key = before
            .as_ref()
            .map_or_else(|| Arc::from(key), |entry| entry.key.clone());
        let now = value.map(|value| Entry {
            key: key.clone(),
            value,
            created: before.as_ref().map_or(revision, |entry| entry.created),
            modified: revision,
        });
        if now.is_some() || before.is_some() {
            self.publish(revision, Event::new(revision, key, now, before));
        }
        self.head = revision;
    }

    /// Everything, by handles; takes little longer than counting it.
    pub(crate) fn capture(&self) -> Capture {
        let mut tables: Vec<CapturedTable> = self
            .tables
            .iter()
            .map(|(name, table)| CapturedTable {
                name: name.clone(),
                floor: table.floor,
                entries: table.entries.values().cloned().collect(),
                events: table.events.iter().cloned().collect(),
            })
            .collect();
        tables.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Capture {
            head: self.head,
            floor: self.floor,
            tables,
        }
    }

    /// Every entry, by table and key.
    pub(crate) fn everything(&self) -> Listing {
        let mut names: Vec<&String> = self.tables.keys().collect();
        names.sort_unstable();
        let entries = names.iter().filter_map(|name| self.tables.get(*name));
        let entries = entries
            .flat_map(|table| table.entries.values().cloned())
            .collect();
        Listing {
            revision: self.head,
            entries,
            remaining: 0,
        }
    }

    fn check(&self, asked: Revision, floor: Revision) -> Result<(), StoreError> {
        if asked > self.head {
            return Err(StoreError::Future {
                asked,
                head: self.head,
            });
        }
        if asked < floor {
            return Err(StoreError::Compacted { asked, floor });
        }
        Ok(())
    }

    pub(crate) fn list(&self, query: &ListQuery) -> Result<Listing, StoreError> {
        let name = table_of(&query.prefix)?;
        let revision = query.revision.unwrap_or(self.head);
        let Some(table) = self.tables.get(name) else {
            self.check(revision, self.floor)?;
            return Ok(Listing {
                revision,
                entries: Vec::new(),
                remaining: 0,
            });
        };
        let undone = if revision == self.head {
            BTreeMap::new()
        } else {
            self.check(revision, table.floor)?;
            undo(table, revision, &query.prefix)
        };
        Ok(collect(table, &undone, query, revision))
    }

    /// Events under `prefix` after `after`, at most `limit`, and how far that goes.
    pub(crate) fn events_after(
        &self,
        prefix: &str,
        after: Revision,
        limit: usize,
    ) -> Result<(Vec<Arc<Event>>, Revision), StoreError> {
        let name = table_of(prefix)?;
        let Some(table) = self.tables.get(name) else {
            self.check(after, self.floor)?;
            return Ok((Vec::new(), self.head));
        };
        self.check(after, table.floor)?;
        let mut found: Vec<Arc<Event>> = Vec::new();
        let start = table.position(after);
        for event in table.events.range(start..) {
            if found.len() >= limit
                && found
                    .last()
                    .is_some_and(|last| last.revision < event.revision)
            {
                let through = event.revision - 1;
                return Ok((found, through));
            }
            if event.key.starts_with(prefix) {
                found.push(event.clone());
            }
        }
        Ok((found, self.head))
    }

    pub(crate) fn subscribe(
        &mut self,
        prefix: &str,
    ) -> Result<watch::Receiver<Revision>, StoreError> {
        Ok(self.table_mut(table_of(prefix)?).changed.subscribe())
    }
}

/// For each key under `prefix` that changed after `revision`: what it was then.
fn undo(table: &Table, revision: Revision, prefix: &str) -> BTreeMap<Arc<str>, Option<Entry>> {
    let mut undone = BTreeMap::new();
    for event in table.events.range(table.position(revision)..).rev() {
        if event.key.starts_with(prefix) {
            undone.insert(event.key.clone(), event.before.clone());
        }
    }
    undone
}

fn collect(
    table: &Table,
    undone: &BTreeMap<Arc<str>, Option<Entry>>,
    query: &ListQuery,
    revision: Revision,
) -> Listing {
    let from = match &query.after {
        Some(after) if after.as_str() >= query.prefix.as_str() => Bound::Excluded(after.as_str()),
        _ => Bound::Included(query.prefix.as_str()),
    };
    let mut current = table
        .entries
        .range::<str, _>((from, Bound::Unbounded))
        .take_while(|(key, _)| key.starts_with(&query.prefix))
        .peekable();
    let mut past = undone.range::<str, _>((from, Bound::Unbounded)).peekable();
    let limit = if query.limit == 0 {
        usize::MAX
    } else {
        query.limit
    };
    let mut entries = Vec::new();
    let mut remaining = 0;
    loop {
        let entry = match (current.peek(), past.peek()) {
            (None, None) => break,
            (Some((key, entry)), Some((undone_key, _))) if key < undone_key => {
                let entry = Some(*entry);
                current.next();
                entry
            }
            (Some((key, _)), Some((undone_key, entry))) => {
                let entry = entry.as_ref();
                if key == undone_key {
                    current.next();
                }
                past.next();
                entry
            }
            (Some((_, entry)), None) => {
                let entry = Some(*entry);
                current.next();
                entry
            }
            (None, Some((_, entry))) => {
                let entry = entry.as_ref();
                past.next();
                entry
            }
        };
        match entry {
            Some(entry) if entries.len() < limit => entries.push(entry.clone()),
            Some(_) => remaining += 1,
            None => {}
        }
    }
    Listing {
        revision,
        entries,
        remaining,
    }
}
