//! Watch: the store's events as lines of JSON or frames of protobuf, selected, with bookmarks; over
//! WebSocket a message for each line.
//!
//! A watch is the body of its answer: it works only while its client reads. It ends at its time
//! limit, when the server drains, when its caller is denied, and (with an `ERROR` event) when it
//! fell behind the history, or when what it would send is no longer for the node that asked.

use super::answer::Answer;
use super::authorize;
use super::call::Call;
use super::frames::{DELETED, Frames, Lines, SHARED};
use super::page::META;
use super::read::{matches, revision};
use super::server_parts::ServerParts;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream;
use http::{HeaderValue, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use master_auth::Authorizer;
use master_client::{Body, BodyError};
use master_gateway::{HeldObjects, WatchMemory, WatchSlot, WebSocketContent};
use master_listener::Denials;
use master_metrics::LongRunning;
use master_objects::store_error;
use master_schema::error::{ApiError, Reason};
use master_schema::selector::Selector;
use master_schema::validate::{Faults, FieldPath};
use master_store::{Entry, Event, ListQuery, Reader, Revision, StoreError, WatchStream};
use master_wire::path::Query;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Interval of bookmarks.
const BOOKMARKS: Duration = Duration::from_secs(60);
/// The same for watches of one object, which get a bookmark only before their end: nodes hold many
/// of them, and a bookmark would save the client no more than one read of that object.
const LONE: Duration = MAX_DURATION;
/// Time between the last bookmark and the end of a watch.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// Time after its end for which a watch still sends what waits.
const LATE: Duration = Duration::from_secs(10);
/// Duration of a watch that asks for none; randomly up to twice as long, so that watches do not all
/// end at once.
const DURATION: Duration = Duration::from_secs(1800);
/// Longest duration that may be requested; longer ones are cut to it.
const MAX_DURATION: Duration = Duration::from_secs(24 * 3600);

/// Approximate bytes sent at once: one TLS record.
const PIECE: usize = 16 << 10;
/// Bytes that an initial object takes beside its value.
const ENTRY: usize = 128;
/// Bytes of an object of which a copy that is made for one watch counts.
const LARGE: usize = 64 << 10;
/// Events after which other tasks run. Shared lines are quickly sent, but each watcher decodes
/// events that are no longer recent by itself.
const TURN: usize = 8;

/// The selectable fields of an object before and after an event: computed once for all watchers.
/// Kinds that share a table have the same selectable fields in stored form, under different names.
#[derive(Debug)]
struct Selectable {
    now: Option<Value>,
    before: Option<Value>,
}

/// What watchers derive from an event, shared between them.
#[derive(Debug, Default)]
struct Shared {
    selectable: OnceLock<Selectable>,
    lines: Lines,
}

struct Watch {
    call: Call,
    selector: Selector,
    frames: Frames,
    /// The initial objects that are still to be sent.
    initial: std::vec::IntoIter<Entry>,
    /// The changes that are still to be sent.
    events: std::vec::IntoIter<Arc<Event>>,
    /// Changes since other tasks ran.
    turn: usize,
    memory: WatchMemory,
    /// The memory of the initial objects, later of a large one that is being sent.
    held: Option<HeldObjects>,
    /// The revision of the initial list.
    listed: Option<Revision>,
    stream: Box<dyn WatchStream>,
    ready: VecDeque<Bytes>,
    bookmarks: bool,
    /// Time between two of them.
    interval: Duration,
    next_bookmark: Instant,
    deadline: Instant,
    denied: Option<watch::Receiver<u64>>,
    denials: Denials,
    /// Asked before each event of a watch by which a node follows one object: its right to that
    /// ends with the last of its pods that refers to it, and the watch may outlive the pod.
    authorizer: Option<Arc<Authorizer>>,
    draining: CancellationToken,
    ended: bool,
    /// Counter of the kind's events that were sent.
    counter: Arc<AtomicU64>,
    _open: LongRunning,
    _slot: WatchSlot,
}

/// Opens a watch.
pub(super) async fn watch(call: Call, server: &ServerParts<'_>) -> Answer {
    let (reader, metrics) = (server.reader, server.metrics);
    let (denials, draining) = (server.denials, server.draining);
    let carry = call.carrier(WebSocketContent::Watch, denials, draining)?;
    let frames = Frames::new(&call)?;
    let selector = call.selector()?;
    // Nodes watch each ConfigMap and Secret of their pods separately, and can do without such a
    // watch if slots are short.
    let single = selector.exact("metadata.name").is_some();
    let modest = call.user.node().is_some() && single;
    let slot = server.watches.begin(call.owner(), modest);
    let slot = slot.inspect_err(|_full| metrics.refuse(false))?;
    let initial = initial_events(&call.query)?;
    let requested = revision(call.query.get("resourceVersion"))?;
    let prefix = call.scope(&selector);
    let Beginning {
        entries,
        listed,
        after,
    } = beginning(reader, initial, requested, &prefix).await?;
    let held = hold(&call, server, &entries)?;
    let stream = match reader.watch(&prefix, after).await {
        Ok(stream) => stream,
        Err(error @ StoreError::Compacted { .. }) => {
            return Ok(answer_error(&frames, &too_old(&error)));
        }
        Err(error) => return Err(store_error(error)),
    };
    let denied = denials.changed();
    // The caller may have been denied between authorization and this subscription.
    if let Some(why) = denials.reason(|list| call.denied(list)) {
        return Err(ApiError::new(
            Reason::Unauthorized,
            format!("Unauthorized: {why}"),
        ));
    }
    let life = life(&call.query)?;
    let now = Instant::now();
    let deadline = now + life.min(MAX_DURATION);
    let interval = if single { LONE } else { BOOKMARKS };
    let media = frames.media();
    let watch = Watch {
        denied,
        selector,
        frames,
        initial: entries.into_iter(),
        events: Vec::new().into_iter(),
        turn: 0,
        memory: server.watches.memory(),
        held: Some(held),
        listed,
        stream,
        ready: VecDeque::new(),
        bookmarks: call.query.on("allowWatchBookmarks"),
        interval,
        next_bookmark: next_bookmark(now, interval, deadline),
        deadline,
        denials: denials.clone(),
        authorizer: modest.then(|| Arc::clone(server.authorizer)),
        draining: draining.clone(),
        ended: false,
        counter: metrics.watch_events(&call.kind),
        _open: metrics.long_running(&call.about),
        _slot: slot,
        call,
    };
    let events = StreamBody::new(stream::unfold(watch, step)).boxed_unsync();
    let answer = answer(events, media);
    Ok(carry(answer))
}

/// Takes memory for the objects with which a watch begins.
fn hold(call: &Call, server: &ServerParts<'_>, all: &[Entry]) -> Result<HeldObjects, ApiError> {
    let bytes = all.iter().map(|entry| ENTRY + entry.value.len()).sum();
    let held = server.watches.memory().hold(call.owner(), bytes);
    held.inspect_err(|_full| server.metrics.refuse(false))
}

/// The first entries of a watch, and the revision after which it continues.
struct Beginning {
    entries: Vec<Entry>,
    /// The revision of the entries, if they were requested.
    listed: Option<Revision>,
    after: Revision,
}

async fn beginning(
    reader: &dyn Reader,
    initial: bool,
    requested: Option<Revision>,
    prefix: &str,
) -> Result<Beginning, ApiError> {
    if !initial {
        let after = match requested {
            Some(requested) => requested,
            None => reader.revision().await.map_err(store_error)?,
        };
        return Ok(Beginning {
            entries: Vec::new(),
            listed: None,
            after,
        });
    }
    if let Some(requested) = requested {
        super::read::check_reached(reader, requested).await?;
    }
    let query = ListQuery {
        prefix: prefix.to_owned(),
        ..ListQuery::default()
    };
    let listing = reader.list(query).await.map_err(store_error)?;
    Ok(Beginning {
        entries: listing.entries,
        listed: Some(listing.revision),
        after: listing.revision,
    })
}

/// How long the watch lasts: as requested, or [`DURATION`] with jitter, so that watches do not end
/// all at once.
fn life(query: &Query) -> Result<Duration, ApiError> {
    let timeout = query.number("timeoutSeconds")?;
    let timeout = timeout.and_then(|seconds| u64::try_from(seconds).ok());
    Ok(timeout
        .filter(|seconds| *seconds > 0)
        .map_or_else(|| DURATION + jitter(DURATION), Duration::from_secs))
}

/// When the next bookmark is due: after the interval, or shortly before the end.
fn next_bookmark(now: Instant, interval: Duration, deadline: Instant) -> Instant {
    let last = deadline
        .checked_sub(LAST_BOOKMARK)
        .filter(|last| *last > now);
    last.map_or(now + interval, |last| last.min(now + interval))
}

/// Whether the watch begins with the existing objects. Watches without a start revision do, for
/// compatibility.
fn initial_events(query: &Query) -> Result<bool, ApiError> {
    let (wanted, version) = (
        query.get("resourceVersionMatch"),
        query.get("resourceVersion"),
    );
    let wants_initial = query.switch("sendInitialEvents");
    if wants_initial.is_none() && wanted.is_empty() {
        return Ok(matches!(version, "" | "0"));
    }
    let mut faults = Faults::default();
    let at = FieldPath::root("resourceVersionMatch");
    if wants_initial.is_some() && wanted != "NotOlderThan" {
        faults.forbidden(
            &at,
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        );
    }
    if !wanted.is_empty() {
        if wants_initial.is_none() {
            faults.forbidden(
                &at,
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            );
        }
        faults.one_of(&at, &Value::from(wanted), &["NotOlderThan"]);
        if !query.get("continue").is_empty() {
            faults.forbidden(
                &at,
                "resourceVersionMatch is forbidden when continue is provided",
            );
        }
    }
    faults.into_error(META, "ListOptions", "")?;
    Ok(wants_initial == Some(true))
}

/// A random part of `of`.
fn jitter(of: Duration) -> Duration {
    let random = u32::from(uuid::Uuid::new_v4().as_bytes()[0]);
    of * random / 256
}

fn answer(body: Body, media: &'static str) -> Response<Body> {
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response.headers_mut().insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    response
}

fn too_old(error: &StoreError) -> ApiError {
    if let StoreError::Compacted { asked, floor } = error {
        return ApiError::new(
            Reason::Expired,
            format!("too old resource version: {asked} ({floor})"),
        );
    }
    ApiError::new(Reason::InternalError, error.to_string())
}

/// A watch that consists of one error.
fn answer_error(frames: &Frames, error: &ApiError) -> Response<Body> {
    answer(master_client::body(frames.error(error)), frames.media())
}

/// The next frame of the body: what is ready, with small pieces joined.
async fn step(mut watch: Watch) -> Option<(Result<Frame<Bytes>, BodyError>, Watch)> {
    loop {
        // What is ready first: a client that reads slowly has no more made for it meanwhile.
        if watch.ready.is_empty() {
            watch.begin();
            watch.go_on().await;
        }
        if let Some(first) = watch.ready.pop_front() {
            return Some((Ok(Frame::data(watch.joined(first))), watch));
        }
        if watch.ended {
            return None;
        }
        if watch.listed.is_some() || !watch.events.as_slice().is_empty() {
            // Nothing of this batch was selected; other tasks run before the next.
            tokio::task::yield_now().await;
        } else {
            watch.wait().await;
        }
    }
}

impl Watch {
    /// Sends more of the initial objects, one piece's worth.
    fn begin(&mut self) {
        let mut sent = 0;
        while let Some(revision) = self.listed.filter(|_| sent < PIECE && !self.ended) {
            let Some(entry) = self.initial.next() else {
                self.listed = None;
                // The list itself goes too, which an iterator at its end would keep.
                self.initial = Vec::new().into_iter();
                drop(self.held.take());
                if self.bookmarks {
                    self.ready
                        .push_back(self.frames.bookmark(&self.call.kind, revision, true));
                }
                return;
            };
            sent += entry.value.len();
            let lines = Lines::default();
            let outcome = matches(&entry, &self.selector).and_then(|selected| {
                if selected {
                    self.frames.event(
                        &self.call.kind,
                        "ADDED",
                        &entry,
                        entry.modified,
                        &lines,
                        &mut self.ready,
                    )
                } else {
                    Ok(())
                }
            });
            self.or_end(outcome);
        }
    }

    /// Joins a small piece with the small ones that follow it.
    fn joined(&mut self, first: Bytes) -> Bytes {
        let mut size = first.len();
        let joins = |next: &&Bytes| {
            size += next.len();
            next.len() < SHARED && size <= PIECE
        };
        let more = if first.len() < SHARED {
            self.ready.iter().take_while(joins).count()
        } else {
            0
        };
        if more == 0 {
            return first;
        }
        let length: usize = self.ready.iter().take(more).map(Bytes::len).sum();
        let mut piece = BytesMut::with_capacity(first.len() + length);
        piece.put(first);
        self.ready.drain(..more).for_each(|next| piece.put(next));
        piece.freeze()
    }

    fn or_end(&mut self, outcome: Result<(), ApiError>) {
        if let Err(error) = outcome {
            self.ready.push_back(self.frames.error(&error));
            self.ended = true;
        }
    }

    /// Waits for the next changes, or ends.
    async fn wait(&mut self) {
        // Changes come first below. For a client that reads slowly there are always some, and
        // nothing else would end its watch.
        if self.draining.is_cancelled() || Instant::now() >= self.deadline + LATE {
            self.ended = true;
            return;
        }
        let wake = if self.bookmarks {
            self.next_bookmark.min(self.deadline)
        } else {
            self.deadline
        };
        // Cancel-safe: the store's `next` loses nothing when dropped, the other branches only
        // signal a state. The order matters: a denied caller must get nothing that happened after
        // the denial.
        let batch = tokio::select! {
            biased;
            () = changed(&mut self.denied) => {
                let denial = self.denials.reason(|list| self.call.denied(list));
                self.ended = denial.is_some();
                return;
            }
            batch = self.stream.next() => Some(batch),
            () = tokio::time::sleep_until(wake) => None,
            () = self.draining.cancelled() => {
                self.ended = true;
                return;
            }
        };
        match batch {
            Some(Ok(batch)) => {
                let allowed = match &self.authorizer {
                    Some(authorizer) => {
                        let (user, target) = (&self.call.user, &self.call.target);
                        authorize::resource(authorizer, user, target, &self.selector).await
                    }
                    None => Ok(()),
                };
                match allowed {
                    Ok(()) => self.events = batch.events.into_iter(),
                    Err(refusal) => self.or_end(Err(refusal)),
                }
            }
            Some(Err(error)) => {
                self.ready.push_back(self.frames.error(&too_old(&error)));
                self.ended = true;
            }
            None if Instant::now() >= self.deadline => self.ended = true,
            None => {
                self.next_bookmark = next_bookmark(Instant::now(), self.interval, self.deadline);
                let revision = self.stream.progress();
                self.ready
                    .push_back(self.frames.bookmark(&self.call.kind, revision, false));
            }
        }
    }

    /// Sends more of the changes, one piece's worth, and lets other tasks run in between. What came
    /// before is read.
    async fn go_on(&mut self) {
        if self.listed.is_none() {
            drop(self.held.take());
        }
        let mut sent = 0;
        while sent < PIECE && !self.ended {
            let Some(event) = self.events.next() else {
                return;
            };
            self.turn = (self.turn + 1) % TURN;
            if self.turn == 0 {
                tokio::task::yield_now().await;
            }
            let entry = event.now.as_ref().or(event.before.as_ref());
            sent += entry.map_or(0, |entry| entry.value.len());
            let shared = event.derived::<Shared>();
            let Some((what, entry)) = self.selected(&event, &shared) else {
                continue;
            };
            // What is made of a recent event is made once for all watches.
            if entry.value.len() >= LARGE && event.is_past() {
                match self.memory.hold(self.call.owner(), entry.value.len()) {
                    Ok(held) => self.held = Some(held),
                    Err(full) => return self.or_end(Err(full)),
                }
            }
            self.counter.fetch_add(1, Ordering::Relaxed);
            let outcome = self.frames.event(
                &self.call.kind,
                what,
                entry,
                event.revision,
                &shared.lines,
                &mut self.ready,
            );
            self.or_end(outcome);
        }
    }

    /// The type and the object of an event's line; they depend on whether the object is and was
    /// selected. `None` if it neither is nor was.
    fn selected<'a>(&self, event: &'a Event, shared: &Shared) -> Option<(&'static str, &'a Entry)> {
        // The key contains the name: an object of another name is not decoded.
        let name = self.selector.exact("metadata.name");
        if name.is_some_and(|name| event.key.rsplit('/').next() != Some(name)) {
            return None;
        }
        let (is, was) = if self.selector.is_empty() {
            (event.now.is_some(), event.before.is_some())
        } else if event.is_past() {
            // Nothing is shared, so that an object is decoded only if its bytes may match.
            let selected = |side: &Option<Entry>| {
                side.as_ref()
                    .is_some_and(|entry| matches(entry, &self.selector).unwrap_or(false))
            };
            (selected(&event.now), selected(&event.before))
        } else {
            let selectable = shared.selectable.get_or_init(|| Selectable {
                now: event.now.as_ref().map(|entry| self.excerpt(entry)),
                before: event.before.as_ref().map(|entry| self.excerpt(entry)),
            });
            let selected = |side: &Option<Value>| {
                side.as_ref()
                    .is_some_and(|value| self.selector.matches(value))
            };
            (selected(&selectable.now), selected(&selectable.before))
        };
        match (is, was, &event.now, &event.before) {
            (true, true, Some(now), _) => Some(("MODIFIED", now)),
            (true, false, Some(now), _) => Some(("ADDED", now)),
            (false, true, _, Some(before)) => Some((DELETED, before)),
            _ => None,
        }
    }

    /// The fields of an object that selectors can name.
    fn excerpt(&self, entry: &Entry) -> Value {
        let full: Value = serde_json::from_slice(&entry.value.bytes()).unwrap_or_default();
        let mut excerpt = json!({"metadata": {}});
        for key in ["name", "namespace", "labels"] {
            if let Some(value) = full
                .pointer("/metadata")
                .and_then(|metadata| metadata.get(key))
            {
                excerpt["metadata"][key] = value.clone();
            }
        }
        for pointer in self
            .call
            .kind
            .selectable
            .iter()
            .flat_map(|field| &field.pointers)
        {
            if let Some(value) = full.pointer(pointer) {
                put(&mut excerpt, pointer, value.clone());
            }
        }
        excerpt
    }
}

/// Sets a value at a JSON pointer and creates objects on the way.
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

/// Waits until the deny list changes; for ever if there is none.
async fn changed(denied: &mut Option<watch::Receiver<u64>>) {
    let gone = match denied {
        Some(receiver) => receiver.changed().await.is_err(),
        None => true,
    };
    if gone {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_of_one_object_has_a_bookmark_only_before_its_end() {
        let now = Instant::now();
        let after = |interval, seconds| {
            let end = now + Duration::from_secs(seconds);
            (next_bookmark(now, interval, end) - now).as_secs()
        };
        assert_eq!((after(BOOKMARKS, 600), after(BOOKMARKS, 40)), (60, 38));
        assert_eq!((after(LONE, 600), after(LONE, 40)), (598, 38));
        assert!(after(LONE, 1) > 1, "not again after the last one");
    }
}
