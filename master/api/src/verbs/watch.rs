//! Watch: the store's events as lines of JSON, selected, with bookmarks, until somebody ends it.
//!
//! A watch is the body of its answer: it works only while its client takes what comes. It ends at its time
//! limit, when the server drains, when its caller lands on the deny list, and when it fell behind history
//! (with an `ERROR` event that says so).

use super::read::{matches, revision};
use super::{Call, store_error};
use crate::accept::Form;
use crate::error::{ApiError, Reason};
use crate::object;
use crate::selector::Selector;
use crate::server::{Body, BodyError};
use crate::table;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream;
use http::{HeaderValue, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use master_store::{Batch, Entry, Event, ListQuery, Revision, StoreError, WatchStream};
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;

/// Time between bookmarks.
const BOOKMARKS: Duration = Duration::from_secs(60);
/// Life of a watch that asks for none; up to twice as long, so that they don't end all at once.
const LIFE: Duration = Duration::from_secs(1800);
/// Marks the bookmark after the initial events (KEP 3157).
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// What selectors look at, of both sides of an event: computed once for all watchers. Kinds that share a table
/// have the same selectable fields in stored form, under whatever labels.
#[derive(Debug)]
struct Sides {
    now: Option<Value>,
    before: Option<Value>,
}

struct Watch {
    call: Call,
    selector: Selector,
    form: Form,
    stream: Box<dyn WatchStream>,
    ready: VecDeque<Bytes>,
    bookmarks: bool,
    next_bookmark: Instant,
    deadline: Instant,
    denied: Option<watch::Receiver<u64>>,
    ended: bool,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Opens a watch.
pub(super) async fn watch(call: Call) -> Result<Response<Body>, ApiError> {
    let form = call.accept()?.form;
    let selector = call.selector()?;
    let permit = call.api.watch_permit(&call.peer)?;
    let initial = initial_events(&call)?;
    let asked = revision(call.query.get("resourceVersion"))?;
    let prefix = call.kind.prefix(&call.target.namespace);
    let bookmarks = call.query.on("allowWatchBookmarks");
    let mut ready = VecDeque::new();
    let after = if initial || asked.is_none() {
        let query = ListQuery { prefix: prefix.clone(), ..ListQuery::default() };
        let listing = call.api.inner.store.list(query).await.map_err(store_error)?;
        for entry in &listing.entries {
            if matches(entry, &selector)? {
                ready.push_back(frame(&call, form, "ADDED", entry, entry.modified)?);
            }
        }
        if initial && bookmarks {
            ready.push_back(bookmark(&call, form, listing.revision, true));
        }
        listing.revision
    } else {
        asked.unwrap_or_default()
    };
    let stream = match call.api.inner.store.watch(&prefix, after).await {
        Ok(stream) => stream,
        Err(error @ StoreError::Compacted { .. }) => return Ok(answer_error(&too_old(&error))),
        Err(error) => return Err(store_error(error)),
    };
    let denied = call.api.deny_list().map(|list| list.changed());
    // Whoever was denied between the request's check and this subscription would not be told of it.
    if let Some(why) = call.api.denial(&call.user, &call.peer) {
        return Err(ApiError::new(Reason::Unauthorized, format!("Unauthorized: {why}")));
    }
    let timeout = call.query.number("timeoutSeconds")?.and_then(|seconds| u64::try_from(seconds).ok());
    let life = timeout.filter(|seconds| *seconds > 0).map_or_else(|| LIFE + jitter(LIFE), Duration::from_secs);
    let now = Instant::now();
    let watch = Watch {
        denied,
        selector,
        form,
        stream,
        ready,
        bookmarks,
        next_bookmark: now + BOOKMARKS,
        deadline: now + life,
        ended: false,
        _permit: permit,
        call,
    };
    Ok(answer(StreamBody::new(stream::unfold(watch, step)).boxed_unsync()))
}

/// Whether the watch is to begin with what there is.
fn initial_events(call: &Call) -> Result<bool, ApiError> {
    let bad = |text: &str| Err(ApiError::new(Reason::BadRequest, text));
    match (call.query.get("sendInitialEvents"), call.query.get("resourceVersionMatch")) {
        ("", "") | ("false" | "0", "NotOlderThan") => Ok(false),
        ("", _) => bad(
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
        (_, "") => bad(
            "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
        ("true" | "1", "NotOlderThan") => Ok(true),
        _ => bad("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"),
    }
}

/// Some part of `of`, different from watch to watch.
fn jitter(of: Duration) -> Duration {
    let random = u32::from(uuid::Uuid::new_v4().as_bytes()[0]);
    of * random / 256
}

fn answer(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

fn too_old(error: &StoreError) -> ApiError {
    if let StoreError::Compacted { asked, floor } = error {
        return ApiError::new(Reason::Expired, format!("too old resource version: {asked} ({floor})"));
    }
    ApiError::new(Reason::InternalError, error.to_string())
}

fn error_line(error: &ApiError) -> Bytes {
    Bytes::from(json!({"type": "ERROR", "object": error.to_status()}).to_string() + "\n")
}

/// A watch that says only why it can't be.
fn answer_error(error: &ApiError) -> Response<Body> {
    answer(crate::server::body(error_line(error)))
}

/// The next frame of the body.
async fn step(mut watch: Watch) -> Option<(Result<Frame<Bytes>, BodyError>, Watch)> {
    loop {
        if let Some(bytes) = watch.ready.pop_front() {
            return Some((Ok(Frame::data(bytes)), watch));
        }
        if watch.ended {
            return None;
        }
        watch.wait().await;
    }
}

impl Watch {
    /// Waits for the next thing and makes frames of it, or ends.
    async fn wait(&mut self) {
        let draining = self.call.api.draining();
        let wake = if self.bookmarks { self.next_bookmark.min(self.deadline) } else { self.deadline };
        // Cancel-safe: the store's `next` loses nothing when dropped, the others only tell that something is so.
        let batch = tokio::select! {
            batch = self.stream.next() => Some(batch),
            () = tokio::time::sleep_until(wake) => None,
            () = draining.cancelled() => {
                self.ended = true;
                return;
            }
            () = changed(&mut self.denied) => {
                self.ended = self.call.api.denial(&self.call.user, &self.call.peer).is_some();
                return;
            }
        };
        match batch {
            Some(Ok(batch)) => self.take(&batch),
            Some(Err(error)) => {
                self.ready.push_back(error_line(&too_old(&error)));
                self.ended = true;
            }
            None if Instant::now() >= self.deadline => self.ended = true,
            None => {
                self.next_bookmark = Instant::now() + BOOKMARKS;
                self.ready.push_back(bookmark(&self.call, self.form, self.stream.progress(), false));
            }
        }
    }

    fn take(&mut self, batch: &Batch) {
        for event in &batch.events {
            match self.event(event) {
                Ok(Some(bytes)) => self.ready.push_back(bytes),
                Ok(None) => {}
                Err(error) => {
                    self.ready.push_back(error_line(&error));
                    self.ended = true;
                    return;
                }
            }
        }
    }

    /// An event's frame: what it is depends on whether the object is and was selected.
    fn event(&self, event: &Event) -> Result<Option<Bytes>, ApiError> {
        let (is, was) = if self.selector.is_empty() {
            (event.now.is_some(), event.before.is_some())
        } else {
            let sides = event.derived(|event| Sides {
                now: event.now.as_ref().map(|entry| self.excerpt(entry)),
                before: event.before.as_ref().map(|entry| self.excerpt(entry)),
            });
            let selected = |side: &Option<Value>| side.as_ref().is_some_and(|value| self.selector.matches(value));
            (selected(&sides.now), selected(&sides.before))
        };
        let (kind, entry) = match (is, was, &event.now, &event.before) {
            (true, true, Some(now), _) => ("MODIFIED", now),
            (true, false, Some(now), _) => ("ADDED", now),
            (false, true, _, Some(before)) => ("DELETED", before),
            _ => return Ok(None),
        };
        frame(&self.call, self.form, kind, entry, event.revision).map(Some)
    }

    /// The parts of an object that selectors can ask for.
    fn excerpt(&self, entry: &Entry) -> Value {
        let full: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        let mut excerpt = json!({"metadata": {}});
        for key in ["name", "namespace", "labels"] {
            if let Some(value) = full.pointer("/metadata").and_then(|metadata| metadata.get(key)) {
                excerpt["metadata"][key] = value.clone();
            }
        }
        for (_, pointer) in self.call.kind.selectable {
            if let Some(value) = full.pointer(pointer) {
                put(&mut excerpt, pointer, value.clone());
            }
        }
        excerpt
    }
}

/// Sets a value at a JSON pointer, making objects on the way.
fn put(target: &mut Value, pointer: &str, value: Value) {
    let mut place = target;
    for key in pointer.split('/').skip(1) {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        place = &mut place[key];
    }
    *place = value;
}

/// Waits until the deny list changes; for ever where there is none.
async fn changed(denied: &mut Option<watch::Receiver<u64>>) {
    let gone = match denied {
        Some(receiver) => receiver.changed().await.is_err(),
        None => true,
    };
    if gone {
        std::future::pending::<()>().await;
    }
}

/// An event as a line.
fn frame(call: &Call, form: Form, kind: &str, entry: &Entry, revision: Revision) -> Result<Bytes, ApiError> {
    let mut line = BytesMut::with_capacity(entry.value.len() + 160);
    line.put_slice(br#"{"type":""#);
    line.put_slice(kind.as_bytes());
    line.put_slice(br#"","object":"#);
    match form {
        Form::Object => {
            let (head, kept) = object::parts_at(&call.kind, entry, revision)?;
            line.put_slice(&head);
            line.put_slice(&kept);
        }
        Form::Table | Form::Partial => {
            let entry = Entry { modified: revision, ..entry.clone() };
            let value = if form == Form::Table {
                let metadata = json!({"resourceVersion": revision.to_string()});
                table::table(&call.kind, std::slice::from_ref(&entry), &metadata, &call.query)?
            } else {
                table::partial(&object::decode(&call.kind, &entry)?)
            };
            line.put_slice(value.to_string().as_bytes());
        }
    }
    line.put_slice(b"}\n");
    Ok(line.freeze())
}

fn bookmark(call: &Call, form: Form, revision: Revision, initial_end: bool) -> Bytes {
    let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
    if initial_end {
        metadata["annotations"] = json!({INITIAL_END: "true"});
    }
    let object = match form {
        Form::Object => json!({"kind": call.kind.kind, "apiVersion": call.kind.api_version(), "metadata": metadata}),
        Form::Partial => json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}),
        Form::Table => json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": revision.to_string()},
            "columnDefinitions": [],
            "rows": [{"cells": [], "object": {
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            }}],
        }),
    };
    Bytes::from(json!({"type": "BOOKMARK", "object": object}).to_string() + "\n")
}
