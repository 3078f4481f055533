//! Static pods: what a machine's own configuration says that it runs, with or without a master. No
//! I/O.
//!
//! [`read`] makes a pod from a manifest, as upstream's kubelet does: its name ends with the node's,
//! and its UID follows from the manifest, so that a changed one is another pod. The master shows a
//! *mirror* of it, an object that the node makes; [`steps`] says which mirrors are to be made and
//! deleted. A mirror decides nothing: the manifest was measured with the configuration, and what
//! anybody writes to the mirror changes no container.

mod manifest;
mod mirror;

pub use manifest::{ManifestError, read};
pub use mirror::{Mirror, Step, mirror_of, steps};

use config_kube::k8s_openapi::api::core::v1::Pod;

/// Annotation of a mirror: the UID of the static pod that it shows.
pub const MIRROR: &str = "kubernetes.io/config.mirror";
/// Annotation of a static pod and its mirror: the same UID.
pub const HASH: &str = "kubernetes.io/config.hash";
/// Annotation of a static pod and its mirror: where the pod comes from.
pub const SOURCE: &str = "kubernetes.io/config.source";

/// Whether a pod that a node runs comes from the machine's configuration, as [`SOURCE`] says. The
/// node takes that annotation from pods of the API ([`from_api`]).
#[must_use]
pub fn is_static(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.contains_key(SOURCE))
}

/// A pod as the API has it, without the word of its author that it is a static one.
#[must_use]
pub fn from_api(mut pod: Pod) -> Pod {
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.remove(SOURCE);
    }
    pod
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_author_of_the_api_makes_a_static_pod() {
        let manifest = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: a, image: i}]}}";
        let pod = read(manifest, "node").unwrap();
        assert!(is_static(&pod));
        let pod = from_api(pod);
        assert!(!is_static(&pod));
        assert!(pod.metadata.annotations.unwrap().contains_key(HASH));
    }
}
