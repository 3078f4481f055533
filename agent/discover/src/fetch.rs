//! One GET to a discovery endpoint: every time and every size bounded, no redirects, and no trust in who answers.

use bytes::Bytes;
use config_discovery::{Fault, MAX_BYTES};
use config_model::discovery::DiscoveryUri;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Longest time for the connection: three transmissions of a SYN.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(8);
/// Longest time for all of it.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why there is no document.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The connection.
    #[error("it cannot be reached")]
    Connect(#[source] io::Error),
    /// HTTP or TLS.
    #[error("the exchange with it failed")]
    Exchange(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Too slow.
    #[error("it did not answer within {seconds} s", seconds = PATIENCE.as_secs())]
    Silent,
    /// Another status than 200.
    #[error("it answered {0}")]
    Status(StatusCode),
    /// More bytes than a document has.
    #[error("what it answered is refused")]
    TooLarge(#[source] Fault),
}

/// The bytes that an endpoint serves for a cluster.
pub(crate) async fn fetch(uri: &DiscoveryUri) -> Result<Bytes, FetchError> {
    timeout(PATIENCE, get(uri))
        .await
        .unwrap_or(Err(FetchError::Silent))
}

async fn get(uri: &DiscoveryUri) -> Result<Bytes, FetchError> {
    let host = uri.endpoint.host().to_string();
    let tcp = timeout(
        CONNECT_TIMEOUT,
        TcpStream::connect((host.as_str(), uri.endpoint.port())),
    )
    .await
    .unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into()))
    .map_err(FetchError::Connect)?;
    if !uri.endpoint.tls {
        return exchange(tcp, uri).await;
    }
    let name = ServerName::try_from(host).map_err(|error| FetchError::Exchange(error.into()))?;
    let tls = any_server().map_err(|error| FetchError::Exchange(error.into()))?;
    let stream = TlsConnector::from(tls)
        .connect(name, tcp)
        .await
        .map_err(FetchError::Connect)?;
    exchange(stream, uri).await
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    uri: &DiscoveryUri,
) -> Result<Bytes, FetchError> {
    let failed = |error: hyper::Error| FetchError::Exchange(error.into());
    let (mut sender, driver) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(MAX_BYTES.max(8192))
        .handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    // Ends when the sender is dropped, with this exchange at the latest.
    tokio::spawn(async move {
        if let Err(error) = driver.await {
            tracing::debug!(%error, "the connection to a discovery endpoint ended");
        }
    });
    let request = Request::get(uri.master())
        .header(header::HOST, uri.endpoint.address.to_string())
        .header(header::ACCEPT, "application/json")
        .header(
            header::USER_AGENT,
            concat!("pratique-agent/", env!("CARGO_PKG_VERSION")),
        )
        .body(Empty::<Bytes>::new())
        .map_err(|error| FetchError::Exchange(error.into()))?;
    let answer = sender.send_request(request).await.map_err(failed)?;
    if answer.status() != StatusCode::OK {
        return Err(FetchError::Status(answer.status()));
    }
    match Limited::new(answer.into_body(), MAX_BYTES).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            Err(FetchError::TooLarge(Fault::TooLarge {
                found: MAX_BYTES + 1,
            }))
        }
        Err(error) => Err(FetchError::Exchange(error)),
    }
}

/// Accepts any certificate: what is served is believed by its own signature, and TLS is spoken only where a network or an
/// endpoint lets nothing else pass.
#[derive(Debug)]
struct AnyServer(WebPkiSupportedAlgorithms);

fn any_server() -> Result<Arc<ClientConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(AnyServer(provider.signature_verification_algorithms));
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
