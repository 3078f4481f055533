//! Writes the result of an exchange into the Machine's status: the only place that changes a
//! Machine's state.

use crate::error::Error;
use crate::inventory::ReferenceTables;
use crate::next_step::next_step;
use crate::policy::policy_of;
use crate::time::{timestamp, unix_seconds};
use config_attest::verifier::CertificateGrant;
use config_attest::{MachineId, ProvenMachine, Refusal, Verdict, forget_ended};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use config_kube::machine::CertificateRef;
use config_kube::{Decides, Machine, MachineState, MachineStatus};
use config_protocol::{Code, Consequence};
use master_client::{ApiError, Client, Reason};
use master_journal::MachineChange;
use std::time::SystemTime;

/// Attempts at a write that conflicts with another.
const TRIES: u32 = 5;

/// Records an admission and returns the written Machine.
///
/// # Errors
/// A conflict where the Machine changed since the exchange read it: the evidence was checked
/// against the old version. Changes of `status.node` (the marks of the rule, which another task
/// writes at any time) do not count.
pub(crate) async fn admission(
    client: &Client,
    inventory: &ReferenceTables,
    machine: &Machine,
    grant: &CertificateGrant,
    certificate: CertificateRef,
    now: SystemTime,
) -> Result<Machine, Error> {
    let fail = |source| Error::Api {
        what: "the Machine's new status",
        source,
    };
    let mut current = machine.clone();
    for _ in 0..TRIES {
        let mut object = current.clone();
        admit(
            object.status.get_or_insert_default(),
            grant,
            certificate.clone(),
            now,
        );
        let conflict = match client.update_status(&object).await {
            Ok(written) => {
                inventory.take_written(written.clone());
                return Ok(written);
            }
            Err(error) if error.is_conflict() => error,
            Err(error) => return Err(fail(error)),
        };
        let name = machine.metadata.name.as_deref().unwrap_or_default();
        match client.get_opt::<Machine>(None, name).await.map_err(fail)? {
            Some(newer) if same_but_marks(machine, &newer) => current = newer,
            Some(_) | None => return Err(fail(conflict)),
        }
    }
    Err(fail(ApiError::new(
        Reason::Conflict,
        format!("it changed {TRIES} times meanwhile"),
    )))
}

fn admit(
    status: &mut MachineStatus,
    grant: &CertificateGrant,
    certificate: CertificateRef,
    now: SystemTime,
) {
    grant.record(status);
    forget_ended(&mut status.earlier_names, unix_seconds(now));
    status.certificate = Some(certificate);
    status.last_attestation = Some(timestamp(now).to_string());
    let AttestedCondition {
        good,
        reason,
        message,
    } = attested_condition(grant);
    status.set_attested(good, reason, &message, Time(timestamp(now)));
}

/// Whether two versions of a Machine are equal apart from `status.node`.
fn same_but_marks(before: &Machine, now: &Machine) -> bool {
    let plain = |machine: &Machine| {
        let mut machine = machine.clone();
        machine.metadata.resource_version = None;
        machine.metadata.managed_fields = None;
        machine.status.get_or_insert_default().node = None;
        machine
    };
    plain(before) == plain(now)
}

/// The condition `Attested` of a Machine.
struct AttestedCondition {
    good: bool,
    reason: &'static str,
    message: String,
}

/// The condition after an admission.
fn attested_condition(grant: &CertificateGrant) -> AttestedCondition {
    let (admission, failed) = (grant.admission(), grant.verdict().failed());
    let decides = admission.policy.decides();
    let nobody = format!(
        "rule `{}` admits every request without a check",
        admission.rule
    );
    if grant.is_unproven() {
        let person = format!("a person approved request {}", admission.request);
        let decision = if decides == Decides::Person {
            person
        } else {
            nobody
        };
        let message =
            format!("the machine has no TPM and proves nothing; {decision}; not proven: {failed}");
        return AttestedCondition {
            good: false,
            reason: "NoTpm",
            message,
        };
    }
    let unproven = if failed.is_empty() {
        String::new()
    } else {
        format!("; not proven: {failed}")
    };
    let (good, message) = match decides {
        Decides::Verifier => (
            true,
            "the machine proved what the policy asks for".to_owned(),
        ),
        Decides::Person => (
            true,
            format!(
                "request {} was approved by {}{unproven}",
                admission.request, admission.by
            ),
        ),
        Decides::Always | Decides::Never => (false, format!("{nobody}{unproven}")),
    };
    AttestedCondition {
        good,
        reason: policy_of(admission.policy).reason(),
        message,
    }
}

/// Records that a machine waits for a person, unless the Machine object was replaced since. With
/// `changed` a Trusted machine becomes Suspect: it booted something else than was approved, and
/// gets no new pods until a person decides.
///
/// # Errors
/// A read or a write of the Machine fails at the API. A Machine that is gone or was replaced is no
/// error.
pub(crate) async fn waits(
    client: &Client,
    inventory: &ReferenceTables,
    id: &MachineId,
    message: &str,
    verdict: &Verdict,
    changed: bool,
) -> Result<(), Error> {
    let fail = |source| Error::Api {
        what: "the waiting Machine's status",
        source,
    };
    let Some(mut object) = client
        .get_opt::<Machine>(None, &id.name)
        .await
        .map_err(fail)?
    else {
        return Ok(());
    };
    if object.metadata.uid.as_deref() != Some(id.uid.as_str()) {
        return Ok(());
    }
    let status = object.status.get_or_insert_default();
    if changed && matches!(status.state, MachineState::Trusted | MachineState::Unproven) {
        status.state = MachineState::Suspect;
    }
    Code::Queued.as_str().clone_into(&mut status.reason);
    message.clone_into(&mut status.message);
    status.checks.clone_from(&verdict.checks);
    match client.update_status(&object).await {
        Ok(written) => inventory.take_written(written),
        // A newer write of the Machine wins; the request itself is in the queue.
        Err(error) if error.is_conflict() || error.is_not_found() => {}
        Err(error) => return Err(fail(error)),
    }
    Ok(())
}

/// Records a proven refusal, unless the Machine object was replaced since. Returns how that changed
/// the Machine. Only the holder of a [`ProvenMachine`] can call it, so no anonymous refusal changes
/// a Machine.
///
/// # Errors
/// The API does not answer, or the Machine changed at every attempt.
pub(crate) async fn refusal(
    client: &Client,
    inventory: &ReferenceTables,
    proven: &ProvenMachine,
    consequence: Consequence,
    refusal: &Refusal,
    now: SystemTime,
) -> Result<Option<MachineChange>, Error> {
    let fail = |source| Error::Api {
        what: "the Machine's new state",
        source,
    };
    let id = proven.id();
    for _ in 0..TRIES {
        let Some(mut object) = client
            .get_opt::<Machine>(None, &id.name)
            .await
            .map_err(fail)?
        else {
            return Ok(None);
        };
        if object.metadata.uid.as_deref() != Some(id.uid.as_str()) {
            return Ok(None);
        }
        let before = object.clone();
        refuse(
            &id.name,
            object.status.get_or_insert_default(),
            consequence,
            refusal,
            now,
        );
        match client.update_status(&object).await {
            Ok(written) => {
                inventory.take_written(written.clone());
                return Ok(Some(MachineChange {
                    before,
                    after: written,
                }));
            }
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(fail(error)),
        }
    }
    Err(fail(ApiError::new(
        Reason::Conflict,
        format!("it changed {TRIES} times meanwhile"),
    )))
}

fn refuse(
    name: &str,
    status: &mut MachineStatus,
    consequence: Consequence,
    refusal: &Refusal,
    now: SystemTime,
) {
    // Untrusted ends only by an admin's re-admission and a good attestation; a refusal with a
    // milder consequence must not end it.
    status.state = match (status.state, consequence) {
        (MachineState::Untrusted, _) | (_, Consequence::Untrusted) => MachineState::Untrusted,
        (_, Consequence::Suspect) => MachineState::Suspect,
        (state, Consequence::Nothing) => state,
    };
    refusal.code().as_str().clone_into(&mut status.reason);
    status.message = refusal.message();
    status.checks.clone_from(&refusal.verdict().checks);
    let untrusted = status.state == MachineState::Untrusted;
    status.next_step = next_step(refusal.code(), name, untrusted, timestamp(now));
    status.set_attested(
        false,
        refusal.code().as_str(),
        &refusal.message(),
        Time(timestamp(now)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api::FakeApi;
    use config_kube::MachineSpec;
    use config_kube::machine::NodeMarks;
    use tests_machines::{EkKind, World};

    #[tokio::test]
    async fn no_admission_is_recorded_for_a_machine_that_was_retired_since_its_evidence() {
        let mut world = World::new();
        let machine = world.machine("worker-1", "10.0.0.11", EkKind::P256);
        let judged = world.object("worker-1");
        judged.metadata.resource_version = Some("7".to_owned());
        let judged = judged.clone();
        let grant = world.join(&machine).unwrap();
        let marked = |new: &mut Machine| {
            new.status.get_or_insert_default().node = Some(NodeMarks::default());
        };
        let retired = |new: &mut Machine| new.spec.retired = true;
        let edits: [fn(&mut Machine); 3] = [|_| {}, marked, retired];
        let edits = edits.into_iter().zip([true, true, false]);
        for (number, (edit, admits)) in edits.enumerate() {
            let mut stored = judged.clone();
            edit(&mut stored);
            stored.metadata.resource_version = Some((7 + number).to_string());
            let tables = ReferenceTables::new(Vec::new(), std::sync::Arc::default());
            let client = FakeApi::client(Some(stored));
            let (reference, now) = (CertificateRef::default(), SystemTime::now());
            let written = admission(&client, &tables, &judged, &grant, reference, now).await;
            assert_eq!(written.is_ok(), admits, "{number}: {written:?}");
        }
    }

    #[test]
    fn only_changes_of_a_nodes_marks_are_ignored() {
        let before = Machine::named("worker-1", MachineSpec::default());
        let mut noted = before.clone();
        noted.metadata.resource_version = Some("7".to_owned());
        noted.status.get_or_insert_default().node = Some(NodeMarks {
            rule: "workers".to_owned(),
            ..NodeMarks::default()
        });
        assert!(same_but_marks(&before, &noted));
        let edits: [fn(&mut Machine); 4] = [
            |machine| machine.spec.retired = true,
            |machine| machine.metadata.uid = Some("another".to_owned()),
            |machine| machine.status.get_or_insert_default().state = MachineState::Untrusted,
            |machine| machine.spec.ek.hashes.push("sha256:00".to_owned()),
        ];
        for edit in edits {
            let mut other = noted.clone();
            edit(&mut other);
            assert!(!same_but_marks(&before, &other), "{other:?}");
        }
    }
}
