//! The master's judgement of a machine, without I/O: reference values, rules, verifier and
//! verdicts.
//!
//! Nothing here opens a file or a socket, reads a clock or draws randomness: time and randomness
//! are arguments, so that every exchange can be replayed bit for bit. There are no tasks and no
//! channels.
//!
//! The messages, their steps and the node's side are `config/protocol`. Enter by [`verifier`] and
//! [`sessions`] for the master, by [`bootstrap`] for the first master, by [`release`] for the image
//! build.
//!
//! # Glossary
//! The words of the messages (EK, AK, NK, hello, challenge, evidence, claim, code) are those of
//! `config/protocol`.
//! - *checked hello* ([`verifier::CheckedHello`]): the keys have the right form, and the Machine
//!   may join. It proves nothing about the caller.
//! - *pending* ([`verifier::Pending`]): a checked hello with its challenge; the session table holds
//!   it until the evidence comes.
//! - *reference values* ([`verifier::Reference`]): machines, releases, issuers and the rule that
//!   evidence is compared with.
//! - *check*: one comparison with its result; a *verdict* ([`Verdict`]) is the list of them.
//! - *refusal* ([`Refusal`]): why an exchange ended. It is *proven* where the TPM itself proved
//!   what is refused, and *anonymous* where anyone could have sent it. Only a proven one has a
//!   *consequence* for the Machine.
//! - *claimant* ([`verifier::Claimant`]): proved which machine it is, and asks for no more than a
//!   node may have; the decision is open. Without a TPM it proved only that it holds a key.
//! - *approval* ([`verifier::Approval`]): a person's or a rule's decision to admit; a *prior
//!   approval* ([`verifier::PriorApproval`]) is what an earlier one is worth now.
//! - *grant* ([`verifier::CertificateGrant`]): the decision to issue certificates; the CA signs for
//!   nothing else.
//! - *admission*: the record of that decision in the Machine's status
//!   (`config_kube::machine::Admission`).
//! - *recorded evidence* ([`verifier::RecordedEvidence`]): evidence kept to try a draft policy on
//!   it (a *dry run*).
//! - *stranger*: a machine that the inventory does not have.

pub mod bootstrap;
mod csr;
mod facts;
mod inventory;
pub mod policy;
pub mod release;
pub mod sessions;
mod verdict;
pub mod verifier;

pub use inventory::{Inventory, forget_ended, machine_id};
pub use verdict::{MachineId, ProvenMachine, Refusal, Verdict};
