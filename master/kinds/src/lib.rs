//! The built-in kinds: each is described once, with names, scope, columns, defaults, validation and
//! strategy.
//!
//! Start at [`builtin::all`], the descriptors of all built-in kinds. What a descriptor is made of
//! (`Kind`, `Strategy`, `Column`) is in `master-schema`; pods, workloads, the network, volumes and
//! devices have rooms of their own.
//!
//! No tasks, no channels, no I/O.

pub mod builtin;
