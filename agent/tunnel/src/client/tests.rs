//! A client of SPDY before and after its command runs, and one in base64, without a node.

use super::*;
use config_tunnel::spdy::{self, Headers, Opener};
use config_tunnel::websocket::{self, Kind, masked_frame};
use tokio::io::{AsyncWriteExt as _, DuplexStream};

/// The client's end of a connection, and the node's side of it with input and output.
fn connected() -> (DuplexStream, Client<DuplexStream>) {
    let (stream, served) = tokio::io::duplex(1 << 20);
    let agreed = Agreed::Streams(query::channels("input=1&output=1"));
    let outputs = Outputs::Pipes {
        stdout: true,
        stderr: false,
    };
    (stream, Client::new(served, agreed, outputs))
}

fn opened(streams: &[(u32, &str)]) -> Vec<u8> {
    let (mut opener, mut bytes) = (Opener::default(), Vec::new());
    for (stream, name) in streams {
        let headers = Headers::from([("streamtype", *name)]);
        opener.open(*stream, &headers, &mut bytes);
    }
    bytes
}

#[tokio::test]
async fn a_command_waits_for_the_streams_that_were_asked_for_and_loses_no_early_input() {
    let (mut stream, mut client) = connected();
    let mut bytes = opened(&[(1, "stdin"), (3, "error"), (5, "stdout")]);
    // Input between the streams' beginnings: behind the first of three frames.
    let first = 8 + usize::from(bytes[7]);
    let mut early = Vec::new();
    spdy::data(1, b"early", true, &mut early);
    bytes.splice(first..first, early);
    let (most, last) = bytes.split_at(bytes.len() - 1);
    stream.write_all(most).await.unwrap();
    let mut pending = Pending::default();
    let waits = timeout(Duration::from_millis(1), client.opens(&mut pending)).await;
    assert!(waits.is_err(), "a stream is missing");
    stream.write_all(last).await.unwrap();
    let left = client.opens(&mut pending).await.unwrap();
    assert!(left.is_none(), "{left:?}");
    assert_eq!((&*pending.bytes, pending.end), (&b"early"[..], true));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_opens_too_little_or_says_too_much_before_is_left() {
    let (mut stream, mut client) = connected();
    let bytes = opened(&[(1, "stdin"), (3, "error")]);
    stream.write_all(&bytes).await.unwrap();
    let mut pending = Pending::default();
    let left = client.opens(&mut pending).await.unwrap();
    assert!(
        matches!(left, Some(Leave::Close(PROTOCOL_ERROR))),
        "{left:?}"
    );
    let (_, mut received) = tokio::join!(client.part(Leave::Close(PROTOCOL_ERROR)), async move {
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        received
    });
    let away = received.split_off(received.len() - 16);
    assert_eq!(away, [0x80, 3, 0, 7, 0, 0, 0, 8, 0, 0, 0, 3, 0, 0, 0, 1]);

    let (mut stream, mut client) = connected();
    let mut bytes = opened(&[(1, "stdin")]);
    spdy::data(1, &vec![0; 2 * EARLY], false, &mut bytes);
    stream.write_all(&bytes).await.unwrap();
    let mut pending = Pending::default();
    let left = client.opens(&mut pending).await.unwrap();
    assert!(
        matches!(left, Some(Leave::Close(PROTOCOL_ERROR))),
        "{left:?}"
    );
    assert!(pending.bytes.len() < 2 * EARLY);
}

#[tokio::test]
async fn what_a_client_did_not_ask_for_is_dropped_and_the_end_ends_every_stream() {
    let (mut stream, mut client) = connected();
    let bytes = opened(&[(1, "error"), (3, "stdin"), (5, "stdout"), (7, "stderr")]);
    stream.write_all(&bytes).await.unwrap();
    let mut pending = Pending::default();
    while client.opens(&mut pending).await.unwrap().is_some() {}
    client.link.outbox.clear();
    client.tell(STDERR, b"err");
    client.tell(STDOUT, b"out");
    let mut expected = Vec::new();
    spdy::data(5, b"out", false, &mut expected);
    assert_eq!(client.link.outbox, expected);
    let ended = tokio::spawn(client.end(b"status"));
    let mut received = vec![0; expected.len()];
    stream.read_exact(&mut received).await.unwrap();
    assert_eq!(received, expected);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    let mut status = Vec::new();
    spdy::data(1, b"status", true, &mut status);
    assert!(rest.windows(status.len()).any(|some| some == status));
    drop(stream);
    ended.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_client_in_base64_writes_and_reads_text() {
    let (mut stream, served) = tokio::io::duplex(1 << 16);
    let outputs = Outputs::Pipes {
        stdout: true,
        stderr: false,
    };
    let mut client = Client::new(served, Agreed::Channels(Version::V4Base64), outputs);
    let mut pending = Pending::default();
    let mut frame = Vec::new();
    masked_frame(Kind::Text, b"0bHM=", [9, 8, 7, 6], &mut frame);
    stream.write_all(&frame).await.unwrap();
    client.step(&mut pending, &mut None).await.unwrap();
    assert_eq!(pending.bytes, b"ls");
    client.tell(STDOUT, b"out");
    let mut expected = Vec::new();
    websocket::frame(Kind::Text, b"1", b"b3V0", &mut expected);
    assert_eq!(client.link.outbox, expected);
    client.link.outbox.clear();
    pending.bytes.clear();
    frame.clear();
    masked_frame(Kind::Text, b"0?", [9, 8, 7, 6], &mut frame);
    stream.write_all(&frame).await.unwrap();
    client.step(&mut pending, &mut None).await.unwrap();
    assert!(
        matches!(pending.leave, Some(Leave::Close(PROTOCOL_ERROR))),
        "{:?}",
        pending.leave
    );
}
