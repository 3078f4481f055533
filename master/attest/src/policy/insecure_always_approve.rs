//! `insecure-always-approve`: admits every machine, with warnings in log, events and conditions.

use super::{Policy, PolicyDecision};
use crate::request_queue::RequestQueue;
use config_attest::verifier::{Approval, Claimant};
use jiff::Timestamp;
use std::net::IpAddr;

/// Admits every machine.
#[derive(Debug)]
pub(crate) struct InsecureAlwaysApprove;

impl Policy for InsecureAlwaysApprove {
    fn reason(&self) -> &'static str {
        "InsecureAlwaysApprove"
    }

    fn decide(
        &self,
        _claimant: &Claimant,
        _queue: &RequestQueue,
        _from: IpAddr,
        _now: Timestamp,
    ) -> PolicyDecision {
        PolicyDecision::Approve(Approval::Nobody)
    }
}
