//! The unified kernel image: systemd-stub with the kernel, its command line and the initrd.

use crate::error::Result;
use crate::initrd;
use crate::release::Measured;
use config_tpm::Digest;
use image_format::{authenticode, pe};
use rsa::RsaPrivateKey;
use std::fmt;

/// The parts of the image.
#[derive(Debug)]
pub struct Parts<'a> {
    /// systemd-stub, `linuxx64.efi.stub`.
    pub stub: &'a [u8],
    /// The kernel.
    pub linux: &'a [u8],
    /// os-release text.
    pub osrel: &'a str,
    /// Kernel command line.
    pub command_line: &'a str,
    /// The initrd.
    pub initrd: &'a [u8],
    /// Kernel release.
    pub uname: &'a str,
}

/// A unified kernel image and what will be measured of it.
#[derive(Debug)]
pub struct Uki {
    /// The file.
    pub bytes: Vec<u8>,
    /// What firmware and stub measure.
    pub measured: Measured,
}

/// Who signs an image for Secure Boot.
#[derive(Clone, Copy)]
pub struct Signer<'a> {
    /// The key.
    pub key: &'a RsaPrivateKey,
    /// Its certificate, DER.
    pub certificate: &'a [u8],
}

impl fmt::Debug for Signer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").finish_non_exhaustive()
    }
}

/// Assembles the image and, where a signer is given, signs it.
///
/// # Errors
/// The stub is no program with room for the sections, or the signer cannot be used.
pub fn make(parts: &Parts<'_>, signer: Option<Signer<'_>>) -> Result<Uki> {
    let added: [(&str, &[u8]); 5] = [
        (".osrel", parts.osrel.as_bytes()),
        (".cmdline", parts.command_line.as_bytes()),
        (".uname", parts.uname.as_bytes()),
        (".initrd", parts.initrd),
        (".linux", parts.linux),
    ];
    let plain = pe::with_sections(parts.stub, &added)?;
    // The stub measures in the order of its own table, not of the file (systemd-stub(7);
    // `unified_sections`).
    let mut sections = Vec::new();
    for name in [".linux", ".osrel", ".cmdline", ".initrd", ".uname", ".sbat"] {
        sections.push((name.to_owned(), pe::section(&plain, name)?.to_vec()));
    }
    let measured = Measured {
        program: Digest(pe::authenticode_hash(&plain)?),
        kernel: Digest(pe::authenticode_hash(parts.linux)?),
        command_line: parts.command_line.to_owned(),
        initrd: Digest::of(&initrd::as_measured(parts.initrd, parts.osrel.as_bytes())),
        sections,
    };
    let bytes = match signer {
        Some(Signer { key, certificate }) => authenticode::sign(&plain, key, certificate)?,
        None => plain,
    };
    Ok(Uki { bytes, measured })
}
