//! SPDY 3.1 (draft-mbelshe-httpbis-spdy-00, version 3): what kubectl's port-forward speaks inside a
//! WebSocket (KEP-4006), and what older clients speak instead of one.
//!
//! The server's side, with what such clients use: streams that a client opens, data, half-close,
//! resets, pings. Settings and window updates are ignored: Kubernetes' clients have no SPDY flow
//! control. They neither send nor read window updates, so a server that waited for one would wait
//! for ever. TCP's flow control limits them.

mod headers;
mod session;
#[cfg(test)]
mod talk;

pub use headers::Headers;
use headers::{Expander, Packer};
pub(crate) use session::{Frames, Refused, Streams, take};
#[cfg(test)]
pub(crate) use talk::Talk;

/// The version of all control frames.
const VERSION: u32 = 3;
/// Bytes before a frame's payload.
const HEADER: usize = 8;
/// Longest control frame that is read. The header block of a port-forward's stream has about 60
/// bytes.
const MAX_CONTROL: usize = 4 << 10;
/// Longest payload of a frame.
const MAX_PAYLOAD: usize = (1 << 24) - 1;
/// The flag that ends the sender's half of a stream.
const FIN: u8 = 1;
const SYN_STREAM: u32 = 1;
const SYN_REPLY: u32 = 2;
const RST_STREAM: u32 = 3;
const PING: u32 = 6;
const GOAWAY: u32 = 7;
const HEADERS: u32 = 8;

/// Why a stream is reset (SPDY 3.1, 2.6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It was refused before anything was done for it.
    Refused,
    /// The stream is not needed any more, or what it led to is gone.
    Cancelled,
}

/// How a peer broke the protocol. The connection can't be used afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A control frame of another version.
    #[error("a control frame has version {0} instead of {VERSION}")]
    Version(u32),
    /// A control frame whose length is not one of its type.
    #[error("a control frame of type {0} has a wrong length")]
    Length(u32),
    /// A stream id is 0, even (the server's), or not above those before.
    #[error("a SPDY stream has an invalid id: it must be odd and rise")]
    Stream,
    /// An answer to a stream that was never opened.
    #[error("a client sent SYN_REPLY for a stream, and the server opens none")]
    Reply,
    /// A block of headers can't be read.
    #[error("a block of headers can't be expanded, or has more than names and values")]
    Headers,
}

/// What a client said.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// It opens a stream.
    Open {
        /// The stream's number: odd, and above all before.
        stream: u32,
        /// What it is for.
        headers: Headers,
        /// The client will write nothing to it.
        ends: bool,
    },
    /// Some bytes of a stream, as many as have come. Whether there is such a stream the caller
    /// knows.
    Data {
        /// The stream's number.
        stream: u32,
        /// The bytes; may be none.
        bytes: &'a [u8],
        /// The client writes no more to it.
        ends: bool,
    },
    /// It resets a stream (RST_STREAM), and reads nothing more of it.
    Reset {
        /// The stream's number.
        stream: u32,
    },
    /// It wants this number back by [`pong`], or gives it back.
    Ping(u32),
    /// It opens no more streams.
    GoAway,
}

/// What a frame's payload is.
#[derive(Debug, Clone, Copy)]
enum Body {
    Data {
        stream: u32,
        fin: bool,
    },
    /// A control frame that is read when it is whole.
    Control {
        kind: u32,
        fin: bool,
    },
    Skipped,
}

/// Reads the frames of one client from pieces of any size.
///
/// Guarantee: the events do not depend on how the bytes were cut, except the pieces of
/// [`Event::Data`].
#[derive(Debug)]
pub struct Decoder {
    header: [u8; HEADER],
    /// Bytes of the header that have come.
    known: usize,
    /// The frame whose payload is coming, and the bytes of it that are missing.
    frame: Option<(Body, usize)>,
    control: Vec<u8>,
    /// The last stream that was opened; 0 before the first.
    last: u32,
    expander: Expander,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            header: [0; HEADER],
            known: 0,
            frame: None,
            control: Vec::new(),
            last: 0,
            expander: Expander::new(),
        }
    }
}

impl Decoder {
    /// Takes bytes from the front of `input` up to the next event: how many, and the event if there
    /// is one. Without an event all of `input` was taken.
    ///
    /// # Errors
    /// The client broke the protocol (SPDY/3.1); [`Fault`] says how. Nothing after it can be read.
    pub fn take<'a>(&mut self, input: &'a [u8]) -> Result<(usize, Option<Event<'a>>), Fault> {
        let mut used = 0;
        loop {
            let (body, missing) = if let Some(frame) = self.frame.take() {
                frame
            } else {
                let count = (HEADER - self.known).min(input.len() - used);
                self.header[self.known..self.known + count]
                    .copy_from_slice(&input[used..used + count]);
                self.known += count;
                used += count;
                if self.known < HEADER {
                    return Ok((used, None));
                }
                self.known = 0;
                self.begin()?
            };
            let count = missing.min(input.len() - used);
            let piece = &input[used..used + count];
            used += count;
            let whole = count == missing;
            if !whole {
                self.frame = Some((body, missing - count));
            }
            let event = match body {
                Body::Data { stream, fin } if whole || count > 0 => Some(Event::Data {
                    stream,
                    bytes: piece,
                    ends: whole && fin,
                }),
                Body::Control { kind, fin } => {
                    self.control.extend_from_slice(piece);
                    if whole {
                        self.control(kind, fin)?
                    } else {
                        None
                    }
                }
                Body::Data { .. } | Body::Skipped => None,
            };
            if event.is_some() || !whole {
                return Ok((used, event));
            }
        }
    }

    /// What follows the header, and its length.
    fn begin(&mut self) -> Result<(Body, usize), Fault> {
        let whole = u64::from_be_bytes(self.header);
        // Four bytes and three fit.
        let first = u32::try_from(whole >> 32).unwrap_or_default();
        let length = usize::try_from(whole & 0xFF_FFFF).unwrap_or(MAX_PAYLOAD);
        let fin = self.header[4] & FIN != 0;
        if first >> 31 == 0 {
            let body = Body::Data { stream: first, fin };
            return if first == 0 {
                Err(Fault::Stream)
            } else {
                Ok((body, length))
            };
        }
        let (version, kind) = ((first >> 16) & 0x7FFF, first & 0xFFFF);
        if version != VERSION {
            return Err(Fault::Version(version));
        }
        let lengths = match kind {
            SYN_STREAM => 10..=MAX_CONTROL,
            HEADERS => 4..=MAX_CONTROL,
            RST_STREAM | GOAWAY => 8..=8,
            PING => 4..=4,
            SYN_REPLY => return Err(Fault::Reply),
            _ => return Ok((Body::Skipped, length)),
        };
        if !lengths.contains(&length) {
            return Err(Fault::Length(kind));
        }
        self.control.clear();
        Ok((Body::Control { kind, fin }, length))
    }

    /// What a control frame says that is whole.
    fn control<'a>(&mut self, kind: u32, fin: bool) -> Result<Option<Event<'a>>, Fault> {
        let payload = self.control.as_slice();
        let Some((number, rest)) = payload.split_first_chunk::<4>() else {
            return Err(Fault::Length(kind));
        };
        let number = u32::from_be_bytes(*number);
        let stream = number & 0x7FFF_FFFF;
        Ok(match kind {
            PING => Some(Event::Ping(number)),
            GOAWAY => Some(Event::GoAway),
            RST_STREAM => Some(Event::Reset { stream }),
            SYN_STREAM => {
                if stream.is_multiple_of(2) || stream <= self.last {
                    return Err(Fault::Stream);
                }
                self.last = stream;
                // The stream that it belongs to, and its priority, say nothing here.
                let headers = self.expander.read(rest.get(6..).unwrap_or_default())?;
                Some(Event::Open {
                    stream,
                    headers,
                    ends: fin,
                })
            }
            // Later headers of a stream say nothing here, but later blocks build on them.
            _ => {
                self.expander.read(rest)?;
                None
            }
        })
    }
}

fn control(kind: u32, length: usize, flags: u8, out: &mut Vec<u8>) {
    out.extend(((1 << 31) | (VERSION << 16) | kind).to_be_bytes());
    put_length(flags, length, out);
}

/// Flags and length of a frame. No frame that is written is longer than [`MAX_PAYLOAD`].
fn put_length(flags: u8, length: usize, out: &mut Vec<u8>) {
    let [_, a, b, c] = u32::try_from(length).unwrap_or_default().to_be_bytes();
    out.extend([flags, a, b, c]);
}

/// A server's answers to streams.
#[derive(Debug, Default)]
pub struct Replies {
    begun: bool,
}

impl Replies {
    /// Appends the answer that a stream is accepted, without headers.
    ///
    /// The block of none is four zeros. They are stored, not compressed, and an empty block after
    /// them lets the client's decompressor hand them out.
    pub fn reply(&mut self, stream: u32, out: &mut Vec<u8>) {
        const NO_HEADERS: [u8; 14] = [0, 4, 0, 0xFB, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF];
        // zlib without a dictionary (RFC 1950), once for all blocks.
        let zlib: &[u8] = if self.begun { &[] } else { &[0x78, 0x01] };
        self.begun = true;
        control(SYN_REPLY, 4 + zlib.len() + NO_HEADERS.len(), 0, out);
        out.extend(stream.to_be_bytes());
        out.extend_from_slice(zlib);
        out.extend_from_slice(&NO_HEADERS);
    }
}

/// A client's side, as far as a test of a server needs one.
#[derive(Debug)]
pub struct Opener(Packer);

impl Default for Opener {
    fn default() -> Self {
        Self(Packer::new())
    }
}

impl Opener {
    /// Appends the frame that opens a stream.
    pub fn open(&mut self, stream: u32, headers: &Headers, out: &mut Vec<u8>) {
        let block = self.0.block(headers);
        control(SYN_STREAM, 10 + block.len(), 0, out);
        out.extend(stream.to_be_bytes());
        out.extend([0; 6]);
        out.extend(block);
    }
}

/// Appends data of a stream; `ends` says that it is the last.
pub fn data(stream: u32, bytes: &[u8], ends: bool, out: &mut Vec<u8>) {
    let mut rest = bytes;
    loop {
        let (piece, after) = rest.split_at(rest.len().min(MAX_PAYLOAD));
        rest = after;
        out.extend(stream.to_be_bytes());
        let last = rest.is_empty();
        put_length(if ends && last { FIN } else { 0 }, piece.len(), out);
        out.extend_from_slice(piece);
        if last {
            return;
        }
    }
}

/// Appends a stream's reset.
pub fn reset(stream: u32, why: Why, out: &mut Vec<u8>) {
    let status: u32 = match why {
        Why::Refused => 3,
        Why::Cancelled => 5,
    };
    control(RST_STREAM, 8, 0, out);
    out.extend(stream.to_be_bytes());
    out.extend(status.to_be_bytes());
}

/// Appends a ping, or the answer to one, which has its number. Those of a server are even.
pub fn ping(number: u32, out: &mut Vec<u8>) {
    control(PING, 4, 0, out);
    out.extend(number.to_be_bytes());
}

/// Appends the answer to a client's ping. An even number is the answer to one of the server's.
pub fn pong(number: u32, out: &mut Vec<u8>) {
    if !number.is_multiple_of(2) {
        ping(number, out);
    }
}

/// Appends a GOAWAY frame: no more streams are taken after the one with the number `last`; `broke`:
/// because the client broke the protocol.
pub fn go_away(last: u32, broke: bool, out: &mut Vec<u8>) {
    control(GOAWAY, 8, 0, out);
    out.extend(last.to_be_bytes());
    out.extend(u32::from(broke).to_be_bytes());
}

#[cfg(test)]
mod tests;
