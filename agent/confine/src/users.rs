//! Allocates ranges of the machine's user and group ids to pods with a user namespace (pure).
//!
//! Such a pod (`hostUsers: false`, KEP-127) has ids 0 to 65,535, which are mapped to a range of as
//! many ids of the machine. Guarantees: ranges never overlap; they start at [`LOWEST`], above all
//! ids of the machine's own users and of pods without a user namespace; a pod that asks again gets
//! the same range. A range is given again only after it was taken back. Assumption: by then its
//! pod's processes have ended, and no other pod sees its files.

use agent_sys::namespace::IDS;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Most pods with a user namespace at a time, far more than a machine runs. Machines' kernels allow
/// as many (`user.max_user_namespaces`).
pub const RANGES: u32 = 1024;

/// The first id of the first range: one above the greatest id of a pod without a user namespace
/// (`runAsUser`, upstream's limit), so that no file of the machine can belong to both.
pub const LOWEST: u32 = 1 << 31;

/// All ranges are in use: pods with user namespaces have to end first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRange;

/// The number of each pod's range, starting with 0, by the pod's uid.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IdRanges(BTreeMap<String, u32>);

impl IdRanges {
    /// The first id of a pod's range.
    pub fn of(&self, uid: &str) -> Option<u32> {
        let number = self.0.get(uid)?;
        Some(number.saturating_mul(IDS).saturating_add(LOWEST))
    }

    /// All pods that have a range, by uid.
    pub fn uids(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Gives a pod a range if it has none; true if it got one now.
    ///
    /// # Errors
    /// [`NoRange`]; then nothing has changed.
    pub fn give(&mut self, uid: &str) -> Result<bool, NoRange> {
        if self.0.contains_key(uid) {
            return Ok(false);
        }
        let taken: BTreeSet<u32> = self.0.values().copied().collect();
        let free = (0..RANGES).find(|number| !taken.contains(number));
        self.0.insert(uid.to_owned(), free.ok_or(NoRange)?);
        Ok(true)
    }

    /// Records the range that a running pod was found to have, by its first id; true if that
    /// changed something. A range of another pod, and an id that is not the first of a range, are
    /// not recorded.
    pub fn keep(&mut self, uid: &str, first: u32) -> bool {
        let Some(beyond) = first.checked_sub(LOWEST) else {
            return false;
        };
        let number = beyond / IDS;
        let taken = self
            .0
            .iter()
            .any(|(other, one)| other != uid && *one == number);
        let sound = beyond.is_multiple_of(IDS) && number < RANGES;
        sound && !taken && self.0.insert(uid.to_owned(), number) != Some(number)
    }

    /// Takes a pod's range back; true if it had one.
    pub fn take_back(&mut self, uid: &str) -> bool {
        self.0.remove(uid).is_some()
    }

    /// Whether all numbers are valid and none is given twice: the file may be damaged or edited.
    pub fn is_sound(&self) -> bool {
        let mut seen = BTreeSet::new();
        let mut all = self.0.values();
        all.all(|number| *number < RANGES && seen.insert(*number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_range_begins_above_all_other_ids() {
        let mut users = IdRanges::default();
        assert!(users.give("a").unwrap());
        assert_eq!(users.of("a"), Some(2_147_483_648));
        assert!(!users.give("a").unwrap(), "it keeps what it has");
        assert!(users.give("b").unwrap());
        assert_eq!(users.of("b"), Some(2_147_549_184));
        assert!(users.take_back("a"));
        assert_eq!(users.of("a"), None);
        users.give("c").unwrap();
        assert_eq!(users.of("c"), Some(LOWEST));
    }

    #[test]
    fn the_last_range_ends_within_the_ids_of_the_kernel() {
        let mut users = IdRanges::default();
        for number in 0..RANGES {
            users.give(&number.to_string()).unwrap();
        }
        let before = users.clone();
        assert_eq!(users.give("one more"), Err(NoRange));
        assert_eq!(users, before);
        let last = users.of(&(RANGES - 1).to_string()).unwrap();
        // u32::MAX is no id (chown(2)).
        assert!(last.checked_add(IDS).is_some());
    }

    #[test]
    fn a_found_range_is_recorded_unless_another_pod_has_it_or_it_is_none() {
        let mut users = IdRanges::default();
        users.give("a").unwrap();
        for wrong in [LOWEST, 0, IDS, LOWEST + 1, LOWEST + RANGES * IDS, u32::MAX] {
            assert!(!users.keep("b", wrong), "{wrong}");
            assert_eq!(users.of("b"), None);
        }
        assert!(users.keep("b", LOWEST + IDS) && !users.keep("b", LOWEST + IDS));
        assert_eq!(users.of("b"), Some(LOWEST + IDS));
        users.give("c").unwrap();
        assert_eq!(users.of("c"), Some(LOWEST + 2 * IDS));
    }

    #[derive(Debug, Clone)]
    enum Event {
        Give(u8),
        TakeBack(u8),
        Keep(u8, u32),
        /// The agent restarts, and reads the table from its file.
        Restart,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            4 => (0_u8..12).prop_map(Event::Give),
            2 => (0_u8..12).prop_map(Event::TakeBack),
            1 => (0_u8..12, 0_u32..20).prop_map(|(pod, number)| Event::Keep(pod, LOWEST + number * IDS)),
            1 => Just(Event::Restart),
        ];
        proptest::collection::vec(event, 0..80)
    }

    proptest! {
        #[test]
        fn no_two_pods_have_one_id_whatever_happens(events in events()) {
            let mut users = IdRanges::default();
            for event in events {
                match event {
                    Event::Give(pod) => {
                        let before = users.of(&pod.to_string());
                        users.give(&pod.to_string()).unwrap();
                        prop_assert!(before.is_none() || before == users.of(&pod.to_string()));
                    }
                    Event::TakeBack(pod) => {
                        users.take_back(&pod.to_string());
                        prop_assert!(users.of(&pod.to_string()).is_none());
                    }
                    Event::Keep(pod, first) => drop(users.keep(&pod.to_string(), first)),
                    Event::Restart => {
                        let text = serde_json::to_string(&users).unwrap();
                        users = serde_json::from_str(&text).unwrap();
                    }
                }
                let uids: Vec<String> = users.uids().map(str::to_owned).collect();
                let mut firsts: Vec<u32> = uids.iter().filter_map(|uid| users.of(uid)).collect();
                firsts.sort_unstable();
                prop_assert!(firsts.iter().all(|first| *first >= LOWEST));
                prop_assert!(firsts.windows(2).all(|pair| pair[1] - pair[0] >= IDS));
                prop_assert!(users.is_sound());
            }
        }
    }
}
