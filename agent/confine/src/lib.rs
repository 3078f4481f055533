//! The floor under containers: capabilities, system calls and paths of the kernel.
//!
//! A machine that was proved must stay what was proved, whatever its pods do. [`capabilities()`]
//! decides which capabilities no pod spec gets, [`filter`] which system calls no container makes,
//! and [`masked`] which paths of the kernel no container sees. A privileged container has none of
//! this; a machine runs one only where its measured configuration allows it.
//!
//! [`MACHINE_ONLY`] lists addresses that pods don't reach.
//!
//! [`mount_fault`] compares a container's mounts with those that were wanted, before it runs.
//!
//! [`Lookups`] bounds what names that pods choose cost the machine, and [`NamedTurns`] keeps one of
//! them from all turns at something; [`Turns`] are locks by name. [`Threads`] are for calls into
//! volumes' file systems, which may never answer; [`apart`] makes such a call.
//!
//! [`users`] decides which user and group ids of the machine a pod with a user namespace has.
//!
//! No tasks, but such threads; of the machine it reads `/sys` and `/dev` ([`Tpms::find`],
//! [`devices`]). Enter by these functions: `agent_runtime` writes what they answer into a
//! container's specification.

mod apart;
mod calls;
mod capabilities;
mod lookup;
mod machine_only;
mod mounts;
mod paths;
mod seccomp;
mod shares;
mod turns;
#[cfg(test)]
mod upstream;
pub mod users;

pub use apart::{Place, Steps, Threads, apart};
pub use capabilities::{
    Capabilities, TERMINALS, capabilities, capability_fault, resource_limits, withheld,
};
pub use lookup::{Lookups, OF_HANDLERS, OF_IMAGES};
pub use machine_only::{MACHINE_ONLY, MachineOnly, is_machine_only};
pub use mounts::{ExpectedMount, mount_fault};
pub use paths::{Device, KernelView, Tpms, device_rules, devices, masked, nodes, read_only};
pub use seccomp::{FilterOptions, Seccomp, filter};
pub use shares::{NamedTurns, Turn};
pub use turns::Turns;
