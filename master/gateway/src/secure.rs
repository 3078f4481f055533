//! TLS with a program in a pod.

use rustls::pki_types::ServerName;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Speaks TLS with a program, whose certificate is not verified and who is sent no name (as
/// upstream's API server does).
///
/// # Errors
/// The program does not speak TLS, or the connection fails.
pub async fn secure<S: AsyncRead + AsyncWrite + Unpin>(stream: S) -> io::Result<TlsStream<S>> {
    let config = config_tls::unverified_server(rustls::ALL_VERSIONS).map_err(io::Error::other)?;
    // An address is not sent.
    let name = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::UNSPECIFIED).into());
    TlsConnector::from(config).connect(name, stream).await
}
