//! The published state: current entries and a bounded history for each table, in memory.
//!
//! Guarantee: everything here is on disk. Events of a table are kept from its floor (exclusive) to
//! the head; a list at a past revision is the current one with later events undone.

use crate::error::StoreError;
use crate::model::{Entry, Event, ListQuery, Listing, Revision};
use crate::packing::Samples;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// How much history a table keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HistoryLimits {
    pub(crate) events: usize,
    pub(crate) bytes: usize,
    /// Bytes of values that are read from disk before they are packed.
    pub(crate) unpacked: usize,
}

/// What a watch may still take at once. It takes at least one transaction, and ends with the one
/// that fills it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) events: usize,
    /// Bytes of new and superseded values, before packing. What a slow watch has taken stays in
    /// memory after the history has dropped it.
    pub(crate) bytes: usize,
}

impl Room {
    fn take(&mut self, event: &Event) {
        let sides = [&event.now, &event.before].into_iter().flatten();
        let bytes: usize = sides.map(|entry| entry.value.len()).sum();
        self.events = self.events.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    fn is_full(self) -> bool {
        self.events == 0 || self.bytes == 0
    }
}

/// How many of a table's newest events are recent: their derived data is cached, and their values
/// are not packed. Enough for all watchers to receive an event while it is recent.
const RECENT: usize = 64;

/// Bytes of values that a table reads from disk before it packs them. Most values of a long history
/// are superseded soon after, so that packing each at once would be wasted work; holding all of
/// them unpacked would take most of the process's memory.
pub(crate) const READ_AT_ONCE: usize = 32 << 20;

/// One table.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) entries: BTreeMap<Arc<str>, Entry>,
    samples: Samples,
    events: VecDeque<Arc<Event>>,
    /// Bytes of superseded values and of keys in the history, before packing.
    bytes: usize,
    /// Bytes of values that were read from disk and are not packed yet.
    unpacked: usize,
    /// The revision up to which values that were read from disk are packed.
    packed_through: Revision,
    /// All events after this revision are present.
    floor: Revision,
}

impl Table {
    fn new(floor: Revision) -> Self {
        Self {
            entries: BTreeMap::new(),
            samples: Samples::default(),
            events: VecDeque::new(),
            bytes: 0,
            unpacked: 0,
            packed_through: 0,
            floor,
        }
    }

    /// Bytes that an event counts for the limit. The new value is not counted: it is the key's
    /// present value, or another event's superseded one.
    fn weight(event: &Event) -> usize {
        event.before.as_ref().map_or(0, |before| before.value.len()) + event.key.len()
    }

    /// Index of the first event after `revision`.
    fn position(&self, revision: Revision) -> usize {
        self.events
            .partition_point(|event| event.revision <= revision)
    }

    fn push(&mut self, event: Arc<Event>, packs: bool, unpacked: usize) {
        self.bytes += Self::weight(&event);
        match &event.now {
            Some(entry) => drop(self.entries.insert(event.key.clone(), entry.clone())),
            None => drop(self.entries.remove(&event.key)),
        }
        if !packs {
            self.unpacked += event.now.as_ref().map_or(0, |entry| entry.value.len());
        }
        self.events.push_back(event);
        // This push made one event no longer recent.
        if packs && let Some(at) = self.events.len().checked_sub(RECENT + 1) {
            self.age(at);
        }
        if self.unpacked > unpacked {
            self.pack();
        }
    }

    /// Packs the values of the event at an index, which is no longer recent, and drops its derived
    /// data.
    fn age(&mut self, at: usize) {
        if let Some(event) = self.events.get(at).cloned() {
            // A new event replaces the old one, which watchers may still hold.
            let before = event.before.as_ref().map(|entry| self.packed(entry, None));
            let now = self.pack_now(&event);
            self.events[at] = Arc::new(event.past(now, before));
        }
    }

    /// The entry with its value packed; `known` is the sample of the value that it replaces.
    fn packed(&mut self, entry: &Entry, known: Option<&Arc<[u8]>>) -> Entry {
        Entry {
            value: self.samples.pack(&entry.value, known),
            ..entry.clone()
        }
    }

    /// Packs an event's new value, also in the table if it is still the key's.
    fn pack_now(&mut self, event: &Event) -> Option<Entry> {
        let known = event.before.as_ref();
        let known = known.and_then(|before| before.value.sample());
        let now = self.packed(event.now.as_ref()?, known);
        if let Some(own) = self.entries.get_mut(&now.key)
            && own.modified == now.modified
        {
            own.value = now.value.clone();
        }
        Some(now)
    }

    /// Packs everything that was read from disk since the last call and is not recent. Each value
    /// is tried once: one that resembles no sample stays as it is.
    fn pack(&mut self) {
        let old = self.events.len().saturating_sub(RECENT);
        let last = old.checked_sub(1).and_then(|last| self.events.get(last));
        let through = last.map_or(self.floor, |last| last.revision.max(self.floor));
        // Again from the last revision on: some of its events may have been recent at the last
        // call.
        let fresh = self.packed_through..=through;
        for at in self.position(self.packed_through.saturating_sub(1))..old {
            self.age(at);
        }
        // Entries without an event, too: it was dropped while the table was read.
        let entries = self.entries.values_mut();
        for entry in entries.filter(|entry| fresh.contains(&entry.modified)) {
            entry.value = self.samples.pack(&entry.value, None);
        }
        (self.unpacked, self.packed_through) = (0, through);
    }

    /// Drops the oldest events until the limits hold and the floor is at least `at_least`. Whole
    /// transactions only: a watch must not start inside one.
    fn trim(&mut self, limits: HistoryLimits, at_least: Revision, packs: bool) {
        while let Some(first) = self.events.front() {
            let over = self.events.len() > limits.events || self.bytes > limits.bytes;
            if !over && first.revision > at_least && first.revision > self.floor {
                break;
            }
            // The floor rises to the dropped event's revision, so that the next turns drop the
            // other events of its transaction.
            self.floor = self.floor.max(first.revision);
            self.bytes -= Self::weight(first);
            let first = self.events.pop_front();
            // Its value is packed now, as without the event nothing would do so later.
            if let Some(event) = first.filter(|event| packs && !event.is_past()) {
                self.pack_now(&event);
            }
        }
        self.floor = self.floor.max(at_least);
    }
}

/// A copy of the published state at one revision that shares its entries.
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
    /// The entries at the floor, from which the events continue.
    pub(crate) fn entries_at_floor(&self) -> Vec<Entry> {
        let mut at_floor: HashMap<&str, Option<&Entry>> = HashMap::new();
        for event in &self.events {
            // The first event of a key has the entry at the floor; later ones have entries in
            // between.
            at_floor.entry(&event.key).or_insert(event.before.as_ref());
        }
        let kept = self
            .entries
            .iter()
            .filter(|entry| !at_floor.contains_key(&*entry.key))
            .cloned();
        let mut entries: Vec<Entry> = kept
            .chain(at_floor.values().filter_map(|entry| entry.cloned()))
            .collect();
        // If little changed, these are two sorted runs, for which this sort is fast.
        entries.sort_by(|one, other| one.key.cmp(&other.key));
        entries
    }
}

/// The published state.
#[derive(Debug)]
pub(crate) struct Published {
    tables: HashMap<String, Table>,
    head: Revision,
    floor: Revision,
    limits: HistoryLimits,
    /// Whether values are packed when their events are no longer recent. Not while the state is
    /// read from disk, as most of those values are superseded a little later.
    packs: bool,
}

/// The table of a key or prefix.
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
            packs: true,
        }
    }

    /// A state to read from disk into. Its tables pack only when they have read
    /// [`HistoryLimits::unpacked`] bytes, until [`Published::pack`].
    pub(crate) fn unpacked(head: Revision, limits: HistoryLimits) -> Self {
        Self {
            packs: false,
            ..Self::new(head, limits)
        }
    }

    /// Packs what was read from disk.
    pub(crate) fn pack(&mut self) {
        self.packs = true;
        self.tables.values_mut().for_each(Table::pack);
    }

    pub(crate) fn head(&self) -> Revision {
        self.head
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        self.tables.get(table_of(key).ok()?)?.entries.get(key)
    }

    /// The table; created if absent.
    fn table_mut(&mut self, name: &str) -> &mut Table {
        let floor = self.floor;
        self.tables
            .entry(name.to_owned())
            .or_insert_with(|| Table::new(floor))
    }

    /// Applies an event; those of one transaction share its revision.
    pub(crate) fn publish(&mut self, event: Arc<Event>) {
        let (limits, packs) = (self.limits, self.packs);
        self.head = event.revision;
        let key = event.key.clone();
        let Ok(name) = table_of(&key) else { return };
        let table = match self.tables.get_mut(name) {
            Some(table) => table,
            None => self.table_mut(name),
        };
        table.push(event, packs, limits.unpacked);
        // The floor stays: an event can only exceed the table's limits.
        let floor = table.floor;
        table.trim(limits, floor, packs);
    }

    /// The revision up to which all history is compacted.
    pub(crate) fn floor(&self) -> Revision {
        self.floor
    }

    /// Compacts history up to and including `revision` in all tables.
    pub(crate) fn compact(&mut self, revision: Revision) {
        // Not beyond the head: a watch from the head must stay possible.
        self.floor = self.floor.max(revision.min(self.head));
        for table in self.tables.values_mut() {
            table.trim(self.limits, self.floor, self.packs);
        }
    }

    /// Sets the head while the state is rebuilt from disk.
    pub(crate) fn set_head(&mut self, head: Revision) {
        self.head = head;
    }

    /// Installs a table read from disk; entries are sorted by key, and packed with these samples.
    pub(crate) fn install(
        &mut self,
        name: &str,
        floor: Revision,
        entries: Vec<Entry>,
        samples: Samples,
    ) {
        let table = self.table_mut(name);
        table.floor = table.floor.max(floor);
        (table.samples, table.packed_through) = (samples, table.floor);
        table.entries = entries
            .into_iter()
            .map(|entry| (entry.key.clone(), entry))
            .collect();
    }

    /// Replaces the entries by those of another state. Its history is not known, so that watches
    /// from before it fail with [`StoreError::Compacted`], and their clients list again.
    pub(crate) fn replace(&mut self, found: &Listing) {
        for table in self.tables.values_mut() {
            table.entries.clear();
            table.events.clear();
            table.bytes = 0;
            table.floor = found.revision;
        }
        (self.head, self.floor) = (found.revision, found.revision);
        for entry in &found.entries {
            if let Ok(name) = table_of(&entry.key) {
                let table = self.table_mut(name);
                let entry = table.packed(entry, None);
                table.entries.insert(entry.key.clone(), entry);
            }
        }
    }

    /// Applies a change read from disk.
    pub(crate) fn replay(&mut self, revision: Revision, key: &str, value: Option<Bytes>) {
        let before = self.get(key).cloned();
        let key = before
            .as_ref()
            .map_or_else(|| Arc::from(key), |entry| entry.key.clone());
        let now = value.map(|value| Entry {
            key: key.clone(),
            value: value.into(),
            created: before.as_ref().map_or(revision, |entry| entry.created),
            modified: revision,
        });
        // The deletion of a key that does not exist has no event, as in the writer.
        if now.is_some() || before.is_some() {
            self.publish(Arc::new(Event::new(revision, key, now, before)));
        }
        // Even without an event, as the next change in the log must follow this revision.
        self.head = revision;
    }

    /// A copy that shares all entries; it takes little longer than counting them.
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

    /// Every entry, sorted by table and key.
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
        // A client can be ahead only with a revision of another store.
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
        // At the head nothing is undone.
        let undone = if revision == self.head {
            BTreeMap::new()
        } else {
            self.check(revision, table.floor)?;
            undo(table, revision, &query.prefix)
        };
        Ok(collect(table, &undone, query, revision))
    }

    /// Events under `prefix`, or without one all events, after `after`, as many as there is room
    /// for, and the revision up to which they are complete.
    pub(crate) fn events_after(
        &self,
        prefix: Option<&str>,
        after: Revision,
        mut room: Room,
    ) -> Result<(Vec<Arc<Event>>, Revision), StoreError> {
        let Some(prefix) = prefix else {
            return self.all_events_after(after, room);
        };
        let name = table_of(prefix)?;
        let Some(table) = self.tables.get(name) else {
            self.check(after, self.floor)?;
            return Ok((Vec::new(), self.head));
        };
        self.check(after, table.floor)?;
        let mut found: Vec<Arc<Event>> = Vec::new();
        let start = table.position(after);
        for event in table.events.range(start..) {
            if room.is_full()
                && found
                    .last()
                    .is_some_and(|last| last.revision < event.revision)
            {
                // Only between revisions: a watch goes on after `through`, and would miss the rest
                // of a transaction.
                let through = event.revision - 1;
                return Ok((found, through));
            }
            if event.key.starts_with(prefix) {
                room.take(event);
                found.push(event.clone());
            }
        }
        Ok((found, self.head))
    }

    fn all_events_after(
        &self,
        after: Revision,
        mut room: Room,
    ) -> Result<(Vec<Arc<Event>>, Revision), StoreError> {
        // Complete only where the history of every table reaches back to `after`.
        let floors = self.tables.values().map(|table| table.floor);
        self.check(after, floors.fold(self.floor, Revision::max))?;
        let tables = self.tables.values();
        let mut found: Vec<Arc<Event>> = tables
            .flat_map(|table| table.events.range(table.position(after)..).cloned())
            .collect();
        // Stable: the events of a transaction stay in their order within a table.
        found.sort_by_key(|event| event.revision);
        // As many events as fill the room, and then the rest of the last one's transaction.
        let filling = found.iter().find(|event| {
            room.take(event);
            room.is_full()
        });
        let Some(last) = filling.map(|event| event.revision) else {
            return Ok((found, self.head));
        };
        let whole = found.partition_point(|event| event.revision <= last);
        let through = found.get(whole).map_or(self.head, |next| next.revision - 1);
        found.truncate(whole);
        Ok((found, through))
    }
}

/// For each key under `prefix` that changed after `revision`: its entry at that revision.
fn undo(table: &Table, revision: Revision, prefix: &str) -> BTreeMap<Arc<str>, Option<Entry>> {
    let mut undone = BTreeMap::new();
    // Newest first: the last insert of a key is its first change, whose previous entry is the one
    // asked for.
    for event in table.events.range(table.position(revision)..).rev() {
        if event.key.starts_with(prefix) {
            undone.insert(event.key.clone(), event.before.clone());
        }
    }
    undone
}

/// Merges two sorted runs, the current entries and the undone ones; an undone one replaces the
/// current one of its key.
fn collect(
    table: &Table,
    undone: &BTreeMap<Arc<str>, Option<Entry>>,
    query: &ListQuery,
    revision: Revision,
) -> Listing {
    // A continuation from another list must not reach before the prefix.
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
    // The walk goes on after the limit only to count these (`remainingItemCount` of a list).
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

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
