//! The proof: evidence, event log, PCR arithmetic, policy, prover and verifier, without I/O.
//!
//! Nothing here opens a file or a socket, reads a clock or draws randomness: time and randomness come in as arguments, so
//! that every exchange can be replayed bit for bit. There are no tasks and no channels.
//!
//! Enter by [`wire`] for what travels (WIRE.md describes it for other implementations), by [`prover`] for the node's side,
//! by [`verifier`] and [`sessions`] for the master's side, by [`unproven`] for machines without a TPM, by [`bootstrap`] for the first master, by [`release`], [`unlock`] and [`pcr`]
//! for the image build, by [`one_off`] for a master's state on another board.

pub mod attestor;
pub mod bootstrap;
pub mod code;
mod csr;
pub mod digest;
mod ek;
pub mod eventlog;
mod facts;
mod inventory;
pub mod name;
pub mod one_off;
pub mod pcr;
pub mod policy;
pub mod prover;
pub mod question;
pub mod release;
pub mod sessions;
mod shape;
#[cfg(feature = "testing")]
pub mod testing;
pub mod tpm;
pub mod unlock;
pub mod unproven;
mod verdict;
pub mod verdicts;
pub mod verifier;
pub mod wire;
mod x509;

pub use code::{Code, Consequence};
pub use csr::San;
pub use digest::Digest;
pub use ek::{EkIssuer, EkIssuerError};
pub use inventory::{Inventory, machine_id};
pub use question::{Channel, Names, Purpose};
pub use verdict::{MachineId, ProvenMachine, Refusal, Verdict};
