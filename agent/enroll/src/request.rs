//! Both certificate requests of a node, and the certificates that answer them.

use crate::Error;
use crate::keys::NodeKey;
use config_kube::identity::{NODES_GROUP, node_user};
use config_protocol::wire::Certificates;
use config_tls::{Pin, spki_hash};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _, SigningKey,
};
use rustls::crypto::ring::sign::any_ecdsa_type;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use std::sync::Arc;

/// Most certificates that are read from one PEM text.
const CHAIN_LIMIT: usize = 8;

/// Both requests, and the serving key, which is only in memory: a TLS server signs before it knows
/// its client, and a TPM is too slow for that.
#[derive(Debug)]
pub(crate) struct CertificateRequests {
    /// DER of the request for the client certificate, signed by the node key.
    pub(crate) client: Vec<u8>,
    /// DER of the request for the serving certificate, signed by the serving key.
    pub(crate) serving: Vec<u8>,
    serving_key: KeyPair,
}

/// Makes both requests for the node `name`, with a new serving key.
pub(crate) fn requests(node_key: &NodeKey, name: &str) -> Result<CertificateRequests, Error> {
    let serving_key = KeyPair::generate().map_err(Error::Csr)?;
    let client = request(node_key, name, Vec::new())?;
    let serving = request(&serving_key, name, vec![name.to_owned()])?;
    Ok(CertificateRequests {
        client,
        serving,
        serving_key,
    })
}

fn request(key: &impl SigningKey, name: &str, names: Vec<String>) -> Result<Vec<u8>, Error> {
    let mut params = CertificateParams::new(names).map_err(Error::Csr)?;
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, NODES_GROUP);
    params
        .distinguished_name
        .push(DnType::CommonName, node_user(name));
    Ok(params
        .serialize_request(key)
        .map_err(Error::Csr)?
        .der()
        .to_vec())
}

/// Certificates that were checked against their keys and the pins.
#[derive(Debug)]
pub(crate) struct Installed {
    pub(crate) client: CertifiedKey,
    pub(crate) serving: CertifiedKey,
    pub(crate) roots: Vec<CertificateDer<'static>>,
}

/// Checks what the master sent: certificates for exactly our keys, and roots that are pinned.
pub(crate) fn install(
    requests: &CertificateRequests,
    certificates: &Certificates,
    node_key: &NodeKey,
    pins: &[Pin],
) -> Result<Installed, Error> {
    let client = chain(
        &certificates.client,
        "the client certificate cannot be read",
    )?;
    let serving = chain(
        &certificates.serving,
        "the serving certificate cannot be read",
    )?;
    let mut roots = chain(&certificates.roots, "the root certificates cannot be read")?;
    roots.retain(|root| spki_hash(root).is_some_and(|hash| pins.contains(&hash)));
    if roots.is_empty() {
        return Err(Error::Certificates("none of the roots is pinned"));
    }
    if !is_for(&client, node_key.spki()) {
        return Err(Error::Certificates(
            "the client certificate is for another key",
        ));
    }
    if !is_for(&serving, &requests.serving_key.subject_public_key_info()) {
        return Err(Error::Certificates(
            "the serving certificate is for another key",
        ));
    }
    let serving_key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(
        requests.serving_key.serialize_der(),
    ));
    Ok(Installed {
        client: CertifiedKey::new(client, Arc::new(node_key.clone())),
        serving: CertifiedKey::new(serving, any_ecdsa_type(&serving_key).map_err(Error::Tls)?),
        roots,
    })
}

/// The certificates in a PEM text; `fault` is the error's text where there is none.
fn chain(pem: &str, fault: &'static str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .take(CHAIN_LIMIT)
        .collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) | Err(_) => Err(Error::Certificates(fault)),
    }
}

/// Whether a chain's leaf is for this key.
pub(crate) fn is_for(chain: &[CertificateDer<'_>], spki: &[u8]) -> bool {
    let parsed = chain
        .first()
        .and_then(|leaf| x509_parser::parse_x509_certificate(leaf).ok());
    parsed.is_some_and(|(_, leaf)| leaf.public_key().raw == spki)
}
