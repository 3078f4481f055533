//! `queue`: a person decides, and sees which checks passed and which did not.

use super::{HelloDecision, Policy, PolicyDecision, attest_by};
use crate::request_queue::RequestQueue;
use config_attest::verifier::{Approval, Claimant, PriorApproval};
use config_kube::Rule;
use jiff::Timestamp;
use std::net::IpAddr;

/// Queues requests for a person.
#[derive(Debug)]
pub(crate) struct Queue;

impl Policy for Queue {
    fn reason(&self) -> &'static str {
        "ApprovedByPerson"
    }

    fn faults(&self, rule: &Rule) -> Vec<String> {
        super::faults_for_machines(rule)
    }

    fn at_hello(&self, rule: &Rule) -> HelloDecision {
        attest_by(rule)
    }

    fn decide(
        &self,
        claimant: &Claimant,
        queue: &RequestQueue,
        from: IpAddr,
        now: Timestamp,
    ) -> PolicyDecision {
        let prior = claimant.prior_approval();
        if prior == PriorApproval::Unchanged {
            return PolicyDecision::Approve(Approval::Before);
        }
        queue.decide(claimant, &prior, from, now)
    }
}
