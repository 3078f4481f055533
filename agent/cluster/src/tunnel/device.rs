//! Makes the kernel's tunnel as planned.

use super::plan::{Plan, differences};
use crate::rules::TUNNEL;
use crate::sandboxes::{mtu, set_ipv6, set_link};
use agent_sys::Result;
use agent_sys::netlink::Family;
use agent_sys::netlink::links::{Links, Route};
use agent_sys::netlink::wireguard::{Change, Key, WireGuard};
use config_model::format::Cidr;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// The UDP port at which every machine is reached (WireGuard's usual one).
pub const PORT: u16 = 51_820;
/// Bytes that the tunnel puts around a packet: IPv6 and UDP headers, and its own.
pub const OVERHEAD: u32 = 80;

/// The tunnel's link and its key, which live as long as the machine's boot: a later agent goes on with both, and no connection
/// breaks.
#[derive(Debug, Default)]
pub(crate) struct Device {
    /// Where each peer was said to be.
    told: BTreeMap<Key, SocketAddr>,
}

impl Device {
    /// Makes the link where there is none; its public key. `addresses`: the node's own in its ranges of pod addresses.
    pub(crate) fn ready(&mut self, addresses: &[IpAddr]) -> Result<Key> {
        let mut links = Links::open()?;
        if links.named(TUNNEL)?.is_none() {
            let size = mtu(&mut links)?.saturating_sub(OVERHEAD);
            links.add_wireguard(TUNNEL, size)?;
            self.told.clear();
        }
        let index = crate::sandboxes::index_of(&mut links, TUNNEL)?;
        let mut kernel = WireGuard::open()?;
        let mut tunnel = kernel.read(index)?;
        if tunnel.key.is_none() {
            kernel.renew_key(index)?;
            tunnel = kernel.read(index)?;
        }
        if tunnel.port != PORT {
            kernel.listen(index, PORT)?;
        }
        set_link(TUNNEL)?;
        set_ipv6(TUNNEL, addresses)?;
        links.switch_on(index)?;
        for address in addresses {
            links.add_address(index, *address, Family::of(*address).bits())?;
        }
        let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let missing = || agent_sys::Error::new("read the key of", TUNNEL, missing());
        tunnel.key.ok_or_else(missing)
    }

    /// Makes the peers those of the plan; those that are none any more go first.
    pub(crate) fn set_peers(&mut self, plan: &Plan) -> Result<()> {
        let index = crate::sandboxes::index_of(&mut Links::open()?, TUNNEL)?;
        let mut kernel = WireGuard::open()?;
        let changes = differences(&kernel.read(index)?, &self.told, plan);
        kernel.change(index, &changes)?;
        for change in changes {
            match change {
                Change::Remove(key) => drop(self.told.remove(&key)),
                Change::Put { key, endpoint, .. } => {
                    self.told.extend(endpoint.map(|endpoint| (key, endpoint)));
                }
            }
        }
        Ok(())
    }
}

/// The ranges whose packets the kernel leads into the tunnel; none where there is no tunnel yet.
pub(crate) fn led_into_the_tunnel() -> Result<Vec<Cidr>> {
    let mut links = Links::open()?;
    let Some(link) = links.named(TUNNEL)? else {
        return Ok(Vec::new());
    };
    let routes = links.routes_into(link.index)?;
    let range = |route: Route| Cidr {
        address: route.destination,
        prefix: route.prefix,
    };
    Ok(routes.into_iter().map(range).collect())
}

/// Makes the routes into the tunnel those of the plan.
pub(crate) fn set_routes(plan: &Plan) -> Result<()> {
    let mut links = Links::open()?;
    let index = crate::sandboxes::index_of(&mut links, TUNNEL)?;
    let there = links.routes_into(index)?;
    let planned = |route: &Route| plan.routes.contains(&(route.destination, route.prefix));
    for route in there.iter().filter(|route| !planned(route)) {
        links.remove_route(route)?;
    }
    for (destination, prefix) in &plan.routes {
        let route = Route {
            destination: *destination,
            prefix: *prefix,
            gateway: None,
            link: index,
        };
        if !there.contains(&route) {
            links.add_route(&route)?;
        }
    }
    Ok(())
}
