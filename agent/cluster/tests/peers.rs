//! Tests a node's tunnel over real WireGuard: what other machines cost it as peers, and that no
//! packet of theirs is lost when the agent is killed. Machines that answer are network namespaces
//! with two WireGuard links of their own, which requires a kernel with WireGuard; others are only
//! keys and addresses. On a kernel without WireGuard this prints that, and tests nothing: `cargo
//! xtask bench peers` runs it in a machine with the images' kernel. Needs root.
//!
//! Wall times are those of the machine, which may be emulated; processor time is that of the
//! agent's own process, without what the kernel does for packets.

#![allow(clippy::print_stdout, reason = "it shows what it measures")]

use agent_cluster::rules::TUNNELS;
use agent_cluster::tunnel::{Announced, Keeper, PORTS, Proven};
use agent_cluster::{Sandbox, SandboxOptions, SandboxSpec, Sandboxes};
use agent_proxy::{Node, View};
use agent_sys::namespace::{self, Kind, hold, in_new, release};
use agent_sys::netlink::Family;
use agent_sys::netlink::links::{LOOPBACK, Links, Mac, Route, VethPair};
use agent_sys::netlink::wireguard::{Change, Key, Range, WireGuard};
use config_model::format::Cidr;
use std::fs::File;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle, ScopedJoinHandle};
use std::time::{Duration, Instant};
use tests_harness::pace::{number, spent_by_process, spread};
use tokio::sync::{oneshot, watch};

/// Time for the kernel's own work, under emulation: handshakes with all peers.
const PATIENCE: Duration = Duration::from_secs(900);
/// `ENOENT`: the error of a kernel without WireGuard.
const NO_SUCH_FAMILY: i32 = 2;
const PAUSE: Duration = Duration::from_millis(10);
/// The port at which the node is called, at its addresses in its pod CIDRs; and its pod's.
const PORT: u16 = 7;
/// How long one answer may take: a packet that is lost is not sent again.
const ANSWER: Duration = Duration::from_secs(60);
/// How often the agent is killed, and how many answers each machine gets before the next step.
const KILLS: usize = 3;
const ANSWERS: u32 = 20;

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

/// The range with this first address.
fn range(first: IpAddr) -> Cidr {
    let prefix = if first.is_ipv4() { 24 } else { 64 };
    let of_first = Cidr {
        address: first,
        prefix,
    };
    Cidr {
        address: of_first.network(),
        prefix,
    }
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
        ranges: firsts(number).map(range).to_vec(),
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
            let ranges = firsts(0).map(range).map(|range| Range {
                address: range.address,
                prefix: range.prefix,
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
        for range in firsts(0).map(range) {
            links.add_route(&Route {
                destination: range.address,
                prefix: range.prefix,
                gateway: None,
                link: first,
            })?;
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
        // Polling takes at most a third of a processor from what it waits for.
        thread::sleep(PAUSE.max(2 * look.elapsed()));
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

fn tell(view: &View, node_is: &[NodeKeys]) {
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
    thread::scope(|scope| {
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

/// Runs a test on a node of its own, with a folder; where the kernel has no WireGuard it says so.
fn on_a_node(test: impl FnOnce(&Path) + Send) {
    let dir = tempfile::tempdir().expect("a folder");
    in_new(&[Kind::Network], || {
        match WireGuard::open() {
            Err(error) if error.errno() == Some(NO_SUCH_FAMILY) => {
                println!("nothing is shown: this kernel has no WireGuard");
                return Ok(());
            }
            kernel => drop(kernel?),
        }
        let mut links = Links::open()?;
        links.switch_on(LOOPBACK)?;
        links.add_address(LOOPBACK, address(0), 32)?;
        test(dir.path());
        Ok(())
    })
    .expect("a network");
}

/// The node's sandboxes, as an agent opens them that starts.
fn sandboxes(dir: &Path) -> Arc<Sandboxes> {
    let sandboxes = Sandboxes::open(SandboxOptions {
        run: dir.join("pods"),
        ledger: dir.join("addresses.json"),
        kubernetes_only: true,
        tunnel: true,
    });
    let sandboxes = sandboxes.expect("a place");
    let ranges = firsts(0).map(range);
    sandboxes.give_ranges(&ranges).expect("the kernel");
    Arc::new(sandboxes)
}

/// The part of an agent that keeps the tunnel.
struct Agent {
    reported: watch::Receiver<Option<[Key; 2]>>,
    end: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Agent {
    fn start(sandboxes: Arc<Sandboxes>, view: View) -> Self {
        let (keys, reported) = watch::channel(None);
        let keeper = Keeper {
            sandboxes,
            view,
            own: name(0),
            verify: Arc::new(|_: &str, announced: &Announced| {
                let both = announced.both.as_deref().and_then(self::keys);
                let both = both.ok_or_else(|| "no keys".to_owned())?;
                Ok(Proven {
                    keys: both.map(Some),
                    not_after: u64::MAX,
                })
            }),
            period: None,
            keys,
        };
        let (end, over) = oneshot::channel::<()>();
        // A thread is in the network of the one that began it.
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().expect("a runtime");
            runtime.block_on(async {
                // Cancel-safe: a started kernel call completes, and the agent has ended then.
                tokio::select! {
                    () = keeper.run() => {}
                    _ = over => {}
                }
            });
        });
        Self {
            reported,
            end,
            thread,
        }
    }

    /// The node's keys, once it has reported them.
    fn keys(&self) -> [Key; 2] {
        let mut keys = None;
        until("the node's keys", || {
            keys = *self.reported.borrow();
            keys.is_some()
        });
        keys.expect("keys")
    }

    /// Ends it at once; what it made in the kernel stays.
    fn kill(self) {
        drop(self.end);
        self.thread.join().expect("it ends");
    }
}

#[test]
fn machines_of_a_large_cluster() {
    let count = number("PEERS_MACHINES", 3_u16);
    let answering = number("PEERS_ANSWERING", count).min(count);
    let changes = number("PEERS_CHANGES", 2_u16);
    on_a_node(|dir| measure(dir, [count, answering], changes));
}

fn measure(dir: &Path, [count, answering]: [u16; 2], changes: u16) {
    let view = View::default();
    tell(&view, &[(0, None)]);
    let agent = Agent::start(sandboxes(dir), view.clone());
    let own = agent.keys();
    let begun = Instant::now();
    let machines = (1..=answering).map(|number| machine(dir, number, own));
    let machines: Vec<Machine> = machines.collect();
    println!("{answering} machines made in {:?}", begun.elapsed());
    let absent = (answering + 1..=count).map(|number| (number, Some(nobodys(number))));
    figures(&view, &machines, absent.collect(), changes);
    agent.kill();
    for machine in &machines {
        release(&machine.place).expect("it goes");
    }
}

#[test]
fn an_agent_that_is_killed_loses_no_packet_of_other_machines() {
    on_a_node(|dir| {
        let view = View::default();
        tell(&view, &[(0, None)]);
        let first = sandboxes(dir);
        let wanted = SandboxSpec {
            uid: "asked".to_owned(),
            network: true,
            ..SandboxSpec::default()
        };
        let pod = first.make(&wanted).expect("a pod");
        let agent = Agent::start(first, view.clone());
        let own = agent.keys();
        let machines = [1, 2].map(|number| machine(dir, number, own));
        let all = [(0, None)].into_iter();
        let all = all.chain(machines.iter().map(|one| (one.number, Some(one.keys))));
        let all: Vec<NodeKeys> = all.collect();
        tell(&view, &all);
        until("sessions with both machines", || {
            seen(|handshake| handshake > 0).0 == [machines.len(); 2]
        });
        under_traffic(&pod, &machines, |go_on| {
            go_on("before");
            let mut agent = agent;
            for _ in 0..KILLS {
                agent.kill();
                go_on("without an agent");
                let (next, view) = (sandboxes(dir), View::default());
                assert_eq!(next.find("asked").as_ref(), Some(&pod), "it is adopted");
                go_on("with the next agent's rules");
                agent = Agent::start(next, view.clone());
                go_on("before it knows the nodes");
                tell(&view, &all);
                assert_eq!(agent.keys(), own, "the kernel's keys stay");
                go_on("with the next agent");
            }
            agent.kill();
        });
        println!("{KILLS} agents were killed, and each question was answered");
        for machine in &machines {
            release(&machine.place).expect("it goes");
        }
        sandboxes(dir).remove("asked").expect("it goes");
    });
}

/// Stops threads when it is dropped, also if a test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs a test while each machine repeatedly calls the pod. The closure that the test gets waits
/// until each machine has got some more answers, and fails if a call gets none.
fn under_traffic(pod: &Sandbox, machines: &[Machine], test: impl FnOnce(&dyn Fn(&str))) {
    let network = pod.held(Kind::Network).expect("a network");
    let bind = || Ok(UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT)).expect("a socket"));
    let socket = namespace::inside(&[(Kind::Network, &network)], bind).expect("its network");
    socket.set_read_timeout(Some(PAUSE)).expect("a socket");
    let (socket, over) = (&socket, &AtomicBool::new(false));
    let counts: Vec<AtomicU32> = machines.iter().map(|_| AtomicU32::new(0)).collect();
    thread::scope(|scope| {
        let _over = Over(over);
        scope.spawn(move || answer(socket, over));
        let threads = machines.iter().zip(&counts);
        let threads = threads.map(|(machine, answered)| {
            scope.spawn(move || ask(machine, &pod.addresses, answered, over))
        });
        let threads: Vec<ScopedJoinHandle<'_, ()>> = threads.collect();
        test(&|when| {
            let now = || counts.iter().map(|count| count.load(Ordering::Acquire));
            let before: Vec<u32> = now().collect();
            until(when, || {
                let mut threads = threads.iter();
                assert!(threads.all(|one| !one.is_finished()), "{when}");
                now()
                    .zip(&before)
                    .all(|(now, before)| now >= before + ANSWERS)
            });
        });
    });
}

/// Sends back what comes to the pod.
fn answer(socket: &UdpSocket, over: &AtomicBool) {
    let mut buffer = [0; 4];
    while !over.load(Ordering::Acquire) {
        if let Ok((_, from)) = socket.recv_from(&mut buffer) {
            socket.send_to(&buffer, from).expect("an answer");
        }
    }
}

/// Calls the pod at each of its addresses, from a new port each time, so that rules judge each call
/// again. The thread ends if a call or its answer is lost.
fn ask(machine: &Machine, pod: &[IpAddr], answered: &AtomicU32, over: &AtomicBool) {
    let ask = || {
        while !over.load(Ordering::Acquire) {
            let number = answered.load(Ordering::Acquire).to_be_bytes();
            for (own, pod) in firsts(machine.number).into_iter().zip(pod) {
                let socket = UdpSocket::bind((own, 0)).expect("a socket");
                socket.set_read_timeout(Some(ANSWER)).expect("a socket");
                socket.send_to(&number, (*pod, PORT)).expect("it is sent");
                let mut buffer = [0; 4];
                let (_, from) = socket.recv_from(&mut buffer).expect("an answer");
                assert_eq!((buffer, from.ip()), (number, *pod));
            }
            answered.fetch_add(1, Ordering::AcqRel);
            thread::sleep(PAUSE);
        }
        Ok(())
    };
    namespace::inside(&[(Kind::Network, &machine.place)], ask).expect("a machine");
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
type NodeKeys = (u16, Option<[Key; 2]>);

fn figures(view: &View, machines: &[Machine], absent: Vec<NodeKeys>, changes: u16) {
    let present = machines.iter();
    let present = present.map(|machine| (machine.number, Some(machine.keys)));
    let all: Vec<NodeKeys> = present.chain(absent).collect();
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
    thread::sleep(Duration::from_secs(if count > 100 { 60 } else { 1 }));
    let (spent, passed) = (spent_by_process().saturating_sub(spent), begun.elapsed());
    println!("kept for {passed:?}: CPU {spent:?}");
}
