//! Rules: raw to checked. A rule with a fault decides nothing, so that a typing error never
//! approves.

use config_certificates::EkIssuer;
use config_kube::policy::{Decides, NotAVersion, PolicyName, QueueRule, Rule, TpmVersion};
use std::collections::BTreeMap;

/// Default lifetime of a certificate, in seconds.
pub const DEFAULT_TTL_SECONDS: u64 = 30 * 60;
/// Shortest lifetime that can still be renewed in time, in seconds.
pub const MIN_TTL_SECONDS: u64 = 10;
/// Longest lifetime, in seconds: a day, as in documents; a proof that is older says too little.
pub const MAX_TTL_SECONDS: u64 = 24 * 60 * 60;

/// How the rule must know the endorsement key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Require {
    /// Everything that the rule names.
    All,
    /// One of what the rule names.
    Any,
}

/// How long a request waits for a person, in seconds, where the rule does not say: a day.
pub const DEFAULT_WAIT_SECONDS: u64 = 24 * 60 * 60;
/// Longest wait, in seconds: a day, after which undecided requests are dropped whatever a rule says
/// (as upstream does).
pub const MAX_WAIT_SECONDS: u64 = DEFAULT_WAIT_SECONDS;
/// Shortest wait, in seconds.
pub const MIN_WAIT_SECONDS: u64 = 10;
/// How many requests wait at once where the rule does not say.
pub const DEFAULT_WAITING: usize = 100;
/// Most requests that may wait at once.
pub const MAX_WAITING: usize = 10_000;

/// A rule for machines without faults.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the rule as the admin writes it"
)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedRule {
    pub(crate) name: String,
    pub(crate) policy: PolicyName,
    pub(crate) expires_seconds: u64,
    pub(crate) max_waiting: usize,
    pub(crate) ek_issuers: Vec<String>,
    pub(crate) ek_inventory: bool,
    pub(crate) ek_require: Require,
    pub(crate) tpm_firmware: BTreeMap<String, TpmVersion>,
    pub(crate) release_keys: Vec<String>,
    pub(crate) min_svn: u64,
    pub(crate) max_concurrent: u32,
    pub(crate) secure_boot: bool,
    pub(crate) allow_unknown: bool,
    pub(crate) config_measured: bool,
    pub(crate) config_inventory: bool,
    pub(crate) privileged_pods: bool,
    pub(crate) ttl_seconds: u64,
    pub(crate) sans_inventory: bool,
    pub(crate) roles: Vec<String>,
    pub(crate) insecure_no_tpm: bool,
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

impl CheckedRule {
    /// The rule's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The rule's policy.
    pub fn policy(&self) -> PolicyName {
        self.policy
    }

    /// Who decides, once the machine has proved which it is.
    pub fn decides(&self) -> Decides {
        self.policy.decides()
    }

    /// Seconds that a request waits for a person.
    pub fn expires_seconds(&self) -> u64 {
        self.expires_seconds
    }

    /// Most requests that wait for a person.
    pub fn max_waiting(&self) -> usize {
        self.max_waiting
    }

    /// Whether a failed check refuses every machine.
    pub(crate) fn enforces(&self) -> bool {
        !self.decides().takes_unproven()
    }

    /// Whether machines without a TPM are admitted.
    pub(crate) fn admits_without_tpm(&self) -> bool {
        self.insecure_no_tpm && !self.enforces()
    }

    /// Lifetime of certificates, in seconds.
    pub fn ttl_seconds(&self) -> u64 {
        self.ttl_seconds
    }

    /// Whether releases signed with this key of the configuration count. A rule that does not
    /// enforce accepts every key.
    pub(crate) fn takes_release_key(&self, name: &String) -> bool {
        !self.enforces() || self.release_keys.contains(name)
    }

    /// The configured EK issuers that the rule accepts.
    pub(crate) fn issuers<'a>(&'a self, configured: &'a [EkIssuer]) -> Vec<&'a str> {
        if self.enforces() {
            self.ek_issuers.iter().map(String::as_str).collect()
        } else {
            configured.iter().map(EkIssuer::name).collect()
        }
    }
}

/// A number of a rule: its key, its value where the rule does not say, its bounds.
struct Bounded {
    key: &'static str,
    default: u64,
    min: u64,
    max: u64,
}

impl Bounded {
    /// The value; 0 stands for a key that the rule does not have.
    fn check(&self, found: u64, faults: &mut Vec<String>) -> u64 {
        let Self {
            key,
            default,
            min,
            max,
        } = *self;
        match found {
            0 => default,
            found if (min..=max).contains(&found) => found,
            // The default is never used: a rule with a fault is refused as a whole.
            found => {
                faults.push(format!("{key}: found {found}, expected {min} to {max}"));
                default
            }
        }
    }
}

const EXPIRES: Bounded = Bounded {
    key: "queue.expires",
    default: DEFAULT_WAIT_SECONDS,
    min: MIN_WAIT_SECONDS,
    max: MAX_WAIT_SECONDS,
};
const WAITING: Bounded = Bounded {
    key: "queue.max_waiting",
    default: DEFAULT_WAITING as u64,
    min: 1,
    max: MAX_WAITING as u64,
};
const TTL: Bounded = Bounded {
    key: "certificate.ttl",
    default: DEFAULT_TTL_SECONDS,
    min: MIN_TTL_SECONDS,
    max: MAX_TTL_SECONDS,
};

/// How long requests wait for a person, in seconds, and how many may wait.
fn waiting(queue: &QueueRule, faults: &mut Vec<String>) -> (u64, usize) {
    let expires = EXPIRES.check(queue.expires_seconds, faults);
    let most = WAITING.check(u64::from(queue.max_waiting), faults);
    (expires, usize::try_from(most).unwrap_or(DEFAULT_WAITING))
}

/// Which checks run, and which must pass: those of the rule if it enforces, otherwise
/// [`STRICTEST`].
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the rule as the admin writes it"
)]
struct Conditions {
    ek_inventory: bool,
    ek_require: Require,
    secure_boot: bool,
    allow_unknown: bool,
    config_measured: bool,
    config_inventory: bool,
    privileged_pods: bool,
}

/// Under a rule that does not enforce, every check runs: failures are shown to the admin who
/// decides or, where every request is approved, in the Machine's status.
const STRICTEST: Conditions = Conditions {
    ek_inventory: true,
    ek_require: Require::All,
    secure_boot: true,
    allow_unknown: false,
    config_measured: true,
    config_inventory: true,
    privileged_pods: false,
};

fn conditions(rule: &Rule, faults: &mut Vec<String>) -> Conditions {
    let ek_inventory = inventory(&rule.ek.hashes, "ek.hashes", faults);
    let ek_require = match rule.ek.require.as_str() {
        "all" | "" => Require::All,
        "any" => Require::Any,
        other => {
            faults.push(format!(
                "ek.require: found {other:?}, expected \"all\" or \"any\""
            ));
            Require::All
        }
    };
    // A rule with neither would accept every TPM.
    if rule.ek.issuers.is_empty() && !ek_inventory {
        faults.push("ek: name issuers, or set hashes = \"inventory\", or both".to_owned());
    }
    if rule.images.release_keys.is_empty() {
        faults.push("images.release_keys: name at least one release key".to_owned());
    }
    let config_inventory = inventory(&rule.config.digests, "config.digests", faults);
    // Without a measurement there is no digest to look up.
    if config_inventory && !rule.config.measured {
        faults.push("config: digests = \"inventory\" needs measured = true".to_owned());
    }
    let privileged_pods = match rule.config.privileged_pods.as_str() {
        "allow" => true,
        "refuse" | "" => false,
        other => {
            faults.push(format!(
                "config.privileged_pods: found {other:?}, expected \"refuse\" or \"allow\""
            ));
            false
        }
    };
    Conditions {
        ek_inventory,
        ek_require,
        secure_boot: rule.events.secure_boot,
        allow_unknown: rule.events.allow_unknown,
        config_measured: rule.config.measured,
        config_inventory,
        privileged_pods,
    }
}

/// The minimum versions of the TPM's firmware, by issuer. If the rule names issuers, each must be
/// one of them.
fn floors(rule: &Rule, faults: &mut Vec<String>) -> BTreeMap<String, TpmVersion> {
    let mut floors = BTreeMap::new();
    for (issuer, text) in &rule.ek.min_firmware {
        let key = format!("ek.min_firmware.{issuer}");
        if !rule.ek.issuers.is_empty() && !rule.ek.issuers.contains(issuer) {
            faults.push(format!("{key}: ek.issuers does not name `{issuer}`"));
        }
        match text.parse() {
            Ok(version) => drop(floors.insert(issuer.clone(), version)),
            Err(NotAVersion) => faults.push(format!("{key}: found {text:?}, {NotAVersion}")),
        }
    }
    // Without issuers no certificate is checked, so the manufacturer is unknown.
    if !floors.is_empty()
        && rule.ek.issuers.is_empty()
        && rule.policy.decides() == Decides::Verifier
    {
        faults
            .push("ek.min_firmware: name the issuers in ek.issuers, whose certificates identify the manufacturer".to_owned());
    }
    floors
}

/// The roles of the certificate, each of which a node can have.
fn roles(rule: &Rule, faults: &mut Vec<String>) {
    if rule.certificate.roles.is_empty() {
        faults.push("certificate.roles: name at least one role".to_owned());
    }
    for role in &rule.certificate.roles {
        if role != "worker" && role != "master" {
            faults.push(format!(
                "certificate.roles: found {role:?}, expected \"worker\" or \"master\""
            ));
        }
    }
}

/// Whether a key of a rule says `inventory`; otherwise it must be empty.
fn inventory(text: &str, key: &str, faults: &mut Vec<String>) -> bool {
    match text {
        "inventory" => true,
        "" => false,
        other => {
            faults.push(format!(
                "{key}: found {other:?}, expected \"inventory\" or nothing"
            ));
            false
        }
    }
}

impl TryFrom<&Rule> for CheckedRule {
    type Error = RuleFaults;

    fn try_from(rule: &Rule) -> Result<Self, RuleFaults> {
        let mut faults = Vec::new();
        let decides = rule.policy.decides();
        if decides == Decides::Never {
            faults.push(format!(
                "policy: found {:?}, which asks a machine for nothing",
                rule.policy.as_str()
            ));
        }
        // Settings of a queue under a policy without one are ignored, and not checked.
        let queue = if decides == Decides::Person {
            rule.queue.clone()
        } else {
            QueueRule::default()
        };
        let (expires_seconds, max_waiting) = waiting(&queue, &mut faults);
        // The conditions of a rule that does not enforce are not read: all checks run for the
        // person's information.
        let conditions = if decides.takes_unproven() {
            STRICTEST
        } else {
            conditions(rule, &mut faults)
        };
        // These hold under every policy: they limit the certificate, not the decision.
        roles(rule, &mut faults);
        let ttl_seconds = TTL.check(rule.certificate.ttl_seconds, &mut faults);
        let tpm_firmware = floors(rule, &mut faults);
        let sans_inventory = inventory(&rule.certificate.sans, "certificate.sans", &mut faults);
        if rule.insecure_no_tpm && !decides.takes_unproven() {
            faults.push(
                "insecure_no_tpm: found true, expected no such key: there is nothing to verify; set policy = \"queue\" or take it out"
                    .to_owned(),
            );
        }
        if !faults.is_empty() {
            return Err(RuleFaults {
                rule: rule.name.clone(),
                faults,
            });
        }
        Ok(Self {
            name: rule.name.clone(),
            policy: rule.policy,
            expires_seconds,
            max_waiting,
            ek_issuers: rule.ek.issuers.clone(),
            ek_inventory: conditions.ek_inventory,
            ek_require: conditions.ek_require,
            tpm_firmware,
            release_keys: rule.images.release_keys.clone(),
            min_svn: rule.images.min_svn,
            max_concurrent: rule.images.max_concurrent,
            secure_boot: conditions.secure_boot,
            allow_unknown: conditions.allow_unknown,
            config_measured: conditions.config_measured,
            config_inventory: conditions.config_inventory,
            privileged_pods: conditions.privileged_pods,
            ttl_seconds,
            sans_inventory,
            roles: rule.certificate.roles.clone(),
            insecure_no_tpm: rule.insecure_no_tpm,
        })
    }
}
