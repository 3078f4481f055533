//! The lines of a watch: events, bookmarks and errors, in the form that the client accepts; in
//! protobuf, frames that begin with their length.

use super::call::Call;
use super::network_only;
use bytes::Bytes;
use http::header;
use jiff::Timestamp;
use master_objects::StoredPart;
use master_schema::error::{ApiError, Reason};
use master_schema::registry::Kind;
use master_schema::validate::Fields;
use master_store::{Entry, Revision};
use master_wire::table::{self, Include, Style};
use master_wire::{Accept, Form, Syntax, protobuf};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The annotation of the bookmark after the initial events (KEP-3157).
const INITIAL_END: &str = "k8s.io/initial-events-end";
/// Objects of this size and above are sent from the store's own bytes; for smaller ones, one line
/// is made for all watchers.
pub(super) const SHARED: usize = 4096;

/// The end of a line after its object.
const END: &[u8] = b"}\n";
/// The type of an event after which an object no longer exists or matches; it carries the last
/// state.
pub(super) const DELETED: &str = "DELETED";
/// Lines of one event that are cached for other watchers, one for each version of the kind and each
/// form. Further lines are assembled from the cached parts.
const LINES: usize = 4;
/// Parts of one sort that are cached for one event: of the object and of its state before, in each
/// version of the kind. No kind needs as many, so that no client can crowd out the parts that
/// others share.
const PARTS: usize = 16;
/// How long a cached row is sent: it shows ages, and an event of a quiet kind is recent for
/// minutes.
const ROW_AGE: Duration = Duration::from_secs(10);

/// What the watchers of one event send, made once for all of them.
///
/// Guarantee: as long as the event is recent, its object is decoded once for all watchers of one
/// sort (tables once in [`ROW_AGE`]), however many there are and whatever else they ask for.
/// Otherwise one change of a large object would cost as many decodings as it has watchers.
#[derive(Debug)]
pub(super) struct Lines {
    /// Whole lines, of small objects.
    short: Mutex<Vec<Line>>,
    /// The stored bytes of objects.
    whole: Parts<Bytes>,
    /// The stored bytes of their metadata.
    metadata: Parts<Bytes>,
    /// Pods in the reduced form that other nodes get.
    network_only: Parts<Bytes>,
    /// The messages of objects, in protobuf.
    messages: Parts<Bytes>,
    /// The messages of their metadata.
    metadata_messages: Parts<Bytes>,
    /// Rows of tables.
    rows: Parts<Row>,
    /// How long a row lasts.
    row_age: Duration,
}

impl Default for Lines {
    fn default() -> Self {
        Self {
            short: Mutex::default(),
            whole: Parts::default(),
            metadata: Parts::default(),
            network_only: Parts::default(),
            messages: Parts::default(),
            metadata_messages: Parts::default(),
            rows: Parts::default(),
            row_age: ROW_AGE,
        }
    }
}

/// One sort of parts.
#[derive(Debug, Default)]
struct Parts<T>(Mutex<Vec<Part<T>>>);

#[derive(Debug)]
struct Part<T> {
    kind: Arc<Kind>,
    /// Whether it is of the object before the event.
    before: bool,
    made: Instant,
    content: T,
}

/// A row of a table, without the parts that depend on the table's version.
#[derive(Debug, Default, Clone)]
struct Row {
    cells: Bytes,
    /// The object's metadata, without managed fields.
    metadata: Bytes,
}

impl<T: Clone> Parts<T> {
    /// The cached part; made if it does not exist yet. Others who need it wait meanwhile.
    fn get(
        &self,
        object: &Object<'_>,
        make: impl FnOnce() -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same =
            |part: &&Part<T>| part.before == object.before && Arc::ptr_eq(&part.kind, object.kind);
        if let Some(part) = parts.iter().find(same) {
            return Ok(part.content.clone());
        }
        let content = make()?;
        if parts.len() < PARTS {
            parts.push(Part {
                kind: object.kind.clone(),
                before: object.before,
                made: Instant::now(),
                content: content.clone(),
            });
        }
        Ok(content)
    }

    /// Drops what was made longer ago than this.
    fn forget(&self, age: Duration) {
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        parts.retain(|part| part.made.elapsed() < age);
    }
}

/// The object of a line.
#[derive(Debug, Clone, Copy)]
struct Object<'a> {
    kind: &'a Arc<Kind>,
    entry: &'a Entry,
    /// Whether it is the object before the event.
    before: bool,
    /// Its resource version in the line: the event's.
    revision: Revision,
    lines: &'a Lines,
}

impl Object<'_> {
    /// Its JSON up to the stored bytes.
    fn head(&self, part: StoredPart) -> String {
        let head = master_objects::head(self.kind, part);
        format!(r#"{head}{}","#, self.revision)
    }

    /// The stored bytes of a part.
    fn stored(&self, part: StoredPart) -> Result<Bytes, ApiError> {
        let cached = match part {
            StoredPart::Whole => &self.lines.whole,
            StoredPart::Metadata(_) => &self.lines.metadata,
        };
        cached.get(self, || {
            Ok(master_objects::stored_bytes(self.kind, self.entry, part)?.bytes())
        })
    }

    /// The line's event in protobuf, in pieces.
    fn in_protobuf(&self, what: &str, part: StoredPart) -> Result<Vec<Bytes>, ApiError> {
        let own = self.kind.api_version();
        let (cached, version, name) = match part {
            StoredPart::Whole => (&self.lines.messages, own.as_str(), self.kind.kind.as_str()),
            StoredPart::Metadata(version) => {
                let name = "PartialObjectMetadata";
                (&self.lines.metadata_messages, version, name)
            }
        };
        let message = cached.get(self, || {
            let stored = self.stored(part)?;
            let json = [self.head(part).as_bytes(), &stored, part.tail()].concat();
            Ok(Bytes::from(protobuf::message_from_json(&json)?))
        })?;
        let head = protobuf::event_head(what, version, name, message.len())?;
        Ok(vec![
            head.into(),
            message,
            Bytes::from_static(protobuf::TAIL),
        ])
    }

    fn decoded(&self) -> Result<Fields, ApiError> {
        let entry = Entry {
            modified: self.revision,
            ..self.entry.clone()
        };
        master_objects::decode_without_managed(self.kind, &entry)
    }

    /// A pod, as other nodes get it.
    fn network_only(&self) -> Result<Bytes, ApiError> {
        self.lines.network_only.get(self, || {
            let pod = network_only::of_pod(&self.decoded()?);
            Ok(pod.to_string().into())
        })
    }

    fn row(&self) -> Result<Row, ApiError> {
        self.lines.rows.forget(self.lines.row_age);
        self.lines.rows.get(self, || {
            let fields = self.decoded()?;
            let cells = table::cells(self.kind, &fields, Timestamp::now());
            let metadata = fields.get("metadata").unwrap_or(&Value::Null);
            Ok(Row {
                cells: Value::Array(cells).to_string().into(),
                metadata: metadata.to_string().into(),
            })
        })
    }
}

#[derive(Debug)]
struct Line {
    kind: Arc<Kind>,
    what: &'static str,
    part: StoredPart,
    bytes: Bytes,
}

impl Lines {
    /// The cached line of a small object; made if it does not exist yet.
    fn get(
        &self,
        kind: &Arc<Kind>,
        what: &'static str,
        part: StoredPart,
        make: impl FnOnce() -> Bytes,
    ) -> Bytes {
        let mut lines = self.short.lock().unwrap_or_else(PoisonError::into_inner);
        let same =
            |line: &&Line| line.what == what && line.part == part && Arc::ptr_eq(&line.kind, kind);
        if let Some(line) = lines.iter().find(same) {
            return line.bytes.clone();
        }
        let bytes = make();
        if lines.len() < LINES {
            lines.push(Line {
                kind: kind.clone(),
                what,
                part,
                bytes: bytes.clone(),
            });
        }
        bytes
    }
}

/// Writes the lines of one watch.
#[derive(Debug)]
pub(super) struct Frames {
    form: Form,
    include: Include,
    /// Whether a table's column definitions are still to be sent.
    headings: bool,
    /// Whether pods are sent in the reduced form that other nodes' packet filters need.
    network_only: bool,
    /// Whether the frames are in protobuf rather than JSON.
    binary: bool,
}

impl Frames {
    /// The frames that a request asks for.
    pub(super) fn new(call: &Call) -> Result<Self, ApiError> {
        // A streaming list is never a table, as upstream: a client that can assemble one accepts
        // another form beside the table.
        let streamed = call.query.on("allowWatchBookmarks") && call.query.on("sendInitialEvents");
        let accept = if streamed {
            Accept::without_tables(&call.headers)?
        } else {
            call.accept()?
        };
        call.check_form(accept)?;
        let binary = accept.syntax == Syntax::Protobuf;
        // A WebSocket has a message for each line of JSON, and none for frames of protobuf.
        let in_lines = call.headers.contains_key(header::UPGRADE);
        if accept.syntax == Syntax::Yaml || (binary && in_lines) {
            let text = "only the following media types are accepted: application/json, application/json;stream=watch";
            return Err(ApiError::new(Reason::NotAcceptable, text));
        }
        let include = match accept.form {
            Form::Table(_) => Include::of(call.query.get("includeObject"))?,
            Form::Object | Form::Partial(_) | Form::PartialList(_) => Include::Metadata,
        };
        Ok(Self {
            form: accept.form,
            include,
            headings: true,
            network_only: call.is_network_only()?,
            binary,
        })
    }

    /// The media type of the watch.
    pub(super) fn media(&self) -> &'static str {
        if self.binary {
            "application/vnd.kubernetes.protobuf;stream=watch"
        } else {
            "application/json"
        }
    }

    /// An event as a line, in as many pieces as needed to share the object's bytes.
    pub(super) fn event(
        &mut self,
        kind: &Arc<Kind>,
        what: &'static str,
        entry: &Entry,
        revision: Revision,
        lines: &Lines,
        into: &mut VecDeque<Bytes>,
    ) -> Result<(), ApiError> {
        let object = Object {
            kind,
            entry,
            before: what == DELETED,
            revision,
            lines,
        };
        let start = || format!(r#"{{"type":"{what}","object":"#);
        if self.network_only {
            let pod = object.network_only()?;
            put(vec![start().into(), pod, Bytes::from_static(END)], into);
            return Ok(());
        }
        let part = match self.form {
            // A watch sends single objects, never lists; these forms send the whole object, as
            // upstream.
            Form::Object | Form::PartialList(_) => StoredPart::Whole,
            Form::Partial(version) => StoredPart::Metadata(version),
            Form::Table(version) => {
                put(self.table(version, &start(), &object)?, into);
                return Ok(());
            }
        };
        if self.binary {
            put(object.in_protobuf(what, part)?, into);
            return Ok(());
        }
        let kept = object.stored(part)?;
        if kept.len() < SHARED {
            into.push_back(lines.get(kind, what, part, || {
                let start = start() + &object.head(part);
                [start.as_bytes(), &kept, part.tail(), END].concat().into()
            }));
        } else {
            into.extend([
                (start() + &object.head(part)).into(),
                kept,
                Bytes::from_static(part.tail()),
                Bytes::from_static(END),
            ]);
        }
        Ok(())
    }

    /// The line of an object as a table of one row ([`table::table`]), in pieces; `start` is what
    /// comes before the table.
    fn table(
        &mut self,
        version: &str,
        start: &str,
        object: &Object<'_>,
    ) -> Result<Vec<Bytes>, ApiError> {
        let row = object.row()?;
        let columns = if self.headings {
            table::columns(object.kind)
        } else {
            Value::Null
        };
        self.headings = false;
        let revision = object.revision;
        let start = format!(
            r#"{start}{{"kind":"Table","apiVersion":"{version}","metadata":{{"resourceVersion":"{revision}"}},"columnDefinitions":{columns},"rows":[{{"cells":"#
        );
        let mut pieces = vec![
            start.into(),
            row.cells,
            Bytes::from_static(br#","object":"#),
        ];
        match self.include {
            Include::Nothing => pieces.push(Bytes::from_static(b"null")),
            Include::Metadata => pieces.extend([
                Bytes::from(format!(
                    r#"{{"kind":"PartialObjectMetadata","apiVersion":"{version}","metadata":"#
                )),
                row.metadata,
                Bytes::from_static(b"}"),
            ]),
            Include::Object => pieces.extend([
                object.head(StoredPart::Whole).into(),
                object.stored(StoredPart::Whole)?,
            ]),
        }
        pieces.extend([Bytes::from_static(b"}]}"), Bytes::from_static(END)]);
        Ok(pieces)
    }

    /// A bookmark: everything up to a revision was sent, and with `initial_end` also all initial
    /// events.
    pub(super) fn bookmark(&mut self, kind: &Kind, revision: Revision, initial_end: bool) -> Bytes {
        let mut metadata =
            json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if initial_end {
            metadata["annotations"] = json!({INITIAL_END: "true"});
        }
        let partial = |version: &str, metadata: &Value| json!({"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": metadata});
        let object = match self.form {
            Form::Object | Form::PartialList(_) => {
                json!({"kind": kind.kind, "apiVersion": kind.api_version(), "metadata": metadata})
            }
            Form::Partial(version) => partial(version, &metadata),
            Form::Table(version) => {
                let about = json!({"resourceVersion": revision.to_string()});
                let style = Style {
                    version,
                    include: Include::Metadata,
                    headings: self.headings,
                };
                self.headings = false;
                let table = table::table(kind, style, [], &about);
                let mut table = table.unwrap_or_default();
                table["rows"] = json!([{"cells": [], "object": partial(version, &metadata)}]);
                table
            }
        };
        self.made("BOOKMARK", &object)
    }

    /// An error as a line.
    pub(super) fn error(&self, error: &ApiError) -> Bytes {
        self.made("ERROR", &error.to_status())
    }

    /// A line with an object that is not stored.
    fn made(&self, what: &str, object: &Value) -> Bytes {
        if self.binary {
            // Bookmarks and errors have nothing that protobuf cannot express.
            return protobuf::event(what, object).unwrap_or_default().into();
        }
        Bytes::from(json!({"type": what, "object": object}).to_string() + "\n")
    }
}

/// Queues a line, in one piece if it is short.
fn put(pieces: Vec<Bytes>, into: &mut VecDeque<Bytes>) {
    let length: usize = pieces.iter().map(Bytes::len).sum();
    if length >= SHARED {
        into.extend(pieces);
        return;
    }
    let mut line = Vec::with_capacity(length);
    for piece in &pieces {
        line.extend_from_slice(piece);
    }
    into.push_back(line.into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use master_kinds::builtin;

    const V1: &str = "meta.k8s.io/v1";
    const BETA: &str = "meta.k8s.io/v1beta1";
    const INCLUDES: [Include; 3] = [Include::Nothing, Include::Metadata, Include::Object];

    fn pods() -> Arc<Kind> {
        builtin::registry().find("", "v1", "pods").unwrap().clone()
    }

    fn stored(value: String) -> Entry {
        Entry {
            key: "pods/default/p".into(),
            value: value.into(),
            created: 5,
            modified: 5,
        }
    }

    /// A pod with a label of this many letters, which every form but a bare row sends.
    fn pod(name: &str, letters: usize) -> Entry {
        let labels = json!({"long": "x".repeat(letters)});
        let managed = json!([{"manager": "m", "operation": "Update"}]);
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "labels": labels, "managedFields": managed},
            "spec": {"containers": [{"name": "c", "image": "x:1"}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1"},
        });
        stored(pod.to_string())
    }

    /// An object of which nothing can be read.
    fn spoilt() -> Entry {
        stored("{".to_owned())
    }

    /// Lines whose rows last, however long a test takes.
    fn lasting() -> Lines {
        Lines {
            row_age: Duration::MAX,
            ..Lines::default()
        }
    }

    fn rows(version: &'static str, include: Include) -> Frames {
        Frames {
            form: Form::Table(version),
            include,
            headings: true,
            network_only: false,
            binary: false,
        }
    }

    fn objects(form: Form, network_only: bool) -> Frames {
        Frames {
            form,
            include: Include::Metadata,
            headings: true,
            network_only,
            binary: false,
        }
    }

    /// A watcher of each form.
    fn watchers() -> Vec<Frames> {
        let tables = [V1, BETA].into_iter();
        let tables = tables.flat_map(|version| INCLUDES.map(|include| rows(version, include)));
        tables
            .chain([
                objects(Form::Object, true),
                objects(Form::Object, false),
                objects(Form::Partial(V1), false),
                objects(Form::Partial(BETA), false),
            ])
            .collect()
    }

    fn line(
        frames: &mut Frames,
        kind: &Arc<Kind>,
        what: &'static str,
        entry: &Entry,
        lines: &Lines,
    ) -> Result<Value, ApiError> {
        let mut pieces = VecDeque::new();
        frames.event(kind, what, entry, 7, lines, &mut pieces)?;
        let text: Vec<u8> = pieces.iter().flatten().copied().collect();
        assert!(text.ends_with(b"\n"));
        Ok(serde_json::from_slice(&text).unwrap())
    }

    #[test]
    fn an_event_is_decoded_once_for_all_its_watchers_whatever_they_ask_for() {
        let kind = pods();
        for letters in [1, 2 * SHARED] {
            let (good, spoilt, lines) = (pod("p", letters), spoilt(), lasting());
            let first: Vec<Value> = watchers()
                .iter_mut()
                .map(|frames| line(frames, &kind, "MODIFIED", &good, &lines).unwrap())
                .collect();
            // A second look at the object would find nothing.
            for (mut frames, first) in watchers().into_iter().zip(first) {
                let alone = line(&mut frames, &kind, "MODIFIED", &spoilt, &Lines::default());
                assert!(alone.is_err(), "{frames:?}");
                for _ in 0..100 {
                    frames.headings = true;
                    let shared = line(&mut frames, &kind, "MODIFIED", &spoilt, &lines);
                    assert_eq!(shared.unwrap(), first, "{frames:?}");
                }
            }
        }
    }

    #[test]
    fn an_event_in_protobuf_is_encoded_once_for_all_its_watchers() {
        let (kind, spoilt) = (pods(), spoilt());
        for letters in [1, 2 * SHARED] {
            let (good, lines) = (pod("p", letters), lasting());
            for form in [Form::Object, Form::Partial(V1), Form::Partial(BETA)] {
                let mut frames = Frames {
                    binary: true,
                    ..objects(form, false)
                };
                let mut frame = |entry: &Entry| {
                    let mut pieces = VecDeque::new();
                    frames.event(&kind, "ADDED", entry, 7, &lines, &mut pieces)?;
                    Ok::<Vec<u8>, ApiError>(pieces.iter().flatten().copied().collect())
                };
                let first = frame(&good).unwrap();
                // A second look at the object would find nothing.
                assert_eq!(frame(&spoilt).unwrap(), first);
                let (length, event) = first.split_first_chunk().unwrap();
                let length = usize::try_from(u32::from_be_bytes(*length)).unwrap();
                assert_eq!(length, event.len());
                let document = event.windows(4).position(|bytes| bytes == b"k8s\0");
                let read = protobuf::decode(&event[document.unwrap()..]).unwrap();
                let object = line(&mut objects(form, false), &kind, "ADDED", &good, &lines);
                assert_eq!(read, object.unwrap()["object"]);
                let error = frames.error(&ApiError::new(Reason::Expired, "too old"));
                assert!(error[4..].starts_with(b"\x0a\x05ERROR"));
            }
        }
    }

    #[test]
    fn what_watchers_share_of_a_large_event_is_not_copied() {
        let (kind, good, lines) = (pods(), pod("p", 2 * SHARED), lasting());
        let large = |mut frames: Frames| {
            let mut pieces = VecDeque::new();
            frames
                .event(&kind, "MODIFIED", &good, 7, &lines, &mut pieces)
                .unwrap();
            let large = pieces.iter().find(|piece| piece.len() >= SHARED);
            large.map(|piece| piece.as_ptr())
        };
        let once: Vec<_> = watchers().into_iter().map(&large).collect();
        let again: Vec<_> = watchers().into_iter().map(&large).collect();
        assert_eq!(once, again);
        // Rows without their object are short.
        assert_eq!(once.iter().flatten().count(), once.len() - 2);
    }

    #[test]
    fn the_object_before_an_event_is_not_taken_for_the_one_after_it() {
        let (kind, lines) = (pods(), Lines::default());
        let (old, new) = (pod("old", 1), pod("new", 1));
        for mut frames in watchers() {
            for (what, entry, name) in [("MODIFIED", &new, "new"), (DELETED, &old, "old")] {
                let line = line(&mut frames, &kind, what, entry, &lines).unwrap();
                assert_eq!(line["type"], what);
                let text = line.to_string();
                assert!(text.contains(&format!("\"{name}\"")), "{text}");
            }
        }
    }

    #[test]
    fn a_shared_row_is_the_row_of_a_table() {
        let kind = pods();
        let entry = pod("p", 1);
        let now = Entry {
            modified: 7,
            ..entry.clone()
        };
        for version in [V1, BETA] {
            for include in INCLUDES {
                let (mut frames, lines) = (rows(version, include), lasting());
                for headings in [true, false] {
                    let style = Style {
                        version,
                        include,
                        headings,
                    };
                    let read = if include == Include::Object {
                        master_objects::decode
                    } else {
                        master_objects::decode_without_managed
                    };
                    let metadata = json!({"resourceVersion": "7"});
                    let expected = table::table(&kind, style, [read(&kind, &now)], &metadata);
                    let line = line(&mut frames, &kind, "ADDED", &entry, &lines).unwrap();
                    assert_eq!(line["object"], expected.unwrap(), "{style:?}");
                }
            }
        }
    }

    #[test]
    fn a_row_is_made_anew_once_its_ages_are_old() {
        let kind = pods();
        for (row_age, again) in [(Duration::MAX, true), (Duration::ZERO, false)] {
            let lines = Lines {
                row_age,
                ..Lines::default()
            };
            let mut frames = rows(V1, Include::Metadata);
            line(&mut frames, &kind, "ADDED", &pod("p", 1), &lines).unwrap();
            let second = line(&mut frames, &kind, "ADDED", &spoilt(), &lines);
            assert_eq!(second.is_ok(), again);
        }
    }
}
