//! Computes the names of chains and sets from their content (pure).

use sha2::{Digest as _, Sha256};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A name made of a kind and a digest of the content. Authors of policies choose the content, and
/// must not find two contents with one name by search: so it has 128 bits of the digest.
pub(crate) fn named(kind: &str, content: &impl Hash) -> Arc<str> {
    let mut digester = Digester(Sha256::new());
    content.hash(&mut digester);
    let digest: [u8; 32] = digester.0.finalize().into();
    let bits = digest.first_chunk().copied().map_or(0, u128::from_be_bytes);
    format!("{kind}-{bits:032x}").into()
}

/// SHA-256 of what values write to a [`Hasher`]. Derived `Hash` writes lengths and variants, too,
/// so that no two values write the same.
struct Digester(Sha256);

impl Hasher for Digester {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest: [u8; 32] = self.0.clone().finalize().into();
        digest.first_chunk().copied().map_or(0, u64::from_be_bytes)
    }
}
