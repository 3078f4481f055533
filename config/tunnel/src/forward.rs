//! Connections to ports of a pod, over streams of SPDY (Kubernetes, `portforward`; KEP-4006).
//!
//! A client opens two streams for each connection, which its request's id joins: one for errors, on which it reads why the
//! connection can't be made, and one for data. Each half of the data ends by itself, as the halves of a TCP connection do.
//!
//! Enter by [`Session`]: it reads what the client sends and says what is to be done, and writes what the client is to be told.

use crate::spdy::{self, Decoder, Fault, Headers, Replies, Why};
use std::collections::HashMap;

/// The WebSocket subprotocol: SPDY's frames are the bytes of its binary messages.
pub const PROTOCOL: &str = "SPDY/3.1+portforward.k8s.io";
/// The protocol of a connection that is SPDY itself, as kubectl before 1.31 asks for it.
pub const PLAIN: &str = "portforward.k8s.io";
/// Streams of a client at once that wait for the other of their pair. kubectl opens both, one after another.
const MOST_WAITING: usize = 64;
/// Longest id of a request; kubectl counts.
const MAX_ID: usize = 64;

/// What a client wants.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A connection to a port.
    Connect {
        /// The connection's number.
        connection: u32,
        /// Which port.
        port: u16,
    },
    /// Some bytes for a connection; may be none.
    Input {
        /// The connection's number.
        connection: u32,
        /// The bytes.
        bytes: &'a [u8],
        /// No more come.
        ends: bool,
    },
    /// Nothing more of a connection, in either direction.
    Dropped {
        /// The connection's number.
        connection: u32,
    },
}

/// What a stream is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Error,
    Data,
}

/// A stream that waits for the other of its pair.
#[derive(Debug)]
struct Half {
    role: Role,
    stream: u32,
}

/// A connection, by the number of its stream of data.
#[derive(Debug)]
struct Connection {
    /// Its stream of errors.
    errors: u32,
    input_ended: bool,
    output_ended: bool,
}

/// One client's connections.
#[derive(Debug, Default)]
pub struct Session {
    decoder: Decoder,
    replies: Replies,
    /// By the request's id.
    waiting: HashMap<String, Half>,
    connections: HashMap<u32, Connection>,
}

impl Session {
    /// Takes bytes from the front of `input` up to the next event: how many, and the event if there is one. Without an event
    /// all of `input` was taken. What the client is to be told is appended to `out`.
    ///
    /// # Errors
    /// The client broke the protocol.
    pub fn take<'a>(
        &mut self,
        input: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Option<Event<'a>>), Fault> {
        let mut used = 0;
        loop {
            let (count, event) = self.decoder.take(&input[used..])?;
            used += count;
            let Some(event) = event else {
                return Ok((used, None));
            };
            let event = match event {
                spdy::Event::Open {
                    stream,
                    headers,
                    ends,
                } => self.open(stream, &headers, ends, out),
                spdy::Event::Data {
                    stream,
                    bytes,
                    ends,
                } => self.data(stream, bytes, ends, out),
                spdy::Event::Reset { stream } => self.dropped(stream, out),
                spdy::Event::Ping(number) => {
                    spdy::pong(number, out);
                    None
                }
                // It opens no more; what is open goes on.
                spdy::Event::GoAway => None,
            };
            if event.is_some() {
                return Ok((used, event));
            }
        }
    }

    /// A new stream: accepted and, with the other of its pair, a connection; or refused.
    fn open(
        &mut self,
        stream: u32,
        headers: &Headers,
        ends: bool,
        out: &mut Vec<u8>,
    ) -> Option<Event<'static>> {
        let Some((role, port, id)) = asked(headers) else {
            spdy::reset(stream, Why::Refused, out);
            return None;
        };
        let fits = match self.waiting.get(id) {
            Some(half) => half.role != role,
            None => self.waiting.len() < MOST_WAITING,
        };
        // Who ends a stream of data as he opens it can't know whether anybody reads it.
        if !fits || (ends && role == Role::Data) {
            spdy::reset(stream, Why::Refused, out);
            return None;
        }
        self.replies.reply(stream, out);
        let Some(other) = self.waiting.remove(id) else {
            self.waiting.insert(id.to_owned(), Half { role, stream });
            return None;
        };
        let (connection, errors) = match role {
            Role::Data => (stream, other.stream),
            Role::Error => (other.stream, stream),
        };
        let made = Connection {
            errors,
            input_ended: false,
            output_ended: false,
        };
        self.connections.insert(connection, made);
        Some(Event::Connect { connection, port })
    }

    fn data<'a>(
        &mut self,
        stream: u32,
        bytes: &'a [u8],
        ends: bool,
        out: &mut Vec<u8>,
    ) -> Option<Event<'a>> {
        if let Some(own) = self.connections.get_mut(&stream) {
            if own.input_ended {
                return None;
            }
            own.input_ended = ends;
            if ends && own.output_ended {
                self.connections.remove(&stream);
            }
            return Some(Event::Input {
                connection: stream,
                bytes,
                ends,
            });
        }
        let is_this = |half: &Half| half.stream == stream && half.role == Role::Data;
        if self.waiting.values().any(is_this) {
            // Nobody could be told why what it sent is lost.
            self.waiting.retain(|_, half| half.stream != stream);
            spdy::reset(stream, Why::Refused, out);
        }
        // A stream of errors is not for the client to write to, and one that is over may have bytes on the way.
        None
    }

    fn dropped(&mut self, stream: u32, out: &mut Vec<u8>) -> Option<Event<'static>> {
        self.waiting.retain(|_, half| half.stream != stream);
        let own = self.connections.remove(&stream)?;
        if !own.output_ended {
            spdy::data(own.errors, &[], true, out);
        }
        Some(Event::Dropped { connection: stream })
    }

    /// Bytes of a connection, for the client. Those of one that is over are dropped.
    pub fn output(&self, connection: u32, bytes: &[u8], out: &mut Vec<u8>) {
        if self
            .connections
            .get(&connection)
            .is_some_and(|own| !own.output_ended)
        {
            spdy::data(connection, bytes, false, out);
        }
    }

    /// A connection's program writes no more. Its errors end, too: a client waits for that before it lets go.
    pub fn end_output(&mut self, connection: u32, out: &mut Vec<u8>) {
        let Some(own) = self.connections.get_mut(&connection) else {
            return;
        };
        if !std::mem::replace(&mut own.output_ended, true) {
            spdy::data(connection, &[], true, out);
            spdy::data(own.errors, &[], true, out);
        }
        if own.input_ended {
            self.connections.remove(&connection);
        }
    }

    /// A connection broke: both of its halves end at once.
    pub fn broken(&mut self, connection: u32, out: &mut Vec<u8>) {
        if let Some(own) = self.connections.remove(&connection) {
            spdy::reset(connection, Why::Cancelled, out);
            if !own.output_ended {
                spdy::data(own.errors, &[], true, out);
            }
        }
    }

    /// A connection can't be made: the client is told why.
    pub fn refused(&mut self, connection: u32, why: &str, out: &mut Vec<u8>) {
        if let Some(own) = self.connections.remove(&connection) {
            spdy::data(own.errors, why.as_bytes(), true, out);
            spdy::data(connection, &[], true, out);
        }
    }

    /// The connection with the client is left; `broke` says that the client broke the protocol.
    pub fn go_away(&self, broke: bool, out: &mut Vec<u8>) {
        spdy::go_away(self.decoder.last(), broke, out);
    }
}

/// What a stream is for, by the names of Kubernetes' headers.
fn asked(headers: &Headers) -> Option<(Role, u16, &str)> {
    let role = match headers.get("streamtype")? {
        "error" => Role::Error,
        "data" => Role::Data,
        _ => return None,
    };
    let port = headers.get("port")?.parse().ok().filter(|port| *port > 0)?;
    let id = headers.get("requestid")?;
    (!id.is_empty() && id.len() <= MAX_ID).then_some((role, port, id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spdy::Opener;
    use proptest::prelude::*;

    /// A client and the session that serves it.
    #[derive(Default)]
    struct Talk {
        session: Session,
        opener: Opener,
        told: Vec<u8>,
    }

    impl Talk {
        /// The result of a client's bytes.
        fn say(&mut self, bytes: &[u8]) -> Vec<String> {
            let (mut all, mut rest) = (Vec::new(), bytes);
            while let (used, Some(event)) = self.session.take(rest, &mut self.told).unwrap() {
                all.push(format!("{event:?}"));
                rest = &rest[used..];
            }
            all
        }

        fn open(&mut self, stream: u32, role: &str, port: &str, id: &str) -> Vec<String> {
            let headers = Headers::from([("streamtype", role), ("port", port), ("requestid", id)]);
            let mut bytes = Vec::new();
            self.opener.open(stream, &headers, &mut bytes);
            self.say(&bytes)
        }

        /// A connection whose streams are 1 and 3.
        fn connected() -> Self {
            let mut talk = Self::default();
            assert!(talk.open(1, "error", "80", "0").is_empty());
            let made = talk.open(3, "data", "80", "0");
            assert_eq!(made, ["Connect { connection: 3, port: 80 }"]);
            talk.told.clear();
            talk
        }

        fn send(&mut self, stream: u32, bytes: &[u8], ends: bool) -> Vec<String> {
            let mut frame = Vec::new();
            spdy::data(stream, bytes, ends, &mut frame);
            self.say(&frame)
        }
    }

    fn ends(streams: &[u32]) -> Vec<u8> {
        let mut out = Vec::new();
        for stream in streams {
            spdy::data(*stream, &[], true, &mut out);
        }
        out
    }

    #[test]
    fn each_half_of_a_connection_ends_by_itself() {
        let mut talk = Talk::connected();
        let input = talk.send(3, b"ask", true);
        assert_eq!(
            input,
            ["Input { connection: 3, bytes: [97, 115, 107], ends: true }"]
        );
        assert!(talk.send(3, b"more", false).is_empty(), "after the end");
        talk.session.output(3, b"answer", &mut talk.told);
        let mut answer = Vec::new();
        spdy::data(3, b"answer", false, &mut answer);
        assert_eq!(talk.told, answer, "the other half goes on");
        talk.told.clear();
        talk.session.end_output(3, &mut talk.told);
        assert_eq!(talk.told, ends(&[3, 1]));
        assert!(talk.session.connections.is_empty());

        let mut talk = Talk::connected();
        talk.session.end_output(3, &mut talk.told);
        talk.session.end_output(3, &mut talk.told);
        assert_eq!(talk.told, ends(&[3, 1]), "it ends once");
        assert_eq!(
            talk.send(3, b"", true).len(),
            1,
            "input goes on after the output's end"
        );
        assert!(talk.session.connections.is_empty());
    }

    #[test]
    fn a_port_that_refuses_is_told_on_the_stream_of_errors() {
        let mut talk = Talk::connected();
        talk.session
            .refused(3, "connection refused", &mut talk.told);
        let mut told = Vec::new();
        spdy::data(1, b"connection refused", true, &mut told);
        told.extend(ends(&[3]));
        assert_eq!(talk.told, told);
        assert!(talk.send(3, b"late", false).is_empty());
    }

    #[test]
    fn a_connection_that_a_side_drops_leaves_nothing() {
        let mut talk = Talk::connected();
        let mut reset = Vec::new();
        spdy::reset(3, Why::Cancelled, &mut reset);
        assert_eq!(talk.say(&reset), ["Dropped { connection: 3 }"]);
        assert_eq!(talk.told, ends(&[1]));
        assert!(talk.session.connections.is_empty());

        let mut talk = Talk::connected();
        talk.session.broken(3, &mut talk.told);
        assert_eq!(talk.told, [reset, ends(&[1])].concat());
        assert!(talk.session.connections.is_empty());
    }

    #[test]
    fn a_stream_that_asks_for_nothing_known_is_refused() {
        let mut refused = Vec::new();
        spdy::reset(1, Why::Refused, &mut refused);
        for (role, port, id) in [
            ("other", "80", "0"),
            ("data", "0", "0"),
            ("data", "65536", "0"),
            ("data", "http", "0"),
            ("data", "80", ""),
            ("error", "80", &"9".repeat(MAX_ID + 1)),
        ] {
            let mut talk = Talk::default();
            assert!(talk.open(1, role, port, id).is_empty());
            assert_eq!(talk.told, refused, "{role} {port} {id}");
        }
        // Two streams of one kind are no pair, and what comes before the pair is whole has no place.
        let mut talk = Talk::default();
        talk.open(1, "data", "80", "0");
        talk.told.clear();
        talk.open(3, "data", "80", "0");
        assert_eq!(talk.told[8..12], [0, 0, 0, 3]);
        talk.told.clear();
        assert!(talk.send(1, b"early", false).is_empty());
        assert_eq!(talk.told, refused);
        assert!(talk.session.waiting.is_empty());
    }

    #[test]
    fn streams_without_their_other_are_bounded() {
        let mut talk = Talk::default();
        for number in 0..200 {
            talk.open(2 * number + 1, "error", "80", &number.to_string());
        }
        assert_eq!(talk.session.waiting.len(), MOST_WAITING);
    }

    #[test]
    fn a_ping_is_answered() {
        let (mut talk, mut ping, mut other) = (Talk::default(), Vec::new(), Vec::new());
        spdy::ping(5, &mut ping);
        spdy::ping(4, &mut other);
        talk.say(&[ping.clone(), other].concat());
        assert_eq!(talk.told, ping);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn input_arrives_whole_and_in_order_on_every_connection(pieces in proptest::collection::vec((0_u32..3, proptest::collection::vec(any::<u8>(), 0..500)), 0..40), cut in 1_usize..700) {
            let (mut talk, mut bytes) = (Talk::default(), Vec::new());
            let mut sent = vec![Vec::new(); 3];
            for connection in 0..3 {
                let id = connection.to_string();
                talk.open(4 * connection + 1, "error", "80", &id);
                prop_assert_eq!(talk.open(4 * connection + 3, "data", "80", &id).len(), 1);
            }
            for (connection, piece) in &pieces {
                spdy::data(4 * connection + 3, piece, false, &mut bytes);
                sent[usize::try_from(*connection).unwrap()].extend_from_slice(piece);
            }
            let mut read = vec![Vec::new(); 3];
            for piece in bytes.chunks(cut) {
                let mut rest = piece;
                while let (used, Some(event)) = talk.session.take(rest, &mut talk.told).unwrap() {
                    let Event::Input { connection, bytes, .. } = event else {
                        unreachable!("nothing but input was sent")
                    };
                    read[usize::try_from((connection - 3) / 4).unwrap()].extend_from_slice(bytes);
                    rest = &rest[used..];
                }
            }
            prop_assert_eq!(read, sent);
        }
    }
}
