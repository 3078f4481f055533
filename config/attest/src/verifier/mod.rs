//! The master's side, without I/O: three steps, each taking the one before by value.
//!
//! 1. [`check_hello`] (or [`check_renewal`]) → [`Admitted`]: the caller shows keys of the right form for a Machine that may join.
//! 2. [`crate::sessions::Sessions::open`] → challenge; the session holds [`Pending`].
//! 3. [`check_evidence`] → [`Claimant`], which proved which machine it is, with a verdict on all else; or a
//!    [`crate::Refusal`] that says whether the machine itself proved what is refused.
//!    Machines without a TPM come by [`check_unproven_hello`] and [`check_unproven`], and are nobody but whoever holds a key.
//! 4. [`Claimant::verified`] under a rule that enforces its verdict, [`Claimant::approve`] under one that leaves it to a
//!    person or nobody → [`Verified`], the only thing that the CA signs for.

mod claimant;
mod hello;
mod identity;
mod keys;
mod pending;
mod privileged;
mod proof;
mod requests;
mod shown;
mod standing;
mod state;
mod unproven;
mod verified;

pub use claimant::{Approval, Claimant, check_evidence};
pub use hello::{Admitted, RenewingPeer, check_hello, check_renewal};
pub(crate) use hello::{Subject, admit_bootstrap, refusal};
pub use pending::Pending;
pub use proof::Attested;
pub(crate) use proof::check_proof;
pub use shown::{Judged, Shown};
pub use standing::Standing;
pub use unproven::{
    UnprovenAdmitted, UnprovenPending, check_unproven, check_unproven_hello, check_unproven_renewal,
};
pub use verified::Verified;

use crate::digest::Digest;
use crate::ek::EkIssuer;
use crate::inventory::Inventory;
use crate::policy::CheckedRule;
use crate::release::KnownRelease;

/// What the master holds true at the moment of a check.
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
    /// SHA-256 of the SubjectPublicKeyInfo of the admin's key: believes its verdict on the first master.
    pub admin_key: Option<Digest>,
}
