//! Packs a value as its differences from a sample: another value of the table, such as that of a
//! replica of the same template.
//!
//! Objects of one kind are similar: names of fields, managed fields, the whole template of a
//! workload. A packed value is a series of steps, each of which copies a part of the sample or adds
//! bytes of its own. A sample is itself not packed, so that unpacking is a handful of copies. It
//! shares the bytes of its own value, and needs memory only once that value has changed.

use crate::value::Value;
use bytes::{BufMut, Bytes};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Sizes of values that are packed: smaller ones gain little, larger ones are few.
const SIZES: Range<usize> = 256..16 << 10;
/// Samples of a table, so that values of several templates can be written in turns.
const SAMPLES: usize = 4;
/// Bytes of a window, by which matching parts of the sample are found; a shorter part is not worth
/// a step.
const WINDOW: usize = 8;
/// The number of windows of a value by which the most similar sample is chosen, and how many of
/// them a sample must contain.
const PROBES: usize = 8;
const LEAST_PROBES: usize = 3;
/// The steps of a packed value take at most [`LITTLE`] bytes plus one [`PART`]th of its size; a
/// value that would take more is not packed, and becomes a sample.
const LITTLE: usize = 128;
const PART: usize = 8;

/// A packed value.
pub(crate) struct Packed {
    sample: Arc<[u8]>,
    steps: Box<[u8]>,
    len: usize,
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packed")
            .field("len", &self.len)
            .field("steps", &self.steps.len())
            .finish_non_exhaustive()
    }
}

impl Packed {
    /// Length of the value.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    pub(crate) fn steps_len(&self) -> usize {
        self.steps.len()
    }

    pub(crate) fn sample(&self) -> &Arc<[u8]> {
        &self.sample
    }

    /// Writes a range of the value.
    pub(crate) fn put(&self, range: Range<usize>, into: &mut impl BufMut) {
        let (mut before, mut left) = (range.start, range.len());
        for part in self.parts() {
            let own = part.get(before..).unwrap_or_default();
            before = before.saturating_sub(part.len());
            let own = own.get(..left).unwrap_or(own);
            into.put_slice(own);
            left -= own.len();
            if left == 0 {
                break;
            }
        }
    }

    fn parts(&self) -> Parts<'_> {
        Parts {
            sample: &self.sample,
            steps: &self.steps,
        }
    }

    fn unpacks_to(&self, value: &[u8]) -> bool {
        let mut rest = value;
        let same = self.parts().all(|part| {
            let stripped = rest.strip_prefix(part);
            rest = stripped.unwrap_or_default();
            stripped.is_some()
        });
        same && rest.is_empty()
    }
}

/// The parts of a packed value, one for each step. A step begins with a number: twice the part's
/// length where the part's bytes follow; twice the length and one where the part is copied from the
/// sample, and the offset in the sample follows. Numbers are LEB128.
struct Parts<'a> {
    sample: &'a [u8],
    steps: &'a [u8],
}

impl Parts<'_> {
    /// The next number. Most are of one byte.
    #[inline]
    fn number(&mut self) -> Option<usize> {
        match self.steps {
            [byte, rest @ ..] if *byte < 0x80 => {
                self.steps = rest;
                Some(usize::from(*byte))
            }
            _ => self.long_number(),
        }
    }

    fn long_number(&mut self) -> Option<usize> {
        let (mut number, mut shift) = (0, 0_u32);
        loop {
            let byte = *self.steps.split_off_first()?;
            number |= usize::from(byte & 0x7f).checked_shl(shift)?;
            shift += 7;
            if byte < 0x80 {
                return Some(number);
            }
        }
    }
}

impl<'a> Iterator for Parts<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let step = self.number()?;
        let length = step / 2;
        if step % 2 == 0 {
            return self.steps.split_off(..length);
        }
        let from = self.number()?;
        self.sample.get(from..from + length)
    }
}

/// The lowest seven bits.
fn low(number: usize) -> u8 {
    number.to_le_bytes()[0] & 0x7f
}

/// Steps as they are written.
#[derive(Default)]
struct Steps(Vec<u8>);

impl Steps {
    fn number(&mut self, mut number: usize) {
        while number >= 0x80 {
            self.0.push(low(number) | 0x80);
            number >>= 7;
        }
        self.0.push(low(number));
    }

    fn own(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.number(bytes.len() * 2);
            self.0.extend_from_slice(bytes);
        }
    }

    fn copy(&mut self, from: usize, length: usize) {
        self.number(length * 2 + 1);
        self.number(from);
    }
}

/// How many bytes two texts have in common at their beginning.
fn common(one: &[u8], other: &[u8]) -> usize {
    let ((ones, _), (others, _)) = (one.as_chunks::<WINDOW>(), other.as_chunks::<WINDOW>());
    let words = ones
        .iter()
        .zip(others)
        .take_while(|(one, other)| one == other);
    let whole = words.count() * WINDOW;
    let rest = one.iter().zip(other).skip(whole);
    whole + rest.take_while(|(one, other)| one == other).count()
}

/// How many bytes two texts have in common at their end.
fn common_end(one: &[u8], other: &[u8]) -> usize {
    let pairs = one.iter().rev().zip(other.iter().rev());
    pairs.take_while(|(one, other)| one == other).count()
}

/// A part of a sample.
struct Match {
    from: usize,
    length: usize,
}

/// A value against which others are packed.
struct Sample {
    bytes: Arc<[u8]>,
    /// The position of a window by its hash; of several, the last.
    places: Box<[u16]>,
}

impl Sample {
    fn new(bytes: Arc<[u8]>) -> Self {
        // A wrong or missing position only costs bytes: the bytes there are compared before they
        // are used.
        let mut places = vec![0; bytes.len().next_power_of_two()].into_boxed_slice();
        let mask = places.len() - 1;
        for (at, window) in bytes.windows(WINDOW).enumerate() {
            // 16 bits are enough for a position: [`SIZES`] ends at 16 KiB.
            if let (Some(window), Ok(at)) = (window.first_chunk().copied(), u16::try_from(at)) {
                places[hash(window) & mask] = at;
            }
        }
        Self { bytes, places }
    }

    /// Where a window may begin.
    fn place(&self, window: [u8; WINDOW]) -> usize {
        usize::from(self.places[hash(window) & (self.places.len() - 1)])
    }

    /// How many of a value's probed windows the sample contains.
    fn likeness(&self, value: &[u8]) -> usize {
        let has = |probe: &usize| {
            let at = value.len() * (2 * probe + 1) / (2 * PROBES);
            let window = window(value, at);
            window.is_some_and(|window| {
                let rest = self.bytes.get(self.place(window)..).unwrap_or_default();
                rest.starts_with(&window)
            })
        };
        (0..PROBES).filter(has).count()
    }

    /// The part of the sample with which a text begins: at `guess` or, if there is none, where its
    /// first window is found.
    fn find(&self, text: &[u8], window: [u8; WINDOW], guess: usize) -> Option<Match> {
        let at = |from: usize| {
            let length = common(text, self.bytes.get(from..).unwrap_or_default());
            Match { from, length }
        };
        let guessed = at(guess);
        let found = if guessed.length < WINDOW {
            at(self.place(window))
        } else {
            guessed
        };
        Some(found).filter(|found| found.length >= WINDOW)
    }

    /// The value as differences, if they take no more bytes than `most`.
    fn differences(&self, value: &[u8], most: usize) -> Option<Packed> {
        let mut steps = Steps::default();
        let (mut at, mut own, mut misses) = (0, 0, 0);
        // The offset of the sample relative to the value. Differences of equal length, such as a
        // UID, do not change it.
        let mut ahead = 0_usize;
        while let Some(window) = window(value, at) {
            let Some(Match { from, length }) =
                self.find(&value[at..], window, at.wrapping_add(ahead))
            else {
                // The stride grows while nothing matches, so that a value unlike the sample costs
                // little.
                at += 1 + misses / 32;
                misses += 1;
                continue;
            };
            // The matching part may start before this position.
            let more = common_end(&value[own..at], &self.bytes[..from]);
            steps.own(&value[own..at - more]);
            steps.copy(from - more, length + more);
            if steps.0.len() > most {
                return None;
            }
            ahead = from.wrapping_sub(at);
            at += length;
            (own, misses) = (at, 0);
        }
        steps.own(&value[own..]);
        (steps.0.len() <= most).then(|| Packed {
            sample: Arc::clone(&self.bytes),
            steps: steps.0.into_boxed_slice(),
            len: value.len(),
        })
    }
}

/// The window that begins at a place of a text.
fn window(text: &[u8], at: usize) -> Option<[u8; WINDOW]> {
    text.get(at..)?.first_chunk().copied()
}

fn hash(window: [u8; WINDOW]) -> usize {
    // Fibonacci hashing: 2^64 divided by the golden ratio.
    let product = u64::from_le_bytes(window).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let [.., low, high] = product.to_le_bytes();
    usize::from(u16::from_le_bytes([low, high]))
}

/// The samples of one table, the one that was used last first.
#[derive(Default)]
pub(crate) struct Samples(Vec<Sample>);

impl fmt::Debug for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Samples").field(&self.0.len()).finish()
    }
}

impl Samples {
    /// The value, packed if that is worth it. `known` is the sample of the value that it replaces.
    ///
    /// Guarantee: the bytes of the result are those of the value; they are compared here.
    pub(crate) fn pack(&mut self, value: &Value, known: Option<&Arc<[u8]>>) -> Value {
        let Some(bytes) = value.plain().filter(|bytes| SIZES.contains(&bytes.len())) else {
            return value.clone();
        };
        // The next version of a value resembles its predecessor more than any other value.
        if let Some(known) = known
            && !self
                .0
                .iter()
                .any(|sample| Arc::ptr_eq(&sample.bytes, known))
        {
            self.add(Arc::clone(known));
        }
        let likeness = |sample: &Sample| sample.likeness(bytes);
        let likeliest = self.0.iter().map(likeness).enumerate();
        // `max_by_key` returns the last of equals: reversed, the sample that was used last.
        let likeliest = likeliest.rev().max_by_key(|(_, likeness)| *likeness);
        let likeliest = likeliest.filter(|(_, likeness)| *likeness >= LEAST_PROBES);
        let packed = likeliest.and_then(|(at, _)| {
            // To the front, so that [`Samples::add`] drops the least recently used one.
            self.0[..=at].rotate_right(1);
            let packed = self.0[0].differences(bytes, LITTLE + bytes.len() / PART)?;
            Some(packed).filter(|packed| packed.unpacks_to(bytes))
        });
        packed.map_or_else(|| self.sample(bytes), Value::packed)
    }

    /// Makes a sample of a value, and returns the value, which shares the sample's bytes.
    fn sample(&mut self, bytes: &[u8]) -> Value {
        let bytes: Arc<[u8]> = bytes.into();
        self.add(Arc::clone(&bytes));
        Bytes::from_owner(bytes).into()
    }

    fn add(&mut self, bytes: Arc<[u8]>) {
        self.0.truncate(SAMPLES - 1);
        self.0.insert(0, Sample::new(bytes));
    }
}

#[cfg(test)]
#[path = "packing_tests.rs"]
mod tests;
