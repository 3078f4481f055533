//! The release: the predicted measurements of the image, with Secure Boot on and off, and its
//! content.

use crate::error::{Error, Result};
use crate::keys::OWNER;
use crate::root::{self, Entries};
use config_attest::release::{Executable, Package, Part};
use config_tpm::Digest;
use config_tpm::boot::Boot;
use config_tpm::pcr;
use config_tpm::pcr::{PredictedEvent, SecureBootKeys};
use image_format::efivars;
use serde::Serialize;
use std::collections::BTreeMap;

/// The measurements of a unified kernel image by firmware and stub.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Authenticode hash of the whole.
    pub program: Digest,
    /// Authenticode hash of the kernel inside, which firmware measures too where Secure Boot is
    /// off.
    pub kernel: Digest,
    /// The command line.
    pub command_line: String,
    /// Digest of the initrd as the kernel gets it.
    pub initrd: Digest,
    /// Sections in the order in which the stub measures them.
    pub sections: Vec<(String, Vec<u8>)>,
}

/// Certificates (DER) enrolled in the machines that the image is made for.
#[derive(Debug, Clone)]
pub struct Enrolled {
    /// Platform key.
    pub pk: Vec<u8>,
    /// Key exchange key.
    pub kek: Vec<u8>,
    /// Allowed signer.
    pub db: Vec<u8>,
}

/// The ways in which the image may start: Secure Boot off, and on where keys are given.
pub fn boots(measured: &Measured, enrolled: Option<&Enrolled>) -> Vec<Boot> {
    let off = boot(measured, &SecureBootKeys::default());
    let on = enrolled.map(|keys| {
        let list = |der: &[u8]| efivars::signature_list(OWNER, der);
        let keys = SecureBootKeys {
            enabled: true,
            pk: list(&keys.pk),
            kek: list(&keys.kek),
            db: list(&keys.db),
            dbx: Vec::new(),
            authorities: vec![efivars::signature_data(OWNER, &keys.db)],
        };
        boot(measured, &keys)
    });
    on.into_iter().chain([off]).collect()
}

fn boot(measured: &Measured, keys: &SecureBootKeys) -> Boot {
    let programs: &[Digest] = if keys.enabled {
        &[measured.program]
    } else {
        &[measured.program, measured.kernel]
    };
    let sections = measured
        .sections
        .iter()
        .map(|(name, data)| (name.as_str(), data.as_slice()));
    let events: BTreeMap<u8, Vec<PredictedEvent>> = BTreeMap::from([
        (4, pcr::pcr4_events(programs)),
        (7, pcr::pcr7_events(keys)),
        (
            9,
            pcr::pcr9_events(&measured.command_line, &measured.initrd),
        ),
        (11, pcr::pcr11_events(sections)),
    ]);
    let pcrs = events
        .iter()
        .map(|(index, list)| (*index, vec![pcr::replay_events(list)]))
        .collect();
    Boot {
        secure_boot: keys.enabled,
        pcrs,
        events,
    }
}

/// A part as the manifest lists it.
pub fn part(name: &str, bytes: &[u8]) -> Part {
    Part {
        name: name.to_owned(),
        size: bytes.len() as u64,
        digest: Digest::of(bytes),
    }
}

/// The executables of a root as the manifest lists them.
pub fn executables(entries: &Entries) -> Vec<Executable> {
    root::executables(entries)
        .into_iter()
        .map(|(path, content)| Executable {
            path,
            size: content.len() as u64,
            digest: Digest::of(content),
        })
        .collect()
}

/// Packages as the manifest lists them.
///
/// # Errors
/// A package's digest is no SHA-256.
pub fn packages(fetched: &[image_packages::Package]) -> Result<Vec<Package>> {
    let mut out = Vec::new();
    for package in fetched {
        let digest = package.locked.sha256.parse().map_err(|_not_a_digest| {
            Error::Image(format!(
                "package {} has no usable digest",
                package.locked.name
            ))
        })?;
        out.push(Package {
            name: package.locked.name.clone(),
            version: package.locked.version.clone(),
            digest,
        });
    }
    Ok(out)
}

/// Sizes for a person and for benchmarks: `ROLE.parts.json`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sizes {
    /// Bytes that the image has: kernel image, root and verity tree.
    pub total: u64,
    /// Bytes of each part, and of what the kernel image consists of.
    pub parts: Vec<Part>,
    /// The executables, largest first.
    pub executables: Vec<Executable>,
    /// All files of the root with their bytes before compression, largest first.
    pub files: Vec<(String, u64)>,
}
