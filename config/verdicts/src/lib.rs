//! The log of verdicts: its form, and how it is checked without the master that wrote it.
//!
//! A log is a chain of lines, each `SIGNATURE JSON\n`: base64 of a DER ECDSA P-256/SHA-256
//! signature over [`LABEL`] and the exact JSON bytes. A record's JSON carries its number and the
//! SHA-256 of the record's JSON before it. A segment begins with a line that gives its place in the
//! chain and the certificate of the key that signs it, which the cluster's root signed directly. So
//! the rest of a log can still be checked after its oldest segments were dropped.
//!
//! Guarantee: [`verify`] accepts only lines that the holder of the log's key wrote, in their order
//! and without a gap between the first and the last. It can't know whether records after the last
//! one were held back: compare the head that it returns with one that was noted elsewhere.
//!
//! Nothing here opens a file or reads a clock. Enter by [`verify`] for a reader, by [`resume`] and
//! [`line()`] for a writer, which is `master/journal`. The verdicts themselves are made in
//! `config/attest`.

mod read;

pub use read::{Fault, LogFile, Resumed, Summary, digests, resume, verify};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_tpm::Digest;
use serde::{Deserialize, Serialize};

/// The format that a segment names.
pub const FORMAT: &str = "pratique-verdicts/v1";
/// The prefix of the JSON in the signed bytes, so that a signature cannot be used for anything
/// else.
pub const LABEL: &[u8] = b"pratique verdict log v1\n";
/// Common name of the log key's certificate, before the cluster's name.
pub const SUBJECT: &str = "pratique verdict log of ";
/// Longest line, in bytes.
pub const MAX_LINE: usize = 16 << 10;
/// [`Entry::digest`] of an object that is gone.
pub const GONE: &str = "none";

/// The first line of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Segment {
    /// [`FORMAT`].
    pub format: String,
    /// The cluster's name.
    pub cluster: String,
    /// RFC 3339 time.
    pub time: String,
    /// Number of the segment's first record.
    pub next: u64,
    /// Hash of the record before; zero at the very beginning.
    pub previous: Digest,
    /// Base64 of the DER certificate of the log's key.
    pub certificate: String,
    /// Base64 of the DER root certificate that signed it.
    pub root: String,
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Record {
    /// From 1, without gaps.
    pub number: u64,
    /// Hash of the record before; zero at the very beginning.
    pub previous: Digest,
    /// RFC 3339 time by the master's clock.
    pub time: String,
    /// What happened.
    pub verdict: Entry,
}

/// What is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The master started.
    Started,
    /// A machine was admitted by a join.
    Joined,
    /// A machine renewed; `count` renewals since the last such record.
    Renewed,
    /// A machine's own proof was refused.
    Refused,
    /// A Machine changed its state.
    State,
    /// An admin decided on a Machine: added, waived, retired, replaced, removed, told to end.
    Decision,
    /// The policy changed.
    Policy,
    /// An image was allowed, or is no longer.
    Release,
    /// The cluster's own keys changed, or an admin's certificate was renewed.
    Authority,
    /// Records that belong before this one could not be written: `count` of them.
    Missing,
}

/// What happened, to which Machine, and who decided. Empty fields are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Entry {
    /// The kind of record.
    pub kind: Kind,
    /// The Machine's name, or the object's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its uid.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// A person, or a rule of the policy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// The code of a refusal.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub code: String,
    /// For a person.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// `sha256:<hex>` of the endorsement key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ek: String,
    /// Id of the image that was proved.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// Serial number of the client certificate that was issued.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub serial: String,
    /// How many; absent for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// `sha256:<hex>` of what an admin decides about the object, as it is from this record on, or
    /// [`GONE`]. A master that starts compares it with the object. Absent in other records, in
    /// those of older masters, and where a further record of the same edit has it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
}

/// Bytes of an entry's message in its JSON, and of each of the other texts: with eight of these,
/// the record's own fields and the signature, a line stays below [`MAX_LINE`].
const MAX_MESSAGE: usize = 8 << 10;
const MAX_TEXT: usize = 768;

impl Entry {
    /// The entry with its texts cut, so that a reader takes its line: a caller's name, for one, may
    /// be as long as its certificate allows. A text that was cut ends with `…`.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        cut(&mut self.message, MAX_MESSAGE);
        for text in [
            &mut self.name,
            &mut self.uid,
            &mut self.by,
            &mut self.code,
            &mut self.ek,
            &mut self.image,
            &mut self.serial,
            &mut self.digest,
        ] {
            cut(text, MAX_TEXT);
        }
        self
    }

    /// An entry about an object; the other fields are empty.
    pub fn of(kind: Kind, name: &str) -> Self {
        let empty = String::new;
        Self {
            kind,
            name: name.to_owned(),
            uid: empty(),
            by: empty(),
            code: empty(),
            message: empty(),
            ek: empty(),
            image: empty(),
            serial: empty(),
            count: None,
            digest: empty(),
        }
    }
}

/// Cuts a text to `limit` bytes of JSON.
fn cut(text: &mut String, limit: usize) {
    let in_json = |c: char| match c {
        '"' | '\\' => 2,
        '\0'..='\u{1f}' => "\\u0000".len(),
        _ => c.len_utf8(),
    };
    let room = limit - '…'.len_utf8();
    let (mut bytes, mut end) = (0, 0);
    for (at, c) in text.char_indices() {
        bytes += in_json(c);
        if bytes <= room {
            end = at + c.len_utf8();
        }
        if bytes > limit {
            text.truncate(end);
            text.push('…');
            return;
        }
    }
}

/// Where a chain ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// Number of the last record; 0 before the first.
    pub number: u64,
    /// Hash of the last record's JSON.
    pub hash: Digest,
}

/// The bytes that are signed for a line's JSON.
pub fn signed_bytes(json: &[u8]) -> Vec<u8> {
    [LABEL, json].concat()
}

/// A line of the log.
pub fn line(json: &[u8], signature: &[u8]) -> Vec<u8> {
    let mut line = STANDARD.encode(signature).into_bytes();
    line.push(b' ');
    line.extend_from_slice(json);
    line.push(b'\n');
    line
}
