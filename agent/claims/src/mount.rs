//! Resolves a pod's claims to the volumes that this machine mounts for them.

use crate::folders::{FolderError, Folders};
use crate::resolve::{Claimed, Found, bound, claimed, resolve};
use config_kube::k8s_openapi::api::core::v1::{
    HostPathVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod,
};
use config_kube::local_volume::is_name;
use std::error::Error;
use std::path::PathBuf;

/// What a volume's claim leads to.
#[derive(Debug, Clone, PartialEq)]
pub struct Mounted {
    /// Where the data is.
    pub what: What,
    /// Whether the pod's containers may only read it.
    pub read_only: bool,
}

/// Where a claim's data is.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// In a folder of this machine's volumes.
    Folder(PathBuf),
    /// At a path of the machine, which its configuration must list.
    Path(HostPathVolumeSource),
    /// Where a CSI driver has mounted it, below the folder of the machine's volumes.
    Driver(PathBuf),
}

/// Why nothing is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmounted {
    /// For people.
    pub text: String,
    /// Whether the data is lost.
    pub lost: bool,
}

/// The claims of a pod, by the names of its volumes.
pub fn wanted(pod: &Pod) -> Vec<(String, Claimed)> {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    let named = volumes.filter_map(|volume| Some((volume.name.clone(), claimed(pod, volume)?)));
    named.collect()
}

/// The group of a pod's files.
pub fn fs_group(pod: &Pod) -> Option<u32> {
    let security = pod.spec.as_ref()?.security_context.as_ref()?;
    security
        .fs_group
        .and_then(|group| u32::try_from(group).ok())
}

impl Claimed {
    /// The API path of a pod's claim in a namespace.
    ///
    /// # Errors
    /// The claim's name is no name of an object, so that a path with it could lead elsewhere.
    pub fn path(&self, namespace: &str) -> Result<String, String> {
        let name = plain(&self.name)?;
        Ok(format!(
            "/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"
        ))
    }

    /// The API path of the volume to which the claim is bound.
    ///
    /// # Errors
    /// As [`bound`], or its name can't be one.
    pub fn volume_path(&self, pod: &Pod, claim: &PersistentVolumeClaim) -> Result<String, String> {
        let name = plain(bound(pod, self, claim)?)?;
        Ok(format!("/api/v1/persistentvolumes/{name}"))
    }
}

fn plain(name: &str) -> Result<&str, String> {
    is_name(name)
        .then_some(name)
        .ok_or_else(|| format!("{name:?} is no name of a claim or volume"))
}

/// A claim, for events about it.
pub fn reference(claim: &PersistentVolumeClaim) -> ObjectReference {
    ObjectReference {
        kind: Some("PersistentVolumeClaim".to_owned()),
        api_version: Some("v1".to_owned()),
        namespace: claim.metadata.namespace.clone(),
        name: claim.metadata.name.clone(),
        uid: claim.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

impl Folders {
    /// What is mounted for a pod's claim, which is bound to this volume; none where that is a
    /// driver's to mount.
    ///
    /// # Errors
    /// Why nothing is mounted, in upstream's words; for example that the data is lost.
    pub fn mounted(
        &self,
        pod: &Pod,
        claimed: &Claimed,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<Option<Mounted>, Unmounted> {
        let other = |text| Unmounted { text, lost: false };
        let what = match resolve(pod, claimed, claim, volume).map_err(other)? {
            Found::Path { path, kind } => What::Path(HostPathVolumeSource {
                path,
                type_: Some(kind),
            }),
            Found::Folder(name) => {
                let found = self.find(&name, fs_group(pod));
                What::Folder(found.map_err(|error| Unmounted {
                    text: words(&error),
                    lost: matches!(error, FolderError::Lost(_)),
                })?)
            }
            Found::Driver => return Ok(None),
        };
        Ok(Some(Mounted {
            what,
            read_only: claimed.read_only,
        }))
    }

    /// Answers the master's request to make a folder (`POST`, with `bytes=` as its query), to
    /// remove it (`DELETE`) or to remove it if it is empty (`DELETE` with `bytes=0`): an HTTP
    /// status and a line.
    pub fn answer(&self, method: &str, name: &str, query: &str) -> (u16, String) {
        let bytes = query
            .strip_prefix("bytes=")
            .and_then(|text| text.parse().ok());
        let done = match (method, bytes) {
            ("POST", Some(bytes)) => self.make(name, bytes),
            ("DELETE", None) => self.remove(name),
            ("DELETE", Some(0)) => self.remove_empty(name),
            _ => {
                let how = "a volume's folder is made by POST with bytes=, and removed by DELETE\n";
                return (405, how.to_owned());
            }
        };
        match done {
            Ok(()) => (200, "ok\n".to_owned()),
            Err(error) => {
                let status = match error {
                    FolderError::Name(_) => 400,
                    FolderError::Full { .. } => 507,
                    FolderError::Going(_) => 503,
                    FolderError::Lost(_) | FolderError::System(..) => 500,
                };
                (status, format!("{}\n", words(&error)))
            }
        }
    }
}

/// An error with its cause.
fn words(error: &FolderError) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_master_gets_a_status_and_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let folders = Folders::below(dir.path());
        let status = |method: &str, name: &str, query: &str| folders.answer(method, name, query).0;
        assert_eq!(status("POST", "pvc-1", "bytes=1"), 200);
        let folder = dir.path().join("local-volumes/pvc-1");
        assert!(folder.is_dir());
        assert_eq!(status("POST", "pvc-2", "bytes=18446744073709551615"), 507);
        assert_eq!(status("POST", "..", "bytes=1"), 400);
        assert_eq!(status("DELETE", "../local-volumes", ""), 400);
        for (method, query) in [
            ("GET", ""),
            ("POST", ""),
            ("DELETE", "bytes=1"),
            ("POST", "bytes=-1"),
        ] {
            assert_eq!(status(method, "pvc-1", query), 405, "{method} {query}");
        }
        std::fs::create_dir(folder.join("d")).unwrap();
        assert_eq!(status("DELETE", "pvc-1", "bytes=0"), 200);
        assert!(folder.exists(), "it is not empty");
        assert_eq!(status("DELETE", "pvc-1", ""), 200);
        assert_eq!(status("DELETE", "pvc-1", ""), 200, "nothing there is fine");
        assert!(!folder.exists());
    }
}
