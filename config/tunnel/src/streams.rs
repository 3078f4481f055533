//! A remote command over streams of SPDY (Kubernetes, `remotecommand`), as kubectl before 1.31 and
//! older client libraries ask for it.
//!
//! A client opens a stream for each channel that it wants, named by the header `streamtype`. It
//! writes to `stdin` and `resize`, and reads `stdout`, `stderr` and, once, a `Status` from `error`.
//! Input ends when the client ends its half of `stdin`. The channels mean what they mean in
//! [`crate::command`].
//!
//! Enter by [`Session`]: it decodes what the client sends, and encodes output and status.

use crate::command::{ClientMessage, ERROR, MAX_RESIZE, RESIZE, STDERR, STDIN, STDOUT, size};
use crate::spdy::{self, Fault, Frames, Headers, Refused, Streams};

/// The one supported version, which ends with a `Status`; all clients since Kubernetes 1.4 offer
/// it. Version 5 exists for WebSockets only.
pub const PROTOCOL: &str = "v4.channel.k8s.io";
/// The streams' names, by the numbers of their channels.
const NAMES: [&str; 5] = ["stdin", "stdout", "stderr", "error", "resize"];

/// The stream of a channel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stream {
    /// The client has not opened it.
    #[default]
    Awaited,
    /// It has this number, and is open.
    Open(u32),
    /// It is over, and not opened again.
    Over,
}

/// One client's streams: no more than one for each channel.
#[derive(Debug, Default)]
pub struct Session {
    frames: Frames,
    /// By the channels' numbers.
    streams: [Stream; NAMES.len()],
    /// The bytes of the next terminal size that have come.
    size: Vec<u8>,
    /// The last input was returned, and its end is due.
    ending: bool,
    input_ended: bool,
}

impl Session {
    /// Takes bytes from the front of `input` up to the next event: how many, and the event if there
    /// is one. Without an event all of `input` was taken. Of several terminal sizes in one frame
    /// the last counts. Answers to the client are appended to `out`.
    ///
    /// # Errors
    /// The client broke the protocol.
    pub fn take<'a>(
        &mut self,
        input: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Option<ClientMessage<'a>>), Fault> {
        spdy::take(self, input, out)
    }

    /// The channel of an open stream.
    fn channel(&self, stream: u32) -> Option<u8> {
        let mut all = (STDIN..).zip(&self.streams);
        let found = all.find(|(_, own)| **own == Stream::Open(stream));
        found.map(|(channel, _)| channel)
    }

    /// Sizes are JSON objects one after another. They hold no objects themselves, so each ends at
    /// the first closing brace.
    fn resize(&mut self, bytes: &[u8]) -> Option<ClientMessage<'static>> {
        let mut last = None;
        for byte in bytes {
            if self.size.len() < MAX_RESIZE {
                self.size.push(*byte);
            }
            if *byte == b'}' {
                last = size(&self.size).or(last);
                self.size.clear();
            }
        }
        last
    }

    /// Whether the client has opened streams for all of these channels.
    pub fn has_opened(&self, channels: &[u8]) -> bool {
        let opened = |channel: &u8| self.streams.get(usize::from(*channel));
        let mut opened = channels.iter().map(opened);
        opened.all(|stream| stream.is_some_and(|stream| *stream != Stream::Awaited))
    }

    /// Appends output for the client. If it has no open stream for the channel, the bytes are
    /// dropped.
    pub fn output(&self, channel: u8, bytes: &[u8], out: &mut Vec<u8>) {
        if let Some(Stream::Open(stream)) = self.streams.get(usize::from(channel)) {
            spdy::data(*stream, bytes, false, out);
        }
    }

    /// Appends the `Status` of a command that has ended, and ends all streams.
    pub fn end(&mut self, status: &[u8], out: &mut Vec<u8>) {
        for channel in [STDOUT, STDERR, ERROR, STDIN, RESIZE] {
            let place = &mut self.streams[usize::from(channel)];
            if let Stream::Open(stream) = std::mem::replace(place, Stream::Over) {
                let last = if channel == ERROR { status } else { &[] };
                spdy::data(stream, last, true, out);
            }
        }
    }

    /// Says goodbye to the client; `broke` says that it broke the protocol.
    pub fn go_away(&self, broke: bool, out: &mut Vec<u8>) {
        self.frames.go_away(broke, out);
    }
}

impl Streams for Session {
    type Event<'a> = ClientMessage<'a>;

    fn frames(&mut self) -> &mut Frames {
        &mut self.frames
    }

    fn due<'a>(&mut self) -> Option<ClientMessage<'a>> {
        std::mem::take(&mut self.ending).then_some(ClientMessage::EndOfInput)
    }

    /// A new stream becomes that of the channel that it names; each channel has one, and once only.
    fn opened<'a>(
        &mut self,
        stream: u32,
        headers: &Headers,
        ends: bool,
    ) -> Result<Option<ClientMessage<'a>>, Refused> {
        let name = headers.get("streamtype");
        let at = NAMES.iter().position(|own| Some(*own) == name);
        let place = at.and_then(|at| self.streams.get_mut(at));
        let place = place.filter(|place| **place == Stream::Awaited);
        *place.ok_or(Refused)? = Stream::Open(stream);
        self.data(stream, &[], ends)
    }

    fn data<'a>(
        &mut self,
        stream: u32,
        bytes: &'a [u8],
        ends: bool,
    ) -> Result<Option<ClientMessage<'a>>, Refused> {
        Ok(match self.channel(stream) {
            Some(STDIN) if !self.input_ended => {
                self.input_ended = ends;
                if bytes.is_empty() {
                    ends.then_some(ClientMessage::EndOfInput)
                } else {
                    self.ending = ends;
                    Some(ClientMessage::Input(bytes))
                }
            }
            Some(RESIZE) => self.resize(bytes),
            // The client does not write to the other streams, and bytes for a stream that is over
            // may still be on the way.
            _ => None,
        })
    }

    fn reset<'a>(&mut self, stream: u32, _out: &mut Vec<u8>) -> Option<ClientMessage<'a>> {
        let channel = self.channel(stream)?;
        self.streams[usize::from(channel)] = Stream::Over;
        let ends = channel == STDIN && !std::mem::replace(&mut self.input_ended, true);
        ends.then_some(ClientMessage::EndOfInput)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spdy::Why;
    use proptest::prelude::*;

    type Talk = spdy::Talk<Session>;

    fn open(talk: &mut Talk, stream: u32, name: &str) {
        let events = talk.open(stream, &Headers::from([("streamtype", name)]));
        assert!(events.is_empty());
    }

    /// A client with all streams but one for errors: 1 for the status, 3 and 5 for input and
    /// output, 7 for sizes.
    fn opened() -> Talk {
        let mut talk = Talk::default();
        for (stream, name) in [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "resize")] {
            assert!(!talk.session.has_opened(&[STDIN, STDOUT, ERROR, RESIZE]));
            open(&mut talk, stream, name);
        }
        assert!(talk.session.has_opened(&[STDIN, STDOUT, ERROR, RESIZE]));
        assert!(!talk.session.has_opened(&[STDERR]));
        talk.answered.clear();
        talk
    }

    #[test]
    fn each_stream_is_the_channel_of_its_name_and_is_opened_once() {
        let mut talk = opened();
        assert_eq!(talk.send(3, b"ab", false), ["Input([97, 98])"]);
        for other in [1, 5, 9] {
            assert!(talk.send(other, b"ab", true).is_empty(), "{other}");
        }
        for (stream, name) in [(9, "stdout"), (11, "stdlog"), (13, "")] {
            let mut refused = Vec::new();
            spdy::reset(stream, Why::Refused, &mut refused);
            open(&mut talk, stream, name);
            assert_eq!(talk.answered, refused, "{name}");
            talk.answered.clear();
        }
        let mut expected = Vec::new();
        talk.session.output(STDOUT, b"out", &mut talk.answered);
        spdy::data(5, b"out", false, &mut expected);
        assert_eq!(talk.answered, expected);
        talk.session.output(STDERR, b"err", &mut talk.answered);
        assert_eq!(talk.answered, expected, "the client has no stream for it");
    }

    #[test]
    fn input_ends_once_with_its_half_or_with_its_stream() {
        let mut talk = opened();
        assert_eq!(talk.send(3, b"a", true), ["Input([97])", "EndOfInput"]);
        assert!(talk.send(3, b"b", true).is_empty(), "after the end");
        let mut talk = opened();
        assert_eq!(talk.send(3, b"", true), ["EndOfInput"]);
        let mut reset = Vec::new();
        spdy::reset(3, Why::Cancelled, &mut reset);
        assert!(talk.say(&reset).is_empty());
        assert_eq!(opened().say(&reset), ["EndOfInput"]);
    }

    #[test]
    fn the_last_size_of_a_terminal_is_reported_and_a_long_one_costs_no_memory() {
        let mut talk = opened();
        let sizes = b"{\"Width\":1,\"Height\":2}\n{\"Width\":80,\"Height\":24}\n";
        let (half, rest) = sizes.split_at(30);
        assert_eq!(talk.send(7, half, false), ["Size { width: 1, height: 2 }"]);
        let events = talk.send(7, rest, false);
        assert_eq!(events, ["Size { width: 80, height: 24 }"]);
        let events = talk.send(7, sizes, false);
        assert_eq!(events, ["Size { width: 80, height: 24 }"]);
        for _ in 0..100 {
            assert!(talk.send(7, &[b' '; 1000], false).is_empty());
        }
        assert!(talk.session.size.len() <= MAX_RESIZE);
        assert!(talk.send(7, b"}", false).is_empty(), "it was cut");
        assert_eq!(talk.send(7, sizes, false).len(), 1, "and the next is read");
    }

    #[test]
    fn the_status_is_sent_and_every_stream_ends() {
        let mut talk = opened();
        let mut expected = Vec::new();
        spdy::data(5, b"", true, &mut expected);
        spdy::data(1, b"status", true, &mut expected);
        spdy::data(3, b"", true, &mut expected);
        spdy::data(7, b"", true, &mut expected);
        talk.session.end(b"status", &mut talk.answered);
        talk.session.end(b"again", &mut talk.answered);
        talk.session.output(STDOUT, b"late", &mut talk.answered);
        assert_eq!(talk.answered, expected);
        talk.answered.clear();
        talk.session.go_away(true, &mut talk.answered);
        let away = [0x80, 3, 0, 7, 0, 0, 0, 8, 0, 0, 0, 7, 0, 0, 0, 1];
        assert_eq!(talk.answered, away);
    }

    #[test]
    fn pings_are_answered_and_what_a_client_leaves_is_not_written_to() {
        let (mut talk, mut ping) = (opened(), Vec::new());
        spdy::ping(5, &mut ping);
        let mut said = ping.clone();
        spdy::ping(4, &mut said);
        spdy::go_away(0, false, &mut said);
        spdy::reset(5, Why::Cancelled, &mut said);
        assert!(talk.say(&said).is_empty());
        talk.session.output(STDOUT, b"out", &mut talk.answered);
        assert_eq!(talk.answered, ping);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn input_of_a_stream_arrives_whole_and_in_order(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..500), 0..40), cut in 1_usize..700) {
            let (mut talk, mut bytes) = (opened(), Vec::new());
            for piece in &pieces {
                spdy::data(3, piece, false, &mut bytes);
                spdy::data(7, b"{}", false, &mut bytes);
            }
            spdy::data(3, b"", true, &mut bytes);
            let (mut read, mut ends) = (Vec::new(), 0);
            for piece in bytes.chunks(cut) {
                talk.each(piece, |said| match said {
                    ClientMessage::Input(bytes) => read.extend_from_slice(bytes),
                    ClientMessage::EndOfInput => ends += 1,
                    ClientMessage::Size { .. } => unreachable!("no size was sent"),
                });
            }
            prop_assert_eq!((read, ends), (pieces.concat(), 1));
        }
    }
}
