//! An eavesdropper on the segment that machines share: one more station there, to which the hub sends every frame.

use crate::Result;
use crate::machine::Cable;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const IPV4: [u8; 2] = [0x08, 0x00];
const UDP: u8 = 17;
/// The ports of machines' tunnels: those of their first links, and of their second.
const TUNNELS: [u16; 2] = [51_820, 51_821];
/// The front of pods' addresses (10.244.0.0/16, the default).
const PODS: [u8; 2] = [10, 244];
/// More than any frame of the segment has.
const MOST: usize = 1 << 16;

/// The recorded traffic so far.
#[derive(Debug, Default)]
struct Heard {
    ended: AtomicBool,
    sealed: [AtomicUsize; 2],
    plain: Mutex<Vec<String>>,
}

/// The eavesdropper; it leaves the segment when it is dropped.
#[derive(Debug)]
pub struct Tap(Arc<Heard>);

impl Tap {
    /// Puts it at the machine's end of a cable.
    ///
    /// # Errors
    /// Where a machine is at that end.
    pub fn start(cable: Cable) -> Result<Self> {
        let socket = cable.plug()?;
        let heard = Arc::new(Heard::default());
        let own = Arc::clone(&heard);
        let listen = move || {
            let mut buffer = vec![0; MOST];
            while !own.ended.load(Ordering::Relaxed) {
                // Refused while the hub's machine is off, and nothing for a while is no fault.
                if let Ok(length) = socket.recv(&mut buffer) {
                    own.hear(&buffer[..length]);
                }
            }
        };
        drop(std::thread::spawn(listen));
        Ok(Self(heard))
    }

    /// How many frames of tunnels were recorded: of first links, and of second ones.
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

impl Heard {
    fn hear(&self, frame: &[u8]) {
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

/// None where a frame is cut short, or not IPv4 (RFC 791).
fn read(frame: &[u8]) -> Option<Frame> {
    if frame.get(12..14)? != IPV4 {
        return None;
    }
    let packet = frame.get(14..)?;
    let words = usize::from(packet.first()? & 0x0F);
    let (source, destination) = (packet.get(12..16)?, packet.get(16..20)?);
    if source.starts_with(&PODS) || destination.starts_with(&PODS) {
        return Some(Frame::Plain(format!("{source:?} to {destination:?}")));
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
    fn pods_packets_and_tunnels_are_told_apart() {
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
    }
}
