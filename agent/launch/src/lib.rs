//! What a pod's containers start with: volumes, mounts, files, names and the engine's
//! specification; and what this node refuses to run.
//!
//! [`refusals`] says why the node can't run a pod. Then enter by [`volumes::prepare`], which makes
//! a pod's volumes, by [`container::prepare`], which makes the specification of one attempt with
//! the files that it needs, and by [`stage::Staged::make`], which mounts for the engine what the
//! container sees. [`network`] has the names by which a pod knows itself and others (pure),
//! [`resolver`] its resolver file (pure), [`storage`] compares what a pod takes of the disk with
//! its limits, [`debug`] has the rules of `kubectl debug`, [`links`] the links by which programs
//! that collect logs find them.
//!
//! All of it depends on the machine by [`Machine`] alone. Functions block while they work on files.
//! No tasks, no channels.

pub mod container;
pub mod debug;
mod host_paths;
#[cfg(test)]
mod hostile;
pub mod links;
mod machine;
pub mod network;
pub mod refusals;
pub mod resolver;
mod security;
mod shares;
pub mod stage;
pub mod storage;
mod sub_paths;
pub mod volumes;

pub use host_paths::narrowed;
pub use machine::Machine;
