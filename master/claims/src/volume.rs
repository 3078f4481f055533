//! The parts of a volume that matter here.

use crate::claim::{BOUND_BY_CONTROLLER, Claim, OLD_CLASS, storage};
use config_kube::Amount;
use config_kube::k8s_openapi::api::core::v1::{NodeSelector, PersistentVolume};
use config_kube::local_volume::{FINALIZER, NODE_ANNOTATION, PROVISIONED_BY, annotation, is_ours};
use config_kube::node_selector;
use master_client::{Key, View};
use std::collections::BTreeMap;

/// The claim that a volume is for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimRef {
    /// The object's key.
    pub key: Key,
    /// Its UID; empty where an admin means any claim of the name.
    pub uid: String,
}

/// A volume of a CSI driver: its names.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CsiVolume {
    /// The driver's.
    pub driver: String,
    /// The volume's, which the driver gave it.
    pub handle: String,
}

/// A volume.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "the API says each of them, independent of the others"
)]
pub struct Volume {
    /// UID.
    pub uid: String,
    /// Resource version.
    pub version: String,
    /// Whether it is being deleted.
    pub leaving: bool,
    /// Its class; empty where it has none.
    pub class: String,
    /// Bytes that it has.
    pub size: Amount,
    /// Access modes that it allows.
    pub modes: Vec<String>,
    /// Whether it is a block device.
    pub block: bool,
    /// Labels, by which claims select.
    pub labels: BTreeMap<String, String>,
    /// Its VolumeAttributesClass; empty where it has none.
    pub attributes: String,
    /// The claim that it is for.
    pub claim: Option<ClaimRef>,
    /// Phase.
    pub phase: String,
    /// `Retain`, `Delete` or `Recycle`.
    pub policy: String,
    /// Nodes that reach it; none: all.
    pub affinity: Option<NodeSelector>,
    /// Whether the controller chose its claim.
    pub by_controller: bool,
    /// Its provisioner; empty if a person made it.
    pub provisioned_by: String,
    /// Whether it is a folder that a node made on the master's request.
    pub ours: bool,
    /// Whether it waits for its node to remove the folder.
    pub held: bool,
    /// The node that has the folder; empty where it is none of ours.
    pub node: String,
    /// Its names at its CSI driver, where it has one.
    pub csi: Option<CsiVolume>,
}

impl Volume {
    /// Whether it is for this claim: for its name, and for its UID where that is known.
    pub fn is_for(&self, key: &Key, claim: &Claim) -> bool {
        self.claim
            .as_ref()
            .is_some_and(|of| of.key == *key && (of.uid.is_empty() || of.uid == claim.uid))
    }

    /// Whether a node reaches it.
    pub fn is_reached(&self, node: &str, labels: &BTreeMap<String, String>) -> bool {
        self.affinity.as_ref().is_none_or(|affinity| {
            let mut terms = affinity.node_selector_terms.iter();
            terms.any(|term| node_selector::matches(term, node, labels))
        })
    }
}

impl View for Volume {
    type Object = PersistentVolume;

    fn read(volume: PersistentVolume) -> Self {
        let ours = is_ours(&volume);
        let (meta, spec) = (volume.metadata, volume.spec.unwrap_or_default());
        let notes = meta.annotations.as_ref();
        let note = |key: &str| annotation(notes, key).map(str::to_owned);
        let finalizers = meta.finalizers.iter().flatten();
        Self {
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta.resource_version.clone().unwrap_or_default(),
            leaving: meta.deletion_timestamp.is_some(),
            csi: spec.csi.map(|csi| CsiVolume {
                driver: csi.driver,
                handle: csi.volume_handle,
            }),
            class: note(OLD_CLASS)
                .or(spec.storage_class_name)
                .unwrap_or_default(),
            size: storage(spec.capacity.as_ref()).unwrap_or_default(),
            modes: spec.access_modes.unwrap_or_default(),
            block: spec.volume_mode.as_deref() == Some("Block"),
            attributes: spec.volume_attributes_class_name.unwrap_or_default(),
            claim: spec.claim_ref.map(|of| ClaimRef {
                key: Key::new(
                    of.namespace.as_deref().unwrap_or_default(),
                    of.name.as_deref().unwrap_or_default(),
                ),
                uid: of.uid.unwrap_or_default(),
            }),
            phase: volume
                .status
                .and_then(|status| status.phase)
                .unwrap_or_default(),
            policy: spec
                .persistent_volume_reclaim_policy
                .unwrap_or_else(|| "Retain".to_owned()),
            affinity: spec.node_affinity.and_then(|affinity| affinity.required),
            by_controller: note(BOUND_BY_CONTROLLER).is_some(),
            provisioned_by: note(PROVISIONED_BY).unwrap_or_default(),
            ours,
            held: finalizers.into_iter().any(|own| own == FINALIZER),
            node: note(NODE_ANNOTATION).unwrap_or_default(),
            labels: meta.labels.unwrap_or_default(),
        }
    }
}
