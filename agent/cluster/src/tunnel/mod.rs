//! The tunnel to other machines' pods (WireGuard, in the kernel): on by default, since the network
//! between machines is an untrusted network.
//!
//! Enter by [`Keeper::run`]. Every node has two links, each with a key that it makes at its boot
//! and renews in turn, and publishes the public halves, signed by the node's key ([`Verify`] says
//! how they are judged). [`plan`] and [`slots`] are pure: nodes, their verified keys, whether their
//! machines are trusted, what the kernel holds and the time, to the kernel's peers and routes, and
//! the link whose key is renewed. [`device`] makes the kernel so.
//!
//! Guarantees:
//! - A node is a peer only while its machine is trusted and its certificate lives. It goes from
//!   both links with the next change that the node's watch tells, and its traffic with it, open
//!   connections too.
//! - Ranges come from the master (`spec.podCIDRs`). A range that two nodes claim goes to neither.
//!   Packets for ranges of nodes that are no peers are routed into the tunnel, too, where they are
//!   dropped: nothing for a pod leaves unencrypted.
//! - The kernel accepts a packet from the tunnel only with a source address of the peer that sent
//!   it. Packets with a pod's source address that arrive by another way are dropped
//!   ([`crate::rules`]).
//! - Keys are renewed without a lost packet ([`slots`]).
//! - While the master is away, peers stay until their certificates end.

mod device;
mod keeper;
mod plan;
mod slots;

#[cfg(test)]
mod tests;

pub use device::{OVERHEAD, PORTS};
pub use keeper::{Announced, Keeper, Proven, Verify};

pub(crate) use device::{Device, led_into_the_tunnel, set_routes};
pub(crate) use slots::{Plan, Renewal, Seen};
