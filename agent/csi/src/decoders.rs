//! Decoders of this room that only its own functions call, for the fuzz targets of `tests/fuzz`.

use crate::grpc::{CallError, message};
use agent_grpc::Answer;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use prost::Message;

/// Decodes a driver's gRPC answer with this `grpc-status` and `grpc-message`.
///
/// # Errors
/// The driver refused, or the body is no such message; as text for a person.
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
