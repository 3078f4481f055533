//! The only unsafe room: block devices, device mapper, kernel modules, mounts, processes, signals,
//! sockets, clock, power and the raw TPM device, behind safe calls.
//!
//! Guarantees: no policy lives here. Each call does one thing, says what it could not do in a typed
//! [`Error`] with the system's reason as its source, and holds no state. There are no tasks and no
//! channels, except the thread of a [`landlock::Domain`]. The wire layouts (device-mapper
//! requests, TPM commands) are built and read by pure functions, so that they are tested without a
//! kernel.
//!
//! Enter at the module of the thing: [`verity`] opens a read-only verified root, [`crypt`] an
//! encrypted volume, [`module`] loads kernel modules, [`process`] starts services, [`landlock`]
//! keeps their signals among themselves, [`tpm`] extends a PCR, [`beneath`] handles files that a
//! pod can touch, [`held`] finds files that have no name any more, [`cgroup`] reads control groups,
//! [`namespace`] holds a pod's namespaces, [`mounted`] lists mounts, [`netlink`] has links and the
//! packet filter.
//!
//! Containers must never be given a TPM device: [`tpm::DEVICE_NAMES`] lists the names to leave out.

#![allow(
    unsafe_code,
    reason = "this is the one room for it; every block says why it is sound"
)]

pub mod attach;
pub mod beneath;
pub mod block;
pub mod cgroup;
pub mod clock;
pub mod crypt;
#[doc(hidden)]
pub mod decoders;
mod error;
pub mod figures;
pub mod held;
pub mod landlock;
mod mapper;
pub mod module;
pub mod mount;
pub mod mounted;
pub mod namespace;
pub mod netlink;
pub mod power;
pub mod process;
pub mod signal;
pub mod socket;
pub mod terminal;
pub mod tpm;
mod usage;
pub mod verity;

pub use error::{Error, Result};
