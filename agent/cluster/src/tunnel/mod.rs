//! The tunnel to other machines' pods (WireGuard, in the kernel). It is on by default, since the
//! network between machines is not trusted.
//!
//! Enter by [`Keeper::run`]. Every node has two links, each with a key that it makes at its boot
//! and renews in turn. It publishes the public keys, signed by the node's key ([`Verify`] checks
//! them). [`plan`] and [`slots`] are pure: from nodes, their verified keys, whether their machines
//! are trusted, the kernel's state and the time, they compute the kernel's peers and routes, and
//! the link whose key is renewed. [`device`] applies that to the kernel.
//!
//! Guarantees:
//! - A node is a peer only while its machine is trusted and its certificate is valid. Else it is
//!   removed from both links with the next plan, which stops its traffic, open connections too.
//! - Ranges come from the master (`spec.podCIDRs`). A range that two nodes claim is given to
//!   neither. Packets for ranges of nodes that are no peers are routed into the tunnel, too, where
//!   they are dropped: no packet to a pod leaves unencrypted.
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
