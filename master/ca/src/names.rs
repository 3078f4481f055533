//! Text forms of certificates and keys: pins, serial numbers, hex, PEM.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::fmt::Write as _;
use x509_parser::prelude::{FromDer as _, X509Certificate};
use zeroize::Zeroizing;

/// `sha256:<hex>` of a SubjectPublicKeyInfo DER.
pub fn spki_hash(spki: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, spki);
    format!("sha256:{}", hex(digest.as_ref()))
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _infallible = write!(text, "{byte:02x}");
            text
        })
}

/// The reverse of [`hex`] for 32 bytes; `None` for anything else.
pub(crate) fn unhex(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    let mut out = Zeroizing::new([0; 32]);
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(out)
}

/// The SubjectPublicKeyInfo DER of a certificate; `None` where the bytes aren't one.
pub fn spki_of(certificate: &[u8]) -> Option<Vec<u8>> {
    X509Certificate::from_der(certificate)
        .ok()
        .map(|(_, parsed)| parsed.public_key().raw.to_vec())
}

/// Hex of a certificate's serial number, without leading zeroes; `None` where the bytes aren't a
/// certificate.
pub fn serial_of(certificate: &[u8]) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(hex(parsed.raw_serial()).trim_start_matches('0').to_owned())
}

/// PEM with a label, 64 characters a line (RFC 7468).
pub fn pem(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in body.as_bytes().chunks(64) {
        text.push_str(&String::from_utf8_lossy(line));
        text.push('\n');
    }
    let _infallible = writeln!(text, "-----END {label}-----");
    text
}

/// The certificates of a PEM text, in order.
pub fn certificates_of_pem(text: &str) -> Vec<Vec<u8>> {
    use rustls_pki_types::pem::PemObject as _;
    rustls_pki_types::CertificateDer::pem_slice_iter(text.as_bytes())
        .filter_map(Result::ok)
        .map(|certificate| certificate.to_vec())
        .collect()
}

/// The public keys (SubjectPublicKeyInfo) of a PEM text, in order; `None` where it holds anything
/// else.
pub(crate) fn public_keys_of_pem(text: &str) -> Option<Vec<Vec<u8>>> {
    use rustls_pki_types::pem::PemObject as _;
    rustls_pki_types::SubjectPublicKeyInfoDer::pem_slice_iter(text.as_bytes())
        .map(|key| key.ok().map(|key| key.to_vec()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_read_back() {
        let bytes = [0xA7; 32];
        assert_eq!(unhex(&hex(&bytes)).as_deref(), Some(&bytes));
        for bad in [
            "",
            "a7",
            &"g7".repeat(32),
            &"+7".repeat(32),
            &"é".repeat(32),
        ] {
            assert_eq!(unhex(bad), None, "{bad}");
        }
    }

    #[test]
    fn pem_is_read_back() {
        let der = vec![7_u8; 100];
        assert_eq!(certificates_of_pem(&pem("CERTIFICATE", &der)), vec![der]);
    }
}
