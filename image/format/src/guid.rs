//! GUIDs as UEFI stores them (RFC 9562 text; the first three fields little-endian in binary).

use sha2::{Digest, Sha256};
use std::fmt;

/// A GUID, held in the order of its text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid([u8; 16]);

impl Guid {
    /// From its 128 bits in the order of its text, as `0x8be4df61_93ca_11d2_aa0d_00e098032b8c`.
    pub const fn new(bits: u128) -> Self {
        Self(bits.to_be_bytes())
    }

    /// From 16 bytes in the order of the text.
    pub const fn from_text_order(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// A GUID that follows from what it names: the first half of a SHA-256, marked as version 8
    /// (RFC 9562, 5.8).
    pub fn derived(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let digest = hash.finalize();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        bytes[6] = (bytes[6] & 0x0f) | 0x80;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Self(bytes)
    }

    /// The unique GUIDs of the root and the verity partition that belong to a root hash: its first
    /// and its last 128 bits (Discoverable Partitions Specification).
    pub fn of_root_hash(hash: &[u8; 32]) -> (Self, Self) {
        let (mut root, mut verity) = ([0; 16], [0; 16]);
        root.copy_from_slice(&hash[..16]);
        verity.copy_from_slice(&hash[16..]);
        (Self(root), Self(verity))
    }

    /// As stored on disk and in firmware variables.
    pub const fn to_bytes(self) -> [u8; 16] {
        let g = self.0;
        [
            g[3], g[2], g[1], g[0], g[5], g[4], g[7], g[6], g[8], g[9], g[10], g[11], g[12], g[13],
            g[14], g[15],
        ]
    }

    /// The reverse of [`Guid::to_bytes`].
    pub const fn from_stored(stored: [u8; 16]) -> Self {
        Self(Self(stored).to_bytes())
    }

    /// In the order of the text, as RFC 9562 stores it.
    pub const fn to_text_order(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_disk_order_differ_as_uefi_wants() {
        let guid = Guid::new(0x8be4_df61_93ca_11d2_aa0d_00e0_9803_2b8c);
        assert_eq!(guid.to_string(), "8be4df61-93ca-11d2-aa0d-00e098032b8c");
        assert_eq!(
            guid.to_bytes()[..8],
            [0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11]
        );
    }

    #[test]
    fn derived_ones_depend_on_how_the_parts_are_cut() {
        assert_ne!(Guid::derived(&[b"ab", b"c"]), Guid::derived(&[b"a", b"bc"]));
    }
}
