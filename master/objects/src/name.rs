//! What the server gives new objects: UIDs, and ends of names.

use std::fmt;
use std::sync::Arc;
use uuid::Uuid;

/// Length to which the base of a generated name is cut.
const BASE: usize = 58;
/// Characters of generated names: no vowels, and no characters that look alike.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Where UIDs and the ends of generated names come from: by default they are random.
#[derive(Clone)]
pub struct Identities(Arc<dyn Fn() -> u128 + Send + Sync>);

impl Default for Identities {
    fn default() -> Self {
        Self::of(|| Uuid::new_v4().as_u128())
    }
}

impl fmt::Debug for Identities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identities").finish_non_exhaustive()
    }
}

impl Identities {
    /// Others than random ones, so that a simulation repeats itself. No number may come twice.
    pub fn of(next: impl Fn() -> u128 + Send + Sync + 'static) -> Self {
        Self(Arc::new(next))
    }

    /// The UID of a new object.
    pub fn uid(&self) -> String {
        Uuid::from_u128((self.0)()).to_string()
    }

    /// A name from a base, cut to length, and five more characters.
    pub fn name(&self, base: &str) -> String {
        let mut end = base.len().min(BASE);
        while !base.is_char_boundary(end) {
            end -= 1;
        }
        let bytes = (self.0)().to_be_bytes();
        let bytes = bytes.iter().take(5);
        let suffix = bytes.map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]));
        base[..end].chars().chain(suffix).collect()
    }
}

/// A name from a base and five random characters.
pub fn generate(base: &str) -> String {
    Identities::default().name(base)
}
