//! A small HTTP client for registries: TLS or plain, redirects followed, bodies streamed, all of it
//! bounded.
//!
//! Guarantees: `Authorization` goes only to the host that a request was made for, never to where
//! that one redirects; plain http is spoken only with hosts of which the configuration says so; an
//! address that only this machine can reach is asked only if the configuration names it, and so is
//! one of a pod or a Service to which a registry leads; connections go to the address that was
//! checked.

use crate::credential::Secret;
use crate::reach::{ClusterAddresses, is_own};
use agent_confine::OF_IMAGES;
use bytes::Bytes;
use config_http::{Body, Connection, Limits, first_to_answer};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, LOCATION, USER_AGENT};
use http::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, RootCertStore};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

/// From a request to the head of its answer, and for the whole of a small answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time for the look-up of a host, and for a TLS handshake.
const CONNECT: Duration = Duration::from_secs(10);
/// Most redirects of one request.
const MAX_REDIRECTS: usize = 5;

/// Why no usable answer came. Of a redirect's target only the host is shown: the rest of such an
/// address may be a secret.
#[derive(Debug, Error)]
pub(crate) enum HttpError {
    #[error("{0:?} is no http or https address")]
    Address(String),
    #[error(
        "{host} is an address that only this machine can reach: not asked, since the machine's configuration does not name it"
    )]
    Own { host: String },
    #[error(
        "{host}, to which the registry leads, is an address of a pod or a Service: not asked; if it is meant, name {host} in a \
         `[[registry]]` of the machine's configuration"
    )]
    Inside { host: String },
    #[error("cannot connect to {host}")]
    Connect { host: String, source: io::Error },
    #[error(
        "{host} shows a certificate of an unknown authority: its root must be in `ca` of the machine's configuration"
    )]
    UnknownAuthority { host: String },
    #[error("the certificate of {host} is refused")]
    Certificate { host: String, source: rustls::Error },
    #[error("{host} gave no answer within {} s", PATIENCE.as_secs())]
    Silent { host: String },
    #[error("the HTTP exchange with {host} failed")]
    Protocol { host: String, source: hyper::Error },
    #[error("{host} answered {status}{code}")]
    Refused {
        host: String,
        status: StatusCode,
        code: String,
    },
    #[error("{host} redirects more than {MAX_REDIRECTS} times, or to nowhere")]
    Redirects { host: String },
    #[error("{host} leads to plain http at {to}")]
    Plain { host: String, to: String },
    #[error("the answer of {host} is longer than {limit} bytes")]
    TooLong { host: String, limit: usize },
    #[error("unauthorized: {0}")]
    Unauthorized(String),
}

/// Settings of hosts in the machine's configuration.
#[derive(Debug, Clone, Default)]
pub(crate) struct Named {
    /// Hosts with their ports that may be asked at whatever address.
    pub(crate) hosts: BTreeSet<String>,
    /// Those among them with which plain http is spoken.
    pub(crate) plain: BTreeSet<String>,
    /// Pods and Services, to which no registry leads.
    pub(crate) cluster: ClusterAddresses,
}

/// Who chose the host of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChosenBy {
    /// The image's name, or the machine's configuration.
    Name,
    /// The registry: by a redirect, or as its token service.
    Registry,
}

impl Named {
    /// Whether a host may be asked at an address.
    ///
    /// # Errors
    /// It may not; the error says why.
    fn check(&self, host: &str, address: IpAddr, chosen: ChosenBy) -> Result<(), HttpError> {
        let host_name = || host.to_owned();
        if self.hosts.contains(host) {
            Ok(())
        } else if is_own(address) {
            Err(HttpError::Own { host: host_name() })
        } else if chosen == ChosenBy::Registry && self.cluster.has(address) {
            Err(HttpError::Inside { host: host_name() })
        } else {
            Ok(())
        }
    }
}

/// The client of one registry, with the roots that count for it.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    tls: Arc<ClientConfig>,
    named: Arc<Named>,
}

/// An answer, and whether it is of the host that was asked: what another host says about
/// authentication is ignored.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) answer: Response<Body>,
    /// Host and port that answered.
    pub(crate) host: String,
    pub(crate) at_home: bool,
}

/// The scheme of a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// https.
    Tls,
    /// http.
    Plain,
}

/// One request, apart from where it goes.
struct Ask<'a> {
    method: Method,
    accept: &'static str,
    authorization: Option<&'a Secret>,
    form: Option<&'a Secret>,
    chosen: ChosenBy,
}

impl Http {
    /// A client that believes these roots.
    pub(crate) fn new(roots: RootCertStore, named: Arc<Named>) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(rustls::DEFAULT_VERSIONS);
        // ring knows every version of the default list, so that this arm isn't taken.
        let builder = builder.unwrap_or_else(|_| ClientConfig::builder());
        Self {
            tls: Arc::new(builder.with_root_certificates(roots).with_no_client_auth()),
            named,
        }
    }

    /// The same client, which no registry leads to a pod or a Service of the cluster.
    pub(crate) fn outside_of(mut self, cluster: ClusterAddresses) -> Self {
        Arc::make_mut(&mut self.named).cluster = cluster;
        self
    }

    /// Sends GET and follows redirects; `authorization` goes only to the host of `url`, which was
    /// `chosen` like this.
    pub(crate) async fn get(
        &self,
        url: &str,
        accept: &'static str,
        authorization: Option<&Secret>,
        chosen: ChosenBy,
    ) -> Result<Reply, HttpError> {
        let mut at = address(url)?;
        let first = origin(&at);
        for _ in 0..=MAX_REDIRECTS {
            let here = origin(&at);
            let at_home = here == first;
            let authorization = authorization.filter(|_| at_home);
            let answer = self
                .once(
                    &at,
                    &Ask {
                        method: Method::GET,
                        accept,
                        authorization,
                        form: None,
                        chosen: if at_home { chosen } else { ChosenBy::Registry },
                    },
                )
                .await?;
            if !redirects(answer.status()) {
                return Ok(Reply {
                    answer,
                    host: here.1,
                    at_home,
                });
            }
            let to = answer
                .headers()
                .get(LOCATION)
                .and_then(|value| value.to_str().ok());
            at = to
                .and_then(|to| joined(&at, to))
                .ok_or_else(|| HttpError::Redirects {
                    host: here.1.clone(),
                })?;
            let (scheme, host) = origin(&at);
            if scheme == Scheme::Plain && !self.named.plain.contains(&host) {
                return Err(HttpError::Plain {
                    host: here.1,
                    to: host,
                });
            }
        }
        Err(HttpError::Redirects { host: first.1 })
    }

    /// Sends a form; a redirect is no answer to one.
    pub(crate) async fn post_form(
        &self,
        url: &str,
        form: &Secret,
        chosen: ChosenBy,
    ) -> Result<Reply, HttpError> {
        let at = address(url)?;
        let ask = Ask {
            method: Method::POST,
            accept: "application/json",
            authorization: None,
            form: Some(form),
            chosen,
        };
        let answer = self.once(&at, &ask).await?;
        Ok(Reply {
            answer,
            host: origin(&at).1,
            at_home: true,
        })
    }

    /// Whether plain http may be spoken with a host, as the configuration says.
    pub(crate) fn may_be_plain(&self, host: &str) -> bool {
        self.named.plain.contains(host)
    }

    async fn once(&self, url: &Uri, ask: &Ask<'_>) -> Result<Response<Body>, HttpError> {
        let (_, host) = origin(url);
        let invalid = || HttpError::Address(host.clone());
        let path = url
            .path_and_query()
            .map_or("/", http::uri::PathAndQuery::as_str);
        let authority = url.authority().map_or("", http::uri::Authority::as_str);
        let request = Request::builder()
            .method(&ask.method)
            .uri(path)
            .header(HOST, authority);
        let mut request = request
            .header(ACCEPT, ask.accept)
            .header(USER_AGENT, "pratique");
        if let Some(secret) = ask.authorization {
            let mut value = HeaderValue::from_str(secret.reveal()).map_err(|_invalid| invalid())?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        if ask.form.is_some() {
            request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        }
        let body = ask
            .form
            .map(|form| Bytes::copy_from_slice(form.reveal().as_bytes()))
            .unwrap_or_default();
        let request = request.body(body).map_err(|_invalid| invalid())?;
        let tcp = self.connect(url, &host, ask.chosen).await?;
        if url.scheme_str() != Some("https") {
            return exchange(tcp, request, &host).await;
        }
        let name = url
            .host()
            .unwrap_or_default()
            .trim_matches(['[', ']'])
            .to_owned();
        let server = ServerName::try_from(name).map_err(|_invalid| invalid())?;
        let tls = timeout(
            CONNECT,
            TlsConnector::from(self.tls.clone()).connect(server, tcp),
        )
        .await;
        let tls = tls.map_err(|_elapsed| HttpError::Silent { host: host.clone() })?;
        exchange(
            tls.map_err(|error| handshake(&host, error))?,
            request,
            &host,
        )
        .await
    }

    /// Connects to the first of the host's addresses that answers, among those that may be asked.
    async fn connect(
        &self,
        url: &Uri,
        host: &str,
        chosen: ChosenBy,
    ) -> Result<TcpStream, HttpError> {
        let fail = |source| HttpError::Connect {
            host: host.to_owned(),
            source,
        };
        let name = url.host().unwrap_or_default().trim_matches(['[', ']']);
        let found = timeout(CONNECT, OF_IMAGES.find(name, port(url))).await;
        let found = found
            .map_err(|_elapsed| HttpError::Silent {
                host: host.to_owned(),
            })?
            .map_err(fail)?;
        let (mut may_be_asked, mut refusal) = (Vec::new(), None);
        for address in found {
            match self.named.check(host, address.ip(), chosen) {
                Ok(()) => may_be_asked.push(address),
                Err(error) => refusal = Some(error),
            }
        }
        if let (true, Some(refusal)) = (may_be_asked.is_empty(), refusal) {
            return Err(refusal);
        }
        first_to_answer(may_be_asked, sleep, TcpStream::connect::<SocketAddr>)
            .await
            .map_err(fail)
    }
}

/// Classifies a handshake error; an unknown issuer is the usual one.
fn handshake(host: &str, error: io::Error) -> HttpError {
    let host = host.to_owned();
    match error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>())
    {
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            HttpError::UnknownAuthority { host }
        }
        Some(other @ rustls::Error::InvalidCertificate(_)) => HttpError::Certificate {
            host,
            source: other.clone(),
        },
        Some(_) | None => HttpError::Connect {
            host,
            source: error,
        },
    }
}

/// One request on a connection of its own; the connection lives as long as the answer's body.
pub(crate) async fn exchange(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Bytes>,
    host: &str,
) -> Result<Response<Body>, HttpError> {
    let limits = Limits {
        time: PATIENCE,
        ..Limits::default()
    };
    let (executor, timer) = (TokioExecutor::new(), TokioTimer::new());
    let answer = async {
        let mut connection = Connection::open(TokioIo::new(io), &executor, timer, limits).await?;
        connection.send(request).await
    };
    answer.await.map_err(|error| failed(host, error))
}

/// A failure of the exchange with a host.
fn failed(host: &str, error: config_http::HttpError) -> HttpError {
    let host = host.to_owned();
    match error {
        config_http::HttpError::Exchange(source) => HttpError::Protocol { host, source },
        config_http::HttpError::Silent(_) => HttpError::Silent { host },
        config_http::HttpError::TooLong(limit) => HttpError::TooLong { host, limit },
    }
}

impl Reply {
    /// The body, if it is not longer than `limit` and comes in time.
    pub(crate) async fn collect(self, limit: usize) -> Result<Bytes, HttpError> {
        let whole = self.answer.into_body().within(limit).await;
        whole.map_err(|error| failed(&self.host, error))
    }
}

/// An http or https address with a host and no user in it.
pub(crate) fn address(text: &str) -> Result<Uri, HttpError> {
    let invalid = || {
        HttpError::Address(
            text.split('?')
                .next()
                .unwrap_or_default()
                .chars()
                .take(128)
                .collect(),
        )
    };
    let uri: Uri = text.parse().map_err(|_invalid| invalid())?;
    let known = matches!(uri.scheme_str(), Some("http" | "https"));
    let plain = uri
        .authority()
        .is_some_and(|authority| !authority.as_str().contains('@'));
    if known && plain {
        Ok(uri)
    } else {
        Err(invalid())
    }
}

/// Scheme, and host with its port, in one form for all ways to write them.
pub(crate) fn origin(uri: &Uri) -> (Scheme, String) {
    let host = uri.host().unwrap_or_default().to_ascii_lowercase();
    let scheme = if uri.scheme_str() == Some("https") {
        Scheme::Tls
    } else {
        Scheme::Plain
    };
    (scheme, format!("{host}:{}", port(uri)))
}

fn port(uri: &Uri) -> u16 {
    uri.port_u16()
        .unwrap_or(if uri.scheme_str() == Some("https") {
            443
        } else {
            80
        })
}

fn redirects(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Where a Location header leads, seen from `base`; never from https down to http.
fn joined(base: &Uri, to: &str) -> Option<Uri> {
    let uri = if to.starts_with('/') && !to.starts_with("//") {
        let mut parts = base.clone().into_parts();
        parts.path_and_query = Some(to.parse().ok()?);
        Uri::from_parts(parts).ok()?
    } else {
        address(to).ok()?
    };
    let weaker = base.scheme_str() == Some("https") && uri.scheme_str() != Some("https");
    (!weaker).then_some(uri)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Session;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// A client of a cluster with pods in 10.244.0.0/16, and the address of a registry that it
    /// knows. That answers each request by these lines and an empty body.
    async fn led_by(lines: &'static str) -> (Http, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n")
                    && (stream.read_buf(&mut request).await).is_ok_and(|count| count > 0)
                {
                }
                let answer = format!("HTTP/1.1 {lines}\r\ncontent-length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.ok();
            }
        });
        let named = Named {
            hosts: [host.clone()].into(),
            plain: [host.clone()].into(),
            ..Named::default()
        };
        let pods = |address: IpAddr| address.to_string().starts_with("10.244.");
        let http = Http::new(RootCertStore::empty(), Arc::new(named));
        let http = http.outside_of(ClusterAddresses::new(pods));
        (http, format!("http://{host}"))
    }

    #[tokio::test]
    async fn a_redirect_to_a_pod_or_a_service_is_not_followed() {
        for to in [
            "302 Found\r\nlocation: https://10.244.1.5:8443/x",
            "307 Temporary Redirect\r\nlocation: https://[::ffff:10.244.1.5]/x",
        ] {
            let (http, url) = led_by(to).await;
            let error = http.get(&url, "*/*", None, ChosenBy::Name).await;
            let error = error.unwrap_err();
            assert!(matches!(error, HttpError::Inside { .. }), "{error}");
            assert!(error.to_string().contains("`[[registry]]`"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_token_is_not_asked_of_a_pod_or_a_service() {
        let challenge =
            "401 Unauthorized\r\nwww-authenticate: Bearer realm=\"https://10.244.1.5/token\"";
        let (http, url) = led_by(challenge).await;
        let session = Session::new(http, url, "a".into(), None, Vec::new());
        let error = session.get("manifests/1", "*/*").await.unwrap_err();
        assert!(matches!(error, HttpError::Inside { .. }), "{error}");
    }

    #[test]
    fn a_registry_in_the_cluster_is_asked_if_an_image_or_the_configuration_names_it() {
        let named = Named {
            hosts: ["10.244.1.5:443".to_owned()].into(),
            cluster: ClusterAddresses::new(|_| true),
            ..Named::default()
        };
        let pod: IpAddr = [10, 244, 1, 5].into();
        let may = |host: &str, chosen| named.check(host, pod, chosen).is_ok();
        assert!(may("10.244.1.5:443", ChosenBy::Registry));
        assert!(may("10.244.1.5:8443", ChosenBy::Name));
        assert!(!may("10.244.1.5:8443", ChosenBy::Registry));
    }

    #[test]
    fn redirects_go_on_and_never_down() {
        let base: Uri = "https://registry.example/v2/a".parse().unwrap();
        assert_eq!(
            joined(&base, "/v3/b?c").unwrap(),
            "https://registry.example/v3/b?c"
        );
        assert_eq!(
            joined(&base, "https://blobs.example/x").unwrap(),
            "https://blobs.example/x"
        );
        for to in [
            "http://blobs.example/x",
            "//blobs.example/x",
            "x",
            "ftp://blobs.example/x",
            "",
        ] {
            assert_eq!(joined(&base, to), None, "{to}");
        }
    }

    #[test]
    fn only_http_addresses_are_asked_and_secrets_in_them_are_not_shown() {
        assert!(address("ftp://registry.example").is_err());
        assert!(address("registry.example").is_err());
        assert!(address("https://user:pass@registry.example/").is_err());
        assert!(address("http://10.0.2.2:5000").is_ok());
        assert!(
            !address("ftp://x/?signature=1")
                .unwrap_err()
                .to_string()
                .contains("signature")
        );
    }

    #[test]
    fn one_host_has_one_origin() {
        let of = |text: &str| origin(&text.parse().unwrap()).1;
        assert_eq!(
            of("https://Registry.example/a"),
            of("https://registry.example:443/b")
        );
        assert_ne!(
            of("https://registry.example"),
            of("http://registry.example")
        );
        assert_eq!(of("https://[fd00::1]:5000/"), "[fd00::1]:5000");
    }
}
