//! `insecure-always-approve`: admits every machine, with warnings in log, events and conditions.

use super::{HelloDecision, Policy, PolicyDecision, attest_by};
use crate::request_queue::RequestQueue;
use config_attest::verifier::{Approval, Claimant};
use config_kube::Rule;
use jiff::Timestamp;
use std::net::IpAddr;

/// Admits every machine.
#[derive(Debug)]
pub(crate) struct InsecureAlwaysApprove;

impl Policy for InsecureAlwaysApprove {
    fn reason(&self) -> &'static str {
        "InsecureAlwaysApprove"
    }

    fn faults(&self, rule: &Rule) -> Vec<String> {
        super::faults_for_machines(rule)
    }

    fn at_hello(&self, rule: &Rule) -> HelloDecision {
        attest_by(rule)
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
