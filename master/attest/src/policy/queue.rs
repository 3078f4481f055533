//! `queue`: kept for a person, who is shown what was proved and what was not.

use super::{Judgement, Policy, Ruling, proof_asked};
use crate::waiting::Waiting;
use config_attest::verifier::{Approval, Claimant, Standing};
use config_kube::Rule;
use jiff::Timestamp;
use std::net::IpAddr;

/// Keeps requests for a person.
#[derive(Debug)]
pub(crate) struct Queue;

impl Policy for Queue {
    fn reason(&self) -> &'static str {
        "ApprovedByPerson"
    }

    fn faults(&self, rule: &Rule) -> Vec<String> {
        super::faults_for_machines(rule)
    }

    fn judge(&self, rule: &Rule) -> Judgement {
        proof_asked(rule)
    }

    fn decide(
        &self,
        claimant: &Claimant,
        waiting: &Waiting,
        from: IpAddr,
        now: Timestamp,
    ) -> Ruling {
        let standing = claimant.standing();
        if standing == Standing::Unchanged {
            return Ruling::Approve(Approval::Before);
        }
        waiting.decide(claimant, &standing, from, now)
    }
}
