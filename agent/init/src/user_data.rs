//! User-data as it was found, not parsed, and why there is none.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt;

use agent_metadata::MAX_BYTES;

use crate::oneshot::OneshotError;
use crate::smbios::SmbiosError;

/// A configuration as found, not parsed.
#[derive(Clone, PartialEq, Eq)]
pub struct Found {
    /// The source's name, which is part of the measurement.
    pub label: &'static str,
    /// The exact bytes.
    pub bytes: Vec<u8>,
}

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Found({}, {} bytes)", self.label, self.bytes.len())
    }
}

/// Why there is no configuration. No content is in the text.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Nothing was found.
    #[error(
        "no configuration was found on a volume labelled CIDATA, in SMBIOS, in fw_cfg or in the image, and this machine \
         has no metadata service that the image knows or allows"
    )]
    None,
    /// The metadata service was asked and has nothing for this machine.
    #[error(
        "no configuration was found on the machine, and the metadata service of {0} has no user-data for it"
    )]
    NoUserData(&'static str),
    /// The metadata service's answer is not usable.
    #[error("what the metadata service of {0} answered can't be used (see the lines above)")]
    Service(&'static str),
    /// The metadata service could not be reached.
    #[error("the metadata service of {0} gave no answer in time (see the lines above)")]
    NoAnswer(&'static str),
    /// The program that asks the metadata service failed.
    #[error("the program that asks the metadata service of {0} failed")]
    Errand(&'static str, #[source] OneshotError),
    /// More than one was found.
    #[error("more than one configuration was found: {0}")]
    Several(String),
    /// The volume could not be mounted.
    #[error("the volume on {0} can't be mounted")]
    Mount(String, #[source] agent_sys::Error),
    /// The volume has no readable `user-data`.
    #[error("user-data on {0} can't be read")]
    Read(String, #[source] std::io::Error),
    /// `user-data` is empty, not a plain file, or too long.
    #[error("user-data on {0} is {1}")]
    Unusable(String, &'static str),
    /// An SMBIOS string is unusable.
    #[error("the SMBIOS configuration is unusable")]
    Smbios(#[source] SmbiosError),
}

/// The bytes of a plain file, 1 to [`MAX_BYTES`]; `node` is its name in messages.
pub(crate) fn read_file(path: &str, node: &str) -> Result<Vec<u8>, SourceError> {
    let read = |cause| SourceError::Read(node.to_owned(), cause);
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    let file = File::options()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .map_err(read)?;
    if !file.metadata().map_err(read)?.is_file() {
        return Err(SourceError::Unusable(node.to_owned(), "not a plain file"));
    }
    let mut bytes = Vec::new();
    let most = u64::try_from(MAX_BYTES + 1).unwrap_or(u64::MAX);
    file.take(most).read_to_end(&mut bytes).map_err(read)?;
    match bytes.len() {
        0 => Err(SourceError::Unusable(node.to_owned(), "empty")),
        1..=MAX_BYTES => Ok(bytes),
        _ => Err(SourceError::Unusable(node.to_owned(), "longer than 64 KiB")),
    }
}
