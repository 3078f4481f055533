//! How large the packets of pods are, and how many of one connection go through the machine as one.
//!
//! A connection between two pods of a node costs the machine a fixed price for each burst that goes
//! from one veth pair to the other (routes, rules, the connection table, two wake-ups), whatever
//! its size; the kernel's usual most is 64 KiB. Veth pairs take more ([`BURST`]). Links that lead
//! out of the machine mostly don't, and neither do tunnels: what is larger is cut into single
//! packets before them, at twice the price of all of it. So only what stays on the machine may be
//! larger:
//!
//! - A pod's link takes [`INSIDE`] times as large packets as the machine's way out, and so do its
//!   routes to pods of its node, whose range it knows. Its other routes say what the way out takes,
//!   as do those to the node itself, which is where callers from outside seem to come from, and to
//!   services, which lead anywhere.
//! - It takes as many packets at once as make 64 KiB of those that leave the machine. Larger
//!   packets alone make larger bursts.
//!
//! Both ends of a connection say how large packets they take, so that the smaller one decides, and
//! one with a pod of an earlier agent or of another node goes on as before.

use crate::sandboxes::index_of;
use agent_sys::Result;
use agent_sys::netlink::links::{Burst, Links};
use config_errors::chain;

/// Largest packet where no default route says what the machine's links take: Ethernet's.
const DEFAULT_MTU: u32 = 1500;
/// How many times larger packets between pods of a node are than others.
const INSIDE: u32 = 3;
/// Largest packet of a way out with which that is done (Ethernet's jumbo frames): of larger ones,
/// too few make a burst.
const MOST_OUTSIDE: u32 = 9216;
/// Bytes of a burst between pods of a node.
const BURST: u32 = INSIDE * USUAL_BURST;
/// Bytes of a burst that every link takes which cuts bursts itself.
const USUAL_BURST: u32 = 65_536;
/// More than the headers of a burst's first packet.
const HEADERS: u32 = 128;
/// Bytes of the headers of IPv4 and TCP without options: the least in each packet.
const LEAST_HEADERS: u32 = 40;
/// As many packets as the kernel lets a burst have.
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
    /// The sizes where packets of `outside` bytes leave the machine whole.
    pub(crate) fn of(outside: u32) -> Self {
        let larger = (outside <= MOST_OUTSIDE).then(|| INSIDE * outside);
        Self {
            outside,
            inside: larger.unwrap_or(outside),
        }
    }

    /// What a pod's end of its veth pair takes at once: it makes the pod's bursts.
    pub(crate) fn of_pod(self) -> Burst {
        let full = self.outside.saturating_sub(LEAST_HEADERS).max(1);
        Burst {
            bytes: BURST,
            packets: (USUAL_BURST - HEADERS) / full,
        }
    }

    /// What the node's end takes at once, from pods or from outside.
    pub(crate) fn of_node() -> Burst {
        Burst {
            bytes: BURST,
            packets: MOST_PACKETS,
        }
    }

    /// Lets a veth pair's end take larger bursts, where packets are larger. A kernel that refuses
    /// makes usual ones.
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

/// The largest packet that leaves the machine whole, in bytes.
pub(crate) fn mtu(links: &mut Links) -> Result<u32> {
    let leaving = links.default_links()?;
    let sizes = links.all()?;
    let of_route = sizes.iter().filter(|link| leaving.contains(&link.index));
    Ok(of_route.map(|link| link.mtu).min().unwrap_or(DEFAULT_MTU))
}

#[cfg(test)]
#[path = "sizes_tests.rs"]
mod tests;
