//! Requests of an admin to a running master: by a kubeconfig, with the answer read piece by piece.

use crate::Error;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use config_http::{Connection, Limits, first_to_answer};
use http::{Request, StatusCode, header};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::sleep;
use tokio_rustls::TlsConnector;

/// Time for the connection, for the answer to begin, and for each piece of it.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a refusal that are shown.
const MAX_REFUSAL: usize = 64 << 10;

/// A kubeconfig's current context.
struct Context<'a> {
    path: &'a Path,
    cluster: Value,
    user: Value,
}

impl Context<'_> {
    fn bad(&self, why: impl std::fmt::Display) -> Error {
        Error::Kubeconfig {
            path: self.path.to_owned(),
            why: why.to_string(),
        }
    }

    /// PEM from a field's base64, or from the file that a field names.
    fn pem(&self, of: &Value, field: &str) -> Result<Option<Vec<u8>>, Error> {
        if let Some(text) = of[format!("{field}-data")].as_str() {
            return STANDARD
                .decode(text)
                .map(Some)
                .map_err(|error| self.bad(format!("{field}-data: {error}")));
        }
        let Some(name) = of[field].as_str() else {
            return Ok(None);
        };
        // Relative to the kubeconfig, as kubectl has it.
        let path: PathBuf = self.path.parent().unwrap_or(Path::new(".")).join(name);
        std::fs::read(&path)
            .map(Some)
            .map_err(|source| Error::File {
                what: "read",
                path,
                source,
            })
    }

    fn tls(&self) -> Result<ClientConfig, Error> {
        let mut roots = RootCertStore::empty();
        let pem = self.pem(&self.cluster, "certificate-authority")?;
        let pem = pem.ok_or_else(|| self.bad("its cluster names no certificate-authority"))?;
        for root in CertificateDer::pem_slice_iter(&pem) {
            roots
                .add(root.map_err(|error| self.bad(error))?)
                .map_err(Error::Tls)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(Error::Tls)?
            .with_root_certificates(roots);
        let (chain, key) = (
            self.pem(&self.user, "client-certificate")?,
            self.pem(&self.user, "client-key")?,
        );
        let (Some(chain), Some(key)) = (chain, key) else {
            return Ok(config.with_no_client_auth());
        };
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain).collect();
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| self.bad(error))?;
        config
            .with_client_auth_cert(chain.map_err(|error| self.bad(error))?, key)
            .map_err(Error::Tls)
    }
}

/// Reads a kubeconfig's current context.
fn context(path: &Path) -> Result<Context<'_>, Error> {
    let bad = |why: String| Error::Kubeconfig {
        path: path.to_owned(),
        why,
    };
    let bytes = std::fs::read(path).map_err(|source| Error::File {
        what: "read",
        path: path.to_owned(),
        source,
    })?;
    let config: Value =
        serde_yaml_ng::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
    let named = |list: &str, name: &Value, field: &str| {
        let found = config[list]
            .as_array()
            .into_iter()
            .flatten()
            .find(|item| item["name"] == *name);
        found
            .map(|item| item[field].clone())
            .ok_or_else(|| bad(format!("{list} has no {name}")))
    };
    let context = named("contexts", &config["current-context"], "context")?;
    let cluster = named("clusters", &context["cluster"], "cluster")?;
    let user = named("users", &context["user"], "user")?;
    Ok(Context {
        path,
        cluster,
        user,
    })
}

/// Reads what a path of the master answers, piece by piece.
pub(crate) async fn download(
    kubeconfig: &Path,
    server: Option<&str>,
    path: &str,
    put: &mut dyn FnMut(Bytes) -> Result<(), Error>,
) -> Result<(), Error> {
    let context = context(kubeconfig)?;
    let server = server
        .or_else(|| context.cluster["server"].as_str())
        .unwrap_or_default()
        .trim_end_matches('/');
    let fail = |source: Box<dyn std::error::Error + Send + Sync>| Error::Remote {
        server: server.to_owned(),
        source,
    };
    let address = server
        .strip_prefix("https://")
        .ok_or_else(|| context.bad("its server is not https://HOST:PORT"))?;
    let authority: http::uri::Authority = address.parse().map_err(|error| context.bad(error))?;
    let (host, port) = (
        authority.host().trim_matches(['[', ']']).to_owned(),
        authority.port_u16().unwrap_or(443),
    );
    let name = ServerName::try_from(host.clone()).map_err(|error| context.bad(error))?;
    let connector = TlsConnector::from(Arc::new(context.tls()?));
    let connect = async {
        let found = lookup_host((host.as_str(), port)).await?.collect();
        let socket = first_to_answer(found, sleep, TcpStream::connect::<SocketAddr>).await?;
        connector.connect(name, socket).await
    };
    let stream = with_timeout(connect).await.map_err(fail)?;
    let stream = stream.map_err(|error| fail(error.into()))?;
    let limits = Limits {
        time: READ_TIMEOUT,
        body: MAX_REFUSAL,
        ..Limits::default()
    };
    let (executor, timer) = (TokioExecutor::new(), TokioTimer::new());
    let connection = Connection::open(TokioIo::new(stream), &executor, timer, limits).await;
    let mut connection = connection.map_err(|error| fail(error.into()))?;
    let mut request = Request::get(path).header(header::HOST, authority.as_str());
    if let Some(token) = context.user["token"].as_str() {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Bytes::new());
    let request = request.map_err(|error| fail(error.into()))?;
    let answer = connection.send(request).await;
    let answer = answer.map_err(|error| fail(error.into()))?;
    if answer.status() != StatusCode::OK {
        let status = answer.status();
        let text = answer.into_body().whole().await;
        let text = text.map_err(|error| fail(error.into()))?;
        let text = String::from_utf8_lossy(&text);
        return Err(fail(format!("{path} was answered {status}: {text}").into()));
    }
    let mut body = answer.into_body();
    loop {
        let piece = with_timeout(body.piece()).await;
        let piece = piece.and_then(|piece| piece.map_err(Into::into));
        match piece.map_err(fail)? {
            Some(piece) => put(piece)?,
            None => return Ok(()),
        }
    }
}

async fn with_timeout<T>(
    work: impl Future<Output = T>,
) -> Result<T, Box<dyn std::error::Error + Send + Sync>> {
    tokio::time::timeout(READ_TIMEOUT, work)
        .await
        .map_err(Into::into)
}
