//! Views of the kinds that several controllers read: only the parts of an object that they need. A
//! kind that one controller reads has its view in that controller's file.

pub mod account;
pub mod namespace;
pub mod node;
pub mod pod;
pub mod request;
pub mod token;

use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use jiff::Timestamp;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// The object's UID; empty where it has none yet.
pub fn uid(meta: &ObjectMeta) -> String {
    meta.uid.clone().unwrap_or_default()
}

/// The object's resource version; empty where it has none yet.
pub fn version(meta: &ObjectMeta) -> String {
    meta.resource_version.clone().unwrap_or_default()
}

/// When the object was made.
pub fn created(meta: &ObjectMeta) -> Option<Timestamp> {
    meta.creation_timestamp.as_ref().map(|time| time.0)
}

/// Whether the object has this finalizer.
pub fn is_held_by(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().flatten().any(|own| own == finalizer)
}

/// A hash of a text, to be kept for every namespace in place of the text.
pub fn fingerprint(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
