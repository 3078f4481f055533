//! Routes to other nodes' pods over a trusted L2 segment: one route for each of their ranges, by
//! the node's address.

use crate::error::Error;
use agent_sys::netlink::Family;
use agent_sys::netlink::links::{Links, Route};
use config_model::format::Cidr;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its addresses, the most important first.
    pub addresses: Vec<IpAddr>,
    /// Its ranges of pod addresses.
    pub ranges: Vec<Cidr>,
}

/// A node whose pods are not reached, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreached {
    /// The node's name.
    pub name: String,
    /// The kernel's reason.
    pub reason: String,
}

/// The routes that peers need, by destination; each with the peer's name. Of two peers with one
/// range, the first has it.
fn wanted(peers: &[Peer]) -> BTreeMap<(IpAddr, u8), (IpAddr, &str)> {
    let mut all = BTreeMap::new();
    for peer in peers {
        for range in peer.ranges.iter().filter(|range| is_routed(range)) {
            let of_family = |own: &&IpAddr| own.is_ipv4() == range.address.is_ipv4();
            let Some(gateway) = peer.addresses.iter().find(of_family) else {
                continue;
            };
            all.entry((range.network(), range.prefix))
                .or_insert((*gateway, peer.name.as_str()));
        }
    }
    all
}

/// Whether a range is one that a node can have: none that would take the default route, or the
/// machine's own addresses.
pub(crate) fn is_routed(range: &Cidr) -> bool {
    let taken = match range.network() {
        IpAddr::V4(network) => network.is_link_local(),
        IpAddr::V6(network) => network.is_unicast_link_local() || range.prefix < 16,
    };
    let network = range.network();
    // Shorter prefixes would cover most of the Internet.
    range.prefix >= 8
        && !taken
        && !network.is_loopback()
        && !network.is_multicast()
        && !network.is_unspecified()
}

/// The addresses of peers and their pods, as ranges.
pub(crate) fn addresses(peers: &[Peer]) -> Vec<Cidr> {
    let ranges = peers.iter().flat_map(|peer| &peer.ranges);
    let own = peers.iter().flat_map(|peer| &peer.addresses);
    let own = own.map(|address| Cidr {
        address: *address,
        prefix: Family::of(*address).bits(),
    });
    let ranges = ranges.filter(|range| is_routed(range)).copied();
    ranges.chain(own).collect()
}

/// The addresses of peers and their pods to which an earlier agent has left routes: the ranges and
/// the routers.
pub(crate) fn routed() -> Result<Vec<Cidr>, Error> {
    let known = Links::open()?.routes_by_routers()?.into_iter();
    let ends = known.flat_map(|route| {
        let range = Cidr {
            address: route.destination,
            prefix: route.prefix,
        };
        let router = route.gateway.map(|address| Cidr {
            address,
            prefix: Family::of(address).bits(),
        });
        [Some(range), router].into_iter().flatten()
    });
    Ok(ends.collect())
}

/// Peers with a range of a family of which they have no address.
fn without_router(peers: &[Peer]) -> Vec<Unreached> {
    let lacks = |peer: &&Peer, family: Family| {
        let mut ranges = peer.ranges.iter().filter(|range| is_routed(range));
        ranges.any(|range| Family::of(range.address) == family)
            && !peer.addresses.iter().any(|own| Family::of(*own) == family)
    };
    let all = Family::BOTH.into_iter().flat_map(|family| {
        let those = peers.iter().filter(move |peer| lacks(peer, family));
        let family = match family {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        };
        those.map(move |peer| Unreached {
            name: peer.name.clone(),
            reason: format!("the node has no {family} address by which its pods are reached"),
        })
    });
    all.collect()
}

/// Makes the kernel's routes by routers those that peers need, and no others.
pub(crate) fn route(peers: &[Peer]) -> Result<Vec<Unreached>, Error> {
    let wanted = wanted(peers);
    let mut links = Links::open()?;
    let there = links.routes_by_routers()?;
    let is_wanted = |route: &Route| {
        let found = wanted.get(&(route.destination, route.prefix));
        found.is_some_and(|(gateway, _)| Some(*gateway) == route.gateway)
    };
    for route in there.iter().filter(|route| !is_wanted(route)) {
        links.remove_route(route)?;
    }
    let mut unreached = without_router(peers);
    for ((destination, prefix), (gateway, name)) in wanted {
        let route = Route {
            destination,
            prefix,
            gateway: Some(gateway),
            link: 0,
        };
        if there.contains(&route) {
            continue;
        }
        if let Err(error) = links.add_route(&route) {
            unreached.push(Unreached {
                name: name.to_owned(),
                reason: error.to_string(),
            });
        }
    }
    Ok(unreached)
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_sys::namespace::{Kind, hold, in_new, release};
    use agent_sys::netlink::links::VethPair;
    use std::fs::File;
    use std::os::fd::AsFd as _;

    fn peer(name: &str, address: &str, ranges: &[&str]) -> Peer {
        Peer {
            name: name.to_owned(),
            addresses: vec![address.parse().unwrap()],
            ranges: ranges.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn nobody_gets_the_default_route_or_the_machines_own_addresses() {
        let greedy = [
            "0.0.0.0/0",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "224.0.0.0/8",
            "::/0",
            "::1/128",
            "fe80::/64",
            "ff00::/16",
        ];
        assert!(wanted(&[peer("a", "192.0.2.1", &greedy)]).is_empty());
        let two = [
            peer("a", "192.0.2.1", &["10.1.1.0/24"]),
            peer("b", "192.0.2.2", &["10.1.1.0/24"]),
        ];
        let route = wanted(&two).into_values().next().unwrap();
        assert_eq!(route, ("192.0.2.1".parse().unwrap(), "a"));
        assert_eq!(addresses(&two[..1]).len(), 2);
    }

    #[test]
    fn a_range_is_reached_by_an_address_of_its_family() {
        let mut both = peer("a", "192.0.2.1", &["10.1.1.0/24", "fd00:1::/64"]);
        assert_eq!(wanted(&[both.clone()]).len(), 1);
        let unreached = without_router(&[both.clone()]);
        assert!(
            unreached[0].reason.contains("no IPv6 address"),
            "{unreached:?}"
        );
        both.addresses.push("2001:db8::1".parse().unwrap());
        let routers: Vec<String> = wanted(&[both.clone()])
            .into_values()
            .map(|(router, _)| router.to_string())
            .collect();
        assert_eq!(routers, ["192.0.2.1", "2001:db8::1"]);
        assert!(without_router(&[both.clone()]).is_empty());
        assert_eq!(addresses(&[both]).len(), 4);
    }

    #[test]
    fn routes_follow_the_nodes_and_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("far");
        in_new(&[Kind::Network], || hold(Kind::Network, &place)).unwrap();
        let far = File::open(&place).unwrap();
        in_new(&[Kind::Network], || {
            let mut links = Links::open()?;
            links.add_veth_pair(&VethPair {
                name: "segment",
                mac: [2, 0, 0, 0, 0, 1],
                far_name: "eth0",
                far_mac: [2, 0, 0, 0, 0, 2],
                far: far.as_fd(),
                mtu: 1500,
            })?;
            let segment = links.named("segment")?.unwrap().index;
            links.switch_on(segment)?;
            links.add_address(segment, "192.0.2.9".parse().unwrap(), 24)?;
            let other = Route {
                destination: "10.9.0.0".parse().unwrap(),
                prefix: 16,
                gateway: Some("192.0.2.1".parse().unwrap()),
                link: segment,
            };
            links.add_route(&other)?;
            let seen = |peers: &[Peer]| {
                let unreached = route(peers).unwrap();
                let routes = Links::open().unwrap().routes_by_routers().unwrap();
                let route = |route: &Route| {
                    let gateway = route.gateway.unwrap();
                    format!("{}/{} {gateway}", route.destination, route.prefix)
                };
                let mut routes: Vec<String> = routes.iter().map(route).collect();
                routes.sort();
                (
                    routes,
                    unreached
                        .into_iter()
                        .map(|one| one.name)
                        .collect::<Vec<_>>(),
                )
            };
            let a = peer("a", "192.0.2.1", &["10.1.1.0/24"]);
            let elsewhere = peer("b", "198.51.100.1", &["10.1.2.0/24"]);
            let moved = peer("a", "192.0.2.3", &["10.1.1.0/24"]);
            let (routes, unreached) = seen(&[a.clone(), elsewhere]);
            assert_eq!(routes, ["10.1.1.0/24 192.0.2.1"]);
            assert_eq!(unreached, ["b"], "it is on no segment of this one");
            assert_eq!(seen(&[a]).0, ["10.1.1.0/24 192.0.2.1"]);
            assert_eq!(seen(&[moved]).0, ["10.1.1.0/24 192.0.2.3"]);
            assert!(seen(&[]).0.is_empty());
            // Another program's route is left alone.
            assert!(links.remove_route(&other)?);
            Ok(())
        })
        .unwrap();
        release(&place).unwrap();
    }
}
