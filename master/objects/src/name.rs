//! Names that the server makes.

/// Length to which the base of a generated name is cut.
const BASE: usize = 58;
/// Characters of generated names: no vowels, and no characters that look alike.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// A name from a base, cut to length, and five random characters.
pub fn generate(base: &str) -> String {
    let mut end = base.len().min(BASE);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    let random = uuid::Uuid::new_v4();
    let suffix = random
        .as_bytes()
        .iter()
        .take(5)
        .map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]));
    base[..end].chars().chain(suffix).collect()
}
