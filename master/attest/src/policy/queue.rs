//! `queue`: kept for a person. Not there yet: a rule that names it is a fault.

use super::{Judgement, Policy, absent};
use config_kube::{PolicyName, Rule};

/// Keeps requests for a person.
#[derive(Debug)]
pub(crate) struct Queue;

impl Policy for Queue {
    fn name(&self) -> PolicyName {
        PolicyName::Queue
    }

    fn faults(&self, rule: &Rule) -> Vec<String> {
        absent(rule, "queue")
    }

    fn judge(&self, _rule: &Rule) -> Judgement {
        Judgement::Reject
    }
}
