//! The floor under containers: capabilities, system calls and paths of the kernel.
//!
//! A machine that was proved must stay what was proved, whatever its pods do. [`capabilities`] decides what no pod spec gets,
//! [`seccomp`] which calls no container makes, and what is masked here no container sees. A privileged container has none of
//! this; a machine runs one only where its measured configuration says so.

mod calls;
pub(crate) mod capabilities;
pub(crate) mod paths;
pub(crate) mod seccomp;

pub(crate) use capabilities::capabilities;
