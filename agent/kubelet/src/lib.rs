//! The node: the loop that drives the pod machine, status, lease, and what the kubelet's own API
//! answers from.
//!
//! Enter by [`Kubelet`], which needs a way to the master (`agent_api::Api`) and a container engine
//! (`agent_runtime::Runtime`), and makes what answers the master on port 10250 (`agent_server`).
//! What is done for a pod is decided by the pod machine (`agent_pods`), a pure function of the pod,
//! the containers that are seen, and the time; `worker` is the only one who acts.
//!
//! Tasks: `pods` lists and watches the pods of this node and keeps one `worker` for each; `node`
//! writes the Node's status and renews its lease; `agent_api::events` writes events; `garbage`
//! removes images when the disk fills up; `pressure` evicts pods when something runs out; `mirrors`
//! shows static pods at the API; `links` keeps the links to containers' logs; one task for each
//! container with probes and for each hook that runs (`agent_probes`), for each fetch of an image,
//! and for each start of a container. Channels: a `watch` from `pods` to each worker (what is
//! wanted), a `Notify` to each worker (something changed, look), a bounded `mpsc` to the task that
//! writes events.

mod capacity;
mod cleanup;
mod cluster;
mod config;
mod configz;
#[doc(hidden)]
pub mod decoders;
mod desired;
mod drain;
mod garbage;
mod handle;
mod kubelet;
mod links;
mod mirrors;
mod names;
mod node;
mod node_events;
mod notices;
mod oom;
mod pods;
mod preemption;
mod pressure;
mod progress;
mod pull;
mod ranges;
mod sandbox;
mod shared;
mod shutdown;
mod starts;
mod supplies;
mod worker;

pub use agent_launch::Machine;
pub use agent_pressure::{ImageMarks, Least, Signal, Soft, Thresholds};
pub use config::{Config, DEFAULT_MAX_PODS, PORT};
pub use drain::{Drain, Drained};
pub use kubelet::{BLOCKED_BY_WALKS, Kubelet};
pub use notices::{Notice, Notices};
