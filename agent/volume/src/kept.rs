//! What the TPM keeps for the state: the key that opens its header, and which boot moved to the
//! header's generation.

use crate::header::{HeaderError, WrappingKey, random_key};
use config_state::generation::BootNonce;
use zeroize::Zeroizing;

/// Bytes in the TPM.
pub const SIZE: usize = 48;
/// The last byte.
const VERSION: u8 = 2;
/// The last bytes of a record from before there was a value for each boot.
const VERSION_1: [u8; 4] = [0, 0, 0, 1];
/// Bytes of the generation: at a boot a second it would last for 30,000 years.
const GENERATION: usize = 5;
/// The highest one.
const LAST: u64 = (1 << (8 * GENERATION)) - 1;
/// The generation of a state that was made and is not finished: it has no file system yet.
pub const MADE: u64 = 1;

/// Key, generation, boot and renewals, as an approved boot wrote them.
#[derive(Clone, PartialEq, Eq)]
pub struct Kept {
    /// Opens the header.
    pub key: WrappingKey,
    /// The generation of the last boot that opened the state.
    pub generation: u64,
    /// That boot's value, which the state's files name: copies of them with the same generation are
    /// told apart by it.
    pub boot: BootNonce,
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
            boot: BootNonce::default(),
            renewals,
        })
    }

    /// Key ‖ boot ‖ generation (5 bytes) ‖ renewals (2 bytes) ‖ version, big-endian. A larger
    /// number is written as the largest that fits.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(Vec::with_capacity(SIZE));
        let [_, _, _, generation @ ..] = self.generation.min(LAST).to_be_bytes();
        let renewals = u16::try_from(self.renewals).unwrap_or(u16::MAX);
        out.extend_from_slice(self.key.as_slice());
        out.extend_from_slice(&self.boot);
        out.extend_from_slice(&generation);
        out.extend_from_slice(&renewals.to_be_bytes());
        out.push(VERSION);
        out
    }

    /// Parses the output of [`Kept::to_bytes`], or what an image from before wrote that kept no
    /// value of the boot; `None` for another length or version.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (key, rest) = bytes.split_first_chunk::<32>()?;
        let key = Zeroizing::new(*key);
        let rest: &[u8; SIZE - 32] = rest.try_into().ok()?;
        let (first, rest) = rest.split_first_chunk::<8>()?;
        if let Some(renewals) = rest.strip_suffix(&VERSION_1) {
            let generation = u64::from_be_bytes(*first);
            let renewals = u32::from_be_bytes(renewals.try_into().ok()?);
            return (generation <= LAST).then(|| Self {
                key,
                generation,
                boot: BootNonce::default(),
                renewals: renewals.min(u16::MAX.into()),
            });
        }
        let (generation, rest) = rest.split_first_chunk::<GENERATION>()?;
        let mut whole = [0; 8];
        whole
            .split_at_mut(8 - GENERATION)
            .1
            .copy_from_slice(generation);
        let renewals = rest.strip_suffix(&[VERSION])?;
        Some(Self {
            key,
            generation: u64::from_be_bytes(whole),
            boot: *first,
            renewals: u16::from_be_bytes(renewals.try_into().ok()?).into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_data_round_trips_and_nothing_else_parses() {
        let kept = Kept {
            generation: 0x01_0203_0409,
            boot: [6; 8],
            ..Kept::random(3).unwrap()
        };
        let bytes = kept.to_bytes();
        assert_eq!(
            (bytes.len(), Kept::parse(&bytes)),
            (SIZE, Some(kept.clone()))
        );
        assert_eq!(Kept::parse(&bytes[..SIZE - 1]), None);
        assert_eq!(Kept::parse(&[&bytes[..], &[VERSION]].concat()), None);
        assert_eq!(Kept::parse(&[0; SIZE]), None, "an index of zeros");
        let largest = Kept {
            generation: u64::MAX,
            renewals: u32::MAX,
            ..kept
        };
        let read = Kept::parse(&largest.to_bytes()).unwrap();
        assert_eq!((read.generation, read.renewals), (LAST, 0xFFFF));
    }

    #[test]
    fn what_an_image_without_values_of_boots_kept_is_read() {
        let kept = Kept {
            generation: 9,
            ..Kept::random(3).unwrap()
        };
        let numbers = [&9_u64.to_be_bytes()[..], &3_u32.to_be_bytes()].concat();
        let bytes = [kept.key.as_slice(), &numbers, &VERSION_1].concat();
        assert_eq!(Kept::parse(&bytes), Some(kept));
    }
}
