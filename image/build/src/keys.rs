//! Development keys: the release key and the Secure Boot key, made on first use; and reading keys
//! of either kind.

use crate::error::{Error, Result, at, read, write};
use image_format::{Guid, efivars};
use p256::ecdsa::SigningKey;
use p256::pkcs8::{DecodePrivateKey, EncodePrivateKey, EncodePublicKey, LineEnding};
use rsa::RsaPrivateKey;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Owner of the entries that we enrol.
pub const OWNER: Guid = Guid::new(0x3c5b_1d1c_8d5a_4f0e_9d57_7072_6174_6971);
const RSA_BITS: usize = 2048;

/// Names in the folder of keys.
pub mod names {
    /// Release key, P-256, PKCS #8 PEM.
    pub const RELEASE: &str = "release.key";
    /// Its public key, PEM.
    pub const RELEASE_PUBLIC: &str = "release.pub";
    /// Secure Boot key, RSA-2048, PKCS #8 PEM.
    pub const SECURE_BOOT: &str = "sb.key";
    /// Its certificate, PEM: PK, KEK and db of a development machine.
    pub const SECURE_BOOT_CERT: &str = "sb.crt";
    /// Firmware variables with that certificate enrolled.
    pub const VARIABLES: &str = "vars.fd";
    /// Firmware variables without keys: Secure Boot off.
    pub const VARIABLES_BLANK: &str = "vars-blank.fd";
}

/// Makes what is missing of the development keys in a folder; private keys are readable by their
/// owner only.
///
/// # Errors
/// A file cannot be written, or holds something else than a key.
pub fn ensure(folder: &Path) -> Result<()> {
    ensure_release(folder)?;
    let path = folder.join(names::SECURE_BOOT);
    if !path.exists() {
        let key =
            RsaPrivateKey::new(&mut rand_core::OsRng, RSA_BITS).map_err(|e| unusable(&path, &e))?;
        private(
            &path,
            key.to_pkcs8_pem(LineEnding::LF)
                .map_err(|e| unusable(&path, &e))?
                .as_bytes(),
        )?;
    }
    let cert = folder.join(names::SECURE_BOOT_CERT);
    if !cert.exists() {
        write(&cert, self_signed(&path)?.as_bytes())?;
    }
    Ok(())
}

/// Makes the release key alone, where it is missing.
///
/// # Errors
/// A file cannot be written, or holds something else than a key.
pub fn ensure_release(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(at("make", folder))?;
    let path = folder.join(names::RELEASE);
    if !path.exists() {
        let key = SigningKey::random(&mut rand_core::OsRng);
        private(
            &path,
            key.to_pkcs8_pem(LineEnding::LF)
                .map_err(|e| unusable(&path, &e))?
                .as_bytes(),
        )?;
    }
    let public = folder.join(names::RELEASE_PUBLIC);
    if !public.exists() {
        let key = release_key(&path)?;
        let pem = key
            .verifying_key()
            .to_public_key_pem(LineEnding::LF)
            .map_err(|e| unusable(&path, &e))?;
        write(&public, pem.as_bytes())?;
    }
    Ok(())
}

fn unusable(path: &Path, error: &dyn std::error::Error) -> Error {
    Error::Key {
        path: path.display().to_string(),
        what: error.to_string(),
    }
}

fn private(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(at("write", path))?;
    file.write_all(bytes).map_err(at("write", path))
}

fn text(path: &Path) -> Result<String> {
    let bytes = read(path)?;
    String::from_utf8(bytes).map_err(|e| unusable(path, &e))
}

/// A certificate of the Secure Boot key by itself.
fn self_signed(key: &Path) -> Result<String> {
    let fault = |e: rcgen::Error| unusable(key, &e);
    let pair = rcgen::KeyPair::from_pem(&text(key)?).map_err(fault)?;
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(
        rcgen::DnType::CommonName,
        "Pratique development Secure Boot",
    );
    params.not_before = rcgen::date_time_ymd(2026, 1, 1);
    params.not_after = rcgen::date_time_ymd(2056, 1, 1);
    params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::CodeSigning];
    Ok(params.self_signed(&pair).map_err(fault)?.pem())
}

/// Reads a release key.
///
/// # Errors
/// The file cannot be read, or is no ECDSA P-256 key as PKCS #8 PEM.
pub fn release_key(path: &Path) -> Result<SigningKey> {
    SigningKey::from_pkcs8_pem(&text(path)?).map_err(|e| Error::Key {
        path: path.display().to_string(),
        what: format!("expected an ECDSA P-256 key as PKCS #8 PEM: {e}"),
    })
}

/// Reads a Secure Boot key.
///
/// # Errors
/// The file cannot be read, or is no RSA key as PKCS #8 PEM.
pub fn secure_boot_key(path: &Path) -> Result<RsaPrivateKey> {
    RsaPrivateKey::from_pkcs8_pem(&text(path)?).map_err(|e| Error::Key {
        path: path.display().to_string(),
        what: format!("expected an RSA key as PKCS #8 PEM: {e}"),
    })
}

/// Reads a PEM certificate; gives its DER.
///
/// # Errors
/// The file cannot be read, or is no certificate in PEM.
pub fn certificate(path: &Path) -> Result<Vec<u8>> {
    use rustls_pki_types::pem::PemObject;
    rustls_pki_types::CertificateDer::from_pem_slice(&read(path)?)
        .map(|der| der.to_vec())
        .map_err(|e| Error::Key {
            path: path.display().to_string(),
            what: format!("expected a PEM certificate: {e}"),
        })
}

/// The firmware's empty variable store with certificates (DER) enrolled and Secure Boot on.
///
/// # Errors
/// As [`efivars::enrolled`].
pub fn enrolled(template: &[u8], pk: &[u8], kek: &[u8], db: &[u8]) -> Result<Vec<u8>> {
    let list = |der: &[u8]| efivars::signature_list(OWNER, der);
    Ok(efivars::enrolled(
        template,
        &list(pk),
        &list(kek),
        &list(db),
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn keys_are_made_once_and_kept_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(names::RELEASE);
        ensure_release(folder.path()).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let key = release_key(&path).unwrap();
        ensure_release(folder.path()).unwrap();
        assert_eq!(release_key(&path).unwrap(), key);
        assert!(
            secure_boot_key(&path)
                .unwrap_err()
                .to_string()
                .contains("expected an RSA key")
        );
    }
}
