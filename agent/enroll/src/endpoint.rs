//! The addresses of masters, and a TLS 1.3 connection to the first that answers.

use crate::Error;
use crate::exchange::blocking;
use config_errors::chain;
use config_http::first_to_answer;
use config_tls::{PinnedVerifier, Pins, not_pinned};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, version};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Longest wait for a look-up of a name; a connection to its addresses then takes
/// [`config_http::CONNECT_LIMIT`] at most.
pub(crate) const LOOKUP_TIMEOUT: Duration = Duration::from_secs(8);
/// Longest wait for a TLS handshake; the TPM signs in it, and it may be busy with a quote.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// One address of the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
    name: ServerName<'static>,
}

impl Endpoint {
    /// A host (DNS name or IP address, IPv6 without brackets) and a port. `None` where the host is
    /// neither.
    pub fn new(host: &str, port: u16) -> Option<Self> {
        let name = ServerName::try_from(host.to_owned()).ok()?;
        Some(Self {
            host: host.to_owned(),
            port,
            name,
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The masters in order, beginning with the one that answered last. Clones share the list, so a
/// replacement reaches all.
#[derive(Debug, Clone)]
pub struct Endpoints {
    all: Arc<RwLock<Arc<[Endpoint]>>>,
    current: Arc<AtomicUsize>,
}

impl Endpoints {
    /// The masters in the order of the configuration. `None` for an empty list.
    pub fn new(all: Vec<Endpoint>) -> Option<Self> {
        (!all.is_empty()).then(|| Self {
            all: Arc::new(RwLock::new(all.into())),
            current: Arc::new(AtomicUsize::new(0)),
        })
    }

    /// Replaces the masters from now on; open connections stay. Does nothing if `all` is empty.
    pub fn replace(&self, all: Vec<Endpoint>) {
        if !all.is_empty() && *self.all() != *all {
            *self.all.write().unwrap_or_else(PoisonError::into_inner) = all.into();
            self.current.store(0, Ordering::Relaxed);
        }
    }

    /// The one that answered last, else the first.
    pub fn current(&self) -> Option<Endpoint> {
        self.all()
            .get(self.current.load(Ordering::Relaxed))
            .cloned()
    }

    /// The first of the configuration.
    pub(crate) fn first(&self) -> Endpoint {
        self.all()[0].clone()
    }

    fn all(&self) -> Arc<[Endpoint]> {
        Arc::clone(&self.all.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Connects to the first that answers, beginning with the one that did last.
    pub(crate) async fn connect(
        &self,
        tls: &Arc<ClientConfig>,
    ) -> Result<TlsStream<TcpStream>, Error> {
        let (all, start) = (self.all(), self.current.load(Ordering::Relaxed));
        let mut last = Error::NoEndpoint;
        for offset in 0..all.len() {
            let index = (start + offset) % all.len();
            let Some(endpoint) = all.get(index) else {
                continue;
            };
            match endpoint.connect(tls).await {
                Ok(stream) => {
                    self.current.store(index, Ordering::Relaxed);
                    return Ok(stream);
                }
                Err(error) => {
                    tracing::debug!(%endpoint, error = chain(&error), "cannot connect to a master; trying the next endpoint");
                    last = error;
                }
            }
        }
        Err(last)
    }
}

impl Endpoint {
    /// The addresses of the host. A name is looked up on a thread of its own ([`blocking`]).
    async fn addresses(&self) -> Result<io::Result<Vec<SocketAddr>>, Error> {
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return Ok(Ok(vec![SocketAddr::new(address, self.port)]));
        }
        let host = (self.host.clone(), self.port);
        let found = blocking(move || Ok(host.to_socket_addrs().map(Iterator::collect::<Vec<_>>)));
        timeout(LOOKUP_TIMEOUT, found)
            .await
            .unwrap_or_else(|_elapsed| Ok(Err(io::ErrorKind::TimedOut.into())))
    }

    async fn connect(&self, tls: &Arc<ClientConfig>) -> Result<TlsStream<TcpStream>, Error> {
        let connect = |source| Error::Connect {
            endpoint: self.to_string(),
            source,
        };
        let addresses = self.addresses().await?.map_err(connect)?;
        let tcp = first_to_answer(addresses, sleep, TcpStream::connect::<SocketAddr>)
            .await
            .map_err(connect)?;
        tcp.set_nodelay(true).map_err(connect)?;
        let handshake = TlsConnector::from(Arc::clone(tls)).connect(self.name.clone(), tcp);
        timeout(HANDSHAKE_TIMEOUT, handshake)
            .await
            .unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into()))
            .map_err(
                |source| match (not_pinned(&source), of_another_time(&source)) {
                    (Some(why), _) => Error::NotPinned {
                        endpoint: self.to_string(),
                        why,
                    },
                    (None, Some(why)) => Error::Clock {
                        endpoint: self.to_string(),
                        now: now(),
                        why,
                    },
                    (None, None) => Error::Handshake {
                        endpoint: self.to_string(),
                        source,
                    },
                },
            )
    }
}

/// How the server's certificate is outside of its validity, if the handshake failed for that
/// reason.
fn of_another_time(error: &io::Error) -> Option<&'static str> {
    let rustls::Error::InvalidCertificate(why) =
        error.get_ref()?.downcast_ref::<rustls::Error>()?
    else {
        return None;
    };
    let words = [
        (CertificateError::NotValidYet, "is not valid yet"),
        (CertificateError::Expired, "has ended"),
    ];
    words
        .into_iter()
        .find(|(known, _)| known == why)
        .map(|(_, words)| words)
}

fn now() -> String {
    let now = jiff::Timestamp::now();
    now.round(jiff::Unit::Second).unwrap_or(now).to_string()
}

/// TLS as nodes speak it to the master: version 1.3, a server by its pin, a full handshake each
/// time (a resumed one would prove nothing of the node key), and a client certificate if there is
/// one.
pub(crate) fn tls(
    pins: Pins,
    client: Option<Arc<dyn ResolvesClientCert>>,
    protocols: &[&[u8]],
) -> Result<Arc<ClientConfig>, Error> {
    let provider: Arc<CryptoProvider> = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(PinnedVerifier::new(pins, Arc::clone(&provider)));
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])
        .map_err(Error::Tls)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match client {
        Some(resolver) => builder.with_client_cert_resolver(resolver),
        None => builder.with_no_client_auth(),
    };
    config.resumption = Resumption::disabled();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_outside_of_its_validity_is_reported_as_such() {
        let said = |why| of_another_time(&io::Error::other(rustls::Error::InvalidCertificate(why)));
        assert_eq!(
            said(CertificateError::NotValidYet),
            Some("is not valid yet")
        );
        assert_eq!(said(CertificateError::Expired), Some("has ended"));
        assert_eq!(said(CertificateError::UnknownIssuer), None);
        assert_eq!(of_another_time(&io::ErrorKind::TimedOut.into()), None);
    }

    #[test]
    fn an_endpoint_is_a_name_or_an_address() {
        assert_eq!(
            Endpoint::new("fd00::1", 6443)
                .expect("an address")
                .to_string(),
            "[fd00::1]:6443"
        );
        assert_eq!(
            Endpoint::new("master.example", 6443)
                .expect("a name")
                .to_string(),
            "master.example:6443"
        );
        assert_eq!(Endpoint::new("no name", 6443), None);
        assert!(Endpoints::new(Vec::new()).is_none());
    }

    #[test]
    fn a_replacement_of_the_masters_reaches_every_clone() {
        let [one, two] =
            ["one.example", "two.example"].map(|host| Endpoint::new(host, 6443).expect("a name"));
        let endpoints = Endpoints::new(vec![one.clone(), one.clone()]).expect("not empty");
        endpoints.current.store(1, Ordering::Relaxed);
        let clone = endpoints.clone();
        endpoints.replace(Vec::new());
        assert_eq!(clone.current(), Some(one));
        endpoints.replace(vec![two.clone()]);
        assert_eq!(clone.current(), Some(two.clone()), "from the first on");
        assert_eq!(clone.first(), two);
    }
}
