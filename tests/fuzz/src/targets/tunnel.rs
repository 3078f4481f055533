//! What a client sends through a tunnel to a pod: frames, and what stands in them.

use crate::run::{Shape, Target};
use config_tunnel::command::{Input, Said, Version};
use config_tunnel::websocket::{Decoder, Event, Fault, Kind, Sender, masked_frame};

/// What comes of a client's bytes, cut into pieces of this size: all input of the command, and what else was said.
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
                    Some(Said::Input(bytes)) => input.extend_from_slice(bytes),
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
    vec![Target {
        name: "config-tunnel/websocket",
        shape: Shape::Bytes,
        seeds: vec![seed, long],
        decode: Box::new(|bytes| {
            let whole = read(bytes, bytes.len());
            assert_eq!(read(bytes, 1), whole, "the outcome depends on the cut");
            assert_eq!(read(bytes, 7), whole, "the outcome depends on the cut");
        }),
    }]
}
