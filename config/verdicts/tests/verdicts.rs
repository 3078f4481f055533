//! The log of verdicts: every removal, exchange, edit and cut is found.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests may stop at the first surprise"
)]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_tpm::Digest;
use config_verdicts::{
    Entry, FORMAT, Head, Kind, LogFile, Record, SUBJECT, Segment, line, resume, signed_bytes,
    verify,
};
use p256::ecdsa::{Signature, SigningKey, signature::Signer as _};
use proptest::prelude::*;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, PublicKeyData as _,
};
use std::collections::BTreeMap;
use tests_machines::Pair;

/// A cluster's root with a log key.
struct Writer {
    key: SigningKey,
    certificate: String,
    root: String,
    pin: Digest,
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

impl Writer {
    fn new(subject: &str) -> Self {
        Self::with_keys(subject, "a root")
    }

    /// The same text gives the same keys, and signatures are deterministic: logs of the same sizes
    /// have the same bytes.
    fn with_keys(subject: &str, seed: &str) -> Self {
        let key = |what: &str| {
            SigningKey::from_slice(&Digest::of(format!("{seed}: {what}").as_bytes()).0).unwrap()
        };
        let root_key = Pair::of(&key("root"));
        let mut root = named("root");
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root_der = root.self_signed(&root_key).unwrap();
        let key = key("log");
        let pair = Pair::of(&key);
        let issuer = rcgen::Issuer::from_ca_cert_der(root_der.der(), &root_key).unwrap();
        let leaf = named(subject).signed_by(&pair, &issuer).unwrap();
        Self {
            key,
            certificate: STANDARD.encode(leaf.der()),
            root: STANDARD.encode(root_der.der()),
            pin: Digest::of(&root_key.subject_public_key_info()),
        }
    }

    fn line(&self, json: &[u8]) -> Vec<u8> {
        let signature: Signature = self.key.sign(&signed_bytes(json));
        line(json, signature.to_der().as_bytes())
    }

    fn begin(&self, head: Head) -> Vec<u8> {
        let segment = Segment {
            format: FORMAT.to_owned(),
            cluster: "lab".to_owned(),
            time: "2026-01-01T00:00:00Z".to_owned(),
            next: head.number + 1,
            previous: head.hash,
            certificate: self.certificate.clone(),
            root: self.root.clone(),
        };
        self.line(&serde_json::to_vec(&segment).unwrap())
    }

    fn record(&self, head: &mut Head) -> Vec<u8> {
        let record = Record {
            number: head.number + 1,
            previous: head.hash,
            time: format!("2026-01-01T00:{:02}:00Z", head.number % 60),
            verdict: Entry {
                message: "x".repeat(usize::try_from(head.number % 7).unwrap()),
                ..Entry::of(Kind::Joined, "worker-1")
            },
        };
        let json = serde_json::to_vec(&record).unwrap();
        *head = Head {
            number: record.number,
            hash: Digest::of(&json),
        };
        self.line(&json)
    }

    /// Segments of some records each, as lines.
    fn log(&self, sizes: &[usize]) -> (Vec<Vec<Vec<u8>>>, Head) {
        let mut head = Head::default();
        let segments = sizes.iter().map(|size| {
            let mut lines = vec![self.begin(head)];
            lines.extend((0..*size).map(|_| self.record(&mut head)));
            lines
        });
        let segments = segments.collect();
        (segments, head)
    }
}

fn files(segments: &[Vec<Vec<u8>>]) -> Vec<LogFile> {
    segments
        .iter()
        .enumerate()
        .map(|(number, lines)| LogFile::new(format!("segment {number}"), lines.concat()))
        .collect()
}

fn subject() -> String {
    format!("{SUBJECT}lab")
}

#[test]
fn a_whole_log_is_accepted_and_its_head_is_returned() {
    let writer = Writer::new(&subject());
    let (segments, head) = writer.log(&[3, 0, 5]);
    let mut given = files(&segments);
    let summary = verify(&given, &[writer.pin], &[head]).unwrap();
    assert_eq!(
        (
            summary.head,
            summary.first,
            summary.kinds[&Kind::Joined],
            summary.met
        ),
        (head, 1, 8, 1)
    );
    // In any order, twice, or from a later segment on.
    given.reverse();
    given.extend(files(&segments[..1]));
    assert_eq!(verify(&given, &[writer.pin], &[]).unwrap().head, head);
    assert_eq!(
        verify(&files(&segments[2..]), &[writer.pin], &[])
            .unwrap()
            .first,
        4
    );
    // The log no longer reaches a noted head: its end was held back.
    let short = verify(&files(&segments[..1]), &[writer.pin], &[head]).unwrap_err();
    assert!(short.what.contains("the end is missing"), "{short}");
}

#[test]
fn only_the_log_of_a_pinned_root_is_accepted() {
    let (writer, other) = (
        Writer::new(&subject()),
        Writer::with_keys(&subject(), "another root"),
    );
    let given = files(&writer.log(&[2]).0);
    assert!(
        verify(&given, &[other.pin], &[])
            .unwrap_err()
            .what
            .contains("none of the pins")
    );
    // Another certificate of the same root is not the log's.
    let leaf = Writer::new("somebody");
    assert!(
        verify(&files(&leaf.log(&[2]).0), &[leaf.pin], &[])
            .unwrap_err()
            .what
            .contains("not one that the root made")
    );
    // A pinned root that did not sign.
    let forged = Writer {
        certificate: other.certificate,
        key: other.key,
        ..writer
    };
    assert!(verify(&files(&forged.log(&[2]).0), &[forged.pin], &[]).is_err());
}

#[test]
fn a_torn_tail_is_cut_and_no_other_damage_is_taken_for_one() {
    let writer = Writer::new(&subject());
    let (segments, head) = writer.log(&[4]);
    let whole = segments[0].concat();
    let last = segments[0][4].len();
    for cut in 1..=last {
        let resumed = resume(&whole[..whole.len() - cut]).unwrap();
        assert_eq!(
            (resumed.head.number, resumed.whole),
            (3, whole.len() - last),
            "{cut}"
        );
    }
    assert_eq!(resume(&whole).unwrap().head, head);
    // Blocks that were allocated and never written.
    let zeroes = [&whole[..], &[0; 300]].concat();
    assert_eq!(resume(&zeroes).unwrap().whole, whole.len());
    let mut holed = whole.clone();
    holed[segments[0][0].len() + 5] = b'\n';
    assert!(resume(&holed).is_err(), "whole lines follow what is broken");
}

/// A damaged shorter copy of a segment is refused, also if it holds no record.
#[test]
fn a_damaged_copy_beside_a_whole_one_is_found() {
    let writer = Writer::new(&subject());
    for sizes in [[0, 0], [0, 2]] {
        let (segments, head) = writer.log(&sizes);
        let whole = segments.concat().concat();
        assert!(
            verify(
                &[LogFile::new("log", whole.clone())],
                &[writer.pin],
                &[head]
            )
            .is_ok()
        );
        for byte in 0..segments[0][0].len() {
            let mut changed = whole.clone();
            changed[byte] ^= 4;
            assert!(
                verify(&[LogFile::new("log", changed)], &[writer.pin], &[head]).is_err(),
                "{sizes:?}: byte {byte}"
            );
        }
    }
    let (segments, head) = writer.log(&[3]);
    let whole = segments.concat().concat();
    let mut copy = segments[0][..3].concat();
    let given = |copy: &[u8]| {
        [
            LogFile::new("whole", whole.clone()),
            LogFile::new("copy", copy.to_vec()),
        ]
    };
    assert!(verify(&given(&copy), &[writer.pin], &[head]).is_ok());
    copy[segments[0][0].len() + 20] ^= 1;
    assert!(verify(&given(&copy), &[writer.pin], &[head]).is_err());
}

/// Whether bytes still contain everything that was written, each record once and in its place: they
/// consist of lines that were written, and the segments, in the order of their beginnings, lead
/// from the first record to the last. Two things may differ, because they prove nothing: the order
/// of segments in the file, and segments without records, which may be missing.
fn tells_all(bytes: &[u8], written: &[Vec<Vec<u8>>]) -> bool {
    let mut records: Vec<&[u8]> = Vec::new();
    let mut beginnings: BTreeMap<&[u8], usize> = BTreeMap::new();
    for segment in written {
        beginnings.insert(&segment[0], records.len());
        records.extend(segment[1..].iter().map(Vec::as_slice));
    }
    let mut found: Vec<(usize, Vec<&[u8]>)> = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        match (beginnings.get(line), found.last_mut()) {
            (Some(before), _) => found.push((*before, Vec::new())),
            (None, Some((_, lines))) => lines.push(line),
            (None, None) => return false,
        }
    }
    found.sort_by_key(|(before, lines)| (*before, lines.len()));
    let mut collected: Vec<&[u8]> = Vec::new();
    for copies in found.chunk_by(|one, two| one.0 == two.0) {
        let (before, longest) = &copies[copies.len() - 1];
        if *before != collected.len() || copies.iter().any(|(_, lines)| !longest.starts_with(lines))
        {
            return false;
        }
        collected.extend(longest);
    }
    !found.is_empty() && collected == records
}

/// A segment without records (a master that started and ended) proves nothing, so its place does
/// not matter. If one of two swapped segments has a record, the records are in disorder.
#[test]
fn only_segments_without_records_may_change_places() {
    let writer = Writer::new(&subject());
    for (sizes, (one, two), whole) in [
        ([0, 2, 0], (0, 4), true),
        ([0, 1, 0], (0, 3), true),
        ([1, 2, 0], (0, 5), false),
        ([0, 2, 1], (0, 4), false),
        ([0, 2, 0], (1, 4), false),
    ] {
        let (segments, head) = writer.log(&sizes);
        let mut lines = segments.concat();
        assert!(
            lines[one].windows(8).any(|text| text == b"\"format\"") && lines[one] != lines[two],
            "{sizes:?}"
        );
        lines.swap(one, two);
        let changed = lines.concat();
        assert_eq!(tells_all(&changed, &segments), whole, "{sizes:?}");
        let outcome = verify(&[LogFile::new("log", changed)], &[writer.pin], &[head]);
        assert_eq!(outcome.is_ok(), whole, "{sizes:?}: {outcome:?}");
        if let Ok(summary) = outcome {
            assert_eq!(
                (summary.head, summary.first, summary.kinds[&Kind::Joined]),
                (head, 1, head.number)
            );
        }
    }
}

proptest! {
    #[test]
    fn every_change_to_a_log_is_found(
        sizes in prop::collection::vec(0_usize..5, 1..4), what in 0_u8..4, at in any::<prop::sample::Index>(),
        other in any::<prop::sample::Index>(), bit in 0_u8..8,
    ) {
        let writer = Writer::new(&subject());
        let (segments, head) = writer.log(&sizes);
        let mut lines: Vec<Vec<u8>> = segments.concat();
        let (one, two) = (at.index(lines.len()), other.index(lines.len()));
        match what {
            0 => drop(lines.remove(one)),
            1 => {
                prop_assume!(lines[one] != lines[two]);
                lines.swap(one, two);
            }
            2 => {
                let byte = other.index(lines[one].len());
                lines[one][byte] ^= 1 << bit;
            }
            _ => {
                let keep = other.index(lines[one].len());
                lines[one].truncate(keep);
            }
        }
        let changed = lines.concat();
        prop_assume!(changed != segments.concat().concat());
        let whole = tells_all(&changed, &segments);
        let outcome = verify(&[LogFile::new("log", changed)], &[writer.pin], &[head]);
        prop_assert_eq!(outcome.is_ok(), whole, "{:?}", outcome);
        if let Ok(summary) = outcome {
            let records = summary.kinds.get(&Kind::Joined).copied().unwrap_or_default();
            prop_assert_eq!((summary.head, summary.first, records), (head, 1, head.number));
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _any = verify(&[LogFile::new("x", bytes.clone())], &[], &[]);
        let _any = resume(&bytes);
    }
}
