//! The master's certificate: a chain to a pinned root, and the requested name.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, PeerMisbehaved, SignatureScheme};
use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::certificate::X509Certificate;

/// SHA-256 of the `SubjectPublicKeyInfo` DER of a cluster's root certificate.
pub type Pin = [u8; 32];

/// A root that a verified master showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownRoot {
    /// SHA-256 of its SubjectPublicKeyInfo.
    pub pin: Pin,
    /// Its name, DER.
    pub name: Vec<u8>,
}

/// The pins in force, and the roots that the master showed when it was last verified. Clones share
/// them, so a signed document that names others changes all.
#[derive(Debug, Clone)]
pub struct Pins {
    all: Arc<RwLock<Arc<[Pin]>>>,
    /// If set, only pins among these count.
    within: Arc<RwLock<Option<Vec<Pin>>>>,
    shown: Arc<RwLock<Arc<[ShownRoot]>>>,
}

impl From<Vec<Pin>> for Pins {
    fn from(pins: Vec<Pin>) -> Self {
        Self {
            all: Arc::new(RwLock::new(pins.into())),
            within: Arc::default(),
            shown: Arc::new(RwLock::new(Vec::new().into())),
        }
    }
}

impl Pins {
    /// Replaces the pins from now on; open connections stay.
    pub fn replace(&self, pins: Vec<Pin>) {
        *self.all.write().unwrap_or_else(PoisonError::into_inner) = pins.into();
    }

    /// The current pins that count.
    pub fn get(&self) -> Arc<[Pin]> {
        let all = self.configured();
        let within = self.within.read().unwrap_or_else(PoisonError::into_inner);
        match &*within {
            Some(within) => all
                .iter()
                .filter(|pin| within.contains(pin))
                .copied()
                .collect(),
            None => all,
        }
    }

    /// All current pins, also those that do not count, to compare with what an authenticated master
    /// reports.
    pub fn configured(&self) -> Arc<[Pin]> {
        Arc::clone(&self.all.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Restricts the pins to these, also after a replacement, until `None` lifts the restriction.
    pub fn keep_within(&self, roots: Option<Vec<Pin>>) {
        *self.within.write().unwrap_or_else(PoisonError::into_inner) = roots;
    }

    /// The roots that the master showed when it was last verified, pinned ones and others. A root
    /// that is not pinned proves nothing.
    pub fn shown(&self) -> Arc<[ShownRoot]> {
        Arc::clone(&self.shown.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, shown: Vec<ShownRoot>) {
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = shown.into();
    }
}

/// A server that may be the master, but shows no pinned root.
#[derive(Debug, thiserror::Error)]
#[error(
    "the server is known by {shown}, and this machine's pins are {pinned}: if the cluster's root was rotated, the machine needs \
     its new pin in `ca_pins` (`pratique root show` prints it); if not, this is not the master"
)]
struct NotPinned {
    shown: String,
    pinned: String,
}

/// The pins in an error chain, if a handshake failed because no shown root is pinned.
pub fn not_pinned(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    let Error::InvalidCertificate(CertificateError::Other(other)) = error else {
        return None;
    };
    other.0.downcast_ref::<NotPinned>().map(ToString::to_string)
}

/// `sha256:` and hex of pins, for a person.
pub fn pins_text<'a>(pins: impl IntoIterator<Item = &'a Pin>) -> String {
    let text = |pin: &Pin| format!("sha256:{}", hex::encode(pin));
    let all: Vec<String> = pins.into_iter().map(text).collect();
    if all.is_empty() {
        "none".to_owned()
    } else {
        all.join(", ")
    }
}

/// The roots among certificates: those that name themselves as their issuer.
fn roots_of(certificates: &[CertificateDer<'_>]) -> Vec<ShownRoot> {
    let parsed = certificates
        .iter()
        .filter_map(|der| x509_parser::parse_x509_certificate(der).ok());
    let own = |certificate: &X509Certificate<'_>| {
        certificate.issuer().as_raw() == certificate.subject().as_raw()
    };
    let roots = parsed.map(|(_, parsed)| parsed).filter(own);
    let root = |root: X509Certificate<'_>| {
        let pin = ring::digest::digest(&ring::digest::SHA256, root.public_key().raw)
            .as_ref()
            .try_into()
            .ok()?;
        Some(ShownRoot {
            pin,
            name: root.subject().as_raw().to_vec(),
        })
    };
    roots.filter_map(root).collect()
}

/// How many certificates a server may show; leaf, intermediate and root are three, rotation adds a
/// few.
const CHAIN_LIMIT: usize = 8;

/// Accepts a server that shows a chain to a root whose key is pinned, and whose leaf has the
/// requested name.
///
/// Assumption: the server shows its root too, since a pin is only a digest. The system's own roots
/// are not used.
#[derive(Debug)]
pub struct PinnedVerifier {
    pins: Pins,
    provider: Arc<CryptoProvider>,
}

impl PinnedVerifier {
    /// Accepts any of `pins`: a list, so that a rotation of the root can overlap.
    pub fn new(pins: impl Into<Pins>, provider: Arc<CryptoProvider>) -> Self {
        Self {
            pins: pins.into(),
            provider,
        }
    }
}

/// SHA-256 of a certificate's `SubjectPublicKeyInfo`; `None` if the bytes are no certificate.
pub fn spki_hash(certificate: &[u8]) -> Option<Pin> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    ring::digest::digest(&ring::digest::SHA256, parsed.public_key().raw)
        .as_ref()
        .try_into()
        .ok()
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if intermediates.len() > CHAIN_LIMIT {
            return Err(CertificateError::BadEncoding.into());
        }
        // Only pinned roots among those that the server shows are anchors; the others can be no
        // more than intermediates.
        let pins = self.pins.get();
        let (roots, others): (Vec<_>, Vec<_>) = intermediates.iter().partition(|certificate| {
            spki_hash(certificate).is_some_and(|hash| pins.contains(&hash))
        });
        let anchors: Vec<TrustAnchor<'_>> = roots
            .into_iter()
            .filter_map(|root| anchor_from_trusted_cert(root).ok())
            .collect();
        if anchors.is_empty() {
            let shown = roots_of(intermediates);
            let fault = NotPinned {
                shown: pins_text(shown.iter().map(|root| &root.pin)),
                pinned: pins_text(pins.iter()),
            };
            return Err(CertificateError::Other(rustls::OtherError(Arc::new(fault))).into());
        }
        let others: Vec<CertificateDer<'_>> = others.into_iter().cloned().collect();
        let leaf = EndEntityCert::try_from(end_entity).map_err(refused)?;
        leaf.verify_for_usage(
            self.provider.signature_verification_algorithms.all,
            &anchors,
            &others,
            now,
            KeyUsage::server_auth(),
            None,
            None,
        )
        .map_err(refused)?;
        leaf.verify_is_valid_for_subject_name(server_name)
            .map_err(refused)?;
        // Of a verified master alone: these roots decide what the node reports as its readiness for
        // a new root.
        self.pins.note(roots_of(intermediates));
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // Connections to the master are TLS 1.3 alone: a client that offers 1.2 is a fault.
        Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// The TLS alert that fits a refusal by webpki.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "webpki's list of errors is open"
)]
fn refused(error: webpki::Error) -> Error {
    match error {
        webpki::Error::CertExpired { .. } => CertificateError::Expired.into(),
        webpki::Error::CertNotValidYet { .. } => CertificateError::NotValidYet.into(),
        webpki::Error::CertNotValidForName(_) => CertificateError::NotValidForName.into(),
        webpki::Error::UnknownIssuer => CertificateError::UnknownIssuer.into(),
        webpki::Error::InvalidSignatureForPublicKey => CertificateError::BadSignature.into(),
        other => CertificateError::Other(rustls::OtherError(Arc::new(other))).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Issuer, client, server};

    fn verdict(pins: &Pins, shown: &[CertificateDer<'static>], name: &str) -> Result<(), Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let name = ServerName::try_from(name.to_owned()).unwrap();
        PinnedVerifier::new(pins.clone(), provider)
            .verify_server_cert(&shown[0], &shown[1..], &name, &[], UnixTime::now())
            .map(drop)
    }

    fn pin(issuer: &Issuer) -> Pin {
        spki_hash(&issuer.root()).unwrap()
    }

    #[test]
    fn a_master_is_verified_by_a_pinned_root_that_it_shows_and_by_its_name() {
        let (own, other) = (Issuer::new("own"), Issuer::new("other"));
        let pins = Pins::from(vec![pin(&own)]);
        let good = [server(&own, "master"), own.root()];
        assert_eq!(verdict(&pins, &good, "server.example"), Ok(()));
        assert_eq!(
            pins.shown().iter().map(|root| root.pin).collect::<Vec<_>>(),
            [pin(&own)]
        );
        assert_eq!(
            verdict(&pins, &good, "another.example"),
            Err(CertificateError::NotValidForName.into())
        );
        let usage = [client(&own, "master"), own.root()];
        assert!(verdict(&pins, &usage, "server.example").is_err());
        let forged = [server(&other, "master"), own.root()];
        assert_eq!(
            verdict(&pins, &forged, "server.example"),
            Err(CertificateError::UnknownIssuer.into()),
            "the pinned root is shown, and signed nothing of it"
        );
        let long: Vec<_> = std::iter::once(server(&own, "master"))
            .chain(std::iter::repeat_n(own.root(), CHAIN_LIMIT + 1))
            .collect();
        assert_eq!(
            verdict(&pins, &long, "server.example"),
            Err(CertificateError::BadEncoding.into())
        );
    }

    #[test]
    fn a_refusal_names_the_shown_roots_and_the_pins() {
        let (own, other) = (Issuer::new("own"), Issuer::new("other"));
        let pins = Pins::from(vec![pin(&own)]);
        let shown = [server(&other, "master"), other.root()];
        let refused = verdict(&pins, &shown, "server.example").unwrap_err();
        let words = not_pinned(&io::Error::other(refused)).unwrap();
        for pin in [pin(&own), pin(&other)] {
            assert!(words.contains(&pins_text([&pin])), "{words}");
        }
        assert!(pins.shown().is_empty(), "a refused root is not recorded");
        // Once the other is pinned too, it counts at the next handshake.
        pins.replace(vec![pin(&own), pin(&other)]);
        assert_eq!(verdict(&pins, &shown, "server.example"), Ok(()));
    }
}
