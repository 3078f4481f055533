//! Decoders of this room that only its own functions call, for the fuzz targets of `tests/fuzz`.

use crate::access::{self, Labels};
use crate::archive::Archive;
use crate::credential::Secret;
use crate::document::{self, Configuration, Manifest};
use crate::keyring::PullSecret;
use crate::registry::Reader;
use crate::session;
use crate::zstd::Frames;
use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::PathBuf;

/// Reads an image's document as an index, as a manifest and as a configuration.
pub fn image_document(document: &[u8]) {
    if let Ok(Some(manifests)) = document::manifests(document) {
        document::choose(manifests).ok();
    }
    serde_json::from_slice::<Manifest>(document).ok();
    if let Ok(configuration) = serde_json::from_slice::<Configuration>(document) {
        configuration.check().ok();
    }
}

/// Reads the index of an archive, and what it names of its blobs; how many bytes these have.
///
/// # Errors
/// What is no archive of an image, or an incomplete one.
pub fn image_archive(path: PathBuf) -> io::Result<u64> {
    let archive = Archive::at(path);
    let mut bytes = 0;
    for manifest in archive.index()?.manifests {
        bytes += io::copy(&mut archive.blob(&manifest)?.take(1 << 20), &mut io::sink())?;
    }
    Ok(bytes)
}

/// Whether a blob may be unpacked, by its frames; it is read in pieces of so many bytes, one at
/// least.
pub fn frames(blob: &[u8], piece: usize) -> bool {
    let mut frames = Frames::default();
    let mut pieces = blob.chunks(piece.max(1));
    pieces.all(|piece| frames.read(piece).is_ok())
}

/// The token in the answer of a token service; `None` where there is none that can be used.
pub fn token(answer: &[u8]) -> Option<Secret> {
    session::usable_token(answer)
}

/// The code in a document with which a registry refuses.
pub fn refusal_code(document: &[u8]) -> Option<String> {
    session::code(document)
}

/// Whether a pod may run an image with these labels: one that has this pull secret, or none.
pub fn may_run(labels: &BTreeMap<String, String>, holder: Option<&PullSecret>) -> bool {
    access::allows(&hashed(labels), holder.as_slice())
}

/// The labels of an image with one more pull secret by which pods may run it; `None` if they name
/// it already, or have no room for it.
pub fn with_reader(
    labels: &BTreeMap<String, String>,
    holder: &PullSecret,
) -> Option<BTreeMap<String, String>> {
    let more = access::with(&hashed(labels), &Reader::Holder(holder.clone()))?;
    Some(more.into_iter().collect())
}

fn hashed(labels: &BTreeMap<String, String>) -> Labels {
    labels.clone().into_iter().collect()
}
