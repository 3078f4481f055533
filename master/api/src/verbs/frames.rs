//! The lines of a watch: events, bookmarks and errors, in the form that the client takes.

use super::Call;
use crate::accept::Form;
use crate::error::{ApiError, Reason};
use crate::object;
use crate::table::{self, Include, Style};
use bytes::{BufMut, Bytes, BytesMut};
use master_store::{Entry, Revision};
use serde_json::{Value, json};
use std::collections::VecDeque;

/// Marks the bookmark after the initial events (KEP 3157).
const INITIAL_END: &str = "k8s.io/initial-events-end";
/// Objects from this size on are sent from the store's own bytes, without a copy for each watcher.
const SHARED: usize = 4096;

/// Writes lines for one watch.
#[derive(Debug)]
pub(super) struct Frames {
    form: Form,
    include: Include,
    /// Whether a table's columns are still to be told.
    headings: bool,
}

impl Frames {
    /// For a request.
    pub(super) fn new(call: &Call) -> Result<Self, ApiError> {
        let accept = call.accept()?;
        if accept.yaml {
            let text = "only the following media types are accepted: application/json, application/json;stream=watch";
            return Err(ApiError::new(Reason::NotAcceptable, text));
        }
        let include = match accept.form {
            Form::Table(_) => Include::of(&call.query)?,
            Form::Object | Form::Partial(_) | Form::PartialList(_) => Include::Metadata,
        };
        Ok(Self { form: accept.form, include, headings: true })
    }

    /// An event as a line, in as many pieces as it takes to share an object's bytes.
    pub(super) fn event(
        &mut self,
        call: &Call,
        kind: &str,
        entry: &Entry,
        revision: Revision,
        into: &mut VecDeque<Bytes>,
    ) -> Result<(), ApiError> {
        let start = format!(r#"{{"type":"{kind}","object":"#);
        let Some(value) = self.shaped(call, entry, revision)? else {
            let (head, kept) = object::parts_at(&call.kind, entry, revision)?;
            let shared = kept.len() >= SHARED;
            let mut line = BytesMut::with_capacity(start.len() + head.len() + 2 + if shared { 0 } else { kept.len() });
            line.put_slice(start.as_bytes());
            line.put_slice(&head);
            if shared {
                into.push_back(line.freeze());
                into.push_back(kept);
                into.push_back(Bytes::from_static(b"}\n"));
            } else {
                line.put_slice(&kept);
                line.put_slice(b"}\n");
                into.push_back(line.freeze());
            }
            return Ok(());
        };
        into.push_back(Bytes::from(format!("{start}{value}}}\n")));
        Ok(())
    }

    /// The object in another form than its own; none where it is sent as it is.
    fn shaped(&mut self, call: &Call, entry: &Entry, revision: Revision) -> Result<Option<Value>, ApiError> {
        let entry = || Entry { modified: revision, ..entry.clone() };
        match self.form {
            // A single object is no list: it comes as it is, as upstream has it.
            Form::Object | Form::PartialList(_) => Ok(None),
            Form::Partial(version) => Ok(Some(table::partial(&object::decode(&call.kind, &entry())?, version))),
            Form::Table(version) => {
                let metadata = json!({"resourceVersion": revision.to_string()});
                let style = Style { version, include: self.include, headings: self.headings };
                self.headings = false;
                let read = if self.include == Include::Object { object::decode } else { object::decode_bare };
                table::table(&call.kind, style, [read(&call.kind, &entry())], &metadata).map(Some)
            }
        }
    }

    /// A bookmark: everything up to a revision was told, and perhaps everything that there was at the beginning.
    pub(super) fn bookmark(&mut self, call: &Call, revision: Revision, initial_end: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if initial_end {
            metadata["annotations"] = json!({INITIAL_END: "true"});
        }
        let partial = |version: &str, metadata: &Value| json!({"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": metadata});
        let object = match self.form {
            Form::Object | Form::PartialList(_) => {
                json!({"kind": call.kind.kind, "apiVersion": call.kind.api_version(), "metadata": metadata})
            }
            Form::Partial(version) => partial(version, &metadata),
            Form::Table(version) => {
                let about = json!({"resourceVersion": revision.to_string()});
                let style = Style { version, include: Include::Metadata, headings: self.headings };
                self.headings = false;
                let table = table::table(&call.kind, style, [], &about);
                let mut table = table.unwrap_or_default();
                table["rows"] = json!([{"cells": [], "object": partial(version, &metadata)}]);
                table
            }
        };
        Bytes::from(json!({"type": "BOOKMARK", "object": object}).to_string() + "\n")
    }
}

/// A refusal as a line.
pub(super) fn error_line(error: &ApiError) -> Bytes {
    Bytes::from(json!({"type": "ERROR", "object": error.to_status()}).to_string() + "\n")
}
