//! The trait of the join policies, and what most of them share.

use super::decision::{HelloDecision, PolicyDecision};
use crate::request_queue::RequestQueue;
use config_attest::policy::CheckedRule;
use config_attest::verifier::Claimant;
use config_kube::Rule;
use config_kube::identity::{NODE_CLIENT_SIGNER, NODE_SERVING_SIGNER};
use jiff::Timestamp;
use std::fmt::Debug;
use std::net::IpAddr;

/// A join policy. [`PolicyName::decides`] says who decides under it.
pub(crate) trait Policy: Debug + Sync {
    /// The reason in conditions and events about its decisions.
    fn reason(&self) -> &'static str;

    /// Faults of a rule under this policy, as sentences. A rule with faults admits nothing. By
    /// default those of what the verifier checks, where the rule is for machines.
    fn faults(&self, rule: &Rule) -> Vec<String> {
        faults_for_machines(rule)
    }

    /// The decision on every hello under a rule without faults. By default the machine may attest,
    /// and [`Policy::decide`] decides on its evidence.
    fn at_hello(&self, rule: &Rule) -> HelloDecision {
        attest_by(rule)
    }

    /// The decision on a claimant whose exchange came from this address.
    fn decide(
        &self,
        claimant: &Claimant,
        queue: &RequestQueue,
        from: IpAddr,
        now: Timestamp,
    ) -> PolicyDecision;
}

/// Attestation by this rule; a rule with faults rejects.
fn attest_by(rule: &Rule) -> HelloDecision {
    CheckedRule::try_from(rule).map_or(HelloDecision::Reject, |rule| {
        HelloDecision::Attest(Box::new(rule))
    })
}

/// Faults of a rule that names a signer of machines; none for a rule of upstream's signers only.
fn faults_for_machines(rule: &Rule) -> Vec<String> {
    let machines = rule
        .signers
        .iter()
        .any(|signer| signer == NODE_CLIENT_SIGNER || signer == NODE_SERVING_SIGNER);
    let faults = CheckedRule::try_from(rule).err().filter(|_| machines);
    faults
        .map(|faults| faults.to_string())
        .into_iter()
        .collect()
}
