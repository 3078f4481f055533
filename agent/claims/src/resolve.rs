//! From a pod's volume through its claim to the volume that is mounted. Pure.

use config_kube::k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Pod, Volume,
};
use config_kube::local_volume::is_ours;

/// The claim of a pod's volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// Its name.
    pub name: String,
    /// Whether the pod's containers may only read it.
    pub read_only: bool,
    /// Whether it must have been made for this very pod (an ephemeral volume).
    pub own: bool,
}

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The folder of a volume of this machine, by its name.
    Folder(String),
    /// A path of the machine, which its configuration must list.
    Path {
        /// The path.
        path: String,
        /// Upstream's type of a hostPath; empty for none.
        kind: String,
    },
    /// What a CSI driver mounts.
    Driver,
}

/// The claim of a volume, if it has one.
pub fn claimed(pod: &Pod, volume: &Volume) -> Option<Claimed> {
    if let Some(source) = &volume.persistent_volume_claim {
        return Some(Claimed {
            name: source.claim_name.clone(),
            read_only: source.read_only == Some(true),
            own: false,
        });
    }
    volume.ephemeral.as_ref()?;
    let pod = pod.metadata.name.as_deref().unwrap_or_default();
    Some(Claimed {
        name: format!("{pod}-{}", volume.name),
        read_only: false,
        own: true,
    })
}

/// The name of the volume that a claim is bound to.
///
/// # Errors
/// In upstream's words: it is bound to none yet, or the pod may not use it.
pub fn bound<'c>(
    pod: &Pod,
    claimed: &Claimed,
    claim: &'c PersistentVolumeClaim,
) -> Result<&'c str, String> {
    let (name, meta) = (&claimed.name, &claim.metadata);
    let mut owners = meta.owner_references.iter().flatten();
    if claimed.own && !owners.any(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref()) {
        return Err(format!(
            "PVC {name} was not created for this pod (pod is not owner)"
        ));
    }
    // Its finalizer keeps it for the pods that have it already, whose other volumes go on to be
    // brought up to date; no other pod gets it.
    let status = pod.status.as_ref();
    let runs = status.and_then(|status| status.phase.as_deref()) == Some("Running");
    if meta.deletion_timestamp.is_some() && !runs {
        return Err(format!(
            "can't start pod because PVC {name} is being deleted"
        ));
    }
    let phase = claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let volume = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_name.as_deref());
    match (phase, volume.filter(|volume| !volume.is_empty())) {
        (Some("Bound"), Some(volume)) => Ok(volume),
        (Some("Lost"), _) => Err(format!("PVC {name} has lost its volume")),
        _ => Err(format!("PVC {name} is not bound")),
    }
}

/// What is mounted for a pod's claim, which is bound to this volume.
///
/// # Errors
/// The volume is bound to another claim, or of a type that this machine does not mount.
pub fn resolve(
    pod: &Pod,
    claimed: &Claimed,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Result<Found, String> {
    let name = bound(pod, claimed, claim)?;
    if volume.metadata.name.as_deref() != Some(name) {
        return Err(format!("PVC {} is bound to {name:?}", claimed.name));
    }
    let spec = volume.spec.clone().unwrap_or_default();
    let of = spec.claim_ref.as_ref();
    let uid = of.and_then(|of| of.uid.as_deref()).unwrap_or_default();
    if uid.is_empty() || claim.metadata.uid.as_deref() != Some(uid) {
        return Err(format!(
            "volume {name:?} is bound to another claim than PVC {}",
            claimed.name
        ));
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(format!(
            "volume {name:?} has volumeMode: Block, and this machine gives pods no block devices"
        ));
    }
    if is_ours(volume) {
        return Ok(Found::Folder(name.to_owned()));
    }
    let path = |path: String, kind: Option<String>| {
        Ok(Found::Path {
            path,
            kind: kind.unwrap_or_default(),
        })
    };
    if let Some(local) = spec.local {
        return path(local.path, Some("Directory".to_owned()));
    }
    if let Some(host) = spec.host_path {
        return path(host.path, host.type_);
    }
    if spec.csi.is_some() {
        return Ok(Found::Driver);
    }
    Err(format!(
        "no volume plugin matched: volume {name:?} is of the kind {}, and this machine mounts local, hostPath and csi",
        kind(&spec)
    ))
}

/// The kind of a volume, as its specification calls it.
fn kind(spec: &PersistentVolumeSpec) -> &'static str {
    let kinds = [
        (spec.nfs.is_some(), "nfs"),
        (spec.iscsi.is_some(), "iscsi"),
        (spec.fc.is_some(), "fc"),
        (spec.rbd.is_some(), "rbd"),
        (spec.cephfs.is_some(), "cephfs"),
        (spec.glusterfs.is_some(), "glusterfs"),
        (spec.flex_volume.is_some(), "flexVolume"),
        (
            spec.aws_elastic_block_store.is_some(),
            "awsElasticBlockStore",
        ),
        (spec.gce_persistent_disk.is_some(), "gcePersistentDisk"),
        (spec.azure_disk.is_some(), "azureDisk"),
        (spec.azure_file.is_some(), "azureFile"),
        (spec.cinder.is_some(), "cinder"),
        (spec.vsphere_volume.is_some(), "vsphereVolume"),
    ];
    let found = kinds.iter().find(|(there, _)| *there);
    found.map_or("unknown", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::local_volume::{PROVISIONED_BY, PROVISIONER, path};
    use serde_json::{Value, json};

    fn found(change: impl FnOnce(&mut Value, &mut Value)) -> Result<Found, String> {
        let mut claim = json!({"metadata": {"name": "data", "uid": "u"},
            "spec": {"volumeName": "pvc-1"}, "status": {"phase": "Bound"}});
        let mut volume = json!({"metadata": {"name": "pvc-1", "annotations": {PROVISIONED_BY: PROVISIONER}},
            "spec": {"local": {"path": path("pvc-1")}, "claimRef": {"uid": "u"}}});
        change(&mut claim, &mut volume);
        let pod = serde_json::from_value(json!({"metadata": {"name": "p", "uid": "pod"}})).unwrap();
        let volumes = json!({"name": "v", "persistentVolumeClaim": {"claimName": "data"}});
        let wanted = claimed(&pod, &serde_json::from_value(volumes).unwrap()).unwrap();
        let claim = serde_json::from_value(claim).unwrap();
        resolve(
            &pod,
            &wanted,
            &claim,
            &serde_json::from_value(volume).unwrap(),
        )
    }

    #[test]
    fn a_bound_claim_leads_to_its_folder() {
        assert_eq!(found(|_, _| {}), Ok(Found::Folder("pvc-1".to_owned())));
    }

    #[test]
    fn only_both_sides_of_a_binding_lead_to_data() {
        type Change = fn(&mut Value, &mut Value);
        let cases: [(Change, &str); 6] = [
            (
                |c, _| c["status"]["phase"] = json!("Pending"),
                "is not bound",
            ),
            (
                |c, _| c["status"]["phase"] = json!("Lost"),
                "has lost its volume",
            ),
            (
                |c, _| c["metadata"]["uid"] = json!("another"),
                "bound to another claim",
            ),
            (
                |_, v| v["spec"]["claimRef"] = Value::Null,
                "bound to another claim",
            ),
            (
                |_, v| v["metadata"]["name"] = json!("pvc-2"),
                "is bound to \"pvc-1\"",
            ),
            (
                |_, v| v["spec"]["volumeMode"] = json!("Block"),
                "no block devices",
            ),
        ];
        for (change, text) in cases {
            let refused = found(change).unwrap_err();
            assert!(refused.contains(text), "{refused}");
        }
    }

    #[test]
    fn another_path_is_a_host_path_and_other_types_are_refused_by_name() {
        let other = found(|_, volume| volume["spec"]["local"]["path"] = json!("/etc"));
        let path = Found::Path {
            path: "/etc".to_owned(),
            kind: "Directory".to_owned(),
        };
        assert_eq!(
            other,
            Ok(path),
            "which the machine's configuration must list"
        );
        let of_kind = |kind: &str, source: Value| {
            found(|_, volume| {
                volume["spec"]["local"] = Value::Null;
                volume["spec"][kind] = source;
            })
        };
        let nfs = of_kind("nfs", json!({"server": "s", "path": "/"}));
        assert!(nfs.unwrap_err().contains("of the kind nfs"));
        let csi = of_kind("csi", json!({"driver": "d", "volumeHandle": "h"}));
        assert_eq!(csi, Ok(Found::Driver));
    }

    #[test]
    fn a_claim_that_is_being_deleted_stays_with_a_pod_that_runs_and_goes_to_no_other() {
        let metadata = json!({"name": "data", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        let claim = json!({"metadata": metadata, "spec": {"volumeName": "pvc-1"},
            "status": {"phase": "Bound"}});
        let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
        let wanted = Claimed {
            name: "data".to_owned(),
            read_only: false,
            own: false,
        };
        let bound_in = |phase: &str| {
            let pod = json!({"metadata": {"name": "p"}, "status": {"phase": phase}});
            bound(&serde_json::from_value(pod).unwrap(), &wanted, &claim).map(str::to_owned)
        };
        assert_eq!(bound_in("Running"), Ok("pvc-1".to_owned()));
        let refused = bound_in("Pending").unwrap_err();
        assert!(refused.contains("is being deleted"), "{refused}");
    }

    #[test]
    fn an_ephemeral_claim_must_be_the_pods_own() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p", "uid": "pod"}})).unwrap();
        let volume: Volume = serde_json::from_value(json!({"name": "v", "ephemeral": {}})).unwrap();
        let wanted = claimed(&pod, &volume).unwrap();
        assert_eq!((wanted.name.as_str(), wanted.own), ("p-v", true));
        let claim = serde_json::from_value(json!({"metadata": {"name": "p-v"}})).unwrap();
        assert!(
            bound(&pod, &wanted, &claim)
                .unwrap_err()
                .contains("pod is not owner")
        );
    }
}
