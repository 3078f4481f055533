//! Tests sandboxes with the kernel of this host, in a network namespace that represents the
//! machine. Needs root.

use super::*;
use agent_sys::netlink::links::LOOPBACK;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Longest wait for something that comes soon.
const LIMIT: Duration = Duration::from_secs(60);

/// A machine of its own: a network namespace, and folders.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    /// Runs `test` on a machine of its own.
    fn with(test: impl FnOnce(&Self) + Send) {
        let machine = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        namespace::in_new(&[Kind::Network], || {
            Links::open()?.switch_on(LOOPBACK)?;
            test(&machine);
            Ok(())
        })
        .unwrap();
    }

    fn options(&self) -> SandboxOptions {
        SandboxOptions {
            run: self.dir.path().join("pods"),
            ledger: self.dir.path().join("addresses.json"),
            kubernetes_only: true,
            tunnel: false,
        }
    }

    /// A newly started agent.
    fn agent(&self) -> Sandboxes {
        let own = Sandboxes::open(self.options()).unwrap();
        let ranges = ["10.1.0.0/24", "fd00:1::/64"].map(|range| range.parse().unwrap());
        own.give_ranges(&ranges).unwrap();
        own
    }

    /// What is left of pods: files, links, mounts.
    fn left(&self) -> (Vec<String>, Vec<String>, Vec<String>) {
        let folder = self.options().run;
        let names = fs::read_dir(&folder).unwrap();
        let files = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let links = Links::open().unwrap().all().unwrap();
        let links = links
            .into_iter()
            .map(|link| link.name)
            .filter(|name| name != "lo");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let place = folder.to_string_lossy().into_owned();
        let mounts = mounts.lines().filter(|line| line.contains(&place));
        (
            files.collect(),
            links.collect(),
            mounts.map(str::to_owned).collect(),
        )
    }
}

fn pod(uid: &str) -> SandboxSpec {
    SandboxSpec {
        uid: uid.to_owned(),
        network: true,
        ipc: true,
        users: uid == "a",
        hostname: Some(uid.to_owned()),
        settings: [
            ("kernel/shm_rmid_forced", "1"),
            ("net/ipv4/tcp_fin_timeout", "17"),
        ]
        .map(|(setting, value)| (setting.to_owned(), value.to_owned()))
        .to_vec(),
    }
}

/// Runs `work` in a pod's network.
fn within<T: Send>(sandbox: &Sandbox, work: impl FnOnce() -> T + Send) -> T {
    let network = sandbox.held(Kind::Network).unwrap();
    namespace::inside(&[(Kind::Network, &network)], || Ok(work())).unwrap()
}

#[test]
fn a_pod_has_its_name_settings_and_memory_and_leaves_nothing() {
    Machine::with(|machine| {
        let agent = machine.agent();
        let a = agent.make(&pod("a")).unwrap();
        let name = a.held(Kind::Uts).unwrap();
        let read = |path: &str| fs::read_to_string(path).unwrap().trim().to_owned();
        let hostname = || Ok(read("/proc/sys/kernel/hostname"));
        let host = namespace::inside(&[(Kind::Uts, &name)], hostname).unwrap();
        assert_eq!(host, "a");
        let timeout = within(&a, || read("/proc/sys/net/ipv4/tcp_fin_timeout"));
        assert_eq!(timeout, "17");
        assert!(is_in_memory(&a.shm().unwrap()));
        agent.remove("a").unwrap();
        agent.remove("a").unwrap();
        assert_eq!(machine.left(), (vec![], vec![], vec![]));
        assert!(agent.uids().is_empty());
    });
}

#[test]
fn the_next_start_removes_all_that_an_end_after_any_step_leaves() {
    Machine::with(|machine| {
        for count in 0..=Step::ALL.len() {
            let ended = machine.agent();
            ended.begin(&pod("a"), &Step::ALL[..count]).unwrap();
            let given = lock(&ended.ledger).table.of("a").map(<[IpAddr]>::to_vec);
            let ids = lock(&ended.ledger).table.users.of("a");
            drop(ended);
            let next = machine.agent();
            let whole = count == Step::ALL.len();
            assert_eq!(next.find("a").is_some(), whole, "after {count} steps");
            if !whole {
                assert_eq!(
                    machine.left(),
                    (vec![], vec![], vec![]),
                    "after {count} steps"
                );
            }
            let made = next.make(&pod("a")).unwrap();
            if let Some(given) = given {
                assert_eq!(
                    made.addresses, given,
                    "an address that was given stays the pod's"
                );
            }
            assert!(made.first_id.is_some() && (ids.is_none() || made.first_id == ids));
            let other = next.make(&pod("b")).unwrap();
            assert_ne!(made.addresses, other.addresses);
            // The next agent ends in the middle of the removal.
            absent(
                fs::remove_file(made.folder.join(RECORD)),
                "remove",
                &made.folder,
            )
            .unwrap();
            drop(next);
            let last = machine.agent();
            assert!(last.find("a").is_none() && last.find("b").is_some());
            assert!(
                last.uids().contains("a"),
                "its address is still to be given back"
            );
            last.remove("a").unwrap();
            last.remove("b").unwrap();
            assert_eq!(
                machine.left(),
                (vec![], vec![], vec![]),
                "after {count} steps"
            );
            assert!(last.uids().is_empty());
        }
    });
}

#[test]
fn only_steps_without_addresses_run_while_addresses_are_recorded() {
    Machine::with(|machine| {
        let agent = machine.agent();
        let shm = machine.options().run.join("b").join(SHM);
        // Nothing is written down while another holds the ledger.
        let ledger = lock(&agent.ledger);
        let (memory, link) = thread::scope(|scope| {
            let making = scope.spawn(|| agent.make(&pod("b")));
            let begun = Instant::now();
            let there = || is_mount_point(&shm.to_string_lossy());
            while !there() && begun.elapsed() < LIMIT {
                thread::sleep(Duration::from_millis(1));
            }
            let seen = (there(), has_link(&link_name("b")));
            drop(ledger);
            making.join().unwrap().unwrap();
            seen
        });
        assert!(memory, "the pod's memory waited for the disk");
        assert!(!link, "the link did not wait for the disk");
        agent.remove("b").unwrap();
    });
}

#[test]
fn an_agent_that_starts_anew_adopts_pods_without_a_break() {
    Machine::with(|machine| {
        let first = machine.agent();
        let (a, b) = (
            first.make(&pod("a")).unwrap(),
            first.make(&pod("b")).unwrap(),
        );
        let listener = within(&b, || TcpListener::bind(("0.0.0.0", 80)).unwrap());
        let at_b = b.addresses[0];
        let mut open = within(&a, || TcpStream::connect((at_b, 80)).unwrap());
        let (mut served, _) = listener.accept().unwrap();
        drop(first);
        // The ledger of addresses is lost with the disk; sandboxes' records have what pods have.
        fs::remove_file(machine.options().ledger).unwrap();
        let second = machine.agent();
        assert_eq!(
            (second.find("a"), second.find("b")),
            (Some(a.clone()), Some(b))
        );
        io::Write::write_all(&mut open, b"still here").unwrap();
        let mut said = [0; 10];
        served.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"still here");
        assert_eq!(second.make(&pod("a")).unwrap(), a);
        let c = second.make(&pod("c")).unwrap();
        assert!(![a.addresses[0], at_b].contains(&c.addresses[0]));
        assert_eq!(c.addresses.len(), 2);
        for uid in ["a", "b", "c"] {
            second.remove(uid).unwrap();
        }
    });
}

#[test]
fn without_a_range_only_pods_on_the_machines_network_have_a_sandbox() {
    Machine::with(|machine| {
        let agent = Sandboxes::open(machine.options()).unwrap();
        assert!(matches!(agent.make(&pod("a")), Err(Error::NoRange)));
        let on_host = SandboxSpec {
            network: false,
            hostname: None,
            settings: Vec::new(),
            ..pod("b")
        };
        let made = agent.make(&on_host).unwrap();
        assert!(made.addresses.is_empty() && made.held(Kind::Network).is_none());
        assert!(namespace::is_held(&made.held(Kind::Ipc).unwrap()));
        for range in ["10.1.0.0/31", "fd00::/127"] {
            let refused = agent.give_ranges(&[range.parse().unwrap()]).unwrap_err();
            assert!(matches!(refused, Error::Range(..)), "{range}");
        }
        agent.remove("a").unwrap();
        agent.remove("b").unwrap();
        assert_eq!(machine.left(), (vec![], vec![], vec![]));
    });
}
