//! Decoders of this room that only its own functions call, for the fuzz targets of `tests/fuzz`.

use crate::archive::Archive;
use crate::document::{self, Configuration, Manifest};
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
