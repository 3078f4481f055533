//! What the TPM keeps for the state: the key that opens its header, and the header's generation.

use crate::header::{HeaderError, WrappingKey, random_key};
use zeroize::Zeroizing;

/// Bytes in the TPM.
pub const SIZE: usize = 48;
const VERSION: u32 = 1;
/// The generation of a state that was made and is not finished: it has no file system yet.
pub const MADE: u64 = 1;

/// Key, generation and renewals, as an approved boot wrote them.
#[derive(Clone, PartialEq, Eq)]
pub struct Kept {
    /// Opens the header.
    pub key: WrappingKey,
    /// The generation of the last boot that opened the state.
    pub generation: u64,
    /// How often the state was made anew because it did not open.
    pub renewals: u32,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            generation,
            renewals,
            ..
        } = self;
        f.debug_struct("Kept")
            .field("generation", generation)
            .field("renewals", renewals)
            .finish_non_exhaustive()
    }
}

impl Kept {
    /// A new key, in the generation [`MADE`].
    ///
    /// # Errors
    /// [`HeaderError::Encrypt`] where the system gives no random bytes.
    pub fn random(renewals: u32) -> Result<Self, HeaderError> {
        Ok(Self {
            key: random_key()?,
            generation: MADE,
            renewals,
        })
    }

    /// Key ‖ generation ‖ renewals ‖ version, big-endian.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(Vec::with_capacity(SIZE));
        out.extend_from_slice(self.key.as_slice());
        out.extend_from_slice(&self.generation.to_be_bytes());
        out.extend_from_slice(&self.renewals.to_be_bytes());
        out.extend_from_slice(&VERSION.to_be_bytes());
        out
    }

    /// Parses the output of [`Kept::to_bytes`]; `None` for another length or version.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (key, rest) = bytes.split_first_chunk::<32>()?;
        let (generation, rest) = rest.split_first_chunk::<8>()?;
        let (renewals, rest) = rest.split_first_chunk::<4>()?;
        (rest == VERSION.to_be_bytes()).then(|| Self {
            key: Zeroizing::new(*key),
            generation: u64::from_be_bytes(*generation),
            renewals: u32::from_be_bytes(*renewals),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_data_round_trips_and_nothing_else_parses() {
        let kept = Kept {
            generation: 9,
            ..Kept::random(3).unwrap()
        };
        let bytes = kept.to_bytes();
        assert_eq!((bytes.len(), Kept::parse(&bytes)), (SIZE, Some(kept)));
        assert_eq!(Kept::parse(&bytes[..SIZE - 1]), None);
        assert_eq!(Kept::parse(&[0; SIZE]), None, "an index of zeros");
    }
}
