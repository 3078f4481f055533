//! Connections to ports of a pod over channels of a WebSocket (Kubernetes, `portforward` by
//! `v4.channel.k8s.io`): what client libraries that know no SPDY ask for, such as those of Python
//! and Rust.
//!
//! The client names the ports in its request, and there is one connection to each. Channel 2n
//! carries the bytes of the nth port, channel 2n+1 why it can't be reached. The first message of
//! each channel to the client is the port's number, 16 bits, little-endian. No half of a connection
//! ends by itself: a client that has no more to say keeps silent.

/// The WebSocket subprotocol.
pub const PROTOCOL: &str = "v4.channel.k8s.io";
/// Most ports of a request; channels are numbered by one byte.
pub const MOST_PORTS: usize = 64;

/// The channel of the bytes of the nth port.
pub fn data(index: u8) -> u8 {
    index * 2
}

/// The channel of the faults of the nth port.
pub fn fault(index: u8) -> u8 {
    index * 2 + 1
}

/// The first message of both channels of a port.
pub fn opening(port: u16) -> [u8; 2] {
    port.to_le_bytes()
}

/// Bytes of the client for a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortData<'a> {
    /// Which of the ports.
    pub index: u8,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// Reads what a client sends.
#[derive(Debug, Clone, Copy, Default)]
pub struct Input {
    /// The channel of the message that is being read.
    channel: Option<u8>,
}

impl Input {
    /// Takes a piece of a message: whether it starts the message, as
    /// [`crate::websocket::Event::Data`] tells. What is for no port is ignored, as upstream does:
    /// clients may not write to channels of faults, and lose nothing by it.
    pub fn take<'a>(&mut self, starts: bool, mut bytes: &'a [u8]) -> Option<PortData<'a>> {
        if starts {
            self.channel = None;
        }
        if self.channel.is_none() {
            let (channel, rest) = bytes.split_first()?;
            self.channel = Some(*channel);
            bytes = rest;
        }
        let channel = self.channel.filter(|channel| channel % 2 == 0)?;
        let index = channel / 2;
        (!bytes.is_empty()).then_some(PortData { index, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_message_is_read_alike_however_it_comes(
            channel in any::<u8>(),
            content in prop::collection::vec(any::<u8>(), 0..50),
            cuts in prop::collection::vec(0usize..60, 0..5),
        ) {
            let message: Vec<u8> = [channel].into_iter().chain(content.iter().copied()).collect();
            let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (message.len() + 1)).collect();
            ends.push(message.len());
            ends.sort_unstable();
            let mut input = Input::default();
            let (mut from, mut read) = (0, Vec::new());
            for end in ends {
                if let Some(said) = input.take(from == 0, &message[from..end]) {
                    prop_assert_eq!(said.index, channel / 2);
                    read.extend_from_slice(said.bytes);
                }
                from = end;
            }
            let wanted = if channel % 2 == 0 { content } else { Vec::new() };
            prop_assert_eq!(read, wanted);
        }
    }

    #[test]
    fn the_last_ports_channels_are_of_one_byte() {
        let last = u8::try_from(MOST_PORTS - 1).unwrap();
        assert_eq!((data(last), fault(last)), (126, 127));
        assert_eq!(opening(0x1f90), [0x90, 0x1f]);
    }
}
