//! Sets how large the packets of pods are, and how many of one connection pass the machine in one
//! burst (GSO).
//!
//! A connection between two pods of a node costs the machine a fixed price for each burst that goes
//! from one veth pair to the other (routes, rules, the connection table, two wake-ups), whatever
//! its size; the kernel's usual limit is 64 KiB. Veth pairs take more ([`BURST`]). Most links that
//! lead out of the machine don't, and neither do tunnels: before them a larger burst is cut into
//! single packets, which doubles its cost. So only bursts that stay on the machine may be larger:
//!
//! - The MTU of a pod's link is [`INSIDE`] times that of the machine's way out, and so is that of
//!   its routes to pods of its node, by their range. Its other routes have the MTU of the way out:
//!   also those to the node itself, whose address callers from outside seem to have, and to
//!   services, whose endpoints are anywhere.
//! - A burst has at most as many packets as make 64 KiB with the MTU of the way out. So only larger
//!   packets make larger bursts.
//!
//! Both ends of a connection announce the size of packets that they take (TCP MSS), and the smaller
//! one decides: so connections with pods of an earlier agent or of other nodes work as before.

use crate::sandboxes::index_of;
use agent_sys::Result;
use agent_sys::netlink::links::{Burst, Links};
use config_errors::chain;

/// MTU if no default route leads to a link: Ethernet's.
const DEFAULT_MTU: u32 = 1500;
/// How many times larger packets between pods of a node are than others.
const INSIDE: u32 = 3;
/// Largest MTU of a way out with which that is done (Ethernet's jumbo frames): of larger packets,
/// too few fit in a burst.
const MOST_OUTSIDE: u32 = 9216;
/// Bytes of a burst between pods of a node.
const BURST: u32 = INSIDE * USUAL_BURST;
/// Bytes of a burst that every link with segmentation offload takes.
const USUAL_BURST: u32 = 65_536;
/// More than the headers of a burst's first packet.
const HEADERS: u32 = 128;
/// Bytes of the headers of IPv4 and TCP without options: the least in each packet.
const LEAST_HEADERS: u32 = 40;
/// Most packets that the kernel allows in a burst.
const MOST_PACKETS: u32 = 65_535;

/// Sizes of a pod's packets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Of those that leave the machine.
    pub(crate) outside: u32,
    /// Of those to pods of the same node.
    pub(crate) inside: u32,
}

impl Sizes {
    /// The sizes if packets of `outside` bytes leave the machine unfragmented.
    pub(crate) fn of(outside: u32) -> Self {
        let larger = (outside <= MOST_OUTSIDE).then(|| INSIDE * outside);
        Self {
            outside,
            inside: larger.unwrap_or(outside),
        }
    }

    /// The largest burst at a pod's end of its veth pair: it makes the pod's bursts.
    pub(crate) fn of_pod(self) -> Burst {
        let full = self.outside.saturating_sub(LEAST_HEADERS).max(1);
        Burst {
            bytes: BURST,
            packets: (USUAL_BURST - HEADERS) / full,
        }
    }

    /// The largest burst at the node's end, from pods or from outside.
    pub(crate) fn of_node() -> Burst {
        Burst {
            bytes: BURST,
            packets: MOST_PACKETS,
        }
    }

    /// Allows larger bursts at a veth pair's end, if packets are larger. A kernel that refuses
    /// keeps the usual size.
    pub(crate) fn widen(self, link: &str, burst: Burst, links: &mut Links) -> Result<()> {
        if self.inside == self.outside {
            return Ok(());
        }
        let index = index_of(links, link)?;
        if let Err(error) = links.set_burst(index, burst) {
            tracing::debug!(
                link,
                error = chain(&error),
                "pods' connections have bursts of the usual size"
            );
        }
        Ok(())
    }
}

/// The largest packet that leaves the machine unfragmented, in bytes.
pub(crate) fn mtu(links: &mut Links) -> Result<u32> {
    let leaving = links.default_links()?;
    let sizes = links.all()?;
    let of_route = sizes.iter().filter(|link| leaving.contains(&link.index));
    Ok(of_route.map(|link| link.mtu).min().unwrap_or(DEFAULT_MTU))
}

#[cfg(test)]
#[path = "sizes_tests.rs"]
mod tests;
