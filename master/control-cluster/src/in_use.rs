//! Protection of what is in use: volumes and claims that are deleted go when nothing uses them any
//! more.

use config_kube::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use master_client::{ApiError, Key, ListParams, Lookup, Object, Patch, Store, View};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::pod::{BY_HELD_CLAIM, PodView, claims_of_changed};
use master_control::views::{is_held_by, uid};
use master_control::writer::Writer;
use serde_json::json;
use std::sync::Arc;

/// Holds claims that pods use.
const CLAIM: &str = "kubernetes.io/pvc-protection";
/// Holds volumes that claims are bound to.
const VOLUME: &str = "kubernetes.io/pv-protection";

/// A volume claim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimView {
    /// UID.
    pub uid: String,
    /// Whether its deletion waits for the pods that use it.
    pub waits: bool,
}

impl View for ClaimView {
    type Object = PersistentVolumeClaim;

    fn read(claim: PersistentVolumeClaim) -> Self {
        let meta = &claim.metadata;
        Self {
            uid: uid(meta),
            waits: meta.deletion_timestamp.is_some() && is_held_by(meta, CLAIM),
        }
    }
}

/// A volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeView {
    /// UID.
    pub uid: String,
    /// Whether its deletion waits for the claim that is bound to it.
    pub waits: bool,
    /// Whether a claim is bound to it.
    pub bound: bool,
}

impl View for VolumeView {
    type Object = PersistentVolume;

    fn read(volume: PersistentVolume) -> Self {
        let meta = &volume.metadata;
        Self {
            uid: uid(meta),
            waits: meta.deletion_timestamp.is_some() && is_held_by(meta, VOLUME),
            bound: is_bound(&volume),
        }
    }
}

/// The controller. Its keys are claims, which have a namespace, and volumes, which have none.
#[derive(Debug)]
pub struct InUse {
    claims: Store<ClaimView>,
    volumes: Store<VolumeView>,
    users: Lookup<PodView>,
}

/// An object being deleted, and whether it is used.
#[derive(Debug)]
pub enum Facts {
    /// A claim.
    Claim {
        /// The object's key.
        key: Key,
        /// Its facts.
        claim: Arc<ClaimView>,
        /// Whether a pod on a node uses it and has not ended.
        used: bool,
    },
    /// A volume.
    Volume {
        /// The object's key.
        key: Key,
        /// Its facts.
        volume: Arc<VolumeView>,
    },
}

/// The object whose finalizer is removed.
#[derive(Debug, PartialEq, Eq)]
pub enum Release {
    /// A claim.
    Claim {
        /// The object's key.
        key: Key,
        /// Its UID.
        uid: String,
    },
    /// A volume.
    Volume {
        /// The object's key.
        key: Key,
        /// Its UID.
        uid: String,
    },
}

impl Controller for InUse {
    const NAME: &'static str = "storage-protection";
    const RIGHTS: &'static [Right] = &[
        right("", "pods", &["list", "watch"]),
        right(
            "",
            "persistentvolumeclaims",
            &["get", "list", "watch", "patch"],
        ),
        right("", "persistentvolumes", &["get", "list", "watch", "patch"]),
    ];
    type Facts = Facts;
    type Action = Release;

    fn new(setup: &mut Setup<'_>) -> Self {
        let pods = setup.follow(claims_of_changed);
        Self {
            claims: setup.follow_keys(),
            volumes: setup.follow_keys(),
            users: pods.index(&BY_HELD_CLAIM),
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let own = key.clone();
        if key.namespace.is_empty() {
            let volume = self.volumes.get(key)?;
            return Some(Facts::Volume { key: own, volume });
        }
        Some(Facts::Claim {
            key: own,
            claim: self.claims.get(key)?,
            used: self.users.count(&key.to_string()) > 0,
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Release> {
        let action = match facts {
            Facts::Claim { key, claim, used } => {
                let (key, uid) = (key.clone(), claim.uid.clone());
                (claim.waits && !used).then_some(Release::Claim { key, uid })
            }
            Facts::Volume { key, volume } => {
                let (key, uid) = (key.clone(), volume.uid.clone());
                (volume.waits && !volume.bound).then_some(Release::Volume { key, uid })
            }
        };
        action.into()
    }

    async fn carry_out(&self, action: Release, writer: &Writer) -> Result<(), ApiError> {
        match action {
            Release::Claim { key, uid } => release_claim(writer, &key, &uid).await,
            Release::Volume { key, uid } => release_volume(writer, &key, &uid).await,
        }
    }
}

/// Lets a claim go, after a last look at the pods of its namespace past all caches.
async fn release_claim(writer: &Writer, key: &Key, uid: &str) -> Result<(), ApiError> {
    let client = writer.client();
    let pods = client
        .list::<Pod>(key.namespace(), &ListParams::default())
        .await?;
    let mut users = pods.items.into_iter().map(PodView::read);
    if users.any(|pod| pod.holds_claims() && pod.claims.contains(&key.name)) {
        return Ok(());
    }
    let claim: PersistentVolumeClaim = client.get(key.namespace(), &key.name).await?;
    release::<PersistentVolumeClaim>(writer, &claim.metadata, uid, CLAIM).await
}

/// Lets a volume go that no claim is bound to.
async fn release_volume(writer: &Writer, key: &Key, uid: &str) -> Result<(), ApiError> {
    let volume: PersistentVolume = writer.client().get(None, &key.name).await?;
    if is_bound(&volume) {
        Ok(())
    } else {
        release::<PersistentVolume>(writer, &volume.metadata, uid, VOLUME).await
    }
}

fn is_bound(volume: &PersistentVolume) -> bool {
    let status = volume.status.as_ref();
    status.and_then(|status| status.phase.as_deref()) == Some("Bound")
}

async fn release<T: Object>(
    writer: &Writer,
    meta: &ObjectMeta,
    uid: &str,
    finalizer: &str,
) -> Result<(), ApiError> {
    if meta.uid.as_deref() != Some(uid) || !is_held_by(meta, finalizer) {
        return Ok(());
    }
    let finalizers = meta.finalizers.iter().flatten();
    let kept: Vec<&String> = finalizers.filter(|own| *own != finalizer).collect();
    let patch = json!({"metadata": {"resourceVersion": meta.resource_version, "finalizers": kept}});
    let (key, patch) = (Key::of(meta), Patch::Merge(patch));
    writer.patch::<T>(&key, &patch).await.map(drop)
}
