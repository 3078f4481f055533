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

/// Annotation of a mirror: the UID of the static pod that it shows.
pub const MIRROR: &str = "kubernetes.io/config.mirror";
/// Annotation of a static pod and its mirror: the same UID.
pub const HASH: &str = "kubernetes.io/config.hash";
/// Annotation of a static pod and its mirror: where the pod comes from.
pub const SOURCE: &str = "kubernetes.io/config.source";
