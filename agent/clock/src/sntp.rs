//! The packets of SNTP: one request, and what an answer must be to count.

use std::time::Duration;

/// Bytes of a packet without extensions.
pub const PACKET: usize = 48;
/// Largest answer that is read; extensions after the packet are ignored.
pub const MAX_ANSWER: usize = 512;
/// Seconds from 1900, where NTP begins, to 1970.
const UNIX: u64 = 2_208_988_800;
/// Seconds of an era: NTP's seconds have 32 bits.
const ERA: u64 = 1 << 32;
/// Largest root distance of a usable answer, from its reference clock to here (RFC 5905: MAXDIST,
/// with room for bad networks).
const DISTANCE: Duration = Duration::from_secs(3);
/// Longest round trip of a usable answer.
const DELAY: Duration = Duration::from_secs(3);

/// Why an answer is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Fewer bytes than a packet has.
    #[error("the answer has {0} bytes, an SNTP packet has {PACKET}")]
    Truncated(usize),
    /// More bytes than an answer may have.
    #[error("the answer has {0} bytes, more than {MAX_ANSWER}")]
    TooLong(usize),
    /// Not an answer of a server, or of another version.
    #[error("the answer is not a server's of version 3 or 4")]
    Mode,
    /// Not the answer to this request: a guess, or an old answer.
    #[error("the answer is not to the request that was sent")]
    Origin,
    /// The server refuses further requests (RFC 5905, 7.4: kiss-o'-death).
    #[error("the server sends a kiss of death: {0}")]
    Kiss(String),
    /// The server reports that its own clock is not synchronised.
    #[error("the server is not synchronised")]
    Unsynchronised,
    /// Times that cannot be.
    #[error("the answer's times contradict each other")]
    Times,
    /// The server is too far from a reference clock, or the round trip took too long.
    #[error("the answer is too inexact: the server's clock, or the round trip, is bad")]
    Uncertain,
}

/// The clock's offset from a server's, by one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// By how much the clock must be moved, nanoseconds.
    pub offset: i64,
    /// The round trip without the server's own time (RFC 5905, section 8: delta).
    pub delay: Duration,
}

/// A request. Its transmit time is a random number: it does not disclose the machine's clock, and a
/// sender that has not seen it cannot forge an answer.
pub fn request(nonce: u64) -> [u8; PACKET] {
    let mut packet = [0; PACKET];
    // No leap warning, version 4, client.
    packet[0] = 0b00_100_011;
    packet[40..48].copy_from_slice(&nonce.to_be_bytes());
    packet
}

/// Reads an answer to the request with this nonce, sent at `sent` and answered after `took`; times
/// are since 1970. Seconds are of the era that is nearest to `floor` and what follows it.
///
/// Total over all bytes. Of a packet's fields the origin is checked first, so that a sender who did
/// not see the request is ignored, whatever else the packet says, even with a kiss of death.
///
/// # Errors
/// [`Fault`]: the bytes are no answer to this request, or the server says that its time is not to
/// be used.
pub fn read(
    bytes: &[u8],
    nonce: u64,
    sent: Duration,
    took: Duration,
    floor: Duration,
) -> Result<Sample, Fault> {
    if bytes.len() > MAX_ANSWER {
        return Err(Fault::TooLong(bytes.len()));
    }
    let Some(packet) = bytes.first_chunk::<PACKET>() else {
        return Err(Fault::Truncated(bytes.len()));
    };
    if long(packet, 24) != nonce {
        return Err(Fault::Origin);
    }
    let (leap, version, mode) = (packet[0] >> 6, (packet[0] >> 3) & 7, packet[0] & 7);
    if mode != 4 || !(3..=4).contains(&version) {
        return Err(Fault::Mode);
    }
    if packet[1] == 0 {
        let code = packet[12..16]
            .iter()
            .filter(|b| b.is_ascii_graphic())
            .map(|b| char::from(*b))
            .collect();
        return Err(Fault::Kiss(code));
    }
    if leap == 3 || packet[1] > 15 {
        return Err(Fault::Unsynchronised);
    }
    let (received, transmitted) = (long(packet, 32), long(packet, 40));
    if received == 0 || transmitted == 0 {
        return Err(Fault::Times);
    }
    let (received, transmitted) = (moment(received, floor), moment(transmitted, floor));
    let within = transmitted.checked_sub(received).ok_or(Fault::Times)?;
    let delay = took.checked_sub(within).ok_or(Fault::Times)?;
    let distance = short(packet, 4) / 2 + short(packet, 8) + delay / 2;
    if delay > DELAY || distance > DISTANCE {
        return Err(Fault::Uncertain);
    }
    let there = nanos(received) - nanos(sent);
    let back = nanos(transmitted) - nanos(sent.saturating_add(took));
    let offset = i64::try_from(i128::midpoint(there, back)).map_err(|_too_far| Fault::Times)?;
    Ok(Sample { offset, delay })
}

fn nanos(time: Duration) -> i128 {
    i128::try_from(time.as_nanos()).unwrap_or(i128::MAX / 4)
}

fn long(packet: &[u8; PACKET], at: usize) -> u64 {
    packet
        .get(at..at + 8)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, u64::from_be_bytes)
}

/// Seconds and fractions of 16 bits each.
fn short(packet: &[u8; PACKET], at: usize) -> Duration {
    let raw = packet
        .get(at..at + 4)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(u32::MAX, u32::from_be_bytes);
    Duration::from_nanos((u64::from(raw) * 1_000_000_000) >> 16)
}

/// Seconds and fractions of 32 bits each, since 1970, in the era that is nearest to `floor` and
/// what follows it.
fn moment(stamp: u64, floor: Duration) -> Duration {
    let seconds = ((stamp >> 32) + ERA - UNIX) % ERA;
    let eras = floor
        .as_secs()
        .saturating_sub(seconds + ERA / 2)
        .div_ceil(ERA);
    let nanos = ((stamp & 0xffff_ffff) * 1_000_000_000) >> 32;
    let seconds = seconds.saturating_add(eras.saturating_mul(ERA));
    Duration::from_secs(seconds).saturating_add(Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NONCE: u64 = 0x0123_4567_89ab_cdef;
    const NOW: Duration = Duration::from_secs(1_795_300_000);
    const FLOOR: Duration = Duration::from_secs(1_795_000_000);

    fn stamp(time: Duration) -> [u8; 8] {
        let seconds = (time.as_secs() + UNIX) % ERA;
        let fraction = (u64::from(time.subsec_nanos()) << 32) / 1_000_000_000;
        ((seconds << 32) | fraction).to_be_bytes()
    }

    /// What a good server whose clock is at `time` answers.
    fn answer(nonce: u64, time: Duration) -> [u8; PACKET] {
        let mut packet = [0; PACKET];
        packet[0] = 0b00_100_100;
        packet[1] = 2;
        packet[24..32].copy_from_slice(&nonce.to_be_bytes());
        packet[32..40].copy_from_slice(&stamp(time));
        packet[40..48].copy_from_slice(&stamp(time));
        packet
    }

    fn heard(packet: &[u8]) -> Result<Sample, Fault> {
        read(packet, NONCE, NOW, Duration::from_millis(20), FLOOR)
    }

    fn changed(change: impl FnOnce(&mut [u8; PACKET])) -> Result<Sample, Fault> {
        let mut packet = answer(NONCE, NOW + Duration::from_secs(5));
        change(&mut packet);
        heard(&packet)
    }

    #[test]
    fn a_good_answer_tells_offset_and_delay() {
        let sample = changed(|_| {}).unwrap();
        assert_eq!(sample.delay, Duration::from_millis(20));
        assert!((sample.offset - 4_990_000_000).abs() < 1000, "{sample:?}");
        let behind = heard(&answer(NONCE, Duration::from_secs(1_795_299_995))).unwrap();
        assert!((behind.offset + 5_010_000_000).abs() < 1000, "{behind:?}");
        assert_eq!(request(NONCE)[40..], NONCE.to_be_bytes());
    }

    #[test]
    fn each_wrong_answer_is_refused_for_its_reason() {
        assert_eq!(heard(&[0; 47]), Err(Fault::Truncated(47)));
        assert_eq!(
            heard(&[0; MAX_ANSWER + 1]),
            Err(Fault::TooLong(MAX_ANSWER + 1))
        );
        assert_eq!(
            changed(|packet| packet[0] = 0b00_100_011),
            Err(Fault::Mode),
            "a client's"
        );
        assert_eq!(
            changed(|packet| packet[0] = 0b00_010_100),
            Err(Fault::Mode),
            "version 2"
        );
        assert_eq!(changed(|packet| packet[31] ^= 1), Err(Fault::Origin));
        let kiss = |packet: &mut [u8; PACKET]| {
            packet[1] = 0;
            packet[12..16].copy_from_slice(b"DENY");
        };
        assert_eq!(changed(kiss), Err(Fault::Kiss("DENY".to_owned())));
        let forged = |packet: &mut [u8; PACKET]| {
            kiss(packet);
            packet[24] ^= 1;
        };
        assert_eq!(
            changed(forged),
            Err(Fault::Origin),
            "who did not see the request cannot send us away"
        );
        assert_eq!(
            heard(&[0; PACKET]),
            Err(Fault::Origin),
            "nor with a packet of no mode"
        );
        assert_eq!(
            changed(|packet| packet[0] |= 0b11_000_000),
            Err(Fault::Unsynchronised)
        );
        assert_eq!(changed(|packet| packet[1] = 16), Err(Fault::Unsynchronised));
        assert_eq!(changed(|packet| packet[40..48].fill(0)), Err(Fault::Times));
        assert_eq!(
            changed(|packet| packet[35] += 1),
            Err(Fault::Times),
            "received after it was sent"
        );
        assert_eq!(
            changed(|packet| packet[43] += 1),
            Err(Fault::Times),
            "longer under way than we waited"
        );
        assert_eq!(changed(|packet| packet[5] = 7), Err(Fault::Uncertain));
        assert_eq!(changed(|packet| packet[9] = 4), Err(Fault::Uncertain));
    }

    /// Seconds have 32 bits, which end in 2036.
    #[test]
    fn the_next_era_is_distinguished_from_this_one() {
        let (next, floor) = (
            Duration::from_secs(ERA - UNIX + 1000),
            Duration::from_secs(ERA - UNIX - 1000),
        );
        let sample = read(&answer(NONCE, next), NONCE, next, Duration::ZERO, floor).unwrap();
        assert_eq!(sample.offset, 0);
        let later = Duration::from_secs(3 * ERA);
        assert_eq!(
            read(&answer(NONCE, later), NONCE, later, Duration::ZERO, later)
                .unwrap()
                .offset,
            0
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..600), nonce in any::<u64>(), times in any::<(u64, u64)>()) {
            let (sent, took) = (Duration::from_nanos(times.0), Duration::from_nanos(times.1));
            read(&bytes, nonce, sent, took, FLOOR).ok();
        }

        #[test]
        fn nobody_who_did_not_see_the_request_is_heard(guess in any::<u64>()) {
            prop_assume!(guess != NONCE);
            prop_assert_eq!(heard(&answer(guess, NOW)), Err(Fault::Origin));
        }
    }
}
