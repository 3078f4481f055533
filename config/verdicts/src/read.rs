//! Reading a log of verdicts: the full check for a reader that has only the root's pin, and the
//! short one for the log's writer.

use super::{Entry, FORMAT, Head, Kind, MAX_LINE, Record, SUBJECT, Segment, signed_bytes};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_tpm::Digest;
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use std::collections::BTreeMap;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Why a log is not authentic, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}, line {line}: {what}")]
pub struct Fault {
    /// The file.
    pub file: String,
    /// Line of that file, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

/// A summary of a whole log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// The cluster's name.
    pub cluster: String,
    /// Number of the first record that is there.
    pub first: u64,
    /// The last one; note it elsewhere, to check a later log against it.
    pub head: Head,
    /// RFC 3339 times of the first and the last record.
    pub times: Option<(String, String)>,
    /// Records of each kind.
    pub kinds: BTreeMap<Kind, u64>,
    /// Refusals of each code.
    pub codes: BTreeMap<String, u64>,
    /// How often a record's time is before that of the record before it: the master's clock was set
    /// back.
    pub steps_back: u64,
    /// Keys that signed.
    pub keys: u64,
    /// The noted records that the log has.
    pub met: u64,
}

enum Parsed {
    Segment(Segment),
    Record(Record),
}

struct Line<'a> {
    json: &'a [u8],
    signature: Vec<u8>,
    parsed: Parsed,
}

/// Splits a line (without its newline) into signature and JSON.
fn parse(line: &[u8]) -> Result<Line<'_>, String> {
    if line.len() > MAX_LINE {
        return Err(format!("longer than {MAX_LINE} bytes"));
    }
    let space = line
        .iter()
        .position(|byte| *byte == b' ')
        .ok_or("no signature before the first space")?;
    let (signature, json) = (&line[..space], &line[space + 1..]);
    let signature = STANDARD
        .decode(signature)
        .map_err(|error| format!("the signature is not base64: {error}"))?;
    let parsed = if json.starts_with(b"{\"format\"") {
        config_protocol::wire::parse(json).map(Parsed::Segment)
    } else {
        config_protocol::wire::parse(json).map(Parsed::Record)
    };
    Ok(Line {
        json,
        signature,
        parsed: parsed.map_err(|error| format!("not a record: {error}"))?,
    })
}

/// A file of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFile {
    /// Its name, in faults.
    pub name: String,
    /// What it contains.
    pub bytes: Vec<u8>,
}

impl LogFile {
    /// A file of this name.
    pub fn new(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self {
            name: name.into(),
            bytes,
        }
    }
}

/// A segment's lines, with the file and the line at which it begins.
struct Piece<'a> {
    file: &'a str,
    at: usize,
    next: u64,
    lines: Vec<Line<'a>>,
}

fn fault(file: &str, line: usize, what: impl Into<String>) -> Fault {
    Fault {
        file: file.to_owned(),
        line,
        what: what.into(),
    }
}

/// Cuts files into segments.
fn pieces(files: &[LogFile]) -> Result<Vec<Piece<'_>>, Fault> {
    let mut pieces: Vec<Piece<'_>> = Vec::new();
    for LogFile { name: file, bytes } in files {
        let mut own: Option<Piece<'_>> = None;
        let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').enumerate();
        for (number, line) in lines.by_ref() {
            let number = number + 1;
            let Some(line) = line.strip_suffix(b"\n") else {
                return Err(fault(file, number, "the last line is cut off"));
            };
            let parsed = parse(line).map_err(|what| fault(file, number, what))?;
            match (&parsed.parsed, &mut own) {
                (Parsed::Segment(segment), _) => {
                    pieces.extend(own.take());
                    own = Some(Piece {
                        file,
                        at: number,
                        next: segment.next,
                        lines: vec![parsed],
                    });
                }
                (Parsed::Record(_), Some(piece)) => piece.lines.push(parsed),
                (Parsed::Record(_), None) => {
                    return Err(fault(
                        file,
                        number,
                        "a record before any segment's beginning",
                    ));
                }
            }
        }
        pieces.extend(own);
    }
    // Of several copies of a segment the longest counts; of two with one length either, as both are
    // checked.
    pieces.sort_by_key(|piece| (piece.next, piece.lines.len()));
    Ok(pieces)
}

/// Checks a shorter copy of a segment as a prefix of the longest one.
fn copied(piece: &Piece<'_>, pins: &[Digest]) -> Result<(), Fault> {
    let mut key = Vec::new();
    for (offset, line) in piece.lines.iter().enumerate() {
        let fault = |what| fault(piece.file, piece.at + offset, what);
        if let Parsed::Segment(segment) = &line.parsed {
            key = log_key(segment, pins).map_err(fault)?;
        }
        if !signed(&key, line) {
            return Err(fault("it is not signed by the log's key".to_owned()));
        }
    }
    Ok(())
}

struct Checker<'a> {
    pins: &'a [Digest],
    wanted: &'a [Head],
    summary: Summary,
    head: Option<Head>,
    key: Option<Vec<u8>>,
    last_time: Option<jiff::Timestamp>,
}

impl Checker<'_> {
    fn segment(&mut self, segment: &Segment, line: &Line<'_>) -> Result<(), String> {
        if segment.format != FORMAT {
            return Err(format!(
                "the format is `{}`, and this program reads `{FORMAT}`",
                segment.format
            ));
        }
        let key = log_key(segment, self.pins)?;
        if !signed(&key, line) {
            return Err("the segment's beginning is not signed by its own key".to_owned());
        }
        match &self.head {
            None => {
                self.summary.cluster.clone_from(&segment.cluster);
                self.summary.first = segment.next;
                let number = segment
                    .next
                    .checked_sub(1)
                    .ok_or("a segment can't begin before record 1")?;
                if number == 0 && segment.previous != Digest::ZERO {
                    return Err(
                        "the first record follows no other, and the segment names one before it"
                            .to_owned(),
                    );
                }
                self.head = Some(Head {
                    number,
                    hash: segment.previous,
                });
            }
            Some(head) if (head.number + 1, head.hash) != (segment.next, segment.previous) => {
                return Err(format!(
                    "records are missing or were exchanged: the segment begins at record {}, and the one before ends at {}",
                    segment.next, head.number
                ));
            }
            Some(_) if self.summary.cluster != segment.cluster => {
                return Err(format!(
                    "it is of the cluster `{}`, the one before of another",
                    segment.cluster
                ));
            }
            Some(_) => {}
        }
        if self.key.as_ref() != Some(&key) {
            self.summary.keys += 1;
        }
        self.key = Some(key);
        Ok(())
    }

    fn record(&mut self, record: &Record, line: &Line<'_>) -> Result<(), String> {
        let head = self.head.ok_or("a record before any segment's beginning")?;
        if record.number != head.number + 1 {
            return Err(format!(
                "record {} where {} is due",
                record.number,
                head.number + 1
            ));
        }
        if record.previous != head.hash {
            return Err(format!(
                "record {} does not follow the record before it",
                record.number
            ));
        }
        if !self.key.as_ref().is_some_and(|key| signed(key, line)) {
            return Err(format!(
                "record {} is not signed by the log's key",
                record.number
            ));
        }
        let time: jiff::Timestamp = record
            .time
            .parse()
            .map_err(|_bad| format!("`{}` is no time", record.time))?;
        if self.last_time.is_some_and(|last| time < last) {
            self.summary.steps_back += 1;
        }
        self.last_time = Some(time);
        let head = Head {
            number: record.number,
            hash: Digest::of(line.json),
        };
        self.summary.met += self.wanted.iter().filter(|wanted| **wanted == head).count() as u64;
        if let Some(other) = self
            .wanted
            .iter()
            .find(|wanted| wanted.number == head.number && **wanted != head)
        {
            return Err(format!(
                "record {} is another than the one that was noted ({})",
                head.number, other.hash
            ));
        }
        self.head = Some(head);
        self.count(record);
        Ok(())
    }

    fn count(&mut self, record: &Record) {
        let summary = &mut self.summary;
        let first = summary
            .times
            .take()
            .map_or_else(|| record.time.clone(), |(first, _)| first);
        summary.times = Some((first, record.time.clone()));
        *summary.kinds.entry(record.verdict.kind).or_default() += 1;
        if !record.verdict.code.is_empty() {
            *summary
                .codes
                .entry(record.verdict.code.clone())
                .or_default() += 1;
        }
    }
}

fn signed(key: &[u8], line: &Line<'_>) -> bool {
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key)
        .verify(&signed_bytes(line.json), &line.signature)
        .is_ok()
}

/// The log's key (an uncompressed point), by a certificate that a pinned root signed itself.
fn log_key(segment: &Segment, pins: &[Digest]) -> Result<Vec<u8>, String> {
    let decode = |text: &str, what: &str| {
        STANDARD
            .decode(text)
            .map_err(|_bad| format!("the {what} is not base64"))
    };
    let (leaf, root) = (
        decode(&segment.certificate, "certificate")?,
        decode(&segment.root, "root")?,
    );
    let (leaf, root) = (
        certificate(&leaf, "log's certificate")?,
        certificate(&root, "root")?,
    );
    let pin = Digest::of(root.public_key().raw);
    if !pins.contains(&pin) {
        return Err(format!(
            "its root is {}, which is none of the pins",
            pin.to_text()
        ));
    }
    let by_root = config_certificates::x509::signed_by(&leaf, &root);
    let subject = leaf
        .subject()
        .iter_common_name()
        .next()
        .and_then(|name| name.as_str().ok())
        .unwrap_or_default();
    let ca = leaf
        .basic_constraints()
        .ok()
        .flatten()
        .is_some_and(|constraints| constraints.value.ca);
    if !by_root || ca || subject.strip_prefix(SUBJECT) != Some(segment.cluster.as_str()) {
        return Err(
            "the log's certificate is not one that the root made for this cluster's log".to_owned(),
        );
    }
    Ok(leaf.public_key().subject_public_key.data.to_vec())
}

fn certificate<'a>(der: &'a [u8], what: &str) -> Result<X509Certificate<'a>, String> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) | Err(_) => Err(format!("the {what} is not a certificate")),
    }
}

/// Checks a log: files in any order, each with one segment or more. `pins` are the roots' pins;
/// `noted` are heads noted before; the log must contain those in its range.
///
/// # Errors
/// The first place at which the log contradicts its segment beginnings, signatures, pins or a noted
/// head.
pub fn verify(files: &[LogFile], pins: &[Digest], noted: &[Head]) -> Result<Summary, Fault> {
    let pieces = pieces(files)?;
    let mut checker = Checker {
        pins,
        wanted: noted,
        summary: Summary::default(),
        head: None,
        key: None,
        last_time: None,
    };
    for (index, piece) in pieces.iter().enumerate() {
        if let Some(longer) = pieces
            .get(index + 1)
            .filter(|longer| longer.next == piece.next)
        {
            let same = piece
                .lines
                .iter()
                .zip(&longer.lines)
                .position(|(own, other)| own.json != other.json);
            if let Some(line) = same {
                let what = format!(
                    "another history than in {}: both cannot be true",
                    longer.file
                );
                return Err(fault(piece.file, piece.at + line, what));
            }
            copied(piece, pins)?;
            continue;
        }
        for (offset, line) in piece.lines.iter().enumerate() {
            let outcome = match &line.parsed {
                Parsed::Segment(segment) => checker.segment(segment, line),
                Parsed::Record(record) => checker.record(record, line),
            };
            outcome.map_err(|what| fault(piece.file, piece.at + offset, what))?;
        }
    }
    let head = checker
        .head
        .ok_or_else(|| fault("the log", 0, "there is no segment in it"))?;
    if let Some(wanted) = noted.iter().find(|wanted| wanted.number > head.number) {
        let what = format!(
            "it ends at record {}, but record {} was noted: the end is missing",
            head.number, wanted.number
        );
        return Err(fault("the log", 0, what));
    }
    Ok(Summary {
        head,
        ..checker.summary
    })
}

/// Where a writer goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumed {
    /// The last whole record.
    pub head: Head,
    /// Bytes up to the end of the last whole line; the rest is a torn write.
    pub whole: usize,
    /// The certificate by which the segment is signed (base64 of DER).
    pub certificate: String,
}

/// Reads from a segment what its writer needs after a crash. Only [`verify`] checks signatures.
///
/// # Errors
/// The number of the first malformed line, if whole lines follow it, so that it can't be a torn
/// write.
pub fn resume(segment: &[u8]) -> Result<Resumed, (usize, String)> {
    let mut resumed: Option<Resumed> = None;
    let mut broken: Option<(usize, String)> = None;
    let mut at = 0;
    for (number, line) in segment.split_inclusive(|byte| *byte == b'\n').enumerate() {
        at += line.len();
        let outcome = line
            .strip_suffix(b"\n")
            .ok_or_else(|| "cut off".to_owned())
            .and_then(parse);
        match (outcome, &broken) {
            (Err(what), None) => broken = Some((number + 1, what)),
            (Err(_), Some(_)) => {}
            (Ok(_), Some(broken)) => return Err(broken.clone()),
            (Ok(line), None) => {
                follow(&mut resumed, &line, at).map_err(|what| (number + 1, what))?;
            }
        }
    }
    resumed.ok_or_else(|| broken.unwrap_or((1, "it is empty".to_owned())))
}

/// The entries of a segment that have a digest, in their order, for the log's writer. A line that
/// cannot be read is passed over; only [`verify`] checks signatures.
pub fn digests(segment: &[u8]) -> impl Iterator<Item = Entry> + '_ {
    // Most records have none, and a whole log is many megabytes: what cannot have one isn't parsed.
    // Within a text the quotes would be escaped.
    let names_one =
        |line: &&[u8]| std::str::from_utf8(line).is_ok_and(|text| text.contains(r#""digest":""#));
    let whole = segment
        .split_inclusive(|byte| *byte == b'\n')
        .filter_map(|line| line.strip_suffix(b"\n"));
    let entries = whole.filter(names_one).filter_map(|line| {
        let Parsed::Record(record) = parse(line).ok()?.parsed else {
            return None;
        };
        Some(record.verdict)
    });
    entries.filter(|entry| !entry.digest.is_empty())
}

fn follow(resumed: &mut Option<Resumed>, line: &Line<'_>, at: usize) -> Result<(), String> {
    match (&line.parsed, resumed) {
        (Parsed::Segment(segment), resumed @ None) => {
            let number = segment
                .next
                .checked_sub(1)
                .ok_or("a segment can't begin before record 1")?;
            let head = Head {
                number,
                hash: segment.previous,
            };
            *resumed = Some(Resumed {
                head,
                whole: at,
                certificate: segment.certificate.clone(),
            });
            Ok(())
        }
        (Parsed::Record(record), Some(resumed)) => {
            if (record.number, record.previous) != (resumed.head.number + 1, resumed.head.hash) {
                return Err(format!(
                    "record {} does not follow the record before it",
                    record.number
                ));
            }
            resumed.head = Head {
                number: record.number,
                hash: Digest::of(line.json),
            };
            resumed.whole = at;
            Ok(())
        }
        (Parsed::Segment(_), Some(_)) => Err("a second beginning".to_owned()),
        (Parsed::Record(_), None) => Err("no beginning".to_owned()),
    }
}
