//! Records of the log of verdicts, and the events and counters that go with them.

use crate::changes::{MachineChange, SpecChange, decided_digest, spec_changes};
use crate::counters::VerdictCounters;
use crate::error::Error;
use crate::log::VerdictLog;
use crate::recorded::{Lacking, Recorded, about, decided_by, policy_entry, release_entry};
use crate::repeats::Repeats;
use config_attest::Refusal;
use config_attest::verifier::CertificateGrant;
use config_errors::chain;
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use config_kube::machine::Admission;
use config_kube::{CertificatePolicy, ImageRelease, Machine, MachineState, MachineStatus};
use config_verdicts::{Entry, GONE, Kind};
use master_client::{Client, NewEvent, Object, Recorder, Severity};
use std::sync::Arc;
use std::time::Duration;

/// A machine's renewals are recorded once in this time, with their number.
const RENEWALS_PERIOD: Duration = Duration::from_secs(6 * 3600);
/// A machine's refusals with one code that leave its state as it is are recorded once in this time,
/// with their number: a machine that sends bad evidence all day would otherwise displace all other
/// records.
const REFUSALS_PERIOD: Duration = Duration::from_secs(600);

/// Records of objects found at the start that are written together.
const FOUND_AT_ONCE: usize = 256;

/// Writes records, events and counters.
#[derive(Debug)]
pub struct Journal {
    log: Arc<VerdictLog>,
    recorder: Recorder,
    counters: VerdictCounters,
    renewals: Repeats,
    refusals: Repeats,
}

/// A person's decision on a request in the queue.
#[derive(Debug, Clone, Copy)]
pub struct RequestDecision<'a> {
    /// The request's name.
    pub request: &'a str,
    /// Hash of the machine's endorsement key, or that it has none.
    pub ek: &'a str,
    /// Who decided, and when.
    pub by: &'a str,
    /// `Approved` or `Denied`.
    pub decision: &'static str,
}

impl Journal {
    /// A journal that writes into `log` and sends events through `client`.
    pub fn new(log: Arc<VerdictLog>, client: Client) -> Self {
        Self {
            log,
            recorder: Recorder::new(client, "pratique-attestation"),
            counters: VerdictCounters::default(),
            renewals: Repeats::default(),
            refusals: Repeats::default(),
        }
    }

    /// The counters of this process.
    pub fn counters(&self) -> &VerdictCounters {
        &self.counters
    }

    /// The log on disk.
    pub fn log(&self) -> &VerdictLog {
        &self.log
    }

    async fn append(&self, entry: Entry) -> Result<(), Error> {
        self.log.append(entry).await?;
        self.counters.count_record();
        Ok(())
    }

    /// Appends a record of something that has happened. If the log cannot be written, work goes on:
    /// an error is logged, and the next record is preceded by one that counts what is missing.
    async fn append_or_warn(&self, entry: Entry) {
        let (kind, name) = (entry.kind, entry.name.clone());
        if let Err(error) = self.append(entry).await {
            tracing::error!(?kind, name, error = %chain(&error), "a verdict is missing in the log");
            self.log.missed();
            self.log.note_missing().await;
        }
    }

    async fn send_event<T: Object>(
        &self,
        about: &T,
        severity: Severity,
        reason: &str,
        message: String,
    ) {
        self.recorder
            .record(
                about,
                &NewEvent {
                    severity,
                    reason,
                    action: "Attesting",
                    message,
                },
            )
            .await;
    }

    /// The master started, with roots of these pins.
    pub async fn started(&self, pins: &[String]) {
        let mut entry = Entry::of(Kind::Started, "");
        entry.message = format!(
            "{}, known by {}",
            env!("CARGO_PKG_VERSION"),
            pins.join(" and ")
        );
        self.append_or_warn(entry).await;
    }

    /// An admin changed the cluster's CA keys.
    ///
    /// # Errors
    /// The log could not write the record.
    pub async fn authority_changed(&self, by: &str, message: &str) -> Result<(), Error> {
        let mut entry = Entry::of(Kind::Authority, "root");
        by.clone_into(&mut entry.by);
        message.clone_into(&mut entry.message);
        self.append(entry).await
    }

    /// An admin's certificate was renewed. `key` is the SHA-256 of the key's SubjectPublicKeyInfo,
    /// as text. The caller sends the certificate only after this returned.
    ///
    /// # Errors
    /// The log could not write the record.
    pub async fn admin_renewed(&self, by: &str, key: &str) -> Result<(), Error> {
        let mut entry = Entry::of(Kind::Authority, "admin");
        by.clone_into(&mut entry.by);
        entry.message = format!("an admin's certificate was renewed, over the key {key}");
        self.append(entry).await
    }

    /// Records an admission, of a join or a renewal. The caller sends certificates only after this
    /// returned: none leaves the master before its record is on disk.
    ///
    /// # Errors
    /// The log could not write the record.
    pub async fn admitted(
        &self,
        before: &Machine,
        grant: &CertificateGrant,
        after: &Machine,
    ) -> Result<(), Error> {
        let (was, is) = (
            before.status.clone().unwrap_or_default(),
            after.status.clone().unwrap_or_default(),
        );
        let renewed =
            was.state == is.state && was.node_key.is_some() && was.node_key == is.node_key;
        let kind = if renewed { Kind::Renewed } else { Kind::Joined };
        let mut entry = admission_entry(kind, grant, after, &is);
        if renewed {
            self.counters.count_renewal();
            let Some(count) = self.renewals.count(&entry.uid, RENEWALS_PERIOD) else {
                return Ok(());
            };
            entry.count = Some(count);
            return self.append(entry).await;
        }
        self.counters.count_join();
        if grant.is_unproven() {
            "no TPM: nothing is proven".clone_into(&mut entry.message);
        }
        let image = entry.image.clone();
        self.append(entry).await?;
        let message = if grant.is_unproven() {
            format!(
                "the machine was admitted by rule {}; it has no TPM, and nothing is proven",
                grant.rule()
            )
        } else {
            joined_message(grant.admission(), &image)
        };
        self.send_event(after, Severity::Normal, "Joined", message)
            .await;
        self.state_changed(&was, after, "").await;
        self.firmware_learned(&was, &is, after).await;
        Ok(())
    }

    /// Sends an event where the pinned registers (firmware, Secure Boot databases) changed.
    async fn firmware_learned(&self, was: &MachineStatus, is: &MachineStatus, after: &Machine) {
        if was.pinned_pcrs == is.pinned_pcrs {
            return;
        }
        if was.bound_ek == is.bound_ek {
            let by = decided_by(after);
            let message = format!(
                "the firmware, or its Secure Boot databases, changed and were pinned again: decided by {by}"
            );
            self.send_event(after, Severity::Warning, "FirmwareChanged", message)
                .await;
        } else {
            let message = "the firmware was pinned; another one will be refused".to_owned();
            self.send_event(after, Severity::Normal, "FirmwareLearned", message)
                .await;
        }
    }

    /// Records a refusal, and how it changed the Machine, if it did. A refusal without proof is
    /// only counted.
    pub async fn refused(&self, refusal: &Refusal, changed: Option<&MachineChange>) {
        self.counters.count_refusal(refusal.code());
        let Refusal::Proven {
            machine, verdict, ..
        } = refusal
        else {
            return;
        };
        let mut entry = Entry::of(Kind::Refused, &machine.id().name);
        entry.uid.clone_from(&machine.id().uid);
        refusal.code().as_str().clone_into(&mut entry.code);
        entry.message = refusal.message();
        entry.ek = verdict
            .ek_hash
            .map(|hash| hash.to_text())
            .unwrap_or_default();
        let state = |machine: &Machine| machine.status.as_ref().map(|status| status.state);
        let moved = changed.is_some_and(|change| state(&change.before) != state(&change.after));
        let key = format!("{} {}", entry.uid, entry.code);
        let count = self.refusals.count(&key, REFUSALS_PERIOD);
        if count.is_none() && !moved {
            return;
        }
        entry.count = count.filter(|count| *count > 1);
        self.append_or_warn(entry).await;
        if let Some(MachineChange { before, after }) = changed {
            self.state_changed(
                &before.status.clone().unwrap_or_default(),
                after,
                refusal.code().as_str(),
            )
            .await;
        }
    }

    /// Records a change of a Machine's state, if there is one.
    async fn state_changed(&self, was: &MachineStatus, after: &Machine, code: &str) {
        let Some(is) = &after.status else { return };
        if was.state == is.state {
            return;
        }
        let mut entry = about(Kind::State, after);
        code.clone_into(&mut entry.code);
        entry.message = format!("{:?} to {:?}", was.state, is.state);
        self.append_or_warn(entry).await;
        match is.state {
            MachineState::Pending => {}
            MachineState::Trusted | MachineState::Unproven => {
                if matches!(was.state, MachineState::Suspect | MachineState::Untrusted) {
                    let message = format!(
                        "the machine is trusted again; decided by {}",
                        decided_by(after)
                    );
                    self.send_event(after, Severity::Normal, "Readmitted", message)
                        .await;
                }
            }
            MachineState::Suspect | MachineState::Untrusted => {
                let reason = format!("{:?}", is.state);
                let message = format!("{code}: {}; next: {}", is.message, is.next_step);
                self.send_event(after, Severity::Warning, &reason, message)
                    .await;
            }
        }
    }

    /// Records what an admin changed in a Machine, if anything.
    pub async fn machine_edited(&self, old: Option<&Machine>, new: Option<&Machine>) {
        let Some(subject) = new.or(old) else { return };
        let changes = spec_changes(old, new);
        let last = changes.len().saturating_sub(1);
        for (index, SpecChange { reason, message }) in changes.into_iter().enumerate() {
            let mut entry = about(Kind::Decision, subject);
            entry.by = decided_by(subject);
            if index == last {
                // The last record alone: if it can't be written, the next start records the edit.
                entry.digest = new.map_or_else(|| GONE.to_owned(), decided_digest);
            }
            entry.message = format!("{reason}: {message}");
            self.append_or_warn(entry).await;
            if new.is_some() && old.is_some() {
                self.send_event(
                    subject,
                    Severity::Normal,
                    reason,
                    format!("{message}; decided by {}", decided_by(subject)),
                )
                .await;
            }
        }
    }

    /// A user orders a node's machine to end, such as by `reboot`. `outcome` is the result, and
    /// empty in the record that is written before the order is sent. A node without a Machine is
    /// recorded by its own name.
    ///
    /// # Errors
    /// The log could not write the record.
    pub async fn order_given(
        &self,
        subject: Result<&Machine, &str>,
        by: &str,
        order: &str,
        outcome: &str,
    ) -> Result<(), Error> {
        let mut entry = match subject {
            Ok(machine) => about(Kind::Decision, machine),
            Err(node) => Entry::of(Kind::Decision, node),
        };
        by.clone_into(&mut entry.by);
        let what = if outcome.is_empty() {
            "its master tells it to end"
        } else {
            outcome
        };
        entry.message = format!("{order}: {what}");
        self.append(entry).await?;
        if let (Ok(machine), "") = (subject, outcome) {
            let message = format!("{what} ({order}); decided by {by}");
            self.send_event(machine, Severity::Normal, "EndOrdered", message)
                .await;
        }
        Ok(())
    }

    /// A person decided a request in the queue.
    pub async fn request_decided(
        &self,
        decided: &RequestDecision<'_>,
        object: &CertificateSigningRequest,
    ) {
        let RequestDecision {
            request,
            ek,
            by,
            decision,
        } = *decided;
        let mut entry = Entry::of(Kind::Decision, request);
        entry.uid = object.metadata.uid.clone().unwrap_or_default();
        by.clone_into(&mut entry.by);
        ek.clone_into(&mut entry.ek);
        entry.message = format!("{decision}: the request of a machine that waited for a person");
        self.append_or_warn(entry).await;
        tracing::info!(request, user = by, "{decision} by a person");
        let message = format!("decided by {by}");
        self.send_event(object, Severity::Normal, decision, message)
            .await;
    }

    /// A CertificatePolicy was created or changed, or deleted (`gone`).
    pub async fn policy_changed(&self, policy: &CertificatePolicy, gone: bool) {
        self.append_or_warn(policy_entry(policy, gone)).await;
    }

    /// An ImageRelease was created or changed, or deleted (`gone`).
    pub async fn release_changed(&self, release: &ImageRelease, gone: bool) {
        self.append_or_warn(release_entry(release, gone)).await;
    }

    /// What the log last recorded, for the comparison with the first lists. Where the log can't be
    /// read nothing is compared, and an error is logged.
    pub async fn recorded(&self) -> Recorded {
        self.log.recorded().await.unwrap_or_else(|error| {
            tracing::error!(error = %chain(&error), "the log of verdicts cannot be read, so changes without a record are not found");
            Recorded::default()
        })
    }

    /// Records what the log lacks of objects that were found at the start ([`Recorded`]). What
    /// cannot be written now is not counted as missing: it is found again at the next start.
    pub async fn record_found(&self, lacking: Vec<Lacking>) {
        let mut waiting = lacking.into_iter().peekable();
        while waiting.peek().is_some() {
            // Together, as each flush takes its time, and in parts, as the log's queue has an end.
            let part = waiting.by_ref().take(FOUND_AT_ONCE);
            let written = part.map(|Lacking { entry, differs }| {
                if differs {
                    tracing::warn!(kind = ?entry.kind, name = entry.name, message = entry.message, "a change that is in force is recorded late");
                }
                self.append(entry)
            });
            for outcome in futures_util::future::join_all(written).await {
                if let Err(error) = outcome {
                    tracing::error!(error = %chain(&error), "a change is still without a record");
                    return;
                }
            }
        }
    }
}

/// The record of an admission.
fn admission_entry(
    kind: Kind,
    grant: &CertificateGrant,
    after: &Machine,
    is: &MachineStatus,
) -> Entry {
    let mut entry = about(kind, after);
    let admission = grant.admission();
    if admission.by.is_empty() {
        grant.rule().clone_into(&mut entry.by);
    } else {
        entry.by.clone_from(&admission.by);
        entry.message = format!("rule {}, request {}", grant.rule(), admission.request);
    }
    entry.ek = is.bound_ek.clone().unwrap_or_default();
    entry.image = is
        .image
        .as_ref()
        .map(|image| image.id.clone())
        .unwrap_or_default();
    entry.serial = is
        .certificate
        .as_ref()
        .map(|certificate| certificate.serial.clone())
        .unwrap_or_default();
    entry
}

/// The message of the event Joined.
fn joined_message(admission: &Admission, image: &str) -> String {
    let image = if image.is_empty() {
        "an image that is not proven"
    } else {
        image
    };
    if admission.by.is_empty() {
        return format!("the machine proved itself with image {image}");
    }
    format!(
        "the machine runs {image}; request {} was approved by {}",
        admission.request, admission.by
    )
}
