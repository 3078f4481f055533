//! Decoders of this room that only its own functions call, for the fuzz targets of `tests/fuzz`.

use crate::error::Result;
use crate::keeper::{self, FileKeeper};
use crate::key_list::KeyList;
use rustls_pki_types::CertificateDer;
use std::path::Path;
use zeroize::Zeroizing;

/// The purpose for which the fuzz targets keep secrets; a keeper of files ignores purposes.
const PURPOSE: &str = "fuzz";

/// The list of kept keys in a folder, as JSON; `None` where there is none that this root signed.
pub fn key_list(folder: &Path, root: &[u8]) -> Option<String> {
    let list = KeyList::read(folder, &[CertificateDer::from(root)]).ok()??;
    serde_json::to_string(&list).ok()
}

/// The secret in a file, as a machine without a TPM reads it; `None` for a damaged file.
pub fn kept_secret(path: &Path) -> Option<Zeroizing<Vec<u8>>> {
    keeper::load(&FileKeeper, path, PURPOSE).ok()
}

/// Keeps a secret in a file, as a machine without a TPM does.
///
/// # Errors
/// The file can't be written.
pub fn keep_secret(path: &Path, secret: &[u8]) -> Result<()> {
    keeper::store(&FileKeeper, path, PURPOSE, secret)
}

/// The secret in what a TPM unsealed; `None` if it was not sealed for this purpose.
pub fn unsealed(purpose: &str, text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    keeper::of_purpose(purpose, Ok(text.to_owned())).ok()
}
