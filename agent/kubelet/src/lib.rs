//! The kubelet: it runs the pods that are bound to this node, and reports them and the Node.
//!
//! Enter by [`Kubelet`], which needs a client of the API (`agent_api::Api`) and a container engine
//! (`agent_runtime::Runtime`); [`Kubelet::server`] makes what answers on port 10250
//! (`agent_server`). The pod machine (`agent_pods`), a pure function of the pod, its containers and
//! the time, decides what is done for a pod; only the pod's `worker` does it. [`Drain`] ends pods
//! at the machine's shutdown, while the tasks below run, and then, after they have ended, all
//! containers that are left.
//!
//! Tasks of [`Kubelet::run`]; when one ends, all end:
//!
//! - `pods` lists and watches this node's pods and keeps a `worker` for each.
//! - `node` has two tasks: one writes the Node's status, one renews its lease.
//! - `mirrors` shows static pods at the API.
//! - `capacity` limits the control group of all pods, if the kubelet owns the machine.
//! - `pressure` evicts pods when the node runs out of something.
//! - `garbage` removes the unused images that `agent_images` chooses when the disk fills up.
//! - `links` repairs the symlinks to containers' logs.
//! - `agent_csi::Csi` registers CSI drivers and unstages volumes that no pod uses.
//! - `agent_api::events` writes events.
//! - `oom` records that the machine ran out of memory, if the kubelet owns the machine.
//! - With the cluster's view: `cluster` watches services, nodes, policies, namespaces and pods;
//!   `ranges` applies the Node's pod CIDRs; `agent_policy` applies network policies;
//!   `agent_cluster::keep_routes` sets routes to other nodes' pods, if it is configured.
//!
//! Tasks of one pod's `worker`, besides its steps:
//!
//! - `starts`: each start of a container; `pull`: each fetch of an image.
//! - `worker::volumes`: the first set-up of volumes; `worker::evict`: measurements and records.
//! - `agent_probes`: each container with probes, and each hook that runs.
//!
//! Other modules:
//!
//! - A pod: `desired` and `handle` (between `pods` and `worker`), `sandbox`, `supplies` (volumes,
//!   config maps, secrets, tokens), `cleanup`, `names`.
//! - The node: `preemption` and `shutdown` (graceful node shutdown).
//! - All: `kubelet` (makes and runs the tasks), `shared` (what they share), `config`, `configz`
//!   (`/configz`), `drain`.
//!
//! Channels: a `watch` from `pods` to each worker (the desired pod), a `Notify` to each worker
//! (something has changed), a `watch` from each worker to `pressure` (the evicted pod has released
//! its resources), a bounded `mpsc` to the task that writes events.

mod capacity;
mod cleanup;
mod cluster;
mod config;
mod configz;
mod desired;
mod drain;
mod garbage;
mod handle;
mod kubelet;
mod links;
mod mirrors;
mod names;
mod node;
mod oom;
mod pods;
mod preemption;
mod pressure;
mod pull;
mod ranges;
mod sandbox;
mod shared;
mod shutdown;
mod starts;
mod supplies;
mod worker;

pub use agent_launch::Machine;
pub use agent_pressure::{ImageMarks, Least, Notice, Notices, Signal, Soft, Thresholds};
pub use config::{Config, DEFAULT_MAX_PODS, PORT};
pub use drain::{Drain, Drained};
pub use kubelet::{BLOCKED_BY_WALKS, Kubelet};
