//! Step 5: certificates for an admitted machine, and their records: the Machine's status, the log,
//! the requests, the Node.

use crate::error::Error;
use crate::inventory::ReferenceTables;
use crate::policy::policy_of;
use crate::time::unix_seconds;
use crate::{record, request};
use config_attest::verifier::CertificateGrant;
use config_attest::{Inventory, MachineId};
use config_kube::identity::{NODE_CLIENT_SIGNER, NODE_SERVING_SIGNER};
use config_kube::k8s_openapi::api::core::v1::Node;
use config_kube::machine::{CertificateRef, NodeMarks};
use config_kube::{Decides, Machine};
use config_protocol::wire::Certificates;
use master_ca::{Authority, NodeCertificates};
use master_client::{ApiError, Client, NewEvent, Patch, Reason, Recorder, Severity};
use master_journal::Journal;
use master_nodes::{marks, node};
use serde_json::json;
use std::time::SystemTime;

/// Both certificate requests of a node, DER.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requests<'a> {
    pub(crate) client: &'a [u8],
    pub(crate) serving: &'a [u8],
}

/// Writes an admission (step 5).
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdmissionWriter<'a> {
    pub(crate) client: &'a Client,
    pub(crate) authority: &'a Authority,
    pub(crate) inventory: &'a ReferenceTables,
    /// The Machines by which the evidence was checked.
    pub(crate) judged_by: &'a Inventory,
    pub(crate) journal: &'a Journal,
    pub(crate) events: &'a Recorder,
    /// `metadata.generation` of the CertificatePolicy, for the certificates.
    pub(crate) generation: u64,
}

impl AdmissionWriter<'_> {
    /// Signs the certificates and writes, in this order: the Machine's status, the log of verdicts,
    /// the requests, the Node. No certificate leaves the master before its records; a write that
    /// fails after the status is repeated by the machine's next attempt.
    ///
    /// # Errors
    /// The Machine changed since it was read, the CA does not sign, the log takes no record, or the
    /// API rejects a write.
    pub(crate) async fn admit(
        &self,
        grant: &CertificateGrant,
        requests: &Requests<'_>,
        now: SystemTime,
    ) -> Result<Certificates, Error> {
        let present = self.inventory.machines();
        let machine =
            judged(grant.machine_id(), self.judged_by, &present).ok_or_else(|| Error::Api {
                what: "the Machine",
                source: ApiError::new(Reason::NotFound, "it is gone"),
            })?;
        let issued = self
            .authority
            .issue_node(grant, self.generation, now)
            .map_err(Error::Issue)?;
        let certificate = CertificateRef {
            serial: issued.client.serial.clone(),
            not_after: crate::time::timestamp(issued.client.not_after).to_string(),
        };
        let after = record::admission(
            self.client,
            self.inventory,
            machine,
            grant,
            certificate,
            now,
        )
        .await?;
        self.journal.admitted(machine, grant, &after).await?;
        record_requests(self.client, grant, requests, &issued)
            .await
            .map_err(|source| Error::Api {
                what: "the certificate requests",
                source,
            })?;
        self.ensure_node(&after, grant)
            .await
            .map_err(|source| Error::Api {
                what: "the Node",
                source,
            })?;
        if grant.is_unproven() || grant.admission().policy.decides() == Decides::Always {
            self.warn(machine, grant).await;
        }
        Ok(answer(self.authority, grant, &issued, now))
    }

    /// Warns, in the log and by an event, that the machine was admitted without checks or without a
    /// TPM.
    async fn warn(&self, machine: &Machine, grant: &CertificateGrant) {
        let (failed, rule) = (grant.verdict().failed(), grant.rule());
        let policy = grant.admission().policy;
        let (name, nobody) = (policy.as_str(), policy.decides() == Decides::Always);
        let (reason, how) = match (grant.is_unproven(), nobody) {
            (false, _) => (
                policy_of(policy).reason(),
                format!("({name}) admitted this machine without a decision"),
            ),
            (true, true) => (
                "NoTpm",
                format!(
                    "({name}, insecure_no_tpm) admitted this machine without a TPM and without a decision"
                ),
            ),
            (true, false) => (
                "NoTpm",
                "(insecure_no_tpm) admitted this machine without a TPM on a person's approval"
                    .to_owned(),
            ),
        };
        let message = format!("rule `{rule}` {how}; not proven: {failed}");
        tracing::warn!(node = grant.node_name(), "{message}");
        let event = NewEvent {
            severity: Severity::Warning,
            reason,
            action: "Admit",
            message,
        };
        self.events.record(machine, &event).await;
    }

    /// Creates the Node, or updates the labels of an existing one. A controller (`master/control`)
    /// keeps the labels and taints of the rule on an existing Node.
    async fn ensure_node(
        &self,
        machine: &Machine,
        grant: &CertificateGrant,
    ) -> Result<(), ApiError> {
        let (client, name, policy) = (self.client, grant.node_name(), grant.admission().policy);
        let Some(existing) = client.get_opt::<Node>(None, name).await? else {
            let marks = self.first_marks(machine).await?;
            return match client
                .create(&node::fresh(machine, grant.image(), policy, &marks))
                .await
            {
                Err(error) if !error.is_already_exists() => Err(error),
                Ok(_) | Err(_) => Ok(()),
            };
        };
        let Some(labels) = node::relabel(&existing, &node::labels(machine, grant.image(), policy))
        else {
            return Ok(());
        };
        client
            .patch::<Node>(
                None,
                name,
                &Patch::Merge(json!({ "metadata": { "labels": labels } })),
            )
            .await
            .map(drop)
    }

    /// Labels and taints that the policy's rule gives to a Node that is about to be made. They are
    /// in the Machine's status first, so that they can be removed when the rule changes.
    async fn first_marks(&self, machine: &Machine) -> Result<NodeMarks, ApiError> {
        let policy = self.inventory.policy();
        let wanted = policy.and_then(|policy| marks::wanted(machine, &policy.spec));
        let wanted = wanted.unwrap_or_default();
        if marks::same_marks(&marks::noted(machine), &wanted) {
            return Ok(wanted);
        }
        let name = machine.metadata.name.as_deref().unwrap_or_default();
        let patch = Patch::Json(json!([
            // Another Machine of this name is left alone.
            { "op": "test", "path": "/metadata/uid", "value": machine.metadata.uid },
            { "op": "add", "path": "/status/node", "value": &wanted },
        ]));
        let written = self
            .client
            .patch_status::<Machine>(None, name, &patch)
            .await?;
        self.inventory.take_written(written);
        Ok(wanted)
    }
}

/// The Machine as it was when the evidence was checked: its status is not written where it changed
/// since, as when it was retired. A Machine that an approval has made is only among the present
/// ones.
fn judged<'a>(
    id: &MachineId,
    judged_by: &'a Inventory,
    present: &'a Inventory,
) -> Option<&'a Machine> {
    judged_by.find(id).or_else(|| present.find(id))
}

/// The body of the last answer.
fn answer(
    authority: &Authority,
    grant: &CertificateGrant,
    issued: &NodeCertificates,
    now: SystemTime,
) -> Certificates {
    let not_after = unix_seconds(issued.client.not_after.min(issued.serving.not_after));
    Certificates {
        node_name: grant.node_name().to_owned(),
        client: issued.client.chain_pem(),
        serving: issued.serving.chain_pem(),
        roots: authority.roots_pem(),
        not_after,
        renew_after_seconds: not_after.saturating_sub(unix_seconds(now)) / 3,
    }
}

async fn record_requests(
    client: &Client,
    grant: &CertificateGrant,
    requests: &Requests<'_>,
    issued: &NodeCertificates,
) -> Result<(), ApiError> {
    let machine = grant.machine_id().name.as_str();
    let both = [
        (NODE_CLIENT_SIGNER, requests.client, &issued.client),
        (NODE_SERVING_SIGNER, requests.serving, &issued.serving),
    ];
    for (signer, request, issued) in both {
        let (admission, rule, seconds) = (grant.admission(), grant.rule(), grant.ttl_seconds());
        request::record(
            client,
            &request::SignedRequest {
                machine,
                signer,
                request,
                issued,
                admission,
                rule,
                seconds,
            },
        )
        .await?;
    }
    request::answer(client, &grant.admission().request, &issued.client).await?;
    request::prune(client, machine).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tests_machines::{EkKind, World};

    #[test]
    fn a_machine_that_changed_since_its_evidence_is_not_taken_in_its_new_form() {
        let mut world = World::new();
        let machine = world.machine("worker-1", "10.0.0.11", EkKind::P256);
        let judged_by = Inventory::new(world.machines.clone());
        let grant = world.join(&machine).unwrap();
        world.object("worker-1").spec.retired = true;
        let (present, id) = (Inventory::new(world.machines.clone()), grant.machine_id());
        let found = judged(id, &judged_by, &present).unwrap();
        assert!(!found.spec.retired);
        // One that its approval made.
        let none = Inventory::default();
        let made = judged(id, &none, &present).unwrap();
        assert_eq!(made.node_name(), "worker-1");
        assert!(judged(id, &none, &none).is_none());
    }
}
