//! The parts of a claim that matter here.

use config_kube::Amount;
use config_kube::k8s_openapi::api::core::v1::{PersistentVolumeClaim, TypedLocalObjectReference};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use config_kube::local_volume::annotation;
use jiff::Timestamp;
use master_client::View;

/// Annotation: both sides of a binding are written (upstream).
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Annotation of claim or volume: the binding was the controller's choice, not an admin's
/// (upstream).
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// Annotation of a claim: the node that the scheduler chose for the first pod that uses it
/// (upstream).
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Annotation of a claim: the driver that is to provision a volume for it (upstream).
pub const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The deprecated annotation that names a class, of claims and volumes.
pub(crate) const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// A claim.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "the API says each of them, independent of the others"
)]
pub struct Claim {
    /// UID.
    pub uid: String,
    /// Resource version.
    pub version: String,
    /// When it came.
    pub created: Option<Timestamp>,
    /// Whether it is being deleted.
    pub leaving: bool,
    /// Its class; none where it names none, so that it may still get the default one. Empty: none
    /// on purpose.
    pub class: Option<String>,
    /// Bytes that it asks for.
    pub size: Amount,
    /// Access modes that it asks for.
    pub modes: Vec<String>,
    /// Whether it wants a block device.
    pub block: bool,
    /// Labels of volumes that it accepts.
    pub selector: Option<LabelSelector>,
    /// Its VolumeAttributesClass; empty where it has none.
    pub attributes: String,
    /// Whether the volume is to be filled from something.
    pub filled: bool,
    /// The volume that it asks for by name, or is bound to; empty where there is none.
    pub volume: String,
    /// Phase.
    pub phase: String,
    /// Whether both sides of its binding are written.
    pub bound: bool,
    /// Whether the controller chose its volume.
    pub by_controller: bool,
    /// The node that the scheduler chose; empty where it chose none.
    pub node: String,
    /// The provisioner that is asked for a volume; empty without one.
    pub provisioner: String,
    /// Bytes and access modes that its status shows.
    pub shown: (Option<Amount>, Vec<String>),
    /// UID of the pod that it was made for; empty where there is none.
    pub pod: String,
}

impl Claim {
    /// The class that volumes must have to fit.
    pub fn class_name(&self) -> &str {
        self.class.as_deref().unwrap_or_default()
    }

    /// Whether its binding is complete.
    pub fn is_bound(&self) -> bool {
        self.bound && !self.volume.is_empty()
    }

    /// Bytes, rounded up.
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.size.ceil_units()).unwrap_or_default()
    }
}

/// Bytes of `storage` in a list of resources.
pub(crate) fn storage(
    list: Option<
        &std::collections::BTreeMap<
            String,
            config_kube::k8s_openapi::apimachinery::pkg::api::resource::Quantity,
        >,
    >,
) -> Option<Amount> {
    Amount::try_from(list?.get("storage")?).ok()
}

impl View for Claim {
    type Object = PersistentVolumeClaim;

    fn read(claim: PersistentVolumeClaim) -> Self {
        let (meta, spec) = (claim.metadata, claim.spec.unwrap_or_default());
        let status = claim.status.unwrap_or_default();
        let notes = meta.annotations.as_ref();
        let note = |key: &str| annotation(notes, key).map(str::to_owned);
        let source = |source: &Option<TypedLocalObjectReference>| source.is_some();
        let owners = meta.owner_references.iter().flatten();
        let pod = owners.filter(|owner| owner.kind == "Pod" && owner.controller == Some(true));
        Self {
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta.resource_version.clone().unwrap_or_default(),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            leaving: meta.deletion_timestamp.is_some(),
            class: note(OLD_CLASS).or(spec.storage_class_name),
            size: storage(
                spec.resources
                    .as_ref()
                    .and_then(|resources| resources.requests.as_ref()),
            )
            .unwrap_or_default(),
            modes: spec.access_modes.unwrap_or_default(),
            block: spec.volume_mode.as_deref() == Some("Block"),
            selector: spec.selector,
            attributes: spec.volume_attributes_class_name.unwrap_or_default(),
            filled: source(&spec.data_source) || spec.data_source_ref.is_some(),
            volume: spec.volume_name.unwrap_or_default(),
            phase: status.phase.unwrap_or_default(),
            bound: note(BIND_COMPLETED).is_some(),
            by_controller: note(BOUND_BY_CONTROLLER).is_some(),
            node: note(SELECTED_NODE).unwrap_or_default(),
            provisioner: note(PROVISIONER).unwrap_or_default(),
            shown: (
                storage(status.capacity.as_ref()),
                status.access_modes.unwrap_or_default(),
            ),
            pod: pod
                .map(|owner| owner.uid.clone())
                .next()
                .unwrap_or_default(),
        }
    }
}
