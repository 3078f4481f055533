//! The master's side of an exchange, without I/O. Each function takes the result of the one before
//! by value, so none can be left out. The steps are those of WIRE.md.
//!
//! - Step 2: [`check_hello`], or [`check_renewal`], makes a [`CheckedHello`]: keys of the right
//!   form, for a Machine that may join. [`crate::sessions::Sessions::open`] makes the challenge;
//!   the session holds [`Pending`].
//! - Step 4: [`check_evidence`] makes a [`Claimant`], or a [`crate::Refusal`] that says whether the
//!   machine itself proved what is refused. Then [`Claimant::grant`], under a rule that enforces
//!   the verdict, or [`Claimant::approve`], under one where a person decides or every request is
//!   approved, makes a [`CertificateGrant`].
//! - Step 5: the CA signs for a [`CertificateGrant`], and for nothing else.
//!
//! Machines without a TPM take the same steps by [`check_unproven_hello`] and [`check_unproven`];
//! they prove only that they hold a key.

mod claimant;
mod grant;
mod hello;
mod identity;
mod key_holder;
mod keys;
mod pending;
mod prior_approval;
mod privileged;
mod proof;
mod recorded;
mod requests;
mod state;
mod unproven;

pub use claimant::{Approval, Claimant, check_evidence};
pub use grant::CertificateGrant;
pub use hello::{CheckedHello, RenewingPeer, check_hello, check_renewal};
pub(crate) use hello::{Subject, admit_bootstrap, refusal};
pub use pending::Pending;
pub use prior_approval::PriorApproval;
pub use proof::AttestedMachine;
pub(crate) use proof::check_proof;
pub use recorded::{DryRunVerdict, RecordedEvidence};
pub use unproven::{
    CheckedUnprovenHello, UnprovenPending, check_unproven, check_unproven_hello,
    check_unproven_renewal,
};

use crate::inventory::Inventory;
use crate::policy::CheckedRule;
use crate::release::KnownRelease;
use config_certificates::EkIssuer;
use config_tpm::Digest;

/// The reference values that hello and evidence are compared with.
#[derive(Debug, Clone, Copy)]
pub struct Reference<'a> {
    /// All Machines.
    pub inventory: &'a Inventory,
    /// The rule that decides.
    pub rule: &'a CheckedRule,
    /// The issuers of EK certificates in the cluster's configuration.
    pub issuers: &'a [EkIssuer],
    /// All image releases, signed or not.
    pub releases: &'a [KnownRelease],
    /// DNS names and addresses of the API server.
    pub api_names: &'a [String],
    /// The cluster's name.
    pub cluster: &'a str,
    /// SHA-256 of the SubjectPublicKeyInfo of the admin's key, whose verdict on the first master is
    /// accepted.
    pub admin_key: Option<Digest>,
}
