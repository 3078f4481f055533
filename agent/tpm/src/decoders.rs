//! Decoders of this room that only its own functions call, for the fuzz targets of `tests/fuzz`.

use crate::seal::Parts;

/// Splits a seal, as it lies on the disk, and has the TPM's library read its public part. The
/// parts, in their order; `None` for what is no seal.
pub fn seal(blob: &[u8]) -> Option<[&[u8]; 3]> {
    let parts = Parts::split(blob)?;
    parts.public_area().ok();
    Some([parts.head, parts.nonce, parts.text])
}
