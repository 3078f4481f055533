//! Applies the plan to the kernel: WireGuard links, keys, peers and routes.

use super::plan::differences;
use super::slots::{Birth, KEEPALIVE, Link, Plan, Seen, Slot};
use crate::link_settings::{set_ipv6, set_link};
use crate::rules::TUNNELS;
use crate::sandboxes::index_of;
use crate::sizes::mtu;
use agent_sys::Result;
use agent_sys::namespace;
use agent_sys::netlink::Family;
use agent_sys::netlink::links::{self, Links, Route};
use agent_sys::netlink::wireguard::{Change, Key, Range, WireGuard};
use config_model::format::Cidr;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

/// The UDP ports at which every machine's links are reached: WireGuard's usual one, and the next.
pub const PORTS: [u16; 2] = [51_820, 51_821];
/// Bytes that the tunnel puts around a packet: IPv6 and UDP headers, and its own.
pub const OVERHEAD: u32 = 80;

/// The prefixes of a link's note, which records when the link's key was made, in Unix seconds. The
/// kernel keeps it with the link (its `alias`): an agent that starts later reads it, and it is
/// deleted with link and key.
const FIRST_KEY: &str = "pratique: first key, made at ";
const LATER_KEY: &str = "pratique: key made at ";
/// The note from before a key is made until its time is recorded.
const NEW_KEY: &str = "pratique: key in the making";

/// The tunnel's links and their keys. They last until the reboot: a later agent continues with
/// both, and no connection breaks.
#[derive(Debug, Default)]
pub(crate) struct Device {
    /// The node's addresses for which both links were set up; empty if the next
    /// [`Device::ensure_links`] has to set them up again.
    ready: Vec<IpAddr>,
    /// The endpoint that each peer was given last, by link.
    endpoints: [BTreeMap<Key, SocketAddr>; 2],
}

impl Device {
    /// Sets up both links if that is due, and returns the kernel's state. `addresses`: the node's
    /// own in its ranges of pod addresses.
    pub(crate) fn ensure_links(&mut self, addresses: &[IpAddr]) -> Result<Seen> {
        let mut links = Links::open()?;
        let mut kernel = WireGuard::open()?;
        // Taken first: whatever fails below, the next call sets the links up again.
        if std::mem::take(&mut self.ready) != addresses {
            for slot in Slot::ALL {
                self.set_up(slot, addresses, &mut links, &mut kernel)?;
            }
        }
        let mut seen = Seen::default();
        let mut known = true;
        for slot in Slot::ALL {
            let found = found(&mut links, slot)?;
            let birth = birth(&found.note);
            *slot.of_mut(&mut seen.links) = Link {
                birth: birth.unwrap_or_default(),
                tunnel: kernel.read(found.index)?,
            };
            for route in links.routes_into(found.index)? {
                seen.routes.insert(destination(&route), slot);
            }
            known &= birth.is_some();
        }
        if known {
            self.ready = addresses.to_vec();
        }
        Ok(seen)
    }

    /// Makes a link or its key if it is missing, and sets its port, addresses and kernel settings.
    fn set_up(
        &mut self,
        slot: Slot,
        addresses: &[IpAddr],
        links: &mut Links,
        kernel: &mut WireGuard,
    ) -> Result<()> {
        let name = *slot.of(&TUNNELS);
        if links.named(name)?.is_none() {
            let size = mtu(links)?.saturating_sub(OVERHEAD);
            links.add_wireguard(name, size)?;
            slot.of_mut(&mut self.endpoints).clear();
        }
        let link = found(links, slot)?;
        let tunnel = kernel.read(link.index)?;
        if tunnel.key.is_none() {
            kernel.renew_key(link.index)?;
            links.note(link.index, &format!("{FIRST_KEY}{}", now()))?;
        } else if birth(&link.note).is_none() {
            // An earlier agent ended before it recorded the time, so the key counts as made now. It
            // is no first key: peers may have a session with the one before.
            links.note(link.index, &format!("{LATER_KEY}{}", now()))?;
        }
        let port = *slot.of(&PORTS);
        if tunnel.port != port {
            kernel.listen(link.index, port)?;
        }
        set_link(name)?;
        // A peer may send by the one link and be answered by the other, which the strict check of
        // sources (1) would drop; the loose one (2) does not.
        namespace::set(&format!("net/ipv4/conf/{name}/rp_filter"), "2")?;
        set_ipv6(name, addresses)?;
        links.switch_on(link.index)?;
        for address in addresses {
            links.add_address(link.index, *address, Family::of(*address).bits())?;
        }
        Ok(())
    }

    /// Sets the peers of both links to the plan's, and wakes those that it names. Peers are removed
    /// from both links before others are added.
    pub(crate) fn set_peers(&mut self, seen: &Seen, plan: &Plan) -> Result<()> {
        let all = Slot::ALL.map(|slot| {
            let endpoints = slot.of(&self.endpoints);
            let tunnel = &slot.of(&seen.links).tunnel;
            differences(tunnel, endpoints, slot.of(&plan.peers))
        });
        let is_removal = |change: &Change| matches!(change, Change::Remove(_));
        for removals in [true, false] {
            for slot in Slot::ALL {
                let changes = slot.of(&all).iter();
                let changes = changes.filter(|change| is_removal(change) == removals);
                self.change(slot, changes.cloned().collect())?;
            }
        }
        for slot in Slot::ALL {
            let wake = |key: &Key| Change::Wake {
                key: *key,
                keepalive: KEEPALIVE,
            };
            self.change(slot, slot.of(&plan.wake).iter().map(wake).collect())?;
        }
        Ok(())
    }

    fn change(&mut self, slot: Slot, changes: Vec<Change>) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let index = found(&mut Links::open()?, slot)?.index;
        WireGuard::open()?.change(index, &changes)?;
        let endpoints = slot.of_mut(&mut self.endpoints);
        for change in changes {
            match change {
                Change::Remove(key) => drop(endpoints.remove(&key)),
                Change::Put { key, endpoint, .. } => {
                    endpoints.extend(endpoint.map(|endpoint| (key, endpoint)));
                }
                Change::Wake { .. } => {}
            }
        }
        Ok(())
    }

    /// Gives a link a new key.
    pub(crate) fn renew(&mut self, slot: Slot) -> Result<()> {
        let mut links = Links::open()?;
        let index = found(&mut links, slot)?.index;
        // Recorded before the key is made: should the agent end in between, the next one counts the
        // key as made when it finds it, and relies on no session that was agreed before.
        links.note(index, NEW_KEY)?;
        let ready = std::mem::take(&mut self.ready);
        WireGuard::open()?.renew_key(index)?;
        links.note(index, &format!("{LATER_KEY}{}", now()))?;
        self.ready = ready;
        Ok(())
    }
}

fn found(links: &mut Links, slot: Slot) -> Result<links::Link> {
    let name = *slot.of(&TUNNELS);
    let missing = || agent_sys::Error::new("find the link", name, std::io::ErrorKind::NotFound);
    links.named(name)?.ok_or_else(missing)
}

/// When a key was made, if the note of its link says so.
fn birth(note: &str) -> Option<Birth> {
    let first = note.strip_prefix(FIRST_KEY);
    let at = first.or_else(|| note.strip_prefix(LATER_KEY))?;
    Some(Birth {
        at: at.parse().ok()?,
        first: first.is_some(),
    })
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// The ranges that are routed into the tunnel; none if there is no tunnel yet.
pub(crate) fn led_into_the_tunnel() -> Result<Vec<Cidr>> {
    let mut links = Links::open()?;
    let mut ranges = Vec::new();
    for name in TUNNELS {
        let Some(link) = links.named(name)? else {
            continue;
        };
        let routes = links.routes_into(link.index)?;
        ranges.extend(routes.into_iter().map(|route| Cidr {
            address: route.destination,
            prefix: route.prefix,
        }));
    }
    Ok(ranges)
}

/// The range to which a route leads.
fn destination(route: &Route) -> Range {
    Range {
        address: route.destination,
        prefix: route.prefix,
    }
}

/// Sets the routes into the tunnel to the plan's. A route that moves to the other link is replaced
/// in one step, so that no packet finds none.
pub(crate) fn set_routes(planned: &BTreeMap<Range, Slot>) -> Result<()> {
    let mut links = Links::open()?;
    let [first, second] = TUNNELS.map(|name| index_of(&mut links, name));
    let indexes = [first?, second?];
    let mut there = Vec::new();
    for index in indexes {
        there.extend(links.routes_into(index)?);
    }
    let is_planned = |route: &&Route| planned.contains_key(&destination(route));
    for route in there.iter().filter(|route| !is_planned(route)) {
        links.remove_route(route)?;
    }
    for (range, slot) in planned {
        let route = Route {
            destination: range.address,
            prefix: range.prefix,
            gateway: None,
            link: *slot.of(&indexes),
        };
        if !there.contains(&route) {
            links.add_route(&route)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_sys::namespace::{Kind, hold, in_new, release};
    use agent_sys::netlink::links::VethPair;
    use std::fs::File;
    use std::net::Ipv6Addr;
    use std::os::fd::AsFd as _;

    #[test]
    fn the_age_of_a_key_is_read_from_the_links_note() {
        let read = |at, first| Some(Birth { at, first });
        assert_eq!(
            birth(&format!("{FIRST_KEY}1790000000")),
            read(1_790_000_000, true)
        );
        assert_eq!(
            birth(&format!("{LATER_KEY}1790000000")),
            read(1_790_000_000, false)
        );
        for unknown in ["", NEW_KEY, "pratique: key made at noon"] {
            assert_eq!(birth(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_route_changes_its_link_and_is_never_doubled() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("far");
        in_new(&[Kind::Network], || hold(Kind::Network, &place)).unwrap();
        let far = File::open(&place).unwrap();
        in_new(&[Kind::Network], || {
            let mut links = Links::open()?;
            for (number, name) in (1..).zip(TUNNELS) {
                links.add_veth_pair(&VethPair {
                    name,
                    mac: [2, 0, 0, 0, number, 1],
                    far_name: name,
                    far_mac: [2, 0, 0, 0, number, 2],
                    far: far.as_fd(),
                    mtu: 1500,
                })?;
                let index = index_of(&mut links, name)?;
                links.switch_on(index)?;
            }
            let ranges = |number: u8| -> [Range; 2] {
                let v6 = Ipv6Addr::new(0xfd00, 0, 0, number.into(), 0, 0, 0, 0);
                let range = |address: IpAddr, prefix| Range { address, prefix };
                [range([10, 1, number, 0].into(), 24), range(v6.into(), 64)]
            };
            let ways = |slots: &[(u8, Slot)]| {
                let planned = slots.iter();
                let planned = planned.flat_map(|(node, slot)| ranges(*node).map(|at| (at, *slot)));
                set_routes(&planned.collect()).unwrap();
                let mut links = Links::open().unwrap();
                TUNNELS.map(|name| {
                    let index = index_of(&mut links, name).unwrap();
                    let routes = links.routes_into(index).unwrap();
                    let routes = routes.into_iter();
                    let there: Vec<Range> = routes.map(|route| destination(&route)).collect();
                    let of = |node: &u8| ranges(*node).iter().all(|at| there.contains(at));
                    let nodes: Vec<u8> = (1..=2).filter(of).collect();
                    assert_eq!(there.len(), 2 * nodes.len(), "{there:?}");
                    nodes
                })
            };
            let (first, second) = (Slot::First, Slot::Second);
            assert_eq!(ways(&[(1, first), (2, first)]), [vec![1, 2], vec![]]);
            assert_eq!(ways(&[(1, second), (2, first)]), [vec![2], vec![1]]);
            assert_eq!(ways(&[(2, second)]), [vec![], vec![2]]);
            assert_eq!(led_into_the_tunnel()?.len(), 2);
            Ok(())
        })
        .unwrap();
        release(&place).unwrap();
    }
}
