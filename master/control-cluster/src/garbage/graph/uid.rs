//! UIDs as the graph keeps them.

use master_client::Key;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// A UID as a number. Another text than a UUID is hashed: no object of this server has such a UID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Uid(u128);

impl Uid {
    pub(super) fn of(text: &str) -> Self {
        if let Some(number) = Self::number(text) {
            return Self(number);
        }
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, text).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        Self(half(0) << 64 | half(1))
    }

    /// The number that 32 hexadecimal digits say, between which hyphens may stand.
    fn number(text: &str) -> Option<u128> {
        let (mut number, mut digits) = (0_u128, 0);
        for byte in text.bytes().filter(|byte| *byte != b'-') {
            let digit = char::from(byte).to_digit(16)?;
            number = number << 4 | u128::from(digit);
            digits += 1;
            if digits > 32 {
                return None;
            }
        }
        (digits == 32).then_some(number)
    }

    /// The key of the UID's object in a namespace.
    pub(super) fn key(self, namespace: &str) -> Key {
        Key::new(namespace, &format!("{:032x}", self.0))
    }
}
