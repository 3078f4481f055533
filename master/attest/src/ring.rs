//! Refusals and verdicts as NodeAttestation objects: a bounded ring with a time to live, written at a bounded rate.
//!
//! Nothing that an unproven caller does costs more than this: a full queue or a drained bucket drops the record and
//! counts it.

use crate::limit::Rate;
use crate::record::timestamp;
use config_attest::verifier::Verified;
use config_attest::{Refusal, Verdict};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use config_kube::pratique::{NodeAttestationSpec, NodeAttestationStatus};
use config_kube::{NodeAttestation, identity};
use master_api::{ApiError, Client, DeleteParams, ListParams};
use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc;

/// Most objects in the ring.
pub(crate) const RING: usize = 256;
/// How long an object stays.
pub(crate) const KEEP: Duration = Duration::from_secs(24 * 3600);
/// Records that wait to be written.
const QUEUE: usize = 64;
/// How fast records are written: each is a durable write.
const WRITES: Rate = Rate { per_second: 10.0, burst: 64.0 };
/// How often objects past their time are looked for.
const SWEEP: Duration = Duration::from_secs(60);

/// One record.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// What the caller claimed.
    pub(crate) spec: NodeAttestationSpec,
    /// What came of it.
    pub(crate) status: NodeAttestationStatus,
}

impl Entry {
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
                ek_hash: verdict.ek_hash.map(|hash| hash.to_text()).unwrap_or_default(),
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
pub(crate) fn accepted(verified: &Verified, remote: String, now: SystemTime) -> Entry {
    let mut entry = Entry::of("Accepted", verified.verdict(), remote, now);
    entry.status.machine = Some(verified.machine_id().name.clone());
    entry
}

/// The near end of the ring's queue.
#[derive(Debug, Clone)]
pub(crate) struct Ring {
    queue: mpsc::Sender<Entry>,
}

/// The far end, driven by one task.
#[derive(Debug)]
pub(crate) struct RingWriter {
    queue: mpsc::Receiver<Entry>,
    client: Client,
    /// Name and expiry, oldest first.
    present: VecDeque<(String, jiff::Timestamp)>,
    tokens: f64,
    refilled: Instant,
    dropped: u64,
}

/// Both ends.
pub(crate) fn ring(client: Client) -> (Ring, RingWriter) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let writer = RingWriter {
        queue: receiver,
        client,
        present: VecDeque::new(),
        tokens: WRITES.burst,
        refilled: Instant::now(),
        dropped: 0,
    };
    (Ring { queue: sender }, writer)
}

impl Ring {
    /// Hands a record in; a full queue drops it.
    pub(crate) fn record(&self, entry: Entry) {
        if self.queue.try_send(entry).is_err() {
            tracing::debug!("an attestation record was dropped: the queue is full");
        }
    }
}

impl RingWriter {
    /// Writes records until the last near end is gone.
    pub(crate) async fn run(mut self) {
        self.take_stock().await;
        let mut sweep = tokio::time::interval(SWEEP);
        loop {
            // Cancel-safe: both arms only take what is ready.
            tokio::select! {
                entry = self.queue.recv() => match entry {
                    Some(entry) => self.take(entry).await,
                    None => return,
                },
                _ = sweep.tick() => self.sweep().await,
            }
        }
    }

    /// What an earlier process left.
    async fn take_stock(&mut self) {
        match self.client.list::<NodeAttestation>(None, &ListParams::default()).await {
            Ok(list) => {
                let mut found: Vec<(jiff::Timestamp, String)> = list
                    .items
                    .into_iter()
                    .filter_map(|object| {
                        let expires = object.status.and_then(|status| status.expires.parse().ok());
                        Some((expires.unwrap_or(jiff::Timestamp::UNIX_EPOCH), object.metadata.name?))
                    })
                    .collect();
                found.sort();
                self.present = found.into_iter().map(|(expires, name)| (name, expires)).collect();
            }
            Err(error) => tracing::warn!(error = %error, "cannot list earlier attestations"),
        }
    }

    async fn take(&mut self, entry: Entry) {
        let now = Instant::now();
        let gained = now.saturating_duration_since(self.refilled).as_secs_f64() * WRITES.per_second;
        self.tokens = (self.tokens + gained).min(WRITES.burst);
        self.refilled = now;
        if self.tokens < 1.0 {
            self.dropped += 1;
            return;
        }
        self.tokens -= 1.0;
        if let Err(error) = self.write(entry).await {
            tracing::warn!(error = %error, "cannot record an attestation");
        }
        while self.present.len() > RING {
            self.drop_oldest().await;
        }
    }

    async fn write(&mut self, entry: Entry) -> Result<(), ApiError> {
        let expires = entry.status.expires.parse().unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        let mut object = NodeAttestation::named("", entry.spec);
        object.metadata = ObjectMeta { generate_name: Some("attempt-".to_owned()), ..ObjectMeta::default() };
        let mut created = self.client.create(&object).await?;
        if let Some(name) = created.metadata.name.clone() {
            self.present.push_back((name, expires));
        }
        created.status = Some(entry.status);
        self.client.update_status(&created).await.map(drop)
    }

    async fn sweep(&mut self) {
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            tracing::warn!(dropped, "attestation records were dropped: they came faster than they are written");
        }
        let now = jiff::Timestamp::now();
        while self.present.front().is_some_and(|(_, expires)| *expires <= now) {
            self.drop_oldest().await;
        }
    }

    async fn drop_oldest(&mut self) {
        let Some((name, _)) = self.present.pop_front() else { return };
        match self.client.delete::<NodeAttestation>(None, &name, &DeleteParams::default()).await {
            Ok(()) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => tracing::warn!(error = %error, object = name, "cannot drop an old attestation"),
        }
    }
}

/// The user as whom the attestation service acts.
pub(crate) fn user() -> master_api::UserInfo {
    master_api::UserInfo::authenticated(identity::ATTESTATION_USER, Vec::<String>::new())
}
