//! The client of a command or of an attached container: its input, sizes of its terminal, the
//! output for it and the final status, as messages of a WebSocket or as streams of SPDY.

use crate::handshake::{Offer, TunnelRefusal};
use crate::link::{LINGER, Leave, Link, push};
use crate::query;
use agent_runtime::{Control, Input, Outputs};
use config_errors::chain;
use config_tunnel::command::{
    self, Base64, ClientMessage, ERROR, NotBase64, STDERR, STDOUT, Version,
};
use config_tunnel::spdy::Fault;
use config_tunnel::streams::{self, Session};
use config_tunnel::websocket::{NORMAL, PROTOCOL_ERROR};
use http::Request;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::time::timeout;

/// Time for a client of SPDY to open its streams (upstream's `DefaultStreamCreationTimeout`).
const OPENING: Duration = Duration::from_secs(30);
/// Bytes of input that are held until then.
const EARLY: usize = 64 * 1024;

/// The protocol that was negotiated with a client.
#[derive(Debug)]
pub(crate) enum Agreed {
    /// Messages, each of which names its channel.
    Channels(Version),
    /// Streams, for these channels at least.
    Streams(Vec<u8>),
}

impl Agreed {
    /// Negotiates the protocol: returns what the client offers, and the best protocol among that.
    ///
    /// # Errors
    /// The request is invalid, or offers no protocol that is supported.
    pub(crate) fn negotiated<B>(request: &Request<B>) -> Result<(Offer, Self), TunnelRefusal> {
        let offer = Offer::of(request)?;
        let chosen = if offer.is_spdy() {
            let query = request.uri().query().unwrap_or_default();
            offer
                .names(streams::PROTOCOL)
                .then(|| Self::Streams(query::channels(query)))
        } else {
            Version::choose(&offer.protocols).map(Self::Channels)
        };
        let Some(chosen) = chosen else {
            let all = Version::ALL.map(Version::name).join(", ");
            let known = if offer.is_spdy() {
                streams::PROTOCOL
            } else {
                &all
            };
            return Err(offer.unknown(known));
        };
        Ok((offer, chosen))
    }

    /// The protocol's name.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Channels(version) => version.name(),
            Self::Streams(_) => streams::PROTOCOL,
        }
    }
}

/// The decoder of a client's bytes.
enum Reader {
    /// With the decoder of messages that are text in base64.
    Channels(command::Input, Option<Base64>),
    Streams(Box<Session>, Vec<u8>),
}

/// What the client sent and the process has not got yet.
#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) bytes: Vec<u8>,
    pub(crate) end: bool,
    pub(crate) size: Option<(u16, u16)>,
    pub(crate) leave: Option<Leave>,
}

impl Pending {
    fn note(&mut self, message: &ClientMessage<'_>) {
        match *message {
            ClientMessage::Input(bytes) => self.bytes.extend_from_slice(bytes),
            ClientMessage::EndOfInput => self.end = true,
            ClientMessage::Size { width, height } => self.size = Some((width, height)),
        }
    }

    /// Gives the terminal the size that the client asked for last.
    pub(crate) async fn resize(&mut self, control: &Control) {
        if let Some((width, height)) = self.size.take()
            && let Err(error) = control.resize(width, height).await
        {
            tracing::debug!(error = chain(&error), "terminal not resized");
        }
    }
}

/// A client. The halves of its link are read and written in the arms of its owner's `select!`.
pub(crate) struct Client<S> {
    pub(crate) link: Link<S>,
    reader: Reader,
    outputs: Outputs,
}

impl<S: AsyncRead + AsyncWrite> Client<S> {
    pub(crate) fn new(stream: S, agreed: Agreed, outputs: Outputs) -> Self {
        let (link, reader) = match agreed {
            Agreed::Channels(version) => (
                Link::websocket(stream),
                Reader::Channels(
                    command::Input::new(version),
                    version.is_base64().then(Base64::default),
                ),
            ),
            Agreed::Streams(awaited) => {
                (Link::spdy(stream), Reader::Streams(Box::default(), awaited))
            }
        };
        Self {
            link,
            reader,
            outputs,
        }
    }

    /// Waits until a client of SPDY has opened its streams, as a command's output needs them.
    /// Returns how the client leaves, if it left or broke the protocol meanwhile.
    pub(crate) async fn opens(&mut self, pending: &mut Pending) -> io::Result<Option<Leave>> {
        let opening = timeout(OPENING, async {
            while !self.has_opened() {
                let link = &mut self.link;
                let (hears, writes) = (link.may_read(), link.has_output());
                // Each arm is cancel-safe: bytes were read or written, or not.
                tokio::select! {
                    came = link.reader.read(&mut link.inbox), if hears => match came? {
                        0 => return Ok(Some(Leave::Gone)),
                        count => self.take(count, pending),
                    },
                    count = push(&mut link.writer, &link.outbox), if writes => self.link.pushed(count?),
                }
                if pending.leave.is_some() || pending.bytes.len() > EARLY {
                    return Ok(Some(pending.leave.unwrap_or(Leave::Close(PROTOCOL_ERROR))));
                }
            }
            Ok(None)
        });
        let late = Ok(Some(Leave::Close(PROTOCOL_ERROR)));
        opening.await.unwrap_or(late)
    }

    fn has_opened(&self) -> bool {
        match &self.reader {
            Reader::Channels(..) => true,
            Reader::Streams(session, awaited) => session.has_opened(awaited),
        }
    }

    /// One step: reads from the client, writes to it, passes its input on to the process, or pings
    /// it. While input waits for the process, nothing more is read from the client. Returns
    /// [`Leave::Gone`] if the client closed the connection.
    ///
    /// Cancel-safe: each step is one read, write or tick, which has happened or not.
    pub(crate) async fn step(
        &mut self,
        pending: &mut Pending,
        stdin: &mut Option<Input>,
    ) -> io::Result<Option<Leave>> {
        let link = &mut self.link;
        let (room, idle) = (link.has_room(), pending.bytes.is_empty());
        let (hears, writes) = (link.may_read() && idle, link.has_output());
        // At least one arm is enabled: an empty outbox has room. Each arm is cancel-safe.
        tokio::select! {
            came = link.reader.read(&mut link.inbox), if hears => match came? {
                0 => return Ok(Some(Leave::Gone)),
                count => self.take(count, pending),
            },
            count = push(&mut link.writer, &link.outbox), if writes => self.link.pushed(count?),
            given = give(stdin.as_ref(), &pending.bytes), if !idle => if let Ok(count) = given {
                pending.bytes.drain(..count);
            } else {
                // The process reads no more: further input is lost, as with a shell's pipe.
                *stdin = None;
                pending.bytes.clear();
            },
            _ = link.ping.tick(), if room => self.link.send_ping(),
        }
        Ok(None)
    }

    /// Decodes the first `count` bytes of the inbox.
    pub(crate) fn take(&mut self, count: usize, pending: &mut Pending) {
        pending.leave = match &mut self.reader {
            Reader::Channels(input, base64) => self.link.take(count, |piece| {
                let bytes = match base64 {
                    Some(base64) => base64.take(piece.starts, piece.bytes, piece.ends)?,
                    None => piece.bytes,
                };
                if let Some(message) = input.take(piece.starts, bytes, piece.ends) {
                    pending.note(&message);
                }
                Ok::<_, NotBase64>(())
            }),
            Reader::Streams(session, _) => {
                let mut answers = Vec::new();
                let leave = self.link.take(count, |piece| {
                    let mut rest = piece.bytes;
                    while let (used, Some(message)) = session.take(rest, &mut answers)? {
                        pending.note(&message);
                        rest = &rest[used..];
                    }
                    Ok::<_, Fault>(())
                });
                self.link.tell(&[], &answers);
                leave
            }
        };
    }

    /// Queues output of the process for the client; drops it if the client did not ask for this
    /// channel.
    pub(crate) fn tell(&mut self, channel: u8, bytes: &[u8]) {
        if bytes.is_empty() || !wants(self.outputs, channel) {
            return;
        }
        match &self.reader {
            Reader::Channels(_, None) => self.link.tell(&[channel], bytes),
            Reader::Channels(_, Some(_)) => self.link.tell_text(&Base64::message(channel, bytes)),
            Reader::Streams(session, _) => session.output(channel, bytes, &mut self.link.outbox),
        }
    }

    /// Sends the final status, and waits until the client closes the connection.
    pub(crate) async fn end(mut self, status: &[u8]) -> io::Result<()> {
        match &mut self.reader {
            Reader::Channels(input, base64) => match (input.end(status), base64) {
                (Some(status), None) => self.link.tell(&[ERROR], &status),
                (Some(status), Some(_)) => self.link.tell_text(&Base64::message(ERROR, &status)),
                (None, _) => {}
            },
            Reader::Streams(session, _) => session.end(status, &mut self.link.outbox),
        }
        self.close(Leave::Close(NORMAL)).await
    }

    /// Closes the connection of a client that leaves.
    pub(crate) async fn part(self, leave: Leave) -> io::Result<()> {
        let parted = timeout(LINGER, self.close(leave)).await;
        parted.unwrap_or(Ok(()))
    }

    async fn close(mut self, leave: Leave) -> io::Result<()> {
        if let (Reader::Streams(session, _), Leave::Close(code)) = (&self.reader, leave) {
            session.go_away(code != NORMAL, &mut self.link.outbox);
        }
        self.link.part(leave).await
    }
}

/// Whether a client asked for an output.
fn wants(outputs: Outputs, channel: u8) -> bool {
    match outputs {
        Outputs::Terminal => true,
        Outputs::Pipes { stdout, stderr } => {
            (channel == STDOUT && stdout) || (channel == STDERR && stderr)
        }
    }
}

/// Ends a process's stdin, so that a program that reads it sees its end.
pub(crate) async fn end_input(control: &Control) {
    if let Err(error) = control.end_input().await {
        tracing::debug!(error = chain(&error), "cannot close a process's stdin");
    }
}

async fn give(stdin: Option<&Input>, bytes: &[u8]) -> io::Result<usize> {
    match stdin {
        Some(stdin) => stdin.write(bytes).await,
        None => Ok(bytes.len()),
    }
}

#[cfg(test)]
mod tests;
