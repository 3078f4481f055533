//! Reference values of one exchange: the machines, releases and policy that its evidence is checked
//! against.

use crate::inventory::ReferenceTables;
use crate::policy::{HelloDecision, Policy, decide_hello, policy_of};
use config_attest::Refusal;
use config_attest::policy::CheckedRule;
use config_attest::release::KnownRelease;
use config_kube::CertificatePolicySpec;
use config_protocol::Code;
use std::sync::Arc;

/// A consistent snapshot of the reference values. A change of the policy while evidence is checked
/// does not reach it.
pub(crate) struct ReferenceValues {
    pub(crate) machines: Arc<config_attest::Inventory>,
    pub(crate) releases: Arc<Vec<KnownRelease>>,
    /// The rule that decides.
    pub(crate) rule: Box<CheckedRule>,
    /// The rule's policy.
    pub(crate) policy: &'static dyn Policy,
    /// `metadata.generation` of the CertificatePolicy.
    pub(crate) generation: u64,
}

impl ReferenceValues {
    /// The values under the policy in force.
    ///
    /// # Errors
    /// `POLICY_REJECTS` where there is no policy or it rejects every machine, `POLICY_INVALID`
    /// where it has faults.
    pub(crate) fn current(inventory: &ReferenceTables) -> Result<Self, Box<Refusal>> {
        let policy = inventory
            .policy()
            .ok_or_else(|| Box::new(Refusal::anonymous(Code::PolicyRejects)))?;
        let generation = policy
            .metadata
            .generation
            .and_then(|g| u64::try_from(g).ok())
            .unwrap_or(0);
        Self::under(&policy.spec, generation, inventory)
    }

    /// The values under a given policy.
    ///
    /// # Errors
    /// As [`ReferenceValues::current`].
    pub(crate) fn under(
        spec: &CertificatePolicySpec,
        generation: u64,
        inventory: &ReferenceTables,
    ) -> Result<Self, Box<Refusal>> {
        let refuse = |code| Box::new(Refusal::anonymous(code));
        let rule = match decide_hello(spec) {
            Ok(HelloDecision::Attest(rule)) => rule,
            Ok(HelloDecision::Reject) => return Err(refuse(Code::PolicyRejects)),
            Err(_faults) => return Err(refuse(Code::PolicyInvalid)),
        };
        Ok(Self {
            machines: inventory.machines(),
            releases: inventory.known_releases(),
            policy: policy_of(rule.policy()),
            rule,
            generation,
        })
    }
}
