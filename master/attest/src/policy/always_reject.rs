//! `always-reject`: no.

use super::{Judgement, Policy, Ruling};
use crate::waiting::Waiting;
use config_attest::Code;
use config_attest::verifier::Claimant;
use config_kube::Rule;
use jiff::Timestamp;
use std::net::IpAddr;

/// Refuses whatever comes.
#[derive(Debug)]
pub(crate) struct AlwaysReject;

impl Policy for AlwaysReject {
    fn reason(&self) -> &'static str {
        "PolicyRejects"
    }

    fn faults(&self, _rule: &Rule) -> Vec<String> {
        Vec::new()
    }

    fn judge(&self, _rule: &Rule) -> Judgement {
        Judgement::Reject
    }

    fn decide(
        &self,
        _claimant: &Claimant,
        _waiting: &Waiting,
        _from: IpAddr,
        _now: Timestamp,
    ) -> Ruling {
        Ruling::Refuse(Code::PolicyRejects)
    }
}
