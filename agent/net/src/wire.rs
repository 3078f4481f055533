//! The parts of DHCPv4 packets (RFC 2131, section 2; options of RFC 2132) that the client needs.
//! Pure; any bytes can be decoded without a panic.
//!
//! Decoded by hand, as the crate for it has assertions on a packet's content, and no packet may end
//! the agent.

use std::net::Ipv4Addr;

/// Message types of option 53.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Discover = 1,
    Offer = 2,
    Request = 3,
    Ack = 5,
    Nak = 6,
}

const COOKIE: [u8; 4] = [99, 130, 83, 99];
const OPTIONS: usize = 240;
const REPLY: u8 = 2;
const BROADCAST_FLAG: u16 = 0x8000;

pub(crate) const MASK: u8 = 1;
pub(crate) const ROUTERS: u8 = 3;
pub(crate) const NAME_SERVERS: u8 = 6;
const HOST_NAME: u8 = 12;
pub(crate) const TIME_SERVERS: u8 = 42;
pub(crate) const REQUESTED_ADDRESS: u8 = 50;
pub(crate) const LEASE_TIME: u8 = 51;
const MESSAGE_TYPE: u8 = 53;
pub(crate) const SERVER: u8 = 54;
const WANTED: u8 = 55;
const LARGEST_MESSAGE: u8 = 57;
pub(crate) const RENEWAL: u8 = 58;
pub(crate) const REBINDING: u8 = 59;
const CLIENT: u8 = 61;

/// A server's packet. Having one proves that it is a reply with its fixed part whole.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reply<'a>(&'a [u8]);

impl<'a> Reply<'a> {
    /// Reads a reply for this transaction and hardware address; `None` for anything else.
    pub(crate) fn read(bytes: &'a [u8], transaction: u32, mac: [u8; 6]) -> Option<Self> {
        let ours = bytes.first() == Some(&REPLY)
            && bytes.get(1..3) == Some(&[1, 6])
            && bytes.get(4..8) == Some(&transaction.to_be_bytes())
            && bytes.get(28..34) == Some(&mac)
            && bytes.get(236..OPTIONS) == Some(&COOKIE);
        ours.then_some(Self(bytes))
    }

    /// What the packet is.
    pub(crate) fn kind(self) -> Option<Kind> {
        match self.option(MESSAGE_TYPE)? {
            [2] => Some(Kind::Offer),
            [5] => Some(Kind::Ack),
            [6] => Some(Kind::Nak),
            [..] => None,
        }
    }

    /// The address that is given.
    pub(crate) fn yours(self) -> Option<Ipv4Addr> {
        self.0
            .get(16..20)?
            .first_chunk::<4>()
            .map(|bytes| Ipv4Addr::from(*bytes))
    }

    /// The first address of an option.
    pub(crate) fn address(self, code: u8) -> Option<Ipv4Addr> {
        self.addresses(code).next()
    }

    /// All addresses of an option.
    pub(crate) fn addresses(self, code: u8) -> impl Iterator<Item = Ipv4Addr> + use<'a> {
        self.option(code)
            .unwrap_or_default()
            .as_chunks::<4>()
            .0
            .iter()
            .map(|bytes| Ipv4Addr::from(*bytes))
    }

    /// An option that is a number of seconds.
    pub(crate) fn seconds(self, code: u8) -> Option<u32> {
        self.option(code)?.try_into().ok().map(u32::from_be_bytes)
    }

    /// The first occurrence of an option.
    fn option(self, code: u8) -> Option<&'a [u8]> {
        let mut rest = self.0.get(OPTIONS..)?;
        loop {
            match rest {
                [] | [255, ..] => return None,
                [0, next @ ..] => rest = next,
                [found, length, next @ ..] => {
                    let (value, next) = next.split_at_checked(usize::from(*length))?;
                    if *found == code {
                        return Some(value);
                    }
                    rest = next;
                }
                [_] => return None,
            }
        }
    }
}

/// A client's packet under construction.
#[derive(Debug)]
pub(crate) struct Packet(Vec<u8>);

impl Packet {
    /// A request of `kind`; a client without an address of its `own` asks to be answered by
    /// broadcast.
    pub(crate) fn new(
        kind: Kind,
        transaction: u32,
        mac: [u8; 6],
        own: Option<Ipv4Addr>,
        largest: u16,
    ) -> Self {
        let mut bytes = vec![0; OPTIONS];
        let flags = if own.is_some() { 0 } else { BROADCAST_FLAG };
        let mut head = vec![1, 1, 6, 0];
        head.extend(transaction.to_be_bytes());
        head.extend([0, 0]);
        head.extend(flags.to_be_bytes());
        head.extend(own.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
        head.extend([0; 12]);
        head.extend(mac);
        bytes.splice(..head.len(), head);
        bytes.splice(236.., COOKIE);
        let mut packet = Self(bytes);
        packet.option(MESSAGE_TYPE, &[kind as u8]);
        let client: Vec<u8> = std::iter::once(1).chain(mac).collect();
        packet.option(CLIENT, &client);
        packet.option(LARGEST_MESSAGE, &largest.to_be_bytes());
        packet.option(
            WANTED,
            &[
                MASK,
                ROUTERS,
                NAME_SERVERS,
                TIME_SERVERS,
                LEASE_TIME,
                RENEWAL,
                REBINDING,
            ],
        );
        packet
    }

    /// Adds the machine's name, cut to 63 bytes.
    pub(crate) fn host_name(&mut self, name: &str) {
        let bytes = name.as_bytes();
        self.option(
            HOST_NAME,
            bytes.get(..bytes.len().min(63)).unwrap_or_default(),
        );
    }

    /// Adds an option of at most 255 bytes; longer ones are left out.
    pub(crate) fn option(&mut self, code: u8, value: &[u8]) {
        if let Ok(length) = u8::try_from(value.len()) {
            self.0.extend([code, length]);
            self.0.extend(value);
        }
    }

    /// The bytes to send, at least as long as BOOTP relays expect (RFC 1542, 2.1).
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.0.push(255);
        self.0.resize(self.0.len().max(300), 0);
        self.0
    }
}

/// An IPv4 packet with a UDP datagram from no address (0.0.0.0, port 68) to all servers
/// (255.255.255.255, port 67), as RFC 2131, section 4.1, wants it of a client without an address.
pub(crate) fn from_nobody(payload: &[u8]) -> Vec<u8> {
    const UDP: u8 = 17;
    let datagram = u16::try_from(payload.len() + 8).unwrap_or(u16::MAX);
    let mut udp = Vec::with_capacity(payload.len() + 8);
    for word in [68, 67, datagram, 0] {
        udp.extend(word.to_be_bytes());
    }
    udp.extend(payload);
    let addresses = [0, 0, 0, 0, 255, 255, 255, 255];
    let mut covered = addresses.to_vec();
    covered.extend([0, UDP]);
    covered.extend(datagram.to_be_bytes());
    covered.extend(&udp);
    // A sum of zero is sent as all ones, zero means that there is none (RFC 768).
    let sum = match checksum(&covered) {
        0 => u16::MAX,
        sum => sum,
    };
    udp.splice(6..8, sum.to_be_bytes());
    let mut packet = vec![0x45, 0];
    packet.extend(datagram.saturating_add(20).to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, UDP, 0, 0]);
    packet.extend(addresses);
    let sum = checksum(&packet);
    packet.splice(10..12, sum.to_be_bytes());
    packet.append(&mut udp);
    packet
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| match pair {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        [high] => u32::from(*high) << 8,
        [..] => 0,
    });
    let mut sum: u32 = words.sum();
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    u16::try_from(!sum & 0xFFFF).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{checksum, from_nobody};

    #[test]
    fn a_packet_with_its_own_checksums_sums_to_zero() {
        let packet = from_nobody(b"odd");
        assert_eq!(packet.len(), 31);
        assert_eq!(checksum(&packet[..20]), 0);
        let mut covered = packet[12..20].to_vec();
        covered.extend([0, 17, 0, 11]);
        covered.extend(&packet[20..]);
        assert_eq!(checksum(&covered), 0);
        assert_eq!(&packet[12..20], &[0, 0, 0, 0, 255, 255, 255, 255]);
    }

    #[test]
    fn the_checksum_is_that_of_the_standard_s_example() {
        // RFC 1071, section 3: the sum is ddf2.
        assert_eq!(
            checksum(&[0x00, 0x01, 0xF2, 0x03, 0xF4, 0xF5, 0xF6, 0xF7]),
            !0xDDF2
        );
    }
}
