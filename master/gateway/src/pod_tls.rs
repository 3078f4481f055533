//! TLS from the API's proxy to a program in a pod.

use rustls::pki_types::ServerName;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Opens TLS to a program. Its certificate is not verified and it gets no server name, as by
/// upstream's API server: the client of the proxy chose the program, and names no certificate.
///
/// # Errors
/// The program does not speak TLS, or the connection fails.
pub async fn connect_tls<S: AsyncRead + AsyncWrite + Unpin>(stream: S) -> io::Result<TlsStream<S>> {
    let config = config_tls::unverified_server(rustls::ALL_VERSIONS).map_err(io::Error::other)?;
    // For an address TLS sends no server name (RFC 6066, section 3).
    let name = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::UNSPECIFIED).into());
    TlsConnector::from(config).connect(name, stream).await
}
