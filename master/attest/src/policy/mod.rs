//! What decides a request: one file for each policy, behind one trait.

mod always_reject;
mod cloud_verify;
mod insecure_always_approve;
mod queue;

use config_attest::policy::CheckedRule;
use config_kube::identity::{NODE_CLIENT_SIGNER, NODE_SERVING_SIGNER};
use config_kube::{CertificatePolicySpec, PolicyName, Rule};
use std::fmt::Debug;

/// What a policy says to a machine that wants to prove itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// Verify its evidence by this rule.
    Verify(Box<CheckedRule>),
    /// No.
    Reject,
}

/// A policy.
pub(crate) trait Policy: Debug + Sync {
    /// Its name in rules.
    fn name(&self) -> PolicyName;

    /// Faults of a rule under this policy; a rule with faults decides nothing.
    fn faults(&self, rule: &Rule) -> Vec<String>;

    /// What a rule without faults says.
    fn judge(&self, rule: &Rule) -> Judgement;
}

const POLICIES: [&dyn Policy; 4] = [
    &always_reject::AlwaysReject,
    &cloud_verify::CloudVerify,
    &queue::Queue,
    &insecure_always_approve::InsecureAlwaysApprove,
];

fn policy_of(name: PolicyName) -> &'static dyn Policy {
    // The list has them all (a test); rejecting is right for what it lacked.
    POLICIES.into_iter().find(|policy| policy.name() == name).unwrap_or(&always_reject::AlwaysReject)
}

/// Every fault of a policy's rules, in sentences.
pub(crate) fn faults(spec: &CertificatePolicySpec) -> Vec<String> {
    let mut faults: Vec<String> = spec.rules.iter().flat_map(|rule| policy_of(rule.policy).faults(rule)).collect();
    let (client, serving) = (rule_of(spec, NODE_CLIENT_SIGNER), rule_of(spec, NODE_SERVING_SIGNER));
    if client.map(|rule| &rule.name) != serving.map(|rule| &rule.name) {
        faults.push(format!(
            "{NODE_CLIENT_SIGNER} and {NODE_SERVING_SIGNER} are decided by different rules; name both in one"
        ));
    }
    faults
}

/// What the rules say to a machine; the faults where they can't be used.
pub(crate) fn judge(spec: &CertificatePolicySpec) -> Result<Judgement, Vec<String>> {
    let faults = faults(spec);
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(rule_of(spec, NODE_CLIENT_SIGNER).map_or(Judgement::Reject, |rule| policy_of(rule.policy).judge(rule)))
}

/// The first rule that names a signer.
fn rule_of<'a>(spec: &'a CertificatePolicySpec, signer: &str) -> Option<&'a Rule> {
    spec.rules.iter().find(|rule| rule.signers.iter().any(|name| name == signer))
}

/// The fault of a rule under a policy that this version lacks.
fn absent(rule: &Rule, name: &str) -> Vec<String> {
    vec![format!("rule `{}`: policy `{name}` is not there yet; use `cloud-verify` or `always-reject`", rule.name)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::policy::{CertificateRule, EkRule, ImageRule};

    fn rule(policy: PolicyName) -> Rule {
        Rule {
            name: "r".to_owned(),
            signers: vec![NODE_CLIENT_SIGNER.to_owned(), NODE_SERVING_SIGNER.to_owned()],
            policy,
            ek: EkRule { hashes: "inventory".to_owned(), ..EkRule::default() },
            images: ImageRule { release_keys: vec!["dev".to_owned()], ..ImageRule::default() },
            certificate: CertificateRule { roles: vec!["worker".to_owned()], ..CertificateRule::default() },
            ..Rule::default()
        }
    }

    fn spec(rules: Vec<Rule>) -> CertificatePolicySpec {
        CertificatePolicySpec { rules }
    }

    #[test]
    fn every_policy_is_in_the_list() {
        for name in
            [PolicyName::AlwaysReject, PolicyName::Queue, PolicyName::InsecureAlwaysApprove, PolicyName::CloudVerify]
        {
            assert_eq!(policy_of(name).name(), name);
        }
    }

    #[test]
    fn no_rule_and_always_reject_reject() {
        assert_eq!(judge(&spec(vec![])), Ok(Judgement::Reject));
        assert_eq!(judge(&spec(vec![rule(PolicyName::AlwaysReject)])), Ok(Judgement::Reject));
    }

    #[test]
    fn cloud_verify_verifies_by_the_first_rule_that_names_the_signer() {
        let mut other = rule(PolicyName::AlwaysReject);
        other.signers = vec!["kubernetes.io/kubelet-serving".to_owned()];
        let judged = judge(&spec(vec![other, rule(PolicyName::CloudVerify)])).unwrap();
        assert!(matches!(judged, Judgement::Verify(_)));
    }

    #[test]
    fn policies_that_are_not_there_yet_are_faults_and_approve_nothing() {
        for policy in [PolicyName::Queue, PolicyName::InsecureAlwaysApprove] {
            let faults = judge(&spec(vec![rule(policy)])).unwrap_err();
            assert!(faults[0].contains("not there yet"), "{faults:?}");
        }
    }

    #[test]
    fn two_rules_for_the_two_signers_are_a_fault() {
        let mut client = rule(PolicyName::CloudVerify);
        client.signers.pop();
        let mut serving = rule(PolicyName::AlwaysReject);
        serving.signers.remove(0);
        serving.name = "s".to_owned();
        assert!(judge(&spec(vec![client, serving])).is_err());
    }
}
