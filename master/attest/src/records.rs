//! Records of an exchange: the Machine's status, NodeAttestations, the log of verdicts, events, and
//! evidence for dry runs.

use crate::caller::remote;
use crate::inventory::ReferenceTables;
use crate::recent_evidence::{RecentEvidence, RecentProof};
use crate::record;
use crate::ring::{self, Ring, RingRecord};
use config_attest::Refusal;
use config_attest::verifier::{CertificateGrant, Claimant, RecordedEvidence};
use config_errors::chain;
use jiff::Timestamp;
use master_client::{Client, Recorder};
use master_journal::Journal;
use master_listener::Peer;
use std::sync::Arc;
use std::time::SystemTime;

/// Records the results of exchanges, other than certificates: in Machines, NodeAttestations, events
/// and the log of verdicts.
#[derive(Debug)]
pub(crate) struct Records {
    client: Client,
    inventory: Arc<ReferenceTables>,
    /// Events on Machines about what no check covers.
    pub(crate) events: Recorder,
    /// The log of verdicts.
    pub(crate) journal: Arc<Journal>,
    ring: Ring,
    recent: RecentEvidence,
}

impl Records {
    pub(crate) fn new(
        client: Client,
        inventory: Arc<ReferenceTables>,
        journal: Arc<Journal>,
        ring: Ring,
    ) -> Self {
        Self {
            events: Recorder::new(client.clone(), "pratique-attestation"),
            client,
            inventory,
            journal,
            ring,
            recent: RecentEvidence::default(),
        }
    }

    /// Records a refusal: in the Machine where the machine itself proved what is refused, as a
    /// NodeAttestation in any case.
    pub(crate) async fn refused(&self, peer: &Peer, refusal: &Refusal) {
        let now = SystemTime::now();
        let remote = remote(peer);
        tracing::info!(code = %refusal.code(), remote, message = refusal.message(), "refused");
        let mut changed = None;
        if let Some((proven, consequence)) = refusal.consequence() {
            match record::refusal(
                &self.client,
                &self.inventory,
                proven,
                consequence,
                refusal,
                now,
            )
            .await
            {
                Ok(written) => changed = written,
                Err(error) => {
                    let machine = &proven.id().name;
                    tracing::error!(machine, error = %chain(&error), "a proven refusal could not be recorded");
                }
            }
        }
        self.journal.refused(refusal, changed.as_ref()).await;
        self.ring.record(RingRecord::refused(refusal, remote, now));
    }

    /// Records an admission as a NodeAttestation.
    pub(crate) fn accepted(&self, grant: &CertificateGrant, peer: &Peer, now: SystemTime) {
        self.ring.record(ring::accepted(grant, remote(peer), now));
    }

    /// Records a new request in the queue as a NodeAttestation.
    pub(crate) fn queued(&self, claimant: &Claimant, request: &str, peer: &Peer, now: SystemTime) {
        self.ring
            .record(ring::queued(claimant, request, remote(peer), now));
    }

    /// Keeps the evidence of an exchange for dry runs, in place of the machine's earlier one.
    pub(crate) fn keep_evidence(&self, shown: RecordedEvidence) {
        self.recent.keep(shown, Timestamp::now());
    }

    /// The last evidence of each machine, with its time.
    pub(crate) fn recent_evidence(&self) -> Vec<RecentProof> {
        self.recent.all()
    }
}
