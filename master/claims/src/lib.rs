//! Which persistent volume fits which claim: upstream's rules, which the binder and the scheduler
//! share.
//!
//! [`Claim`], [`Volume`] and [`Class`] are the needed parts of the objects; [`best`] chooses a
//! volume for a claim, [`fault`] says why a volume that a claim names does not fit. Pure: no I/O,
//! no tasks, no clock. Enter at [`best`].

mod claim;
mod class;
mod fit;
mod volume;

pub use claim::{BIND_COMPLETED, BOUND_BY_CONTROLLER, Claim, PROVISIONER, SELECTED_NODE};
pub use class::Class;
pub use fit::{ReachableFrom, best, fault};
pub use volume::{ClaimRef, CsiVolume, Volume};
