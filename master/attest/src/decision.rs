//! Steps 4 and 5 after the checks: the policy's decision on a claimant, and its admission.

use crate::admit::{AdmissionWriter, Requests};
use crate::answer::ServiceAnswer;
use crate::caller::{address, remote};
use crate::exchange::ExchangeService;
use crate::policy::{PolicyDecision, QueuedRequest};
use crate::queue_writer::{self, QueueWriter, Submission};
use crate::reference::ReferenceValues;
use crate::time::unix_seconds;
use config_attest::Refusal;
use config_attest::verifier::{Approval, CertificateGrant, Claimant};
use config_errors::chain;
use config_protocol::Code;
use jiff::Timestamp;
use master_listener::Peer;
use std::time::SystemTime;

impl ExchangeService {
    /// Decides on a claimant and answers: certificates, a place in the queue, or a refusal.
    pub(crate) async fn settle(
        &self,
        claimant: Claimant,
        values: &ReferenceValues,
        requests: Requests<'_>,
        peer: &Peer,
        now: SystemTime,
    ) -> ServiceAnswer {
        // The check for addresses of other machines reads their Machines, and this exchange's
        // Machine is written later. The reservation keeps a second exchange from passing the same
        // check in between.
        let Some(_reserved) = self.limits.reserve(claimant.claimed_addresses()) else {
            return ServiceAnswer::unavailable(
                "another machine is being admitted with one of these addresses; try again",
            );
        };
        if claimant.is_overtaken_in(&self.inventory.machines(), unix_seconds(now)) {
            return self
                .refused(peer, &claimant.refused(Code::AddressTaken))
                .await;
        }
        match self.decide(claimant, values, requests, peer, now).await {
            Ok(grant) => self.admit(&grant, values, &requests, peer, now).await,
            Err(answer) => answer,
        }
    }

    /// The policy's decision on a claimant (step 4).
    async fn decide(
        &self,
        claimant: Claimant,
        values: &ReferenceValues,
        requests: Requests<'_>,
        peer: &Peer,
        now: SystemTime,
    ) -> Result<CertificateGrant, ServiceAnswer> {
        if let Err(code) = queue_writer::check_name_is_free(&self.client, &claimant).await {
            return Err(self.refused(peer, &claimant.refused(code)).await);
        }
        let decision =
            values
                .policy
                .decide(&claimant, &self.queue, address(peer), Timestamp::now());
        let outcome = match decision {
            PolicyDecision::Verify => claimant.grant(),
            PolicyDecision::Approve(approval) => self.approve(claimant, &approval).await?,
            PolicyDecision::Refuse(code) => Err(claimant.refused(code)),
            PolicyDecision::Queue(queued) => {
                return Err(self.enqueue(&claimant, &queued, requests, peer, now).await);
            }
        };
        match outcome {
            Ok(grant) => Ok(grant),
            Err(refusal) => Err(self.refused(peer, &refusal).await),
        }
    }

    fn queue_writer(&self) -> QueueWriter<'_> {
        QueueWriter {
            client: &self.client,
            queue: &self.queue,
            inventory: &self.inventory,
        }
    }

    /// Puts a claimant into the queue and answers 202.
    async fn enqueue(
        &self,
        claimant: &Claimant,
        queued: &QueuedRequest,
        requests: Requests<'_>,
        peer: &Peer,
        now: SystemTime,
    ) -> ServiceAnswer {
        let remote = remote(peer);
        let submission = Submission {
            claimant,
            requests,
            remote: &remote,
            now,
        };
        match self.queue_writer().enqueue(&submission, queued).await {
            Ok(answer) => {
                if queued.to_create.is_some() {
                    self.records.queued(claimant, &queued.name, peer, now);
                }
                answer
            }
            Err(error) => {
                tracing::warn!(node = claimant.node_name(), error = %chain(&error), "a request cannot be written into the queue");
                ServiceAnswer::unavailable("the master could not keep the request; try again")
            }
        }
    }

    /// Applies an approval. A machine that is not in the inventory gets its Machine first.
    async fn approve(
        &self,
        claimant: Claimant,
        approval: &Approval,
    ) -> Result<Result<CertificateGrant, Box<Refusal>>, ServiceAnswer> {
        let created = queue_writer::create_machine(&self.queue_writer(), &claimant, approval).await;
        let machine = match created {
            Ok(machine) => machine,
            Err(error) => {
                tracing::warn!(node = claimant.node_name(), error = %chain(&error), "a Machine cannot be created");
                return Err(ServiceAnswer::unavailable(
                    "the master could not record the machine; try again",
                ));
            }
        };
        Ok(claimant.approve(approval, machine.as_ref()))
    }

    /// Admits the machine and answers with its certificates (step 5).
    async fn admit(
        &self,
        grant: &CertificateGrant,
        values: &ReferenceValues,
        requests: &Requests<'_>,
        peer: &Peer,
        now: SystemTime,
    ) -> ServiceAnswer {
        let writer = AdmissionWriter {
            client: &self.client,
            authority: &self.authority,
            inventory: &self.inventory,
            judged_by: &values.machines,
            journal: &self.records.journal,
            events: &self.records.events,
            generation: values.generation,
        };
        match writer.admit(grant, requests, now).await {
            Ok(certificates) => {
                let image = grant.image().map_or("unproven", |image| image.id.as_str());
                tracing::info!(
                    node = grant.node_name(),
                    image,
                    rule = grant.rule(),
                    "admitted"
                );
                self.records.accepted(grant, peer, now);
                ServiceAnswer::json(&certificates)
            }
            Err(error) => {
                tracing::warn!(node = grant.node_name(), error = %chain(&error), "verified, but not admitted");
                ServiceAnswer::unavailable("the master could not record the admission; try again")
            }
        }
    }

    /// Records a refusal of evidence and answers. The answer names the reason only if the caller
    /// may know it: the caller has proved possession, or the reason reveals nothing about machines.
    pub(crate) async fn refused(&self, peer: &Peer, refusal: &Refusal) -> ServiceAnswer {
        self.records.refused(peer, refusal).await;
        let code = refusal.code();
        if code == Code::NameAssigned {
            let own = refusal
                .verdict()
                .checks
                .iter()
                .find(|check| check.code == code.as_str());
            return ServiceAnswer::named(own.map_or("", |check| check.expected.as_str()));
        }
        if [Code::RequestDenied, Code::QueueFull, Code::NodeKeyInUse].contains(&code) {
            return ServiceAnswer::problem(code, code.meaning());
        }
        ServiceAnswer::refused()
    }
}
