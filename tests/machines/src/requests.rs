//! Certificate requests and EK certificates, honest and hostile.

use p256::ecdsa::signature::Signer as _;
use p256::ecdsa::{Signature, SigningKey};
use rcgen::{
    CertificateParams, CustomExtension, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    KeyUsagePurpose, PublicKeyData, SanType, SignatureAlgorithm, SubjectPublicKeyInfo,
};
use std::net::IpAddr;

/// The content of a certificate request.
#[derive(Debug, Clone)]
pub struct Requester {
    /// Common name.
    pub common_name: String,
    /// Organization.
    pub organization: String,
    /// Further attribute of the subject: organizational unit.
    pub unit: Option<String>,
    /// DNS names and addresses.
    pub names: Vec<String>,
    /// E-mail address among the names.
    pub email: Option<String>,
    /// Key usages.
    pub usages: Vec<KeyUsagePurpose>,
    /// Extended key usages.
    pub extended_usages: Vec<ExtendedKeyUsagePurpose>,
    /// Other extensions: OID, DER content, critical.
    pub extensions: Vec<(Vec<u64>, Vec<u8>, bool)>,
}

impl Requester {
    /// An honest node's request.
    pub fn node(node: &str, names: &[String]) -> Self {
        Self {
            common_name: format!("system:node:{node}"),
            organization: "system:nodes".to_owned(),
            unit: None,
            names: names.to_vec(),
            email: None,
            usages: Vec::new(),
            extended_usages: Vec::new(),
            extensions: Vec::new(),
        }
    }

    /// The DER request, signed by a key.
    pub fn request(&self, key: &SigningKey) -> Vec<u8> {
        self.request_by(&Pair::of(key))
    }

    /// The same by a key of any kind.
    pub fn request_by(&self, key: &impl rcgen::SigningKey) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, self.common_name.clone());
        params
            .distinguished_name
            .push(DnType::OrganizationName, self.organization.clone());
        if let Some(unit) = &self.unit {
            params
                .distinguished_name
                .push(DnType::OrganizationalUnitName, unit.clone());
        }
        params.subject_alt_names = self.names.iter().map(|name| san(name)).collect();
        if let Some(email) = &self.email {
            params.subject_alt_names.push(SanType::Rfc822Name(
                email.as_str().try_into().expect("ASCII"),
            ));
        }
        params.key_usages.clone_from(&self.usages);
        params.extended_key_usages.clone_from(&self.extended_usages);
        params.custom_extensions = self
            .extensions
            .iter()
            .map(|(oid, content, critical)| {
                let mut extension = CustomExtension::from_oid_content(oid, content.clone());
                extension.set_criticality(*critical);
                extension
            })
            .collect();
        let request = params
            .serialize_request(key)
            .expect("a request of supported fields");
        request.der().to_vec()
    }
}

fn san(name: &str) -> SanType {
    match name.parse::<IpAddr>() {
        Ok(address) => SanType::IpAddress(address),
        Err(_) => SanType::DnsName(name.try_into().expect("an ASCII name")),
    }
}

/// rcgen's form of a P-256 key. It signs as RFC 6979 says: the same key gives the same
/// certificates, byte for byte, so that a case of a property test or of a fuzz target is the same
/// case in every run.
#[derive(Debug, Clone)]
pub struct Pair {
    key: SigningKey,
    point: Vec<u8>,
}

impl Pair {
    /// The pair of a private key.
    pub fn of(key: &SigningKey) -> Self {
        Self {
            key: key.clone(),
            point: key
                .verifying_key()
                .to_encoded_point(false)
                .as_bytes()
                .to_vec(),
        }
    }
}

impl PublicKeyData for Pair {
    fn der_bytes(&self) -> &[u8] {
        &self.point
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

impl rcgen::SigningKey for Pair {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        let signature: Signature = self.key.sign(message);
        Ok(signature.to_der().as_bytes().to_vec())
    }
}

/// An issuer of EK certificates: DER certificate and key.
#[derive(Debug, Clone)]
pub(super) struct Maker {
    pub(super) key: SigningKey,
    pub(super) der: Vec<u8>,
}

impl Maker {
    pub(super) fn new(name: &str, key: SigningKey) -> Self {
        let der = Self::params(name)
            .self_signed(&Pair::of(&key))
            .expect("a CA certificate")
            .der()
            .to_vec();
        Self { key, der }
    }

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params
    }
}

/// A certificate for an EK (SubjectPublicKeyInfo DER), with the extended key usage `usage`
/// (2.23.133.8.1 for an honest one), valid from 2020 until the year `until`.
pub fn ek_certificate(
    issuer: &str,
    key: &SigningKey,
    spki: &[u8],
    usage: &[u64],
    until: i32,
) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(until, 12, 31);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Other(usage.to_vec())];
    let public = SubjectPublicKeyInfo::from_der(spki).expect("a key that rcgen knows");
    let ca = rcgen::Issuer::new(Maker::params(issuer), Pair::of(key));
    params
        .signed_by(&public, &ca)
        .expect("an EK certificate")
        .der()
        .to_vec()
}
