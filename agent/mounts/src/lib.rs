//! Volumes of pods: made, mounted for containers, measured against their limits.
//!
//! Enter by [`volumes::prepare`], which makes a pod's volumes; by [`volumes::place`] and
//! [`stage::Staged::make`], which mount what a container sees of them; and by [`storage::excess`],
//! which compares what a pod takes of the disk with its limits. All of it depends on the machine by
//! [`Machine`] alone. Functions block while they work on files. No tasks, no channels.

mod host_paths;
#[cfg(test)]
mod hostile;
mod machine;
pub mod stage;
pub mod storage;
pub mod volumes;

pub use host_paths::{host_path_fault, is_plug_in, narrowed};
pub use machine::Machine;
