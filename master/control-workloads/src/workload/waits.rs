//! Back-off for failed daemon pods: how long one stays on its node before it is replaced. Otherwise
//! pods would be created without end for a kubelet that refuses each.

use master_client::Key;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The first and the longest wait (upstream's).
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// The wait on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    since: Instant,
    length: Duration,
}

impl Wait {
    /// What is left of it.
    pub fn left(&self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.since);
        self.length.saturating_sub(passed)
    }

    fn next(known: Option<&Self>, now: Instant) -> Self {
        let length = known.filter(|known| known.counts(now));
        let length = length.map_or(FIRST, |known| (known.length * 2).min(LONGEST));
        Self { since: now, length }
    }

    /// Whether the next wait is longer: only if this one began no longer ago than twice the longest
    /// wait.
    fn counts(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) <= 2 * LONGEST
    }
}

/// Waits by the name of the node.
pub type OfNodes = HashMap<String, Wait>;

/// The waits of all owners. Those of an owner are reset when its specification changes.
#[derive(Debug, Default)]
pub struct Waits(Mutex<HashMap<Key, OfOwner>>);

/// The specification of an owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Version {
    /// The owner's UID.
    pub uid: String,
    /// The generation of its specification.
    pub generation: i64,
}

/// The waits of one owner.
#[derive(Debug, Default)]
struct OfOwner {
    version: Version,
    nodes: OfNodes,
}

impl Waits {
    /// The waits of an owner, by node.
    pub fn of(&self, owner: &Key, version: &Version) -> OfNodes {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.get(owner).filter(|own| own.version == *version);
        own.map(|own| own.nodes.clone()).unwrap_or_default()
    }

    /// Notes that a failed pod of an owner is replaced now on a node: the next one waits longer.
    pub fn note(&self, owner: &Key, version: &Version, node: &str, now: Instant) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.entry(owner.clone()).or_default();
        if own.version != *version {
            *own = OfOwner::default();
            own.version.clone_from(version);
        }
        own.nodes.retain(|_, wait| wait.counts(now));
        let next = Wait::next(own.nodes.get(node), now);
        own.nodes.insert(node.to_owned(), next);
    }

    /// Forgets an owner that was deleted.
    pub fn forget(&self, owner: &Key) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound_and_begin_anew_after_a_long_time_or_with_another_specification() {
        let (waits, owner) = (Waits::default(), Key::new("default", "web"));
        let [version, other] = [1, 2].map(|generation| Version {
            uid: "uid".to_owned(),
            generation,
        });
        let start = Instant::now();
        let mut now = start;
        let mut lengths = Vec::new();
        for _ in 0..12 {
            waits.note(&owner, &version, "n1", now);
            let left = waits.of(&owner, &version)["n1"].left(now);
            lengths.push(left.as_secs());
            now += left;
            assert!(waits.of(&owner, &version)["n1"].left(now).is_zero());
        }
        assert_eq!(lengths, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900]);
        waits.note(&owner, &version, "n2", now);
        assert_eq!(
            waits.of(&owner, &version)["n2"].left(now),
            FIRST,
            "each node has its own"
        );
        assert!(waits.of(&owner, &other).is_empty());
        now += LONGEST * 3;
        waits.note(&owner, &version, "n1", now);
        let known = waits.of(&owner, &version);
        assert_eq!((known["n1"].left(now), known.len()), (FIRST, 1));
        waits.forget(&owner);
        assert!(waits.of(&owner, &version).is_empty());
    }
}
