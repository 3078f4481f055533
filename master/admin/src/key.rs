//! The admin's key: a P-256 key in a PKCS#8 PEM file that only its owner can read.

use crate::error::{Error, Result};
use crate::files;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _};
use std::path::Path;

/// The admin's key pair.
pub(crate) struct AdminKey {
    pair: KeyPair,
}

impl AdminKey {
    /// Reads the key, or makes it where there is none. The second value says whether it was made.
    pub(crate) fn open(path: &Path) -> Result<(Self, bool)> {
        if path.exists() {
            let text = files::read_text(path)?;
            let pair = KeyPair::from_pem(&text).map_err(|e| {
                Error::input(
                    path.display().to_string(),
                    format!("not a private key in PKCS#8 PEM: {e}"),
                    "name the admin's key, or a path where there is no file yet",
                )
            })?;
            if pair.algorithm() != &rcgen::PKCS_ECDSA_P256_SHA256 {
                return Err(Error::input(
                    path.display().to_string(),
                    "not a P-256 key",
                    "make one with `pratique admin-key --out FILE`",
                ));
            }
            return Ok((Self { pair }, false));
        }
        let pair = KeyPair::generate().map_err(|source| Error::Key {
            what: "make a key",
            source,
        })?;
        files::write_private(path, pair.serialize_pem().as_bytes(), false)?;
        Ok((Self { pair }, true))
    }

    /// `sha256:<hex>` of its SubjectPublicKeyInfo: what the first master's user-data names.
    pub(crate) fn hash(&self) -> String {
        master_ca::spki_hash(&self.pair.subject_public_key_info())
    }

    /// PKCS#8 PEM.
    pub(crate) fn pem(&self) -> String {
        self.pair.serialize_pem()
    }

    /// PKCS#8 DER.
    pub(crate) fn der(&self) -> Vec<u8> {
        self.pair.serialize_der()
    }

    /// A certificate request that shows possession of the key; its subject is decided by the
    /// master.
    pub(crate) fn request(&self) -> Result<Vec<u8>> {
        let fail = |source| Error::Key {
            what: "make a certificate request",
            source,
        };
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "admin");
        Ok(params
            .serialize_request(&self.pair)
            .map_err(fail)?
            .der()
            .to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_key_is_made_once_and_only_for_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.key");
        let (made, fresh) = AdminKey::open(&path).unwrap();
        assert!(fresh);
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let (read, fresh) = AdminKey::open(&path).unwrap();
        assert!(!fresh);
        assert_eq!(read.hash(), made.hash());
    }

    #[test]
    fn a_file_that_is_no_key_is_kept_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        std::fs::write(&path, "not a key").unwrap();
        let error = AdminKey::open(&path)
            .err()
            .map(|e| e.to_string())
            .unwrap_or_default();
        assert!(
            error.contains("notes.txt") && error.contains("what to do"),
            "{error}"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "not a key");
    }
}
