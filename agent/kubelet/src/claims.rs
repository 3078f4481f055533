//! A pod's claims: asked of the master, and what they lead to on this machine.

use crate::api::{ApiError, get};
use crate::kubelet::Shared;
use crate::names::is_plain;
use crate::volumes::fs_group;
use agent_claims::{Claimed, FolderError, Found, bound, claimed, resolve};
use agent_runtime::PodRef;
use config_kube::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What a volume's claim leads to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Mounted {
    pub(crate) what: What,
    /// Whether the pod's containers may only read it.
    pub(crate) read_only: bool,
}

/// Where the data is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum What {
    /// In a folder of this machine's volumes.
    Folder(PathBuf),
    /// At a path of the machine, with upstream's type of a hostPath.
    Path(String, String),
}

/// What a pod's claims lead to, by the names of its volumes.
///
/// # Errors
/// What is in the way, in upstream's words and with the volume's name. Data that is lost is also told on the claim.
pub(crate) async fn find(
    shared: &Shared,
    pod: &Pod,
    reference: &PodRef,
) -> Result<BTreeMap<String, Mounted>, String> {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    let mut found = BTreeMap::new();
    for volume in volumes {
        let Some(wanted) = claimed(pod, volume) else {
            continue;
        };
        let mounted = one(shared, pod, reference, &wanted).await;
        let fault = |error| {
            format!(
                "MountVolume.SetUp failed for volume {:?} : {error}",
                volume.name
            )
        };
        found.insert(volume.name.clone(), mounted.map_err(fault)?);
    }
    Ok(found)
}

async fn one(
    shared: &Shared,
    pod: &Pod,
    reference: &PodRef,
    wanted: &Claimed,
) -> Result<Mounted, String> {
    let name = &wanted.name;
    if !is_plain(name) {
        return Err(format!("{name:?} is no name of a claim"));
    }
    let text = |error: ApiError| {
        format!(
            "error processing PVC {}/{name}: {}",
            reference.namespace,
            error.chain()
        )
    };
    let path = format!(
        "/api/v1/namespaces/{}/persistentvolumeclaims/{name}",
        reference.namespace
    );
    let claim: PersistentVolumeClaim = get(&*shared.api, path).await.map_err(text)?;
    let volume = bound(pod, wanted, &claim)?;
    if !is_plain(volume) {
        return Err(format!("{volume:?} is no name of a volume"));
    }
    let path = format!("/api/v1/persistentvolumes/{volume}");
    let volume: PersistentVolume = get(&*shared.api, path).await.map_err(text)?;
    let what = match resolve(pod, wanted, &claim, &volume)? {
        Found::Path { path, kind } => What::Path(path, kind),
        Found::Folder(name) => {
            let folder = shared.folders.find(&name, fs_group(pod));
            let folder = folder.map_err(|error| {
                let text = config_errors::chain(&error);
                if matches!(error, FolderError::Lost(_)) {
                    shared.events.claim(&claim, "VolumeLost", text.clone());
                }
                text
            });
            What::Folder(folder?)
        }
    };
    Ok(Mounted {
        what,
        read_only: wanted.read_only,
    })
}
