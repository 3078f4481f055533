//! Randomness that a test can repeat.

use config_tpm::Digest;
use rand_core::{CryptoRng, Error, RngCore};

/// SHA-256 in counter mode over a seed. Not for secrets: its whole output follows from the seed.
#[derive(Debug, Clone)]
pub struct SeededRng {
    seed: Digest,
    counter: u64,
}

impl SeededRng {
    /// The sequence of a seed.
    pub fn new(seed: &str) -> Self {
        Self {
            seed: Digest::of(seed.as_bytes()),
            counter: 0,
        }
    }
}

impl RngCore for SeededRng {
    fn next_u32(&mut self) -> u32 {
        rand_core::impls::next_u32_via_fill(self)
    }

    fn next_u64(&mut self) -> u64 {
        rand_core::impls::next_u64_via_fill(self)
    }

    fn fill_bytes(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(32) {
            self.counter += 1;
            let block = Digest::of_parts(&[self.seed.as_bytes(), &self.counter.to_be_bytes()]);
            for (byte, random) in chunk.iter_mut().zip(block.as_bytes()) {
                *byte = *random;
            }
        }
    }

    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Error> {
        self.fill_bytes(out);
        Ok(())
    }
}

impl CryptoRng for SeededRng {}

impl config_tpm::Entropy for SeededRng {}
