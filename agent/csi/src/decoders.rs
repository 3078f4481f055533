//! Decoders of this room that only its own functions call, for the fuzz targets of `tests/fuzz`.

use crate::grpc::{CallError, message};
use crate::ledger::Ledger;
use crate::paths::{stage_folder, target_folder};
use agent_grpc::Answer;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use prost::Message;
use std::path::{Path, PathBuf};

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

/// The folders, below that of the machine's volumes, to which the volumes recorded in a folder lead
/// an agent of this boot.
pub fn recorded(folder: &Path, boot: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for mut volume in Ledger::new(folder.to_owned()).all() {
        volume.enter(boot);
        found.push(stage_folder(&volume.driver, &volume.handle));
        found.extend(volume.targets.keys().filter_map(|at| target_folder(at)));
    }
    found
}
