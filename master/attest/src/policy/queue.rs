//! `queue`: kept for a person, who is shown what was proved and what was not.

use super::{Judgement, Policy, Ruling, Upstream, proof_asked};
use crate::waiting::Waiting;
use config_attest::policy::Decides;
use config_attest::verifier::{Approval, Claimant, Standing};
use config_kube::{PolicyName, Rule};
use jiff::Timestamp;

/// Keeps requests for a person.
#[derive(Debug)]
pub(crate) struct Queue;

impl Policy for Queue {
    fn name(&self) -> PolicyName {
        PolicyName::Queue
    }

    fn faults(&self, rule: &Rule) -> Vec<String> {
        super::faults_for_machines(rule)
    }

    fn judge(&self, rule: &Rule) -> Judgement {
        proof_asked(rule)
    }

    fn decide(&self, claimant: &Claimant, waiting: &Waiting, now: Timestamp) -> Ruling {
        let standing = claimant.standing();
        if standing == Standing::Unchanged {
            return Ruling::Approve(Approval::Before);
        }
        match claimant.rule().decides() {
            Decides::Person { expires_seconds, max_waiting } => {
                waiting.decide(claimant, &standing, expires_seconds, max_waiting, now)
            }
            Decides::Verifier | Decides::Nobody => Ruling::Refuse(config_attest::Code::PolicyInvalid),
        }
    }

    fn upstream(&self) -> Upstream {
        Upstream::Person
    }
}
