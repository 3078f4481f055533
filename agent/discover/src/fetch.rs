//! One GET to a discovery endpoint: every time and every size is bounded, redirects are not
//! followed, and the server is not trusted.

use bytes::Bytes;
use config_discovery::{DocumentFault, MAX_BYTES};
use config_http::{Connection, HttpError, Limits};
use config_model::discovery::DiscoveryUri;
use http::{Request, StatusCode, header};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Longest time to look up a name, and for a connection to each address: three transmissions of a
/// SYN.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(8);
/// Longest time for one fetch, with look-up, connection and answer.
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
        CONNECT_TIMEOUT,
        lookup_host((host.as_str(), uri.endpoint.port())),
    );
    let addresses: Vec<SocketAddr> = found
        .await
        .unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into()))
        .map_err(FetchError::Connect)?
        .collect();
    let tcp = first_to_answer(addresses, CONNECT_TIMEOUT, TcpStream::connect::<SocketAddr>)
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

/// Connects to the first of a host's addresses that answers. Each has the whole of `limit`, so that
/// one that is dead does not hide the others.
async fn first_to_answer<T, F>(
    addresses: Vec<SocketAddr>,
    limit: Duration,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        match timeout(limit, connect(address)).await {
            Ok(Ok(connected)) => return Ok(connected),
            Ok(Err(error)) => failure = error,
            Err(_elapsed) => failure = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(failure)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_that_does_not_answer_hides_no_other_of_its_name() {
        let [silent, open] = [1, 2].map(|last| SocketAddr::from(([192, 0, 2, last], 443)));
        let connect = move |address: SocketAddr| async move {
            if address == silent {
                std::future::pending().await
            } else {
                Ok::<_, io::Error>(address)
            }
        };
        let limit = Duration::from_millis(10);
        let first = first_to_answer(vec![silent, open], limit, connect).await;
        assert_eq!(first.expect("it answers"), open);
        let none = first_to_answer(vec![silent], limit, connect).await;
        assert_eq!(
            none.expect_err("nobody answers").kind(),
            io::ErrorKind::TimedOut
        );
    }
}
