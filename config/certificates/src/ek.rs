//! Certificates of endorsement keys (TCG EK Credential Profile 2.x), checked without a general path
//! builder.
//!
//! Every certificate that the cluster's configuration lists for an issuer is a trust anchor of that
//! issuer; where the list also holds an anchor's own issuer, in one certificate or several, one of
//! these must be valid too.

use crate::x509;
use std::fmt;
use x509_parser::extensions::ParsedExtension;
use x509_parser::oid_registry::Oid;
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::time::ASN1Time;

/// tcg-kp-EKCertificate.
const EK_CERTIFICATE: Oid<'static> = x509_parser::der_parser::oid!(2.23.133.8.1);
/// Longest chain from an EK certificate to a root.
const MAX_DEPTH: usize = 5;

/// Certificates of a TPM manufacturer, under a name in the cluster's configuration.
#[derive(Clone)]
pub struct EkIssuer {
    name: String,
    certificates: Vec<Vec<u8>>,
}

impl fmt::Debug for EkIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "EkIssuer({:?}, {} certificates)",
            self.name,
            self.certificates.len()
        )
    }
}

/// The text holds no usable CA certificates.
#[derive(Debug, thiserror::Error)]
#[error("EK issuer {name:?}: {fault}")]
pub struct EkIssuerError {
    name: String,
    fault: &'static str,
}

impl EkIssuer {
    /// From PEM with at least one CA certificate.
    ///
    /// # Errors
    /// The text is no PEM, or holds another block than certificates; as [`EkIssuer::from_der`].
    pub fn from_pem(name: &str, pem: &str) -> Result<Self, EkIssuerError> {
        let fail = |fault| EkIssuerError {
            name: name.to_owned(),
            fault,
        };
        let mut certificates = Vec::new();
        for block in x509_parser::pem::Pem::iter_from_buffer(pem.as_bytes()) {
            let block = block.map_err(|_bad_pem| fail("not PEM"))?;
            if block.label != "CERTIFICATE" {
                return Err(fail("a PEM block is not a certificate"));
            }
            certificates.push(block.contents);
        }
        Self::from_der(name, certificates)
    }

    /// From DER certificates, at least one, each of a CA.
    ///
    /// # Errors
    /// There is no certificate, or one that cannot be parsed or is not a CA's.
    pub fn from_der(name: &str, certificates: Vec<Vec<u8>>) -> Result<Self, EkIssuerError> {
        let fail = |fault| EkIssuerError {
            name: name.to_owned(),
            fault,
        };
        if certificates.is_empty() {
            return Err(fail("no certificate"));
        }
        for der in &certificates {
            let certificate = parse(der).ok_or_else(|| fail("a certificate cannot be parsed"))?;
            if !may_issue(&certificate) {
                return Err(fail("a certificate is not a CA's"));
            }
        }
        Ok(Self {
            name: name.to_owned(),
            certificates,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

fn parse(der: &[u8]) -> Option<X509Certificate<'_>> {
    X509Certificate::from_der(der)
        .ok()
        .filter(|(rest, _)| rest.is_empty())
        .map(|(_, certificate)| certificate)
}

/// Why an EK certificate is refused; the text says what was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EkFault {
    /// It cannot be parsed.
    #[error("not a DER certificate")]
    Malformed,
    /// It certifies another key.
    #[error("the certificate's key differs from the endorsement key")]
    OtherKey,
    /// It is not one for an endorsement key.
    #[error("{0}")]
    Usage(&'static str),
    /// It, or its issuer's certificate, is not valid at this time.
    #[error("{0}")]
    Expired(String),
    /// None of the issuers signed it; the text is the issuer that it names.
    #[error("{0}")]
    Issuer(String),
}

/// Checks an EK certificate: of this key (`spki`, DER), for an EK, valid at `now` (Unix seconds),
/// signed by one of `issuers`. Returns the issuer's name.
///
/// # Errors
/// [`EkFault`], for the first of these that does not hold.
pub fn check_ek_certificate<'a>(
    der: &[u8],
    spki: &[u8],
    issuers: &[&'a EkIssuer],
    now: u64,
) -> Result<&'a str, EkFault> {
    // The signatures last: a caller with a certificate that does not fit must not cause the work.
    let certificate = parse(der).ok_or(EkFault::Malformed)?;
    if !same_key(&certificate, spki) {
        return Err(EkFault::OtherKey);
    }
    usage(&certificate).map_err(EkFault::Usage)?;
    let mut expired = !valid(&certificate, now);
    if expired {
        return Err(EkFault::Expired(validity(&certificate)));
    }
    for issuer in issuers {
        match anchored(&certificate, issuer, now) {
            Anchor::Valid => return Ok(&issuer.name),
            Anchor::Expired => expired = true,
            Anchor::None => {}
        }
    }
    let issuer = certificate.issuer().to_string();
    if expired {
        let found = format!("the certificate of {issuer} is not valid now");
        return Err(EkFault::Expired(found));
    }
    Err(EkFault::Issuer(issuer))
}

/// Whether the certificate's key is the one in `spki`. Only the key bits are compared: some
/// manufacturers write another algorithm identifier (RSAES-OAEP) for the same RSA key.
fn same_key(certificate: &X509Certificate<'_>, spki: &[u8]) -> bool {
    x509_parser::x509::SubjectPublicKeyInfo::from_der(spki).is_ok_and(|(_, key)| {
        key.subject_public_key.data == certificate.public_key().subject_public_key.data
    })
}

#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "what is known and not named here is harmless in an EK certificate"
)]
fn usage(certificate: &X509Certificate<'_>) -> Result<(), &'static str> {
    let mut for_ek = false;
    for extension in certificate.extensions() {
        match extension.parsed_extension() {
            ParsedExtension::ExtendedKeyUsage(usage) => {
                for_ek = usage.other.contains(&EK_CERTIFICATE);
            }
            ParsedExtension::BasicConstraints(constraints) if constraints.ca => {
                return Err("a CA certificate");
            }
            ParsedExtension::UnsupportedExtension { .. } | ParsedExtension::ParseError { .. }
                if extension.critical && extension.oid != SUBJECT_DIRECTORY =>
            {
                return Err("an unknown critical extension");
            }
            _ => {}
        }
    }
    if for_ek {
        Ok(())
    } else {
        Err("extended key usage 2.23.133.8.1 is missing")
    }
}

/// subjectDirectoryAttributes, in which manufacturers describe the TPM.
const SUBJECT_DIRECTORY: Oid<'static> = x509_parser::der_parser::oid!(2.5.29.9);

fn may_issue(certificate: &X509Certificate<'_>) -> bool {
    let ca = certificate
        .basic_constraints()
        .ok()
        .flatten()
        .is_some_and(|constraints| constraints.value.ca);
    let signs = certificate
        .key_usage()
        .is_ok_and(|usage| usage.is_none_or(|usage| usage.value.key_cert_sign()));
    ca && signs
}

fn valid(certificate: &X509Certificate<'_>, now: u64) -> bool {
    let now = i64::try_from(now)
        .ok()
        .and_then(|now| ASN1Time::from_timestamp(now).ok());
    now.is_some_and(|now| certificate.validity().is_valid_at(now))
}

fn validity(certificate: &X509Certificate<'_>) -> String {
    format!(
        "valid from {} to {}",
        certificate.validity().not_before,
        certificate.validity().not_after
    )
}

enum Anchor {
    Valid,
    Expired,
    None,
}

/// Whether one of the issuer's certificates signed this one and is valid, as are its own issuers in
/// the list.
fn anchored(certificate: &X509Certificate<'_>, issuer: &EkIssuer, now: u64) -> Anchor {
    let parsed: Vec<X509Certificate<'_>> = issuer
        .certificates
        .iter()
        .filter_map(|der| parse(der))
        .collect();
    chain(certificate, &parsed, now, MAX_DEPTH).unwrap_or(Anchor::None)
}

/// The best chain from a certificate over at most `left` of these; `None` if none of them signed
/// it. Several may have: manufacturers renew a CA's certificate for the same name and key, and an
/// expired one beside its successor must not decide.
fn chain(
    certificate: &X509Certificate<'_>,
    all: &[X509Certificate<'_>],
    now: u64,
    left: usize,
) -> Option<Anchor> {
    let Some(left) = left.checked_sub(1) else {
        // Longer than any real chain, or a circle.
        return Some(Anchor::None);
    };
    let mut best = None;
    for parent in all.iter().filter(|parent| signed_by(certificate, parent)) {
        let found = if !valid(parent, now) {
            Anchor::Expired
        } else if parent.subject().as_raw() == parent.issuer().as_raw() {
            Anchor::Valid
        } else {
            // Each certificate of the list is an anchor: a chain that has reached one may end
            // there.
            chain(parent, all, now, left).unwrap_or(Anchor::Valid)
        };
        match found {
            Anchor::Valid => return Some(Anchor::Valid),
            Anchor::Expired => best = Some(Anchor::Expired),
            Anchor::None => best = best.or(Some(Anchor::None)),
        }
    }
    best
}

fn signed_by(certificate: &X509Certificate<'_>, parent: &X509Certificate<'_>) -> bool {
    may_issue(parent) && x509::signed_by(certificate, parent)
}
