//! The join policies, one file each, behind the trait [`Policy`]. To add one: a file here, two
//! lines below, and a line in the table of [`config_kube::policy`].

mod always_reject;
mod cloud_verify;
mod decision;
mod insecure_always_approve;
mod join_policy;
mod queue;

pub(crate) use decision::{HelloDecision, NewRequest, PolicyDecision, QueuedRequest};
pub(crate) use join_policy::Policy;

use config_kube::identity::{NODE_CLIENT_SIGNER, NODE_SERVING_SIGNER};
use config_kube::policy::Ruling;
use config_kube::{CertificatePolicySpec, Decides, PolicyName, Rule};

pub(crate) fn policy_of(name: PolicyName) -> &'static dyn Policy {
    match name {
        PolicyName::AlwaysReject => &always_reject::AlwaysReject,
        PolicyName::Queue => &queue::Queue,
        PolicyName::InsecureAlwaysApprove => &insecure_always_approve::InsecureAlwaysApprove,
        PolicyName::CloudVerify => &cloud_verify::CloudVerify,
    }
}

/// All faults of a CertificatePolicy, as sentences.
pub(crate) fn faults(spec: &CertificatePolicySpec) -> Vec<String> {
    let mut faults: Vec<String> = spec
        .rules
        .iter()
        .flat_map(|rule| policy_of(rule.policy).faults(rule))
        .collect();
    let (client, serving) = (
        spec.rule_for(NODE_CLIENT_SIGNER),
        spec.rule_for(NODE_SERVING_SIGNER),
    );
    if client.map(|rule| &rule.name) != serving.map(|rule| &rule.name) {
        faults.push(format!(
            "{NODE_CLIENT_SIGNER} and {NODE_SERVING_SIGNER} are decided by different rules; name both in one"
        ));
    }
    faults
}

/// The decision on hellos under a CertificatePolicy; its faults where it has any.
pub(crate) fn decide_hello(spec: &CertificatePolicySpec) -> Result<HelloDecision, Vec<String>> {
    let faults = faults(spec);
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(spec
        .rule_for(NODE_CLIENT_SIGNER)
        .map_or(HelloDecision::Reject, |rule| {
            policy_of(rule.policy).at_hello(rule)
        }))
}

/// The rule for requests of one of upstream's signers. `None` where no rule without faults names
/// the signer: a person decides then.
fn upstream<'a>(spec: &'a CertificatePolicySpec, signer: &str) -> Option<&'a Rule> {
    spec.rule_for(signer)
        .filter(|rule| policy_of(rule.policy).faults(rule).is_empty())
}

/// A policy's decision on a request to one of upstream's signers; `None` if a person decides.
pub fn ruling(spec: &CertificatePolicySpec, signer: &str) -> Option<Ruling> {
    let rule = upstream(spec, signer)?;
    let (policy, reason) = (rule.policy.as_str(), policy_of(rule.policy).reason());
    let name = &rule.name;
    match rule.policy.decides() {
        Decides::Person | Decides::Verifier => None,
        Decides::Never => Some(Ruling {
            approved: false,
            reason,
            message: format!("rule `{name}` rejects every request of {signer}"),
        }),
        Decides::Always => Some(Ruling {
            approved: true,
            reason,
            message: format!(
                "rule `{name}` ({policy}) approves every request of {signer} without a check"
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_queue::RequestQueue;
    use config_kube::policy::{CertificateRule, EkRule, ImageRule};
    use jiff::Timestamp;
    use tests_machines::{EkKind, World};

    fn rule(policy: PolicyName) -> Rule {
        Rule {
            name: "r".to_owned(),
            signers: vec![
                NODE_CLIENT_SIGNER.to_owned(),
                NODE_SERVING_SIGNER.to_owned(),
            ],
            policy,
            ek: EkRule {
                hashes: "inventory".to_owned(),
                ..EkRule::default()
            },
            images: ImageRule {
                release_keys: vec!["dev".to_owned()],
                ..ImageRule::default()
            },
            certificate: CertificateRule {
                roles: vec!["worker".to_owned()],
                ..CertificateRule::default()
            },
            ..Rule::default()
        }
    }

    fn spec(rules: Vec<Rule>) -> CertificatePolicySpec {
        CertificatePolicySpec { rules }
    }

    #[test]
    fn every_policy_decides_as_the_table_of_names_says() {
        for name in PolicyName::ALL {
            let mut world = World::new();
            let machine = world.machine("worker-1", "10.0.0.11", EkKind::P256);
            world.rule.policy = name;
            let does = match decide_hello(&spec(vec![world.rule.clone()])).unwrap() {
                HelloDecision::Reject => Decides::Never,
                HelloDecision::Attest(_) => {
                    let claimant = world.claim(&machine).unwrap();
                    match policy_of(name).decide(
                        &claimant,
                        &RequestQueue::default(),
                        [192, 0, 2, 1].into(),
                        Timestamp::UNIX_EPOCH,
                    ) {
                        PolicyDecision::Verify => Decides::Verifier,
                        PolicyDecision::Approve(_) => Decides::Always,
                        PolicyDecision::Queue(_) => Decides::Person,
                        PolicyDecision::Refuse(_) => Decides::Never,
                    }
                }
            };
            assert_eq!(does, name.decides(), "{name:?}");
        }
    }

    #[test]
    fn without_a_rule_every_machine_is_rejected() {
        assert_eq!(decide_hello(&spec(vec![])), Ok(HelloDecision::Reject));
    }

    #[test]
    fn cloud_verify_verifies_by_the_first_rule_that_names_the_signer() {
        let mut other = rule(PolicyName::AlwaysReject);
        other.signers = vec!["kubernetes.io/kubelet-serving".to_owned()];
        let decision = decide_hello(&spec(vec![other, rule(PolicyName::CloudVerify)])).unwrap();
        assert!(matches!(decision, HelloDecision::Attest(_)));
    }

    #[test]
    fn requests_of_upstreams_signers_wait_for_a_person_by_default() {
        let signer = "kubernetes.io/kubelet-serving";
        let with = |policy| {
            let mut rule = rule(policy);
            rule.signers = vec![signer.to_owned()];
            upstream(&spec(vec![rule]), signer)
                .map_or(Decides::Person, |rule| rule.policy.decides())
        };
        assert_eq!(upstream(&spec(vec![]), signer), None);
        assert_eq!(with(PolicyName::Queue), Decides::Person);
        assert_eq!(with(PolicyName::AlwaysReject), Decides::Never);
        assert_eq!(with(PolicyName::InsecureAlwaysApprove), Decides::Always);
        // Without evidence there is nothing to verify: a fault, and a person.
        assert_eq!(with(PolicyName::CloudVerify), Decides::Person);
        let mut mixed = rule(PolicyName::CloudVerify);
        mixed.signers.push(signer.to_owned());
        let faults = decide_hello(&spec(vec![mixed])).unwrap_err();
        assert!(
            faults[0].contains("kubelet-serving") && faults[0].contains("queue"),
            "{faults:?}"
        );
    }

    #[test]
    fn two_rules_for_the_two_signers_are_a_fault() {
        let mut client = rule(PolicyName::CloudVerify);
        client.signers.pop();
        let mut serving = rule(PolicyName::AlwaysReject);
        serving.signers.remove(0);
        serving.name = "s".to_owned();
        assert!(decide_hello(&spec(vec![client, serving])).is_err());
    }
}
