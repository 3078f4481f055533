//! One GET to a discovery endpoint: every time and every size is bounded, redirects are not
//! followed, and the server is not trusted.

use bytes::Bytes;
use config_discovery::{DocumentFault, MAX_BYTES};
use config_http::{Connection, HttpError, Limits, first_to_answer};
use config_model::discovery::DiscoveryUri;
use http::{Request, StatusCode, header};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

/// Longest time to look up a name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(8);
/// Longest time for one fetch: look-up, connection ([`config_http::CONNECT_LIMIT`]) and answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why there is no document.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No connection could be made.
    #[error("it cannot be reached")]
    Connect(#[source] io::Error),
    /// TLS or HTTP failed.
    #[error("the exchange with it failed")]
    Exchange(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// There was no answer in time.
    #[error("it did not answer within {seconds} s", seconds = PATIENCE.as_secs())]
    Silent,
    /// Another status than 200.
    #[error("it answered {0}")]
    Status(StatusCode),
    /// More bytes than a document has.
    #[error("its document was rejected")]
    TooLarge(#[source] DocumentFault),
}

/// The bytes that an endpoint serves for a cluster.
pub(crate) async fn fetch(uri: &DiscoveryUri) -> Result<Bytes, FetchError> {
    timeout(PATIENCE, get(uri))
        .await
        .unwrap_or(Err(FetchError::Silent))
}

async fn get(uri: &DiscoveryUri) -> Result<Bytes, FetchError> {
    let host = uri.endpoint.host().to_string();
    let found = timeout(
        LOOKUP_TIMEOUT,
        lookup_host((host.as_str(), uri.endpoint.port())),
    );
    let addresses: Vec<SocketAddr> = found
        .await
        .unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into()))
        .map_err(FetchError::Connect)?
        .collect();
    let tcp = first_to_answer(addresses, sleep, TcpStream::connect::<SocketAddr>)
        .await
        .map_err(FetchError::Connect)?;
    if !uri.endpoint.tls {
        return exchange(tcp, uri).await;
    }
    let name = ServerName::try_from(host).map_err(|error| FetchError::Exchange(error.into()))?;
    let tls = config_tls::unverified_server(rustls::DEFAULT_VERSIONS)
        .map_err(|error| FetchError::Exchange(error.into()))?;
    let stream = TlsConnector::from(tls)
        .connect(name, tcp)
        .await
        .map_err(|error| FetchError::Exchange(error.into()))?;
    exchange(stream, uri).await
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    uri: &DiscoveryUri,
) -> Result<Bytes, FetchError> {
    let limits = Limits {
        time: PATIENCE,
        head: MAX_BYTES,
        body: MAX_BYTES,
        ..Limits::default()
    };
    let request = Request::get(uri.master())
        .header(header::HOST, uri.endpoint.address.to_string())
        .header(header::ACCEPT, "application/json")
        .header(
            header::USER_AGENT,
            concat!("pratique-agent/", env!("CARGO_PKG_VERSION")),
        )
        .body(Bytes::new())
        .map_err(|error| FetchError::Exchange(error.into()))?;
    let (executor, timer) = (TokioExecutor::new(), TokioTimer::new());
    let stream = TokioIo::new(stream);
    let mut connection = Connection::open(stream, &executor, timer, limits).await?;
    let answer = connection.send(request).await?;
    if answer.status() != StatusCode::OK {
        return Err(FetchError::Status(answer.status()));
    }
    Ok(answer.into_body().whole().await?)
}

impl From<HttpError> for FetchError {
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::Exchange(source) => Self::Exchange(source.into()),
            HttpError::Silent(_) => Self::Silent,
            HttpError::TooLong(limit) => {
                Self::TooLarge(DocumentFault::TooLarge { found: limit + 1 })
            }
        }
    }
}
