//! `Machine`: the inventory of machines that may join, and what each has proved.

use crate::policy::{NodeTaint, PolicyName};
use crate::pratique::{Check, resource};
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
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

/// The admin's description of a machine before it joins.
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
    /// How its endorsement keys are identified.
    pub ek: EkSelector,
    /// `sha256:<hex>` of the configuration events (PCR 13) with any of which it may boot.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub config_digests: Vec<String>,
    /// Labels of its Node, set by the master.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Taints of its Node at creation, set by the master.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// The machine proves nothing: an admin issued its certificates out of band (`pratique issue`),
    /// and it gets no others.
    #[serde(rename = "static", skip_serializing_if = "std::ops::Not::not")]
    pub is_static: bool,
    /// The machine has no TPM and can prove nothing: it joins only through a rule with
    /// `insecure_no_tpm`. A machine that has endorsement keys, or was ever bound to one, never
    /// joins this way.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub insecure_no_tpm: bool,
    /// Set by an admin: do not admit, whatever it proves.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub retired: bool,
    /// Set by an admin: an RFC 3339 time until which an Untrusted machine may attest again; learned
    /// firmware measurements are learned again. The same time works only once. The annotation
    /// `pratique.dev/decided-by` says who set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readmit_until: Option<String>,
}

/// How a machine's endorsement keys are identified.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct EkSelector {
    /// `sha256:<hex>` of the SubjectPublicKeyInfo DER of each EK that the TPM has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hashes: Vec<String>,
    /// Names of EK issuers in the cluster's configuration, any of which must have signed the EK
    /// certificate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub issuers: Vec<String>,
    /// `sha256:<hex>` of EKs that `insecure-always-approve` admitted without verification: a
    /// record. If neither hashes nor issuers are set, the EK identifies the Machine again under
    /// policies that do not verify; `cloud-verify` never uses it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub seen: Vec<String>,
}

/// Why an EK counts as a Machine's, by the Machine's spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EkMatch {
    /// An admin, also by approving a request, listed its hash.
    Hash,
    /// An admin named its issuer and no hashes: it counts with a certificate of that issuer.
    Issuer,
    /// The spec names neither hashes nor issuers, and the EK was admitted without verification.
    /// Only a record: no rule that enforces verification accepts it.
    Seen,
}

impl EkSelector {
    /// Why an EK (`sha256:<hex>`) counts as the Machine's; `None` if it does not. Entries of an
    /// admin take precedence over recorded ones: hashes exclude all other keys, and issuers all
    /// keys without their certificate.
    pub fn match_of(&self, ek: &str) -> Option<EkMatch> {
        fn digits(text: &str) -> &str {
            text.strip_prefix("sha256:").unwrap_or(text)
        }
        let has = |list: &[String]| {
            list.iter()
                .any(|hash| digits(hash).eq_ignore_ascii_case(digits(ek)))
        };
        if !self.hashes.is_empty() {
            return has(&self.hashes).then_some(EkMatch::Hash);
        }
        if !self.issuers.is_empty() {
            return Some(EkMatch::Issuer);
        }
        has(&self.seen).then_some(EkMatch::Seen)
    }
}

/// The trust state of a machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum MachineState {
    /// In the inventory, and has not proved anything yet.
    #[default]
    Pending,
    /// Its last proof was accepted.
    Trusted,
    /// Admitted although it can prove nothing: it has no TPM.
    Unproven,
    /// A renewal failed for a reason that may be harmless; no renewal, no new pods.
    Suspect,
    /// It proved something that the policy refuses; its certificates are denied.
    Untrusted,
}

/// What a machine has proved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct MachineStatus {
    /// Trust state.
    pub state: MachineState,
    /// Code of the last refusal; empty when trusted.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What happened and what to do, for humans.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What an admin must do next, with the exact command; empty if there is nothing to do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub next_step: String,
    /// `sha256:<hex>` of the EK's SubjectPublicKeyInfo to which this Machine is bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_ek: Option<String>,
    /// Name of the EK issuer in the cluster's configuration whose certificate the bound EK had at
    /// the last accepted proof; absent without one. A Machine that lists no hashes has the EK only
    /// while it names this issuer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ek_issuer: Option<String>,
    /// Hex of the AK's TPM Name at the last exchange.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ak_name: Option<String>,
    /// Hex of the NK's TPM Name at the last exchange.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nk_name: Option<String>,
    /// `sha256:<hex>` of the node key's SubjectPublicKeyInfo: certificates over an earlier node key
    /// are denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_key: Option<String>,
    /// The image that it proved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<ProvenImage>,
    /// `sha256:<hex>` of the configuration event that it proved, and its source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<ProvenConfig>,
    /// Its configuration allows privileged pods: they may become root on the machine, so its proofs
    /// do not cover what they do.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub privileged_pods: bool,
    /// Who or what admitted it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// Its current client certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateRef>,
    /// DNS names and IP addresses in its current serving certificate. Under a rule that accepts
    /// claimed addresses, no other machine gets one of them until this one is retired or its
    /// certificates with it have expired.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub serving_names: Vec<String>,
    /// Names in its earlier serving certificates that the current one does not have, each with the
    /// RFC 3339 time until which one of them is good.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub earlier_names: BTreeMap<String, String>,
    /// Version of the TPM's firmware, as four decimal numbers of 16 bits
    /// (`TPMS_ATTEST.firmwareVersion`; TPM 2.0 part 2, 10.12.8).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tpm_firmware: String,
    /// The TPM's counters at the last accepted proof.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters: Option<Counters>,
    /// Hex digests of the learned registers, by index: 0 and 2, and 7 where Secure Boot's databases
    /// are not the release's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pinned_pcrs: BTreeMap<String, String>,
    /// The last `spec.readmitUntil` that was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readmitted: Option<String>,
    /// RFC 3339 time of the last accepted proof.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_attestation: Option<String>,
    /// Labels and taints that the policy's rule set on its Node. Only these are removed when the
    /// rule changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeMarks>,
    /// Every check of the last exchange that was proved to come from this machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// The admin's signed verdict, on the first master only (base64 of the signed bytes and the
    /// signature).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_verdict: Option<AdminVerdict>,
    /// Standard conditions (`Attested`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl MachineStatus {
    /// Sets the condition `Attested`. Its transition time stays where the condition had the same
    /// value before.
    pub fn set_attested(&mut self, good: bool, reason: &str, message: &str, now: Time) {
        let value = if good { "True" } else { "False" };
        let attested = |condition: &Condition| condition.type_ == "Attested";
        let mut before = self.conditions.iter();
        let before = before.find(|one| attested(one) && one.status == value);
        let since = before.map_or(now, |one| one.last_transition_time.clone());
        self.conditions.retain(|one| !attested(one));
        self.conditions.push(Condition {
            type_: "Attested".to_owned(),
            status: value.to_owned(),
            reason: reason.to_owned(),
            message: message.chars().take(1024).collect(),
            last_transition_time: since,
            observed_generation: None,
        });
    }
}

/// Who or what admitted a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Admission {
    /// The policy that admitted it.
    pub policy: PolicyName,
    /// Its rule.
    pub rule: String,
    /// The CertificateSigningRequest that a person approved; empty without approval.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub request: String,
    /// Who approved it, and when; empty without approval.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// Hex digests of the quoted registers that the person approved, by index: a boot with the same
    /// ones needs no new approval.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub registers: BTreeMap<String, String>,
    /// DNS names and IP addresses that the machine claimed or requested then: under `queue`,
    /// further names need a new approval.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

/// Labels and taints that a rule of the policy set on a Node.
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

/// An image, as a machine proved it.
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

/// A configuration, as a machine proved it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProvenConfig {
    /// `nocloud`, `smbios`, …: the label of the event.
    pub source: String,
    /// `sha256:<hex>` of the event.
    pub digest: String,
}

/// An issued certificate.
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
    /// False after an unclean power-off.
    pub safe: bool,
}

/// The admin's signed verdict on the first master, from the bootstrap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AdminVerdict {
    /// Base64 of the exact JSON bytes that were signed.
    pub verdict: String,
    /// Base64 of the DER ECDSA signature by the admin's key.
    pub signature: String,
}

/// Why a Machine's certificates and tokens are denied because of its spec, in any state of its
/// status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revocation {
    /// An admin retired it.
    Retired,
    /// The endorsement key that it is bound to is no longer in its spec.
    Replaced,
    /// It was admitted without a TPM, and its spec no longer allows that.
    NoTpm,
}

impl Machine {
    /// The EK that the Machine is bound to, while the inventory lists it for the Machine: listing
    /// another board's EK or another issuer instead replaces the machine, and removing the EK ends
    /// it. All of them drop the binding.
    pub fn binding(&self) -> Option<&str> {
        let status = self.status.as_ref()?;
        let (bound, ek) = (status.bound_ek.as_deref()?, &self.spec.ek);
        let own = match ek.match_of(bound)? {
            EkMatch::Hash | EkMatch::Seen => true,
            EkMatch::Issuer => status
                .ek_issuer
                .as_ref()
                .is_some_and(|issuer| ek.issuers.contains(issuer)),
        };
        own.then_some(bound)
    }

    /// Whether its status is about a board that an admin has replaced in the spec: it records the
    /// EK of a binding, and the inventory no longer lists that EK for the Machine.
    pub fn is_replaced(&self) -> bool {
        let status = self.status.as_ref();
        status.is_some_and(|status| status.bound_ek.is_some()) && self.binding().is_none()
    }

    /// Why the Machine's certificates and tokens are denied because of its spec; `None` where its
    /// state decides. The deny list and the taints of its Node both follow this.
    pub fn revocation(&self) -> Option<Revocation> {
        if self.spec.retired {
            Some(Revocation::Retired)
        } else if self.is_replaced() {
            Some(Revocation::Replaced)
        } else if self.is_unproven() && !self.may_lack_tpm() {
            Some(Revocation::NoTpm)
        } else {
            None
        }
    }

    /// Whether its last admission was one without a TPM.
    fn is_unproven(&self) -> bool {
        let Some(status) = &self.status else {
            return false;
        };
        let has_key = status.node_key.as_ref().is_some_and(|key| !key.is_empty());
        match status.state {
            MachineState::Unproven => true,
            // It became Suspect since, and its certificates stay valid until they expire.
            MachineState::Suspect => status.bound_ek.is_none() && has_key,
            MachineState::Pending | MachineState::Trusted | MachineState::Untrusted => false,
        }
    }

    /// Whether an admin says that it has no TPM, as for an admission without one.
    fn may_lack_tpm(&self) -> bool {
        let ek = &self.spec.ek;
        self.spec.insecure_no_tpm
            && ek.hashes.is_empty()
            && ek.issuers.is_empty()
            && ek.seen.is_empty()
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

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [MachineState; 5] = [
        MachineState::Pending,
        MachineState::Trusted,
        MachineState::Unproven,
        MachineState::Suspect,
        MachineState::Untrusted,
    ];

    fn machine(state: MachineState) -> Machine {
        let mut machine = Machine::named("m", MachineSpec::default());
        machine.status.get_or_insert_default().state = state;
        machine
    }

    #[test]
    fn a_retired_machine_is_revoked_in_every_state() {
        let mut new = Machine::named("m", MachineSpec::default());
        assert_eq!(new.revocation(), None);
        new.spec.retired = true;
        assert_eq!(new.revocation(), Some(Revocation::Retired));
        for state in STATES {
            let mut retired = machine(state);
            retired.spec.retired = true;
            assert_eq!(retired.revocation(), Some(Revocation::Retired), "{state:?}");
        }
    }

    #[test]
    fn a_machine_is_replaced_once_its_spec_lists_its_endorsement_key_no_longer() {
        for state in STATES {
            let mut bound = machine(state);
            bound.spec.ek.hashes = vec!["sha256:01".to_owned()];
            let status = bound.status.get_or_insert_default();
            status.bound_ek = Some("sha256:01".to_owned());
            let is_allowed = state != MachineState::Unproven;
            assert_eq!(bound.revocation().is_none(), is_allowed, "{state:?}");
            for listed in [vec![], vec!["sha256:02".to_owned()]] {
                let mut replaced = bound.clone();
                replaced.spec.ek.hashes = listed;
                assert!(replaced.is_replaced());
                assert_eq!(replaced.revocation(), Some(Revocation::Replaced));
            }
        }
    }

    #[test]
    fn a_machine_admitted_without_a_tpm_is_revoked_once_its_spec_forbids_that() {
        let ends: [fn(&mut MachineSpec); 4] = [
            |spec| spec.insecure_no_tpm = false,
            |spec| spec.ek.hashes.push("sha256:01".to_owned()),
            |spec| spec.ek.issuers.push("maker".to_owned()),
            |spec| spec.ek.seen.push("sha256:01".to_owned()),
        ];
        for state in [MachineState::Unproven, MachineState::Suspect] {
            let mut without = machine(state);
            without.spec.insecure_no_tpm = true;
            without.status.get_or_insert_default().node_key = Some("sha256:aa".to_owned());
            assert_eq!(without.revocation(), None, "{state:?}");
            for end in ends {
                let mut ended = without.clone();
                end(&mut ended.spec);
                assert_eq!(ended.revocation(), Some(Revocation::NoTpm), "{state:?}");
            }
        }
        // Refused at its first proof: nothing was issued to it.
        for key in [None, Some(String::new())] {
            let mut refused = machine(MachineState::Suspect);
            refused.status.get_or_insert_default().node_key = key;
            assert_eq!(refused.revocation(), None);
        }
    }
}
