//! `insecure-always-approve`: whatever comes. Not there yet: a rule that names it is a fault.

use super::{Judgement, Policy, absent};
use config_kube::{PolicyName, Rule};

/// Approves whatever comes.
#[derive(Debug)]
pub(crate) struct InsecureAlwaysApprove;

impl Policy for InsecureAlwaysApprove {
    fn name(&self) -> PolicyName {
        PolicyName::InsecureAlwaysApprove
    }

    fn faults(&self, rule: &Rule) -> Vec<String> {
        absent(rule, "insecure-always-approve")
    }

    fn judge(&self, _rule: &Rule) -> Judgement {
        Judgement::Reject
    }
}
