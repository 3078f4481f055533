//! Who is let in by a client certificate, and for how long: the cluster's roots of the moment, and the authorities of the
//! configuration.

use master_api::{DenyList, Peer};
use master_attest::MachineDenyList;
use master_ca::Authority;
use master_client::UserInfo;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::watch;

/// Sessions that are kept for resumption.
const SESSIONS: usize = 256;

/// Verifies client certificates by the roots that are in force at the handshake.
#[derive(Debug)]
pub(crate) struct Clients {
    authority: Arc<Authority>,
    others: Vec<CertificateDer<'static>>,
    /// The authority's generation, and the verifier of that time.
    built: RwLock<(u64, Arc<dyn ClientCertVerifier>)>,
}

impl Clients {
    /// A verifier that also believes `others`.
    pub(crate) fn new(
        authority: Arc<Authority>,
        others: Vec<CertificateDer<'static>>,
    ) -> Result<Self, crate::Error> {
        let built = RwLock::new((authority.generation(), verifier(&authority, &others)?));
        Ok(Self {
            authority,
            others,
            built,
        })
    }

    fn current(&self) -> Result<Arc<dyn ClientCertVerifier>, rustls::Error> {
        let generation = self.authority.generation();
        {
            let (of, built) = &*self.built.read().unwrap_or_else(PoisonError::into_inner);
            if *of == generation {
                return Ok(Arc::clone(built));
            }
        }
        let fresh = verifier(&self.authority, &self.others);
        let fresh = fresh.map_err(|error| rustls::Error::General(crate::chain(&error)))?;
        *self.built.write().unwrap_or_else(PoisonError::into_inner) =
            (generation, Arc::clone(&fresh));
        Ok(fresh)
    }
}

fn verifier(
    authority: &Authority,
    others: &[CertificateDer<'static>],
) -> Result<Arc<dyn ClientCertVerifier>, crate::Error> {
    let mut roots = RootCertStore::empty();
    for root in authority.roots().into_iter().chain(others.iter().cloned()) {
        roots.add(root).map_err(crate::Error::Tls)?;
    }
    master_api::clients_of(roots).map_err(crate::Error::ApiTls)
}

impl ClientCertVerifier for Clients {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// None are hinted at: a client has one certificate for this server, whatever the roots of the moment are.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.current()?
            .verify_client_cert(certificate, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current()?
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current()?
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current()
            .map(|current| current.supported_verify_schemes())
            .unwrap_or_default()
    }
}

/// The deny list for connected clients: the Machines' deny list, and certificates whose root is no longer in force.
#[derive(Debug)]
pub(crate) struct ClientDenyList {
    pub(crate) clients: Arc<Clients>,
    pub(crate) machines: Arc<MachineDenyList>,
}

impl DenyList for ClientDenyList {
    fn denied(&self, user: &UserInfo, peer: &Peer) -> Option<String> {
        let denied = self.machines.denied(user, peer);
        let Some((leaf, above)) = peer.certificates.split_first() else {
            return denied;
        };
        denied.or_else(|| {
            let still = peer.once_for(self.clients.authority.generation(), || {
                self.clients.verify_client_cert(leaf, above, UnixTime::now()).is_ok()
            });
            (!still).then(|| {
                "the certificate ends with a root that counts no more: connect anew, with one under the root \
                              that does"
                    .to_owned()
            })
        })
    }

    fn node_denied(&self, node: &str) -> Option<String> {
        self.machines.node_denied(node)
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.machines.changed()
    }
}

/// Sessions for resumption. A resumed session brings its certificate with it unverified, so none outlives the roots by which
/// it was verified.
#[derive(Debug)]
pub(crate) struct Sessions {
    authority: Arc<Authority>,
    kept: RwLock<(u64, Arc<ServerSessionMemoryCache>)>,
}

impl Sessions {
    pub(crate) fn new(authority: Arc<Authority>) -> Self {
        let kept = RwLock::new((
            authority.generation(),
            ServerSessionMemoryCache::new(SESSIONS),
        ));
        Self { authority, kept }
    }

    fn current(&self) -> Arc<ServerSessionMemoryCache> {
        let generation = self.authority.generation();
        {
            let (of, kept) = &*self.kept.read().unwrap_or_else(PoisonError::into_inner);
            if *of == generation {
                return Arc::clone(kept);
            }
        }
        let fresh = ServerSessionMemoryCache::new(SESSIONS);
        *self.kept.write().unwrap_or_else(PoisonError::into_inner) =
            (generation, Arc::clone(&fresh));
        fresh
    }
}

impl StoresServerSessions for Sessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.current().put(key, value)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.current().get(key)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.current().take(key)
    }

    fn can_cache(&self) -> bool {
        true
    }
}
