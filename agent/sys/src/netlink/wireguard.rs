//! WireGuard tunnels (`include/uapi/linux/wireguard.h`): key, port, peers, and which addresses are
//! behind which peer.
//!
//! The link itself is made and removed as every link ([`super::links`]). A private key comes from
//! the system's random bytes, goes to the kernel in one message of fixed length, and is nowhere
//! else: the kernel works out the public key, which is read back. The kernel's answers hold the
//! private key, too, and are wiped.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::libc;
use zeroize::{Zeroize as _, Zeroizing};

use super::links::octets;
use super::message::{ACK, Attributes, DUMP, Message, Part, REQUEST, attributes_of};
use super::{Socket, Subsystem};
use crate::error::{Context as _, Error, Result};

/// A public key (Curve25519).
pub type Key = [u8; 32];

/// Bytes of `struct genlmsghdr`.
const HEADER: usize = 4;
/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY` and its attributes (linux/genetlink.h).
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// Commands, and the version that they are of.
const GET_DEVICE: u8 = 0;
const SET_DEVICE: u8 = 1;
const VERSION: u8 = 1;
/// `WGDEVICE_A_*`.
const INDEX: u16 = 1;
const PRIVATE_KEY: u16 = 3;
const PUBLIC_KEY: u16 = 4;
const LISTEN_PORT: u16 = 6;
const PEERS: u16 = 8;
/// `WGPEER_A_*`.
const PEER_KEY: u16 = 1;
const PEER_FLAGS: u16 = 3;
const PEER_ENDPOINT: u16 = 4;
const PEER_KEEPALIVE: u16 = 5;
const PEER_HANDSHAKE: u16 = 6;
const PEER_ALLOWED: u16 = 9;
/// `WGPEER_F_*`.
const REMOVE: u32 = 1;
const REPLACE_ALLOWED: u32 = 2;
const UPDATE_ONLY: u32 = 4;
/// `WGALLOWEDIP_A_*`.
const ALLOWED_FAMILY: u16 = 1;
const ALLOWED_ADDRESS: u16 = 2;
const ALLOWED_PREFIX: u16 = 3;
/// Bytes of the message that sets a private key: netlink's header, the part's, the link's number,
/// the key.
const KEY_MESSAGE: usize = 16 + HEADER + 8 + 36;
/// Peers in one request: an attribute is at most 64 KiB long, and a peer with [`MAX_RANGES`]
/// ranges takes less than 1 KiB.
const PEERS_AT_ONCE: usize = 60;
/// Most ranges that a peer is given.
pub const MAX_RANGES: usize = 24;

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    /// One of them.
    pub address: IpAddr,
    /// How many bits all have in common.
    pub prefix: u8,
}

/// What is changed about one peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It is created if it doesn't exist, and has exactly these ranges.
    Put {
        /// Its key.
        key: Key,
        /// Where it is; none leaves what is known.
        endpoint: Option<SocketAddr>,
        /// The addresses behind it, at most [`MAX_RANGES`]. Ranges of another peer move to this
        /// one.
        ranges: Vec<Range>,
        /// Seconds without a packet after which it is sent an empty one. A peer that had none is
        /// sent one at once.
        keepalive: u16,
    },
    /// It is sent an empty packet at once, where it exists: a session that is too old is agreed
    /// anew by it.
    Wake {
        /// Its key.
        key: Key,
        /// As of [`Self::Put`].
        keepalive: u16,
    },
    /// It is removed, and with it all of its traffic.
    Remove(Key),
}

/// A tunnel as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tunnel {
    /// Its public key; none before it has a private one.
    pub key: Option<Key>,
    /// The UDP port at which it is reached.
    pub port: u16,
    /// Peers by their keys.
    pub peers: BTreeMap<Key, Peer>,
}

/// A peer as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peer {
    /// The ranges behind it, in no order.
    pub ranges: Vec<Range>,
    /// Unix seconds of the last session that both ends agreed on; 0 for none.
    pub handshake: u64,
}

/// A socket to the kernel's WireGuard.
#[derive(Debug)]
pub struct WireGuard {
    socket: Socket,
    family: u16,
}

impl WireGuard {
    /// Opens one for the calling thread's network namespace.
    ///
    /// # Errors
    /// If the process may not, or the kernel has no WireGuard (`ENOENT`).
    pub fn open() -> Result<Self> {
        let mut socket = Socket::open(Subsystem::Generic)?;
        let parts = socket.send(&[family_request()], "find", "the kernel's WireGuard")?;
        let family = parts.iter().find_map(family).ok_or_else(|| {
            let cause = std::io::Error::from(std::io::ErrorKind::NotFound);
            Error::new("find", "the kernel's WireGuard", cause)
        })?;
        Ok(Self { socket, family })
    }

    /// Gives a tunnel a new key. Sessions that were agreed under an older one still bring packets
    /// in until they are 180 s old, and take none out.
    ///
    /// # Errors
    /// If the system gives no random bytes, or the kernel refuses.
    pub fn renew_key(&mut self, link: u32) -> Result<()> {
        let family = self.family;
        let mut secret = Zeroizing::new([0_u8; 32]);
        let random = "/dev/urandom";
        let mut source = File::open(random).at("open", random)?;
        source
            .read_exact(secret.as_mut_slice())
            .at("read", random)?;
        self.socket.send_written(
            |number| key_message(family, number, link, &secret),
            "give a key to",
            "the tunnel",
        )
    }

    /// Sets the UDP port at which a tunnel is reached.
    ///
    /// # Errors
    /// If the kernel refuses, as where the port is taken.
    pub fn listen(&mut self, link: u32, port: u16) -> Result<()> {
        let attributes = Attributes::new()
            .number(INDEX, link)
            .bytes(LISTEN_PORT, &port.to_ne_bytes());
        self.set(attributes)
    }

    /// Changes peers; in order, and not as a whole where the kernel refuses one.
    ///
    /// # Errors
    /// The kernel refuses a batch of peers; those before it are changed, and of those in it some
    /// may be.
    pub fn change(&mut self, link: u32, changes: &[Change]) -> Result<()> {
        for some in changes.chunks(PEERS_AT_ONCE) {
            self.set(peers_request(link, some))?;
        }
        Ok(())
    }

    /// The tunnel as it is.
    ///
    /// # Errors
    /// If there is none of this number, or the kernel refuses.
    pub fn read(&mut self, link: u32) -> Result<Tunnel> {
        let header = [GET_DEVICE, VERSION, 0, 0];
        let attributes = Attributes::new().number(INDEX, link);
        let request = Message::new(self.family, DUMP, &header, attributes);
        let mut parts = self.socket.send(&[request], "read", "the tunnel")?;
        let mut tunnel = Tunnel::default();
        for part in &mut parts {
            take(part, &mut tunnel);
            part.body.zeroize();
        }
        Ok(tunnel)
    }

    fn set(&mut self, attributes: Attributes) -> Result<()> {
        let header = [SET_DEVICE, VERSION, 0, 0];
        let request = Message::new(self.family, 0, &header, attributes).answered();
        self.socket
            .send(&[request], "change", "the tunnel")
            .map(drop)
    }
}

fn family_request() -> Message {
    let name = Attributes::new().text(FAMILY_NAME, "wireguard");
    Message::new(CONTROL, 0, &[GET_FAMILY, 1, 0, 0], name).answered()
}

fn family(part: &Part) -> Option<u16> {
    let attributes = part.attributes(HEADER);
    let (_, id) = attributes.iter().find(|(kind, _)| *kind == FAMILY_ID)?;
    Some(u16::from_ne_bytes(id.first_chunk().copied()?))
}

/// The whole request that sets a private key. Written into its place byte by byte: a growing buffer
/// would leave copies.
fn key_message(
    family: u16,
    number: u32,
    link: u32,
    secret: &[u8; 32],
) -> Zeroizing<[u8; KEY_MESSAGE]> {
    let mut message = Zeroizing::new([0; KEY_MESSAGE]);
    let length = u32::try_from(KEY_MESSAGE).unwrap_or_default();
    let parts: [&[u8]; 10] = [
        &length.to_ne_bytes(),
        &family.to_ne_bytes(),
        &(REQUEST | ACK).to_ne_bytes(),
        &number.to_ne_bytes(),
        &[0; 4],
        &[SET_DEVICE, VERSION, 0, 0],
        &attribute_header(INDEX, 4),
        &link.to_ne_bytes(),
        &attribute_header(PRIVATE_KEY, 32),
        secret,
    ];
    let bytes = parts.into_iter().flatten();
    for (place, byte) in message.iter_mut().zip(bytes) {
        *place = *byte;
    }
    message
}

/// Length with the header, and type.
fn attribute_header(kind: u16, length: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = ((length + 4).to_ne_bytes(), kind.to_ne_bytes());
    [a, b, c, d]
}

fn peers_request(link: u32, changes: &[Change]) -> Attributes {
    let entries = changes.iter().flat_map(entries);
    let peers = entries.fold(Attributes::new(), |all, entry| {
        // In a list an attribute's type counts for nothing.
        all.nest(0, &entry)
    });
    Attributes::new().number(INDEX, link).nest(PEERS, &peers)
}

/// What the list of peers says for a change.
fn entries(change: &Change) -> Vec<Attributes> {
    let with = |key: &Key, flags: u32| {
        Attributes::new()
            .bytes(PEER_KEY, key)
            .number(PEER_FLAGS, flags)
    };
    match change {
        Change::Remove(key) => vec![with(key, REMOVE)],
        Change::Put {
            key,
            endpoint,
            ranges,
            keepalive,
        } => {
            let mut attributes = with(key, REPLACE_ALLOWED);
            if let Some(endpoint) = endpoint {
                attributes = attributes.bytes(PEER_ENDPOINT, &socket_address(*endpoint));
            }
            let attributes = attributes.bytes(PEER_KEEPALIVE, &keepalive.to_ne_bytes());
            let ranges = ranges.iter().take(MAX_RANGES);
            let allowed = ranges.fold(Attributes::new(), |all, range| {
                all.nest(0, &allowed(*range))
            });
            vec![attributes.nest(PEER_ALLOWED, &allowed)]
        }
        // The kernel sends an empty packet when they begin.
        Change::Wake { key, keepalive } => [0, *keepalive]
            .map(|seconds| with(key, UPDATE_ONLY).bytes(PEER_KEEPALIVE, &seconds.to_ne_bytes()))
            .to_vec(),
    }
}

fn allowed(range: Range) -> Attributes {
    Attributes::new()
        .bytes(ALLOWED_FAMILY, &family_of(range.address).to_ne_bytes())
        .bytes(ALLOWED_ADDRESS, &octets(range.address))
        .bytes(ALLOWED_PREFIX, &[range.prefix])
}

fn family_of(address: IpAddr) -> u16 {
    let family = match address {
        IpAddr::V4(_) => libc::AF_INET,
        IpAddr::V6(_) => libc::AF_INET6,
    };
    u16::try_from(family).unwrap_or_default()
}

/// `struct sockaddr_in` or `sockaddr_in6`.
fn socket_address(address: SocketAddr) -> Vec<u8> {
    let mut bytes = family_of(address.ip()).to_ne_bytes().to_vec();
    bytes.extend(address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => {
            bytes.extend(v4.ip().octets());
            bytes.extend([0; 8]);
        }
        SocketAddr::V6(v6) => {
            bytes.extend(v6.flowinfo().to_be_bytes());
            bytes.extend(v6.ip().octets());
            bytes.extend(v6.scope_id().to_ne_bytes());
        }
    }
    bytes
}

/// Adds the content of one part of the answer. A peer with many ranges comes in several parts.
fn take(part: &Part, tunnel: &mut Tunnel) {
    for (kind, value) in part.attributes(HEADER) {
        match kind {
            PUBLIC_KEY => tunnel.key = value.try_into().ok(),
            LISTEN_PORT => {
                let bytes = value.first_chunk().copied();
                tunnel.port = bytes.map(u16::from_ne_bytes).unwrap_or_default();
            }
            PEERS => {
                for (_, peer) in attributes_of(value) {
                    take_peer(peer, tunnel);
                }
            }
            _ => {}
        }
    }
}

fn take_peer(peer: &[u8], tunnel: &mut Tunnel) {
    let attributes = attributes_of(peer);
    let value = |wanted: u16| {
        let found = attributes.iter().find(|(kind, _)| *kind == wanted);
        found.map(|(_, value)| *value)
    };
    let Some(key) = value(PEER_KEY).and_then(|key| Key::try_from(key).ok()) else {
        return;
    };
    let ranges = attributes_of(value(PEER_ALLOWED).unwrap_or_default());
    let ranges = ranges.iter().filter_map(|(_, range)| read_range(range));
    let peer = tunnel.peers.entry(key).or_default();
    peer.ranges.extend(ranges);
    // `struct __kernel_timespec`: seconds, nanoseconds. Only the first of a peer's parts has it.
    let seconds = value(PEER_HANDSHAKE).and_then(|time| time.first_chunk().copied());
    if let Some(seconds) = seconds {
        peer.handshake = u64::try_from(i64::from_ne_bytes(seconds)).unwrap_or_default();
    }
}

fn read_range(range: &[u8]) -> Option<Range> {
    let attributes = attributes_of(range);
    let value = |wanted: u16| {
        let found = attributes.iter().find(|(kind, _)| *kind == wanted)?;
        Some(found.1)
    };
    let address = value(ALLOWED_ADDRESS)?;
    let address = match address.len() {
        4 => IpAddr::V4(Ipv4Addr::from(address.first_chunk::<4>().copied()?)),
        16 => IpAddr::V6(Ipv6Addr::from(address.first_chunk::<16>().copied()?)),
        _ => return None,
    };
    let prefix = *value(ALLOWED_PREFIX)?.first()?;
    Some(Range { address, prefix })
}

#[cfg(test)]
mod tests {
    use super::super::message::parts;
    use super::*;
    use proptest::prelude::*;

    /// A range of 24 bits in common.
    fn range(address: &str) -> Range {
        Range {
            address: address.parse().unwrap(),
            prefix: 24,
        }
    }

    fn written(family: u16, command: u8, flags: u16, attributes: Attributes) -> Vec<u8> {
        let mut bytes = Vec::new();
        let header = [command, VERSION, 0, 0];
        Message::new(family, flags, &header, attributes).write(9, &mut bytes);
        bytes
    }

    #[test]
    fn the_family_is_asked_for_by_its_name_and_found() {
        let mut bytes = Vec::new();
        family_request().write(1, &mut bytes);
        let expected: &[&[u8]] = &[
            &[36, 0, 0, 0, 16, 0, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0],
            &[3, 1, 0, 0],
            &[14, 0, 2, 0],
            b"wireguard\0\0\0",
        ];
        assert_eq!(bytes, expected.concat());
        let answer = Attributes::new()
            .text(FAMILY_NAME, "wireguard")
            .bytes(FAMILY_ID, &31_u16.to_ne_bytes());
        let answer = parts(&written(CONTROL, 1, 0, answer));
        assert_eq!(answer.first().and_then(family), Some(31));
    }

    #[test]
    fn a_private_key_is_set_by_one_message_of_fixed_length() {
        let message = key_message(31, 2, 7, &[0xA5; 32]);
        let expected: &[&[u8]] = &[
            &[64, 0, 0, 0, 31, 0, 5, 0, 2, 0, 0, 0, 0, 0, 0, 0],
            &[1, 1, 0, 0],
            &[8, 0, 1, 0, 7, 0, 0, 0],
            &[36, 0, 3, 0],
            &[0xA5; 32],
        ];
        assert_eq!(message.as_slice(), expected.concat());
    }

    #[test]
    fn peers_are_laid_out_as_the_kernel_reads_them() {
        let changes = [
            Change::Remove([1; 32]),
            Change::Put {
                key: [2; 32],
                endpoint: Some("192.0.2.7:51820".parse().unwrap()),
                ranges: vec![range("10.1.2.0")],
                keepalive: 25,
            },
            Change::Wake {
                key: [3; 32],
                keepalive: 25,
            },
        ];
        let bytes = written(31, SET_DEVICE, 0, peers_request(7, &changes));
        let expected: &[&[u8]] = &[
            &[44, 1, 0, 0, 31, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0],
            &[1, 1, 0, 0],
            &[8, 0, 1, 0, 7, 0, 0, 0],
            &[16, 1, 8, 0x80],
            // The first goes.
            &[48, 0, 0, 0x80, 36, 0, 1, 0],
            &[1; 32],
            &[8, 0, 3, 0, 1, 0, 0, 0],
            // The second has this endpoint and these ranges, and no others.
            &[108, 0, 0, 0x80, 36, 0, 1, 0],
            &[2; 32],
            &[8, 0, 3, 0, 2, 0, 0, 0],
            &[20, 0, 4, 0, 2, 0, 0xCA, 0x6C, 192, 0, 2, 7],
            &[0; 8],
            &[6, 0, 5, 0, 25, 0, 0, 0],
            &[32, 0, 9, 0x80, 28, 0, 0, 0x80],
            &[6, 0, 1, 0, 2, 0, 0, 0],
            &[8, 0, 2, 0, 10, 1, 2, 0],
            &[5, 0, 3, 0, 24, 0, 0, 0],
            // The third is sent something, as its interval begins anew.
            &[56, 0, 0, 0x80, 36, 0, 1, 0],
            &[3; 32],
            &[8, 0, 3, 0, 4, 0, 0, 0],
            &[6, 0, 5, 0, 0, 0, 0, 0],
            &[56, 0, 0, 0x80, 36, 0, 1, 0],
            &[3; 32],
            &[8, 0, 3, 0, 4, 0, 0, 0],
            &[6, 0, 5, 0, 25, 0, 0, 0],
        ];
        assert_eq!(bytes, expected.concat());
    }

    #[test]
    fn an_address_of_ipv6_is_a_sockaddr_in6() {
        let address = socket_address("[fd00::7]:51820".parse().unwrap());
        let mut expected = vec![10, 0, 0xCA, 0x6C, 0, 0, 0, 0, 0xFD];
        expected.extend([0; 14]);
        expected.extend([7, 0, 0, 0, 0]);
        assert_eq!(address, expected);
    }

    #[test]
    fn the_largest_request_fits_its_attribute() {
        let range = |number: u8| Range {
            address: Ipv6Addr::from([number; 16]).into(),
            prefix: 64,
        };
        let largest = Change::Put {
            key: [1; 32],
            endpoint: Some("[fd00::7]:51820".parse().unwrap()),
            ranges: (0..40).map(range).collect(),
            keepalive: 25,
        };
        let bytes = written(
            31,
            SET_DEVICE,
            0,
            peers_request(7, &vec![largest; PEERS_AT_ONCE]),
        );
        let read = parts(&bytes);
        let mut tunnel = Tunnel::default();
        take(&read[0], &mut tunnel);
        let ranges = tunnel.peers.values().map(|peer| peer.ranges.len());
        assert_eq!(ranges.sum::<usize>(), PEERS_AT_ONCE * MAX_RANGES);
    }

    #[test]
    fn a_tunnel_is_read_whole_from_several_parts() {
        let ranges = |address: &str| Change::Put {
            key: [2; 32],
            endpoint: None,
            ranges: vec![range(address)],
            keepalive: 25,
        };
        let first = peers_request(7, &[ranges("10.1.2.0")])
            .bytes(PUBLIC_KEY, &[3; 32])
            .bytes(PRIVATE_KEY, &[4; 32])
            .bytes(LISTEN_PORT, &51820_u16.to_ne_bytes());
        let second = peers_request(7, &[ranges("10.1.3.0"), ranges("fd00::")]);
        let mut tunnel = Tunnel::default();
        for attributes in [first, second] {
            for part in parts(&written(31, GET_DEVICE, 0, attributes)) {
                take(&part, &mut tunnel);
            }
        }
        assert_eq!((tunnel.key, tunnel.port), (Some([3; 32]), 51820));
        let ranges = ["10.1.2.0", "10.1.3.0", "fd00::"];
        let whole = Peer {
            ranges: ranges.map(range).to_vec(),
            handshake: 0,
        };
        assert_eq!(tunnel.peers, BTreeMap::from([([2; 32], whole)]));
    }

    #[test]
    fn five_hundred_peers_are_asked_for_and_read_back() {
        let put = |number: u16| {
            let mut key = [7; 32];
            key[..2].copy_from_slice(&number.to_be_bytes());
            let [high, low] = number.to_be_bytes();
            Change::Put {
                key,
                endpoint: Some((Ipv4Addr::new(192, 0, high, low), 51_820).into()),
                ranges: vec![range(&format!("10.{high}.{low}.0"))],
                keepalive: 25,
            }
        };
        let changes: Vec<Change> = (0..500).map(put).collect();
        let mut tunnel = Tunnel::default();
        for some in changes.chunks(PEERS_AT_ONCE) {
            for part in parts(&written(31, SET_DEVICE, 0, peers_request(7, some))) {
                take(&part, &mut tunnel);
            }
        }
        let read = tunnel
            .peers
            .into_iter()
            .map(|(key, peer)| (key, peer.ranges));
        let asked = changes.into_iter().filter_map(|change| match change {
            Change::Put { key, ranges, .. } => Some((key, ranges)),
            Change::Remove(_) | Change::Wake { .. } => None,
        });
        assert!(read.eq(asked));
    }

    #[test]
    fn the_time_of_the_last_session_is_read_from_the_first_part() {
        let time = [
            1_790_000_000_i64.to_ne_bytes(),
            999_999_999_i64.to_ne_bytes(),
        ];
        let peer = Attributes::new().bytes(PEER_KEY, &[2; 32]);
        let timed = peer.clone().bytes(PEER_HANDSHAKE, &time.concat());
        let mut tunnel = Tunnel::default();
        for part in [timed, peer] {
            let peers = Attributes::new().nest(0, &part);
            let attributes = Attributes::new().nest(PEERS, &peers);
            for part in parts(&written(31, GET_DEVICE, 0, attributes)) {
                take(&part, &mut tunnel);
            }
        }
        assert_eq!(tunnel.peers[&[2; 32]].handshake, 1_790_000_000);
    }

    proptest! {
        #[test]
        fn any_answer_is_read_without_a_panic(body in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut tunnel = Tunnel::default();
            take(&Part { kind: 31, sequence: 1, body: [vec![0; HEADER], body].concat() }, &mut tunnel);
            prop_assert!(tunnel.peers.len() <= 12);
        }
    }
}
