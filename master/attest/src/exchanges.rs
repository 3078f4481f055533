//! The last exchange of each machine that proved which it is, in memory: what drafts of a policy are tried on.
//!
//! After a start it fills within a renewal's time. It is bounded in number and bytes, and the oldest goes first.

use config_attest::Digest;
use config_attest::verifier::Shown;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Most exchanges that are kept.
const MOST: usize = 1024;
/// Most bytes that they take together.
const MOST_BYTES: usize = 16 * 1024 * 1024;

/// An exchange and its time.
type Kept = (Timestamp, Arc<Shown>);

/// The exchanges, by endorsement key.
#[derive(Debug, Default)]
pub(crate) struct Exchanges {
    kept: Mutex<BTreeMap<Digest, Kept>>,
}

impl Exchanges {
    /// Keeps one, in the place of the machine's last.
    pub(crate) fn keep(&self, shown: Shown, now: Timestamp) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.insert(shown.ek_hash(), (now, Arc::new(shown)));
        let mut bytes: usize = kept.values().map(|(_, shown)| shown.size()).sum();
        while kept.len() > MOST || bytes > MOST_BYTES {
            let oldest = kept
                .iter()
                .min_by_key(|(_, (at, _))| *at)
                .map(|(ek, _)| *ek);
            let Some((_, gone)) = oldest.and_then(|ek| kept.remove(&ek)) else {
                break;
            };
            bytes -= gone.size();
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Kept> {
        self.kept
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_attest::testing::{EkKind, SoftMachine, World};

    #[test]
    fn a_machine_has_one_and_all_have_a_bound() {
        let mut world = World::new();
        world.rule.policy = config_kube::PolicyName::Queue;
        let exchanges = Exchanges::default();
        let mut show = |node: &str| {
            let mut machine = SoftMachine::new(node, EkKind::P256);
            machine.boot(&world.image, "nocloud", b"version = 1\n");
            world.show(&machine).unwrap()
        };
        let first = show("worker-1");
        for second in 0..3 {
            exchanges.keep(
                first.clone(),
                Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(second),
            );
        }
        assert_eq!(exchanges.all().len(), 1);
        exchanges.keep(show("worker-2"), Timestamp::now());
        assert_eq!(exchanges.all().len(), 2);
        assert!(
            first.size() * MOST > MOST_BYTES / 2,
            "the bound in bytes is of the order of the bound in number"
        );
    }
}
