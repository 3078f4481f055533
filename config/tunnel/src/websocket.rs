//! WebSocket (RFC 6455): the handshake's key, a decoder of frames, and their encoding. No
//! extensions.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};

/// What a server appends to the client's key (RFC 6455, 1.3).
const KEY_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Longest payload of a control frame (RFC 6455, 5.5).
const MAX_CONTROL: usize = 125;
/// Longest header of a frame: two bytes, eight of length, four of mask.
const MAX_HEADER: usize = 14;

/// The end as it should be (RFC 6455, 7.4.1).
pub const NORMAL: u16 = 1000;
/// The server shuts down.
pub const GOING_AWAY: u16 = 1001;
/// The peer broke the protocol.
pub const PROTOCOL_ERROR: u16 = 1002;

/// The server's answer to a client's `Sec-WebSocket-Key`; `None` where that is not 16 bytes in
/// base64 (RFC 6455, 4.2.1).
pub fn accept(key: &str) -> Option<String> {
    let bytes = STANDARD.decode(key.trim()).ok()?;
    (bytes.len() == 16).then(|| {
        let digest = Sha1::digest(format!("{}{KEY_SUFFIX}", key.trim()));
        STANDARD.encode(digest)
    })
}

/// Who sent the frames. A client masks each frame, a server none (RFC 6455, 5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// A client.
    Client,
    /// A server.
    Server,
}

/// Kinds of frames that are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole message of text, which is UTF-8.
    Text,
    /// A whole message of bytes.
    Binary,
    /// The end of the connection.
    Close,
    /// Asks for a [`Kind::Pong`].
    Ping,
    /// The answer to a [`Kind::Ping`], with its payload.
    Pong,
}

impl Kind {
    fn opcode(self) -> u8 {
        match self {
            Self::Text => 0x1,
            Self::Binary => 0x2,
            Self::Close => 0x8,
            Self::Ping => 0x9,
            Self::Pong => 0xA,
        }
    }
}

/// How a peer broke the protocol. The connection is of no use afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A reserved bit is set, and no extension was agreed on.
    #[error("a frame has a reserved bit set")]
    Reserved,
    /// The kind of frame does not exist.
    #[error("a frame has the unknown opcode {0}")]
    Opcode(u8),
    /// A client's frame without a mask, or a server's with one.
    #[error("a frame is masked as its sender must not mask it")]
    Mask,
    /// A control frame that is too long or in parts.
    #[error("a control frame is in parts or longer than {MAX_CONTROL} bytes")]
    Control,
    /// A continuation of nothing, or a new message before the last ended.
    #[error("the parts of a message are out of order")]
    Order,
    /// A length that is not in its shortest form, or has its first bit set.
    #[error("a frame's length is not in its shortest form")]
    Length,
    /// A close frame whose payload has one byte: half a code.
    #[error("a close frame has half a code")]
    HalfCode,
}

/// What a peer said.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Some bytes of a message, as many as have come.
    Data {
        /// They begin it.
        starts: bool,
        /// They end it.
        ends: bool,
        /// The bytes; empty where the message is, or a part of it.
        bytes: &'a [u8],
    },
    /// It wants these bytes back in a [`Kind::Pong`].
    Ping(&'a [u8]),
    /// The answer to a ping.
    Pong,
    /// It ends the connection, with the code if it gave one.
    Close(Option<u16>),
}

/// A frame whose payload is coming.
#[derive(Debug, Clone, Copy)]
struct Frame {
    opcode: u8,
    fin: bool,
    mask: [u8; 4],
    /// Bytes of payload that have come; its low bits say where the mask stands.
    taken: u64,
    length: u64,
}

/// Reads the frames of one peer from pieces of any size.
///
/// Guarantee: the events do not depend on how the bytes were cut, except the pieces of
/// [`Event::Data`].
#[derive(Debug)]
pub struct Decoder {
    from: Sender,
    header: [u8; MAX_HEADER],
    /// Bytes of the header that have come.
    known: usize,
    frame: Option<Frame>,
    control: [u8; MAX_CONTROL],
    /// A message was begun and not ended.
    inside: bool,
    /// No byte of the message's first frame has been passed on yet.
    fresh: bool,
}

impl Decoder {
    /// A decoder of frames that `from` sends.
    pub fn new(from: Sender) -> Self {
        Self {
            from,
            header: [0; MAX_HEADER],
            known: 0,
            frame: None,
            control: [0; MAX_CONTROL],
            inside: false,
            fresh: false,
        }
    }

    /// Takes bytes from the front of `input` up to the next event: how many, and the event if there
    /// is one. Without an event all of `input` was taken. Payloads are unmasked in place.
    ///
    /// # Errors
    /// The peer broke the protocol (RFC 6455); [`Fault`] says how. Nothing after it can be read.
    pub fn take<'a>(
        &'a mut self,
        input: &'a mut [u8],
    ) -> Result<(usize, Option<Event<'a>>), Fault> {
        let mut used = 0;
        let mut frame = match self.frame.take() {
            Some(frame) => frame,
            None => loop {
                if let Some(frame) = self.read_header()? {
                    self.known = 0;
                    self.begin(&frame)?;
                    break frame;
                }
                let Some(byte) = input.get(used) else {
                    return Ok((used, None));
                };
                self.header[self.known] = *byte;
                self.known += 1;
                used += 1;
            },
        };
        let left = usize::try_from(frame.length - frame.taken).unwrap_or(usize::MAX);
        let count = left.min(input.len() - used);
        if count == 0 && left > 0 {
            self.frame = Some(frame);
            return Ok((used, None));
        }
        let before = frame.taken;
        let payload = &mut input[used..used + count];
        unmask(payload, frame.mask, before);
        frame.taken += count as u64;
        used += count;
        let whole = frame.taken == frame.length;
        if frame.opcode < 0x8 {
            let starts = std::mem::take(&mut self.fresh);
            let ends = whole && frame.fin;
            self.inside = !ends;
            self.frame = (!whole).then_some(frame);
            let bytes = &*payload;
            let event = Event::Data {
                starts,
                ends,
                bytes,
            };
            return Ok((used, Some(event)));
        }
        // A control frame fits: its length was checked.
        let at = usize::try_from(before).unwrap_or(MAX_CONTROL);
        self.control[at..at + count].copy_from_slice(payload);
        if !whole {
            self.frame = Some(frame);
            return Ok((used, None));
        }
        let content = &self.control[..at + count];
        let event = match frame.opcode {
            0x8 => Event::Close(content.first_chunk().map(|code| u16::from_be_bytes(*code))),
            0x9 => Event::Ping(content),
            _ => Event::Pong,
        };
        Ok((used, Some(event)))
    }

    /// The frame whose header is complete; `None` while bytes of it are missing.
    fn read_header(&self) -> Result<Option<Frame>, Fault> {
        let header = &self.header[..self.known];
        let [first, second, rest @ ..] = header else {
            return Ok(None);
        };
        if first & 0x70 != 0 {
            return Err(Fault::Reserved);
        }
        let (fin, opcode, masked) = (first & 0x80 != 0, first & 0x0F, second & 0x80 != 0);
        if !matches!(opcode, 0x0..=0x2 | 0x8..=0xA) {
            return Err(Fault::Opcode(opcode));
        }
        if masked != (self.from == Sender::Client) {
            return Err(Fault::Mask);
        }
        let short = second & 0x7F;
        if opcode >= 0x8 && (!fin || usize::from(short) > MAX_CONTROL) {
            return Err(Fault::Control);
        }
        if opcode == 0x8 && short == 1 {
            return Err(Fault::HalfCode);
        }
        let (length, rest) = match short {
            126 => match rest.split_first_chunk::<2>() {
                Some((length, rest)) => (u64::from(u16::from_be_bytes(*length)), rest),
                None => return Ok(None),
            },
            127 => match rest.split_first_chunk::<8>() {
                Some((length, rest)) => (u64::from_be_bytes(*length), rest),
                None => return Ok(None),
            },
            short => (u64::from(short), rest),
        };
        let shortest = match short {
            126 => length > 125,
            127 => length > 0xFFFF && length >> 63 == 0,
            _ => true,
        };
        if !shortest {
            return Err(Fault::Length);
        }
        let mask = match (masked, rest.first_chunk::<4>()) {
            (false, _) => [0; 4],
            (true, Some(mask)) => *mask,
            (true, None) => return Ok(None),
        };
        let taken = 0;
        Ok(Some(Frame {
            opcode,
            fin,
            mask,
            taken,
            length,
        }))
    }

    /// Checks that a frame may come now.
    fn begin(&mut self, frame: &Frame) -> Result<(), Fault> {
        match (frame.opcode, self.inside) {
            (0x0, false) | (0x1 | 0x2, true) => Err(Fault::Order),
            (0x1 | 0x2, false) => {
                self.fresh = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Applies the mask to bytes of a payload of which `before` have come (RFC 6455, 5.3). The same
/// call masks.
fn unmask(bytes: &mut [u8], mask: [u8; 4], before: u64) {
    if mask == [0; 4] {
        return;
    }
    let mut turned = mask;
    // The remainder is below 4.
    turned.rotate_left(usize::try_from(before % 4).unwrap_or_default());
    let mut words = bytes.chunks_exact_mut(4);
    for word in &mut words {
        for (byte, key) in word.iter_mut().zip(turned) {
            *byte ^= key;
        }
    }
    for (byte, key) in words.into_remainder().iter_mut().zip(turned) {
        *byte ^= key;
    }
}

fn header(kind: Kind, length: usize, masked: bool, out: &mut Vec<u8>) {
    let mask: u8 = if masked { 0x80 } else { 0 };
    out.push(0x80 | kind.opcode());
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ 0..=125), _) => out.push(mask + short),
        (_, Ok(length)) => {
            out.push(mask + 126);
            out.extend(length.to_be_bytes());
        }
        (_, Err(_)) => {
            out.push(mask + 127);
            out.extend((length as u64).to_be_bytes());
        }
    }
}

/// Appends a server's frame, whose payload is `first` and then `rest`, to `out`.
pub fn frame(kind: Kind, first: &[u8], rest: &[u8], out: &mut Vec<u8>) {
    header(kind, first.len() + rest.len(), false, out);
    out.extend_from_slice(first);
    out.extend_from_slice(rest);
}

/// Appends a client's frame to `out`. A client that a browser may have started draws each mask anew
/// (RFC 6455, 10.3).
pub fn masked_frame(kind: Kind, payload: &[u8], mask: [u8; 4], out: &mut Vec<u8>) {
    header(kind, payload.len(), true, out);
    out.extend_from_slice(&mask);
    let from = out.len();
    out.extend_from_slice(payload);
    unmask(&mut out[from..], mask, 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A decoder's events, with the pieces of each message joined.
    #[derive(Debug, PartialEq, Eq, Clone)]
    enum Said {
        Message(Vec<u8>),
        Ping(Vec<u8>),
        Pong,
        Close(Option<u16>),
    }

    fn decode(bytes: &[u8], cut: usize) -> Result<Vec<Said>, Fault> {
        let mut decoder = Decoder::new(Sender::Client);
        let (mut all, mut message) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(cut) {
            let mut piece = piece.to_vec();
            let mut rest = piece.as_mut_slice();
            loop {
                let (used, event) = decoder.take(rest)?;
                let spent = event.is_none();
                match event {
                    Some(Event::Data {
                        starts,
                        ends,
                        bytes,
                    }) => {
                        assert!(
                            !starts || message.is_empty(),
                            "a message begins after the last"
                        );
                        message.extend_from_slice(bytes);
                        if ends {
                            all.push(Said::Message(std::mem::take(&mut message)));
                        }
                    }
                    Some(Event::Ping(bytes)) => all.push(Said::Ping(bytes.to_vec())),
                    Some(Event::Pong) => all.push(Said::Pong),
                    Some(Event::Close(code)) => all.push(Said::Close(code)),
                    None => {}
                }
                if spent {
                    break;
                }
                rest = &mut rest[used..];
            }
        }
        Ok(all)
    }

    #[test]
    fn the_key_of_the_rfc_gets_the_answer_of_the_rfc() {
        let answer = accept("dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(answer.as_deref(), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        for bad in [
            "",
            "x",
            "dGhlIHNhbXBsZSBub25jZ",
            "AAAA",
            "dGhlIHNhbXBsZSBub25jZSE=",
        ] {
            assert_eq!(accept(bad), None, "{bad}");
        }
    }

    #[test]
    fn each_breach_of_the_protocol_is_a_fault_of_its_own() {
        let faults: [(&[u8], Fault); 10] = [
            (&[0xC2, 0x80], Fault::Reserved),
            (&[0x83, 0x80], Fault::Opcode(3)),
            (&[0x82, 0x00], Fault::Mask),
            (&[0x09, 0x80], Fault::Control),
            (&[0x89, 0xFE], Fault::Control),
            (&[0x80, 0x80, 0, 0, 0, 0], Fault::Order),
            (
                &[0x02, 0x80, 0, 0, 0, 0, 0x82, 0x80, 0, 0, 0, 0],
                Fault::Order,
            ),
            (&[0x82, 0xFE, 0, 125, 0, 0, 0, 0], Fault::Length),
            (
                &[0x82, 0xFF, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0],
                Fault::Length,
            ),
            (&[0x88, 0x81, 0, 0, 0, 0, 3], Fault::HalfCode),
        ];
        for (bytes, fault) in faults {
            for cut in [1, 3, 64] {
                assert_eq!(decode(bytes, cut), Err(fault), "{bytes:x?}");
            }
        }
    }

    #[test]
    fn an_announced_length_costs_nothing_and_its_bytes_come_as_they_come() {
        let mut decoder = Decoder::new(Sender::Client);
        let mut head = [0x82, 0xFF, 0x7F, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 1, 2];
        let (used, event) = decoder.take(&mut head).unwrap();
        let event = event.map(|event| format!("{event:?}"));
        assert_eq!(used, 16);
        assert_eq!(
            event.as_deref(),
            Some("Data { starts: true, ends: false, bytes: [0, 0] }")
        );
        let mut more = [3, 4];
        let (used, event) = decoder.take(&mut more).unwrap();
        let event = event.map(|event| format!("{event:?}"));
        assert_eq!(used, 2);
        assert_eq!(
            event.as_deref(),
            Some("Data { starts: false, ends: false, bytes: [0, 0] }")
        );
    }

    fn said() -> impl Strategy<Value = Said> {
        let bytes = |most| proptest::collection::vec(any::<u8>(), 0..most);
        prop_oneof![
            bytes(70_000).prop_map(Said::Message),
            bytes(300).prop_map(Said::Message),
            bytes(126).prop_map(Said::Ping),
            Just(Said::Pong),
            proptest::option::of(any::<u16>()).prop_map(Said::Close),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_a_client_sends_is_read_however_it_is_cut(all in proptest::collection::vec(said(), 0..6), mask in any::<[u8; 4]>(), cut in 1_usize..5_000) {
            let mut bytes = Vec::new();
            for one in &all {
                match one {
                    Said::Message(text) => masked_frame(Kind::Binary, text, mask, &mut bytes),
                    Said::Ping(text) => masked_frame(Kind::Ping, text, mask, &mut bytes),
                    Said::Pong => masked_frame(Kind::Pong, b"", mask, &mut bytes),
                    Said::Close(code) => {
                        let code = code.map(u16::to_be_bytes);
                        masked_frame(Kind::Close, code.as_ref().map_or(&[][..], |code| &code[..]), mask, &mut bytes);
                    }
                }
            }
            prop_assert_eq!(decode(&bytes, cut), Ok(all));
        }

        #[test]
        fn no_bytes_make_it_fail_otherwise_than_by_a_fault(bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 1_usize..40) {
            // Cut or whole, the outcome is the same.
            prop_assert_eq!(decode(&bytes, cut), decode(&bytes, bytes.len().max(1)));
        }
    }
}
