//! The lines of a watch: events, bookmarks and errors, in the form that the client accepts.

use super::call::Call;
use super::network_only;
use bytes::Bytes;
use master_objects::StoredPart;
use master_schema::error::{ApiError, Reason};
use master_schema::registry::Kind;
use master_store::{Entry, Revision};
use master_wire::Form;
use master_wire::table::{self, Include, Style};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// The annotation of the bookmark after the initial events (KEP-3157).
const INITIAL_END: &str = "k8s.io/initial-events-end";
/// Objects of this size and above are sent from the store's own bytes; for smaller ones, one line
/// is made for all watchers.
pub(super) const SHARED: usize = 4096;

/// The end of a line after its object.
const END: &[u8] = b"}\n";
/// Lines of one event that are cached for other watchers: versions of the kind times forms.
const LINES: usize = 4;

/// The lines of one event, for all its watchers.
#[derive(Debug, Default)]
pub(super) struct Lines(Mutex<Vec<Line>>);

#[derive(Debug)]
struct Line {
    kind: Arc<Kind>,
    what: &'static str,
    part: StoredPart,
    bytes: Bytes,
}

impl Lines {
    /// The cached line; made if it does not exist yet.
    fn get(
        &self,
        kind: &Arc<Kind>,
        what: &'static str,
        part: StoredPart,
        make: impl FnOnce() -> Bytes,
    ) -> Bytes {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
    /// Whether of each pod only that is sent which other nodes' packet filters need.
    network_only: bool,
}

impl Frames {
    /// The frames that a request asks for.
    pub(super) fn new(call: &Call) -> Result<Self, ApiError> {
        let accept = call.accept()?;
        if accept.yaml {
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
        })
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
        if self.network_only {
            let entry = Entry {
                modified: revision,
                ..entry.clone()
            };
            let pod = master_objects::decode_without_managed(kind, &entry)?;
            let line = json!({"type": what, "object": network_only::of_pod(&pod)});
            into.push_back(Bytes::from(line.to_string() + "\n"));
            return Ok(());
        }
        let part = match self.form {
            // A watch sends single objects, never lists; these forms send the whole object, as
            // upstream.
            Form::Object | Form::PartialList(_) => StoredPart::Whole,
            Form::Partial(version) => StoredPart::Metadata(version),
            Form::Table(version) => {
                let value = self.row(kind, version, entry, revision)?;
                into.push_back(Bytes::from(format!(
                    "{{\"type\":\"{what}\",\"object\":{value}}}\n"
                )));
                return Ok(());
            }
        };
        let kept = master_objects::stored_bytes(kind, entry, part)?.bytes();
        let make = || {
            format!(
                r#"{{"type":"{what}","object":{}{revision}","#,
                master_objects::head(kind, part)
            )
        };
        if kept.len() < SHARED {
            into.push_back(lines.get(kind, what, part, || {
                [make().as_bytes(), &kept, part.tail(), END].concat().into()
            }));
        } else {
            into.extend([
                make().into(),
                kept,
                Bytes::from_static(part.tail()),
                Bytes::from_static(END),
            ]);
        }
        Ok(())
    }

    /// An object as a table of one row.
    fn row(
        &mut self,
        kind: &Kind,
        version: &'static str,
        entry: &Entry,
        revision: Revision,
    ) -> Result<Value, ApiError> {
        let entry = Entry {
            modified: revision,
            ..entry.clone()
        };
        let metadata = json!({"resourceVersion": revision.to_string()});
        let style = Style {
            version,
            include: self.include,
            headings: self.headings,
        };
        self.headings = false;
        let read = if self.include == Include::Object {
            master_objects::decode
        } else {
            master_objects::decode_without_managed
        };
        table::table(kind, style, [read(kind, &entry)], &metadata)
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
        Bytes::from(json!({"type": "BOOKMARK", "object": object}).to_string() + "\n")
    }
}

/// An error as a line.
pub(super) fn error_line(error: &ApiError) -> Bytes {
    Bytes::from(json!({"type": "ERROR", "object": error.to_status()}).to_string() + "\n")
}
