//! The way to nodes' kubelet API: TLS, both sides with certificates of the cluster.

use config_kube::identity::node_user;
use master_api::{BoxFuture, DialError, NodeDialer, NodeStream, NodeTarget};
use master_attest::MachineDenyList;
use master_ca::{Authority, Identity, profile};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
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
    pub(crate) fn new(authority: Arc<Authority>, machines: Arc<MachineDenyList>) -> Result<Self, crate::Error> {
        let dialer = Self { authority, machines, means: Mutex::new(None) };
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
        let client = Arc::new(self.authority.make_kubelet_client(now).map_err(crate::Error::Issue)?);
        let fresh = Means { generation, verifier, client };
        *slot = Some(fresh.clone());
        Ok(fresh)
    }

    async fn connect(
        &self,
        target: &NodeTarget,
    ) -> Result<Box<dyn NodeStream>, Box<dyn std::error::Error + Send + Sync>> {
        let Means { verifier, client: identity, .. } = self.means()?;
        let verifier = NodeVerifier { inner: verifier, node: target.name.clone(), machines: self.machines.clone() };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(identity.issued.chain(), PrivateKeyDer::from(identity.key.clone_key()))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let name = ServerName::try_from(target.address.clone())?;
        let host = target.address.trim_matches(['[', ']']);
        let connect = async {
            let socket = TcpStream::connect((host, target.port)).await?;
            socket.set_nodelay(true)?;
            TlsConnector::from(Arc::new(config)).connect(name, socket).await
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
        let subject = X509Certificate::from_der(certificate).ok().and_then(|(_, parsed)| {
            parsed.subject().iter_common_name().next().and_then(|cn| cn.as_str().ok().map(str::to_owned))
        });
        if subject.as_deref() != Some(node_user(&self.node).as_str()) {
            return Err(CertificateError::NotValidForName.into());
        }
        if let Some(why) = self.machines.serving_denied(&self.node, certificate) {
            return Err(rustls::Error::General(why));
        }
        match self.inner.verify_server_cert(certificate, intermediates, name, ocsp, now) {
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
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
