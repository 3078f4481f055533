//! `queue`: a person decides, and sees which checks passed and which did not.

use super::{Policy, PolicyDecision};
use crate::request_queue::RequestQueue;
use config_attest::verifier::{Approval, Claimant, PriorApproval};
use jiff::Timestamp;
use std::net::IpAddr;

/// Queues requests for a person.
#[derive(Debug)]
pub(crate) struct Queue;

impl Policy for Queue {
    fn reason(&self) -> &'static str {
        "ApprovedByPerson"
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
