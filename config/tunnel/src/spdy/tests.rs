//! Frames, cut in every way, and each breach of the protocol.

use super::*;
use proptest::prelude::*;

/// A decoder's events, with the pieces of each frame of data joined.
#[derive(Debug, PartialEq, Eq, Clone)]
enum Said {
    Open(u32, Headers, bool),
    Data(u32, Vec<u8>, bool),
    Reset(u32),
    Ping(u32),
    GoAway,
}

fn decode(bytes: &[u8], cut: usize) -> Result<Vec<Said>, Fault> {
    let mut decoder = Decoder::default();
    let mut all: Vec<Said> = Vec::new();
    for piece in bytes.chunks(cut) {
        let mut rest = piece;
        loop {
            let (used, event) = decoder.take(rest)?;
            rest = &rest[used..];
            match event {
                Some(Event::Data {
                    stream,
                    bytes,
                    ends,
                }) => match all.last_mut() {
                    Some(Said::Data(same, known, fin)) if *same == stream && !*fin => {
                        known.extend_from_slice(bytes);
                        *fin = ends;
                    }
                    _ => all.push(Said::Data(stream, bytes.to_vec(), ends)),
                },
                Some(Event::Open {
                    stream,
                    headers,
                    ends,
                }) => all.push(Said::Open(stream, headers, ends)),
                Some(Event::Reset { stream }) => all.push(Said::Reset(stream)),
                Some(Event::Ping(number)) => all.push(Said::Ping(number)),
                Some(Event::GoAway) => all.push(Said::GoAway),
                None => break,
            }
        }
        assert!(rest.is_empty(), "without an event all is taken");
    }
    Ok(all)
}

#[test]
fn each_breach_of_the_protocol_is_a_fault_of_its_own() {
    let syn = |stream: u32| {
        let mut out = Vec::new();
        Opener::default().open(stream, &Headers::default(), &mut out);
        out
    };
    let twice = [syn(3), syn(3)].concat();
    let faults: [(&[u8], Fault); 9] = [
        (&[0x80, 2, 0, 1, 0, 0, 0, 10], Fault::Version(2)),
        (&[0x80, 3, 0, 1, 0, 0, 0, 9], Fault::Length(1)),
        (&[0x80, 3, 0, 1, 0, 0xFF, 0xFF, 0xFF], Fault::Length(1)),
        (&[0x80, 3, 0, 6, 0, 0, 0, 5], Fault::Length(6)),
        (&[0x80, 3, 0, 2, 0, 0, 0, 4, 0, 0, 0, 1], Fault::Reply),
        (&[0, 0, 0, 0, 0, 0, 0, 1, 7], Fault::Stream),
        (&syn(2), Fault::Stream),
        (&twice, Fault::Stream),
        (
            &[0x80, 3, 0, 8, 0, 0, 0, 8, 0, 0, 0, 1, 1, 2, 3, 4],
            Fault::Headers,
        ),
    ];
    for (bytes, fault) in faults {
        for cut in [1, 3, 64] {
            assert_eq!(decode(bytes, cut), Err(fault), "{bytes:x?}");
        }
    }
}

#[test]
fn frames_without_a_use_are_passed_over_and_cost_no_memory() {
    // Settings of 16 MiB, a window, and headers of a stream.
    let mut bytes = vec![0x80, 3, 0, 4, 0, 0xFF, 0xFF, 0xFF];
    bytes.resize(8 + MAX_PAYLOAD, 0);
    bytes.extend([0x80, 3, 0, 9, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 9]);
    ping(7, &mut bytes);
    assert_eq!(decode(&bytes, 4096), Ok(vec![Said::Ping(7)]));
    let mut decoder = Decoder::default();
    for piece in bytes.chunks(4096) {
        drop(decoder.take(piece));
        assert!(decoder.control.capacity() <= 2 * MAX_CONTROL);
    }
}

#[test]
fn an_answer_to_a_stream_has_an_empty_block_of_headers() {
    let (mut replies, mut out) = (Replies::default(), Vec::new());
    // The expander of a client reads the blocks one after another.
    let mut client = Expander::new();
    for stream in [1, 3, 5] {
        out.clear();
        replies.reply(stream, &mut out);
        assert_eq!(out[..4], [0x80, 3, 0, 2]);
        assert_eq!(usize::from(out[7]), out.len() - HEADER);
        assert_eq!(out[8..12], stream.to_be_bytes());
        assert_eq!(client.read(&out[12..]), Ok(Headers::default()));
    }
}

fn said() -> impl Strategy<Value = Said> {
    let bytes = |most| proptest::collection::vec(any::<u8>(), 0..most);
    let headers = ("[a-z]{1,9}", "[!-~]{0,20}");
    prop_oneof![
        headers.prop_map(|(name, value)| Said::Open(0, Headers::from([(&*name, &*value)]), false)),
        (1_u32..9, bytes(9_000), Just(true))
            .prop_map(|(stream, bytes, fin)| Said::Data(stream, bytes, fin)),
        (1_u32..9).prop_map(Said::Reset),
        any::<u32>().prop_map(Said::Ping),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_a_client_sends_is_read_however_it_is_cut(mut all in proptest::collection::vec(said(), 0..8), cut in 1_usize..5_000) {
        let (mut bytes, mut opener, mut next) = (Vec::new(), Opener::default(), 1);
        for one in &mut all {
            match one {
                Said::Open(stream, headers, _) => {
                    *stream = next;
                    next += 2;
                    opener.open(*stream, headers, &mut bytes);
                }
                Said::Data(stream, sent, fin) => data(*stream, sent, *fin, &mut bytes),
                Said::Reset(stream) => reset(*stream, Why::Cancelled, &mut bytes),
                Said::Ping(number) => ping(*number, &mut bytes),
                Said::GoAway => {}
            }
        }
        prop_assert_eq!(decode(&bytes, cut), Ok(all));
    }

    #[test]
    fn no_bytes_make_it_fail_otherwise_than_by_a_fault(bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 1_usize..40) {
        // Cut or whole, the outcome is the same.
        prop_assert_eq!(decode(&bytes, cut), decode(&bytes, bytes.len().max(1)));
    }
}
