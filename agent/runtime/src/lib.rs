//! Containers through containerd's own API: images, root file systems, tasks and logs.
//!
//! Enter by [`Runtime`], what the kubelet needs from a machine's container engine, and by
//! [`Containerd`], the engine that speaks to containerd's socket. Every container's identity (pod, name,
//! attempt) and its end (exit code, times) live in containerd's labels, so that an agent that starts
//! anew adopts all of them by listing.
//!
//! Images: `registry` says where one may be had and by which credentials, `session` proves to a registry who asks, `http`
//! and `reach` keep requests from where they must not go, `access` remembers who may run what was fetched.
//!
//! Specifications: `spec` makes a container's, and `specification` keeps it where containerd's database holds nothing of it.
//!
//! Pods with user namespaces: `mapped` shows them the layers of images as their own files.
//!
//! Logs: `log` writes what containers print; `agent_server` reads it for who asks.
//!
//! Names that pods choose are looked up by `lookup`, for probes and hooks, too.
//!
//! Tasks: [`Containerd::run`] keeps one subscription to containerd's events and turns each exit into a
//! record on the container; each running container has one log pump, a task that reads its two FIFOs.
//! Channels: [`Runtime::changes`] is a broadcast of pod uids that changed; a reader that lags lists anew.

mod access;
mod archive;
mod connection;
mod containerd;
mod content;
mod credential;
#[doc(hidden)]
pub mod decoders;
mod document;
#[cfg(test)]
mod endless;
mod events;
mod exec;
mod http;
mod images;
mod keyring;
mod labels;
mod log;
mod lookup;
mod mapped;
mod memory;
mod model;
mod open;
mod parts;
mod pause;
mod pids;
mod process;
mod programs;
mod reach;
mod reference;
mod registry;
mod root;
mod session;
mod signals;
mod spec;
mod specification;
mod taps;
mod turns;
mod users;

pub use agent_confine::{Capabilities, Seccomp, capability_fault, withheld};
pub use containerd::{Containerd, Options};
pub use credential::{Credential, Secret};
pub use keyring::{Keyring, KeyringError, PullSecret};
pub use log::{KEPT_LOGS, LOG_WRITES, LONGEST_LOG, rotated};
pub use lookup::{Lookups, OF_HANDLERS};
pub use mapped::show;
pub use model::{
    Change, Confinement, Container, ContainerKey, ContainerSpec, ContainerState, Error, ErrorClass,
    ExecOutput, GroupsPolicy, Image, Kind, Layers, Mount, Pause, Pending, PodNamespaces, PodRef,
    PullPolicy, Resources, Runtime, SharedNamespaces, User, Users, container_id,
};
pub use process::{Attached, Command, Control, Input, Output, Outputs, Process};
pub use programs::Programs;
pub use reference::{DOCKER_HUB, Reference, ReferenceError};
pub use registry::{Registries, Registry};
pub use taps::{Stream, Tap};
