//! The way to nodes' kubelet API: TLS, both sides with certificates of the cluster.

use config_kube::identity::node_user;
use master_api::{DialError, NodeDialer, NodeStream, NodeTarget};
use master_attest::MachineDenyList;
use master_ca::{Authority, Identity, profile};
use master_client::BoxFuture;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Time for connecting and for TLS.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connects to nodes with a client certificate of the cluster, renewed when a third of its life is left, or under another root.
#[derive(Debug)]
pub(crate) struct Dialer {
    authority: Arc<Authority>,
    machines: Arc<MachineDenyList>,
    means: Mutex<Option<Means>>,
}

/// What a call needs; made anew when the authority's generation is another.
#[derive(Debug, Clone)]
struct Means {
    generation: u64,
    verifier: Arc<WebPkiServerVerifier>,
    client: Arc<Identity>,
}

impl Dialer {
    /// A dialer that trusts the authority's roots of the moment.
    pub(crate) fn new(
        authority: Arc<Authority>,
        machines: Arc<MachineDenyList>,
    ) -> Result<Self, crate::Error> {
        let dialer = Self {
            authority,
            machines,
            means: Mutex::new(None),
        };
        dialer.means().map(|_| dialer)
    }

    fn means(&self) -> Result<Means, crate::Error> {
        let (now, generation) = (SystemTime::now(), self.authority.generation());
        let mut slot = self.means.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(means) = slot.as_ref()
            && means.generation == generation
            && now < means.client.issued.not_after - profile::MASTER_LIFE / 3
        {
            return Ok(means.clone());
        }
        let mut roots = RootCertStore::empty();
        for root in self.authority.roots() {
            roots.add(root).map_err(crate::Error::Tls)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|source| crate::Error::Verifier(source.to_string()))?;
        let client = Arc::new(
            self.authority
                .make_kubelet_client(now)
                .map_err(crate::Error::Issue)?,
        );
        let fresh = Means {
            generation,
            verifier,
            client,
        };
        *slot = Some(fresh.clone());
        Ok(fresh)
    }

    async fn connect(
        &self,
        target: &NodeTarget,
    ) -> Result<Box<dyn NodeStream>, Box<dyn std::error::Error + Send + Sync>> {
        let Means {
            verifier,
            client: identity,
            ..
        } = self.means()?;
        let verifier = NodeVerifier {
            inner: verifier,
            node: target.name.clone(),
            machines: self.machines.clone(),
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(
                identity.issued.chain(),
                PrivateKeyDer::from(identity.key.clone_key()),
            )?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let name = ServerName::try_from(target.address.clone())?;
        let host = target.address.trim_matches(['[', ']']);
        let connect = async {
            let socket = TcpStream::connect((host, target.port)).await?;
            socket.set_nodelay(true)?;
            TlsConnector::from(Arc::new(config))
                .connect(name, socket)
                .await
        };
        let stream = tokio::time::timeout(PATIENCE, connect).await??;
        Ok(Box::new(stream))
    }
}

impl NodeDialer for Dialer {
    fn dial(&self, target: NodeTarget) -> BoxFuture<'_, Result<Box<dyn NodeStream>, DialError>> {
        Box::pin(async move {
            self.connect(&target).await.map_err(|source| DialError {
                node: target.name.clone(),
                address: format!("{}:{}", target.address, target.port),
                source,
            })
        })
    }
}

/// The cluster's chain, a server's usage, and the node's own subject: an address may move, the attested name does not. Where
/// the node is a Machine's, the certificate is that machine's.
#[derive(Debug)]
struct NodeVerifier {
    inner: Arc<WebPkiServerVerifier>,
    node: String,
    machines: Arc<MachineDenyList>,
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let subject = X509Certificate::from_der(certificate)
            .ok()
            .and_then(|(_, parsed)| {
                parsed
                    .subject()
                    .iter_common_name()
                    .next()
                    .and_then(|cn| cn.as_str().ok().map(str::to_owned))
            });
        if subject.as_deref() != Some(node_user(&self.node).as_str()) {
            return Err(CertificateError::NotValidForName.into());
        }
        if let Some(why) = self.machines.serving_denied(&self.node, certificate) {
            return Err(rustls::Error::General(why));
        }
        match self
            .inner
            .verify_server_cert(certificate, intermediates, name, ocsp, now)
        {
            // The chain was verified before the name is looked at; the subject is the name here.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::identity::NODES_GROUP;
    use config_kube::k8s_openapi::api::certificates::v1::{
        CertificateSigningRequest, CertificateSigningRequestCondition,
    };
    use config_kube::{Machine, MachineSpec};
    use master_ca::{ApprovedRequest, FileKeeper, KUBELET_CLIENT_SIGNER, KUBELET_SERVING_SIGNER};
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    const ADDRESS: &str = "192.168.77.12";

    fn authority(folder: &std::path::Path) -> Arc<Authority> {
        Arc::new(Authority::open(folder, "lab", Arc::new(FileKeeper), SystemTime::now()).unwrap())
    }

    /// A kubelet's certificate by a signer of upstream's, as an admin approved it.
    fn chain(authority: &Authority, node: &str, signer: &str) -> Vec<CertificateDer<'static>> {
        let serving = signer == KUBELET_SERVING_SIGNER;
        let names = if serving {
            vec![ADDRESS.to_owned()]
        } else {
            Vec::new()
        };
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, NODES_GROUP);
        params
            .distinguished_name
            .push(DnType::CommonName, node_user(node));
        let key = KeyPair::generate().unwrap();
        let mut object = CertificateSigningRequest::default();
        object.spec.signer_name = signer.to_owned();
        object.spec.request.0 = params
            .serialize_request(&key)
            .unwrap()
            .pem()
            .unwrap()
            .into_bytes();
        let usage = if serving {
            "server auth"
        } else {
            "client auth"
        };
        object.spec.usages = Some(vec!["digital signature".to_owned(), usage.to_owned()]);
        object.status.get_or_insert_default().conditions =
            Some(vec![CertificateSigningRequestCondition {
                type_: "Approved".to_owned(),
                status: "True".to_owned(),
                ..Default::default()
            }]);
        let approved = ApprovedRequest::from_object(&object).unwrap().unwrap();
        authority
            .issue_approved(&approved, SystemTime::now())
            .unwrap()
            .chain()
    }

    fn verdict(
        dialer: &Dialer,
        node: &str,
        chain: &[CertificateDer<'_>],
    ) -> Result<(), rustls::Error> {
        let inner = dialer.means().unwrap().verifier;
        let verifier = NodeVerifier {
            inner,
            node: node.to_owned(),
            machines: dialer.machines.clone(),
        };
        let name = ServerName::try_from(ADDRESS).unwrap();
        verifier
            .verify_server_cert(&chain[0], &chain[1..], &name, &[], UnixTime::now())
            .map(drop)
    }

    #[test]
    fn a_node_is_known_by_its_own_serving_certificate_and_no_other() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (own, other) = (authority(folder.path()), authority(elsewhere.path()));
        let machines = Arc::new(MachineDenyList::default());
        let dialer = Dialer::new(Arc::clone(&own), Arc::clone(&machines)).unwrap();
        let good = chain(&own, "worker-1", KUBELET_SERVING_SIGNER);
        assert_eq!(verdict(&dialer, "worker-1", &good), Ok(()));
        let stranger = verdict(
            &dialer,
            "worker-1",
            &chain(&own, "worker-2", KUBELET_SERVING_SIGNER),
        );
        assert_eq!(
            stranger,
            Err(CertificateError::NotValidForName.into()),
            "another node's certificate"
        );
        let client = verdict(
            &dialer,
            "worker-1",
            &chain(&own, "worker-1", KUBELET_CLIENT_SIGNER),
        );
        assert!(client.is_err(), "a certificate for another use");
        let foreign = verdict(
            &dialer,
            "worker-1",
            &chain(&other, "worker-1", KUBELET_SERVING_SIGNER),
        );
        assert!(foreign.is_err(), "another cluster's certificate");
        // Once the name is a Machine's, a certificate of no proof is none of it.
        let mut machine = Machine::named("worker-1", MachineSpec::default());
        machine.metadata.uid = Some("uid-1".to_owned());
        machines.set(&machine);
        let taken = verdict(&dialer, "worker-1", &good);
        assert!(
            matches!(&taken, Err(rustls::Error::General(why)) if why.contains("no proof")),
            "{taken:?}"
        );
    }
}
