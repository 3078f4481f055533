//! Decoders of this room that only its own functions call, for the fuzz targets of `tests/fuzz`.

use crate::grpc::{CallError, message};
use agent_grpc::Answer;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use prost::Message;

/// Reads a driver's answer whose headers have this status and these words.
///
/// # Errors
/// The words for a person: the driver refused, or it is no such message.
pub fn answer<A: Message + Default>(status: &[u8], words: &[u8], body: Bytes) -> Result<A, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in [("grpc-status", status), ("grpc-message", words)] {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(name, value);
        }
    }
    let answer = Answer {
        headers,
        trailers: None,
        body,
    };
    message(answer).map_err(|error: CallError| error.to_string())
}
