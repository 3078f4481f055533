//! What an agent reads of its state when it begins: its cluster and how it joined it, and what an
//! earlier agent has noted of pods, volumes and names.

use super::boot::{folder, target};
use crate::run::{Shape, Target};
use agent_cluster::address::Table;
use agent_confine::users::LOWEST;
use agent_csi::decoders::recorded;
use agent_discover::read_pins;
use agent_names::snapshot::{Origin, Snapshot};
use agent_pods::Eviction;
use config_model::format::Cidr;
use config_state::decoders;
use config_state::generation::{Generation, GenerationKey, Joined, LENGTH};
use std::fs;
use std::io;
use std::path::Component;

/// What is expected of files in memory.
const WRITTEN: &str = "a file takes what is written";
/// The folders in which volumes of drivers are staged and published.
const VOLUMES: [&str; 2] = ["plugins/kubernetes.io/csi", "pods"];
/// The boot of the agent that reads.
const BOOT: &str = "2";

/// # Errors
/// No folder can be made for the files that targets read.
pub(super) fn targets() -> io::Result<Vec<Target>> {
    Ok(vec![
        roots()?,
        Target {
            seeds: generations(),
            ..target("config-state/generation", Vec::new(), Box::new(generation))
        },
        Target {
            seeds: [
                "30 Evicted\nThe node was low on resource: memory. \nMore. ",
                "0 Preempting\nPreempted in order to admit critical pod",
                "18446744073709551615\n",
            ]
            .map(Into::into)
            .into(),
            ..target("agent-pods/eviction", Vec::new(), Box::new(evicted))
        },
        volumes()?,
        names(),
        Target {
            shape: Shape::Json,
            seeds: [
                r#"{"given":{"a":["10.244.1.2","fd00::2"]},"last":["10.244.1.2"]}"#,
                r#"{"given":{"a":["10.244.1.254"],"b":["10.244.1.3"]},"last":["10.244.1.254","fd00::ff"],"users":{"a":0,"b":1023}}"#,
            ]
            .map(Into::into)
            .into(),
            ..target("agent-cluster/addresses", Vec::new(), Box::new(addresses))
        },
    ])
}

/// The pins of the state's cluster, before and in a rotation of its root.
fn roots() -> io::Result<Target> {
    let folder = folder()?;
    let line = |byte: &str| format!("sha256:{}", byte.repeat(32));
    let (one, two) = (line("0a"), line("fb") + "\n" + &line("0C") + "\r\n");
    let decode = move |input: &[u8]| {
        let path = folder.path().join("cluster-roots");
        fs::write(&path, input).expect(WRITTEN);
        let Some(pins) = read_pins(&path) else {
            return;
        };
        assert!(!pins.is_empty(), "a state that belongs to no cluster");
        let lines = pins
            .iter()
            .map(|pin| format!("sha256:{}\n", hex::encode(pin)));
        fs::write(&path, lines.collect::<String>()).expect(WRITTEN);
        assert_eq!(read_pins(&path), Some(pins), "two texts of the same pins");
    };
    Ok(Target {
        seeds: [one, two].map(String::into_bytes).into(),
        ..target("agent-discover/pins", Vec::new(), Box::new(decode))
    })
}

/// The cluster's names as an earlier agent left them.
fn names() -> Target {
    let origin = Origin {
        boot: BOOT.to_owned(),
        node: "n".to_owned(),
    };
    let seed = r#"{"version":1,"boot":"2","node":"n","own":[["10.1.0.1","10.1.0.0/24"],["fd00::1","fd00::/64"]]}
{"namespace":"a"}
{"service":{"namespace":"a","name":"s","addresses":["10.96.0.7"],"headless":false,"alias":null,"ports":[["p","UDP",53]]}}
{"service":{"namespace":"a","name":"h","addresses":[],"headless":true,"alias":"b.example","ports":[]}}
{"slice":{"namespace":"a","name":"h-1","service":"h","ports":[["p","TCP",80]],"endpoints":[["10.1.0.2",true,"h-0"],["10.1.0.3",false,null]]}}
{"end":4}
"#;
    let decode = move |input: &[u8]| {
        let Ok(left) = Snapshot::read(input, &origin) else {
            return;
        };
        let mut written = Vec::new();
        let fits = left.write(&origin, &mut written);
        fits.expect("what was read is no larger when it is written");
        let again = Snapshot::read(&*written, &origin).expect("what was written");
        // Endpoints of services that need none are not written.
        let mut third = Vec::new();
        again.write(&origin, &mut third).expect("the same");
        assert_eq!(written, third, "an agent leaves what it found");
    };
    Target {
        seeds: vec![seed.into()],
        ..target("agent-names/snapshot", Vec::new(), Box::new(decode))
    }
}

fn generations() -> Vec<Vec<u8>> {
    let known = Generation {
        number: 7,
        listed: true,
        joined: Some(Joined::Issued([0xab; 32])),
        served: Some(6),
        boot: [0xcd; 8],
        after: [0xef; 8],
    };
    let admitted = Generation {
        joined: Some(Joined::Admitted),
        served: None,
        ..known
    };
    let later = "+7\njoined admitted\nlater field\nserved 6\n".to_owned();
    [
        known.text(&key()),
        admitted.text(&key()),
        later,
        "7\n".to_owned(),
    ]
    .map(String::into_bytes)
    .into()
}

fn key() -> GenerationKey {
    GenerationKey::parse(&[7; 32]).expect("32 bytes")
}

/// The generation with what is noted beside it: nothing but its own text is believed, and of any
/// lines under the MAC a program that notes one thing keeps the others.
fn generation(input: &[u8]) {
    if let Ok(read) = Generation::read(input, &key()) {
        assert_eq!(read.text(&key()).as_bytes(), input, "two texts of one");
    }
    let lines = std::str::from_utf8(input).map(decoders::generation);
    let Ok(Ok(read)) = lines else {
        return;
    };
    for joined in [
        read.joined,
        Some(Joined::Admitted),
        Some(Joined::Issued([7; 32])),
    ] {
        let noted = Generation { joined, ..read };
        let written = noted.text(&key());
        assert_eq!(written.len(), LENGTH, "{written}");
        let again = Generation::read(written.as_bytes(), &key());
        assert_eq!(again, Ok(noted), "{written}");
    }
}

/// The record of a pod's eviction.
fn evicted(input: &[u8]) {
    if let Some(read) = Eviction::from_record(input) {
        assert!(input.ends_with(read.message.as_bytes()));
        let again = Eviction::from_record(read.to_record().as_bytes());
        assert_eq!(again, Some(read), "two records of one eviction");
    }
}

/// A volume that is staged and published for two pods, and one of which nothing is there yet.
fn volumes() -> io::Result<Target> {
    let folder = folder()?;
    let decode = move |input: &[u8]| {
        fs::write(folder.path().join("a"), input).expect(WRITTEN);
        for path in recorded(folder.path(), BOOT) {
            let plain = |part| matches!(part, Component::Normal(_));
            assert!(
                path.components().all(plain) && VOLUMES.iter().any(|own| path.starts_with(own)),
                "a volume in {}",
                path.display()
            );
        }
    };
    let seeds = [
        r#"{"driver":"disk.example","handle":"../../x","boot":"1","stage":"Done","targets":{"u/pv":"Done","w/pv":"Begun"}}"#,
        r#"{"driver":"a","handle":"","boot":"2","stage":null,"targets":{}}"#,
    ];
    Ok(Target {
        shape: Shape::Json,
        seeds: seeds.map(Into::into).into(),
        ..target("agent-csi/recorded", Vec::new(), Box::new(decode))
    })
}

/// The table of addresses and ranges of ids.
fn addresses(input: &[u8]) {
    let Ok(mut table) = serde_json::from_slice::<Table>(input) else {
        return;
    };
    if !table.is_sound() {
        return;
    }
    let ranges: [Cidr; 2] =
        ["10.244.1.0/24", "fd00::/64"].map(|range| range.parse().expect("a range"));
    if table.give("another", &ranges).is_ok() {
        assert!(table.is_sound(), "an address is given twice");
    }
    if table.users.give("another").is_ok() {
        assert!(table.is_sound(), "a range of ids is given twice");
        let ids = table.uids().filter_map(|uid| table.users.of(uid));
        assert!(ids.min() >= Some(LOWEST), "an id of the machine's own");
    }
}
