//! Routes to other nodes' pods over a trusted L2 segment: one for each of their ranges, by the
//! node's address. The ranges of a node that is not trusted, or not on a segment of this one, get
//! an unreachable route: without a route their packets would go to the machine's router.

use crate::error::Error;
use agent_sys::netlink::Family;
use agent_sys::netlink::links::{Links, Route};
use config_model::format::Cidr;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its addresses; the first of each family is its gateway.
    pub addresses: Vec<IpAddr>,
    /// Its ranges of pod addresses.
    pub ranges: Vec<Cidr>,
    /// Whether its machine is trusted (neither Suspect nor Untrusted). If not, packets to its pods,
    /// and packets from it and from its pods, are dropped.
    pub trusted: bool,
}

/// A node whose pods are not reached, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreached {
    /// The node's name.
    pub name: String,
    /// The kernel's reason.
    pub reason: String,
}

/// The destination of a route: network and prefix length.
type End = (IpAddr, u8);

/// The routes that peers need, by destination: the gateway (none: unreachable) and the peer's
/// name. If two peers claim a range, the first that is trusted and has an address of the range's
/// family gets it.
fn wanted(peers: &[Peer]) -> BTreeMap<End, (Option<IpAddr>, &str)> {
    let routes = peers.iter().flat_map(|peer| {
        let ranges = peer.ranges.iter().filter(|range| is_routed(range));
        ranges.map(|range| {
            let of_family = |own: &&IpAddr| own.is_ipv4() == range.address.is_ipv4();
            let router = peer.addresses.iter().find(of_family).copied();
            let end = (range.network(), range.prefix);
            (end, (router.filter(|_| peer.trusted), peer.name.as_str()))
        })
    });
    let (led, nowhere): (Vec<_>, Vec<_>) = routes.partition(|(_, (router, _))| router.is_some());
    let mut all = BTreeMap::new();
    for (end, route) in led.into_iter().chain(nowhere) {
        all.entry(end).or_insert(route);
    }
    all
}

/// Whether a node may have this range: not if it would replace the default route or take the
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

/// The addresses of trusted peers and their pods, as ranges.
pub(crate) fn addresses(peers: &[Peer]) -> Vec<Cidr> {
    let trusted = || peers.iter().filter(|peer| peer.trusted);
    let ranges = trusted().flat_map(|peer| &peer.ranges);
    let own = trusted().flat_map(|peer| &peer.addresses);
    let own = own.map(|address| Cidr {
        address: *address,
        prefix: Family::of(*address).bits(),
    });
    let ranges = ranges.filter(|range| is_routed(range)).copied();
    ranges.chain(own).collect()
}

/// The ranges and gateways of the routes that an earlier agent left: its peers' pods and addresses.
pub(crate) fn routed() -> Result<Vec<Cidr>, Error> {
    let known = Links::open()?.routes_by_routers()?.into_iter();
    // Unreachable routes have no gateway, and nothing is accepted from their nodes.
    let by_routers = known.filter_map(|route| Some((route, route.gateway?)));
    let ends = by_routers.flat_map(|(route, address)| {
        let range = Cidr {
            address: route.destination,
            prefix: route.prefix,
        };
        let router = Cidr {
            address,
            prefix: Family::of(address).bits(),
        };
        [range, router]
    });
    Ok(ends.collect())
}

/// Trusted peers that have a range but no node address of some family.
fn without_router(peers: &[Peer]) -> Vec<Unreached> {
    let lacks = |peer: &&Peer, family: Family| {
        let mut ranges = peer.ranges.iter().filter(|range| is_routed(range));
        ranges.any(|range| Family::of(range.address) == family)
            && !peer.addresses.iter().any(|own| Family::of(*own) == family)
    };
    let all = Family::BOTH.into_iter().flat_map(|family| {
        let trusted = peers.iter().filter(|peer| peer.trusted);
        let those = trusted.filter(move |peer| lacks(peer, family));
        let family = match family {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        };
        those.map(move |peer| Unreached {
            name: peer.name.clone(),
            reason: format!("the node has no {family} address to route its pods by"),
        })
    });
    all.collect()
}

/// Makes the kernel's routes to pods exactly those that peers need. Each replaces an earlier one
/// atomically. Where the kernel refuses a gateway, the route becomes unreachable: without a route,
/// packets for pods would go to the machine's router.
pub(crate) fn route(peers: &[Peer]) -> Result<Vec<Unreached>, Error> {
    let wanted = wanted(peers);
    let mut links = Links::open()?;
    let there = links.routes_by_routers()?;
    let end = |route: &Route| (route.destination, route.prefix);
    let known: BTreeSet<_> = there.iter().map(|one| (end(one), one.gateway)).collect();
    let mut unreached = without_router(peers);
    // Unreachable routes first: a node that is no longer trusted gets no more packets.
    let (nowhere, led): (Vec<_>, Vec<_>) =
        wanted.iter().partition(|(_, (router, _))| router.is_none());
    for ((destination, prefix), (gateway, name)) in nowhere.into_iter().chain(led) {
        let by = |gateway| Route {
            destination: *destination,
            prefix: *prefix,
            gateway,
            link: 0,
        };
        if known.contains(&(end(&by(*gateway)), *gateway)) {
            continue;
        }
        if let Err(error) = links.add_route(&by(*gateway)) {
            unreached.push(Unreached {
                name: (*name).to_owned(),
                reason: error.to_string(),
            });
            links.add_route(&by(None))?;
        }
    }
    for route in there.iter().filter(|one| !wanted.contains_key(&end(one))) {
        links.remove_route(route)?;
    }
    Ok(unreached)
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_sys::namespace::{Kind, hold, in_new, release};
    use agent_sys::netlink::links::VethPair;
    use std::fs::File;
    use std::io::ErrorKind;
    use std::net::UdpSocket;
    use std::os::fd::AsFd as _;

    fn peer(name: &str, address: &str, ranges: &[&str]) -> Peer {
        Peer {
            name: name.to_owned(),
            addresses: vec![address.parse().unwrap()],
            ranges: ranges.iter().map(|text| text.parse().unwrap()).collect(),
            trusted: true,
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
        assert_eq!(route, ("192.0.2.1".parse().ok(), "a"));
        assert_eq!(addresses(&two[..1]).len(), 2);
    }

    #[test]
    fn the_range_of_an_untrusted_node_is_unreachable_unless_another_node_has_it() {
        let mut a = peer(
            "a",
            "192.0.2.1",
            &["10.1.1.0/24", "fd00:1::/64", "0.0.0.0/0"],
        );
        a.trusted = false;
        let b = peer("b", "192.0.2.2", &["10.1.1.0/24"]);
        let routes = wanted(std::slice::from_ref(&a));
        assert!(routes.len() == 2 && routes.values().all(|(router, _)| router.is_none()));
        assert_eq!(addresses(std::slice::from_ref(&a)), []);
        assert_eq!(without_router(std::slice::from_ref(&a)), []);
        let both = [a, b];
        let routes = wanted(&both);
        let of_b = ("192.0.2.2".parse().ok(), "b");
        assert!(routes.len() == 2 && routes.values().any(|route| *route == of_b));
    }

    #[test]
    fn a_range_is_reached_by_an_address_of_its_family() {
        let mut both = peer("a", "192.0.2.1", &["10.1.1.0/24", "fd00:1::/64"]);
        let peers = [both.clone()];
        let routes: Vec<_> = wanted(&peers).into_values().collect();
        assert_eq!(routes, [("192.0.2.1".parse().ok(), "a"), (None, "a")]);
        let unreached = without_router(&[both.clone()]);
        assert!(
            unreached[0].reason.contains("no IPv6 address"),
            "{unreached:?}"
        );
        both.addresses.push("2001:db8::1".parse().unwrap());
        let by: Vec<String> = wanted(&[both.clone()])
            .into_values()
            .map(|(router, _)| router.unwrap().to_string())
            .collect();
        assert_eq!(by, ["192.0.2.1", "2001:db8::1"]);
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
                    let by = route.gateway.map(|own| own.to_string());
                    let by = by.unwrap_or_else(|| "nowhere".to_owned());
                    format!("{}/{} {by}", route.destination, route.prefix)
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
            assert_eq!(routes, ["10.1.1.0/24 192.0.2.1", "10.1.2.0/24 nowhere"]);
            assert_eq!(unreached, ["b"], "it is on no segment of this one");
            assert_eq!(seen(std::slice::from_ref(&a)).0, ["10.1.1.0/24 192.0.2.1"]);
            assert_eq!(seen(&[moved]).0, ["10.1.1.0/24 192.0.2.3"]);
            // The node leaves the segment, and comes back.
            let away = peer("a", "198.51.100.1", &["10.1.1.0/24"]);
            for _ in 0..2 {
                let left = (vec!["10.1.1.0/24 nowhere".to_owned()], vec!["a".to_owned()]);
                assert_eq!(seen(std::slice::from_ref(&away)), left);
            }
            assert_eq!(seen(std::slice::from_ref(&a)).0, ["10.1.1.0/24 192.0.2.1"]);
            let v6 = "fd00:1::/64";
            let mut both = peer("a", "192.0.2.1", &["10.1.1.0/24", v6]);
            both.addresses.push("2001:db8::1".parse().unwrap());
            links.add_address(segment, "2001:db8::9".parse().unwrap(), 64)?;
            let mut suspect = both.clone();
            suspect.trusted = false;
            let led = ["10.1.1.0/24 192.0.2.1", "fd00:1::/64 2001:db8::1"];
            let nowhere = ["10.1.1.0/24 nowhere", "fd00:1::/64 nowhere"];
            for _ in 0..2 {
                assert_eq!(
                    seen(std::slice::from_ref(&both)),
                    (led.map(Into::into).into(), vec![])
                );
                let left = seen(std::slice::from_ref(&suspect));
                assert_eq!(left, (nowhere.map(Into::into).into(), vec![]));
                assert_eq!(routed().unwrap(), []);
                for pod in ["10.1.1.7", "fd00:1::7"] {
                    let (any, to): (_, IpAddr) = (["0.0.0.0:0", "[::]:0"], pod.parse().unwrap());
                    let socket = UdpSocket::bind(any[usize::from(to.is_ipv6())])
                        .and_then(|socket| socket.connect((to, 9)));
                    let refused = socket.unwrap_err().kind();
                    assert_eq!(refused, ErrorKind::HostUnreachable, "{pod}");
                }
            }
            assert!(seen(&[]).0.is_empty());
            // Another program's route is left alone.
            assert!(links.remove_route(&other)?);
            Ok(())
        })
        .unwrap();
        release(&place).unwrap();
    }
}
