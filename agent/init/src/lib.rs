//! PID 1: from the start by the kernel to a supervised agent, without a network.
//!
//! Two stages of one static binary. In the initrd ([`initrd`]) it loads a few modules, finds the
//! disk whose partitions match the root hash on the kernel command line, opens the root through
//! dm-verity and changes to it. From the verified root ([`stage2`]) it mounts, opens or makes the
//! state partition, finds the machine's configuration, measures it into PCR 13 exactly once, and
//! supervises containerd, agent and master. If the configuration comes from a metadata service,
//! init starts the agent to fetch it ([`cloud`], [`oneshot`]).
//!
//! Where it is not the first process it is the container runtime that containerd's shim starts
//! ([`launch`]): crun, given the specification of a container from memory.
//!
//! Guarantees:
//! - Nothing of the configuration's content reaches the console; milestones and failures are one
//!   line each.
//! - A configuration that could not be measured on a machine with a TPM is never used.
//! - The supervisor never waits on the supervised: their output goes through a bounded queue to a
//!   writer thread, and what doesn't fit is counted and dropped.
//! - A panic reboots the machine.
//! - No service starts before the kernel settings of [`config_machine::kernel`] are in force
//!   ([`hardening`]).
//! - Nothing on the state's file system can be executed, except in pods' own volumes ([`state`]).
//!
//! Tasks and channels: the main thread polls signals, service output, the power button and a timer
//! ([`services`]); one writer thread takes lines from a bounded channel to log files and console
//! ([`output`]). Decisions are pure functions: [`gpt`], [`smbios`], [`spcr`], [`label`],
//! [`supervisor`], [`shutdown::unmount_order`].

pub mod allowed;
pub mod button;
pub mod cloud;
pub mod console;
pub mod disks;
pub mod ext4;
pub mod fatal;
pub mod generation;
pub mod gpt;
pub mod guid;
pub mod hardening;
pub mod initrd;
pub mod label;
pub mod launch;
pub mod lines;
pub mod measure;
pub mod modules;
pub mod mounts;
pub mod oneshot;
pub mod output;
pub mod services;
pub mod settings;
pub mod shutdown;
pub mod smbios;
pub mod source;
pub mod spcr;
pub mod stage2;
pub mod state;
mod state_fault;
mod state_kept;
mod state_partition;
mod state_text;
pub mod supervisor;
pub mod unlock;
pub mod user_data;
