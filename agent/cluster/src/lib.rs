//! The pod network of one node: sandboxes, their addresses, and nftables rules.
//!
//! Enter by [`Sandboxes`]: one for the agent, opened before the first pod. A sandbox is what the
//! containers of a pod share: network, IPC, UTS and user namespaces, held by bind mounts below one
//! folder on a tmpfs, without a process; a link, an address, and memory for `/dev/shm`. Each is
//! made in steps ([`Step`]), the last of which writes a record. The next start of the agent removes
//! a folder without a record, which a crash has left, and adopts one with a record as it is.
//!
//! Every pod has a veth pair of its own to the node, and pods share no segment: the node routes all
//! that a pod sends, so there is no neighbour for ARP spoofing. The node sets both ends' Ethernet
//! addresses, and [`rules`] drop packets from a veth pair that do not carry its pod's address.
//!
//! Packets between pods of a node are larger than others, and pass the machine in larger bursts
//! (`sizes`).
//!
//! Decisions are pure: [`address`] (which pod has which address), [`rules`] (the nftables table),
//! [`shares`] (each pod's share of the connection table), [`settings`] (which kernel settings are
//! safe). Calls block for a few milliseconds: async code makes them on blocking threads.
//!
//! Tasks: [`tunnel::Keeper::run`] and [`keep_routes`] follow the kubelet's view of the cluster.
//! NetworkPolicies are in `agent-policy`.

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
