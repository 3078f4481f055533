//! `always-reject`: no.

use super::{Judgement, Policy};
use config_kube::{PolicyName, Rule};

/// Refuses whatever comes.
#[derive(Debug)]
pub(crate) struct AlwaysReject;

impl Policy for AlwaysReject {
    fn name(&self) -> PolicyName {
        PolicyName::AlwaysReject
    }

    fn faults(&self, _rule: &Rule) -> Vec<String> {
        Vec::new()
    }

    fn judge(&self, _rule: &Rule) -> Judgement {
        Judgement::Reject
    }
}
