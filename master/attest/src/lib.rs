//! Attestation on the master: sessions, reference values, verdicts and the admission of nodes.
//!
//! Enter by [`AttestationService`]: it answers `/attest/v1/…` and `/bootstrap/v1/…` on the API's port, drives the verifier
//! of `config-attest`, and writes what was proved: Machine status, requests with their approval, the Node. What is refused
//! gets one generic answer; the reason is in the Machine where the machine itself proved it, and else in a bounded ring of
//! NodeAttestations.
//!
//! Tasks: [`AttestationService::run`] is one future for all that runs beside the requests (followers of machines, releases
//! and policies; taints; statuses; upstream's signers; the ring's writer). Channel: requests → ring, bounded, full drops.
//! Shared state: the inventory (written by the followers and after own writes), the session table, the deny list.

mod addresses;
mod admit;
mod answer;
mod bootstrap;
mod caller;
mod deny;
mod entropy;
mod error;
mod exchange;
mod exchanges;
mod figures;
mod inventory;
mod issued;
mod journal;
mod limit;
mod marks;
mod next_step;
mod node;
mod policy;
mod queue;
mod record;
mod request;
mod ring;
mod service;
mod signer;
mod standing;
mod tryout;
mod unproven;
mod verdicts;
mod waiting;

pub use bootstrap::Bootstrap;
pub use deny::MachineDenyList;
pub use entropy::SystemEntropy;
pub use error::Error;
pub use service::{AttestationService, Terms};
pub use verdicts::VerdictLog;
