//! Frames: the encoding of the store's files, by which torn and damaged writes are detected.
//!
//! A frame is 32 bytes of header and a payload, padded with zeros to a multiple of 8; integers are
//! big-endian: `PFR1` ‖ payload length u32 ‖ offset in the file u64 ‖ first 16 bytes of
//! SHA-256(file id ‖ offset ‖ payload). The id is random for each file, so that a frame of an
//! earlier file in a reused disk block is not taken for one of this file. Zeros in place of a
//! header mark the end.

use sha2::{Digest, Sha256};
use std::io::{self, Read};

/// Bytes of a frame's header.
pub(crate) const HEADER: usize = 32;
/// Most bytes of a frame's payload; a larger length is damage. A group of transactions is smaller:
/// 4 MiB and one more transaction.
pub(crate) const MAX_PAYLOAD: usize = 32 << 20;
const MAGIC: [u8; 4] = *b"PFR1";

/// Random bytes that identify one file.
pub(crate) type FileId = [u8; 16];

fn check(id: &FileId, offset: u64, payload: &[u8]) -> [u8; 16] {
    let mut hash = Sha256::new();
    // With the file's id and the offset, so that a frame that an earlier file left in the same
    // blocks, or that was moved, fails the check.
    hash.update(id);
    hash.update(offset.to_be_bytes());
    hash.update(payload);
    // Half of the hash is enough to find damage. It does not protect against an attacker: anyone
    // who can write to the folder can also compute hashes.
    let full = hash.finalize();
    let mut short = [0; 16];
    short.copy_from_slice(&full[..16]);
    short
}

/// Starts a frame in an empty buffer: reserves the header.
pub(crate) fn start(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.resize(HEADER, 0);
}

/// Completes the frame in the buffer, for the position `offset`.
pub(crate) fn seal(buffer: &mut Vec<u8>, id: &FileId, offset: u64) {
    let length = buffer.len() - HEADER;
    let check = check(id, offset, &buffer[HEADER..]);
    buffer[0..4].copy_from_slice(&MAGIC);
    buffer[4..8].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    buffer[8..16].copy_from_slice(&offset.to_be_bytes());
    buffer[16..32].copy_from_slice(&check);
    buffer.resize(HEADER + padded(length), 0);
}

fn padded(length: usize) -> usize {
    length.next_multiple_of(8)
}

/// Parses a header: the payload's length and checksum.
fn header(bytes: &[u8; HEADER], offset: u64) -> Option<(usize, [u8; 16])> {
    let word =
        |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let stored = (u64::from(word(8)) << 32) | u64::from(word(12));
    let length = usize::try_from(word(4))
        .ok()
        .filter(|length| *length <= MAX_PAYLOAD)?;
    let mut check = [0; 16];
    check.copy_from_slice(&bytes[16..32]);
    // The length is bounded before it is used: a broken header must not make a reader ask for
    // gigabytes.
    (bytes[0..4] == MAGIC && stored == offset).then_some((length, check))
}

/// The frame at `offset` of a file's bytes: its payload and the offset of the next one.
pub(crate) fn at<'a>(bytes: &'a [u8], offset: usize, id: &FileId) -> Option<(&'a [u8], usize)> {
    let rest = bytes.get(offset..)?;
    let (length, stored) = header(rest.first_chunk()?, offset as u64)?;
    let payload = rest.get(HEADER..HEADER + length)?;
    (check(id, offset as u64, payload) == stored)
        .then_some((payload, offset + HEADER + padded(length)))
}

/// Whether a complete frame follows after `from`: then a broken frame before it had been
/// acknowledged, and is damage.
pub(crate) fn any_after(bytes: &[u8], from: usize, id: &FileId) -> bool {
    // Frames begin at multiples of 8. The length in a broken header says nothing about the next
    // one.
    let mut offset = from.next_multiple_of(8);
    while let Some(rest) = bytes.get(offset..) {
        if rest.first_chunk() == Some(&MAGIC) && at(bytes, offset, id).is_some() {
            return true;
        }
        // Zeros, of which there may be many, are skipped in large steps.
        let zeros = rest
            .chunks_exact(4096)
            .take_while(|chunk| chunk.iter().all(|byte| *byte == 0))
            .count();
        offset += (zeros * 4096).max(8);
    }
    false
}

/// Reads frames from a stream; the file id is in the first frame's payload.
#[derive(Debug)]
pub(crate) struct Frames<R> {
    from: R,
    offset: u64,
    id: FileId,
    payload: Vec<u8>,
}

/// Why no frame could be read.
#[derive(Debug)]
pub(crate) enum Broken {
    /// Reading failed.
    Io(io::Error),
    /// The stream ended inside or before a required frame.
    Truncated,
    /// The frame at this offset is damaged.
    Changed(u64),
}

impl<R: Read> Frames<R> {
    pub(crate) fn new(from: R) -> Self {
        Self {
            from,
            offset: 0,
            id: [0; 16],
            payload: Vec::new(),
        }
    }

    /// The next frame's payload. The first frame of a file begins with the file's id.
    pub(crate) fn next(&mut self) -> Result<&[u8], Broken> {
        let mut bytes = [0; HEADER];
        self.fill(&mut bytes)?;
        let (length, stored) = header(&bytes, self.offset).ok_or(Broken::Changed(self.offset))?;
        let mut payload = std::mem::take(&mut self.payload);
        payload.resize(padded(length), 0);
        // The padding is read but not verified: nothing uses it.
        self.fill(&mut payload)?;
        payload.truncate(length);
        if self.offset == 0 {
            self.id = *payload.first_chunk().ok_or(Broken::Changed(0))?;
        }
        if check(&self.id, self.offset, &payload) != stored {
            return Err(Broken::Changed(self.offset));
        }
        self.offset += (HEADER + padded(length)) as u64;
        self.payload = payload;
        Ok(&self.payload)
    }

    /// Whether the stream ends here, as it must after the last frame.
    pub(crate) fn ended(&mut self) -> Result<bool, Broken> {
        let mut one = [0; 1];
        loop {
            match self.from.read(&mut one) {
                Ok(read) => return Ok(read == 0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Broken::Io(error)),
            }
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Broken> {
        self.from.read_exact(bytes).map_err(|error| {
            let ended = error.kind() == io::ErrorKind::UnexpectedEof;
            if ended {
                Broken::Truncated
            } else {
                Broken::Io(error)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: FileId = [7; 16];

    fn file(payloads: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut frame = Vec::new();
        for payload in payloads {
            start(&mut frame);
            frame.extend_from_slice(payload);
            seal(&mut frame, &ID, bytes.len() as u64);
            bytes.extend_from_slice(&frame);
        }
        bytes
    }

    #[test]
    fn every_changed_bit_is_seen() {
        let bytes = file(&[b"first", b"the second frame"]);
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let first = at(&changed, 0, &ID);
            let second = first.and_then(|(_, next)| at(&changed, next, &ID));
            let padding = (37..40).contains(&(bit / 8));
            assert!(second.is_none() || padding, "bit {bit}");
        }
        assert_eq!(at(&bytes, 0, &ID).unwrap().0, b"first");
    }

    #[test]
    fn a_whole_frame_behind_a_broken_one_is_found() {
        let mut bytes = file(&[b"one", b"two", b"three"]);
        bytes.resize(bytes.len() + 100_000, 0);
        let (_, second) = at(&bytes, 0, &ID).unwrap();
        bytes[second + 20] ^= 1;
        assert!(any_after(&bytes, second, &ID));
        let (_, third) = at(&file(&[b"one", b"two", b"three"]), second, &ID).unwrap();
        bytes[third + HEADER] ^= 1;
        assert!(!any_after(&bytes, second, &ID), "a torn end is no loss");
        assert!(
            !any_after(&bytes, 1, &[8; 16]),
            "another file's frames are none"
        );
    }
}
