//! dm-verity hash trees: format 1, SHA-256, blocks of 4096 bytes, with the superblock that
//! veritysetup writes (kernel Documentation/admin-guide/device-mapper/verity.rst; cryptsetup's
//! DM-Verity on-disk format).

use crate::guid::Guid;
use sha2::{Digest, Sha256};

/// Bytes of a data block and of a hash block.
pub const BLOCK: usize = 4096;
const BLOCK_U32: u32 = 4096;
/// Digests in a hash block.
const FANOUT: usize = BLOCK / 32;

/// A hash tree and its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The root hash.
    pub root: [u8; 32],
    /// The hash partition's content: superblock, then the levels from the root down.
    pub bytes: Vec<u8>,
}

/// The hash tree over `data`; the last block is hashed as if it were filled up with zeros.
pub fn tree(data: &[u8], salt: &[u8; 32], uuid: Guid) -> Tree {
    let seeded = Sha256::new().chain_update(salt);
    let digest = |block: &[u8]| -> [u8; 32] {
        let mut hash = seeded.clone();
        hash.update(block);
        if block.len() < BLOCK {
            hash.update(vec![0; BLOCK - block.len()]);
        }
        hash.finalize().into()
    };
    let mut level: Vec<[u8; 32]> = data.chunks(BLOCK).map(digest).collect();
    let blocks = level.len() as u64;
    let mut levels = Vec::new();
    while level.len() > 1 || levels.is_empty() {
        let mut bytes = Vec::with_capacity(level.len().next_multiple_of(FANOUT) * 32);
        for digest in &level {
            bytes.extend_from_slice(digest);
        }
        bytes.resize(bytes.len().next_multiple_of(BLOCK).max(BLOCK), 0);
        level = bytes.chunks(BLOCK).map(digest).collect();
        levels.push(bytes);
    }
    let mut bytes = superblock(blocks, salt, uuid);
    for level in levels.iter().rev() {
        bytes.extend_from_slice(level);
    }
    Tree {
        root: level.first().copied().unwrap_or_default(),
        bytes,
    }
}

fn superblock(blocks: u64, salt: &[u8; 32], uuid: Guid) -> Vec<u8> {
    let mut out = b"verity\0\0".to_vec();
    out.extend(1_u32.to_le_bytes());
    out.extend(1_u32.to_le_bytes());
    out.extend(uuid.to_text_order());
    let mut name = b"sha256".to_vec();
    name.resize(32, 0);
    out.extend(name);
    out.extend(BLOCK_U32.to_le_bytes());
    out.extend(BLOCK_U32.to_le_bytes());
    out.extend(blocks.to_le_bytes());
    out.extend(32_u16.to_le_bytes());
    out.extend([0; 6]);
    out.extend(salt);
    out.resize(BLOCK, 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(blocks: usize) -> Vec<u8> {
        (0..blocks * BLOCK)
            .map(|i| u8::try_from(i * 7 / 13 % 256).unwrap())
            .collect()
    }

    #[test]
    fn one_block_has_one_level() {
        let tree = tree(&data(1), &[1; 32], Guid::new(5));
        assert_eq!(tree.bytes.len(), 2 * BLOCK);
    }

    #[test]
    fn more_than_a_block_of_digests_has_two_levels_with_the_root_first() {
        let tree = tree(&data(FANOUT + 1), &[1; 32], Guid::new(5));
        assert_eq!(tree.bytes.len(), (1 + 1 + 2) * BLOCK);
        let top = Sha256::new()
            .chain_update([1; 32])
            .chain_update(&tree.bytes[BLOCK..2 * BLOCK])
            .finalize();
        assert_eq!(tree.root[..], top[..]);
    }

    #[test]
    fn every_flipped_byte_changes_the_root() {
        let mut bytes = data(3);
        let before = tree(&bytes, &[1; 32], Guid::new(5)).root;
        bytes[2 * BLOCK + 17] ^= 1;
        assert_ne!(tree(&bytes, &[1; 32], Guid::new(5)).root, before);
    }

    #[test]
    fn the_tree_is_what_veritysetup_makes() {
        // Golden values from `veritysetup format --salt=0909… --uuid=…5` (cryptsetup 2.7.5) over
        // the same bytes.
        let tree = tree(&data(200), &[9; 32], Guid::new(5));
        assert_eq!(
            hex::encode(tree.root),
            "d664e5bee51bc30c8bdd76c6d7625e7bcafff65ffec9a72ba0f8d4bef924e2ae"
        );
        assert_eq!(
            hex::encode(Sha256::digest(tree.bytes)),
            "77c429c16f441bdf612b3b45a20036db5170616d6d8232a36782c71bcc23a7f5"
        );
    }
}
