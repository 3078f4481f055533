//! The confinement that every container has: limits of capabilities, system calls and kernel paths.
//!
//! A machine that was attested must stay in the attested state, whatever its pods do.
//! [`capabilities()`] decides which capabilities no pod spec can get, [`filter`] which system calls
//! no container makes, and [`masked`] which paths of the kernel no container sees. A privileged
//! container has none of this; a machine runs one only where its measured configuration allows it.
//!
//! [`MACHINE_ONLY`] lists addresses that pods don't reach.
//!
//! [`mount_fault`] compares a container's mounts with the requested ones, before it runs.
//!
//! [`Lookups`] limits concurrent look-ups of names that pods choose. [`NamedTurns`] is a semaphore
//! of which no single name (a namespace, say) gets all turns; [`Turns`] are locks by name.
//! [`Threads`] are for calls into volumes' file systems, which may never answer; [`apart`] makes
//! such a call.
//!
//! [`users`] decides which user and group ids of the machine a pod with a user namespace has.
//!
//! No tasks, only such threads; of the machine it reads `/sys` and `/dev` ([`Tpms::find`],
//! [`devices`]). Enter by these functions: `agent_runtime` writes their results into a container's
//! OCI specification.

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
