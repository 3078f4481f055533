//! Verification of client certificates against the cluster's current roots, and the authorities of
//! the configuration.

use config_tls::{CurrentClients, Roots, Strangers};
use master_attest::MachineDenyList;
use master_ca::Authority;
use master_client::UserInfo;
use master_listener::{DenyList, Peer};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier as _;
use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::watch;

/// Sessions that are kept for resumption.
const SESSIONS: usize = 256;

/// The roots by which clients are known.
#[derive(Debug)]
pub(crate) struct ClusterRoots {
    authority: Arc<Authority>,
    /// Authorities of the configuration.
    others: Vec<CertificateDer<'static>>,
}

impl Roots for ClusterRoots {
    fn roots(&self) -> Vec<CertificateDer<'static>> {
        let mut roots = self.authority.roots();
        roots.extend(self.others.iter().cloned());
        roots
    }

    /// What is issued through the API is the leaf alone.
    fn intermediates(&self) -> Vec<CertificateDer<'static>> {
        self.authority.issuers()
    }
}

/// Verifies client certificates; who shows none is anonymous.
pub(crate) type Clients = CurrentClients<ClusterRoots>;

/// A verifier by the authority's current roots, and by `others`.
pub(crate) fn clients(
    authority: Arc<Authority>,
    others: Vec<CertificateDer<'static>>,
) -> Result<Clients, crate::Error> {
    let roots = ClusterRoots { authority, others };
    CurrentClients::new(roots, Strangers::Anonymous).map_err(crate::Error::Clients)
}

/// The deny list for connected clients: the Machines' deny list, and certificates whose root is no
/// longer in force.
#[derive(Debug)]
pub(crate) struct ClientDenyList {
    pub(crate) authority: Arc<Authority>,
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
            let still = peer.once_for(self.authority.generation(), || {
                self.clients.verify_client_cert(leaf, above, UnixTime::now()).is_ok()
            });
            (!still).then(|| {
                "the certificate's root is not in force any more: connect again with a certificate under the new root"
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

/// Sessions for resumption. A resumed session brings its certificate with it unverified, so none
/// outlives the roots by which it was verified.
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

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::k8s_openapi::api::certificates::v1::{
        CertificateSigningRequest, CertificateSigningRequestCondition,
    };
    use master_ca::{ApprovedRequest, CLIENT_SIGNER, FileKeeper, IssuedCertificate};
    use rcgen::{CertificateParams, DnType, KeyPair};
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    fn authority(folder: &Path) -> Arc<Authority> {
        Arc::new(Authority::open(folder, "lab", Arc::new(FileKeeper), SystemTime::now()).unwrap())
    }

    /// Jane's certificate by upstream's signer of clients.
    fn jane(authority: &Authority) -> IssuedCertificate {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "jane");
        let request = params.serialize_request(&KeyPair::generate().unwrap());
        let mut object = CertificateSigningRequest::default();
        CLIENT_SIGNER.clone_into(&mut object.spec.signer_name);
        object.spec.request.0 = request.unwrap().pem().unwrap().into_bytes();
        object.spec.usages = Some(vec!["client auth".to_owned()]);
        object.status.get_or_insert_default().conditions =
            Some(vec![CertificateSigningRequestCondition {
                type_: "Approved".to_owned(),
                status: "True".to_owned(),
                ..Default::default()
            }]);
        let approved = ApprovedRequest::from_object(&object).unwrap().unwrap();
        let issued = authority.issue_approved(&approved, SystemTime::now());
        issued.unwrap()
    }

    fn known(clients: &Clients, chain: &[CertificateDer<'_>]) -> bool {
        let (leaf, above) = chain.split_first().unwrap();
        clients
            .verify_client_cert(leaf, above, UnixTime::now())
            .is_ok()
    }

    #[test]
    fn a_client_is_known_by_its_certificate_alone_until_its_root_goes() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let own = authority(folder.path());
        let verifier = clients(Arc::clone(&own), Vec::new()).unwrap();
        let issued = jane(&own);
        let leaf = std::slice::from_ref(&issued.certificate);
        assert!(known(&verifier, leaf), "the leaf alone");
        assert!(known(&verifier, &issued.chain()), "and as it was stored");
        let foreign = jane(&authority(elsewhere.path()));
        assert!(!known(&verifier, &foreign.chain()), "another cluster's");
        // An intermediate is no anchor and no client: what is between must be signed by the root.
        for intermediate in own.intermediates() {
            assert!(!known(&verifier, &[intermediate]));
        }
        // The intermediate is renewed in the certificate's life, and the master starts anew.
        let later = SystemTime::now() + Duration::from_secs(200 * 86_400);
        assert!(own.renew_if_due(later).unwrap());
        assert!(known(&verifier, leaf), "by the earlier intermediate");
        let again = authority(folder.path());
        let verifier = clients(Arc::clone(&again), Vec::new()).unwrap();
        assert!(known(&verifier, leaf), "after a restart");
        again.begin_rotation(None, later).unwrap();
        assert!(known(&verifier, leaf), "both roots count");
        again.finish_rotation().unwrap();
        assert!(!known(&verifier, leaf), "the root is withdrawn");
        assert!(!known(&verifier, &issued.chain()));
    }
}
