//! Authenticode signatures: PKCS #7 `SignedData` over an `SpcIndirectDataContent`, RSA with
//! SHA-256, without a time, so that the same key and program give the same signature.

use crate::der::{octets, oid, sequence, set, take, value};
use crate::pe::{self, PeError};
use rsa::RsaPrivateKey;
use rsa::pkcs1v15::SigningKey;
use rsa::signature::{SignatureEncoding, Signer};
use sha2::{Digest, Sha256};

/// A program that could not be signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The program is not a PE32+ file that can be signed.
    #[error("cannot sign")]
    Program(#[from] PeError),
    /// The certificate is not DER X.509.
    #[error("the signer's certificate is not a DER X.509 certificate")]
    Certificate,
    /// The key does not sign.
    #[error("the signer's key does not sign")]
    Key(#[source] rsa::signature::Error),
}

const SIGNED_DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x02];
const SPC_INDIRECT_DATA: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x82, 0x37, 0x02, 0x01, 0x04];
const SPC_PE_IMAGE_DATA: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x82, 0x37, 0x02, 0x01, 0x0f];
const CONTENT_TYPE: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x03];
const MESSAGE_DIGEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x04];
const SHA256: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01];
const RSA_ENCRYPTION: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const NULL: &[u8] = &[0x05, 0x00];
const ONE: &[u8] = &[0x02, 0x01, 0x01];

/// The program with a signature by `key`, whose certificate is `certificate` (DER).
///
/// # Errors
/// It is no program that can be signed, or the certificate or key cannot be used.
pub fn sign(program: &[u8], key: &RsaPrivateKey, certificate: &[u8]) -> Result<Vec<u8>, SignError> {
    let hash = pe::authenticode_hash(program)?;
    let pkcs7 = signature(&hash, key, certificate)?;
    Ok(pe::with_signature(program, &pkcs7)?)
}

fn signature(
    hash: &[u8; 32],
    key: &RsaPrivateKey,
    certificate: &[u8],
) -> Result<Vec<u8>, SignError> {
    let (issuer, serial) = issuer_and_serial(certificate).ok_or(SignError::Certificate)?;
    let sha256 = sequence(&[&oid(SHA256), NULL]);
    // SpcPeImageData: no flags, a file that is the empty string (as every signer writes it).
    let file = value(0xa0, &value(0xa2, &value(0x80, &[])));
    let image = sequence(&[
        &oid(SPC_PE_IMAGE_DATA),
        &sequence(&[&value(0x03, &[0]), &file]),
    ]);
    let content = [image, sequence(&[&sha256, &octets(hash)])].concat();
    // The digest is over the content of the SEQUENCE, without its tag and length (PKCS #7, 9.3).
    let digest = Sha256::digest(&content);
    let attributes = [
        sequence(&[&oid(CONTENT_TYPE), &set(&oid(SPC_INDIRECT_DATA))]),
        sequence(&[&oid(MESSAGE_DIGEST), &set(&octets(&digest))]),
    ]
    .concat();
    let rsa = SigningKey::<Sha256>::new(key.clone());
    let signature = rsa.try_sign(&set(&attributes)).map_err(SignError::Key)?;
    let info = sequence(&[
        ONE,
        &sequence(&[issuer, serial]),
        &sha256,
        &value(0xa0, &attributes),
        &sequence(&[&oid(RSA_ENCRYPTION), NULL]),
        &octets(&signature.to_bytes()),
    ]);
    let data = sequence(&[
        ONE,
        &set(&sha256),
        &sequence(&[
            &oid(SPC_INDIRECT_DATA),
            &value(0xa0, &value(0x30, &content)),
        ]),
        &value(0xa0, certificate),
        &set(&info),
    ]);
    Ok(sequence(&[&oid(SIGNED_DATA), &value(0xa0, &data)]))
}

/// The issuer's name and the serial number of a certificate, each as a whole DER value.
fn issuer_and_serial(certificate: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_, mut outer, _) = take(&mut { certificate })?;
    let (_, mut inner, _) = take(&mut outer)?;
    let (mut tag, _, mut whole) = take(&mut inner)?;
    if tag == 0xa0 {
        (tag, _, whole) = take(&mut inner)?;
    }
    let serial = (tag == 0x02).then_some(whole)?;
    let (_algorithm, _, _) = take(&mut inner)?;
    let (tag, _, issuer) = take(&mut inner)?;
    (tag == 0x30).then_some((issuer, serial))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_is_none_is_refused() {
        assert_eq!(issuer_and_serial(b"no certificate"), None);
        assert_eq!(issuer_and_serial(&[0x30, 0x03, 0x30, 0x01, 0x02]), None);
    }
}
