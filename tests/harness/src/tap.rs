//! An eavesdropper on the segment that machines share: one more station there, to which the hub
//! sends every frame.

use crate::Result;
use crate::machine::Cable;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xDD];
const UDP: u8 = 17;
/// The ports of machines' tunnels: those of their first links, and of their second.
const TUNNELS: [u16; 2] = [51_820, 51_821];
/// The front of pods' addresses (10.244.0.0/16, the default).
const PODS: [u8; 2] = [10, 244];
/// The front of pods' addresses of IPv6 (fd00:10:244::/48).
const PODS_V6: [u8; 6] = [0xFD, 0x00, 0x00, 0x10, 0x02, 0x44];
/// More than any frame of the segment has.
const MAX_FRAME: usize = 1 << 16;

/// The recorded traffic so far.
#[derive(Debug, Default)]
struct Recording {
    ended: AtomicBool,
    sealed: [AtomicUsize; 2],
    plain: Mutex<Vec<String>>,
}

/// The eavesdropper; it leaves the segment when it is dropped.
#[derive(Debug)]
pub struct Tap(Arc<Recording>);

impl Tap {
    /// Puts it at the machine's end of a cable.
    ///
    /// # Errors
    /// Where a machine is at that end.
    pub fn start(cable: Cable) -> Result<Self> {
        let socket = cable.plug()?;
        let heard = Arc::new(Recording::default());
        let own = Arc::clone(&heard);
        let listen = move || {
            let mut buffer = vec![0; MAX_FRAME];
            while !own.ended.load(Ordering::Relaxed) {
                // Refused while the hub's machine is off, and nothing for a while is no fault.
                if let Ok(length) = socket.recv(&mut buffer) {
                    own.record(&buffer[..length]);
                }
            }
        };
        drop(std::thread::spawn(listen));
        Ok(Self(heard))
    }

    /// How many encrypted frames of tunnels were recorded: of first links, and of second ones.
    pub fn sealed(&self) -> [usize; 2] {
        let sealed = self.0.sealed.each_ref();
        sealed.map(|count| count.load(Ordering::Relaxed))
    }

    /// Frames that carry an address of a pod in the clear, as source and destination.
    pub fn plain(&self) -> Vec<String> {
        let plain = self.0.plain.lock();
        plain.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Relaxed);
    }
}

/// A frame as an eavesdropper sees it.
#[derive(Debug, PartialEq, Eq)]
enum Frame {
    /// A pod's packet, with its source and destination.
    Plain(String),
    /// A tunnel's, with which of the links it is.
    Sealed(usize),
    /// Of something else.
    Other,
}

impl Recording {
    fn record(&self, frame: &[u8]) {
        match read(frame) {
            Some(Frame::Plain(what)) => {
                let plain = self.plain.lock();
                plain.unwrap_or_else(PoisonError::into_inner).push(what);
            }
            Some(Frame::Sealed(link)) => {
                if let Some(count) = self.sealed.get(link) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
            Some(Frame::Other) | None => {}
        }
    }
}

/// None where a frame is cut short, or neither IPv4 (RFC 791) nor IPv6 (RFC 8200).
fn read(frame: &[u8]) -> Option<Frame> {
    let packet = frame.get(14..)?;
    let plain = |source: &[u8], destination: &[u8], pods: &[u8]| {
        let is = source.starts_with(pods) || destination.starts_with(pods);
        is.then(|| Frame::Plain(format!("{source:02x?} to {destination:02x?}")))
    };
    let kind = frame.get(12..14)?;
    if kind == IPV6 {
        let (source, destination) = (packet.get(8..24)?, packet.get(24..40)?);
        return Some(plain(source, destination, &PODS_V6).unwrap_or(Frame::Other));
    }
    if kind != IPV4 {
        return None;
    }
    let words = usize::from(packet.first()? & 0x0F);
    let (source, destination) = (packet.get(12..16)?, packet.get(16..20)?);
    if let Some(plain) = plain(source, destination, &PODS) {
        return Some(plain);
    }
    let port = packet.get(words * 4 + 2..words * 4 + 4)?;
    let mut links = TUNNELS.iter();
    let link = links.position(|own| port == own.to_be_bytes());
    let link = link.filter(|_| packet.get(9) == Some(&UDP));
    Some(link.map_or(Frame::Other, Frame::Sealed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(protocol: u8, source: [u8; 4], destination: [u8; 4], port: u16) -> Vec<u8> {
        let mut header = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
        header.extend([source, destination].concat());
        let ports = [[0; 2], port.to_be_bytes()].concat();
        [vec![0; 12], IPV4.to_vec(), header, ports].concat()
    }

    #[test]
    fn pods_packets_and_tunnels_are_distinguished() {
        let (pod, machine) = ([10, 244, 1, 2], [192, 168, 77, 11]);
        let from = read(&frame(6, pod, machine, 443)).unwrap();
        let to = read(&frame(UDP, machine, pod, 51_820)).unwrap();
        assert!(matches!((from, to), (Frame::Plain(_), Frame::Plain(_))));
        let of = |protocol, port| read(&frame(protocol, machine, machine, port));
        assert_eq!(of(UDP, 51_820), Some(Frame::Sealed(0)));
        assert_eq!(of(UDP, 51_821), Some(Frame::Sealed(1)));
        assert_eq!(of(6, 51_820), Some(Frame::Other));
        assert_eq!(of(UDP, 53), Some(Frame::Other));
        let whole = frame(UDP, machine, machine, 51_820);
        assert!((0..whole.len()).all(|length| read(&whole[..length]).is_none()));
        let v6 = |source: [u16; 8], destination: [u16; 8]| {
            let ends = [source, destination].concat();
            let ends = ends.into_iter().flat_map(u16::to_be_bytes).collect();
            read(&[vec![0; 12], IPV6.to_vec(), vec![0; 8], ends].concat())
        };
        let pod = [0xFD00, 0x10, 0x244, 1, 0, 0, 0, 2];
        let machine = [0xFE80, 0, 0, 0, 0, 0, 0, 1];
        for (source, destination) in [(pod, machine), (machine, pod)] {
            assert!(matches!(v6(source, destination), Some(Frame::Plain(_))));
        }
        assert_eq!(v6(machine, machine), Some(Frame::Other));
    }
}
