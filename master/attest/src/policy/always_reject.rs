//! `always-reject`: refuses every machine.

use super::{HelloDecision, Policy, PolicyDecision};
use crate::request_queue::RequestQueue;
use config_attest::verifier::Claimant;
use config_kube::Rule;
use config_protocol::Code;
use jiff::Timestamp;
use std::net::IpAddr;

/// Refuses every machine.
#[derive(Debug)]
pub(crate) struct AlwaysReject;

impl Policy for AlwaysReject {
    fn reason(&self) -> &'static str {
        "PolicyRejects"
    }

    fn faults(&self, _rule: &Rule) -> Vec<String> {
        Vec::new()
    }

    fn at_hello(&self, _rule: &Rule) -> HelloDecision {
        HelloDecision::Reject
    }

    fn decide(
        &self,
        _claimant: &Claimant,
        _queue: &RequestQueue,
        _from: IpAddr,
        _now: Timestamp,
    ) -> PolicyDecision {
        PolicyDecision::Refuse(Code::PolicyRejects)
    }
}
