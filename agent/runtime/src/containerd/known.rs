//! The ids of each pod's containers, so that a list of one pod reads only that pod's records.
//!
//! containerd has no index: a list by label reads the records of all pods, each with its
//! specification of some 10 KiB, so that lists of `n` pods would read `n²` records.
//!
//! Assumption: while this engine lives, nothing else makes containers of pods in its namespace. A
//! container that something else removes has an id here but no record, and is not listed.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The ids of containers that may exist.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Ids>);

#[derive(Debug, Default)]
struct Ids {
    /// Whether the ids include those of an earlier agent: all containers have been listed.
    whole: bool,
    of_pod: HashMap<String, BTreeSet<String>>,
    starting: BTreeSet<String>,
}

/// A start that is under way, until this is dropped.
#[derive(Debug)]
pub(super) struct Starting<'a> {
    known: &'a Known,
    id: &'a str,
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.known.ids().starting.remove(self.id);
    }
}

impl Known {
    fn ids(&self) -> MutexGuard<'_, Ids> {
        // A panic leaves no half-made change behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ids of a pod's containers, sorted; `None` before all containers have been listed.
    pub(super) fn of_pod(&self, uid: &str) -> Option<Vec<String>> {
        let ids = self.ids();
        let of_pod = || ids.of_pod.get(uid).into_iter().flatten().cloned().collect();
        ids.whole.then(of_pod)
    }

    /// Adds a container that is about to be made.
    pub(super) fn add(&self, uid: &str, id: &str) {
        let mut ids = self.ids();
        let of_pod = ids.of_pod.entry(uid.to_owned()).or_default();
        of_pod.insert(id.to_owned());
    }

    /// Records that a container is being started. Its labels may have a start time before it has
    /// started: then a missing task is not one that has ended.
    pub(super) fn start<'a>(&'a self, id: &'a str) -> Starting<'a> {
        self.ids().starting.insert(id.to_owned());
        Starting { known: self, id }
    }

    /// Whether a container is being started.
    pub(super) fn is_starting(&self, id: &str) -> bool {
        self.ids().starting.contains(id)
    }

    /// Adds the ids of a whole list. Known ids stay, since containers may have been made after the
    /// list was read.
    pub(super) fn add_all<'a>(&self, listed: impl Iterator<Item = (&'a str, &'a str)>) {
        for (uid, id) in listed {
            self.add(uid, id);
        }
        self.ids().whole = true;
    }

    /// Forgets a container that was removed.
    pub(super) fn forget(&self, id: &str) {
        self.ids().of_pod.retain(|_, of_pod| {
            of_pod.remove(id);
            !of_pod.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(known: &Known, uid: &str) -> Vec<String> {
        known.of_pod(uid).unwrap()
    }

    #[test]
    fn before_all_were_listed_nothing_is_known_of_a_pod() {
        let known = Known::default();
        known.add("a", "a-1");
        assert_eq!(known.of_pod("a"), None);
        known.add_all([("a", "a-0"), ("b", "b-0")].into_iter());
        assert_eq!(ids(&known, "a"), ["a-0", "a-1"], "made during the list");
        assert_eq!(ids(&known, "b"), ["b-0"]);
        assert!(ids(&known, "c").is_empty());
    }

    #[test]
    fn a_container_is_being_started_until_its_start_has_ended() {
        let known = Known::default();
        let start = known.start("a");
        assert!(known.is_starting("a") && !known.is_starting("b"));
        drop(start);
        assert!(!known.is_starting("a"));
    }

    #[test]
    fn what_was_removed_is_forgotten_and_a_pod_without_containers_too() {
        let known = Known::default();
        known.add_all([("a", "a-0"), ("a", "a-1")].into_iter());
        known.forget("a-0");
        known.forget("other");
        assert_eq!(ids(&known, "a"), ["a-1"]);
        known.forget("a-1");
        assert!(known.ids().of_pod.is_empty());
    }
}
