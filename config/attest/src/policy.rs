//! Rules: raw to checked. A rule with a fault decides nothing, so that a typing error never approves.

use config_kube::policy::{CertificatePolicySpec, PolicyName, Rule};

/// Default lifetime of a certificate, in seconds.
pub const DEFAULT_TTL_SECONDS: u64 = 30 * 60;
/// Shortest lifetime that can still be renewed in time, in seconds.
pub const MIN_TTL_SECONDS: u64 = 10;
/// Longest lifetime, in seconds: a week.
pub const MAX_TTL_SECONDS: u64 = 7 * 24 * 60 * 60;

/// How the endorsement key must be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Require {
    /// Everything that the rule names.
    All,
    /// One of what the rule names.
    Any,
}

/// A rule of policy `cloud-verify` without faults.
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of the rule as the admin writes it")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedRule {
    pub(crate) name: String,
    pub(crate) ek_issuers: Vec<String>,
    pub(crate) ek_inventory: bool,
    pub(crate) ek_require: Require,
    pub(crate) release_keys: Vec<String>,
    pub(crate) min_svn: u64,
    pub(crate) max_concurrent: u32,
    pub(crate) secure_boot: bool,
    pub(crate) allow_unknown: bool,
    pub(crate) config_measured: bool,
    pub(crate) config_inventory: bool,
    pub(crate) ttl_seconds: u64,
    pub(crate) sans_inventory: bool,
    pub(crate) roles: Vec<String>,
}

/// Who decides a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// No rule names the signer, or the rule says so.
    AlwaysReject,
    /// A person.
    Queue,
    /// Nobody looks.
    InsecureAlwaysApprove,
    /// The verifier, by this rule.
    CloudVerify(Box<CheckedRule>),
}

/// What is wrong with a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rule {rule:?}: {}", faults.join("; "))]
pub struct RuleFaults {
    /// The rule's name.
    pub rule: String,
    /// Every fault.
    pub faults: Vec<String>,
}

/// The decision of the first rule that names the signer.
pub fn decide(policy: &CertificatePolicySpec, signer: &str) -> Result<Decision, RuleFaults> {
    let Some(rule) = policy.rules.iter().find(|rule| rule.signers.iter().any(|name| name == signer)) else {
        return Ok(Decision::AlwaysReject);
    };
    match rule.policy {
        PolicyName::AlwaysReject => Ok(Decision::AlwaysReject),
        PolicyName::Queue => Ok(Decision::Queue),
        PolicyName::InsecureAlwaysApprove => Ok(Decision::InsecureAlwaysApprove),
        PolicyName::CloudVerify => CheckedRule::try_from(rule).map(Box::new).map(Decision::CloudVerify),
    }
}

/// Every fault of the rules that the verifier would decide by, for the policy's status.
pub fn faults(policy: &CertificatePolicySpec) -> Vec<String> {
    policy
        .rules
        .iter()
        .filter(|rule| rule.policy == PolicyName::CloudVerify)
        .filter_map(|rule| CheckedRule::try_from(rule).err())
        .map(|faults| faults.to_string())
        .collect()
}

impl CheckedRule {
    /// The rule's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Lifetime of certificates, in seconds.
    pub fn ttl_seconds(&self) -> u64 {
        self.ttl_seconds
    }
}

/// `inventory` or nothing.
fn inventory(text: &str, key: &str, faults: &mut Vec<String>) -> bool {
    match text {
        "inventory" => true,
        "" => false,
        other => {
            faults.push(format!("{key}: found {other:?}, expected \"inventory\" or nothing"));
            false
        }
    }
}

impl TryFrom<&Rule> for CheckedRule {
    type Error = RuleFaults;

    fn try_from(rule: &Rule) -> Result<Self, RuleFaults> {
        let mut faults = Vec::new();
        let ek_inventory = inventory(&rule.ek.hashes, "ek.hashes", &mut faults);
        let ek_require = match rule.ek.require.as_str() {
            "all" | "" => Require::All,
            "any" => Require::Any,
            other => {
                faults.push(format!("ek.require: found {other:?}, expected \"all\" or \"any\""));
                Require::All
            }
        };
        if rule.ek.issuers.is_empty() && !ek_inventory {
            faults.push("ek: name issuers, or set hashes = \"inventory\", or both".to_owned());
        }
        if rule.images.release_keys.is_empty() {
            faults.push("images.release_keys: name at least one release key".to_owned());
        }
        if rule.certificate.roles.is_empty() {
            faults.push("certificate.roles: name at least one role".to_owned());
        }
        for role in &rule.certificate.roles {
            if role != "worker" && role != "master" {
                faults.push(format!("certificate.roles: found {role:?}, expected \"worker\" or \"master\""));
            }
        }
        let ttl_seconds = match rule.certificate.ttl_seconds {
            0 => DEFAULT_TTL_SECONDS,
            ttl if (MIN_TTL_SECONDS..=MAX_TTL_SECONDS).contains(&ttl) => ttl,
            ttl => {
                faults
                    .push(format!("certificate.ttl: found {ttl} s, expected {MIN_TTL_SECONDS} to {MAX_TTL_SECONDS} s"));
                DEFAULT_TTL_SECONDS
            }
        };
        let config_inventory = inventory(&rule.config.digests, "config.digests", &mut faults);
        if config_inventory && !rule.config.measured {
            faults.push("config: digests = \"inventory\" needs measured = true".to_owned());
        }
        let sans_inventory = inventory(&rule.certificate.sans, "certificate.sans", &mut faults);
        if !faults.is_empty() {
            return Err(RuleFaults { rule: rule.name.clone(), faults });
        }
        Ok(Self {
            name: rule.name.clone(),
            ek_issuers: rule.ek.issuers.clone(),
            ek_inventory,
            ek_require,
            release_keys: rule.images.release_keys.clone(),
            min_svn: rule.images.min_svn,
            max_concurrent: rule.images.max_concurrent,
            secure_boot: rule.events.secure_boot,
            allow_unknown: rule.events.allow_unknown,
            config_measured: rule.config.measured,
            config_inventory,
            ttl_seconds,
            sans_inventory,
            roles: rule.certificate.roles.clone(),
        })
    }
}
