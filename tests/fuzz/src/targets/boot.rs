//! Fuzz targets for what a machine decodes before it is a node: small files of its state, tables of
//! its firmware, datagrams of its network.

use crate::run::{Decoder, Shape, Target};
use agent_discover::Memory;
use agent_init::ext4::{Ext4Error, without_faults};
use agent_init::generation::StateGeneration;
use agent_init::{allowed, spcr};
use agent_names::answer::{Question, Resolution, answer, written};
use agent_names::index::Index;
use agent_names::zone::{MOST_ADDRESSES, MOST_RECORDS};
use agent_net::dhcp::{Client, Output};
use agent_proxy::{Key, Known, Objects, Port, Protocol, Service};
use agent_volume::Kept;
use agent_volume::header::{VOLUME_KEY, VolumeKey};
use config_state::generation::{BootNonce, Generation, GenerationKey, Joined};
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Where the superblock of ext4 is (the kernel's documentation of ext4, "The Super Block").
const SUPERBLOCK: u64 = 1024;
/// Why writing files in memory can't fail.
const WRITTEN: &str = "a file takes what is written";
/// The digest of this boot's configuration.
const DIGEST: [u8; 32] = [7; 32];
/// The generation in the header of this boot's state.
const GENERATION: u64 = 7;
/// The nonce of the previous boot, and of this one.
const BOOT: BootNonce = [0xcd; 8];
const NEXT: BootNonce = [0xab; 8];
/// The DHCP client: its Ethernet address and transaction id.
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const TRANSACTION: u32 = 7;
/// The DNS record types of the questions (RFC 1035, RFC 2782).
const ADDRESS: u8 = 1;
const SRV: u8 = 33;

/// All targets of this file.
///
/// # Errors
/// No folder can be made for the files that targets read.
pub(super) fn targets() -> io::Result<Vec<Target>> {
    let mut all = files()?;
    all.extend([
        target(
            "agent-init/spcr",
            table(),
            Box::new(|input| {
                spcr::parse(input);
            }),
        ),
        target(
            "agent-volume/kept",
            kept(),
            Box::new(|input| {
                if let Some(found) = Kept::parse(input) {
                    let again = Kept::parse(&found.to_bytes());
                    assert_eq!(again, Some(found), "not what is kept again");
                }
            }),
        ),
        target("agent-net/dhcp", acknowledgement(), Box::new(lease)),
        names(),
    ]);
    Ok(all)
}

pub(super) fn target(name: &'static str, seed: Vec<u8>, decode: Decoder) -> Target {
    Target {
        name,
        shape: Shape::Bytes,
        seeds: vec![seed],
        decode,
    }
}

/// A folder in memory: each case writes a file, which must not wear the disk.
pub(super) fn folder() -> io::Result<TempDir> {
    TempDir::new_in("/dev/shm")
}

/// Targets that decode files; each writes its own.
fn files() -> io::Result<Vec<Target>> {
    let device = tempfile::tempfile_in("/dev/shm")?;
    let (generations, lists, memories) = (folder()?, folder()?, folder()?);
    let listed = format!("sha256:{}\n", hex::encode(DIGEST)).into_bytes();
    let volume = VolumeKey::new([7; VOLUME_KEY]);
    let generation = StateGeneration::of(generations.path(), &volume);
    let listing = StateGeneration::of(lists.path(), &volume);
    let noted = Generation {
        number: GENERATION,
        listed: true,
        joined: Some(Joined::Issued(DIGEST)),
        served: Some(6),
        boot: BOOT,
        after: [0xef; 8],
    };
    let noted = noted.text(&GenerationKey::of(&volume)).into_bytes();
    let whole = noted.clone();
    let remembered = br#"{"generation":7,"key":null,"uri":"","signed":""}"#.to_vec();
    Ok(vec![
        target(
            "agent-init/ext4",
            superblock(),
            Box::new(move |input| {
                let emptied = device.set_len(0);
                let written = emptied.and_then(|()| device.write_all_at(input, SUPERBLOCK));
                written.expect(WRITTEN);
                match without_faults(&device) {
                    Ok(()) => assert_eq!(input.get(0x38..0x3a), Some(&b"\x53\xef"[..])),
                    Err(Ext4Error::Faults(count)) => assert!(count > 0),
                    Err(Ext4Error::Foreign | Ext4Error::Read(_)) => {}
                }
            }),
        ),
        target(
            "agent-init/generation",
            noted,
            Box::new(move |input| {
                let file = generations.path().join("generation");
                fs::write(file, input).expect(WRITTEN);
                let advanced = generation.advance(GENERATION, &[BOOT], NEXT);
                let believed = advanced.is_ok();
                assert_eq!(believed, input == whole, "only what init wrote");
                if believed {
                    let again = generation.advance(GENERATION + 1, &[NEXT], BOOT);
                    assert!(again.is_ok());
                }
            }),
        ),
        target(
            "agent-init/allowed",
            listed,
            Box::new(move |input| {
                let list = lists.path().join("allowed");
                fs::write(&list, input).expect(WRITTEN);
                listing.note(GENERATION, BOOT).expect(WRITTEN);
                if allowed::check(&list, Some(&listing), &DIGEST).is_ok() {
                    let found = String::from_utf8_lossy(input).contains(&hex::encode(DIGEST));
                    assert!(found, "a digest that is not listed");
                }
            }),
        ),
        Target {
            shape: Shape::Json,
            ..target(
                "agent-discover/memory",
                remembered,
                Box::new(move |input| {
                    let path = memories.path().join("discovery.json");
                    fs::write(&path, input).expect(WRITTEN);
                    if let Ok(memory) = Memory::open(&path) {
                        memory.key();
                        memory.generation();
                    }
                }),
            )
        },
    ])
}

/// A server's packet for each state of the client.
fn lease(input: &[u8]) {
    let start = Duration::ZERO;
    let mut client = Client::new(MAC, None, TRANSACTION, start);
    client.tick(start);
    let mut packet = input.to_vec();
    // The same packet as an offer and as the answer to the request.
    for kind in [2, 5] {
        if let Some(place) = packet.get_mut(KIND_AT) {
            *place = kind;
        }
        for output in client.packet(start, &packet) {
            if let Output::Use(lease) = output {
                assert!(
                    lease.prefix <= 32 && lease.renew <= lease.rebind && lease.rebind <= lease.time
                );
            }
        }
        client.tick(client.deadline());
    }
}

/// A pod's DNS question: while services are known and while not, also about a service with
/// thousands of ports.
fn names() -> Target {
    let states = [Known::default(), known([]), known([crowded()])];
    let indexes = states.map(|known| Index::of(known.into()));
    let decode = move |input: &[u8]| {
        let Ok(asked) = Question::read(input) else {
            return;
        };
        for index in &indexes {
            if let Resolution::Whole(said) = answer(index, &asked) {
                let made = said.answers.len() + said.additionals.len();
                assert!(made <= MOST_RECORDS.max(MOST_ADDRESSES), "{made} records");
                let bytes = written(&said, asked.limit);
                assert!(bytes.is_none_or(|bytes| bytes.len() <= asked.limit));
            }
        }
    };
    Target {
        seeds: [ADDRESS, SRV].map(question).into(),
        ..target("agent-proxy/dns", Vec::new(), Box::new(decode))
    }
}

/// A cluster with these services in the namespace `shop`, and no slices.
fn known<const N: usize>(services: [Service; N]) -> Known {
    let services = services.map(|service| {
        let (namespace, name) = ("shop".to_owned(), "web".to_owned());
        (Arc::new(Key { namespace, name }), Arc::new(service))
    });
    Known {
        services: Some(services.into_iter().collect()),
        slices: Some(Objects::default()),
        ..Known::default()
    }
}

fn crowded() -> Service {
    let port = |number: u16| Port {
        name: format!("p{number}"),
        protocol: Protocol::Tcp,
        port: number,
        node_port: None,
    };
    Service {
        addresses: vec![Ipv4Addr::new(10, 96, 0, 10).into()],
        ports: (1..=20_000).map(port).collect(),
        ..Service::default()
    }
}

fn superblock() -> Vec<u8> {
    let mut block = vec![0; 1024];
    block[0x38..0x3a].copy_from_slice(b"\x53\xef");
    block[0x3a] = 1;
    block
}

/// A table that names the second serial port.
fn table() -> Vec<u8> {
    let mut table = vec![0; 80];
    table[..4].copy_from_slice(b"SPCR");
    (table[40], table[44], table[45], table[58]) = (1, 0xf8, 0x02, 7);
    table
}

fn kept() -> Vec<u8> {
    Kept::random(3)
        .map(|kept| kept.to_bytes().to_vec())
        .unwrap_or_default()
}

/// Where [`acknowledgement`] says what it is.
const KIND_AT: usize = 242;

/// RFC 2131: the fixed part, the magic cookie, and the options of a lease.
fn acknowledgement() -> Vec<u8> {
    let mut packet = vec![0; 236];
    (packet[0], packet[1], packet[2]) = (2, 1, 6);
    packet[4..8].copy_from_slice(&TRANSACTION.to_be_bytes());
    packet[16..20].copy_from_slice(&[192, 0, 2, 9]);
    packet[28..34].copy_from_slice(&MAC);
    packet.extend([99, 130, 83, 99]);
    packet.extend([
        53, 1, 2, 54, 4, 192, 0, 2, 1, 1, 4, 255, 255, 255, 0, 3, 4, 192, 0, 2, 1,
    ]);
    packet.extend([
        6, 4, 192, 0, 2, 53, 42, 4, 192, 0, 2, 1, 51, 4, 0, 0, 3, 232, 255,
    ]);
    packet
}

/// RFC 1035: a question about a service, with the size of the answer (EDNS).
fn question(kind: u8) -> Vec<u8> {
    let mut message = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
    for label in ["web", "shop", "svc", "cluster", "local"] {
        message.push(u8::try_from(label.len()).unwrap_or_default());
        message.extend(label.bytes());
    }
    message.extend([0, 0, kind, 0, 1]);
    message.extend([0, 0, 41, 16, 0, 0, 0, 0, 0, 0, 0]);
    message
}
