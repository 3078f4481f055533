//! The pod network of one node: sandboxes, their addresses, and the packet filter's rules.
//!
//! Enter by [`Sandboxes`]: one for the agent, opened before the first pod. A sandbox is what the
//! containers of a pod share: network, IPC and UTS namespaces, held by mounts below one folder in
//! memory, without a process; a link, an address, and memory for `/dev/shm`. Each is made in steps
//! ([`Step`]) of which the last writes a record. A folder without a record is what a crash left,
//! and the next start takes it away; one with a record is adopted as it is.
//!
//! Every pod has a veth pair of its own to the node and no segment is shared: what a pod sends goes
//! to the node's routes and nowhere else, so there is no neighbour to be deceived by ARP. The node
//! fixes both ends' Ethernet addresses, and [`rules`] let out of a veth pair only what carries its
//! pod's address.
//!
//! Packets between pods of a node are larger than others, and go through the machine in larger
//! bursts (`sizes`).
//!
//! Decisions are pure: [`address`] (which pod has which address), [`rules`]
//! (what the packet filter holds), [`shares`] (what a pod may have of the connection table),
//! [`settings`] (which kernel settings are safe). Calls block for a few milliseconds, and an event
//! loop makes them on threads for that.
//!
//! Tasks: [`tunnel::Keeper::run`] and [`keep_routes`] follow what the kubelet's watches know of the
//! cluster. NetworkPolicies are a room of their own, `agent-policy`.

pub mod address;
mod error;
mod flows;
mod ledger;
mod link_settings;
mod machine_only;
mod namespaces;
mod peers;
mod routes;
mod rule_steps;
pub mod rules;
mod sandbox;
mod sandboxes;
pub mod settings;
pub mod shares;
mod sizes;
pub mod tunnel;

pub use error::Error;
pub use peers::{Peer, Unreached};
pub use routes::keep_routes;
pub use sandbox::{Sandbox, SandboxSpec, Step, link_name};
pub use sandboxes::{SandboxOptions, Sandboxes};
