//! The last evidence of each machine that proved possession, in memory, for dry runs of draft
//! policies.
//!
//! After a start it fills as machines renew. Number and bytes are bounded; the oldest is dropped
//! first.

use config_attest::verifier::RecordedEvidence;
use config_tpm::Digest;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Machines at most.
const MAX_MACHINES: usize = 1024;
/// Bytes of all evidence at most.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Evidence and the time at which it came.
pub(crate) type RecentProof = (Timestamp, Arc<RecordedEvidence>);

/// The evidence by endorsement key.
#[derive(Debug, Default)]
pub(crate) struct RecentEvidence {
    kept: Mutex<BTreeMap<Digest, RecentProof>>,
}

impl RecentEvidence {
    /// Keeps evidence in place of the machine's earlier one.
    pub(crate) fn keep(&self, shown: RecordedEvidence, now: Timestamp) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.insert(shown.ek_hash(), (now, Arc::new(shown)));
        let mut bytes: usize = kept.values().map(|(_, shown)| shown.size()).sum();
        while kept.len() > MAX_MACHINES || bytes > MAX_BYTES {
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

    /// The evidence of all machines.
    pub(crate) fn all(&self) -> Vec<RecentProof> {
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
    use tests_machines::{EkKind, SoftMachine, World};

    #[test]
    fn each_machine_has_one_entry_and_the_total_is_bounded() {
        let mut world = World::new();
        world.rule.policy = config_kube::PolicyName::Queue;
        let recent = RecentEvidence::default();
        let mut show = |node: &str| {
            let mut machine = SoftMachine::new(node, EkKind::P256);
            machine.boot(&world.image, "nocloud", b"version = 1\n");
            world.show(&machine).unwrap()
        };
        let first = show("worker-1");
        for second in 0..3 {
            recent.keep(
                first.clone(),
                Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(second),
            );
        }
        assert_eq!(recent.all().len(), 1);
        recent.keep(show("worker-2"), Timestamp::now());
        assert_eq!(recent.all().len(), 2);
        assert!(
            first.size() * MAX_MACHINES > MAX_BYTES / 2,
            "the bound in bytes is of the order of the bound in number"
        );
    }
}
