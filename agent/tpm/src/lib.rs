//! The machine's keys in its TPM: quote, certify, activate, sign and seal.
//!
//! One thread owns the TPM; [`Tpm`] is a cheap handle that sends it requests over a bounded channel
//! and waits for the answer. Calls block, for tens of milliseconds or more: async callers use
//! `spawn_blocking`, and a TLS handshake that signs with [`Tpm::sign`] needs a multi-thread
//! runtime.
//!
//! Keys: the endorsement keys ([`EndorsementKey`]); the attestation key, a primary of the
//! endorsement hierarchy whose auth value is random for each start of the thread and never leaves
//! it (the auth value is no part of the key's derivation, so the key is the same for the life of
//! the TPM); the node key, a primary of the NULL hierarchy bound to the registers as they are,
//! which lives as long as the boot. No key stays loaded between requests: a TPM without a resource
//! manager has three slots.
//!
//! Keys and evidence are returned in the TPM's own encoding (TPM 2.0 Library, part 2), as
//! `config-protocol` sends them.

#[doc(hidden)]
pub mod decoders;
mod device;
mod endorsement;
mod error;
mod import;
mod key_types;
mod keys;
mod presence;
mod prove;
mod seal;
mod state;
mod templates;
mod worker;

use config_tpm::Digest as PcrValue;
pub use error::Error;
pub use import::WrappedKey;
pub use key_types::{EndorsementKey, PublicKey};
pub use presence::Presence;
pub use prove::{Attestation, Quote};
pub use seal::{Seal, Sealing};
pub use state::{SLOT_SIZE, SLOTS, StateSlot, Unlock};
pub use templates::EkKind;
pub use worker::Tpm;

/// Most bytes that [`Tpm::seal`] takes.
pub const SEAL_LIMIT: usize = 64 * 1024;
