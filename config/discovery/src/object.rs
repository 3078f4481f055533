//! Parses JSON that consists of one object.

use crate::fault::DocumentFault;
use serde::de::DeserializeOwned;

/// Parses one object.
///
/// The parser that serde derives refuses unknown and duplicate keys, but accepts a list of the
/// values in field order as the object; no object here contains another, so checking the first byte
/// is enough.
///
/// # Errors
/// [`DocumentFault::Malformed`] if it is not an object with exactly these fields.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DocumentFault> {
    let first = bytes
        .iter()
        .find(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
    if first != Some(&b'{') {
        return Err(DocumentFault::Malformed("not a JSON object".to_owned()));
    }
    serde_json::from_slice(bytes).map_err(|error| DocumentFault::Malformed(error.to_string()))
}
