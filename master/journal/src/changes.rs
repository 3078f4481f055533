//! What an admin changed between two versions of a Machine.

use config_kube::{Machine, MachineSpec};

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecChange {
    /// Its name, which is an event's reason.
    pub reason: &'static str,
    /// A sentence about it.
    pub message: String,
}

impl SpecChange {
    fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

/// A Machine before and after a write.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineChange {
    /// The version before.
    pub before: Machine,
    /// The written version.
    pub after: Machine,
}

/// The changes between two versions of a Machine that only an admin makes; `None` stands for a
/// missing Machine.
pub fn spec_changes(old: Option<&Machine>, new: Option<&Machine>) -> Vec<SpecChange> {
    let (old, new) = match (old, new) {
        (_, None) => {
            let message = "the machine is no longer in the inventory";
            return vec![SpecChange::new("Removed", message)];
        }
        (None, Some(_)) => {
            return vec![SpecChange::new("Added", "the machine is in the inventory")];
        }
        (Some(old), Some(new)) => (&old.spec, &new.spec),
    };
    let mut changes = membership(old, new);
    changes.extend(evidence(old, new));
    if old.node_name != new.node_name {
        changes.push(SpecChange::new(
            "NodeName",
            format!(
                "its node is {}",
                new.node_name
                    .as_deref()
                    .unwrap_or("called as the machine is")
            ),
        ));
    }
    changes
}

/// SHA-256 of a part of an object in JSON.
pub(crate) fn digest_of(part: &impl serde::Serialize) -> String {
    // These types have no map with keys that JSON can't write.
    config_tpm::Digest::of(&serde_json::to_vec(part).unwrap_or_default()).to_text()
}

/// A digest of the part of a Machine whose changes [`spec_changes`] finds.
pub(crate) fn decided_digest(machine: &Machine) -> String {
    let mut decided = machine.spec.clone();
    // Where it is and what its Node is marked with is no decision on whether it is trusted.
    decided.addresses.clear();
    decided.labels.clear();
    decided.taints.clear();
    digest_of(&decided)
}

/// Changes of whether, until when and in which role the machine may be part of the cluster.
fn membership(old: &MachineSpec, new: &MachineSpec) -> Vec<SpecChange> {
    let mut changes = Vec::new();
    changes.extend(switched(
        old.retired,
        new.retired,
        SpecChange::new("Retired", "the machine is retired"),
        SpecChange::new("Unretired", "the machine may join again"),
    ));
    if old.readmit_until != new.readmit_until {
        changes.push(match &new.readmit_until {
            Some(until) => SpecChange::new(
                "Waived",
                format!("until {until} the machine may prove itself again, and its firmware is pinned again"),
            ),
            None => SpecChange::new("WaiverWithdrawn", "the machine may no longer prove itself again"),
        });
    }
    if old.role != new.role {
        let message = format!("the machine is a {} from now on", new.role);
        changes.push(SpecChange::new("Role", message));
    }
    changes
}

/// Changes of what the machine has to prove, and by which keys.
fn evidence(old: &MachineSpec, new: &MachineSpec) -> Vec<SpecChange> {
    let mut changes = Vec::new();
    if old.ek != new.ek {
        let hashes = if new.ek.hashes.is_empty() {
            "none".to_owned()
        } else {
            new.ek.hashes.join(", ")
        };
        changes.push(SpecChange::new(
            "EndorsementKeys",
            format!("its endorsement keys are now: {hashes}"),
        ));
    }
    if old.config_digests != new.config_digests {
        changes.push(SpecChange::new(
            "Configuration",
            format!("it may boot with: {}", new.config_digests.join(", ")),
        ));
    }
    changes.extend(switched(
        old.is_static,
        new.is_static,
        SpecChange::new(
            "Static",
            "it joins by certificates that an admin issues, and proves nothing",
        ),
        SpecChange::new(
            "NotStatic",
            "it joins by its own proof; its issued certificates are denied",
        ),
    ));
    changes.extend(switched(
        old.insecure_no_tpm,
        new.insecure_no_tpm,
        SpecChange::new("NoTpm", "it has no TPM and proves nothing"),
        SpecChange::new("Tpm", "it has a TPM, and joins by its proof"),
    ));
    changes
}

/// The change of a boolean field: `on` if it was set, `off` if it was unset.
fn switched(before: bool, after: bool, on: SpecChange, off: SpecChange) -> Option<SpecChange> {
    match (before, after) {
        (false, true) => Some(on),
        (true, false) => Some(off),
        (true, true) | (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::MachineSpec;

    /// What is compared at a start is what is recorded meanwhile: a start records no edit that
    /// never gets a record, and leaves out none that does.
    #[test]
    fn the_digest_changes_with_what_is_recorded_and_with_nothing_else() {
        let old = Machine::named("m", MachineSpec::default());
        let edits: [fn(&mut MachineSpec); 13] = [
            |spec| "master".clone_into(&mut spec.role),
            |spec| spec.node_name = Some("n".to_owned()),
            |spec| spec.addresses.push("10.0.0.1".to_owned()),
            |spec| spec.ek.hashes.push("sha256:00".to_owned()),
            |spec| spec.ek.issuers.push("a maker".to_owned()),
            |spec| spec.ek.seen.push("sha256:00".to_owned()),
            |spec| spec.config_digests.push("sha256:00".to_owned()),
            |spec| drop(spec.labels.insert("a".to_owned(), "b".to_owned())),
            |spec| {
                let taint = config_kube::k8s_openapi::api::core::v1::Taint::default();
                spec.taints.push(taint);
            },
            |spec| spec.is_static = true,
            |spec| spec.insecure_no_tpm = true,
            |spec| spec.retired = true,
            |spec| spec.readmit_until = Some("2030-01-01T00:00:00Z".to_owned()),
        ];
        for edit in edits {
            let mut new = old.clone();
            edit(&mut new.spec);
            assert_eq!(
                decided_digest(&old) == decided_digest(&new),
                spec_changes(Some(&old), Some(&new)).is_empty(),
                "{:?}",
                new.spec
            );
        }
    }

    #[test]
    fn every_change_by_an_admin_is_found_and_nothing_else() {
        let old = Machine::named("m", MachineSpec::default());
        let names = |new: &Machine| {
            spec_changes(Some(&old), Some(new))
                .into_iter()
                .map(|change| change.reason)
                .collect::<Vec<_>>()
        };
        assert!(names(&old).is_empty());
        let mut new = old.clone();
        new.status = Some(config_kube::MachineStatus::default());
        new.spec.addresses.push("10.0.0.1".to_owned());
        assert!(names(&new).is_empty());
        new.spec.retired = true;
        new.spec.readmit_until = Some("2030-01-01T00:00:00Z".to_owned());
        new.spec.ek.hashes.push("sha256:00".to_owned());
        new.spec.config_digests.push("sha256:00".to_owned());
        "master".clone_into(&mut new.spec.role);
        assert_eq!(
            names(&new),
            [
                "Retired",
                "Waived",
                "Role",
                "EndorsementKeys",
                "Configuration"
            ]
        );
        assert_ne!(decided_digest(&old), decided_digest(&new));
        assert_eq!(spec_changes(None, Some(&old))[0].reason, "Added");
        assert_eq!(spec_changes(Some(&old), None)[0].reason, "Removed");
    }
}
