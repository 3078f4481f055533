//! The server's side of one SPDY connection, whatever its streams are for: it decodes frames,
//! accepts and refuses streams, answers pings and says goodbye.
//!
//! Enter by [`take`]: it decodes what the client sends, and passes each event of a stream to the
//! [`Streams`] of the connection.

use super::{Decoder, Event, Fault, Headers, Replies, Why, go_away, pong, reset};

/// The frames of one connection, in both directions.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    decoder: Decoder,
    replies: Replies,
}

impl Frames {
    /// Says goodbye; `broke` says that the client broke the protocol.
    pub(crate) fn go_away(&self, broke: bool, out: &mut Vec<u8>) {
        go_away(self.decoder.last, broke, out);
    }
}

/// A stream is not accepted: [`take`] resets it with [`Why::Refused`].
#[derive(Debug)]
pub(crate) struct Refused;

/// One use of SPDY: what the streams of a connection are for. The methods are called in the order
/// of the client's frames; each may return one event for the session's owner.
pub(crate) trait Streams {
    /// What the session's owner has to do.
    type Event<'a>: std::fmt::Debug;

    /// The frames that carry the streams.
    fn frames(&mut self) -> &mut Frames;

    /// An event that is due before the next frame is read.
    fn due<'a>(&mut self) -> Option<Self::Event<'a>> {
        None
    }

    /// The client opens a stream; `ends` says that it writes nothing to it. The answer to the
    /// client is written by [`take`].
    ///
    /// # Errors
    /// There is no use for this stream.
    fn opened<'a>(
        &mut self,
        stream: u32,
        headers: &Headers,
        ends: bool,
    ) -> Result<Option<Self::Event<'a>>, Refused>;

    /// Some bytes of a stream; `ends` says that they are the last. The stream may be over, or never
    /// have been opened.
    ///
    /// # Errors
    /// Data for a stream that can't take it; [`take`] resets the stream.
    fn data<'a>(
        &mut self,
        stream: u32,
        bytes: &'a [u8],
        ends: bool,
    ) -> Result<Option<Self::Event<'a>>, Refused>;

    /// The client reset a stream, which may be over, or never have been opened. Frames for other
    /// streams are appended to `out`.
    fn reset<'a>(&mut self, stream: u32, out: &mut Vec<u8>) -> Option<Self::Event<'a>>;
}

/// Takes bytes from the front of `input` up to the next event: how many, and the event if there is
/// one. Without an event all of `input` was taken. Answers to the client are appended to `out`.
///
/// # Errors
/// As [`Decoder::take`]. A stream that is not accepted is no error, and is reset.
pub(crate) fn take<'a, S: Streams>(
    streams: &mut S,
    input: &'a [u8],
    out: &mut Vec<u8>,
) -> Result<(usize, Option<S::Event<'a>>), Fault> {
    if let Some(event) = streams.due() {
        return Ok((0, Some(event)));
    }
    let mut used = 0;
    loop {
        let (count, frame) = streams.frames().decoder.take(&input[used..])?;
        used += count;
        let Some(frame) = frame else {
            return Ok((used, None));
        };
        let event = match frame {
            Event::Open {
                stream,
                headers,
                ends,
            } => {
                let opened = streams.opened(stream, &headers, ends);
                if opened.is_ok() {
                    streams.frames().replies.reply(stream, out);
                }
                refuse(stream, opened, out)
            }
            Event::Data {
                stream,
                bytes,
                ends,
            } => refuse(stream, streams.data(stream, bytes, ends), out),
            Event::Reset { stream } => streams.reset(stream, out),
            Event::Ping(number) => {
                pong(number, out);
                None
            }
            // The client opens no more streams; those that are open go on.
            Event::GoAway => None,
        };
        if event.is_some() {
            return Ok((used, event));
        }
    }
}

/// Resets a stream that was refused.
fn refuse<T>(stream: u32, taken: Result<Option<T>, Refused>, out: &mut Vec<u8>) -> Option<T> {
    taken.unwrap_or_else(|Refused| {
        reset(stream, Why::Refused, out);
        None
    })
}
