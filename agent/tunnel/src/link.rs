//! A client's connection: its WebSocket's messages, or bytes of SPDY, in and out, within bounds.

use config_errors::chain;
use config_tunnel::spdy;
use config_tunnel::websocket::{self, Decoder, Event, Kind, NORMAL, PROTOCOL_ERROR, Sender};
use std::io;
use std::time::Duration;
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf,
};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

/// Bytes taken from the client at once.
const INBOX: usize = 32 * 1024;
/// Bytes for the client above which the process is not read.
const OUTBOX: usize = 32 * 1024;
/// Bytes for the client above which the client is not read, as each of its pings adds an answer.
/// Until then a client that reads nothing is still read, so that its goodbye arrives.
const ANSWERS: usize = 256 * 1024;
/// Time between two pings. They find a client whose machine is gone, and keep proxies on the way
/// from closing an idle connection.
const PING: Duration = Duration::from_secs(30);
/// Time for a client to close its side, so that the last bytes reach it.
pub(crate) const LINGER: Duration = Duration::from_secs(10);

/// How a client leaves.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Leave {
    /// It closed the connection.
    Gone,
    /// The connection is closed with this code.
    Close(u16),
}

/// Some bytes of a message, as many as have come. Bytes of SPDY are in no message.
#[derive(Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) starts: bool,
    pub(crate) ends: bool,
    pub(crate) bytes: &'a [u8],
}

/// The framing of the connection.
#[derive(Debug)]
enum Framing {
    WebSocket(Box<Decoder>),
    /// Frames of SPDY, which the owner decodes and encodes, except for pings; the number of the
    /// next ping.
    Spdy(u32),
}

/// A client's connection. Its halves are read and written in the arms of its owner's `select!`.
#[derive(Debug)]
pub(crate) struct Link<S> {
    pub(crate) reader: ReadHalf<S>,
    pub(crate) writer: WriteHalf<S>,
    pub(crate) inbox: Vec<u8>,
    pub(crate) outbox: Vec<u8>,
    pub(crate) ping: Interval,
    framing: Framing,
    /// Bytes were written that may lie in a buffer of TLS.
    unflushed: bool,
}

impl<S: AsyncRead + AsyncWrite> Link<S> {
    /// A connection that has become a WebSocket.
    pub(crate) fn websocket(stream: S) -> Self {
        let decoder = Decoder::new(Sender::Client);
        Self::new(stream, Framing::WebSocket(Box::new(decoder)))
    }

    /// A connection that has become one of SPDY.
    pub(crate) fn spdy(stream: S) -> Self {
        Self::new(stream, Framing::Spdy(2))
    }

    fn new(stream: S, framing: Framing) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        let mut ping = interval(PING);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ping.reset();
        Self {
            reader,
            writer,
            inbox: vec![0; INBOX],
            outbox: Vec::new(),
            ping,
            framing,
            unflushed: false,
        }
    }

    /// Whether there is room for more output.
    pub(crate) fn has_room(&self) -> bool {
        self.outbox.len() < OUTBOX
    }

    /// Whether the client may be read from.
    pub(crate) fn may_read(&self) -> bool {
        self.outbox.len() < ANSWERS
    }

    /// Whether [`push`] has something to do.
    pub(crate) fn has_output(&self) -> bool {
        !self.outbox.is_empty() || self.unflushed
    }

    /// Notes what [`push`] did.
    pub(crate) fn pushed(&mut self, count: usize) {
        self.outbox.drain(..count);
        self.unflushed = count > 0;
    }

    /// Whether it is one of SPDY, without messages.
    pub(crate) fn is_spdy(&self) -> bool {
        matches!(self.framing, Framing::Spdy(_))
    }

    /// A message for the client: `first`, then `rest`; or these bytes.
    pub(crate) fn tell(&mut self, first: &[u8], rest: &[u8]) {
        match self.framing {
            Framing::WebSocket(_) => websocket::frame(Kind::Binary, first, rest, &mut self.outbox),
            Framing::Spdy(_) => {
                self.outbox.extend_from_slice(first);
                self.outbox.extend_from_slice(rest);
            }
        }
    }

    /// A message of text for the client of a WebSocket.
    pub(crate) fn tell_text(&mut self, text: &str) {
        websocket::frame(Kind::Text, &[], text.as_bytes(), &mut self.outbox);
    }

    /// Queues a ping for the client.
    pub(crate) fn send_ping(&mut self) {
        match &mut self.framing {
            Framing::WebSocket(_) => websocket::frame(Kind::Ping, &[], &[], &mut self.outbox),
            Framing::Spdy(next) => {
                spdy::ping(*next, &mut self.outbox);
                *next = next.wrapping_add(2);
            }
        }
    }

    /// Decodes the first `count` bytes of the inbox and calls `each` with the content of messages.
    /// An error of `each` means that the client broke the inner protocol. Returns how the client
    /// leaves, if it does.
    pub(crate) fn take<E: std::error::Error>(
        &mut self,
        count: usize,
        mut each: impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Option<Leave> {
        let rest = &mut self.inbox[..count];
        let broke = |fault: &dyn std::error::Error| {
            tracing::debug!(error = chain(fault), "protocol violation by the client");
            Some(Leave::Close(PROTOCOL_ERROR))
        };
        let decoder = match &mut self.framing {
            Framing::WebSocket(decoder) => decoder,
            Framing::Spdy(_) => {
                let piece = Piece {
                    starts: false,
                    ends: false,
                    bytes: rest,
                };
                return each(piece).err().and_then(|fault| broke(&fault));
            }
        };
        let mut rest = rest;
        loop {
            let (used, event) = match decoder.take(rest) {
                Ok(taken) => taken,
                Err(fault) => return broke(&fault),
            };
            match event {
                Some(Event::Data {
                    starts,
                    bytes,
                    ends,
                }) => {
                    let piece = Piece {
                        starts,
                        ends,
                        bytes,
                    };
                    if let Err(fault) = each(piece) {
                        return broke(&fault);
                    }
                }
                Some(Event::Ping(bytes)) => {
                    websocket::frame(Kind::Pong, &[], bytes, &mut self.outbox);
                }
                Some(Event::Pong) => {}
                Some(Event::Close(code)) => return Some(Leave::Close(code.unwrap_or(NORMAL))),
                None => return None,
            }
            rest = &mut rest[used..];
        }
    }

    /// Sends what is left, then a WebSocket's end with a code, and waits until the client closes
    /// its side, too.
    pub(crate) async fn part(mut self, leave: Leave) -> io::Result<()> {
        let Leave::Close(code) = leave else {
            return Ok(());
        };
        if !self.is_spdy() {
            websocket::frame(Kind::Close, &code.to_be_bytes(), &[], &mut self.outbox);
        }
        while !self.outbox.is_empty() {
            // Each arm is cancel-safe: bytes were read or written, or not.
            tokio::select! {
                count = push(&mut self.writer, &self.outbox) => self.pushed(count?),
                came = self.reader.read(&mut self.inbox) => if came? == 0 {
                    return Ok(());
                },
            }
        }
        self.writer.shutdown().await?;
        let rest = async {
            while self.reader.read(&mut self.inbox).await? > 0 {}
            io::Result::Ok(())
        };
        // A client that does not close in time has had its time.
        timeout(LINGER, rest).await.unwrap_or(Ok(()))
    }
}

/// Writes some of the bytes and says how many; with none, sends on what lies in buffers, and says
/// 0.
///
/// Cancel-safe, as writing and flushing are.
pub(crate) async fn push<W: AsyncWrite + Unpin>(writer: &mut W, bytes: &[u8]) -> io::Result<usize> {
    if bytes.is_empty() {
        return writer.flush().await.map(|()| 0);
    }
    match writer.write(bytes).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        count => Ok(count),
    }
}
