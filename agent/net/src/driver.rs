//! The DHCP client's socket and clock.

use config_errors::chain;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::time::Duration;

use agent_sys::socket::Segment;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use crate::Change;
use crate::dhcp::{Client, MAX_PACKET, Output};
use crate::plan::Link;
use crate::wire;

const SERVER_PORT: u16 = 67;
const CLIENT_PORT: u16 = 68;
/// `ENODEV`: the interface that a socket is for is not there.
const NO_DEVICE: i32 = 19;
/// How long to wait before a socket that failed is opened again.
const REOPEN: Duration = Duration::from_secs(2);

/// Keeps a lease for one interface and reports each change. It ends when the receiver of `changes`
/// is dropped or the interface is gone.
pub(crate) async fn drive(link: Link, host_name: Option<String>, changes: mpsc::Sender<Change>) {
    let start = Instant::now();
    let mut client = Client::new(link.mac, host_name, seed(), Duration::ZERO);
    loop {
        match exchange(&link, start, &mut client, &changes).await {
            Ok(()) => return,
            Err(error) if error.raw_os_error() == Some(NO_DEVICE) => {
                tracing::info!(interface = link.name, "interface is gone");
                return;
            }
            Err(error) => {
                tracing::warn!(
                    interface = link.name,
                    error = chain(&error),
                    "DHCP socket failed, opening it again"
                );
                sleep(REOPEN).await;
            }
        }
    }
}

/// Runs until the socket fails (`Err`) or the receiver of `changes` is dropped (`Ok`).
async fn exchange(
    link: &Link,
    start: Instant,
    client: &mut Client,
    changes: &mpsc::Sender<Change>,
) -> std::io::Result<()> {
    let socket = open(&link.name)?;
    let segment = Segment::open(link.index).map_err(std::io::Error::other)?;
    let mut buffer = [0; MAX_PACKET];
    loop {
        // Cancel-safe: receiving takes a whole packet or none, sleeping holds nothing.
        let outputs = tokio::select! {
            received = socket.recv_from(&mut buffer) => {
                let (length, _) = received?;
                client.packet(start.elapsed(), buffer.get(..length).unwrap_or_default())
            }
            () = sleep_until(start + client.deadline()) => client.tick(start.elapsed()),
        };
        for output in outputs {
            let lease = match output {
                Output::Anonymous(packet) => {
                    if let Err(error) = segment.broadcast(&wire::from_nobody(&packet)) {
                        tracing::debug!(
                            interface = link.name,
                            error = chain(&error),
                            "DHCP packet not sent"
                        );
                    }
                    continue;
                }
                Output::Broadcast(packet) => {
                    send(&socket, Ipv4Addr::BROADCAST, &packet, link).await;
                    continue;
                }
                Output::Unicast(server, packet) => {
                    send(&socket, server, &packet, link).await;
                    continue;
                }
                Output::Use(lease) => Some(lease),
                Output::Lost => None,
            };
            let index = link.index;
            if changes.send(Change { index, lease }).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Sends; a refusal is like a lost packet, the client's pace covers both.
async fn send(socket: &UdpSocket, to: Ipv4Addr, packet: &[u8], link: &Link) {
    if let Err(error) = socket
        .send_to(packet, SocketAddrV4::new(to, SERVER_PORT))
        .await
    {
        tracing::debug!(
            interface = link.name,
            error = chain(&error),
            "DHCP packet not sent"
        );
    }
}

/// A UDP socket of one interface only, at the client's port, that may send before there is an
/// address.
fn open(interface: &str) -> std::io::Result<UdpSocket> {
    let fd: OwnedFd =
        agent_sys::socket::udp_on_interface(interface, CLIENT_PORT).map_err(|error| {
            // The number distinguishes an interface that is gone from other failures.
            error.errno().map_or_else(
                || std::io::Error::other(error),
                std::io::Error::from_raw_os_error,
            )
        })?;
    UdpSocket::from_std(std::net::UdpSocket::from(fd))
}

/// Randomness from the hasher's per-process keys, enough for a transaction number.
fn seed() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let hash = std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish();
    u32::try_from(hash & u64::from(u32::MAX)).unwrap_or(0)
}
