//! `insecure-always-approve`: whatever comes, said loudly.

use super::{Judgement, Policy, Ruling, proof_asked};
use crate::waiting::Waiting;
use config_attest::verifier::{Approval, Claimant};
use config_kube::Rule;
use jiff::Timestamp;
use std::net::IpAddr;

/// Approves whatever comes.
#[derive(Debug)]
pub(crate) struct InsecureAlwaysApprove;

impl Policy for InsecureAlwaysApprove {
    fn reason(&self) -> &'static str {
        "InsecureAlwaysApprove"
    }

    fn faults(&self, rule: &Rule) -> Vec<String> {
        super::faults_for_machines(rule)
    }

    fn judge(&self, rule: &Rule) -> Judgement {
        proof_asked(rule)
    }

    fn decide(
        &self,
        _claimant: &Claimant,
        _waiting: &Waiting,
        _from: IpAddr,
        _now: Timestamp,
    ) -> Ruling {
        Ruling::Approve(Approval::Nobody)
    }
}
