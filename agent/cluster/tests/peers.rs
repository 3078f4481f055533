//! What other machines cost a node as peers of its tunnel: those that answer are network namespaces
//! with two WireGuard links of their own, so that it takes a kernel with WireGuard; others are keys
//! at addresses without a machine. Where there is none, this says so and shows nothing:
//! `cargo xtask bench peers` runs it in a machine with the images' kernel. Needs root.
//!
//! Wall times are those of the machine, which may be emulated; processor time is that of the
//! agent's own process, without what the kernel does for packets.

#![allow(clippy::print_stdout, reason = "it shows what it measures")]

use agent_cluster::rules::TUNNELS;
use agent_cluster::tunnel::{Announced, Keeper, PORTS, Proven};
use agent_cluster::{SandboxOptions, Sandboxes};
use agent_proxy::{Node, View};
use agent_sys::namespace::{self, Kind, hold, in_new, release};
use agent_sys::netlink::Family;
use agent_sys::netlink::links::{LOOPBACK, Links, Mac, Route, VethPair};
use agent_sys::netlink::wireguard::{Change, Key, Range, WireGuard};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tests_harness::pace::{number, spent_by_process, spread};
use tokio::sync::{oneshot, watch};

/// For what the kernel does by itself: sessions of all peers, under emulation.
const PATIENCE: Duration = Duration::from_secs(900);
/// `ENOENT`: what the kernel says where it has no WireGuard.
const NO_SUCH_FAMILY: i32 = 2;
const PAUSE: Duration = Duration::from_millis(10);
/// Where it is asked, at its addresses in its ranges of pod addresses.
const PORT: u16 = 7;

/// A machine by its number, from 1; 0 is the node.
#[derive(Debug, Clone)]
struct Machine {
    number: u16,
    place: PathBuf,
    keys: [Key; 2],
}

fn name(number: u16) -> String {
    format!("machine-{number}")
}

fn address(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    [198, 18 + u8::from(number > 0), high, low].into()
}

/// A machine's first addresses of its two ranges.
fn firsts(number: u16) -> [IpAddr; 2] {
    let [high, low] = number.to_be_bytes();
    let v6 = Ipv6Addr::new(0xfd00, 0, 0, number, 0, 0, 0, 1);
    [[10, high, low, 1].into(), v6.into()]
}

fn prefix(address: IpAddr) -> u8 {
    if address.is_ipv4() { 24 } else { 64 }
}

fn range(first: IpAddr) -> String {
    let zero = match first {
        IpAddr::V4(address) => IpAddr::from(Ipv4Addr::from(u32::from(address) & !0xff)),
        IpAddr::V6(address) => IpAddr::from(Ipv6Addr::from(u128::from(address) & !0xff)),
    };
    format!("{zero}/{}", prefix(first))
}

fn text(keys: [Key; 2]) -> String {
    serde_json::to_string(&keys).expect("keys")
}

fn keys(text: &str) -> Option<[Key; 2]> {
    serde_json::from_str(text).ok()
}

/// A machine as the watch of Nodes shows it.
fn node(number: u16, keys: Option<[Key; 2]>) -> Node {
    Node {
        addresses: vec![address(number)],
        ranges: firsts(number)
            .map(|first| range(first).parse().expect("a range"))
            .to_vec(),
        trusted: keys.is_some(),
        tunnel_keys: keys.map(text),
        ..Node::default()
    }
}

fn index(links: &mut Links, name: &str) -> u32 {
    let link = links.named(name).expect("links");
    link.expect("the link").index
}

/// A machine with a veth pair to the node; both know where the other is, and the machine knows the
/// node's keys.
fn machine(dir: &Path, number: u16, node: [Key; 2]) -> Machine {
    let place = dir.join(name(number));
    in_new(&[Kind::Network], || hold(Kind::Network, &place)).expect("a namespace");
    let far = File::open(&place).expect("a namespace");
    let [high, low] = number.to_be_bytes();
    let macs: [Mac; 2] = [[2, 0, high, low, 0, 1], [2, 0, high, low, 0, 2]];
    let near = format!("to-{number}");
    let mut links = Links::open().expect("links");
    links
        .add_veth_pair(&VethPair {
            name: &near,
            mac: macs[0],
            far_name: "eth0",
            far_mac: macs[1],
            far: far.as_fd(),
            mtu: 1500,
        })
        .expect("a veth pair");
    lead(&mut links, &near, address(number), macs[1]);
    let inside = || {
        let mut links = Links::open()?;
        links.switch_on(LOOPBACK)?;
        let loopback = index(&mut links, "lo");
        for own in [address(number)].into_iter().chain(firsts(number)) {
            links.add_address(loopback, own, Family::of(own).bits())?;
        }
        lead(&mut links, "eth0", address(0), macs[0]);
        let mut kernel = WireGuard::open()?;
        let mut keys = [[0; 32]; 2];
        for (slot, link) in TUNNELS.into_iter().enumerate() {
            links.add_wireguard(link, 1420)?;
            let index = index(&mut links, link);
            kernel.renew_key(index)?;
            kernel.listen(index, PORTS[slot])?;
            links.switch_on(index)?;
            let ranges = firsts(0).map(|address| Range {
                address,
                prefix: Family::of(address).bits(),
            });
            kernel.change(
                index,
                &[Change::Put {
                    key: node[slot],
                    endpoint: None,
                    ranges: ranges.to_vec(),
                    keepalive: 0,
                }],
            )?;
            keys[slot] = kernel.read(index)?.key.expect("a key");
        }
        // The node's packets go by its first link, as keys last.
        let first = index(&mut links, TUNNELS[0]);
        for destination in firsts(0) {
            links.add_route(&alone(destination, first))?;
        }
        Ok(keys)
    };
    let keys = namespace::inside(&[(Kind::Network, &place)], inside).expect("a machine");
    Machine {
        number,
        place,
        keys,
    }
}

fn lead(links: &mut Links, link: &str, to: IpAddr, mac: Mac) {
    let index = index(links, link);
    links.switch_on(index).expect("the link");
    links.add_route(&alone(to, index)).expect("a route");
    links.fix_neighbour(index, to, mac).expect("a neighbour");
}

fn alone(destination: IpAddr, link: u32) -> Route {
    Route {
        destination,
        prefix: Family::of(destination).bits(),
        gateway: None,
        link,
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    loop {
        let look = Instant::now();
        if holds() {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}");
        // Looks take no more than a third of a processor from what they look at.
        std::thread::sleep(PAUSE.max(2 * look.elapsed()));
    }
}

/// Peers of each link, of which the last condition holds, and routes into both.
fn seen(counts: impl Fn(u64) -> bool) -> ([usize; 2], usize) {
    let mut links = Links::open().expect("links");
    let mut kernel = WireGuard::open().expect("the kernel");
    let mut routes = 0;
    let peers = TUNNELS.map(|link| {
        let index = index(&mut links, link);
        routes += links.routes_into(index).expect("routes").len();
        let peers = kernel.read(index).expect("the link").peers;
        let peers = peers.values();
        peers.filter(|peer| counts(peer.handshake)).count()
    });
    (peers, routes)
}

/// Memory of this process, in KiB.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    number.expect("its memory")
}

fn tell(view: &View, node_is: &[Told]) {
    view.change(
        |_| true,
        |known| {
            let nodes = known.nodes.get_or_insert_default();
            for (number, keys) in node_is {
                nodes.insert(name(*number), Arc::new(node(*number, *keys)));
            }
        },
    );
}

/// Each machine sends the node a packet of each family, and gets it back.
fn exchange(machines: &[Machine]) {
    let sockets = firsts(0).map(|own| UdpSocket::bind((own, PORT)).expect("a socket"));
    std::thread::scope(|scope| {
        for socket in &sockets {
            socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
            scope.spawn(move || {
                let mut buffer = [0; 2];
                for _ in machines {
                    let (_, from) = socket.recv_from(&mut buffer).expect("a packet");
                    socket.send_to(&buffer, from).expect("an answer");
                }
            });
        }
        for machine in machines {
            let ask = || {
                for (own, node) in firsts(machine.number).into_iter().zip(firsts(0)) {
                    let socket = UdpSocket::bind((own, PORT)).expect("a socket");
                    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
                    let number = machine.number.to_be_bytes();
                    socket.send_to(&number, (node, PORT)).expect("it is sent");
                    let mut buffer = [0; 2];
                    let (_, from) = socket.recv_from(&mut buffer).expect("an answer");
                    assert_eq!((buffer, from.ip()), (number, node));
                }
                Ok(())
            };
            namespace::inside(&[(Kind::Network, &machine.place)], ask).expect("a machine");
        }
    });
}

#[test]
fn machines_of_a_large_cluster() {
    let count = number("PEERS_MACHINES", 3_u16);
    let answering = number("PEERS_ANSWERING", count).min(count);
    let changes = number("PEERS_CHANGES", 2_u16);
    let dir = tempfile::tempdir().expect("a folder");
    in_new(&[Kind::Network], || {
        match WireGuard::open() {
            Err(error) if error.errno() == Some(NO_SUCH_FAMILY) => {
                println!("nothing is shown: this kernel has no WireGuard");
                return Ok(());
            }
            kernel => drop(kernel?),
        }
        measure(dir.path(), [count, answering], changes);
        Ok(())
    })
    .expect("a network");
}

fn measure(dir: &Path, [count, answering]: [u16; 2], changes: u16) {
    let mut links = Links::open().expect("links");
    links.switch_on(LOOPBACK).expect("the loopback");
    let loopback = index(&mut links, "lo");
    links
        .add_address(loopback, address(0), 32)
        .expect("the address");
    let sandboxes = Sandboxes::open(SandboxOptions {
        run: dir.join("pods"),
        ledger: dir.join("addresses.json"),
        kubernetes_only: true,
        tunnel: true,
    });
    let sandboxes = Arc::new(sandboxes.expect("a place"));
    let ranges = firsts(0).map(|first| range(first).parse().expect("a range"));
    sandboxes.give_ranges(&ranges).expect("the kernel");
    let view = View::default();
    let (sender, told) = watch::channel(None);
    let keeper = Keeper {
        sandboxes,
        view: view.clone(),
        own: name(0),
        verify: Arc::new(|_: &str, announced: &Announced| {
            let both = announced.both.as_deref().and_then(keys);
            let both = both.ok_or_else(|| "no keys".to_owned())?;
            Ok(Proven {
                keys: both.map(Some),
                not_after: u64::MAX,
            })
        }),
        period: None,
        keys: sender,
    };
    tell(&view, &[(0, None)]);
    let (end, over) = oneshot::channel::<()>();
    std::thread::scope(|scope| {
        // A thread is in the network of the one that began it.
        scope.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().expect("a runtime");
            runtime.block_on(async {
                // Cancel-safe: what the kernel is asked goes on to its end, and the test is over.
                tokio::select! {
                    () = keeper.run() => {}
                    _ = over => {}
                }
            });
        });
        let mut own = None;
        until("the node's keys", || {
            own = *told.borrow();
            own.is_some()
        });
        let own = own.expect("keys");
        let begun = Instant::now();
        let machines = (1..=answering).map(|number| machine(dir, number, own));
        let machines: Vec<Machine> = machines.collect();
        println!("{answering} machines made in {:?}", begun.elapsed());
        let absent = (answering + 1..=count).map(|number| (number, Some(nobodys(number))));
        figures(&view, &machines, absent.collect(), changes);
        drop(end);
        for machine in &machines {
            release(&machine.place).expect("it goes");
        }
    });
}

/// Public keys without private halves.
fn nobodys(number: u16) -> [Key; 2] {
    [1, 2].map(|slot| {
        let mut key = [slot; 32];
        key[..2].copy_from_slice(&number.to_be_bytes());
        key
    })
}

/// A machine's number, and its keys while it is trusted.
type Told = (u16, Option<[Key; 2]>);

fn figures(view: &View, machines: &[Machine], absent: Vec<Told>, changes: u16) {
    let present = machines.iter();
    let present = present.map(|machine| (machine.number, Some(machine.keys)));
    let all: Vec<Told> = present.chain(absent).collect();
    let count = all.len();
    let (before, spent, begun) = (memory(), spent_by_process(), Instant::now());
    tell(view, &all);
    until("all peers", || seen(|_| true) == ([count; 2], 2 * count));
    println!(
        "{count} peers of each link and their routes: {:?}, CPU at most {:?}, memory + {} KiB",
        begun.elapsed(),
        spent_by_process().saturating_sub(spent),
        memory().saturating_sub(before)
    );
    until("sessions with all that answer", || {
        seen(|handshake| handshake > 0).0 == [machines.len(); 2]
    });
    println!(
        "sessions with all that answer: {:?} after the same",
        begun.elapsed()
    );
    exchange(machines);
    println!("each of these has asked the node by IPv4 and IPv6, and was answered");
    let (mut gone, mut back) = (Vec::new(), Vec::new());
    for (number, keys) in all.iter().cycle().take(changes.into()) {
        let begun = Instant::now();
        tell(view, &[(*number, None)]);
        until("one to go", || seen(|_| true).0 == [count - 1; 2]);
        gone.push(begun.elapsed());
        let begun = Instant::now();
        tell(view, &[(*number, *keys)]);
        until("one to come", || seen(|_| true).0 == [count; 2]);
        back.push(begun.elapsed());
    }
    println!("one that is not trusted goes: {}", spread(&mut gone));
    println!("one that is trusted again comes: {}", spread(&mut back));
    // Several looks at the kernel.
    let (spent, begun) = (spent_by_process(), Instant::now());
    std::thread::sleep(Duration::from_secs(if count > 100 { 60 } else { 1 }));
    let (spent, passed) = (spent_by_process().saturating_sub(spent), begun.elapsed());
    println!("kept for {passed:?}: CPU {spent:?}");
}
