//! Probes and lifecycle hooks of a pod's containers: when they run, and their results.
//!
//! Enter by [`Probes`] and [`Hooks`], of which each pod's task has one: it calls `follow` with the
//! containers that it sees, and reads verdicts and progress into the notes from which the pod
//! machine (`agent_pods`) decides. What a probe or a hook does once is `agent_handlers`.
//!
//! Tasks: one for each container with probes, one for each hook that runs; they end with the
//! container, or when [`Probes`] and [`Hooks`] end them. Channels: a `Notify` that wakes the pod's
//! task when a verdict or the progress of a hook changes.

mod hooks;
mod probes;

pub use hooks::Hooks;
pub use probes::Probes;

use agent_pods::is_on_host;
use config_kube::k8s_openapi::api::core::v1::Pod;
use std::net::{IpAddr, Ipv4Addr};

/// Where probes and hooks reach a pod at this address. One on the machine's network is reached at
/// the loopback before the machine's address is known.
fn reached(pod: &Pod, address: Option<IpAddr>) -> Option<IpAddr> {
    address.or_else(|| is_on_host(pod).then_some(Ipv4Addr::LOCALHOST.into()))
}
