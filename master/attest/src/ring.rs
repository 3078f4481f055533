//! Records exchanges as NodeAttestation objects: two bounded rings with a time to live, written at
//! a bounded rate.
//!
//! This bounds the cost of callers that prove nothing: their records wait in a queue of their own
//! for the writer's rate, and a full queue drops the record and counts it. Records of proven
//! machines have another queue and another ring, so that a flood of strangers never displaces the
//! verdict on a Machine.

use crate::time::timestamp;
use config_attest::verifier::{CertificateGrant, Claimant};
use config_attest::{Refusal, Verdict};
use config_errors::chain;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use config_kube::pratique::{NodeAttestationSpec, NodeAttestationStatus};
use config_kube::{NodeAttestation, identity};
use config_protocol::Code;
use master_client::{ApiError, Client, DeleteParams, ListParams};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Objects of strangers at most, and as many of proven machines.
pub(crate) const RING: usize = 256;
/// Time to live of an object.
pub(crate) const KEEP: Duration = Duration::from_secs(24 * 3600);
/// Records that wait to be written, in each queue at most.
const QUEUE: usize = 64;
/// How fast records of strangers are written: each is a durable write.
const WRITES: Writes = Writes {
    per_second: 10.0,
    burst: 64.0,
};
/// Interval of the search for expired objects.
const SWEEP: Duration = Duration::from_secs(60);

/// One record.
#[derive(Debug, Clone)]
pub(crate) struct RingRecord {
    /// What the caller claimed.
    pub(crate) spec: NodeAttestationSpec,
    /// The result.
    pub(crate) status: NodeAttestationStatus,
}

impl RingRecord {
    /// A refusal.
    pub(crate) fn refused(refusal: &Refusal, remote: String, now: SystemTime) -> Self {
        let verdict = refusal.verdict();
        let machine = match refusal {
            Refusal::Anonymous { .. } => None,
            Refusal::Proven { machine, .. } => Some(machine.id().name.clone()),
        };
        let mut entry = Self::of("Refused", verdict, remote, now);
        refusal.code().as_str().clone_into(&mut entry.status.code);
        entry.status.message = refusal.message();
        entry.status.machine = machine;
        entry
    }

    fn of(word: &str, verdict: &Verdict, remote: String, now: SystemTime) -> Self {
        let claims = &verdict.claims;
        let all = [
            ("name", claims.name.clone()),
            ("role", claims.role.clone()),
            ("addresses", claims.addresses.join(",")),
            ("instance", claims.instance.clone()),
            ("image", claims.image.clone()),
        ];
        let claims = all.into_iter().filter(|(_, value)| !value.is_empty());
        Self {
            spec: NodeAttestationSpec {
                ek_hash: verdict
                    .ek_hash
                    .map(|hash| hash.to_text())
                    .unwrap_or_default(),
                claims: claims.map(|(key, value)| (key.to_owned(), value)).collect(),
                remote,
            },
            status: NodeAttestationStatus {
                verdict: word.to_owned(),
                checks: verdict.checks.clone(),
                time: timestamp(now).to_string(),
                expires: timestamp(now + KEEP).to_string(),
                ..NodeAttestationStatus::default()
            },
        }
    }
}

/// The record of an admission.
pub(crate) fn accepted(grant: &CertificateGrant, remote: String, now: SystemTime) -> RingRecord {
    let mut entry = RingRecord::of("Accepted", grant.verdict(), remote, now);
    entry.status.machine = Some(grant.machine_id().name.clone());
    let (admission, failed) = (grant.admission(), grant.verdict().failed());
    if !failed.is_empty() {
        entry.status.message = format!("{:?}; not proven: {failed}", admission.policy);
    }
    if !admission.by.is_empty() {
        let rest = std::mem::take(&mut entry.status.message);
        entry.status.message = format!(
            "request {} was approved by {}; {rest}",
            admission.request, admission.by
        );
    }
    entry
}

/// The record of a request that waits for a person.
pub(crate) fn queued(
    claimant: &Claimant,
    request: &str,
    remote: String,
    now: SystemTime,
) -> RingRecord {
    let verdict = claimant.verdict();
    let mut entry = RingRecord::of("Queued", &verdict, remote, now);
    Code::Queued.as_str().clone_into(&mut entry.status.code);
    entry.status.message = crate::queue_writer::command(request);
    entry.status.machine = claimant.own_machine().map(|id| id.name.clone());
    entry
}

/// The sending end of the ring's queues.
#[derive(Debug, Clone)]
pub(crate) struct Ring {
    proven: mpsc::Sender<RingRecord>,
    strangers: mpsc::Sender<RingRecord>,
    dropped: Arc<AtomicU64>,
}

/// The receiving end: one task writes the objects.
#[derive(Debug)]
pub(crate) struct RingWriter {
    proven: mpsc::Receiver<RingRecord>,
    strangers: mpsc::Receiver<RingRecord>,
    client: Client,
    present: Present,
    pace: Pace,
    dropped: Arc<AtomicU64>,
}

/// The existing objects by name and expiry, oldest first; strangers and proven machines apart.
#[derive(Debug, Default)]
struct Present {
    proven: VecDeque<(String, jiff::Timestamp)>,
    strangers: VecDeque<(String, jiff::Timestamp)>,
}

impl Present {
    fn of(
        &mut self,
        status: Option<&NodeAttestationStatus>,
    ) -> &mut VecDeque<(String, jiff::Timestamp)> {
        if status.is_some_and(|status| status.machine.is_some()) {
            &mut self.proven
        } else {
            &mut self.strangers
        }
    }

    /// Removes and returns the objects beyond the bound, and expired ones.
    fn surplus(&mut self, now: jiff::Timestamp) -> Vec<String> {
        let mut names = Vec::new();
        for ring in [&mut self.proven, &mut self.strangers] {
            while ring.len() > RING || ring.front().is_some_and(|(_, expires)| *expires <= now) {
                names.extend(ring.pop_front().map(|(name, _)| name));
            }
        }
        names
    }
}

/// Both ends of the ring.
pub(crate) fn ring(client: Client) -> (Ring, RingWriter) {
    let (proven, proven_end) = mpsc::channel(QUEUE);
    let (strangers, strangers_end) = mpsc::channel(QUEUE);
    let dropped = Arc::new(AtomicU64::new(0));
    let writer = RingWriter {
        proven: proven_end,
        strangers: strangers_end,
        client,
        present: Present::default(),
        pace: Pace::full(Instant::now()),
        dropped: dropped.clone(),
    };
    (
        Ring {
            proven,
            strangers,
            dropped,
        },
        writer,
    )
}

impl Ring {
    /// Sends a record; a full queue drops and counts it.
    pub(crate) fn record(&self, entry: RingRecord) {
        let queue = if entry.status.machine.is_some() {
            &self.proven
        } else {
            &self.strangers
        };
        if queue.try_send(entry).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Tokens of [`Pace`].
#[derive(Debug, Clone, Copy)]
struct Writes {
    per_second: f64,
    burst: f64,
}

/// A token bucket that computes when the next token is due.
#[derive(Debug)]
struct Pace {
    tokens: f64,
    at: Instant,
}

impl Pace {
    fn full(now: Instant) -> Self {
        Self {
            tokens: WRITES.burst,
            at: now,
        }
    }

    /// Brings the bucket up to date; returns how long until it holds a token, `None` if it holds
    /// one now.
    fn wait(&mut self, now: Instant) -> Option<Duration> {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * WRITES.per_second;
        self.tokens = (self.tokens + gained).min(WRITES.burst);
        self.at = now;
        (self.tokens < 1.0)
            .then(|| Duration::from_secs_f64((1.0 - self.tokens) / WRITES.per_second))
    }

    fn spend(&mut self) {
        self.tokens -= 1.0;
    }
}

impl RingWriter {
    /// Writes records until the last sender is dropped.
    pub(crate) async fn run(mut self) {
        self.take_stock().await;
        let mut sweep = tokio::time::interval(SWEEP);
        loop {
            let wait = self.pace.wait(Instant::now());
            // Cancel-safe: all arms only take what is ready. Both senders live and end together, in
            // the ring.
            tokio::select! {
                entry = self.proven.recv() => match entry {
                    Some(entry) => self.take(entry).await,
                    None => return,
                },
                Some(entry) = self.strangers.recv(), if wait.is_none() => {
                    self.pace.spend();
                    self.take(entry).await;
                },
                () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => {}
                _ = sweep.tick() => self.sweep().await,
            }
        }
    }

    /// Lists the objects that an earlier process left.
    async fn take_stock(&mut self) {
        match self
            .client
            .list::<NodeAttestation>(None, &ListParams::default())
            .await
        {
            Ok(list) => {
                for object in list.items {
                    let status = object.status.as_ref();
                    let expires = status.and_then(|status| status.expires.parse().ok());
                    let kept = (
                        object.metadata.name.unwrap_or_default(),
                        expires.unwrap_or(jiff::Timestamp::UNIX_EPOCH),
                    );
                    self.present.of(status).push_back(kept);
                }
                for ring in [&mut self.present.proven, &mut self.present.strangers] {
                    ring.make_contiguous().sort_by_key(|(_, expires)| *expires);
                }
            }
            Err(error) => tracing::warn!(error = chain(&error), "cannot list earlier attestations"),
        }
    }

    async fn take(&mut self, entry: RingRecord) {
        if let Err(error) = self.write(entry).await {
            tracing::warn!(error = chain(&error), "cannot record an attestation");
        }
        self.drop_surplus().await;
    }

    async fn write(&mut self, entry: RingRecord) -> Result<(), ApiError> {
        let expires = entry
            .status
            .expires
            .parse()
            .unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        let mut object = NodeAttestation::named("", entry.spec);
        object.metadata = ObjectMeta {
            generate_name: Some("attempt-".to_owned()),
            ..ObjectMeta::default()
        };
        let mut created = self.client.create(&object).await?;
        if let Some(name) = created.metadata.name.clone() {
            self.present
                .of(Some(&entry.status))
                .push_back((name, expires));
        }
        created.status = Some(entry.status);
        self.client.update_status(&created).await.map(drop)
    }

    async fn sweep(&mut self) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            tracing::warn!(
                dropped,
                "attestation records were dropped: they came faster than they are written"
            );
        }
        self.drop_surplus().await;
    }

    async fn drop_surplus(&mut self) {
        for name in self.present.surplus(jiff::Timestamp::now()) {
            match self
                .client
                .delete::<NodeAttestation>(None, &name, &DeleteParams::default())
                .await
            {
                Ok(()) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    tracing::warn!(
                        error = chain(&error),
                        object = name,
                        "cannot drop an old attestation"
                    );
                }
            }
        }
    }
}

/// The user of the attestation service at the API.
pub(crate) fn user() -> master_client::UserInfo {
    master_client::UserInfo::authenticated(identity::ATTESTATION_USER, Vec::<String>::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many strangers come, the records of proven machines stay, and each ring keeps its
    /// newest.
    #[test]
    fn records_of_strangers_displace_only_those_of_strangers() {
        let mut present = Present::default();
        let late = jiff::Timestamp::now() + KEEP;
        let proven = NodeAttestationStatus {
            machine: Some("worker-1".to_owned()),
            ..NodeAttestationStatus::default()
        };
        present
            .of(Some(&proven))
            .push_back(("verdict".to_owned(), late));
        for count in 0..2 * RING {
            present
                .of(None)
                .push_back((format!("stranger-{count}"), late));
        }
        let gone = present.surplus(jiff::Timestamp::now());
        assert_eq!(
            (gone.len(), gone.first().map(String::as_str)),
            (RING, Some("stranger-0"))
        );
        assert_eq!((present.proven.len(), present.strangers.len()), (1, RING));
        assert_eq!(present.surplus(late).len(), RING + 1);
    }

    /// The burst passes at once, later records wait for their tokens, and no token is used twice.
    #[test]
    fn records_of_strangers_are_written_at_a_bounded_rate() {
        let start = Instant::now();
        let mut pace = Pace::full(start);
        let mut now = start;
        let mut waited = Duration::ZERO;
        for _ in 0..104 {
            if let Some(wait) = pace.wait(now) {
                now += wait + Duration::from_nanos(1);
                waited += wait;
                assert_eq!(pace.wait(now), None);
            }
            pace.spend();
        }
        let expected = (104.0 - WRITES.burst) / WRITES.per_second;
        assert!((waited.as_secs_f64() - expected).abs() < 0.01, "{waited:?}");
    }
}
