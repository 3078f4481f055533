//! Protection of what is in use: volumes and claims that are deleted go when nothing uses them any more.

use crate::driver::{Controller, Now, Plan, Right};
use crate::observe::{Key, Kind, Observed};
use crate::write::Write;
use config_kube::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use master_client::{ApiError, Client, ListParams, Object, Patch};
use serde_json::json;
use std::collections::BTreeSet;

/// Holds claims that pods use.
pub(crate) const CLAIM: &str = "kubernetes.io/pvc-protection";
/// Holds volumes that claims are bound to.
pub(crate) const VOLUME: &str = "kubernetes.io/pv-protection";

/// What it does, for whoever grants it.
pub(crate) const RIGHTS: &[Right] = &[
    Right {
        group: "",
        resource: "pods",
        verbs: &["list", "watch"],
    },
    Right {
        group: "",
        resource: "persistentvolumeclaims",
        verbs: &["get", "list", "watch", "patch"],
    },
    Right {
        group: "",
        resource: "persistentvolumes",
        verbs: &["get", "list", "watch", "patch"],
    },
];

/// The controller.
#[derive(Debug, Default)]
pub(crate) struct InUse;

impl Controller for InUse {
    fn name(&self) -> &'static str {
        "storage-protection"
    }

    fn follows(&self) -> &'static [Kind] {
        &[Kind::Pod, Kind::Object]
    }

    fn plan(&mut self, observed: &Observed, _: Now) -> Plan {
        if observed.claims_going.is_empty() && observed.volumes_going.is_empty() {
            return Plan::default();
        }
        let used: BTreeSet<(&str, &str)> = observed
            .pods()
            .filter(|(_, pod)| !pod.ended())
            .flat_map(|(key, pod)| {
                pod.claims
                    .iter()
                    .map(|claim| (key.namespace.as_str(), claim.as_str()))
            })
            .collect();
        let free = observed
            .claims_going
            .iter()
            .filter(|(key, _)| !used.contains(&(&*key.namespace, &*key.name)));
        let claims = free.map(|(key, uid)| Write::ReleaseClaim {
            key: key.clone(),
            uid: uid.clone(),
        });
        // Whether a volume is bound its status says, which is read when it comes to writing.
        let volumes = observed.volumes_going.iter();
        let volumes = volumes.map(|(name, uid)| Write::ReleaseVolume {
            name: name.clone(),
            uid: uid.clone(),
        });
        Plan {
            writes: claims.chain(volumes).collect(),
            again: None,
        }
    }
}

/// Lets a claim go, after a last look at the pods of its namespace past all caches.
pub(crate) async fn release_claim(client: &Client, key: &Key, uid: &str) -> Result<(), ApiError> {
    let pods = client
        .list::<Pod>(Some(&key.namespace), &ListParams::default())
        .await?;
    let uses = |pod: &Pod| {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        !matches!(phase, Some("Succeeded" | "Failed")) && claims(pod).contains(&key.name)
    };
    if pods.items.iter().any(uses) {
        return Ok(());
    }
    let claim: PersistentVolumeClaim = client.get(Some(&key.namespace), &key.name).await?;
    release::<PersistentVolumeClaim>(client, &claim.metadata, uid, CLAIM).await
}

/// Lets a volume go that no claim is bound to.
pub(crate) async fn release_volume(client: &Client, name: &str, uid: &str) -> Result<(), ApiError> {
    let volume: PersistentVolume = client.get(None, name).await?;
    let bound = volume
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        == Some("Bound");
    if bound {
        Ok(())
    } else {
        release::<PersistentVolume>(client, &volume.metadata, uid, VOLUME).await
    }
}

/// Names of the claims that a pod uses, those made for it alone among them.
pub(crate) fn claims(pod: &Pod) -> Vec<String> {
    let volumes = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.volumes.as_ref())
        .into_iter()
        .flatten();
    let own = pod.metadata.name.as_deref().unwrap_or_default();
    volumes
        .filter_map(
            |volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
                (Some(source), _) => Some(source.claim_name.clone()),
                (None, Some(_)) => Some(format!("{own}-{}", volume.name)),
                (None, None) => None,
            },
        )
        .collect()
}

async fn release<T: Object>(
    client: &Client,
    meta: &ObjectMeta,
    uid: &str,
    finalizer: &str,
) -> Result<(), ApiError> {
    let finalizers = meta.finalizers.clone().unwrap_or_default();
    if meta.uid.as_deref() != Some(uid) || !finalizers.iter().any(|own| own == finalizer) {
        return Ok(());
    }
    let kept: Vec<String> = finalizers
        .into_iter()
        .filter(|own| own != finalizer)
        .collect();
    let patch = Patch::Merge(
        json!({"metadata": {"resourceVersion": meta.resource_version, "finalizers": kept}}),
    );
    let name = meta.name.as_deref().unwrap_or_default();
    client
        .patch::<T>(meta.namespace.as_deref(), name, &patch)
        .await
        .map(drop)
}
