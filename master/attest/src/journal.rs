//! Who hears of it: the log of verdicts, events on the Machine, and the figures.

use crate::error::Error;
use crate::figures::Figures;
use crate::queue::APPROVED_BY;
use crate::verdicts::VerdictLog;
use crate::waiting::Decision;
use config_attest::Refusal;
use config_attest::verdicts::{Entry, Kind};
use config_attest::verifier::Verified;
use config_errors::chain;
use config_kube::identity::{ATTESTATION_USER, DECIDED_BY};
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use config_kube::machine::Admission;
use config_kube::{CertificatePolicy, ImageRelease, Machine, MachineSpec, MachineState};
use master_client::{Client, Happening, Object, Recorder, Severity};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Renewals of a machine are told once in this time, with their number.
const CONDENSED: Duration = Duration::from_secs(6 * 3600);
/// Refusals of a machine for one reason that leave its state as it is are told once in this time, with their number: else
/// one that proves nonsense all day drives everything else out of the log.
const CONDENSED_REFUSALS: Duration = Duration::from_secs(600);
/// Machines whose renewals, or reasons whose refusals, are counted at once.
const COUNTED: usize = 16_384;

/// The journal.
#[derive(Debug)]
pub(crate) struct Journal {
    log: Arc<VerdictLog>,
    recorder: Recorder,
    pub(crate) figures: Figures,
    renewals: Mutex<Counts>,
    refusals: Mutex<Counts>,
}

/// When something was told last, and how often it was since, that time included.
type Counts = HashMap<String, (Instant, u64)>;

/// What an admin did, in a word and a sentence.
type Deed = (&'static str, String);

impl Journal {
    pub(crate) fn new(log: Arc<VerdictLog>, client: Client) -> Self {
        let recorder = Recorder::new(client, "pratique-attestation");
        Self {
            log,
            recorder,
            figures: Figures::default(),
            renewals: Mutex::default(),
            refusals: Mutex::default(),
        }
    }

    /// The log, as it is on disk.
    pub(crate) fn log(&self) -> &VerdictLog {
        &self.log
    }

    async fn append(&self, entry: Entry) -> Result<(), Error> {
        self.log.append(entry).await?;
        self.figures.verdicts.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Appends what is true whether or not the log takes it.
    async fn note(&self, entry: Entry) {
        let (kind, name) = (entry.kind, entry.name.clone());
        if let Err(error) = self.append(entry).await {
            tracing::error!(?kind, name, error = %chain(&error), "a verdict is missing in the log");
        }
    }

    async fn tell<T: Object>(&self, about: &T, severity: Severity, reason: &str, message: String) {
        self.recorder
            .record(
                about,
                &Happening {
                    severity,
                    reason,
                    action: "Attesting",
                    message,
                },
            )
            .await;
    }

    /// The master begins to work, known by roots with these pins.
    pub(crate) async fn started(&self, pins: &[String]) {
        let mut entry = Entry::of(Kind::Started, "");
        entry.message = format!(
            "{}, known by {}",
            env!("CARGO_PKG_VERSION"),
            pins.join(" and ")
        );
        self.note(entry).await;
    }

    /// The cluster's own keys are others, by an admin's word.
    pub(crate) async fn authority(&self, by: &str, message: &str) -> Result<(), Error> {
        let mut entry = Entry::of(Kind::Authority, "root");
        by.clone_into(&mut entry.by);
        message.clone_into(&mut entry.message);
        self.append(entry).await
    }

    /// An admission: no certificate leaves the master before its record is on disk.
    pub(crate) async fn admitted(
        &self,
        before: &Machine,
        verified: &Verified,
        after: &Machine,
    ) -> Result<(), Error> {
        let (was, is) = (
            before.status.clone().unwrap_or_default(),
            after.status.clone().unwrap_or_default(),
        );
        let renewed =
            was.state == is.state && was.node_key.is_some() && was.node_key == is.node_key;
        let mut entry = about(if renewed { Kind::Renewed } else { Kind::Joined }, after);
        let admission = verified.admission();
        if admission.by.is_empty() {
            verified.rule().clone_into(&mut entry.by);
        } else {
            entry.by.clone_from(&admission.by);
            entry.message = format!("rule {}, request {}", verified.rule(), admission.request);
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
        if renewed {
            self.figures.renewed.fetch_add(1, Ordering::Relaxed);
            let Some(count) = count(&self.renewals, &entry.uid, CONDENSED) else {
                return Ok(());
            };
            entry.count = Some(count);
            return self.append(entry).await;
        }
        self.figures.joined.fetch_add(1, Ordering::Relaxed);
        if verified.is_unproven() {
            "no TPM: nothing is proven".clone_into(&mut entry.message);
        }
        let image = entry.image.clone();
        self.append(entry).await?;
        let message = if verified.is_unproven() {
            format!(
                "the machine was let in by rule {}; it has no TPM, and nothing is proven",
                verified.rule()
            )
        } else {
            joined(verified.admission(), &image)
        };
        self.tell(after, Severity::Normal, "Joined", message).await;
        self.changed(&was, after, "").await;
        let firmware = (&was.pinned_pcrs, &is.pinned_pcrs);
        if firmware.0 != firmware.1 && was.bound_ek == is.bound_ek {
            let by = by(after);
            let message = format!(
                "the firmware, or the databases of its Secure Boot, are others than before, and were learned anew: decided by {by}"
            );
            self.tell(after, Severity::Warning, "FirmwareChanged", message)
                .await;
        } else if firmware.0 != firmware.1 {
            let message = "the firmware was learned; another one will be refused".to_owned();
            self.tell(after, Severity::Normal, "FirmwareLearned", message)
                .await;
        }
        Ok(())
    }

    /// A refusal; with the Machine before and after where it changed something.
    pub(crate) async fn refused(&self, refusal: &Refusal, changed: Option<(&Machine, &Machine)>) {
        self.figures.refuse(refusal.code());
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
        let moved = changed.is_some_and(|(before, after)| state(before) != state(after));
        let told = count(
            &self.refusals,
            &format!("{} {}", entry.uid, entry.code),
            CONDENSED_REFUSALS,
        );
        if told.is_none() && !moved {
            return;
        }
        entry.count = told.filter(|count| *count > 1);
        self.note(entry).await;
        if let Some((before, after)) = changed {
            self.changed(
                &before.status.clone().unwrap_or_default(),
                after,
                refusal.code().as_str(),
            )
            .await;
        }
    }

    /// A state is another than before.
    async fn changed(&self, was: &config_kube::MachineStatus, after: &Machine, code: &str) {
        let Some(is) = &after.status else { return };
        if was.state == is.state {
            return;
        }
        let mut entry = about(Kind::State, after);
        code.clone_into(&mut entry.code);
        entry.message = format!("{:?} to {:?}", was.state, is.state);
        self.note(entry).await;
        match is.state {
            MachineState::Pending => {}
            MachineState::Trusted | MachineState::Unproven => {
                if matches!(was.state, MachineState::Suspect | MachineState::Untrusted) {
                    let message = format!("the machine is trusted again; decided by {}", by(after));
                    self.tell(after, Severity::Normal, "Readmitted", message)
                        .await;
                }
            }
            MachineState::Suspect | MachineState::Untrusted => {
                let reason = format!("{:?}", is.state);
                let message = format!("{code}: {}; next: {}", is.message, is.next_step);
                self.tell(after, Severity::Warning, &reason, message).await;
            }
        }
    }

    /// What an admin decided on a Machine, if anything.
    pub(crate) async fn decided(&self, old: Option<&Machine>, new: Option<&Machine>) {
        let Some(subject) = new.or(old) else { return };
        for (reason, message) in deeds(old, new) {
            let mut entry = about(Kind::Decision, subject);
            entry.by = by(subject);
            entry.message = format!("{reason}: {message}");
            self.note(entry).await;
            if new.is_some() && old.is_some() {
                self.tell(
                    subject,
                    Severity::Normal,
                    reason,
                    format!("{message}; decided by {}", by(subject)),
                )
                .await;
            }
        }
    }

    /// A person's word on a request that waited.
    pub(crate) async fn word(&self, decision: &Decision, object: &CertificateSigningRequest) {
        let mut entry = Entry::of(Kind::Decision, &decision.request);
        entry.uid = object.metadata.uid.clone().unwrap_or_default();
        entry.by.clone_from(&decision.by);
        entry.ek.clone_from(&decision.ek);
        let reason = format!("{:?}", decision.said);
        entry.message = format!("{reason}: the request of a machine that waited for a person");
        self.note(entry).await;
        tracing::info!(
            request = decision.request,
            by = decision.by,
            "{reason} by a person"
        );
        self.tell(
            object,
            Severity::Normal,
            &reason,
            format!("decided by {}", decision.by),
        )
        .await;
    }

    /// The policy changed.
    pub(crate) async fn policy(&self, policy: &CertificatePolicy) {
        let mut entry = Entry::of(
            Kind::Policy,
            policy.metadata.name.as_deref().unwrap_or_default(),
        );
        let rules: Vec<&str> = policy
            .spec
            .rules
            .iter()
            .map(|rule| rule.name.as_str())
            .collect();
        let spec = serde_json::to_vec(&policy.spec).unwrap_or_default();
        let digest = config_attest::Digest::of(&spec).to_text();
        let generation = policy.metadata.generation.unwrap_or_default();
        entry.message = format!(
            "generation {generation}, rules {}, {digest}",
            rules.join(", ")
        );
        self.note(entry).await;
    }

    /// An image was allowed, changed, or is not any more.
    pub(crate) async fn release(&self, release: &ImageRelease, gone: bool) {
        let mut entry = Entry::of(
            Kind::Release,
            release.metadata.name.as_deref().unwrap_or_default(),
        );
        let digest = config_attest::Digest::of(release.spec.manifest.as_bytes()).to_text();
        entry.message = format!(
            "{}, manifest {digest}",
            if gone { "removed" } else { "applied" }
        );
        self.note(entry).await;
    }
}

/// How many are to be told; none where it is not the time.
fn count(counts: &Mutex<Counts>, key: &str, period: Duration) -> Option<u64> {
    let now = Instant::now();
    let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
    if counts.len() >= COUNTED && !counts.contains_key(key) {
        counts.clear();
    }
    let (since, count) = counts.entry(key.to_owned()).or_insert((now, 0));
    *count += 1;
    if *count > 1 && now.duration_since(*since) < period {
        return None;
    }
    let told = *count;
    // From here on the count of 1 stands for what was told.
    (*since, *count) = (now, 1);
    Some(if told == 1 { 1 } else { told - 1 })
}

fn about(kind: Kind, machine: &Machine) -> Entry {
    let mut entry = Entry::of(kind, machine.metadata.name.as_deref().unwrap_or_default());
    entry.uid = machine.metadata.uid.clone().unwrap_or_default();
    entry
}

/// What an event says of an admission.
fn joined(admission: &Admission, image: &str) -> String {
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

/// Who decided last on a Machine. One that an approval made is the word of who approved.
fn by(machine: &Machine) -> String {
    let note = |key: &str| {
        machine
            .metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(key))
    };
    let said = note(DECIDED_BY).map(|said| match note(APPROVED_BY) {
        Some(person) if said.starts_with(ATTESTATION_USER) => person,
        Some(_) | None => said,
    });
    said.cloned().unwrap_or_else(|| "nobody yet".to_owned())
}

/// Whether an admin decided anything between two versions of a Machine.
pub(crate) fn differs(old: Option<&Machine>, new: Option<&Machine>) -> bool {
    !deeds(old, new).is_empty()
}

/// What an admin did who set a field that says yes or no, or took it back.
fn switched(
    change: (bool, bool),
    on: (&'static str, &str),
    off: (&'static str, &str),
) -> Option<Deed> {
    let (action, words) = match change {
        (false, true) => on,
        (true, false) => off,
        (true, true) | (false, false) => return None,
    };
    Some((action, words.to_owned()))
}

/// The difference in what the machine is known by: its keys, its configurations, or an admin's word alone.
fn known_by(old: &MachineSpec, new: &MachineSpec) -> Vec<Deed> {
    let mut deeds = Vec::new();
    if old.ek != new.ek {
        let hashes = if new.ek.hashes.is_empty() {
            "none".to_owned()
        } else {
            new.ek.hashes.join(", ")
        };
        deeds.push((
            "EndorsementKeys",
            format!("its endorsement keys are now: {hashes}"),
        ));
    }
    if old.config_digests != new.config_digests {
        deeds.push((
            "Configuration",
            format!("it may boot with: {}", new.config_digests.join(", ")),
        ));
    }
    deeds.extend(switched(
        (old.is_static, new.is_static),
        (
            "Static",
            "it joins by certificates that an admin issues, and proves nothing",
        ),
        (
            "NotStatic",
            "it joins by its own proof; what was issued to it has ended",
        ),
    ));
    deeds.extend(switched(
        (old.insecure_no_tpm, new.insecure_no_tpm),
        ("NoTpm", "it is one without a TPM, which proves nothing"),
        ("Tpm", "it has a TPM, and joins by its proof"),
    ));
    deeds
}

/// The difference between two versions of a Machine, as far as an admin makes it.
fn deeds(old: Option<&Machine>, new: Option<&Machine>) -> Vec<Deed> {
    let (old, new) = match (old, new) {
        (_, None) => {
            return vec![(
                "Removed",
                "the machine is not in the inventory any more".to_owned(),
            )];
        }
        (None, Some(_)) => return vec![("Added", "the machine is in the inventory".to_owned())],
        (Some(old), Some(new)) => (&old.spec, &new.spec),
    };
    let mut deeds = Vec::new();
    deeds.extend(switched(
        (old.retired, new.retired),
        ("Retired", "the machine is retired"),
        ("Unretired", "the machine may join again"),
    ));
    if old.readmit_until != new.readmit_until {
        deeds.push(match &new.readmit_until {
            Some(until) => (
                "Waived",
                format!("until {until} the machine may prove itself anew, and its firmware is learned again"),
            ),
            None => ("WaiverWithdrawn", "the machine may not prove itself anew any more".to_owned()),
        });
    }
    if old.role != new.role {
        deeds.push(("Role", format!("the machine is a {} from now on", new.role)));
    }
    deeds.extend(known_by(old, new));
    if old.node_name != new.node_name {
        deeds.push((
            "NodeName",
            format!(
                "its node is {}",
                new.node_name
                    .as_deref()
                    .unwrap_or("called as the machine is")
            ),
        ));
    }
    deeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_again_and_again_is_told_once_with_its_number() {
        let counts = Mutex::default();
        let told = |period| count(&counts, "a", period);
        assert_eq!(told(CONDENSED), Some(1));
        assert_eq!((told(CONDENSED), told(CONDENSED)), (None, None));
        assert_eq!(count(&counts, "b", CONDENSED), Some(1));
        assert_eq!(
            told(Duration::ZERO),
            Some(3),
            "those that were held back, and this one"
        );
        assert_eq!(told(CONDENSED), None);
        for number in 0..=COUNTED {
            count(&counts, &number.to_string(), CONDENSED);
        }
        assert!(counts.lock().unwrap().len() <= COUNTED);
    }

    #[test]
    fn every_decision_is_told_and_nothing_else() {
        let old = Machine::named("m", MachineSpec::default());
        let words = |new: &Machine| {
            deeds(Some(&old), Some(new))
                .into_iter()
                .map(|(word, _)| word)
                .collect::<Vec<_>>()
        };
        assert!(words(&old).is_empty());
        let mut new = old.clone();
        new.status = Some(config_kube::MachineStatus::default());
        new.spec.addresses.push("10.0.0.1".to_owned());
        assert!(words(&new).is_empty());
        new.spec.retired = true;
        new.spec.readmit_until = Some("2030-01-01T00:00:00Z".to_owned());
        new.spec.ek.hashes.push("sha256:00".to_owned());
        new.spec.config_digests.push("sha256:00".to_owned());
        "master".clone_into(&mut new.spec.role);
        assert_eq!(
            words(&new),
            [
                "Retired",
                "Waived",
                "Role",
                "EndorsementKeys",
                "Configuration"
            ]
        );
        assert_eq!(deeds(None, Some(&old))[0].0, "Added");
        assert_eq!(deeds(Some(&old), None)[0].0, "Removed");
    }
}
