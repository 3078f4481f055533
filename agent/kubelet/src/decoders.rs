//! Decoders of this room that only its own functions call, for the fuzz targets of `tests/fuzz`.

use crate::worker::evict;
use agent_pods::Eviction;

/// The eviction of a pod that a record has, and the record that an agent would write of it.
pub fn eviction(record: &[u8]) -> Option<(Eviction, String)> {
    let eviction = evict::read(record.to_owned())?;
    let written = evict::written(&eviction);
    Some((eviction, written))
}
