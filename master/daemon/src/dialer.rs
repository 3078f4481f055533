//! The way to nodes' kubelet API: TLS, both sides with certificates of the cluster.

use config_kube::identity::node_user;
use config_tls::{NamedServer, Objection};
use master_api::{
    ConnectionCheck, DialError, NodeDialer, NodeStream, NodeTarget, ReusableStream, is_proxyable,
};
use master_attest::{MachineDenyList, ServingCertificate};
use master_ca::{Authority, OwnCertificate, profile};
use master_client::BoxFuture;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Time for connecting and for TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to nodes with a client certificate of the cluster, renewed when a third of its life is
/// left, or under another root.
#[derive(Debug)]
pub(crate) struct Dialer {
    authority: Arc<Authority>,
    machines: Arc<MachineDenyList>,
    /// This server is reached over the loopback alone, and so are its nodes.
    on_loopback: bool,
    tls_settings: Mutex<Option<TlsSettings>>,
}

/// A node writes its own address into its Node. Unchecked, a compromised node could point the
/// server at services of the server's own loopback, or at a cloud's metadata service (link-local).
#[derive(Debug, thiserror::Error)]
#[error(
    "no node is called at {0}: the address is a loopback, link-local, multicast or unspecified one"
)]
struct NotProxyable(IpAddr);

/// TLS settings for calls; made again when the authority's generation changes. To read a key and
/// check it takes as long as half a handshake, so that no call does it by itself.
#[derive(Debug, Clone)]
struct TlsSettings {
    generation: u64,
    verifier: Arc<WebPkiServerVerifier>,
    client: Arc<OwnCertificate>,
    /// With the client identity, and a placeholder verifier: each call sets that of its node.
    settings: ClientConfig,
}

impl TlsSettings {
    /// The settings for a call to one node.
    fn settings(&self, node: &str, machines: Arc<MachineDenyList>) -> Arc<ClientConfig> {
        let mut settings = self.settings.clone();
        let verifier = node_verifier(self.verifier.clone(), node, machines);
        settings
            .dangerous()
            .set_certificate_verifier(Arc::new(verifier));
        Arc::new(settings)
    }
}

/// The settings that calls to all nodes share. No session is resumed: that would pass over the
/// verifier.
fn shared_settings(
    verifier: Arc<WebPkiServerVerifier>,
    identity: &OwnCertificate,
) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut settings = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_webpki_verifier(verifier)
        .with_client_auth_cert(
            identity.issued.chain(),
            PrivateKeyDer::from(identity.key.clone_key()),
        )?;
    settings.alpn_protocols = vec![b"http/1.1".to_vec()];
    settings.resumption = Resumption::disabled();
    Ok(settings)
}

impl Dialer {
    /// A dialer that trusts the authority's current roots, for a server that listens at `listen`.
    pub(crate) fn new(
        authority: Arc<Authority>,
        machines: Arc<MachineDenyList>,
        listen: IpAddr,
    ) -> Result<Self, crate::Error> {
        let dialer = Self {
            authority,
            machines,
            on_loopback: listen.is_loopback(),
            tls_settings: Mutex::new(None),
        };
        dialer.tls_settings().map(|_| dialer)
    }

    fn tls_settings(&self) -> Result<TlsSettings, crate::Error> {
        let (now, generation) = (SystemTime::now(), self.authority.generation());
        let mut slot = self
            .tls_settings
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(tls_settings) = slot.as_ref()
            && tls_settings.generation == generation
            && now < tls_settings.client.issued.not_after - profile::MASTER_LIFE / 3
        {
            return Ok(tls_settings.clone());
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
        let settings = shared_settings(verifier.clone(), &client).map_err(crate::Error::Tls)?;
        let fresh = TlsSettings {
            generation,
            verifier,
            client,
            settings,
        };
        *slot = Some(fresh.clone());
        Ok(fresh)
    }

    async fn connect(
        &self,
        target: &NodeTarget,
    ) -> Result<(TlsStream<TcpStream>, TlsSettings), Box<dyn std::error::Error + Send + Sync>> {
        let tls_settings = self.tls_settings()?;
        let settings = tls_settings.settings(&target.name, self.machines.clone());
        let name = ServerName::from(target.address);
        let address = self.address(target)?;
        let connect = async {
            let socket = TcpStream::connect(address).await?;
            socket.set_nodelay(true)?;
            let stream = TlsConnector::from(settings).connect(name, socket).await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(stream)
        };
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connect).await??;
        Ok((stream, tls_settings))
    }

    /// Where a node is called.
    fn address(&self, target: &NodeTarget) -> Result<SocketAddr, NotProxyable> {
        let ip = target.address.to_canonical();
        if is_proxyable(&ip) || (self.on_loopback && ip.is_loopback()) {
            Ok(SocketAddr::new(target.address, target.port))
        } else {
            Err(NotProxyable(target.address))
        }
    }

    async fn connect_to(
        &self,
        target: &NodeTarget,
    ) -> Result<(TlsStream<TcpStream>, TlsSettings), DialError> {
        self.connect(target).await.map_err(|source| DialError {
            node: target.name.clone(),
            address: SocketAddr::new(target.address, target.port).to_string(),
            source,
        })
    }
}

impl NodeDialer for Dialer {
    fn dial(&self, target: NodeTarget) -> BoxFuture<'_, Result<Box<dyn NodeStream>, DialError>> {
        Box::pin(async move {
            let (stream, _) = self.connect_to(&target).await?;
            Ok(Box::new(stream) as Box<dyn NodeStream>)
        })
    }

    fn dial_reusable(
        &self,
        target: NodeTarget,
    ) -> BoxFuture<'_, Result<ReusableStream, DialError>> {
        Box::pin(async move {
            let (stream, tls_settings) = self.connect_to(&target).await?;
            let shown = stream.get_ref().1.peer_certificates();
            let shown = shown.and_then(|chain| chain.first());
            let check = shown.map(|certificate| {
                Arc::new(PresentedCertificates {
                    authority: self.authority.clone(),
                    machines: self.machines.clone(),
                    generation: tls_settings.generation,
                    until: tls_settings.client.issued.not_after,
                    certificate: ServingCertificate::of(&target.name, certificate),
                }) as Arc<dyn ConnectionCheck>
            });
            Ok((Box::new(stream) as Box<dyn NodeStream>, check))
        })
    }
}

/// What both ends of a connection showed when it began.
#[derive(Debug)]
struct PresentedCertificates {
    authority: Arc<Authority>,
    machines: Arc<MachineDenyList>,
    /// The generation of the authority's roots that verified the node's chain.
    generation: u64,
    /// The end of this server's own certificate.
    until: SystemTime,
    certificate: ServingCertificate,
}

impl ConnectionCheck for PresentedCertificates {
    fn objection(&self) -> Option<String> {
        let now = SystemTime::now();
        if self.authority.generation() != self.generation {
            return Some("the cluster's roots or keys have changed".to_owned());
        }
        if now > self.until {
            return Some("the server's own certificate has expired".to_owned());
        }
        self.machines.serving_denied_at(&self.certificate, now)
    }
}

/// The node's certificate must be that of its Machine. An address may change, the attested name
/// does not.
#[derive(Debug)]
struct MachineCertificateCheck {
    node: String,
    machines: Arc<MachineDenyList>,
}

impl Objection for MachineCertificateCheck {
    fn objection(&self, certificate: &[u8]) -> Option<String> {
        self.machines.serving_denied(&self.node, certificate)
    }
}

/// The verifier of a node: the cluster's chain, a server's usage, and the node's own subject.
fn node_verifier(
    inner: Arc<WebPkiServerVerifier>,
    node: &str,
    machines: Arc<MachineDenyList>,
) -> NamedServer<MachineCertificateCheck> {
    let check = MachineCertificateCheck {
        node: node.to_owned(),
        machines,
    };
    NamedServer::new(inner, node_user(node), check)
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
    use rustls::CertificateError;
    use rustls::client::danger::ServerCertVerifier as _;
    use rustls::pki_types::{CertificateDer, UnixTime};

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
        let inner = dialer.tls_settings().unwrap().verifier;
        let verifier = node_verifier(inner, node, dialer.machines.clone());
        let name = ServerName::try_from(ADDRESS).unwrap();
        verifier
            .verify_server_cert(&chain[0], &chain[1..], &name, &[], UnixTime::now())
            .map(drop)
    }

    #[test]
    fn a_node_is_accepted_only_with_its_own_serving_certificate() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (own, other) = (authority(folder.path()), authority(elsewhere.path()));
        let machines = Arc::new(MachineDenyList::default());
        let listen = [192, 0, 2, 1].into();
        let dialer = Dialer::new(Arc::clone(&own), Arc::clone(&machines), listen).unwrap();
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
        // Once a Machine has the name, a certificate without its attestation is refused.
        let mut machine = Machine::named("worker-1", MachineSpec::default());
        machine.metadata.uid = Some("uid-1".to_owned());
        machines.set(&machine);
        let taken = verdict(&dialer, "worker-1", &good);
        assert!(
            matches!(&taken, Err(rustls::Error::General(why)) if why.contains("its attestation")),
            "{taken:?}"
        );
    }

    #[tokio::test]
    async fn no_node_is_called_at_the_masters_own_host_or_link() {
        let folder = tempfile::tempdir().unwrap();
        let own = authority(folder.path());
        let service = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        service.set_nonblocking(true).unwrap();
        let port = service.local_addr().unwrap().port();
        let call = async |listen: &str, address: &str| {
            let machines = Arc::new(MachineDenyList::default());
            let dialer = Dialer::new(own.clone(), machines, listen.parse().unwrap()).unwrap();
            let name = "worker-1".to_owned();
            let address = address.parse().unwrap();
            dialer
                .dial(NodeTarget {
                    name,
                    address,
                    port,
                })
                .await
                .err()
        };
        for listen in ["::", "0.0.0.0", "192.0.2.1"] {
            for address in [
                "127.0.0.1",
                "127.9.9.9",
                "::1",
                "::ffff:127.0.0.1",
                "0.0.0.0",
                "::",
                "169.254.169.254",
                "fe80::1",
                "224.0.0.1",
                "ff02::1",
                "255.255.255.255",
            ] {
                let error = call(listen, address).await.expect("it is not called");
                assert!(error.source.is::<NotProxyable>(), "{address}: {error:?}");
            }
        }
        assert!(service.accept().is_err(), "a connection came");
        // The control: a server of this host alone has its nodes there.
        let service = tokio::net::TcpListener::from_std(service).unwrap();
        let (error, came) = tokio::join!(call("127.0.0.1", "127.0.0.1"), async {
            drop(service.accept().await.unwrap());
        });
        let ((), error) = (came, error.expect("it is no kubelet"));
        assert!(!error.source.is::<NotProxyable>(), "{error:?}");
        let error = call("127.0.0.1", "169.254.169.254").await.unwrap();
        assert!(error.source.is::<NotProxyable>(), "{error:?}");
    }

    #[test]
    fn a_kept_connection_ends_with_what_both_ends_showed() {
        let folder = tempfile::tempdir().unwrap();
        let own = authority(folder.path());
        let machines = Arc::new(MachineDenyList::default());
        let chain = chain(&own, "worker-1", KUBELET_SERVING_SIGNER);
        let hour = Duration::from_secs(3600);
        let shown = |generation, until| PresentedCertificates {
            authority: own.clone(),
            machines: machines.clone(),
            generation,
            until,
            certificate: ServingCertificate::of("worker-1", &chain[0]),
        };
        let (generation, later) = (own.generation(), SystemTime::now() + hour);
        assert_eq!(shown(generation, later).objection(), None);
        assert!(shown(generation + 1, later).objection().is_some(), "roots");
        let past = SystemTime::now() - hour;
        assert!(shown(generation, past).objection().is_some(), "expired");
        let mut machine = Machine::named("worker-1", MachineSpec::default());
        machine.metadata.uid = Some("uid-1".to_owned());
        machines.set(&machine);
        let taken = shown(generation, later).objection();
        assert!(taken.is_some_and(|why| why.contains("its attestation")));
    }
}
