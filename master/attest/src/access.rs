//! What the state of each Machine means for its certificates and its node's name: the tables behind
//! the deny list.

use config_kube::machine::Revocation;
use config_kube::{Machine, MachineState, MachineStatus};
use std::collections::{HashMap, HashSet};

/// What a Machine's state means for its certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MachineAccess {
    /// Certificates over this key pass.
    Allowed(RecordedKey),
    /// The endorsement key that it attested with is no longer in its spec: no certificate passes.
    Replaced,
    /// It was admitted without a TPM, and its spec no longer allows that: no certificate passes.
    NoTpm,
    /// It is Untrusted, for the reason with this code: no certificate passes.
    Untrusted(String),
    /// An admin retired it: no certificate passes.
    Retired,
}

/// The node key of a Machine whose certificates pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RecordedKey {
    /// None: it attested nothing yet, and no certificate was issued.
    None,
    /// The key of the last attestation or issuance, as `sha256:<hex>` of its SubjectPublicKeyInfo:
    /// certificates over earlier keys are denied.
    Only(String),
    /// The status records no key, so the key is not compared.
    Unrecorded,
}

impl RecordedKey {
    fn recorded(status: &MachineStatus) -> Self {
        match status.node_key.as_deref() {
            None => Self::Unrecorded,
            Some("") => Self::None,
            Some(key) => Self::Only(key.to_owned()),
        }
    }
}

impl MachineAccess {
    pub(crate) fn of(machine: &Machine) -> Self {
        match machine.revocation() {
            Some(Revocation::Retired) => return Self::Retired,
            Some(Revocation::Replaced) => return Self::Replaced,
            Some(Revocation::NoTpm) => return Self::NoTpm,
            None => {}
        }
        let Some(status) = &machine.status else {
            let key = if machine.spec.is_static {
                RecordedKey::Unrecorded
            } else {
                RecordedKey::None
            };
            return Self::Allowed(key);
        };
        match status.state {
            MachineState::Untrusted => Self::Untrusted(status.reason.clone()),
            // Pending with a key on record: the Machine was static, and its issued certificates
            // ended when `spec.static` did.
            MachineState::Pending if !machine.spec.is_static => Self::Allowed(RecordedKey::None),
            // Refused at its first proof: it is the refused machine that chooses to come this far,
            // and an admission records both.
            MachineState::Suspect if status.node_key.is_none() && status.certificate.is_none() => {
                Self::Allowed(RecordedKey::None)
            }
            MachineState::Pending
            | MachineState::Trusted
            | MachineState::Unproven
            | MachineState::Suspect => Self::Allowed(RecordedKey::recorded(status)),
        }
    }

    /// Whether the Machine may act as a node whose Node object exists: it attested, or has issued
    /// certificates.
    fn is_attested(&self) -> bool {
        matches!(
            self,
            Self::Allowed(RecordedKey::Only(_) | RecordedKey::Unrecorded)
        )
    }

    /// Why every certificate of the Machine is denied; `None` where one may pass.
    pub(crate) fn denial(&self) -> Option<String> {
        match self {
            Self::Allowed(_) => None,
            Self::Replaced => Some(
                "the machine was replaced by another board, or its endorsement key was removed"
                    .to_owned(),
            ),
            Self::NoTpm => Some(
                "the machine was admitted without a TPM, and its Machine's spec no longer allows that"
                    .to_owned(),
            ),
            Self::Untrusted(code) => Some(format!("the machine is Untrusted: {code}")),
            Self::Retired => Some("the machine is retired".to_owned()),
        }
    }
}

/// The Machines by uid, and what follows from them for node names.
#[derive(Debug, Default)]
pub(crate) struct AccessTable {
    /// Node name and access of each Machine, by its uid.
    pub(crate) machines: HashMap<String, (String, MachineAccess)>,
    /// Names of Node objects that the master created for Machines. A Node may still exist after its
    /// Machine was deleted or renamed.
    pub(crate) node_objects: HashSet<String>,
    /// Node names whose users are denied, and why. Derived from the other tables.
    pub(crate) denied_nodes: HashMap<String, String>,
    /// Node names of Machines. Derived.
    pub(crate) machine_nodes: HashSet<String>,
}

impl AccessTable {
    /// Derives the tables by node name. Usually one Machine has a node name; while an admin
    /// replaces a Machine object there are two, and the node is allowed if either is.
    pub(crate) fn derive_nodes(&mut self) {
        self.denied_nodes.clear();
        self.machine_nodes = self
            .machines
            .values()
            .map(|(node, _)| node.clone())
            .collect();
        for (node, access) in self.machines.values() {
            if let Some(why) = access.denial() {
                self.denied_nodes.insert(node.clone(), why);
            }
        }
        for node in &self.node_objects {
            let why = "its machine is another node now, or was removed from the inventory, and no other has proved itself";
            self.denied_nodes
                .entry(node.clone())
                .or_insert_with(|| why.to_owned());
        }
        for (node, access) in self.machines.values() {
            // A Node object that exists may belong to an earlier Machine of the same name, with
            // tokens bound to it. Its name is usable again only after the present Machine has
            // attested; without a Node object nothing is bound to the name.
            let allowed = if self.node_objects.contains(node) {
                access.is_attested()
            } else {
                access.denial().is_none()
            };
            if allowed {
                self.denied_nodes.remove(node);
            }
        }
    }
}
