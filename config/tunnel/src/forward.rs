//! Connections to ports of a pod, over streams of SPDY (Kubernetes, `portforward`; KEP-4006).
//!
//! A client opens two streams with one request id for each connection: one for data, and one on
//! which it reads why the connection can't be made. Each direction of the data ends by itself, as
//! with TCP.
//!
//! Enter by [`Session`]: it decodes what the client sends to events, and encodes the answers.

use crate::spdy::{self, Fault, Frames, Headers, Refused, Streams, Why};
use std::collections::HashMap;

/// The WebSocket subprotocol: binary messages whose bytes are SPDY frames.
pub const PROTOCOL: &str = "SPDY/3.1+portforward.k8s.io";
/// The subprotocol of SPDY without WebSocket, which kubectl before 1.31 uses.
pub const PLAIN: &str = "portforward.k8s.io";
/// Most streams of a client that wait for the other stream of their pair. kubectl opens both, one
/// after another.
const MAX_WAITING: usize = 64;
/// Longest request id; kubectl uses a counter.
const MAX_ID: usize = 64;

/// What the owner of a session has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Make a connection to a port.
    Connect {
        /// The connection's number.
        connection: u32,
        /// The port.
        port: u16,
    },
    /// Write bytes to a connection; there may be none.
    Input {
        /// The connection's number.
        connection: u32,
        /// The bytes.
        bytes: &'a [u8],
        /// These are the last.
        ends: bool,
    },
    /// Close a connection: the client reset it.
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
    frames: Frames,
    /// By the request's id.
    waiting: HashMap<String, Half>,
    connections: HashMap<u32, Connection>,
}

impl Session {
    /// Takes bytes from the front of `input` up to the next event: how many, and the event if there
    /// is one. Without an event all of `input` was taken. Answers to the client are appended to
    /// `out`.
    ///
    /// # Errors
    /// The client broke the protocol.
    pub fn take<'a>(
        &mut self,
        input: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Option<Event<'a>>), Fault> {
        spdy::take(self, input, out)
    }

    /// Appends output of a connection. If the connection is over, it is dropped.
    pub fn output(&self, connection: u32, bytes: &[u8], out: &mut Vec<u8>) {
        if self
            .connections
            .get(&connection)
            .is_some_and(|own| !own.output_ended)
        {
            spdy::data(connection, bytes, false, out);
        }
    }

    /// Ends the output of a connection. Its stream of errors ends, too: clients wait for that
    /// before they close.
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

    /// Resets a connection that broke.
    pub fn broken(&mut self, connection: u32, out: &mut Vec<u8>) {
        if let Some(own) = self.connections.remove(&connection) {
            spdy::reset(connection, Why::Cancelled, out);
            if !own.output_ended {
                spdy::data(own.errors, &[], true, out);
            }
        }
    }

    /// Ends a connection that can't be made, with the reason for the client.
    pub fn refused(&mut self, connection: u32, why: &str, out: &mut Vec<u8>) {
        if let Some(own) = self.connections.remove(&connection) {
            spdy::data(own.errors, why.as_bytes(), true, out);
            spdy::data(connection, &[], true, out);
        }
    }

    /// Says goodbye to the client; `broke` says that it broke the protocol.
    pub fn go_away(&self, broke: bool, out: &mut Vec<u8>) {
        self.frames.go_away(broke, out);
    }
}

impl Streams for Session {
    type Event<'a> = Event<'a>;

    fn frames(&mut self) -> &mut Frames {
        &mut self.frames
    }

    /// A new stream waits for the other stream of its pair; the second one completes the
    /// connection.
    fn opened<'a>(
        &mut self,
        stream: u32,
        headers: &Headers,
        ends: bool,
    ) -> Result<Option<Event<'a>>, Refused> {
        let (role, port, id) = stream_request(headers).ok_or(Refused)?;
        let fits = match self.waiting.get(id) {
            Some(half) => half.role != role,
            None => self.waiting.len() < MAX_WAITING,
        };
        // A client that ends a stream of data as it opens it can't know whether anybody reads it.
        if !fits || (ends && role == Role::Data) {
            return Err(Refused);
        }
        let Some(other) = self.waiting.remove(id) else {
            self.waiting.insert(id.to_owned(), Half { role, stream });
            return Ok(None);
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
        Ok(Some(Event::Connect { connection, port }))
    }

    fn data<'a>(
        &mut self,
        stream: u32,
        bytes: &'a [u8],
        ends: bool,
    ) -> Result<Option<Event<'a>>, Refused> {
        if let Some(own) = self.connections.get_mut(&stream) {
            if own.input_ended {
                return Ok(None);
            }
            own.input_ended = ends;
            if ends && own.output_ended {
                self.connections.remove(&stream);
            }
            return Ok(Some(Event::Input {
                connection: stream,
                bytes,
                ends,
            }));
        }
        let is_this = |half: &Half| half.stream == stream && half.role == Role::Data;
        if self.waiting.values().any(is_this) {
            // Without its stream of errors, the client could not learn why its data is lost.
            self.waiting.retain(|_, half| half.stream != stream);
            return Err(Refused);
        }
        // The client does not write to a stream of errors, and bytes for a stream that is over may
        // still be on the way.
        Ok(None)
    }

    fn reset<'a>(&mut self, stream: u32, out: &mut Vec<u8>) -> Option<Event<'a>> {
        self.waiting.retain(|_, half| half.stream != stream);
        let own = self.connections.remove(&stream)?;
        if !own.output_ended {
            spdy::data(own.errors, &[], true, out);
        }
        Some(Event::Dropped { connection: stream })
    }
}

/// What a stream is for, by the names of Kubernetes' headers.
fn stream_request(headers: &Headers) -> Option<(Role, u16, &str)> {
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
    use proptest::prelude::*;

    type Talk = spdy::Talk<Session>;

    fn open(talk: &mut Talk, stream: u32, role: &str, port: &str, id: &str) -> Vec<String> {
        let headers = Headers::from([("streamtype", role), ("port", port), ("requestid", id)]);
        talk.open(stream, &headers)
    }

    /// A client with a connection whose streams are 1 and 3.
    fn connected() -> Talk {
        let mut talk = Talk::default();
        assert!(open(&mut talk, 1, "error", "80", "0").is_empty());
        let made = open(&mut talk, 3, "data", "80", "0");
        assert_eq!(made, ["Connect { connection: 3, port: 80 }"]);
        talk.answered.clear();
        talk
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
        let mut talk = connected();
        let input = talk.send(3, b"ask", true);
        assert_eq!(
            input,
            ["Input { connection: 3, bytes: [97, 115, 107], ends: true }"]
        );
        assert!(talk.send(3, b"more", false).is_empty(), "after the end");
        talk.session.output(3, b"answer", &mut talk.answered);
        let mut answer = Vec::new();
        spdy::data(3, b"answer", false, &mut answer);
        assert_eq!(talk.answered, answer, "the other half goes on");
        talk.answered.clear();
        talk.session.end_output(3, &mut talk.answered);
        assert_eq!(talk.answered, ends(&[3, 1]));
        assert!(talk.session.connections.is_empty());

        let mut talk = connected();
        talk.session.end_output(3, &mut talk.answered);
        talk.session.end_output(3, &mut talk.answered);
        assert_eq!(talk.answered, ends(&[3, 1]), "it ends once");
        assert_eq!(
            talk.send(3, b"", true).len(),
            1,
            "input goes on after the output's end"
        );
        assert!(talk.session.connections.is_empty());
    }

    #[test]
    fn a_port_that_refuses_is_reported_on_the_stream_of_errors() {
        let mut talk = connected();
        talk.session
            .refused(3, "connection refused", &mut talk.answered);
        let mut expected = Vec::new();
        spdy::data(1, b"connection refused", true, &mut expected);
        expected.extend(ends(&[3]));
        assert_eq!(talk.answered, expected);
        assert!(talk.send(3, b"late", false).is_empty());
    }

    #[test]
    fn a_connection_that_a_side_drops_leaves_nothing() {
        let mut talk = connected();
        let mut reset = Vec::new();
        spdy::reset(3, Why::Cancelled, &mut reset);
        assert_eq!(talk.say(&reset), ["Dropped { connection: 3 }"]);
        assert_eq!(talk.answered, ends(&[1]));
        assert!(talk.session.connections.is_empty());

        let mut talk = connected();
        talk.session.broken(3, &mut talk.answered);
        assert_eq!(talk.answered, [reset, ends(&[1])].concat());
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
            assert!(open(&mut talk, 1, role, port, id).is_empty());
            assert_eq!(talk.answered, refused, "{role} {port} {id}");
        }
        // Two streams of one kind are no pair, and what comes before the pair is whole has no
        // place.
        let mut talk = Talk::default();
        open(&mut talk, 1, "data", "80", "0");
        talk.answered.clear();
        open(&mut talk, 3, "data", "80", "0");
        assert_eq!(talk.answered[8..12], [0, 0, 0, 3]);
        talk.answered.clear();
        assert!(talk.send(1, b"early", false).is_empty());
        assert_eq!(talk.answered, refused);
        assert!(talk.session.waiting.is_empty());
    }

    #[test]
    fn streams_without_their_other_are_bounded() {
        let mut talk = Talk::default();
        for number in 0..200 {
            open(
                &mut talk,
                2 * number + 1,
                "error",
                "80",
                &number.to_string(),
            );
        }
        assert_eq!(talk.session.waiting.len(), MAX_WAITING);
    }

    #[test]
    fn a_ping_is_answered() {
        let (mut talk, mut ping, mut other) = (Talk::default(), Vec::new(), Vec::new());
        spdy::ping(5, &mut ping);
        spdy::ping(4, &mut other);
        talk.say(&[ping.clone(), other].concat());
        assert_eq!(talk.answered, ping);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn input_arrives_whole_and_in_order_on_every_connection(pieces in proptest::collection::vec((0_u32..3, proptest::collection::vec(any::<u8>(), 0..500)), 0..40), cut in 1_usize..700) {
            let (mut talk, mut bytes) = (Talk::default(), Vec::new());
            let mut sent = vec![Vec::new(); 3];
            for connection in 0..3 {
                let id = connection.to_string();
                open(&mut talk, 4 * connection + 1, "error", "80", &id);
                prop_assert_eq!(open(&mut talk, 4 * connection + 3, "data", "80", &id).len(), 1);
            }
            for (connection, piece) in &pieces {
                spdy::data(4 * connection + 3, piece, false, &mut bytes);
                sent[usize::try_from(*connection).unwrap()].extend_from_slice(piece);
            }
            let mut read = vec![Vec::new(); 3];
            for piece in bytes.chunks(cut) {
                talk.each(piece, |event| {
                    let Event::Input { connection, bytes, .. } = event else {
                        unreachable!("nothing but input was sent")
                    };
                    read[usize::try_from((connection - 3) / 4).unwrap()].extend_from_slice(bytes);
                });
            }
            prop_assert_eq!(read, sent);
        }
    }
}
