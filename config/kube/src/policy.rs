//! `CertificatePolicy`: ordered rules that decide certificate requests.

use crate::pratique::resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Name of the CertificatePolicy in force; all others are drafts, whose verdicts are only shown.
pub const POLICY_NAME: &str = "cluster";

resource!(
    CertificatePolicy,
    "CertificatePolicy",
    "certificatepolicies",
    CertificatePolicySpec,
    CertificatePolicyStatus,
    "The rules by which certificate requests are decided, first match first."
);

/// Ordered rules; the first whose signers contain the request's signer decides.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct CertificatePolicySpec {
    /// The rules, in order.
    pub rules: Vec<Rule>,
}

impl CertificatePolicySpec {
    /// The first rule that names a signer: it decides the signer's requests.
    pub fn rule_for(&self, signer: &str) -> Option<&Rule> {
        self.rules
            .iter()
            .find(|rule| rule.signers.iter().any(|name| name == signer))
    }
}

/// What the master found in the policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct CertificatePolicyStatus {
    /// Faults; a policy with faults is not used.
    pub faults: Vec<String>,
    /// Names that the cluster's configuration does not define: they match nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
    /// For a draft: its verdict on the last exchange of each machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dry_run: Vec<DryRun>,
}

/// The verdict of a draft on one machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct DryRun {
    /// The Machine, or the claimed node name if there is no Machine.
    pub machine: String,
    /// `Accepted`, `Queued` or `Refused`.
    pub verdict: String,
    /// Code of the refusal; empty without one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub code: String,
    /// The reason, and what would not be proved.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// RFC 3339 time of the exchange.
    pub exchanged: String,
}

/// A rule's decision on a request to one of upstream's signers, under a policy without a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    /// Whether the request is approved; else it is denied.
    pub approved: bool,
    /// Reason of the condition.
    pub reason: &'static str,
    /// Message of the condition.
    pub message: String,
}

/// Who decides under a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decides {
    /// All requests are refused.
    Never,
    /// A person, who is shown what was not proved.
    Person,
    /// No one: every request is approved.
    Always,
    /// The verifier: a failed check refuses.
    Verifier,
}

impl Decides {
    /// Whether a machine can be admitted without proving everything.
    pub fn takes_unproven(self) -> bool {
        match self {
            Self::Person | Self::Always => true,
            Self::Never | Self::Verifier => false,
        }
    }
}

/// Generates [`PolicyName`] from one line per policy: its name in rules, and who decides under it.
macro_rules! policies {
    ($($(#[$about:meta])* $policy:ident = $name:literal, $decides:ident;)+) => {
        /// The stock policies.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum PolicyName {
            $($(#[$about])* #[serde(rename = $name)] $policy,)+
        }

        impl PolicyName {
            /// All policies.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$policy),+];

            /// Its name in rules.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$policy => $name,)+ }
            }

            /// Who decides.
            pub fn decides(self) -> Decides {
                match self { $(Self::$policy => Decides::$decides,)+ }
            }
        }
    };
}

policies! {
    /// Refuses.
    #[default]
    AlwaysReject = "always-reject", Never;
    /// Queues requests for a person.
    Queue = "queue", Person;
    /// Approves every request, and marks the node as insecure.
    InsecureAlwaysApprove = "insecure-always-approve", Always;
    /// Verifies TPM evidence (cloud-verify/v1).
    CloudVerify = "cloud-verify", Verifier;
}

/// One rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// Name, shown in verdicts.
    pub name: String,
    /// The signers whose requests it decides.
    pub signers: Vec<String>,
    /// The policy that decides.
    pub policy: PolicyName,
    /// Accepted endorsement keys.
    pub ek: EkRule,
    /// Accepted images.
    pub images: ImageRule,
    /// Accepted boot events.
    pub events: EventRule,
    /// Accepted configurations.
    pub config: ConfigRule,
    /// The issued certificates.
    pub certificate: CertificateRule,
    /// How `queue` keeps requests.
    #[serde(skip_serializing_if = "QueueRule::is_usual")]
    pub queue: QueueRule,
    /// Machines without a TPM, which can prove nothing, are admitted too; with `queue` and
    /// `insecure-always-approve` only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub insecure_no_tpm: bool,
    /// Labels and taints of the Nodes of machines under the rule.
    #[serde(skip_serializing_if = "NodeRule::is_usual")]
    pub node: NodeRule,
}

/// What the master sets on the Nodes of a rule's machines, and keeps set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct NodeRule {
    /// Labels; those of the Machine take precedence.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Taints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<NodeTaint>,
    /// Whether the node may create its Node object. By default a machine may not (the master
    /// creates it), and a kubelet under upstream's signers may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registers_itself: Option<bool>,
}

impl NodeRule {
    fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

/// A taint that a rule sets; key and effect identify it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct NodeTaint {
    /// Key.
    pub key: String,
    /// Value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

impl fmt::Display for NodeTaint {
    /// In the notation of kubelet and kubectl: `key=value:Effect`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let equals = if self.value.is_empty() { "" } else { "=" };
        write!(f, "{}{equals}{}:{}", self.key, self.value, self.effect)
    }
}

/// How `queue` keeps requests for a person.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct QueueRule {
    /// Seconds after which a waiting request is dropped; 0: the default of a day.
    pub expires_seconds: u64,
    /// Maximum number of waiting requests; 0: the default of 100.
    pub max_waiting: u32,
}

impl QueueRule {
    fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

/// The endorsement keys that a rule accepts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct EkRule {
    /// Names of EK issuers of the cluster's configuration; empty: no certificate chain is required.
    pub issuers: Vec<String>,
    /// `inventory`: the EK's hash must be listed in its Machine. Empty: not required.
    pub hashes: String,
    /// `all` (issuer and hash) or `any`.
    pub require: String,
    /// Lowest version of the TPM's firmware, by the name of the EK's issuer: one to four decimal
    /// numbers of 16 bits, as in `7.85.4555.0`. If any is set, a machine whose EK certificate names
    /// no issuer is refused.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub min_firmware: BTreeMap<String, String>,
}

/// Version of a TPM's firmware: `TPMS_ATTEST.firmwareVersion` (TPM 2.0 part 2, 10.12.8), whose two
/// halves are `TPM_PT_FIRMWARE_VERSION_1` and `_2`. Only versions of one manufacturer can be
/// compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TpmVersion(pub u64);

impl fmt::Display for TpmVersion {
    /// Four decimal numbers of 16 bits, the highest first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |shift: u32| (self.0 >> shift) & 0xffff;
        write!(f, "{}.{}.{}.{}", part(48), part(32), part(16), part(0))
    }
}

/// A text that is not a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAVersion;

impl fmt::Display for NotAVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected one to four decimal numbers of at most 65535 with dots between them")
    }
}

impl std::error::Error for NotAVersion {}

impl std::str::FromStr for TpmVersion {
    type Err = NotAVersion;

    /// One to four decimal numbers; missing ones are zero.
    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let mut parts = [0_u16; 4];
        let mut found = text.split('.');
        for (part, text) in parts.iter_mut().zip(found.by_ref()) {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            match text.parse() {
                Ok(number) if digits => *part = number,
                _ => return Err(NotAVersion),
            }
        }
        if found.next().is_some() {
            return Err(NotAVersion);
        }
        Ok(Self(
            parts
                .into_iter()
                .fold(0, |whole, part| whole << 16 | u64::from(part)),
        ))
    }
}

/// The images that a rule accepts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ImageRule {
    /// Names of release keys of the cluster's configuration, any of which must have signed the
    /// image.
    pub release_keys: Vec<String>,
    /// Minimum security version number.
    pub min_svn: u64,
    /// How many images are admitted beside the newest of their role, ordered by SVN and build time;
    /// 0: no limit.
    pub max_concurrent: u32,
}

/// The boot events that a rule accepts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct EventRule {
    /// Secure Boot must have been on.
    pub secure_boot: bool,
    /// Whether events in quoted registers that the policy does not know are accepted.
    pub allow_unknown: bool,
}

/// The configurations that a rule accepts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigRule {
    /// The configuration must have been measured into PCR 13.
    pub measured: bool,
    /// `inventory`: its digest must be listed in the Machine. Empty: any measured one.
    pub digests: String,
    /// `allow`: also configurations that allow privileged pods. Empty, or `refuse`: none of these.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub privileged_pods: String,
}

/// The certificates that a rule issues.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateRule {
    /// Lifetime of certificates in seconds; 0: the default of 30 minutes.
    pub ttl_seconds: u64,
    /// `inventory`: serving names and addresses must be listed in the Machine.
    pub sans: String,
    /// Roles that the rule admits.
    pub roles: Vec<String>,
}
