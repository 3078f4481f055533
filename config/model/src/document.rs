//! A whole document: size and nesting, version and kind, then its sections.

use crate::cloud;
use crate::cluster::{self, ClusterConfig};
use crate::defaults::{MAX_DEPTH, MAX_DOCUMENT_BYTES, VERSION};
use crate::fault::{FaultKind, Faults, Position, Sink};
use crate::format::one_of;
use crate::image::{self, ImageConfig};
use crate::machine::{self, MachineConfig};
use crate::raw::{
    HEAD, RawClusterDocument, RawImageDocument, RawMachineDocument, RawPolicyDocument,
};
use crate::read::{Fields, too_deep};
use crate::rule::{self, PolicyConfig};
use crate::syntax;
use std::borrow::Cow;
use toml::de::DeTable;

/// A checked document.
#[derive(Debug, Clone, PartialEq)]
pub enum Document {
    /// A machine's user-data.
    Machine(Box<MachineConfig>),
    /// A cluster, for a master on a plain host.
    Cluster(Box<ClusterConfig>),
    /// An image to build.
    Image(Box<ImageConfig>),
    /// Rules for certificate requests.
    Policy(Box<PolicyConfig>),
}

impl Document {
    /// The value of `kind`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Machine(_) => Kind::Machine.word(),
            Self::Cluster(_) => Kind::Cluster.word(),
            Self::Image(_) => Kind::Image.word(),
            Self::Policy(_) => Kind::Policy.word(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Machine,
    Cluster,
    Image,
    Policy,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Machine, Self::Cluster, Self::Image, Self::Policy];

    const fn word(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Cluster => "cluster",
            Self::Image => "image",
            Self::Policy => "policy",
        }
    }

    const fn sections(self) -> &'static [&'static str] {
        match self {
            Self::Machine => RawMachineDocument::KEYS,
            Self::Cluster => RawClusterDocument::KEYS,
            Self::Image => RawImageDocument::KEYS,
            Self::Policy => RawPolicyDocument::KEYS,
        }
    }
}

/// Parses and checks a document, possibly inside a cloud-config ([`crate::cloud`]); `file` is its
/// name in faults.
///
/// Total over all bytes: it returns a document or at least one fault, never panics, and uses memory
/// and time linear in the document, which has at most [`MAX_DOCUMENT_BYTES`].
///
/// # Errors
/// All faults of the document.
pub fn parse(input: impl AsRef<[u8]>, file: &str) -> Result<Document, Faults> {
    let input = input.as_ref();
    let text = match text(input) {
        Ok(text) => text,
        Err((kind, at, found, expected)) => {
            // Everything before the fault is text; it is needed to count lines.
            let before = String::from_utf8_lossy(&input[..at]);
            let mut sink = Sink::new(&before);
            sink.fault(
                kind,
                &Position {
                    span: at..at,
                    key: String::new(),
                },
                found,
                &expected,
            );
            return Err(sink.into_faults(file));
        }
    };
    if !cloud::is_one(text) {
        return checked(text, file);
    }
    let mut sink = Sink::new(text);
    match cloud::open(text, &mut sink) {
        Some(carried) if sink.is_empty() => {
            checked(&carried.text, file).map_err(|faults| carried.placed(faults))
        }
        Some(_) | None => Err(sink.into_faults(file)),
    }
}

/// The TOML text that [`parse`] takes for the document: the input itself, or what a cloud-config
/// carries. Every other reader of a document starts from this text: `#cloud-config` is a comment in
/// TOML, so that one input can be another document as TOML than it is as cloud-config.
///
/// `None` for a cloud-config that does not carry exactly one document. The text is not checked.
pub fn toml_text(input: &str) -> Option<Cow<'_, str>> {
    if !cloud::is_one(input) {
        return Some(Cow::Borrowed(input));
    }
    let mut sink = Sink::new(input);
    let carried = cloud::open(input, &mut sink)?;
    sink.is_empty().then_some(Cow::Owned(carried.text))
}

/// Checks a TOML document.
fn checked(text: &str, file: &str) -> Result<Document, Faults> {
    let mut sink = Sink::new(text);
    let document = document(text, &mut sink);
    match document {
        Some(document) if sink.is_empty() => Ok(document),
        Some(_) | None => Err(sink.into_faults(file)),
    }
}

/// The document as text, or the fault: its kind, offset, what was found and expected.
fn text(input: &[u8]) -> Result<&str, (FaultKind, usize, String, String)> {
    if input.len() > MAX_DOCUMENT_BYTES {
        let found = format!("{} bytes", input.len());
        return Err((
            FaultKind::TooLarge,
            0,
            found,
            format!("at most {MAX_DOCUMENT_BYTES}"),
        ));
    }
    let text = str::from_utf8(input).map_err(|error| {
        let at = error.valid_up_to();
        let found = format!(
            "the byte 0x{:02x}",
            input.get(at).copied().unwrap_or_default()
        );
        (FaultKind::NotText, at, found, "text in UTF-8".to_owned())
    })?;
    Ok(text)
}

fn document(text: &str, sink: &mut Sink<'_>) -> Option<Document> {
    let (table, errors) = DeTable::parse_recoverable(text);
    let broken = !errors.is_empty();
    let shifted = syntax::note(errors, text, sink);
    let table = table.get_ref();
    if let Some(place) = too_deep(table) {
        sink.fault(
            FaultKind::TooDeep,
            &place,
            "tables or arrays nested too deeply",
            &format!("at most {MAX_DEPTH} levels"),
        );
        return None;
    }
    let fields = Fields::root(table);
    version(table, &fields, sink);
    let document = sections(&fields, sink);
    if broken {
        sink.drop_consequences(shifted);
    }
    document
}

fn version(table: &DeTable<'_>, fields: &Fields<'_, '_>, sink: &mut Sink<'_>) {
    let expected = format!("`version = {VERSION}` as the first key");
    let key = |(name, _): (&toml::Spanned<_>, &toml::Spanned<_>)| name.span();
    let Some(span) = table
        .iter()
        .find(|(name, _)| name.get_ref() == "version")
        .map(key)
    else {
        let place = Position {
            span: 0..0,
            key: "version".to_owned(),
        };
        let suggestion = Some(format!("start the document with `version = {VERSION}`"));
        sink.suggest(
            FaultKind::Version,
            &place,
            "no `version`",
            &expected,
            suggestion,
        );
        return;
    };
    if let Some(given) = fields.take::<i64>("version", sink)
        && given.value != VERSION
    {
        let found = format!("version {}", given.value);
        sink.fault(
            FaultKind::Version,
            &given.place,
            found,
            &format!("version {VERSION}, which this program reads"),
        );
    }
    if table.iter().map(key).any(|other| other.start < span.start) {
        let place = Position {
            span,
            key: "version".to_owned(),
        };
        sink.fault(
            FaultKind::Version,
            &place,
            "`version` after other keys",
            &expected,
        );
    }
}

fn sections(fields: &Fields<'_, '_>, sink: &mut Sink<'_>) -> Option<Document> {
    let kind = match fields.take::<String>("kind", sink) {
        None if sink.has_fault_at("kind") => return None,
        None => Kind::Machine,
        Some(text) => {
            let words = Kind::ALL.map(|kind| (kind.word(), kind));
            sink.parsed(&text, one_of(&text.value, &words))?
        }
    };
    let elsewhere = |key: &str| {
        let home = Kind::ALL
            .into_iter()
            .find(|kind| kind.sections().contains(&key))?;
        Some(format!(
            "`{key}` belongs to documents of kind `{}`; this one's is `{}`",
            home.word(),
            kind.word()
        ))
    };
    match kind {
        Kind::Machine => {
            let raw = RawMachineDocument::fields(fields, HEAD, elsewhere, sink);
            machine::check(raw, sink).map(|config| Document::Machine(Box::new(config)))
        }
        Kind::Cluster => {
            let raw = RawClusterDocument::fields(fields, HEAD, elsewhere, sink);
            let parts = cluster::Parts {
                cluster: raw.cluster,
                rule: raw.rule,
                storage: raw.storage,
            };
            cluster::check(parts, sink).map(|config| Document::Cluster(Box::new(config)))
        }
        Kind::Image => {
            let raw = RawImageDocument::fields(fields, HEAD, elsewhere, sink);
            Some(Document::Image(Box::new(image::check(raw, sink))))
        }
        Kind::Policy => {
            let raw = RawPolicyDocument::fields(fields, HEAD, elsewhere, sink);
            rule::check_document(raw, sink).map(|config| Document::Policy(Box::new(config)))
        }
    }
}
