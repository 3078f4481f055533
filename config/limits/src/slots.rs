//! A fixed number of connection slots with fair eviction: a new connection is always accepted, and
//! evicts an older one when the slots, or its group's share, are used up.
//!
//! Fairness is by group (network prefix): a connection whose group is at its limit evicts the
//! oldest of that group. Otherwise, if all slots are used, it evicts the oldest of the *largest*
//! group. So a group loses a slot to others only while it has more than they have: many newcomers
//! of few groups evict each other, and the only member of a group keeps its slot for as long as any
//! group has two.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// Identifies a slot's holder; unique, chosen by the caller.
pub type SlotId = u64;

/// Insertion sequence number, and the holder.
type Age = (u64, SlotId);

#[derive(Debug)]
struct Holder<K> {
    since: u64,
    groups: Vec<K>,
}

/// The slots and their holders. `K` names a group.
#[derive(Debug)]
pub struct SlotTable<K> {
    total: usize,
    steps: u64,
    held: HashMap<SlotId, Holder<K>>,
    members: HashMap<K, BTreeSet<Age>>,
    /// The widest groups, largest last; of equals the one whose oldest member is older.
    largest: BTreeSet<(usize, Reverse<Age>, K)>,
}

impl<K: Copy + Hash + Ord> SlotTable<K> {
    /// A table of `total` slots, at least one.
    pub fn new(total: usize) -> Self {
        Self {
            total: total.max(1),
            steps: 0,
            held: HashMap::new(),
            members: HashMap::new(),
            largest: BTreeSet::new(),
        }
    }

    /// Inserts a connection; returns the one to close, which no longer has a slot.
    ///
    /// `groups` are the newcomer's, from the narrowest to the widest, each with its limit of slots.
    /// A full table is shared between the widest ones: the largest of them loses its oldest slot.
    pub fn enter(&mut self, id: SlotId, groups: &[(K, usize)]) -> Option<SlotId> {
        self.leave(id);
        let crowded = groups
            .iter()
            .find(|(group, most)| self.count(group) >= (*most).max(1));
        let out = match crowded {
            Some((group, _)) => self.oldest(group),
            None if self.held.len() >= self.total => {
                self.largest.last().map(|(_, Reverse((_, id)), _)| *id)
            }
            None => None,
        };
        if let Some(out) = out {
            self.leave(out);
        }
        let since = self.step();
        self.held.insert(
            id,
            Holder {
                since,
                groups: groups.iter().map(|(group, _)| *group).collect(),
            },
        );
        self.join(id);
        out
    }

    /// Makes a holder the youngest, for example after it authenticated.
    pub fn touch(&mut self, id: SlotId) {
        let since = self.step();
        if self.held.contains_key(&id) {
            self.part(id);
            if let Some(held) = self.held.get_mut(&id) {
                held.since = since;
            }
            self.join(id);
        }
    }

    /// Frees a slot; returns whether there was one.
    pub fn leave(&mut self, id: SlotId) -> bool {
        self.part(id);
        self.held.remove(&id).is_some()
    }

    /// Number of slots in use.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether no slot is in use.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Number of slots that a group has.
    pub fn count(&self, group: &K) -> usize {
        self.members.get(group).map_or(0, BTreeSet::len)
    }

    fn oldest(&self, group: &K) -> Option<SlotId> {
        self.members.get(group)?.first().map(|(_, id)| *id)
    }

    fn step(&mut self) -> u64 {
        self.steps += 1;
        self.steps
    }

    /// The key of a group in `largest`.
    fn rank(&self, group: &K) -> Option<(usize, Reverse<Age>, K)> {
        let members = self.members.get(group)?;
        Some((members.len(), Reverse(*members.first()?), *group))
    }

    fn join(&mut self, id: SlotId) {
        self.change(id, |members, age| {
            members.insert(age);
        });
    }

    fn part(&mut self, id: SlotId) {
        self.change(id, |members, age| {
            members.remove(&age);
        });
    }

    /// Changes the groups of a holder, and updates `largest`.
    fn change(&mut self, id: SlotId, change: impl Fn(&mut BTreeSet<Age>, Age)) {
        let Some(Holder { since, groups }) = self.held.get(&id) else {
            return;
        };
        let (age, groups) = ((*since, id), groups.clone());
        if let Some(rank) = groups.last().and_then(|widest| self.rank(widest)) {
            self.largest.remove(&rank);
        }
        for group in &groups {
            let members = self.members.entry(*group).or_default();
            change(members, age);
            if members.is_empty() {
                self.members.remove(group);
            }
        }
        self.largest
            .extend(groups.last().and_then(|widest| self.rank(widest)));
    }
}
