//! What the packet filter lets through beside a tunnel, in network namespaces: a virtual cable stands for the tunnel's link,
//! since the filter goes by the link. The tunnel itself needs a kernel with WireGuard, and is tested in machines.

use super::OVERHEAD;
use crate::rules::{TUNNEL, TUNNELS};
use crate::sandboxes::set_link;
use crate::{Places, Sandbox, Sandboxes, Wanted};
use agent_sys::namespace::{self, Kind, hold, in_new, release};
use agent_sys::netlink::links::{Cable, LOOPBACK, Links, Mac, Route};
use std::fs::File;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough for a packet between two namespaces; only what is dropped waits for it to pass.
const SILENCE: Duration = Duration::from_millis(500);
const PORT: u16 = 7;
/// A pod of another machine, whose address a stranger on the segment takes, too.
const FAR_POD: Ipv4Addr = Ipv4Addr::new(10, 1, 1, 5);
/// An address of this machine's range that no pod has.
const OWN: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 77);

/// What is at the other end of a link of the machine.
struct Far {
    link: &'static str,
    machines: Mac,
    own: Mac,
    place: PathBuf,
}

impl Far {
    fn lay(dir: &Path, link: &'static str, number: u8, pod: Ipv4Addr) -> Self {
        let other = Self {
            link,
            machines: [2, 0, 0, 0, number, 1],
            own: [2, 0, 0, 0, number, 2],
            place: dir.join(link),
        };
        in_new(&[Kind::Network], || hold(Kind::Network, &other.place)).unwrap();
        let far = File::open(&other.place).unwrap();
        let mut links = Links::open().unwrap();
        links
            .lay(&Cable {
                name: link,
                mac: other.machines,
                far_name: "eth0",
                far_mac: other.own,
                far: far.as_fd(),
                mtu: 1500,
            })
            .unwrap();
        set_link(link).unwrap();
        // The packet filter alone must hold, without the kernel's look at the way back.
        namespace::set(&format!("net/ipv4/conf/{link}/rp_filter"), "0").unwrap();
        namespace::set("net/ipv4/conf/all/rp_filter", "0").unwrap();
        links.switch_on(index(link)).unwrap();
        other.inside(|| {
            let mut links = Links::open().unwrap();
            let eth0 = index("eth0");
            links.switch_on(eth0).unwrap();
            for address in [FAR_POD, OWN] {
                links.add_address(eth0, address.into(), 32).unwrap();
            }
            links.add_route(&into(eth0, pod, 32)).unwrap();
            links
                .fix_neighbour(eth0, pod.into(), other.machines)
                .unwrap();
        });
        other
    }

    fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        namespace::inside(&[(Kind::Network, &self.place)], || Ok(work())).unwrap()
    }

    fn socket(&self, address: Ipv4Addr) -> UdpSocket {
        self.inside(|| UdpSocket::bind((address, PORT)).unwrap())
    }

    /// Leads the machine's packets for the other machine's pod to this one.
    fn lead(&self) {
        let mut links = Links::open().unwrap();
        links
            .add_route(&into(index(self.link), FAR_POD, 32))
            .unwrap();
        let link = index(self.link);
        links.fix_neighbour(link, FAR_POD.into(), self.own).unwrap();
    }
}

fn index(link: &str) -> u32 {
    Links::open().unwrap().named(link).unwrap().unwrap().index
}

fn into(link: u32, address: Ipv4Addr, prefix: u8) -> Route {
    Route {
        destination: address.into(),
        prefix,
        gateway: None,
        link,
    }
}

/// Whether a datagram arrives; it is waited for longer where it should.
fn arrives(from: &UdpSocket, to: &UdpSocket, address: Ipv4Addr, should: bool) -> bool {
    // What an earlier question left behind is no answer to this one.
    to.set_nonblocking(true).unwrap();
    while to.recv(&mut [0; 8]).is_ok() {}
    to.set_nonblocking(false).unwrap();
    to.set_read_timeout(Some(if should { PATIENCE } else { SILENCE }))
        .unwrap();
    // A filter's refusal of what the machine sends shows as an error.
    from.send_to(b"hello", (address, PORT)).is_ok() && to.recv(&mut [0; 8]).is_ok()
}

struct Scene {
    places: Places,
    pod: Sandbox,
    at: Ipv4Addr,
    /// At the tunnel's first link, and at the second.
    peer: Far,
    second: Far,
    stranger: Far,
}

fn scene(tunnel: bool, test: impl FnOnce(&Scene) + Send) {
    let dir = tempfile::tempdir().unwrap();
    let places = Places {
        run: dir.path().join("pods"),
        ledger: dir.path().join("addresses.json"),
        alone: true,
        tunnel,
    };
    in_new(&[Kind::Network], || {
        Links::open()?.switch_on(LOOPBACK)?;
        let sandboxes = Sandboxes::open(places.clone()).unwrap();
        sandboxes
            .give_ranges(&["10.1.0.0/24".parse().unwrap()])
            .unwrap();
        let wanted = Wanted {
            uid: "a".to_owned(),
            network: true,
            ..Wanted::default()
        };
        let pod = sandboxes.make(&wanted).unwrap();
        let std::net::IpAddr::V4(at) = pod.addresses[0] else {
            unreachable!("pods have IPv4")
        };
        let scene = Scene {
            places: places.clone(),
            peer: Far::lay(dir.path(), TUNNEL, 1, at),
            second: Far::lay(dir.path(), TUNNELS[1], 3, at),
            stranger: Far::lay(dir.path(), "segment", 2, at),
            pod,
            at,
        };
        sandboxes
            .let_in(vec!["10.1.1.0/24".parse().unwrap()])
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
            let pod = scene.pod(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap());
            let (peer, stranger) = (scene.peer.socket(FAR_POD), scene.stranger.socket(FAR_POD));
            assert!(arrives(&peer, &pod, scene.at, true), "by the tunnel");
            let second = scene.second.socket(FAR_POD);
            let by_the_second = "by the tunnel's other link";
            assert!(arrives(&second, &pod, scene.at, true), "{by_the_second}");
            let plain = arrives(&stranger, &pod, scene.at, !tunnel);
            assert_eq!(plain, !tunnel, "by the segment, with a tunnel: {tunnel}");
            // Nobody elsewhere has an address of this machine's range.
            for far in [&scene.peer, &scene.second, &scene.stranger] {
                let claimed = far.socket(OWN);
                assert!(!arrives(&claimed, &pod, scene.at, false), "{}", far.link);
            }
        });
    }
}

#[test]
fn an_agent_that_starts_anew_goes_on_with_the_tunnel_of_before() {
    scene(true, |scene| {
        let pod = scene.pod(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap());
        scene.peer.lead();
        let agent = Sandboxes::open(scene.places.clone()).unwrap();
        agent
            .give_ranges(&["10.1.0.0/24".parse().unwrap()])
            .unwrap();
        let (peer, stranger) = (scene.peer.socket(FAR_POD), scene.stranger.socket(FAR_POD));
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
            let pod = scene.pod(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap());
            let own = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
            let stranger = scene.stranger.socket(FAR_POD);
            scene.stranger.lead();
            for from in [&pod, &own] {
                let plain = arrives(from, &stranger, FAR_POD, !tunnel);
                assert_eq!(plain, !tunnel, "with a tunnel: {tunnel}");
            }
            scene.peer.lead();
            for far in [&scene.peer, &scene.second] {
                far.lead();
                let peer = far.socket(FAR_POD);
                assert!(arrives(&pod, &peer, FAR_POD, true), "by {}", far.link);
            }
        });
    }
}

#[test]
fn a_connection_goes_on_when_its_packets_change_the_link() {
    scene(true, |scene| {
        let mut links = Links::open().unwrap();
        let gateway = Ipv4Addr::new(10, 1, 0, 1);
        for link in TUNNELS {
            links.add_address(index(link), gateway.into(), 32).unwrap();
        }
        let segment = index("segment");
        let address = "192.0.2.1".parse().unwrap();
        links.add_address(segment, address, 24).unwrap();
        // Its source is changed on its way into the tunnel, which is remembered for all of its packets.
        let bound = UdpSocket::bind((address, PORT)).unwrap();
        let from = [&scene.peer, &scene.second, &scene.peer].map(|far| {
            far.lead();
            let peer = far.socket(FAR_POD);
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            bound.send_to(b"hello", (FAR_POD, PORT)).unwrap();
            peer.recv_from(&mut [0; 8]).unwrap().1
        });
        assert_eq!(from[0].ip(), gateway);
        assert!(from.iter().all(|one| *one == from[0]), "{from:?}");
    });
}

#[test]
fn the_machine_speaks_by_the_tunnel_with_its_address_in_its_range() {
    scene(true, |scene| {
        let mut links = Links::open().unwrap();
        let (segment, tunnel) = (index("segment"), index(TUNNEL));
        links
            .add_address(segment, "192.0.2.1".parse().unwrap(), 24)
            .unwrap();
        let gateway = Ipv4Addr::new(10, 1, 0, 1);
        links.add_address(tunnel, gateway.into(), 32).unwrap();
        scene.peer.lead();
        let peer = scene.peer.socket(FAR_POD);
        let bound = UdpSocket::bind(("192.0.2.1", PORT)).unwrap();
        assert!(arrives(&bound, &peer, FAR_POD, true));
        bound.send_to(b"again", (FAR_POD, PORT)).unwrap();
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
            let eth0 = scene.pod(|| Links::open().unwrap().named("eth0").unwrap().unwrap());
            assert_eq!(eth0.mtu, mtu);
        });
    }
}
