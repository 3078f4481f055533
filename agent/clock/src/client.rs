//! Asks a server, once, by UDP.

use crate::sntp::{self, Fault, Sample};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::net::{UdpSocket, lookup_host};
use tokio::time::timeout_at;

/// NTP's port.
const PORT: u16 = 123;
/// How long an answer is waited for, the name's look-up included.
const PATIENCE: Duration = Duration::from_secs(3);
/// Packets that are read before a server is given up: a flood does not block the client for ever.
const PACKETS: usize = 16;

/// A time server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// DNS name or IP address.
    pub host: String,
    /// UDP port.
    pub port: u16,
}

impl Server {
    /// A server on NTP's own port.
    pub fn new(host: &str) -> Self {
        Self {
            host: host.to_owned(),
            port: PORT,
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)
    }
}

/// Why a server's time is not known.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The network failed.
    #[error("cannot send the request")]
    Network(#[from] io::Error),
    /// Its name has no address.
    #[error("its name has no address")]
    NoAddress,
    /// No randomness for the request.
    #[error("the system gives no random bytes")]
    Random,
    /// No answer, or none that was to this request.
    #[error("it did not answer within {seconds} s", seconds = PATIENCE.as_secs())]
    Silent,
    /// The answer is not usable.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Asks a server; its seconds are of the era that is nearest to `floor` (since 1970) and what
/// follows it.
///
/// Packets that are no answer to this request are skipped, as anyone can send them; one from the
/// server ends the wait.
///
/// # Errors
/// [`AskError`] where the name has no address, nothing came in time, or the server's answer is
/// none.
pub async fn ask(server: &Server, floor: Duration) -> Result<Sample, AskError> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let silent = |_elapsed| AskError::Silent;
    let mut found = timeout_at(deadline, lookup_host((server.host.as_str(), server.port)))
        .await
        .map_err(silent)??;
    let address = found.next().ok_or(AskError::NoAddress)?;
    let any: IpAddr = if address.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
    socket.connect(address).await?;
    let mut nonce = [0; 8];
    getrandom::fill(&mut nonce).map_err(|_opaque| AskError::Random)?;
    let nonce = u64::from_be_bytes(nonce);
    let (sent, began) = (
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
        Instant::now(),
    );
    socket.send(&sntp::request(nonce)).await?;
    let mut buffer = [0; sntp::MAX_ANSWER + 1];
    for _ in 0..PACKETS {
        let length = timeout_at(deadline, socket.recv(&mut buffer))
            .await
            .map_err(silent)??;
        let took = began.elapsed();
        match sntp::read(
            buffer.get(..length).unwrap_or_default(),
            nonce,
            sent,
            took,
            floor,
        ) {
            Ok(sample) => return Ok(sample),
            Err(Fault::Origin) => {}
            Err(fault) => return Err(fault.into()),
        }
    }
    Err(AskError::Silent)
}
