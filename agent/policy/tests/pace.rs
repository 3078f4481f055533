//! Measures what NetworkPolicies cost a node, and how fast pods send to each other through their
//! rules. The test command runs it with small numbers, only to show that it works. Needs root.
//!
//! `PACE_PODS=100 PACE_ELSEWHERE=10000 PACE_POLICIES=1000 PACE_CHANGES=200 PACE_MIB=1024
//! PACE_TURNS=15 cargo test --release -p agent-policy --test pace -- --nocapture --test-threads 1`.
//! Processor time is that of the process, as namespaces are made on threads of their own.

use agent_cluster::{SandboxOptions, SandboxSpec, Sandboxes};
use agent_policy::model::{Pod, Policy};
use agent_policy::{Policies, World};
use agent_proxy::Key;
use agent_sys::namespace::{Kind, hold, in_new, inside, release};
use agent_sys::netlink::Family;
use agent_sys::netlink::links::{LOOPBACK, Links, VethPair};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Write as _, sink};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tests_harness::pace::{number, spent_by_process, spread, timed};

/// Pods and applications of one namespace.
const PODS: usize = 10;
const APPS: usize = 5;

/// Sandboxes with addresses of a range, in the network of the calling thread.
fn sandboxes(dir: &Path, range: &str) -> agent_sys::Result<Sandboxes> {
    Links::open()?.switch_on(LOOPBACK)?;
    let sandboxes = Sandboxes::open(SandboxOptions {
        run: dir.join("pods"),
        ledger: dir.join("addresses.json"),
        kubernetes_only: true,
        tunnel: false,
    });
    let sandboxes = sandboxes.expect("a place");
    let range = range.parse().expect("a range");
    sandboxes.give_ranges(&[range]).expect("the kernel");
    Ok(sandboxes)
}

/// The time of a turn, in seconds.
#[derive(Clone, Copy)]
struct Turn {
    wall: f64,
    /// Of both ends and of the kernel's work on their behalf.
    processor: f64,
}

/// What `mib` MiB take over one connection, from one place to another.
fn carried(mib: usize, listener: &TcpListener, client: TcpStream) -> Turn {
    let (server, _) = listener.accept().expect("a caller");
    let part = vec![1_u8; 1 << 20];
    let (begun, spent) = (Instant::now(), spent_by_process());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut client = client;
            for _ in 0..mib {
                client.write_all(&part).expect("it is taken");
            }
        });
        let taken = std::io::copy(&mut BufReader::with_capacity(1 << 20, server), &mut sink());
        assert_eq!(taken.expect("it comes"), (mib as u64) << 20);
    });
    Turn {
        wall: begun.elapsed().as_secs_f64(),
        processor: spent_by_process().saturating_sub(spent).as_secs_f64(),
    }
}

/// Two hosts connected by a veth pair like those of pods: the files of their network namespaces,
/// and the address of the second.
fn hosts(dir: &Path) -> agent_sys::Result<([PathBuf; 2], IpAddr)> {
    let hosts = ["host-a", "host-b"].map(|name| dir.join(name));
    for host in &hosts {
        in_new(&[Kind::Network], || hold(Kind::Network, host))?;
    }
    let far = File::open(&hosts[1]).expect("a network");
    let [first, second] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
    let connect = |name: &str, address| {
        let mut links = Links::open()?;
        let link = links.named(name)?.expect("its end");
        links.add_address(link.index, address, 24)?;
        links.switch_on(link.index)
    };
    inside(&[(Kind::Network, &hosts[0])], || {
        Links::open()?.add_veth_pair(&VethPair {
            name: "near",
            mac: [2, 0, 0, 0, 0, 2],
            far_name: "far",
            far_mac: [2, 0, 0, 0, 0, 3],
            far: far.as_fd(),
            mtu: 1500,
        })?;
        connect("near", first)
    })?;
    inside(&[(Kind::Network, &hosts[1])], || connect("far", second))?;
    Ok((hosts, second))
}

/// A way from one network to another.
struct Way {
    from: PathBuf,
    listener: TcpListener,
    turns: Vec<Turn>,
}

impl Way {
    fn new([from, to]: [&Path; 2], address: IpAddr) -> agent_sys::Result<Self> {
        let listen = || Ok(TcpListener::bind((address, 0)).expect("a port"));
        Ok(Self {
            from: from.to_owned(),
            listener: inside(&[(Kind::Network, to)], listen)?,
            turns: Vec::new(),
        })
    }

    fn carry(&mut self, mib: usize) -> agent_sys::Result<()> {
        let at = self.listener.local_addr().expect("an address");
        let call = || Ok(TcpStream::connect(at).expect("it is reached"));
        let client = inside(&[(Kind::Network, &self.from)], call)?;
        self.turns.push(carried(mib, &self.listener, client));
        Ok(())
    }

    /// The median ratio of another way's turn to this one's in the same round: the load of the host
    /// changes from round to round.
    fn against(&self, other: &Self) -> Turn {
        let pairs = || other.turns.iter().zip(&self.turns);
        Turn {
            wall: median(pairs().map(|(other, own)| other.wall / own.wall)),
            processor: median(pairs().map(|(other, own)| other.processor / own.processor)),
        }
    }

    fn middle(&self) -> Turn {
        Turn {
            wall: median(self.turns.iter().map(|turn| turn.wall)),
            processor: median(self.turns.iter().map(|turn| turn.processor)),
        }
    }
}

fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// In turns: a pod sends to another one of its node, a host to another by a veth pair, and the
/// machine to itself.
#[test]
fn a_pod_sends_to_another_of_its_node() {
    let mib = number("PACE_MIB", 2_usize);
    let turns = number("PACE_TURNS", 3_usize);
    let dir = tempfile::tempdir().expect("a folder");
    in_new(&[Kind::Network], || {
        let sandboxes = sandboxes(dir.path(), "10.1.0.0/24")?;
        let pods = ["a", "b"].map(|uid| {
            let wanted = SandboxSpec {
                uid: uid.to_owned(),
                network: true,
                ..SandboxSpec::default()
            };
            sandboxes.make(&wanted).expect("a sandbox")
        });
        let (families, everybody) = (
            [Family::V4].into(),
            World {
                pods: Some(BTreeMap::new()),
                namespaces: Some(BTreeMap::new()),
                policies: Some(BTreeMap::new()),
            },
        );
        let own = pods.iter().flat_map(|pod| &pod.addresses);
        let own = own.map(|at| (*at, Arc::default())).collect();
        assert!(
            Policies::default()
                .follow(&families, &everybody, &own)
                .expect("the kernel")
        );
        let [from, to] = pods
            .each_ref()
            .map(|pod| pod.held(Kind::Network).expect("a network"));
        let address = *pods[1].addresses.first().expect("an address");
        let (hosts, far) = hosts(dir.path())?;
        let machine = Path::new("/proc/thread-self/ns/net");
        let mut ways = [
            Way::new([&from, &to], address)?,
            Way::new(hosts.each_ref().map(PathBuf::as_path), far)?,
            Way::new([machine, machine], Ipv4Addr::LOCALHOST.into())?,
        ];
        for _ in 0..turns {
            for way in &mut ways {
                way.carry(mib)?;
            }
        }
        println!("{mib} MiB, medians of {turns} in turns; processor time in brackets");
        let [pods, others @ ..] = &ways;
        let own = pods.middle();
        println!(
            "from a pod to another: {:.3} s ({:.3})",
            own.wall, own.processor
        );
        let names = ["a host to another by a cable", "the machine to itself"];
        for (name, way) in names.into_iter().zip(others) {
            let (taken, rate) = (way.middle(), pods.against(way));
            println!(
                "from {name}: {:.3} s ({:.3}), so pods have {:.2} ({:.2}) of its rate",
                taken.wall, taken.processor, rate.wall, rate.processor
            );
        }
        for uid in ["a", "b"] {
            sandboxes.remove(uid).expect("it goes");
        }
        hosts.iter().try_for_each(|host| release(host))
    })
    .expect("a network");
}

fn namespace(at: usize) -> String {
    format!("team-{at}")
}

/// A pod in the place of another of the first ones, as to its namespace and labels.
fn pod(at: usize, like: usize, address: IpAddr) -> (String, Arc<Pod>) {
    let labels = json!({"app": format!("app-{}", like % APPS), "tier": if like.is_multiple_of(2) { "front" } else { "back" }});
    let object = json!({
        "metadata": {"namespace": namespace(like / PODS), "name": format!("pod-{at}"), "uid": format!("uid-{at}"), "labels": labels},
        "spec": {"containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 8080}]}]},
        "status": {"podIPs": [{"ip": address}]},
    });
    let (uid, pod) = Pod::read(serde_json::from_value(object).expect("a pod"));
    (uid, Arc::new(pod))
}

/// A policy for the pods of one application in one of `namespaces` namespaces, from pods and a
/// block of addresses to two ports.
fn policy(at: usize, namespaces: usize, port: u16) -> (Key, Arc<Policy>) {
    let app = |at: usize| json!({"matchLabels": {"app": format!("app-{}", at % APPS)}});
    let from: Value = json!([
        {"podSelector": app(at + 1)},
        {"namespaceSelector": {}, "podSelector": app(at + 2)},
        {"ipBlock": {"cidr": format!("198.51.{}.0/24", at % 256), "except": [format!("198.51.{}.128/25", at % 256)]}},
    ]);
    let object = json!({
        "metadata": {"namespace": namespace(at % namespaces), "name": format!("policy-{at}")},
        "spec": {
            "podSelector": app(at), "policyTypes": ["Ingress"],
            "ingress": [{"from": from, "ports": [{"port": port}, {"port": "http"}]}],
        },
    });
    let (key, policy) = Policy::keyed(serde_json::from_value(object).expect("a policy"));
    (key, Arc::new(policy.expect("one that is read")))
}

/// What `PACE_CHANGES` changes take, one after the other.
fn measured(what: &str, mut change: impl FnMut(usize)) -> String {
    let (mut walls, mut cpus) = (Vec::new(), Vec::new());
    for number in 0..number("PACE_CHANGES", 20_usize) {
        let ((), wall, cpu) = timed(spent_by_process, || change(number));
        walls.push(wall);
        cpus.push(cpu);
    }
    let (walls, cpus) = (spread(&mut walls), spread(&mut cpus));
    format!("{what}, from its JSON to the commit: {walls}; CPU {cpus}")
}

#[test]
fn policies_over_the_pods_of_a_node() {
    let (pods, policies) = (
        number("PACE_PODS", 20_usize),
        number("PACE_POLICIES", 20_usize),
    );
    let namespaces = pods.div_ceil(PODS);
    let address = |at: usize| {
        let [high, low] = u16::try_from(at + 2).expect("fewer pods").to_be_bytes();
        IpAddr::from([10, 1, high, low])
    };
    let elsewhere = number("PACE_ELSEWHERE", 20_usize);
    // Pods of the same namespaces, one behind the other.
    let like = |at: usize| at % (namespaces * PODS);
    let mut all: Vec<_> = (0..pods).map(|at| pod(at, at, address(at))).collect();
    let own: BTreeMap<_, _> = all
        .iter()
        .zip(0..)
        .map(|((_, pod), at)| (address(at), Arc::clone(pod)))
        .collect();
    all.extend((pods..pods + elsewhere).map(|at| pod(at, like(at), address(at))));
    let mut world = World {
        pods: Some(all.into_iter().collect()),
        namespaces: Some(
            (0..namespaces)
                .map(|at| (namespace(at), Arc::default()))
                .collect(),
        ),
        policies: Some((0..policies).map(|at| policy(at, namespaces, 80)).collect()),
    };
    in_new(&[Kind::Network], || {
        let rules = Policies::default();
        let put = |world: &World| {
            let families = [Family::V4].into();
            assert!(rules.follow(&families, world, &own).expect("the kernel"));
        };
        let ((), wall, cpu) = timed(spent_by_process, || put(&world));
        println!(
            "{policies} policies over {pods} pods and {elsewhere} elsewhere, cold: {wall:?}, CPU {cpu:?}"
        );
        let figures = measured("one policy", |change| {
            let (key, changed) = policy(change * 7919 % policies, namespaces, 81);
            let known = world.policies.get_or_insert_default();
            known.insert(key, changed);
            put(&world);
        });
        println!("{figures}");
        let figures = measured("one pod elsewhere", |change| {
            let at = pods + change * 7919 % elsewhere;
            // It goes to another application with each change.
            let (uid, changed) = pod(at, like(at + change + 1), address(at));
            let known = world.pods.get_or_insert_default();
            known.insert(uid, changed);
            put(&world);
        });
        println!("{figures}");
        Ok(())
    })
    .expect("a network");
}
