//! Attestation on the master: sessions, reference values, decisions and the admission of nodes.
//!
//! Enter by [`AttestationService`]. It answers `/attest/v1/…` and `/bootstrap/v1/…` on the API's
//! port. `exchange` runs the verifier of `config-attest` (steps 2 and 4 of WIRE.md), `decision` and
//! `policy` decide, `admit` issues certificates and writes Machine, requests and Node (step 5). A
//! refused caller gets one generic answer. The reason is in the Machine where the machine itself
//! proved it, else in a bounded ring of NodeAttestations.
//!
//! Tasks: [`AttestationService::run`] is one future for everything besides requests (followers of
//! machines, releases and policies; statuses; the queue; the ring's writer). Channels: exchanges →
//! ring (bounded; a full one drops), edits of Machines → log of verdicts (bounded; a full one drops
//! and logs an error). Shared state: the inventory (written by the followers and after the
//! service's own writes), session tables, queue, deny list.
//!
//! # Glossary
//! Terms are in the glossaries of `config_protocol` (messages) and `config_attest` (judgement).
//! - *exchange*: steps 1 to 5 for one machine ([`AttestationService`] runs many at once).
//! - *caller*: the sender of a request, before anything about it is proved. Its class chooses the
//!   rate limit's budget.
//! - *inventory*: Machines, ImageReleases and CertificatePolicies as the watches deliver them.
//! - *reference values*: a snapshot of the inventory under one policy, for one exchange.
//! - *policy*: who decides under a rule (`cloud-verify`, `queue`, …). A *draft* is a
//!   CertificatePolicy that is not in force.
//! - *queue*: CertificateSigningRequests that wait for a person. A request's *rank* decides which
//!   stays when the queue is full.
//! - *record*: a write about an exchange: Machine status, NodeAttestation, log of verdicts, event.
//! - *ring*: the NodeAttestations, of which the oldest are deleted.
//! - *deny list*: clients whose certificates are rejected before they expire ([`MachineDenyList`]).
//! - *marks*: labels and taints that a rule puts on Nodes.
//! - *static machine*: one with certificates that an admin issued; it does not attest.

mod access;
mod addresses;
mod admit;
mod answer;
mod body_rooms;
mod bootstrap;
mod caller;
mod configurations;
mod decision;
mod deny;
mod dry_run;
mod entropy;
mod error;
mod exchange;
mod exchange_limits;
mod facts;
#[cfg(test)]
mod fake_api;
mod figures;
mod in_force;
mod inventory;
mod limit;
mod locks;
mod machine_changes;
mod next_step;
mod policy;
mod queue_rank;
mod queue_writer;
mod recent_evidence;
mod record;
mod records;
mod reference;
mod request;
mod request_queue;
mod requests;
mod ring;
mod rule_changes;
mod service;
mod serving;
mod session_tables;
mod settings;
mod state_generation;
mod statuses;
mod strangers_requests;
mod time;
mod unproven;

pub use configurations::Configurations;
pub use deny::MachineDenyList;
pub use entropy::SystemEntropy;
pub use error::Error;
pub use policy::ruling;
pub use service::AttestationService;
pub use serving::ServingCertificate;
pub use settings::{AttestationConfig, BootstrapConfig};
pub use state_generation::StateGeneration;
