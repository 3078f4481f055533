//! Endorsement keys as admins have them: certificate, public key, or the TPM's own public area.

use crate::error::{Error, Result};
use crate::files;
use config_tpm::Digest;
use config_tpm::Public;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use std::path::Path;
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::x509::SubjectPublicKeyInfo;

/// The hash of the endorsement key in a file.
pub(crate) fn hash_of_file(path: &Path) -> Result<Digest> {
    read(path).map(|spki| Digest::of(&spki))
}

/// The SubjectPublicKeyInfo of the endorsement key in a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let bytes = files::read(path)?;
    spki_of(&bytes).ok_or_else(|| {
        Error::input(
            path.display().to_string(),
            "neither an EK certificate, a public key (both PEM or DER), nor a TPM public area",
            "take the file that `swtpm_setup --write-ek-cert-files` or `tpm2_getekcertificate` wrote, or the output of \
             `tpm2_readpublic -o`",
        )
    })
}

/// Reads `sha256:<hex>`.
pub(crate) fn hash_of_text(text: &str) -> Result<Digest> {
    text.parse().map_err(|e: config_tpm::digest::NotADigest| {
        Error::input(text, e.to_string(), "write it as sha256: and 64 hex digits")
    })
}

/// The SubjectPublicKeyInfo in any of the forms.
fn spki_of(bytes: &[u8]) -> Option<Vec<u8>> {
    if let Ok(certificate) = CertificateDer::from_pem_slice(bytes) {
        return spki_of_certificate(&certificate);
    }
    if let Ok(key) = SubjectPublicKeyInfoDer::from_pem_slice(bytes) {
        return Some(key.to_vec());
    }
    spki_of_certificate(bytes)
        .or_else(|| spki_of_key(bytes))
        .or_else(|| spki_of_area(bytes))
}

/// NV indices are larger than their certificates, so bytes after the certificate are ignored.
fn spki_of_certificate(der: &[u8]) -> Option<Vec<u8>> {
    X509Certificate::from_der(der)
        .ok()
        .map(|(_, parsed)| parsed.public_key().raw.to_vec())
}

fn spki_of_key(der: &[u8]) -> Option<Vec<u8>> {
    SubjectPublicKeyInfo::from_der(der)
        .ok()
        .filter(|(rest, _)| rest.is_empty())
        .map(|(_, key)| key.raw.to_vec())
}

/// `TPM2B_PUBLIC` (with its size in front) or `TPMT_PUBLIC`.
fn spki_of_area(bytes: &[u8]) -> Option<Vec<u8>> {
    let unsized_area = bytes.split_first_chunk::<2>().and_then(|(size, rest)| {
        (usize::from(u16::from_be_bytes(*size)) == rest.len()).then_some(rest)
    });
    let public = Public::parse(unsized_area.unwrap_or(bytes)).ok()?;
    public.spki().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, PublicKeyData as _};

    #[test]
    fn certificate_and_key_in_both_encodings_have_one_hash() {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::default().self_signed(&key).unwrap();
        let expected = Some(key.subject_public_key_info());
        let mut padded = certificate.der().to_vec();
        padded.extend_from_slice(&[0xff; 32]);
        assert_eq!(spki_of(certificate.der()), expected);
        assert_eq!(spki_of(&padded), expected);
        assert_eq!(spki_of(certificate.pem().as_bytes()), expected);
        assert_eq!(spki_of(key.public_key_pem().as_bytes()), expected);
        assert_eq!(spki_of(&key.subject_public_key_info()), expected);
        assert_eq!(spki_of(b"something else"), None);
    }
}
