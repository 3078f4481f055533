//! What decides a request: one file for each policy, behind one trait. Another is a file here, its two lines below, and one
//! in the table of [`config_kube::policy`].

mod always_reject;
mod cloud_verify;
mod insecure_always_approve;
mod queue;

use crate::waiting::Waiting;
use config_attest::Code;
use config_attest::policy::CheckedRule;
use config_attest::verifier::{Approval, Claimant};
use config_kube::identity::{NODE_CLIENT_SIGNER, NODE_SERVING_SIGNER};
use config_kube::{CertificatePolicySpec, PolicyName, Rule};
use jiff::Timestamp;
use std::fmt::Debug;
use std::net::IpAddr;

/// What a policy says to a machine that wants to prove itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// It may show what it is, by this rule.
    Prove(Box<CheckedRule>),
    /// No.
    Reject,
}

/// What a policy says to a machine that proved which it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ruling {
    /// It passed all that the rule asks for.
    Verify,
    /// On this word.
    Approve(Approval),
    /// A person must decide.
    Wait(Wait),
    /// No.
    Refuse(Code),
}

/// A request that a person must decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wait {
    /// The request's name.
    pub(crate) name: String,
    /// What has to be written first; none where the request is there.
    pub(crate) fresh: Option<Fresh>,
}

/// A request that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fresh {
    /// When it is dropped.
    pub(crate) expires: Timestamp,
    /// What was approved before and is so no more, and what goes beyond it.
    pub(crate) changes: Vec<String>,
    /// Whether the machine booted something else than was approved, and does not only ask for more.
    pub(crate) is_other: bool,
    /// Undecided requests that it takes the place of: of the same machine, or, in a full queue, of one that proved less.
    pub(crate) instead_of: Vec<String>,
}

/// A policy. What its kind alone decides follows from [`PolicyName::decides`].
pub(crate) trait Policy: Debug + Sync {
    /// The reason that conditions and events give for what it decided.
    fn reason(&self) -> &'static str;

    /// Faults of a rule under this policy; a rule with faults decides nothing.
    fn faults(&self, rule: &Rule) -> Vec<String>;

    /// What a rule without faults says to a machine's hello.
    fn judge(&self, rule: &Rule) -> Judgement;

    /// What is done with a machine that proved which it is, and asks from an address.
    fn decide(
        &self,
        claimant: &Claimant,
        waiting: &Waiting,
        from: IpAddr,
        now: Timestamp,
    ) -> Ruling;
}

pub(crate) fn policy_of(name: PolicyName) -> &'static dyn Policy {
    match name {
        PolicyName::AlwaysReject => &always_reject::AlwaysReject,
        PolicyName::Queue => &queue::Queue,
        PolicyName::InsecureAlwaysApprove => &insecure_always_approve::InsecureAlwaysApprove,
        PolicyName::CloudVerify => &cloud_verify::CloudVerify,
    }
}

/// Every fault of a policy's rules, in sentences.
pub(crate) fn faults(spec: &CertificatePolicySpec) -> Vec<String> {
    let mut faults: Vec<String> = spec
        .rules
        .iter()
        .flat_map(|rule| policy_of(rule.policy).faults(rule))
        .collect();
    let (client, serving) = (
        rule_of(spec, NODE_CLIENT_SIGNER),
        rule_of(spec, NODE_SERVING_SIGNER),
    );
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
    Ok(rule_of(spec, NODE_CLIENT_SIGNER)
        .map_or(Judgement::Reject, |rule| policy_of(rule.policy).judge(rule)))
}

/// The rule for requests under one of upstream's signers; a person decides where none or a faulty one names it.
pub(crate) fn upstream<'a>(spec: &'a CertificatePolicySpec, signer: &str) -> Option<&'a Rule> {
    rule_of(spec, signer).filter(|rule| policy_of(rule.policy).faults(rule).is_empty())
}

/// The first rule that names a signer.
pub(crate) fn rule_of<'a>(spec: &'a CertificatePolicySpec, signer: &str) -> Option<&'a Rule> {
    spec.rules
        .iter()
        .find(|rule| rule.signers.iter().any(|name| name == signer))
}

/// A rule that has machines prove which they are; one with faults rejects.
fn proof_asked(rule: &Rule) -> Judgement {
    CheckedRule::try_from(rule).map_or(Judgement::Reject, |rule| Judgement::Prove(Box::new(rule)))
}

/// Faults of a rule as far as it decides for machines.
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

#[cfg(test)]
mod tests {
    use super::*;
    use config_attest::testing::{EkKind, World};
    use config_kube::Decides;
    use config_kube::policy::{CertificateRule, EkRule, ImageRule};

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
    fn every_policy_does_what_the_table_of_names_says_of_it() {
        for name in PolicyName::ALL {
            let mut world = World::new();
            let machine = world.machine("worker-1", "10.0.0.11", EkKind::P256);
            world.rule.policy = name;
            let does = match judge(&spec(vec![world.rule.clone()])).unwrap() {
                Judgement::Reject => Decides::Never,
                Judgement::Prove(_) => {
                    let claimant = world.claim(&machine).unwrap();
                    match policy_of(name).decide(
                        &claimant,
                        &Waiting::default(),
                        [192, 0, 2, 1].into(),
                        Timestamp::UNIX_EPOCH,
                    ) {
                        Ruling::Verify => Decides::Verifier,
                        Ruling::Approve(_) => Decides::Nobody,
                        Ruling::Wait(_) => Decides::Person,
                        Ruling::Refuse(_) => Decides::Never,
                    }
                }
            };
            assert_eq!(does, name.decides(), "{name:?}");
        }
    }

    #[test]
    fn where_no_rule_decides_all_are_rejected() {
        assert_eq!(judge(&spec(vec![])), Ok(Judgement::Reject));
    }

    #[test]
    fn cloud_verify_verifies_by_the_first_rule_that_names_the_signer() {
        let mut other = rule(PolicyName::AlwaysReject);
        other.signers = vec!["kubernetes.io/kubelet-serving".to_owned()];
        let judged = judge(&spec(vec![other, rule(PolicyName::CloudVerify)])).unwrap();
        assert!(matches!(judged, Judgement::Prove(_)));
    }

    #[test]
    fn upstreams_signers_wait_for_a_person_unless_told_otherwise() {
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
        assert_eq!(with(PolicyName::InsecureAlwaysApprove), Decides::Nobody);
        // Without evidence there is nothing to verify: a fault, and a person.
        assert_eq!(with(PolicyName::CloudVerify), Decides::Person);
        let mut mixed = rule(PolicyName::CloudVerify);
        mixed.signers.push(signer.to_owned());
        let faults = judge(&spec(vec![mixed])).unwrap_err();
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
        assert!(judge(&spec(vec![client, serving])).is_err());
    }
}
