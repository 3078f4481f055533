//! Volumes of CSI drivers on this machine.
//!
//! A driver is a privileged pod that registers by a socket in `plugins_registry` and answers CSI's
//! node service at another. Only a machine whose measured configuration allows privileged pods has
//! drivers. Enter by [`Csi`]: [`Csi::mount`] stages and publishes a pod's volume,
//! [`Csi::release`] undoes it when the pod's containers are gone.
//!
//! - [`volume`] (pure) says which call comes next; [`request`] (pure) says what the driver is sent,
//!   and refuses what the node does not do for it: attaching, service account tokens.
//! - [`ledger`] keeps what may be mounted on the disk, so that an agent that begins again goes on
//!   where the last one ended.
//! - [`ownership`] gives a volume's files the pod's group, on a thread of its own, because a file
//!   system may never answer.
//! - [`usage`] (pure) reads what a driver says of how much of a volume is used.
//! - [`registry`] finds and identifies drivers; [`node`] publishes them in the API.
//! - [`grpc`] makes one call on one connection. A driver's answers are hostile input: bounded in
//!   time and size, and a mount that it reports is inspected by descriptors, without following
//!   links.
//!
//! Tasks: [`Csi::run`] looks for drivers and unstages what no pod uses; a job for each pod that
//! goes; threads, for a namespace's volumes, that give groups. No channels.

mod calls;
mod csi;
#[doc(hidden)]
pub mod decoders;
mod driver;
mod grpc;
mod jobs;
mod ledger;
pub mod messages;
mod node;
mod ownership;
mod paths;
mod registry;
mod request;
#[cfg(test)]
mod served;
mod usage;
mod volume;

pub use csi::Csi;
pub use paths::DriverOptions;
pub use request::DriverVolume;
pub use usage::{Amounts, Usage};
