//! Tests nftables rules with a tunnel, in network namespaces: a veth pair replaces the tunnel's
//! link, since the rules match the link. The tunnel itself needs a kernel with WireGuard, and is
//! tested in virtual machines.

use super::OVERHEAD;
use crate::link_settings::{set_ipv6, set_link};
use crate::rules::{TUNNEL, TUNNELS};
use crate::{Sandbox, SandboxOptions, SandboxSpec, Sandboxes};
use agent_proxy::{Key, Known, Rules, Service, Slice};
use agent_sys::namespace::{self, Kind, hold, in_new, release};
use agent_sys::netlink::Family;
use agent_sys::netlink::links::{LOOPBACK, Links, Mac, Route, VethPair};
use serde_json::json;
use std::fs::File;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough for a packet between two namespaces; only what is dropped waits for it to pass.
const SILENCE: Duration = Duration::from_millis(500);
const PORT: u16 = 7;

/// Addresses of a family.
#[derive(Debug, Clone, Copy)]
struct Ends {
    family: Family,
    /// This machine's range, and another machine's.
    ranges: [&'static str; 2],
    /// A pod of another machine, whose address a stranger on the segment takes, too.
    far_pod: IpAddr,
    /// An address of this machine's range that no pod has.
    own: IpAddr,
    /// The machine's address in its range.
    gateway: IpAddr,
    /// The machine's address on the segment.
    machine: IpAddr,
    /// The address of a service.
    service: IpAddr,
    /// Any.
    any: IpAddr,
}

fn ends(family: Family) -> Ends {
    let [far_pod, own, gateway, machine, any] = match family {
        Family::V4 => ["10.1.1.5", "10.1.0.77", "10.1.0.1", "192.0.2.1", "0.0.0.0"],
        Family::V6 => ["fd00:0:0:1::5", "fd00::77", "fd00::1", "2001:db8::1", "::"],
    }
    .map(|at| at.parse().unwrap());
    let service = match family {
        Family::V4 => IpAddr::from([10, 96, 0, 7]),
        Family::V6 => IpAddr::from([0xfd00, 0x96, 0, 0, 0, 0, 0, 7]),
    };
    Ends {
        family,
        ranges: match family {
            Family::V4 => ["10.1.0.0/24", "10.1.1.0/24"],
            Family::V6 => ["fd00::/64", "fd00:0:0:1::/64"],
        },
        far_pod,
        own,
        gateway,
        machine,
        service,
        any,
    }
}

/// What is at the other end of a link of the machine.
struct Far {
    link: &'static str,
    machines: Mac,
    own: Mac,
    place: PathBuf,
    ends: Ends,
}

impl Far {
    fn new(ends: Ends, dir: &Path, link: &'static str, number: u8, pod: IpAddr) -> Self {
        let other = Self {
            ends,
            link,
            machines: [2, 0, 0, 0, number, 1],
            own: [2, 0, 0, 0, number, 2],
            place: dir.join(link),
        };
        in_new(&[Kind::Network], || hold(Kind::Network, &other.place)).unwrap();
        let far = File::open(&other.place).unwrap();
        let mut links = Links::open().unwrap();
        links
            .add_veth_pair(&VethPair {
                name: link,
                mac: other.machines,
                far_name: "eth0",
                far_mac: other.own,
                far: far.as_fd(),
                mtu: 1500,
            })
            .unwrap();
        set_link(link).unwrap();
        set_ipv6(link, &[pod]).unwrap();
        // nftables alone must suffice, without the kernel's reverse path filter.
        namespace::set(&format!("net/ipv4/conf/{link}/rp_filter"), "0").unwrap();
        namespace::set("net/ipv4/conf/all/rp_filter", "0").unwrap();
        links.switch_on(index(link)).unwrap();
        other.inside(|| {
            let mut links = Links::open().unwrap();
            let eth0 = index("eth0");
            set_ipv6("eth0", &[pod]).unwrap();
            links.switch_on(eth0).unwrap();
            let alone = ends.family.bits();
            for address in [ends.far_pod, ends.own] {
                links.add_address(eth0, address, alone).unwrap();
            }
            for address in [pod, ends.service] {
                links.add_route(&into(eth0, address)).unwrap();
                links.fix_neighbour(eth0, address, other.machines).unwrap();
            }
        });
        other
    }

    fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        namespace::inside(&[(Kind::Network, &self.place)], || Ok(work())).unwrap()
    }

    fn socket(&self, address: IpAddr) -> UdpSocket {
        self.inside(|| UdpSocket::bind((address, PORT)).unwrap())
    }

    /// Routes the machine's packets for the other machine's pod to this end.
    fn lead(&self) {
        let mut links = Links::open().unwrap();
        let (link, pod) = (index(self.link), self.ends.far_pod);
        links.add_route(&into(link, pod)).unwrap();
        links.fix_neighbour(link, pod, self.own).unwrap();
    }
}

fn index(link: &str) -> u32 {
    Links::open().unwrap().named(link).unwrap().unwrap().index
}

fn into(link: u32, address: IpAddr) -> Route {
    Route {
        destination: address,
        prefix: Family::of(address).bits(),
        gateway: None,
        link,
    }
}

/// Whether a datagram arrives. An expected one is sent repeatedly: a new veth pair may not carry
/// packets yet.
fn arrives(from: &UdpSocket, to: &UdpSocket, address: IpAddr, should: bool) -> bool {
    // What an earlier question left behind is no answer to this one.
    to.set_nonblocking(true).unwrap();
    while to.recv(&mut [0; 8]).is_ok() {}
    to.set_nonblocking(false).unwrap();
    to.set_read_timeout(Some(SILENCE)).unwrap();
    let begun = Instant::now();
    loop {
        // A filter's refusal of what the machine sends shows as an error.
        from.send_to(b"hello", (address, PORT)).ok();
        if to.recv(&mut [0; 8]).is_ok() {
            return true;
        }
        if !should || begun.elapsed() > PATIENCE {
            return false;
        }
    }
}

struct Scene {
    options: SandboxOptions,
    pod: Sandbox,
    at: IpAddr,
    ends: Ends,
    /// At the tunnel's first link, and at the second.
    peer: Far,
    second: Far,
    stranger: Far,
}

/// Runs a test for each family.
fn scene(tunnel: bool, test: impl Fn(&Scene) + Send + Sync) {
    for family in Family::BOTH {
        scene_of(ends(family), tunnel, &test);
    }
}

fn scene_of(ends: Ends, tunnel: bool, test: impl FnOnce(&Scene) + Send) {
    let dir = tempfile::tempdir().unwrap();
    let options = SandboxOptions {
        run: dir.path().join("pods"),
        ledger: dir.path().join("addresses.json"),
        kubernetes_only: true,
        tunnel,
    };
    in_new(&[Kind::Network], || {
        Links::open()?.switch_on(LOOPBACK)?;
        let sandboxes = Sandboxes::open(options.clone()).unwrap();
        sandboxes
            .give_ranges(&[ends.ranges[0].parse().unwrap()])
            .unwrap();
        let wanted = SandboxSpec {
            uid: "a".to_owned(),
            network: true,
            ..SandboxSpec::default()
        };
        let pod = sandboxes.make(&wanted).unwrap();
        let at = pod.addresses[0];
        let scene = Scene {
            options: options.clone(),
            peer: Far::new(ends, dir.path(), TUNNEL, 1, at),
            second: Far::new(ends, dir.path(), TUNNELS[1], 3, at),
            stranger: Far::new(ends, dir.path(), "segment", 2, at),
            pod,
            at,
            ends,
        };
        sandboxes
            .let_in(vec![ends.ranges[1].parse().unwrap()])
            .unwrap();
        test(&scene);
        sandboxes.remove("a").unwrap();
        release(&scene.peer.place)?;
        release(&scene.second.place)?;
        release(&scene.stranger.place)?;
        Ok(())
    })
    .unwrap();
}

impl Scene {
    fn pod<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let network = self.pod.held(Kind::Network).unwrap();
        namespace::inside(&[(Kind::Network, &network)], || Ok(work())).unwrap()
    }
}

#[test]
fn pods_of_other_machines_come_by_the_tunnel_or_not_at_all() {
    for tunnel in [true, false] {
        scene(tunnel, |scene| {
            let pod = scene.pod(|| UdpSocket::bind((scene.ends.any, PORT)).unwrap());
            let (peer, stranger) = (
                scene.peer.socket(scene.ends.far_pod),
                scene.stranger.socket(scene.ends.far_pod),
            );
            assert!(arrives(&peer, &pod, scene.at, true), "by the tunnel");
            let second = scene.second.socket(scene.ends.far_pod);
            let by_the_second = "by the tunnel's other link";
            assert!(arrives(&second, &pod, scene.at, true), "{by_the_second}");
            let plain = arrives(&stranger, &pod, scene.at, !tunnel);
            assert_eq!(plain, !tunnel, "by the segment, with a tunnel: {tunnel}");
            // Nobody elsewhere has an address of this machine's range.
            for far in [&scene.peer, &scene.second, &scene.stranger] {
                let claimed = far.socket(scene.ends.own);
                assert!(!arrives(&claimed, &pod, scene.at, false), "{}", far.link);
            }
        });
    }
}

/// Serves the service by a pod.
fn serve(service: IpAddr, pod: IpAddr) {
    let ports = json!([{"name": "udp", "protocol": "UDP", "port": PORT}]);
    let object = json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {
        "clusterIP": service, "clusterIPs": [service], "ports": ports,
    }});
    let service = Service::read(serde_json::from_value(object).unwrap());
    let object = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": ports, "endpoints": [{"addresses": [pod]}],
    });
    let slice = Slice::read(serde_json::from_value(object).unwrap()).unwrap();
    let key = Arc::new(Key {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
    });
    let known = Known {
        services: Some([(Arc::clone(&key), Arc::new(service))].into()),
        slices: Some([(key, Arc::new(slice))].into()),
        ..Known::default()
    };
    Rules::default().apply(&Arc::new(known), "n1", &[]).unwrap();
}

#[test]
fn no_service_admits_packets_from_elsewhere_with_addresses_of_this_machine() {
    for tunnel in [true, false] {
        scene(tunnel, |scene| {
            let pod = scene.pod(|| UdpSocket::bind((scene.ends.any, PORT)).unwrap());
            let service = scene.ends.service;
            serve(service, scene.at);
            let peer = scene.peer.socket(scene.ends.far_pod);
            assert!(arrives(&peer, &pod, service, true), "a pod elsewhere");
            // A policy would treat it as the pod that has the address here.
            for far in [&scene.peer, &scene.second, &scene.stranger] {
                let claimed = far.socket(scene.ends.own);
                assert!(!arrives(&claimed, &pod, service, false), "{}", far.link);
            }
        });
    }
}

#[test]
fn an_agent_that_starts_anew_goes_on_with_the_tunnel_of_before() {
    scene(true, |scene| {
        let pod = scene.pod(|| UdpSocket::bind((scene.ends.any, PORT)).unwrap());
        scene.peer.lead();
        let agent = Sandboxes::open(scene.options.clone()).unwrap();
        agent
            .give_ranges(&[scene.ends.ranges[0].parse().unwrap()])
            .unwrap();
        let (peer, stranger) = (
            scene.peer.socket(scene.ends.far_pod),
            scene.stranger.socket(scene.ends.far_pod),
        );
        assert!(!arrives(&stranger, &pod, scene.at, false));
        assert!(
            arrives(&peer, &pod, scene.at, true),
            "before nodes are known"
        );
    });
}

#[test]
fn nothing_for_a_pod_leaves_in_the_clear() {
    for tunnel in [true, false] {
        scene(tunnel, |scene| {
            let pod = scene.pod(|| UdpSocket::bind((scene.ends.any, PORT)).unwrap());
            let own = UdpSocket::bind((scene.ends.any, PORT)).unwrap();
            let stranger = scene.stranger.socket(scene.ends.far_pod);
            scene.stranger.lead();
            for from in [&pod, &own] {
                let plain = arrives(from, &stranger, scene.ends.far_pod, !tunnel);
                assert_eq!(plain, !tunnel, "with a tunnel: {tunnel}");
            }
            scene.peer.lead();
            for far in [&scene.peer, &scene.second] {
                far.lead();
                let peer = far.socket(scene.ends.far_pod);
                let by = far.link;
                assert!(arrives(&pod, &peer, scene.ends.far_pod, true), "by {by}");
            }
        });
    }
}

#[test]
fn a_connection_goes_on_when_its_packets_change_the_link() {
    scene(true, |scene| {
        let mut links = Links::open().unwrap();
        let (ends, segment) = (scene.ends, index("segment"));
        for link in TUNNELS {
            let alone = ends.family.bits();
            links.add_address(index(link), ends.gateway, alone).unwrap();
        }
        let prefix = ends.family.bits() - 8;
        links.add_address(segment, ends.machine, prefix).unwrap();
        // Its source is changed on its way into the tunnel, which is remembered for all of its
        // packets.
        let bound = UdpSocket::bind((ends.machine, PORT)).unwrap();
        let from = [&scene.peer, &scene.second, &scene.peer].map(|far| {
            far.lead();
            let peer = far.socket(ends.far_pod);
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            bound.send_to(b"hello", (ends.far_pod, PORT)).unwrap();
            peer.recv_from(&mut [0; 8]).unwrap().1
        });
        assert_eq!(from[0].ip(), ends.gateway);
        assert!(from.iter().all(|one| *one == from[0]), "{from:?}");
    });
}

#[test]
fn the_machine_sends_into_the_tunnel_from_its_address_in_its_range() {
    scene(true, |scene| {
        let mut links = Links::open().unwrap();
        let (segment, tunnel) = (index("segment"), index(TUNNEL));
        links
            .add_address(segment, scene.ends.machine, scene.ends.family.bits() - 8)
            .unwrap();
        let gateway = scene.ends.gateway;
        links
            .add_address(tunnel, gateway, scene.ends.family.bits())
            .unwrap();
        scene.peer.lead();
        let peer = scene.peer.socket(scene.ends.far_pod);
        let bound = UdpSocket::bind((scene.ends.machine, PORT)).unwrap();
        assert!(arrives(&bound, &peer, scene.ends.far_pod, true));
        bound.send_to(b"again", (scene.ends.far_pod, PORT)).unwrap();
        let (_, from) = peer.recv_from(&mut [0; 8]).unwrap();
        assert_eq!(
            from.ip(),
            gateway,
            "another address than the range's is none of a peer's"
        );
    });
}

#[test]
fn packets_of_pods_leave_room_for_the_tunnel_around_them() {
    for (tunnel, mtu) in [(true, 1500 - OVERHEAD), (false, 1500)] {
        scene(tunnel, |scene| {
            let far = scene.ends.far_pod;
            let largest = scene.pod(|| Links::open().unwrap().largest_packet_to(far).unwrap());
            assert_eq!(largest, Some(mtu));
        });
    }
}
