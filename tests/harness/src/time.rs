//! A time server (SNTP) on the segment that machines share: one more station there, connected to
//! one of the hub's cables. So machines need no route out of their network.

use crate::Result;
use crate::machine::Cable;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Its address.
pub const TIME_SERVER: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 9);
const MAC: [u8; 6] = [0x52, 0x54, 0, 0x77, 0, 9];

const ARP: [u8; 2] = [0x08, 0x06];
const IPV4: [u8; 2] = [0x08, 0x00];
/// An IPv4 header without options: version 4, five words.
const PLAIN_HEADER: u8 = 0x45;
const UDP: u8 = 17;
const NTP: [u8; 2] = 123_u16.to_be_bytes();
/// Seconds from 1900, where NTP begins, to 1970.
const UNIX: u64 = 2_208_988_800;
/// More than any frame of the segment has.
const MAX_FRAME: usize = 1 << 16;

/// The server; it leaves the segment when it is dropped.
#[derive(Debug)]
pub struct TimeServer {
    ended: Arc<AtomicBool>,
}

impl TimeServer {
    /// Puts it at the machine's end of a cable. It tells this host's time.
    ///
    /// # Errors
    /// Where a machine is at that end.
    pub fn start(cable: Cable) -> Result<Self> {
        let socket = cable.plug()?;
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        drop(std::thread::spawn(move || serve(&socket, &seen)));
        Ok(Self { ended })
    }
}

impl Drop for TimeServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

fn serve(socket: &UdpSocket, ended: &AtomicBool) {
    let mut buffer = vec![0; MAX_FRAME];
    while !ended.load(Ordering::Relaxed) {
        // Refused while the hub's machine is off, and nothing for a while is no fault.
        let Ok(length) = socket.recv(&mut buffer) else {
            continue;
        };
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let frame = &buffer[..length];
        if let Some(answer) = arp(frame).or_else(|| time(frame, now)) {
            socket.send(&answer).ok();
        }
    }
}

/// The answer to an ARP request for the server's address (RFC 826).
fn arp(frame: &[u8]) -> Option<Vec<u8>> {
    let ours = frame.get(12..14)? == ARP
        && frame.get(20..22)? == [0, 1]
        && frame.get(38..42)? == TIME_SERVER.octets();
    let (kind, asker) = (frame.get(14..20)?, frame.get(22..32)?);
    let parts = [
        &asker[..6],
        &MAC,
        &ARP,
        kind,
        &[0, 2],
        &MAC,
        &TIME_SERVER.octets(),
        asker,
    ];
    ours.then(|| parts.concat())
}

/// The answer to an SNTP request (RFC 4330), if a frame is one.
fn time(frame: &[u8], now: Duration) -> Option<Vec<u8>> {
    let ours = frame.get(12..14)? == IPV4
        && frame.get(14)? == &PLAIN_HEADER
        && frame.get(23)? == &UDP
        && frame.get(30..34)? == TIME_SERVER.octets()
        && frame.get(36..38)? == NTP;
    let (asker, address, port, request) = (
        frame.get(6..12)?,
        frame.get(26..30)?,
        frame.get(34..36)?,
        frame.get(42..90)?,
    );
    let packet = packet(request, now);
    let length = |bytes: usize| u16::try_from(bytes).unwrap_or_default().to_be_bytes();
    // No checksum: IPv4 lets UDP go without.
    let udp = [&NTP[..], port, &length(8 + packet.len()), &[0, 0], &packet].concat();
    let mut header = [
        &[PLAIN_HEADER, 0][..],
        &length(20 + udp.len()),
        &[0, 0, 0x40, 0, 64, UDP, 0, 0],
    ]
    .concat();
    header.extend([&TIME_SERVER.octets()[..], address].concat());
    let sum = checksum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    ours.then(|| [asker, &MAC, &IPV4, &header, &udp].concat())
}

/// An answer of a server with a clock of its own; its origin is the request's transmit time.
fn packet(request: &[u8], now: Duration) -> Vec<u8> {
    let seconds = (now.as_secs() + UNIX) % (1 << 32);
    let stamp =
        ((seconds << 32) | ((u64::from(now.subsec_nanos()) << 32) / 1_000_000_000)).to_be_bytes();
    let (head, origin) = ([0b00_100_100, 1], &request[40..]);
    [&head[..], &[0; 22], origin, &stamp, &stamp].concat()
}

/// The checksum of an IPv4 header (RFC 791).
fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: [u8; 6] = [0x52, 1, 2, 3, 4, 1];
    const HOME: [u8; 4] = [192, 168, 77, 12];

    fn question(request: &[u8; 48]) -> Vec<u8> {
        let header = [PLAIN_HEADER, 0, 0, 76, 0, 1, 0, 0, 64, UDP, 0, 0];
        let udp = [0x9c, 0x40, NTP[0], NTP[1], 0, 56, 0, 0];
        [
            &MAC[..],
            &GUEST,
            &IPV4,
            &header,
            &HOME,
            &TIME_SERVER.octets(),
            &udp,
            request,
        ]
        .concat()
    }

    #[test]
    fn a_request_for_the_time_is_answered_and_no_other_frame() {
        let mut request = [0; 48];
        request[40..].copy_from_slice(b"my nonce");
        let frame = question(&request);
        let answer = time(&frame, Duration::new(1_795_300_000, 500_000_000)).unwrap();
        assert_eq!(
            (&answer[..6], &answer[26..30], &answer[30..34]),
            (&GUEST[..], &TIME_SERVER.octets()[..], &HOME[..])
        );
        assert_eq!(
            checksum(&answer[14..34]),
            0,
            "a header with its checksum adds up to nothing"
        );
        assert_eq!(
            (&answer[34..36], &answer[36..38], &answer[42..44]),
            (&NTP[..], &[0x9c, 0x40][..], &[0x24, 1][..])
        );
        assert_eq!(&answer[66..74], b"my nonce");
        assert_eq!(
            answer[82..86],
            u32::try_from(1_795_300_000 + UNIX).unwrap().to_be_bytes()[..]
        );
        assert_eq!(
            (answer[86..90].to_vec(), answer.len()),
            (vec![0x80, 0, 0, 0], 90)
        );
        for (place, what) in [
            (23, "TCP"),
            (33, "another's address"),
            (37, "another port"),
            (14, "options"),
        ] {
            let mut other = frame.clone();
            other[place] ^= 1;
            assert_eq!(time(&other, Duration::ZERO), None, "{what}");
        }
        assert!(
            (0..90).all(|length| time(&frame[..length], Duration::ZERO).is_none()
                && arp(&frame[..length]).is_none())
        );
    }

    #[test]
    fn an_arp_request_for_its_address_is_answered_and_no_other() {
        let ask = |who: Ipv4Addr| {
            let kind = [0, 1, 8, 0, 6, 4, 0, 1];
            [
                &[0xff; 6][..],
                &GUEST,
                &ARP,
                &kind,
                &GUEST,
                &HOME,
                &[0; 6],
                &who.octets(),
            ]
            .concat()
        };
        let answer = arp(&ask(TIME_SERVER)).unwrap();
        assert_eq!(
            (&answer[..6], &answer[20..28], &answer[32..38]),
            (
                &GUEST[..],
                &[0, 2, 0x52, 0x54, 0, 0x77, 0, 9][..],
                &GUEST[..]
            )
        );
        assert_eq!(answer.len(), 42);
        assert_eq!(arp(&ask(Ipv4Addr::new(192, 168, 77, 10))), None);
    }
}
