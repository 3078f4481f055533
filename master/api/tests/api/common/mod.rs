//! A server over real TLS with its own CA, and an HTTP client for it.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod kubectl;
pub(crate) mod prepared;

use base64::Engine;
use bytes::Bytes;
use config_tls::{CurrentClients, Strangers};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use master_api::{ApiServer, DialError, NodeDialer, NodeStream, NodeTarget, Options};
use master_client::{BoxFuture, Client, UserInfo};
use master_listener::{ServeOptions, serve, tls_config};
use master_store::{EmbeddedStore, Replica, Store};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// A server inside the process, without a socket.
pub(crate) struct Local {
    pub(crate) api: ApiServer,
    _folder: TempDir,
}

impl Local {
    pub(crate) async fn new() -> Self {
        Self::with(Options::default()).await
    }

    pub(crate) async fn with(options: Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        prepared::fill(folder.path(), &options);
        let api = ApiServer::new(
            Arc::new(EmbeddedStore::open(folder.path()).unwrap()),
            options,
        );
        api.prepare().await.unwrap();
        Self {
            api,
            _folder: folder,
        }
    }

    /// A server that reads a copy of its store, as one does whose store is elsewhere.
    pub(crate) async fn replicated(options: Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(folder.path()).unwrap());
        let (replica, following) = Replica::of(Arc::clone(&store)).await.unwrap();
        // It ends with the test's runtime.
        tokio::spawn(following);
        let api = ApiServer::with_reader(store, Arc::new(replica), options);
        api.prepare().await.unwrap();
        Self::of(api, folder)
    }

    /// A server that a test built itself, and the folder of its store.
    pub(crate) fn of(api: ApiServer, folder: TempDir) -> Self {
        Self {
            api,
            _folder: folder,
        }
    }

    pub(crate) fn admin(&self) -> Client {
        self.api.client(UserInfo::admin("admin"))
    }

    /// Sends any request, as any user; returns the answer's status and JSON.
    pub(crate) async fn ask(
        &self,
        user: &UserInfo,
        method: Method,
        path: &str,
        body: &Value,
    ) -> (StatusCode, Value) {
        let kind = match method.as_str() {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let (status, _, bytes) = self
            .send(
                user,
                method,
                path,
                &[("content-type", kind)],
                body.to_string(),
            )
            .await;
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    pub(crate) async fn send(
        &self,
        user: &UserInfo,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> (StatusCode, HeaderMap, Bytes) {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(master_client::body(body)).unwrap();
        let response = self
            .api
            .handle_as(request, user.clone(), master_listener::Peer::default())
            .await;
        let (parts, body) = response.into_parts();
        (
            parts.status,
            parts.headers,
            body.collect().await.unwrap().to_bytes(),
        )
    }

    pub(crate) async fn admin_ask(
        &self,
        method: Method,
        path: &str,
        body: &Value,
    ) -> (StatusCode, Value) {
        self.ask(&UserInfo::admin("admin"), method, path, body)
            .await
    }
}

#[derive(Debug)]
struct Fixed(Arc<CertifiedKey>);

impl ResolvesServerCert for Fixed {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

/// A certificate request with an organization, as objects contain it (base64 of PEM).
pub(crate) fn signing_request(organization: &str) -> String {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::OrganizationName, organization);
    let pem = params
        .serialize_request(&KeyPair::generate().unwrap())
        .unwrap()
        .pem()
        .unwrap();
    base64::engine::general_purpose::STANDARD.encode(pem)
}

/// A request for a node's certificate, as objects contain it.
#[allow(dead_code, reason = "not every test binary asks for one")]
pub(crate) fn node_request(node: &str) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "system:nodes");
    params
        .distinguished_name
        .push(DnType::CommonName, format!("system:node:{node}"));
    let pem = params
        .serialize_request(&KeyPair::generate().unwrap())
        .unwrap()
        .pem()
        .unwrap();
    base64::engine::general_purpose::STANDARD.encode(pem)
}

/// A certificate authority of a test.
pub(crate) struct Authority {
    pub(crate) root: CertificateDer<'static>,
    pub(crate) root_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key.
pub(crate) struct Identity {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) certificate_pem: String,
    pub(crate) key: KeyPair,
}

impl Identity {
    pub(crate) fn key_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()))
    }
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "test root");
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap();
        Self {
            root: root.der().clone(),
            root_pem: root.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    pub(crate) fn issue(&self, name: &str, groups: &[&str], names: &[&str]) -> Identity {
        let mut params =
            CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>())
                .unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        for group in groups {
            params
                .distinguished_name
                .push(DnType::OrganizationName, *group);
        }
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity {
            certificate: certificate.der().clone(),
            certificate_pem: certificate.pem(),
            key,
        }
    }
}

/// A listening server.
pub(crate) struct Server {
    pub(crate) local: Local,
    pub(crate) authority: Authority,
    pub(crate) address: SocketAddr,
    pub(crate) shutdown: CancellationToken,
    pub(crate) task: tokio::task::JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(options: Options, limits: ServeOptions) -> Self {
        Self::over(Local::with(options).await, limits).await
    }

    /// A listener for an existing server.
    pub(crate) async fn over(local: Local, limits: ServeOptions) -> Self {
        let authority = Authority::new();
        let own = authority.issue("server", &[], &["127.0.0.1"]);
        let provider = rustls::crypto::ring::default_provider();
        let key = provider
            .key_provider
            .load_private_key(own.key_der())
            .unwrap();
        let own = Arc::new(CertifiedKey::new(vec![own.certificate], key));
        let roots = vec![authority.root.clone()];
        let clients = CurrentClients::new(roots, Strangers::Anonymous).unwrap();
        let tls = Arc::new(tls_config(Arc::new(Fixed(own)), Arc::new(clients)).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(serve(
            listener,
            tls,
            Arc::new(local.api.clone()),
            limits,
            shutdown.clone(),
        ));
        Self {
            local,
            authority,
            address,
            shutdown,
            task,
        }
    }

    /// TLS client configuration, with or without a certificate.
    pub(crate) fn client_tls(
        &self,
        identity: Option<&Identity>,
        protocol: &[u8],
    ) -> rustls::ClientConfig {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.authority.root.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match identity {
            Some(identity) => builder
                .with_client_auth_cert(vec![identity.certificate.clone()], identity.key_der())
                .unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        config
    }

    pub(crate) async fn stream(
        &self,
        tls: rustls::ClientConfig,
    ) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        tokio_rustls::TlsConnector::from(Arc::new(tls))
            .connect(name, stream)
            .await
    }

    /// One HTTP/2 connection.
    pub(crate) async fn connect(&self, identity: Option<&Identity>) -> Connection {
        let stream = self.stream(self.client_tls(identity, b"h2")).await.unwrap();
        let handshake =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        Connection { sender }
    }

    pub(crate) fn admin_identity(&self) -> Identity {
        self.authority.issue("admin", &["system:masters"], &[])
    }

    /// A kubeconfig with admin credentials.
    pub(crate) fn kubeconfig(&self) -> Value {
        let admin = self.admin_identity();
        let base64 = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {
                "server": format!("https://{}", self.address),
                "certificate-authority-data": base64(&self.authority.root_pem),
            }}],
            "users": [{"name": "u", "user": {
                "client-certificate-data": base64(&admin.certificate_pem),
                "client-key-data": base64(&admin.key.serialize_pem()),
            }}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        })
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
    }
}

/// An open connection.
#[derive(Clone)]
pub(crate) struct Connection {
    sender: hyper::client::conn::http2::SendRequest<Full<Bytes>>,
}

impl Connection {
    pub(crate) async fn open(
        &mut self,
        method: Method,
        path: &str,
        body: &str,
    ) -> http::Response<Incoming> {
        let uri = format!("https://127.0.0.1{path}");
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header("content-type", "application/json");
        self.sender
            .send_request(
                request
                    .body(Full::new(Bytes::from(body.to_owned())))
                    .unwrap(),
            )
            .await
            .unwrap()
    }

    pub(crate) async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: &str,
    ) -> (StatusCode, Value) {
        let response = self.open(method, path, body).await;
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    }
}

/// A kubelet for tests: answers on an in-memory stream and records its requests.
#[derive(Debug, Default, Clone)]
pub(crate) struct Kubelet {
    pub(crate) asked: Arc<Mutex<Vec<(NodeTarget, String)>>>,
}

impl NodeDialer for Kubelet {
    fn dial(&self, target: NodeTarget) -> BoxFuture<'_, Result<Box<dyn NodeStream>, DialError>> {
        let asked = self.asked.clone();
        Box::pin(async move {
            if target.port == 1 {
                let source = std::io::Error::other("connection refused").into();
                return Err(DialError {
                    node: target.name,
                    address: target.address.to_string(),
                    source,
                });
            }
            let (near, far) = tokio::io::duplex(1024);
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                asked
                    .lock()
                    .unwrap()
                    .push((target.clone(), request.uri().to_string()));
                async {
                    Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from(
                        "line 1\nline 2\n",
                    ))))
                }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(far), service),
            );
            Ok(Box::new(near) as Box<dyn NodeStream>)
        })
    }
}
