//! Volumes that are folders of a node: the names on which master and agent agree. Pure.
//!
//! The master provisions such a volume for a claim on the node that the scheduler chose; the node
//! makes, mounts and removes the folder. A volume's path is only its name: a node looks for it in
//! its own folder of volumes and nowhere else.

use k8s_openapi::api::core::v1::PersistentVolume;
use std::collections::BTreeMap;

/// The StorageClass that a cluster has from its first machine on.
pub const CLASS: &str = "local";
/// The provisioner of the class.
pub const PROVISIONER: &str = "pratique.dev/local";
/// Keeps a PersistentVolume until its node reports that the folder is removed.
pub const FINALIZER: &str = "pratique.dev/local-volume";
/// Annotation of a PersistentVolume: the Node that has the folder.
pub const NODE_ANNOTATION: &str = "pratique.dev/node";
/// Annotation of a PersistentVolume: its provisioner (upstream).
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Where a node has the folders.
pub const FOLDER: &str = "/var/lib/kubelet/local-volumes";
/// The path of the kubelet's API below which they are made (POST) and removed (DELETE), by name.
pub const SERVED: &str = "localVolumes";

/// The path of a volume in its PersistentVolume.
pub fn path(name: &str) -> String {
    format!("{FOLDER}/{name}")
}

/// Whether a name can be a volume's: a DNS subdomain, as the names of PersistentVolumes are, so
/// that it is one plain name in a folder.
pub fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    name.len() <= 253
        && bytes
            .iter()
            .all(|byte| plain(*byte) || matches!(byte, b'-' | b'.'))
        && bytes.first().copied().is_some_and(plain)
        && bytes.last().copied().is_some_and(plain)
}

/// Whether a volume is a folder that a node made on the master's request: it has our provisioner,
/// is of the type `local`, and has the path of its own name.
pub fn is_ours(volume: &PersistentVolume) -> bool {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let local = volume.spec.as_ref().and_then(|spec| spec.local.as_ref());
    annotation(volume.metadata.annotations.as_ref(), PROVISIONED_BY) == Some(PROVISIONER)
        && is_name(name)
        && local.is_some_and(|local| local.path == path(name))
}

/// The text of an annotation.
pub fn annotation<'a>(all: Option<&'a BTreeMap<String, String>>, key: &str) -> Option<&'a str> {
    all.and_then(|all| all.get(key)).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_volume_name_is_a_single_path_component() {
        for good in ["pvc-1", "a", "a.b-c"] {
            assert!(is_name(good), "{good}");
        }
        let long = "a".repeat(254);
        for bad in ["", ".", "..", "a/b", "../a", ".a", "a.", "A", "a b", &long] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn a_volume_is_ours_only_at_the_path_of_its_own_name() {
        let volume = |by: &str, path: &str| -> PersistentVolume {
            serde_json::from_value(json!({
                "metadata": {"name": "pvc-1", "annotations": {PROVISIONED_BY: by}},
                "spec": {"local": {"path": path}},
            }))
            .unwrap()
        };
        assert!(is_ours(&volume(PROVISIONER, &path("pvc-1"))));
        assert!(!is_ours(&volume(PROVISIONER, &path("pvc-2"))));
        assert!(!is_ours(&volume(PROVISIONER, "/etc")));
        assert!(!is_ours(&volume("other", &path("pvc-1"))));
    }
}
