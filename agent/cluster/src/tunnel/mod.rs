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
//! - Ranges are the master's word (`spec.podCIDRs`). What two nodes claim, neither has. Packets for
//!   ranges of nodes that are no peers go into the tunnel all the same, where they end: nothing for
//!   a pod leaves in the clear.
//! - What comes out of the tunnel carries an address of the peer that sent it; the kernel sees to
//!   that. What carries a pod's address and comes by another way is dropped ([`crate::rules`]).
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
