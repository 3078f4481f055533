//! PID 1's input from disks, firmware and the kernel.

use crate::run::{Shape, Target};
use agent_clock::{Bounds, judge, sntp, step};
use agent_init::gpt::{Geometry, Table};
use agent_init::{label, settings, smbios};
use agent_metadata::{Answer, Fetch, Platform, Step};
use agent_sys::verity::Superblock;
use agent_volume::{Report, header as volume};
use config_tpm::boot::Boot;
use config_tpm::{Key, template};
use config_unlock::approvals::{Approvals, Approver, Role};
use config_unlock::one_off;
use config_unlock::one_off::{OneOff, Terms};
use master_ca::recovery::Recovered;
use std::io;
use std::time::Duration;
use tests_machines::SeededRng;

const SECTOR: usize = 512;
/// Sectors of the disk that is fuzzed: table, and room for the copy.
const SECTORS: usize = 80;

pub(super) fn targets() -> Vec<Target> {
    let mut all = vec![
        target("agent-init/gpt", disk(), partitions),
        target("agent-clock/sntp", time(), |input| {
            let (sent, took) = (
                Duration::from_secs(1_795_300_000),
                Duration::from_millis(20),
            );
            if let Ok(sample) = sntp::read(input, NONCE, sent, took, sent) {
                let bounds = Bounds { built: sent };
                if let Ok(Some(sample)) = judge(&[sample])
                    && let Ok(agent_clock::Step::Set(to)) = step(sent, sample.offset, bounds)
                {
                    assert!(to >= sent);
                }
            }
        }),
        target(
            "agent-init/smbios",
            vec![11, 5, 0, 0, 1, b'i', b'o', 0, 0],
            |input| {
                smbios::configurations(input).ok();
            },
        ),
        target("agent-init/vfat-label", vec![0; 512], |input| {
            label::vfat(input);
        }),
        target("agent-init/iso9660-label", vec![0; 2048], |input| {
            label::iso9660(input);
        }),
        target(
            "agent-init/settings",
            b"version = 1\n[machine]\nname = \"worker-1\"\n".to_vec(),
            |input| {
                settings::claimed_name(input);
                settings::root_hash(&String::from_utf8_lossy(input));
            },
        ),
        target(
            "agent-metadata/answer",
            b"\x00\x00\xc8version = 1\n".to_vec(),
            answer,
        ),
        target("agent-sys/verity-superblock", superblock(), |input| {
            Superblock::parse(input).ok();
        }),
    ];
    all.extend(state());
    all
}

/// Reads a partition table that an attacker wrote.
fn partitions(input: &[u8]) {
    let mut disk = input.to_vec();
    disk.resize(SECTOR * SECTORS, 0);
    // Checksums that fit let mutations through to what they guard.
    if input.len().is_multiple_of(2) {
        seal(&mut disk);
    }
    let geometry = Geometry {
        sector: 512,
        sectors: 80,
    };
    let read = |offset: u64, length: usize| {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let to = from
            .checked_add(length)
            .ok_or(io::ErrorKind::InvalidInput)?;
        disk.get(from..to)
            .map(<[u8]>::to_vec)
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    };
    if let Ok(table) = Table::read(geometry, read) {
        table.partitions().for_each(drop);
        table.writes().ok();
    }
}

fn target(name: &'static str, seed: Vec<u8>, decode: fn(&[u8])) -> Target {
    Target {
        name,
        shape: Shape::Bytes,
        seeds: vec![seed],
        decode: Box::new(decode),
    }
}

/// Data that is read before the state is trusted.
fn state() -> Vec<Target> {
    vec![
        target("agent-volume/header", header(), |input| {
            // Longer and shorter ones are refused at once: let mutations through to the fields.
            let mut bytes = input.to_vec();
            if input.len().is_multiple_of(2) {
                bytes.resize(volume::SIZE, 0);
            }
            if let Ok(header) = volume::Header::parse(&bytes) {
                assert_eq!(header.to_bytes(), bytes, "two texts of one header");
                assert!(
                    header.open(&[7_u8; 32].into()).is_none()
                        && header.recover(&[7_u8; 32].into()).is_none()
                );
            }
        }),
        target(
            "agent-volume/report",
            b"outcome refused\nreason OtherKey\nend\n".to_vec(),
            |input| {
                if let Some(report) = std::str::from_utf8(input).ok().and_then(Report::parse) {
                    assert_eq!(Report::parse(&report.to_text()), Some(report));
                }
            },
        ),
        target("config-unlock/one-off", one_off(), |input| {
            if let Ok(found) = OneOff::parse(input) {
                assert!(found.open(&[7; 32]).is_none());
            }
        }),
        target(
            "master-ca/recovered",
            b"-----BEGIN PRATIQUE STATE RECOVERY KEY-----\nAAAA\n-----END PRATIQUE STATE RECOVERY KEY-----\n".to_vec(),
            |input| {
                if let Ok(found) = Recovered::parse(input) {
                    found.root_pins();
                }
            },
        ),
        target("config-unlock/approvals", approvals(), |input| {
            if let Ok(found) = Approvals::parse(input) {
                assert!(
                    input.starts_with(&found.to_bytes().expect("they fitted")),
                    "two texts of one list"
                );
            }
        }),
    ]
}

/// An answer of a metadata service: which one, the status, the body.
fn answer(input: &[u8]) {
    let [which, high, low, body @ ..] = input else {
        return;
    };
    let platform = Platform::ALL[usize::from(*which) % Platform::ALL.len()];
    let flavour = Some("Google".to_owned());
    let given = Answer {
        status: u16::from_be_bytes([*high, *low]),
        flavour,
        body: body.to_vec(),
    };
    match Fetch::new(platform).answer(given.clone()) {
        Step::Ask(next) => assert!(
            !matches!(next.answer(given), Step::Ask(_)),
            "one token is enough"
        ),
        Step::Done(bytes) => assert!((1..=agent_metadata::MAX_BYTES).contains(&bytes.len())),
        Step::Nothing | Step::Later(_) | Step::Refused(_) => {}
    }
}

const NONCE: u64 = 7;

/// The answer of a time server that is a minute ahead.
fn time() -> Vec<u8> {
    let mut packet = vec![0; sntp::PACKET];
    (packet[0], packet[1], packet[31]) = (0b00_100_100, 2, 7);
    let seconds = u32::try_from(1_795_300_060_u64 + 2_208_988_800)
        .unwrap_or_default()
        .to_be_bytes();
    packet[32..36].copy_from_slice(&seconds);
    packet[40..44].copy_from_slice(&seconds);
    packet
}

/// A header of a volume with both of its slots.
fn header() -> Vec<u8> {
    let (volume, wrapping, recovery) = (
        [1_u8; volume::VOLUME_KEY].into(),
        [2_u8; 32].into(),
        [3_u8; 32].into(),
    );
    volume::Header::seal(7, &volume, &wrapping, Some(&recovery))
        .map(|header| header.to_bytes())
        .unwrap_or_default()
}

/// The approvals of an image of version 1 that starts in one way.
fn approvals() -> Vec<u8> {
    let Ok(key) = p256::ecdsa::SigningKey::from_slice(&[1; 32]) else {
        return Vec::new();
    };
    Approvals::sign(&key, Role::Worker, 1, &[Boot::default()])
        .to_bytes()
        .unwrap_or_default()
}

/// A one-off key for the board with this endorsement key.
fn one_off() -> Vec<u8> {
    let keys = [1_u8, 2].map(|seed| p256::ecdsa::SigningKey::from_slice(&[seed; 32]));
    let [Ok(release), Ok(admin)] = keys else {
        return Vec::new();
    };
    let mut ek = template::ek_p256();
    let point = release.verifying_key().to_encoded_point(false);
    if let Key::Ecc { x, y, .. } = &mut ek.key {
        *x = point.as_bytes()[1..33].to_vec();
        *y = point.as_bytes()[33..].to_vec();
    }
    let terms = Terms {
        generation: 7,
        approver: &Approver::new(*release.verifying_key(), Role::Master),
        floor: 1,
        ek: &ek,
        secure_boot: None,
    };
    one_off::make(terms, b"content", &admin, &mut SeededRng::new("one-off")).unwrap_or_default()
}

fn superblock() -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..6].copy_from_slice(b"verity");
    block[8] = 1;
    block[12] = 1;
    block[32..38].copy_from_slice(b"sha256");
    block
}

/// A disk with a protective record and a primary table of one partition.
fn disk() -> Vec<u8> {
    let mut disk = vec![0; SECTOR * SECTORS];
    disk[510] = 0x55;
    disk[511] = 0xaa;
    let header = &mut disk[SECTOR..2 * SECTOR];
    header[..8].copy_from_slice(b"EFI PART");
    header[8..16].copy_from_slice(&[0, 0, 1, 0, 92, 0, 0, 0]);
    header[24] = 1;
    header[32] = 79;
    header[40] = 34;
    header[48] = 46;
    header[56..72].fill(7);
    header[72] = 2;
    header[80] = 128;
    header[84] = 128;
    let entry = &mut disk[2 * SECTOR..2 * SECTOR + 128];
    entry[..16].fill(1);
    entry[16..32].fill(2);
    entry[32] = 34;
    entry[40] = 40;
    entry[56] = b'p';
    seal(&mut disk);
    disk
}

/// Writes the checksums of table and header as they should be.
fn seal(disk: &mut [u8]) {
    let entries = crc32(&disk[2 * SECTOR..34 * SECTOR]);
    disk[SECTOR + 88..SECTOR + 92].copy_from_slice(&entries.to_le_bytes());
    disk[SECTOR + 16..SECTOR + 20].fill(0);
    let header = crc32(&disk[SECTOR..SECTOR + 92]);
    disk[SECTOR + 16..SECTOR + 20].copy_from_slice(&header.to_le_bytes());
}

/// CRC-32 of IEEE 802.3, as GPT uses it.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0xedb8_8320
            } else {
                crc >> 1
            };
        }
    }
    !crc
}
