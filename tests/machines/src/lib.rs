//! Machines in software that speak the real wire format, and a master's reference values for them.
//!
//! For tests only: the keys of a [`SoftMachine`] are in plain memory, so nothing here is a TPM.
//! Attacks change fields before an exchange; unchanged, the exchange is accepted, which is the
//! negative control.
//!
//! Panics where a test's own premises are broken; never used by a program.
#![allow(
    clippy::missing_errors_doc,
    reason = "each fails as the step of the verifier that it drives"
)]

mod image;
mod machine;
mod requests;
mod rng;
mod unproven;
mod world;

pub use image::SoftImage;
pub use machine::{EkKind, SoftMachine};
pub use requests::{Pair, Requester, ek_certificate};
pub use rng::SeededRng;
pub use unproven::SoftKeyed;
pub use world::{References, World};
