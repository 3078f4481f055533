//! Why an image could not be built.

use image_packages::{
    elf::ElfError, fetch::FetchError, run::RunError, tools::ToolsError, unpack::UnpackError,
};
use std::path::Path;

/// Result of a build step.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an image could not be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Packages are missing.
    #[error("packages cannot be fetched")]
    Fetch(#[from] FetchError),
    /// The tools tree is missing.
    #[error("the tools tree cannot be made")]
    Tools(#[from] ToolsError),
    /// A package can't be unpacked.
    #[error("packages cannot be unpacked")]
    Unpack(#[from] UnpackError),
    /// A tool failed.
    #[error("a build tool failed")]
    Run(#[from] RunError),
    /// The lists of modules in this program cannot be parsed.
    #[error("the lists of modules of this program are damaged")]
    Lists(#[from] config_model::Faults),
    /// A file could not be read or written.
    #[error("cannot {doing} {path}")]
    File {
        /// What was tried.
        doing: &'static str,
        /// With which file.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The partition table of an image or a disk cannot be used.
    #[error("cannot use {path}")]
    Table {
        /// The path.
        path: String,
        /// The cause.
        #[source]
        source: image_format::table::TableError,
    },
    /// An ELF file cannot be parsed.
    #[error("cannot examine {path}")]
    Elf {
        /// The path.
        path: String,
        /// The cause.
        #[source]
        source: ElfError,
    },
    /// The unified kernel image cannot be assembled.
    #[error("cannot assemble the kernel image")]
    Pe(#[from] image_format::pe::PeError),
    /// The unified kernel image cannot be signed.
    #[error("cannot sign the kernel image")]
    Sign(#[from] image_format::authenticode::SignError),
    /// The EFI system partition or a NoCloud volume cannot be made.
    #[error("cannot make a FAT volume")]
    Fat(#[from] image_format::fat::FatError),
    /// The archive from which the root is made cannot be written.
    #[error("cannot archive the root")]
    Tar(#[from] image_format::tar::TooLong),
    /// Firmware variables cannot be enrolled.
    #[error("cannot enrol keys into the firmware's variables")]
    Variables(#[from] image_format::efivars::StoreError),
    /// The release's manifest cannot be signed.
    #[error("cannot sign the release")]
    Release(#[from] config_attest::release::ReleaseError),
    /// JSON could not be written.
    #[error("cannot encode {0}")]
    Json(&'static str, #[source] serde_json::Error),
    /// A key or certificate cannot be used.
    #[error("key {path} is not usable: {what}")]
    Key {
        /// The path.
        path: String,
        /// What is wrong and what is expected.
        what: String,
    },
    /// The image would break a promise or doesn't fit.
    #[error("{0}")]
    Image(String),
}

/// Names the file in an input or output error.
pub(crate) fn at(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.display().to_string();
    move |source| Error::File {
        doing,
        path,
        source,
    }
}

/// Reads a whole file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(at("read", path))
}

/// Writes a whole file.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).map_err(at("write", path))
}
