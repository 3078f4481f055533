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
mod decision;
mod deny;
mod dry_run;
mod entropy;
mod error;
mod exchange;
mod exchange_limits;
mod facts;
mod figures;
mod inventory;
mod issued;
mod limit;
mod locks;
mod marks;
mod next_step;
mod node;
mod policy;
mod queue_writer;
mod recent_evidence;
mod record;
mod records;
mod reference;
mod request;
mod request_queue;
mod ring;
mod service;
mod session_tables;
mod settings;
mod signer;
mod standing;
mod time;
mod unproven;

pub use deny::MachineDenyList;
pub use entropy::SystemEntropy;
pub use error::Error;
pub use service::AttestationService;
pub use settings::{AttestationConfig, BootstrapConfig};
