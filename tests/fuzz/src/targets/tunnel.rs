//! A client's input through a tunnel to a pod: frames and their content.

use crate::run::{Shape, Target};
use config_tunnel::command::{ClientMessage, Input, STDOUT, Version};
use config_tunnel::forward::{self, Session};
use config_tunnel::spdy::{self, Headers, Opener, Why};
use config_tunnel::streams;
use config_tunnel::websocket::{Decoder, Event, Fault, Kind, Sender, masked_frame};
use std::collections::BTreeMap;

/// The result of a client's bytes, cut into pieces of this size: all input of the command, and the
/// other messages.
fn read(bytes: &[u8], cut: usize) -> Result<(Vec<u8>, Vec<String>), Fault> {
    let (mut decoder, mut command) = (Decoder::new(Sender::Client), Input::new(Version::V5));
    let (mut input, mut other) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(cut.max(1)) {
        let mut piece = piece.to_vec();
        let mut rest = piece.as_mut_slice();
        loop {
            let length = rest.len();
            let (used, event) = decoder.take(rest)?;
            let last = event.is_none();
            assert!(!last || used == length, "without an event all is taken");
            match event {
                Some(Event::Data {
                    starts,
                    bytes,
                    ends,
                }) => match command.take(starts, bytes, ends) {
                    Some(ClientMessage::Input(bytes)) => input.extend_from_slice(bytes),
                    Some(said) => other.push(format!("{said:?}")),
                    None => {}
                },
                Some(event) => other.push(format!("{event:?}")),
                None => {}
            }
            if last {
                break;
            }
            rest = &mut rest[used..];
        }
    }
    Ok((input, other))
}

/// The result of a client's bytes: all input of each connection, further requests, and the answers
/// to the client.
type Forwarded = (BTreeMap<u32, Vec<u8>>, Vec<String>, Vec<u8>);

fn forward(bytes: &[u8], cut: usize) -> Result<Forwarded, spdy::Fault> {
    let mut session = Session::default();
    let (mut input, mut other, mut answered) =
        (BTreeMap::<u32, Vec<u8>>::new(), Vec::new(), Vec::new());
    for piece in bytes.chunks(cut.max(1)) {
        let mut rest = piece;
        while let (used, Some(event)) = session.take(rest, &mut answered)? {
            match event {
                forward::Event::Input {
                    connection,
                    bytes,
                    ends,
                } => {
                    input
                        .entry(connection)
                        .or_default()
                        .extend_from_slice(bytes);
                    if ends {
                        other.push(format!("end of {connection}"));
                    }
                }
                // Each third port is closed, so that refusals are met, too.
                forward::Event::Connect { connection, port } if port.is_multiple_of(3) => {
                    session.refused(connection, "connection refused", &mut answered);
                }
                event @ (forward::Event::Connect { .. } | forward::Event::Dropped { .. }) => {
                    other.push(format!("{event:?}"));
                }
            }
            rest = &rest[used..];
        }
    }
    Ok((input, other, answered))
}

/// Two connections, one of them to a closed port, with input, a ping and both kinds of ends.
fn forwarding() -> Vec<u8> {
    let (mut opener, mut seed) = (Opener::default(), Vec::new());
    for (stream, role, port, id) in [
        (1, "error", "80", "0"),
        (3, "data", "80", "0"),
        (5, "error", "81", "1"),
        (7, "data", "81", "1"),
    ] {
        let headers = Headers::from([("streamtype", role), ("port", port), ("requestid", id)]);
        opener.open(stream, &headers, &mut seed);
    }
    spdy::data(1, b"", true, &mut seed);
    spdy::data(3, b"GET / HTTP/1.0\r\n\r\n", false, &mut seed);
    spdy::ping(1, &mut seed);
    spdy::data(3, b"", true, &mut seed);
    spdy::reset(7, Why::Cancelled, &mut seed);
    seed
}

/// The result of a command's streams: its input, how often that ended, the last size, and the
/// answers to the client.
type Commanded = (Vec<u8>, usize, Option<(u16, u16)>, Vec<u8>);

fn command(bytes: &[u8], cut: usize) -> Result<Commanded, spdy::Fault> {
    let mut session = streams::Session::default();
    let (mut input, mut ends, mut size, mut answered) = (Vec::new(), 0, None, Vec::new());
    for piece in bytes.chunks(cut.max(1)) {
        let mut rest = piece;
        while let (used, Some(said)) = session.take(rest, &mut answered)? {
            match said {
                ClientMessage::Input(bytes) => input.extend_from_slice(bytes),
                ClientMessage::EndOfInput => ends += 1,
                ClientMessage::Size { width, height } => size = Some((width, height)),
            }
            rest = &rest[used..];
        }
    }
    assert!(ends <= 1, "the input ends once");
    session.output(STDOUT, b"out", &mut answered);
    session.end(b"{}", &mut answered);
    Ok((input, ends, size, answered))
}

/// All streams of a command, one twice, with input, a size in two frames, a ping and the end of the
/// input.
fn commanding() -> Vec<u8> {
    let (mut opener, mut seed) = (Opener::default(), Vec::new());
    let names = ["error", "stdin", "stdout", "stderr", "resize", "stdin"];
    for (stream, name) in (1..).step_by(2).zip(names) {
        let headers = Headers::from([("streamtype", name)]);
        opener.open(stream, &headers, &mut seed);
    }
    spdy::data(3, b"echo hello\n", false, &mut seed);
    spdy::data(9, b"{\"Width\":80,", false, &mut seed);
    spdy::data(9, b"\"Height\":24}\n", false, &mut seed);
    spdy::ping(1, &mut seed);
    spdy::reset(7, Why::Cancelled, &mut seed);
    spdy::data(3, b"exit\n", true, &mut seed);
    spdy::go_away(0, false, &mut seed);
    seed
}

pub(super) fn targets() -> Vec<Target> {
    let mut seed = Vec::new();
    for (kind, payload) in [
        (Kind::Binary, &b"\x00echo hello\n"[..]),
        (Kind::Ping, b"ping"),
        (Kind::Binary, b"\x04{\"Width\":80,\"Height\":24}"),
        (Kind::Binary, b"\xff\x00"),
        (Kind::Pong, b""),
        (Kind::Close, b"\x03\xe8"),
    ] {
        masked_frame(kind, payload, [7, 77, 177, 1], &mut seed);
    }
    let mut long = Vec::new();
    masked_frame(Kind::Binary, &[0; 300], [0; 4], &mut long);
    let forwards = Target {
        name: "config-tunnel/forward",
        shape: Shape::Bytes,
        seeds: vec![forwarding()],
        decode: Box::new(|bytes| {
            let whole = forward(bytes, bytes.len());
            assert_eq!(forward(bytes, 1), whole, "the outcome depends on the cut");
            assert_eq!(forward(bytes, 7), whole, "the outcome depends on the cut");
        }),
    };
    let commands = Target {
        name: "config-tunnel/streams",
        shape: Shape::Bytes,
        seeds: vec![commanding()],
        decode: Box::new(|bytes| {
            let whole = command(bytes, bytes.len());
            assert_eq!(command(bytes, 1), whole, "the outcome depends on the cut");
            assert_eq!(command(bytes, 7), whole, "the outcome depends on the cut");
        }),
    };
    vec![
        forwards,
        commands,
        Target {
            name: "config-tunnel/websocket",
            shape: Shape::Bytes,
            seeds: vec![seed, long],
            decode: Box::new(|bytes| {
                let whole = read(bytes, bytes.len());
                assert_eq!(read(bytes, 1), whole, "the outcome depends on the cut");
                assert_eq!(read(bytes, 7), whole, "the outcome depends on the cut");
            }),
        },
    ]
}
