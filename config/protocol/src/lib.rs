//! Messages of the join protocol and the node's side of it, without I/O.
//!
//! Time, randomness and TPM outputs are arguments, so that every exchange can be replayed bit for
//! bit. Nothing here judges: the master's side of an exchange is the verifier, `config/attest`.
//!
//! Enter by [`wire`] for the messages (WIRE.md describes them for other implementations, and
//! numbers the steps), by [`question`] for what ties evidence to its exchange, by [`prover`] for
//! the node, by [`unproven`] for machines without a TPM, by [`attestor`] for the socket between a
//! master and the agent of its machine.
//!
//! # Glossary
//! - *EK*, *AK*, *NK*: endorsement key, attestation key, node key; `Name(K)` is a key's TPM Name.
//! - *hello*, *challenge*, *evidence*: the messages of steps 1 to 3. A *claim* is a statement in
//!   the hello that nothing proves.
//! - *proof* ([`wire::Proof`]): the part of evidence that a TPM made, for one *Q*
//!   ([`question::question`]).
//! - *code* ([`Code`]): why an exchange was refused; its *consequence* ([`Consequence`]) is what
//!   follows for a Machine that itself proved what is refused.

pub mod attestor;
pub mod code;
pub mod name;
pub mod prover;
pub mod question;
mod shape;
pub mod unproven;
pub mod wire;

pub use code::{Code, Consequence};
pub use question::{Channel, Names, Purpose};
