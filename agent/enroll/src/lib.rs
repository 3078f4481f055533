//! From evidence to certificates: drives the prover against the master and renews.
//!
//! [`Enroller::enroll`] tries until the master accepts the machine: hello, challenge, evidence and
//! certificates go over one TLS 1.3 connection whose server is known by its pinned root. It gives
//! an [`Identity`] (the way to the API by [`MasterClient`], the kubelet API's certificate in a
//! [`CertificateSlot`]) and a [`Renewer`], which the caller polls while the node lives: it renews
//! at a third of the lifetime and replaces the certificates as a whole.
//!
//! The client key is the node key inside the TPM ([`NodeKey`]). Signing blocks for one TPM command
//! within a handshake, so a multi-thread runtime is needed. No task is spawned here but the driver
//! of each HTTP connection, which ends with it. A machine without a TPM asks with a key in memory
//! ([`Enroller::without_tpm`]) and proves nothing. [`issued`] is the other source of an
//! [`Identity`]: an admin issued it in advance. Progress goes to a [`MilestoneCallback`]; nothing
//! here prints.

mod client;
mod connector;
mod endpoint;
mod enroller;
mod error;
mod exchange;
mod figures;
mod identity;
pub mod issued;
mod keys;
mod pace;
mod prover;
mod request;
mod step;
pub mod tunnel;

pub use client::{Answer, Lines, MasterClient};
pub use config_tls::{Pin, Pins, pins_text, spki_hash};
pub use endpoint::{Endpoint, Endpoints};
pub use enroller::{Enroller, Identity, Milestone, MilestoneCallback, Renewer, Settings};
pub use error::Error;
pub use exchange::Cost;
pub use figures::{FailedRenewals, IdentityFigures};
pub use identity::{CertificateSlot, PinnedRoots, RootReadiness, root_readiness};
pub use keys::NodeKey;
pub use pace::{Cadence, NextAction};
pub use prover::{Logs, ProveError, Prover};
pub use step::Step;
