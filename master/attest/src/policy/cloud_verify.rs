//! `cloud-verify`: by TPM evidence (cloud-verify/v1).

use super::{Judgement, Policy};
use config_attest::policy::CheckedRule;
use config_kube::{PolicyName, Rule};

/// Has the verifier decide.
#[derive(Debug)]
pub(crate) struct CloudVerify;

impl Policy for CloudVerify {
    fn name(&self) -> PolicyName {
        PolicyName::CloudVerify
    }

    fn faults(&self, rule: &Rule) -> Vec<String> {
        CheckedRule::try_from(rule).err().map(|faults| faults.to_string()).into_iter().collect()
    }

    fn judge(&self, rule: &Rule) -> Judgement {
        match CheckedRule::try_from(rule) {
            Ok(rule) => Judgement::Verify(Box::new(rule)),
            Err(_faults) => Judgement::Reject,
        }
    }
}
