//! GUIDs as GPT stores them: the first three fields little-endian on disk.

use std::fmt;

/// A GUID, its bytes in the order of its text form.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Guid(pub [u8; 16]);

impl Guid {
    /// The GUID that marks an unused entry.
    pub const ZERO: Self = Self([0; 16]);

    /// Reads the on-disk form.
    pub fn from_disk(bytes: [u8; 16]) -> Self {
        Self(swapped(bytes))
    }

    /// The on-disk form.
    pub fn to_disk(self) -> [u8; 16] {
        swapped(self.0)
    }

    /// Reads the text form, with or without hyphens, either case.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
        let mut bytes = [0; 16];
        hex::decode_to_slice(digits, &mut bytes)
            .ok()
            .map(|()| Self(bytes))
    }
}

fn swapped(mut bytes: [u8; 16]) -> [u8; 16] {
    let (first, rest) = bytes.split_at_mut(4);
    let (second, rest) = rest.split_at_mut(2);
    let (third, _) = rest.split_at_mut(2);
    [first, second, third].into_iter().for_each(<[u8]>::reverse);
    bytes
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if [4, 6, 8, 10].contains(&at) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The unique GUIDs of a root and its verity partition: the first and the last 128 bits of the root
/// hash.
///
/// Source: the Discoverable Partitions Specification, as systemd-veritysetup-generator applies it.
pub fn of_root_hash(hash: &[u8; 32]) -> (Guid, Guid) {
    let half = |from: usize| {
        let mut bytes = [0; 16];
        bytes
            .iter_mut()
            .zip(hash.iter().skip(from))
            .for_each(|(to, byte)| *to = *byte);
        Guid(bytes)
    };
    (half(0), half(16))
}

#[cfg(test)]
mod tests {
    use super::{Guid, of_root_hash};

    #[test]
    fn the_disk_form_swaps_three_fields() {
        let guid =
            Guid::parse("c12a7328-f81f-11d2-ba4b-00a0c93ec93b").expect("the ESP's type is a GUID");
        assert_eq!(
            hex::encode(guid.to_disk()),
            "28732ac11ff8d211ba4b00a0c93ec93b"
        );
        assert_eq!(Guid::from_disk(guid.to_disk()), guid);
        assert_eq!(guid.to_string(), "c12a7328-f81f-11d2-ba4b-00a0c93ec93b");
        assert_eq!(Guid::parse("c12a7328"), None);
    }

    #[test]
    fn a_root_hash_names_its_two_partitions() {
        let mut hash = [0x11; 32];
        hash[16..].fill(0x22);
        assert_eq!(of_root_hash(&hash), (Guid([0x11; 16]), Guid([0x22; 16])));
    }
}
