//! `Machine`: the inventory of machines that may join, and what each has proved.

use crate::policy::{NodeTaint, PolicyName};
use crate::pratique::{Check, resource};
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

resource!(
    Machine,
    "Machine",
    "machines",
    MachineSpec,
    MachineStatus,
    "One machine that may become a node: who it is, and what it proved last."
);

/// What the admin says of a machine before it comes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct MachineSpec {
    /// `worker` or `master`; must equal the role of the image that the machine boots.
    pub role: String,
    /// Name of its Node; the Machine's own name where empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// IP addresses and DNS names that its serving certificate may carry.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// How its endorsement keys are known.
    pub ek: EkSelector,
    /// `sha256:<hex>` of the configuration event (PCR 13) that it may boot with; any of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub config_digests: Vec<String>,
    /// Labels of its Node, set by the master.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Taints of its Node at creation, set by the master.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// The machine proves nothing: an admin issued its certificates out of band (`pratique issue`), and it gets no others.
    #[serde(rename = "static", skip_serializing_if = "std::ops::Not::not")]
    pub is_static: bool,
    /// The machine has no TPM, so it can prove nothing: it joins only by a rule that says `insecure_no_tpm`. One that has
    /// endorsement keys, or was ever bound to one, never joins this way.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub insecure_no_tpm: bool,
    /// Admin's act: do not admit, whatever it proves.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub retired: bool,
    /// Admin's act: an RFC 3339 time until which an Untrusted machine may prove itself anew; what it learned of its firmware
    /// is learned again. An act counts once, then the same time is of no use. The annotation `pratique.dev/decided-by` says who
    /// it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readmit_until: Option<String>,
}

/// How a machine's endorsement keys are known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct EkSelector {
    /// `sha256:<hex>` of the SubjectPublicKeyInfo DER of each EK that the TPM has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hashes: Vec<String>,
    /// Names of EK issuers in the cluster's configuration, any of which must have signed the EK certificate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub issuers: Vec<String>,
    /// `sha256:<hex>` of EKs that `insecure-always-approve` let in at sight: a record. Where neither hashes nor issuers are
    /// named, they find the Machine again under the policies that do not verify; `cloud-verify` never takes them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub seen: Vec<String>,
}

/// On what an EK counts as a Machine's, by the Machine's own spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EkWord {
    /// An admin, or a person who approved it, listed its hash.
    Hash,
    /// An admin named its issuer, and no hashes: it counts with a certificate of that issuer.
    Issuer,
    /// Nobody named anything, and it was let in at sight. That is a record: no rule that enforces its verdict takes it.
    Seen,
}

impl EkSelector {
    /// On what an EK (`sha256:<hex>`) counts as the Machine's; none where it does not. What an admin says goes before what was
    /// seen: hashes shut out all other keys, and issuers all keys without their certificate.
    pub fn word_on(&self, ek: &str) -> Option<EkWord> {
        fn digits(text: &str) -> &str {
            text.strip_prefix("sha256:").unwrap_or(text)
        }
        let has = |list: &[String]| {
            list.iter()
                .any(|hash| digits(hash).eq_ignore_ascii_case(digits(ek)))
        };
        if !self.hashes.is_empty() {
            return has(&self.hashes).then_some(EkWord::Hash);
        }
        if !self.issuers.is_empty() {
            return Some(EkWord::Issuer);
        }
        has(&self.seen).then_some(EkWord::Seen)
    }
}

/// Where a machine stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum MachineState {
    /// Known, and has not proved anything yet.
    #[default]
    Pending,
    /// Its last proof was accepted.
    Trusted,
    /// Let in although it can prove nothing: it has no TPM.
    Unproven,
    /// A renewal failed in a way that may be innocent; no renewal, no new pods.
    Suspect,
    /// It proved something that policy refuses; its certificates are denied.
    Untrusted,
}

/// What a machine has proved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct MachineStatus {
    /// Where it stands.
    pub state: MachineState,
    /// Code of the last refusal; empty when trusted.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What happened and what to do, for a person.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What an admin does next, with the exact command; empty when there is nothing to do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub next_step: String,
    /// `sha256:<hex>` of the EK's SubjectPublicKeyInfo to which this Machine is bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_ek: Option<String>,
    /// Hex of the AK's TPM Name at the last exchange.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ak_name: Option<String>,
    /// Hex of the NK's TPM Name at the last exchange.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nk_name: Option<String>,
    /// `sha256:<hex>` of the node key's SubjectPublicKeyInfo: certificates over an earlier node key are denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_key: Option<String>,
    /// The image that it proved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<ProvenImage>,
    /// `sha256:<hex>` of the configuration event that it proved, and where it came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<ProvenConfig>,
    /// Its configuration lets pods be privileged: they may become root of it, and what it proved ends there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub privileged_pods: bool,
    /// On whose word it was admitted last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// The client certificate that it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateRef>,
    /// DNS names and IP addresses of the serving certificate that it holds. Under a rule that takes claimed addresses no other
    /// machine gets one of them, until this one retires, gives it up at its next proof, or its certificate ends.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub serving_names: Vec<String>,
    /// Version of the TPM's firmware, as four decimal numbers of 16 bits (`TPMS_ATTEST.firmwareVersion`; TPM 2.0 part 2, 10.12.8).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tpm_firmware: String,
    /// The TPM's counters at the last accepted proof.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters: Option<Counters>,
    /// Hex digests of the learned registers, by index: 0 and 2, and 7 where Secure Boot's databases are not the release's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pinned_pcrs: BTreeMap<String, String>,
    /// The last `spec.readmitUntil` that was made use of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readmitted: Option<String>,
    /// RFC 3339 time of the last accepted proof.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_attestation: Option<String>,
    /// What the policy's rule put on its Node. No more than this is taken back when the rule changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeMarks>,
    /// Every check of the last exchange that was proved to be this machine's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// The admin's signed verdict, on the first master only (base64 of the signed bytes and the signature).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_verdict: Option<AdminVerdict>,
    /// Standard conditions (`Attested`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// On whose word a machine was admitted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Admission {
    /// The policy that admitted it.
    pub policy: PolicyName,
    /// Its rule.
    pub rule: String,
    /// The CertificateSigningRequest that a person approved; empty where none did.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub request: String,
    /// Who approved it, and when; empty where nobody did.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// Hex digests of the quoted registers that the person approved, by index: a boot into the same needs no person again.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub registers: BTreeMap<String, String>,
    /// DNS names and IP addresses that the machine claimed or asked for then: under `queue` more than these need a person again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

/// What a rule of the policy put on a Node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct NodeMarks {
    /// The rule.
    pub rule: String,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Taints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<NodeTaint>,
}

/// An image as proved by a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProvenImage {
    /// The release's id, the `ImageRelease`'s name.
    pub id: String,
    /// `worker` or `master`.
    pub role: String,
    /// Security version number.
    pub svn: u64,
}

/// A configuration as proved by a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProvenConfig {
    /// `nocloud`, `smbios`, …: the label of the event.
    pub source: String,
    /// `sha256:<hex>` of the event.
    pub digest: String,
}

/// A certificate that was issued.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CertificateRef {
    /// Hex serial number.
    pub serial: String,
    /// RFC 3339 time.
    pub not_after: String,
}

/// `TPMS_CLOCK_INFO` of an accepted quote (TPM 2.0 part 2, 10.11.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Counters {
    /// TPM resets since manufacture.
    pub reset_count: u32,
    /// TPM restarts and resumes since the last reset.
    pub restart_count: u32,
    /// Milliseconds.
    pub clock: u64,
    /// False after an unorderly power-off.
    pub safe: bool,
}

/// What the admin signed at bootstrap for the first master.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AdminVerdict {
    /// Base64 of the exact JSON bytes that were signed.
    pub verdict: String,
    /// Base64 of the DER ECDSA signature by the admin's key.
    pub signature: String,
}

impl Machine {
    /// The EK that the Machine is bound to, as long as the inventory has it for the Machine's: listing another board's EK in
    /// its place is what replaces a machine, and taking its EK off is what ends one. Both drop the binding.
    pub fn binding(&self) -> Option<&str> {
        let bound = self.status.as_ref()?.bound_ek.as_deref()?;
        self.spec.ek.word_on(bound).is_some().then_some(bound)
    }

    /// The name of the Node that this machine becomes.
    pub fn node_name(&self) -> &str {
        self.spec
            .node_name
            .as_deref()
            .or(self.metadata.name.as_deref())
            .unwrap_or_default()
    }
}
