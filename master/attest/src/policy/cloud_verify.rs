//! `cloud-verify`: admits a machine whose TPM evidence passes every check of the rule
//! (cloud-verify/v1).

use super::{Policy, PolicyDecision};
use crate::request_queue::RequestQueue;
use config_attest::policy::CheckedRule;
use config_attest::verifier::Claimant;
use config_kube::{Rule, identity};
use jiff::Timestamp;
use std::net::IpAddr;

/// Leaves the decision to the verifier.
#[derive(Debug)]
pub(crate) struct CloudVerify;

impl Policy for CloudVerify {
    fn reason(&self) -> &'static str {
        "CloudVerified"
    }

    fn faults(&self, rule: &Rule) -> Vec<String> {
        let mut faults: Vec<String> = CheckedRule::try_from(rule)
            .err()
            .map(|faults| faults.to_string())
            .into_iter()
            .collect();
        let machines = [identity::NODE_CLIENT_SIGNER, identity::NODE_SERVING_SIGNER];
        let other = rule
            .signers
            .iter()
            .filter(|signer| !machines.contains(&signer.as_str()));
        faults.extend(other.map(|signer| {
            format!(
                "rule `{}`: {signer} brings no evidence that cloud-verify could look at; name it in a rule of its own \
                 with `queue` or `always-reject`",
                rule.name
            )
        }));
        faults
    }

    fn decide(
        &self,
        _claimant: &Claimant,
        _queue: &RequestQueue,
        _from: IpAddr,
        _now: Timestamp,
    ) -> PolicyDecision {
        PolicyDecision::Verify
    }
}
