//! Arithmetic of the platform configuration registers, in the SHA-256 bank: one implementation for
//! image, agent and master.

use crate::Digest;
use crate::{HashAlg, PcrSelection};
use std::collections::BTreeMap;

mod predict;

pub use predict::{
    EFI_GLOBAL, EFI_SECURITY_DATABASE, PredictedEvent, SecureBootKeys, Variable, pcr4_events,
    pcr7_events, pcr9_events, pcr11_events, replay_events,
};

/// Registers that every quote covers.
pub const QUOTE_PCRS: &[u8] = &[0, 2, 4, 7, 9, 11, 12, 13, 14, 15];
/// Registers that a node key is bound to.
pub const NK_PCRS: &[u8] = &[4, 7, 9, 11, 12, 13];
/// Register of the configuration event.
pub const CONFIG_PCR: u8 = 13;
/// Number of registers.
pub const COUNT: u8 = 24;

/// A set of registers of the SHA-256 bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection(u32);

impl Selection {
    /// The set of these indexes; those above 23 are left out.
    pub fn of(pcrs: &[u8]) -> Self {
        Self(
            pcrs.iter()
                .filter(|pcr| **pcr < COUNT)
                .fold(0, |bits, pcr| bits | 1 << pcr),
        )
    }

    /// The registers, ascending.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..COUNT).filter(move |pcr| self.contains(*pcr))
    }

    /// Whether a register is in it.
    pub fn contains(self, pcr: u8) -> bool {
        pcr < COUNT && self.0 & (1 << pcr) != 0
    }

    /// As the TPM structure of one bank with three bytes of bit map.
    pub fn to_pcr_selection(self) -> PcrSelection {
        let [a, b, c, _] = self.0.to_le_bytes();
        PcrSelection {
            bank: HashAlg::Sha256.id(),
            select: vec![a, b, c],
        }
    }

    /// TPML_PCR_SELECTION with this one bank.
    pub fn to_tpm(self) -> Vec<u8> {
        crate::selection_bytes(&[self.to_pcr_selection()])
    }

    /// Digest over the registers' values in ascending order, as in a quote or PolicyPCR. Missing
    /// values count as zero.
    pub fn digest(self, values: &BTreeMap<u8, Digest>) -> Digest {
        let mut bytes = Vec::new();
        for pcr in self.iter() {
            bytes.extend_from_slice(values.get(&pcr).unwrap_or(&Digest::ZERO).as_bytes());
        }
        Digest::of(&bytes)
    }
}

/// The registers of one bank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bank([Digest; COUNT as usize]);

impl Default for Bank {
    fn default() -> Self {
        Self::new()
    }
}

impl Bank {
    /// After a reset: zero, and all ones in 17 to 22 (PC Client profile, 4.7.1).
    pub fn new() -> Self {
        let mut values = [Digest::ZERO; COUNT as usize];
        for value in values.iter_mut().take(23).skip(17) {
            *value = Digest([0xff; 32]);
        }
        Self(values)
    }

    /// A register's value; zero beyond the last.
    pub fn get(&self, pcr: u8) -> Digest {
        self.0
            .get(usize::from(pcr))
            .copied()
            .unwrap_or(Digest::ZERO)
    }

    /// Sets where a register starts (StartupLocality).
    pub fn set(&mut self, pcr: u8, value: Digest) {
        if let Some(slot) = self.0.get_mut(usize::from(pcr)) {
            *slot = value;
        }
    }

    /// TPM2_PCR_Extend: value ← SHA-256(value ‖ digest). Does nothing beyond the last register.
    pub fn extend(&mut self, pcr: u8, digest: &Digest) {
        if let Some(slot) = self.0.get_mut(usize::from(pcr)) {
            *slot = extended(slot, digest);
        }
    }

    /// The values of a selection.
    pub fn values(&self, selection: Selection) -> BTreeMap<u8, Digest> {
        selection.iter().map(|pcr| (pcr, self.get(pcr))).collect()
    }
}

/// A register's value after one more digest.
pub fn extended(value: &Digest, digest: &Digest) -> Digest {
    Digest::of_parts(&[value.as_bytes(), digest.as_bytes()])
}

/// A register's value after digests, from zero.
pub fn replay<'a>(digests: impl IntoIterator<Item = &'a Digest>) -> Digest {
    digests
        .into_iter()
        .fold(Digest::ZERO, |value, digest| extended(&value, digest))
}

/// The digest that init extends into PCR 13: SHA-256(label ‖ u64 big-endian length ‖ bytes).
pub fn config_event_digest(label: &str, bytes: &[u8]) -> Digest {
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes();
    Digest::of_parts(&[label.as_bytes(), &length, bytes])
}
