//! Whole answers, as they are kept in `golden`: a node with a pod of its own network, and one in
//! the machine's.

use crate::counters::{Counters, Given, Memory, Split, Throttling};
use crate::disks::{ContainerSpace, Disks, Driven, PodSpace, Space, VolumeSpace};
use crate::io::DeviceIo;
use crate::links::{Carried, Link};
use crate::reading::{Named, PodUsed, Reading, Used};
use crate::stall::{Stall, Stalls, Waits};
use crate::subjects::Disk;
use crate::{cadvisor, summary};
use agent_runtime::ImageSpace;
use jiff::Timestamp;
use serde_json::Value;
use std::time::Instant;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn stall(total: u64) -> Stall {
    Stall {
        total,
        averages: [125, 10, 0],
    }
}

fn counters(by: u64) -> Counters {
    Counters {
        cpu: Some(by * 1_250_000_000),
        split: Some(Split {
            user: by * 1_000_000_000,
            system: by * 250_000_000,
        }),
        throttling: None,
        memory: Some(Memory {
            usage: by << 20,
            working_set: by << 19,
            rss: by << 18,
            cache: by << 17,
            mapped: by << 16,
            peak: Some(by << 21),
            faults: by * 7,
            major_faults: by,
            limit: None,
        }),
        swap: Some(0),
        oom_kills: Some(by - 1),
        refusals: None,
        given: Given::default(),
        processes: Some(by + 2),
        waits: Waits {
            cpu: Some(Stalls {
                some: stall(by * 1000),
                full: stall(by),
            }),
            memory: None,
            io: Some(Stalls {
                some: stall(by * 2_500_000),
                full: Stall::default(),
            }),
        },
    }
}

fn used(counters: &Counters) -> Used {
    Used {
        at: at(60),
        counters: *counters,
        nano_cores: Some(500_000_000),
        started: Some(at(0)),
    }
}

fn link(name: &str, by: u64) -> Link {
    let carried = |by| Carried {
        bytes: by * 100,
        packets: by,
        errors: 1,
        dropped: 2,
    };
    Link {
        name: name.to_owned(),
        received: carried(by),
        sent: carried(by * 2),
    }
}

fn disk() -> Disk {
    Disk {
        size: 10 << 30,
        free: 4 << 30,
        inodes: 1000,
        free_inodes: 900,
    }
}

fn named(name: &str, group: &str, counters: &Counters) -> Named {
    Named {
        name: name.to_owned(),
        image: String::new(),
        group: group.to_owned(),
        used: used(counters),
        programs: None,
        io: Vec::new(),
    }
}

fn pod(name: &str, containers: Vec<Named>, link: Option<Link>) -> PodUsed {
    PodUsed {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        group: format!("/kubepods/poduid-{name}"),
        used: used(&counters(3)),
        containers,
        link,
    }
}

fn reading() -> Reading {
    let throttling = Throttling {
        quota: 20_000,
        periods: 50,
        throttled: 5,
        waited: 1_500_000_000,
    };
    let limited = Counters {
        throttling: Some(throttling),
        given: Given {
            shares: Some(102),
            period: Some(100_000),
            reservation: Some(0),
            swap: Some(0),
            threads: Some(1024),
        },
        refusals: Some(3),
        ..counters(2)
    };
    let io = DeviceIo {
        device: "/dev/vda".to_owned(),
        numbers: "254:0".to_owned(),
        read_bytes: 4096,
        written_bytes: 8192,
        reads: 1,
        writes: 2,
    };
    let main = Named {
        image: "registry.example/a:1".to_owned(),
        programs: Some(3),
        io: vec![io],
        ..named("main", "/kubepods/poduid-web/id-1", &limited)
    };
    Reading {
        taken: Instant::now(),
        at: at(60),
        node: used(&counters(9)),
        system: vec![named("kubelet", "/pratique/agent", &counters(1))],
        pods: vec![
            pod("web", vec![main], Some(link("eth0", 7))),
            pod("host", Vec::new(), None),
        ],
        links: vec![link("ens3", 1000), link("pratique-wg", 10)],
        default_link: Some("ens3".to_owned()),
        disk: disk(),
        most_ids: Some(4_194_304),
        cores: 2,
        incomplete: false,
    }
}

/// What a look has found of the first pod.
fn disks() -> Disks {
    let space = |used: Option<u64>| Space {
        disk: disk(),
        used: used.map(|mib| mib << 20),
        inodes_used: used,
    };
    let main = ContainerSpace {
        root: Some(space(Some(10))),
        logs: space(Some(1)),
    };
    let volume = |name: &str, claim: Option<&str>, used| VolumeSpace {
        name: name.to_owned(),
        claim: claim.map(str::to_owned),
        space: space(used),
    };
    let found = PodSpace {
        at: at(30),
        containers: [("main".to_owned(), main)].into(),
        volumes: vec![
            volume("data", Some("data-web-0"), Some(6000)),
            volume("crowded", None, None),
        ],
        ephemeral: space(Some(11)),
    };
    let disks = Disks::default();
    disks.set("uid-web", found);
    let driven = Driven {
        at: at(40),
        volume: volume("driven", Some("of-a-driver"), Some(20)),
    };
    let images = ImageSpace {
        bytes: 700 << 20,
        inodes: 40,
    };
    disks.tell("uid-web", driven, images);
    disks
}

/// Writes an answer anew where `BLESS=1` asks for it.
fn bless(file: &str, text: &str) {
    if std::env::var_os("BLESS").is_some() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/golden");
        std::fs::write(format!("{folder}/{file}"), text).unwrap();
    }
}

#[test]
fn the_summary_is_upstream_s_document() {
    let text = summary::text("worker-1", &reading(), Some(&disks()));
    let value: Value = serde_json::from_str(&text).unwrap();
    bless("summary.json", &format!("{value:#}\n"));
    let kept: Value = serde_json::from_str(include_str!("golden/summary.json")).unwrap();
    assert_eq!(value, kept);
    let less = summary::text("worker-1", &reading(), None);
    for word in ["network", "volume", "rootfs", "logs", "\"fs\"", "ephemeral"] {
        assert!(!less.contains(word), "{word} in {less}");
    }
}

#[test]
fn cadvisor_s_names_are_upstream_s() {
    let text = cadvisor::text(&reading());
    bless("cadvisor.txt", &text);
    assert_eq!(text, include_str!("golden/cadvisor.txt"));
}
