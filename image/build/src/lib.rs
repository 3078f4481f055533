//! From a description, packages and binaries to an image and the PCR values it will show.
//!
//! One builder makes the images of both roles: Debian's packages and our programs become a
//! read-only root ([`root`]) with a verity tree, its hash goes into the command line of a unified
//! kernel image ([`uki`]), both go onto a disk ([`disk`]), and the values that firmware and kernel
//! will measure go into a signed release ([`release`]). No root rights, loop devices or mounts; the
//! same inputs give the same bytes.
//!
//! No tasks, no channels; programs of the tools tree are run one after another. Enter by
//! [`build::run`]; [`update`] writes an image onto a machine's disk beside the state.

pub mod authorities;
pub mod build;
pub mod disk;
mod error;
pub mod initrd;
pub mod keys;
pub mod modules;
pub mod options;
pub mod release;
pub mod root;
mod rootfiles;
pub mod uki;
pub mod update;

pub use error::{Error, Result};
