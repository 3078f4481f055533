//! Changing bytes, with and without knowing that they are JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// SplitMix64: small, seeded, good enough to choose mutations.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 where there is none.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.draw() % bound).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        self.draw().to_le_bytes()[0]
    }
}

/// Longest input that mutation makes, in bytes.
const MAX_INPUT: usize = 128 * 1024;

/// Values at which lengths and counts tip over.
const EDGES: [u32; 9] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_fffe,
    0xffff_ffff,
];

/// Changes bytes in one to eight places.
pub fn bytes(input: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(8) {
        once(input, random);
    }
    input.truncate(MAX_INPUT);
}

fn once(input: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(input.len());
    let end = (at + random.below(64)).min(input.len());
    match random.below(8) {
        0 => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        1 => {
            if let Some(byte) = input.get_mut(at) {
                *byte = random.byte();
            }
        }
        2 => overwrite(
            input,
            at,
            &EDGES[random.below(EDGES.len())].to_be_bytes()[random.below(4)..],
        ),
        3 => overwrite(
            input,
            at,
            &EDGES[random.below(EDGES.len())].to_le_bytes()[..=random.below(4)],
        ),
        4 => {
            let added: Vec<u8> = (0..random.below(16)).map(|_| random.byte()).collect();
            input.splice(at..at, added);
        }
        5 => {
            input.drain(at..end);
        }
        6 => {
            let copy = input[at..end].to_vec();
            let to = random.below(input.len());
            input.splice(to..to, copy);
        }
        _ => input.truncate(at),
    }
}

fn overwrite(input: &mut [u8], at: usize, with: &[u8]) {
    for (byte, new) in input.iter_mut().skip(at).zip(with) {
        *byte = *new;
    }
}

/// Changes the bytes inside one base64 or hex text of a JSON document, or the text itself. Falls
/// back to [`bytes`] where the input is no JSON.
pub fn json(input: &mut Vec<u8>, random: &mut Random) {
    let Ok(mut document) = serde_json::from_slice::<Value>(input) else {
        return bytes(input, random);
    };
    for _ in 0..=random.below(2) {
        let leaves = count(&document);
        let mut wanted = random.below(leaves);
        change(&mut document, &mut wanted, random);
    }
    if let Ok(text) = serde_json::to_vec(&document) {
        *input = text;
    }
}

fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(count).sum::<usize>() + 1,
        Value::Object(fields) => fields.values().map(count).sum::<usize>() + 1,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

/// Changes the leaf or branch that `wanted` counts down to; says whether it did.
fn change(value: &mut Value, wanted: &mut usize, random: &mut Random) -> bool {
    if *wanted == 0 {
        alter(value, random);
        return true;
    }
    *wanted -= 1;
    match value {
        Value::Array(items) => items.iter_mut().any(|item| change(item, wanted, random)),
        Value::Object(fields) => fields
            .values_mut()
            .any(|field| change(field, wanted, random)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn alter(value: &mut Value, random: &mut Random) {
    match value {
        Value::String(text) => *text = altered(text, random),
        Value::Number(_) => *value = Value::from(random.draw() >> random.below(64)),
        Value::Array(items) => {
            let at = random.below(items.len());
            if random.below(2) == 0 {
                items.truncate(at);
            } else if let Some(item) = items.get(at).cloned() {
                items.push(item);
            }
        }
        Value::Object(fields) => {
            let name = fields.keys().nth(random.below(fields.len())).cloned();
            if let Some(name) = name {
                fields.remove(&name);
            }
        }
        Value::Null | Value::Bool(_) => *value = Value::from(random.draw()),
    }
}

fn altered(text: &str, random: &mut Random) -> String {
    if let Ok(mut inner) = hex::decode(text) {
        bytes(&mut inner, random);
        return hex::encode(inner);
    }
    if let Ok(mut inner) = STANDARD.decode(text) {
        bytes(&mut inner, random);
        return STANDARD.encode(inner);
    }
    let mut inner = text.as_bytes().to_vec();
    bytes(&mut inner, random);
    String::from_utf8_lossy(&inner).into_owned()
}
