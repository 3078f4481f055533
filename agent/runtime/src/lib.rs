//! Containers through containerd's own API: images, root file systems, tasks and logs.
//!
//! Enter by [`Runtime`], what the kubelet needs from a machine's container engine, and by
//! [`Containerd`], the engine that speaks to containerd's socket. Every container's identity (pod, name,
//! attempt) and its end (exit code, times) live in containerd's labels, so that an agent that starts
//! anew adopts all of them by listing.
//!
//! Tasks: [`Containerd::run`] keeps one subscription to containerd's events and turns each exit into a
//! record on the container; each running container has one log pump, a task that reads its two FIFOs.
//! Channels: [`Runtime::changes`] is a broadcast of pod uids that changed; a reader that lags lists anew.

mod archive;
mod confine;
mod connection;
mod containerd;
mod content;
mod events;
mod exec;
mod http;
mod images;
mod labels;
mod log;
mod model;
mod programs;
mod reference;
mod registry;
mod spec;
mod users;

pub use containerd::{Containerd, Options};
pub use log::rotated;
pub use model::{
    Capabilities, Change, Confinement, Container, ContainerKey, ContainerSpec, ContainerState, Error, ErrorClass,
    ExecOutput, Image, Kind, Mount, Pending, PodRef, PullPolicy, Resources, Runtime, Seccomp, SharedNamespaces,
    container_id,
};
pub use programs::Programs;
pub use reference::{Reference, ReferenceError};
pub use registry::{Registries, Registry};
