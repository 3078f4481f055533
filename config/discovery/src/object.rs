//! JSON that is one object.

use crate::fault::Fault;
use serde::de::DeserializeOwned;

/// Reads one object; [`Fault::Malformed`] where it is none or of other fields.
///
/// What serde derives refuses unknown and repeated keys, but takes a list of the values, in the order of the
/// fields, for the object; no object here holds another, so that the first byte tells.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    let first = bytes
        .iter()
        .find(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
    if first != Some(&b'{') {
        return Err(Fault::Malformed("not a JSON object".to_owned()));
    }
    serde_json::from_slice(bytes).map_err(|error| Fault::Malformed(error.to_string()))
}
