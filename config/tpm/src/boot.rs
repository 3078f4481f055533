//! The register values after a boot, as an image's build predicts them.

use crate::Digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One boot variant of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Boot {
    /// Whether Secure Boot is on.
    pub secure_boot: bool,
    /// For each predicted register the allowed final values. 4, 9 and 11 are required; 7 may be
    /// absent with Secure Boot off.
    pub pcrs: BTreeMap<u8, Vec<Digest>>,
    /// For a register the events in their order. Where given, the log must hold exactly these.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub events: BTreeMap<u8, Vec<ExpectedEvent>>,
}

/// An event that will be in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExpectedEvent {
    /// Type, see [`crate::eventlog::kind`].
    pub kind: u32,
    /// Digest.
    pub digest: Digest,
    /// What it is, for a person.
    pub note: String,
}
