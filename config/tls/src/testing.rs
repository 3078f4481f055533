//! Certificates for tests.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use rustls::pki_types::CertificateDer;

/// A root and its key.
pub(crate) struct Issuer(CertifiedIssuer<'static, KeyPair>);

impl Issuer {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn root(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    /// A certificate for a common name, DNS names and one usage.
    pub(crate) fn issue(
        &self,
        name: &str,
        names: &[&str],
        usage: ExtendedKeyUsagePurpose,
    ) -> CertificateDer<'static> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        params.signed_by(&key, &self.0).unwrap().der().clone()
    }
}

/// A client's certificate.
pub(crate) fn client(issuer: &Issuer, name: &str) -> CertificateDer<'static> {
    issuer.issue(name, &[], ExtendedKeyUsagePurpose::ClientAuth)
}

/// A server's certificate.
pub(crate) fn server(issuer: &Issuer, name: &str) -> CertificateDer<'static> {
    issuer.issue(
        name,
        &["server.example"],
        ExtendedKeyUsagePurpose::ServerAuth,
    )
}
