//! Records events: what a component did to an object and why. Repetitions are counted, not written
//! again.

use crate::client::{Client, Object, Patch};
use crate::dropped::Dropped;
use config_errors::chain;
use config_kube::event::{LONGEST_TRY, event_name, is_temporary};
use config_kube::k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use jiff::{SignedDuration, Timestamp};
use master_schema::error::{ApiError, Reason};
use serde_json::json;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

/// Number of different events that are remembered for counting. The older half is forgotten when it
/// is reached.
const MAX_REMEMBERED: usize = 4096;
/// A repetition within this time is counted and not written: nobody reads faster, and each write
/// costs a commit.
const REPEAT_INTERVAL: SignedDuration = SignedDuration::from_secs(30);
/// Longest message in bytes (upstream's limit).
const MAX_MESSAGE: usize = 1024;
/// Events of one recorder that are tried again at the same time; further ones are dropped.
const MAX_WAITING: usize = 64;
/// The first and the longest pause before an event is tried again.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(30);

/// The type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Information.
    Normal,
    /// Needs attention.
    Warning,
}

/// An event to record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NewEvent<'a> {
    /// Its type.
    pub severity: Severity,
    /// The reason, one CamelCase word.
    pub reason: &'a str,
    /// The action of the component, one CamelCase word; the API refuses an event without one.
    pub action: &'a str,
    /// The message, for humans.
    pub message: String,
}

/// An event with the object that it is about, for another component to record.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectEvent {
    /// The component in whose name it is recorded.
    pub component: &'static str,
    /// The object.
    pub about: ObjectReference,
    /// What happened to it.
    pub event: NewEvent<'static>,
}

/// Writes events on behalf of one component.
#[derive(Debug)]
pub struct Recorder(Arc<EventWriter>);

/// What a recorder shares with the tasks that try its events again.
#[derive(Debug)]
struct EventWriter {
    client: Client,
    component: Cow<'static, str>,
    known: Mutex<HashMap<Key, Known>>,
    /// Slots for events that are tried again.
    places: Arc<Semaphore>,
    dropped: Dropped,
}

type Key = (String, String, String);

/// The occurrences of one event.
#[derive(Debug, Clone)]
struct Known {
    /// The event's name.
    name: String,
    count: i32,
    first: Timestamp,
    /// When the last one was written.
    written: Timestamp,
    /// Whether a task tries to write it again; that task writes the count of its time.
    waits: bool,
}

impl Recorder {
    /// A recorder for a component, such as `default-scheduler`.
    pub fn new(client: Client, component: impl Into<Cow<'static, str>>) -> Self {
        Self(Arc::new(EventWriter {
            client,
            component: component.into(),
            known: Mutex::default(),
            places: Arc::new(Semaphore::new(MAX_WAITING)),
            dropped: Dropped::default(),
        }))
    }

    /// The component in whose name it writes.
    pub fn component(&self) -> &str {
        &self.0.component
    }

    /// Writes an event about an object. If the API is overloaded or does not answer, a task tries
    /// the event again, for two minutes at most, so that no caller waits for it. An event that
    /// can't be written is logged and dropped: events are best effort.
    pub async fn record<T: Object>(&self, about: &T, event: &NewEvent<'_>) {
        self.record_of(reference(about), event).await;
    }

    /// As [`Recorder::record`], with a related object.
    pub async fn record_related<T: Object, R: Object>(
        &self,
        about: &T,
        related: &R,
        event: &NewEvent<'_>,
    ) {
        let related = Some(reference(related));
        self.write(reference(about), related, event).await;
    }

    /// As [`Recorder::record`], about an object of any kind.
    pub async fn record_of(&self, about: ObjectReference, event: &NewEvent<'_>) {
        self.write(about, None, event).await;
    }

    async fn write(
        &self,
        about: ObjectReference,
        related: Option<ObjectReference>,
        event: &NewEvent<'_>,
    ) {
        let Self(writer) = self;
        let key = (
            about.uid.clone().unwrap_or_default(),
            event.reason.to_owned(),
            cut(&event.message).to_owned(),
        );
        let object = about.name.as_deref().unwrap_or_default();
        let Some(known) = writer.count(&key, object, writer.client.now()) else {
            return;
        };
        let event = Event {
            related,
            ..writer.event(&known, about, event)
        };
        let Err(error) = writer.put(&event, false).await else {
            return;
        };
        let Some(place) = writer.place(&error) else {
            writer.drop_event(&key, &error);
            return;
        };
        writer.set_waits(&key, true);
        let writer = Arc::clone(writer);
        tokio::spawn(async move {
            match writer.put_again(&key, event).await {
                Ok(()) => writer.set_waits(&key, false),
                Err(error) => writer.drop_event(&key, &error),
            }
            drop(place);
        });
    }
}

impl EventWriter {
    /// Counts an occurrence; returns the event if it must be written now.
    fn count(&self, key: &Key, object: &str, now: Timestamp) -> Option<Known> {
        let mut known = self.known();
        if let Some(before) = known.get_mut(key) {
            before.count = before.count.saturating_add(1);
            // After the clock was set back, nothing would be written until it has caught up.
            let passed = now.duration_since(before.written);
            let is_soon = (SignedDuration::ZERO..REPEAT_INTERVAL).contains(&passed);
            if before.waits || !is_soon {
                before.written = now;
            }
            return (!before.waits && !is_soon).then(|| before.clone());
        }
        if known.len() >= MAX_REMEMBERED {
            forget_older_half(&mut known);
        }
        let new = Known {
            name: event_name(object, now.as_nanosecond()),
            count: 1,
            first: now,
            written: now,
            waits: false,
        };
        known.insert(key.clone(), new.clone());
        Some(new)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Key, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes whether a task tries the event again.
    fn set_waits(&self, key: &Key, waits: bool) {
        if let Some(known) = self.known().get_mut(key) {
            known.waits = waits;
        }
    }

    /// A slot for an event to be tried again, if that may help and a slot is free.
    fn place(&self, error: &ApiError) -> Option<OwnedSemaphorePermit> {
        if may_be_written_later(error) {
            Arc::clone(&self.places).try_acquire_owned().ok()
        } else {
            None
        }
    }

    /// Forgets an event that can't be written: its next occurrence is a new one.
    fn drop_event(&self, key: &Key, error: &ApiError) {
        self.known().remove(key);
        let (_, reason, _) = key;
        if error.reason == Reason::Invalid {
            tracing::warn!(
                reason,
                error = chain(error),
                "dropped an invalid event: its component made it wrongly"
            );
        } else if is_without_namespace(error) {
            tracing::debug!(
                reason,
                error = chain(error),
                "an event is dropped, because its namespace ends"
            );
        } else if may_be_written_later(error) {
            tracing::debug!(
                reason,
                error = chain(error),
                "an event is dropped, because the API has no room or no time for it"
            );
            if let Some(dropped) = self.dropped.add(Instant::now()) {
                tracing::warn!(
                    dropped,
                    error = chain(error),
                    "events are dropped, because the API has no room or no time for them"
                );
            }
        } else {
            tracing::warn!(
                reason,
                error = chain(error),
                "an event is dropped, because it cannot be written"
            );
        }
    }

    /// Writes an event, or counts a repetition in the stored one. If that one has expired, it is
    /// created again with the count so far (upstream's rule). `again`: an earlier try may have
    /// created the event although its answer was lost.
    async fn put(&self, event: &Event, again: bool) -> Result<(), ApiError> {
        let meta = &event.metadata;
        if event.count > Some(1) {
            let change = json!({"count": event.count, "lastTimestamp": event.last_timestamp});
            let change = Patch::Merge(change);
            let name = meta.name.as_deref().unwrap_or_default();
            let client = &self.client;
            let counted = client.patch::<Event>(meta.namespace.as_deref(), name, &change);
            match counted.await {
                Err(error) if error.is_not_found() => {}
                counted => return counted.map(drop),
            }
        }
        match self.client.add(event).await {
            Err(error) if again && error.is_already_exists() => Ok(()),
            made => made,
        }
    }

    /// Tries an event again, with pauses that double, until it is written, finally refused, or the
    /// two minutes are over.
    async fn put_again(&self, key: &Key, mut event: Event) -> Result<(), ApiError> {
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
            if let Some(known) = self.known().get(key) {
                event.count = Some(known.count);
                event.last_timestamp = Some(Time(known.written));
            }
            let Err(error) = self.put(&event, true).await else {
                return Ok(());
            };
            let is_over = begun.elapsed() + pause > LONGEST_TRY;
            if is_over || !may_be_written_later(&error) {
                return Err(error);
            }
        }
    }

    fn event(&self, known: &Known, about: ObjectReference, it: &NewEvent<'_>) -> Event {
        let severity = match it.severity {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        };
        let namespace = about.namespace.clone();
        let component = self.component.clone().into_owned();
        Event {
            metadata: ObjectMeta {
                name: Some(known.name.clone()),
                namespace: Some(namespace.unwrap_or_else(|| "default".to_owned())),
                ..ObjectMeta::default()
            },
            involved_object: about,
            type_: Some(severity.to_owned()),
            reason: Some(it.reason.to_owned()),
            action: Some(it.action.to_owned()),
            message: Some(cut(&it.message).to_owned()),
            count: Some(known.count),
            first_timestamp: Some(Time(known.first)),
            last_timestamp: Some(Time(known.written)),
            event_time: Some(MicroTime(known.written)),
            reporting_component: Some(component.clone()),
            reporting_instance: Some(component.clone()),
            source: Some(EventSource {
                component: Some(component),
                host: None,
            }),
            ..Event::default()
        }
    }
}

/// The part of a message that is written. No more of it is remembered: clients may make it long.
fn cut(message: &str) -> &str {
    let mut ends = (0..=message.len().min(MAX_MESSAGE)).rev();
    let end = ends.find(|at| message.is_char_boundary(*at));
    &message[..end.unwrap_or(0)]
}

fn may_be_written_later(error: &ApiError) -> bool {
    is_temporary(error.code, error.reason.as_str())
}

/// Whether the event's namespace is terminating or gone: its events are deleted with it, so there
/// is nothing to repair.
fn is_without_namespace(error: &ApiError) -> bool {
    let mut causes = error.details.causes.iter();
    error.is_not_found() || causes.any(|cause| cause.reason == "NamespaceTerminating")
}

/// Forgets the older half at once, so that not each new event needs a search for the oldest one.
/// Events that a task tries again stay.
fn forget_older_half(known: &mut HashMap<Key, Known>) {
    let mut times: Vec<Timestamp> = known.values().map(|known| known.written).collect();
    let middle = times.len() / 2;
    let (_, middle, _) = times.select_nth_unstable(middle);
    let middle = *middle;
    known.retain(|_, known| known.written > middle || known.waits);
}

/// A reference to an object, as events contain it.
pub fn reference<T: Object>(object: &T) -> ObjectReference {
    let meta = object.metadata();
    ObjectReference {
        api_version: Some(T::API_VERSION.to_owned()),
        kind: Some(T::KIND.to_owned()),
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Body, Transport, UserInfo, body};
    use config_kube::k8s_openapi::api::core::v1::Node;
    use http::{Method, Request, Response, StatusCode};
    use http_body_util::BodyExt as _;
    use serde_json::Value;
    use std::collections::VecDeque;

    /// The method, path and JSON body of a request.
    async fn read_request(request: Request<Body>) -> (Method, String, Value) {
        let (head, content) = request.into_parts();
        let content = content.collect().await.unwrap().to_bytes();
        let sent = serde_json::from_slice(&content).unwrap();
        (head.method, head.uri.path().to_owned(), sent)
    }

    /// An API that answers each count of an event with 404, as if the event had expired. Its clock
    /// moves by a minute at each request.
    #[derive(Debug, Default)]
    struct Forgetful(Mutex<Vec<(Method, String, Value)>>);

    impl Transport for Forgetful {
        fn call(
            &self,
            request: Request<Body>,
            _user: UserInfo,
        ) -> crate::BoxFuture<'_, Response<Body>> {
            Box::pin(async move {
                let (method, path, sent) = read_request(request).await;
                let gone = method == Method::PATCH;
                self.0.lock().unwrap().push((method, path, sent));
                let status = json!({"kind": "Status", "code": 404, "reason": "NotFound"});
                let mut answer = Response::new(body(status.to_string()));
                if gone {
                    *answer.status_mut() = StatusCode::NOT_FOUND;
                }
                answer
            })
        }

        fn now(&self) -> Timestamp {
            let calls = i64::try_from(self.0.lock().unwrap().len()).unwrap();
            Timestamp::from_second(60 * calls).unwrap()
        }

        fn resources(&self) -> Vec<crate::Resource> {
            Vec::new()
        }
    }

    /// An API that answers with these failures in turn, and with success after them. Its clock is
    /// tokio's.
    #[derive(Debug)]
    struct Scripted {
        failures: Mutex<VecDeque<Reason>>,
        calls: Mutex<Vec<(Method, Value)>>,
        begun: Instant,
    }

    impl Scripted {
        fn failing(reasons: &[Reason]) -> Arc<Self> {
            Arc::new(Self {
                failures: Mutex::new(reasons.iter().copied().collect()),
                calls: Mutex::default(),
                begun: Instant::now(),
            })
        }

        /// The methods and bodies of the calls since the last look.
        fn calls(&self) -> Vec<(Method, Value)> {
            std::mem::take(&mut *self.calls.lock().unwrap())
        }

        /// The methods of these, and which count each wrote.
        fn counts(&self) -> Vec<(Method, i64)> {
            let each = self.calls().into_iter();
            each.map(|(method, sent)| (method, sent["count"].as_i64().unwrap()))
                .collect()
        }
    }

    impl Transport for Scripted {
        fn call(
            &self,
            request: Request<Body>,
            _user: UserInfo,
        ) -> crate::BoxFuture<'_, Response<Body>> {
            Box::pin(async move {
                let (method, _, sent) = read_request(request).await;
                self.calls.lock().unwrap().push((method, sent));
                let Some(reason) = self.failures.lock().unwrap().pop_front() else {
                    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {}, "involvedObject": {}});
                    return Response::new(body(event.to_string()));
                };
                let failure = ApiError::new(reason, "a fault");
                let mut answer = Response::new(body(failure.to_status().to_string()));
                *answer.status_mut() = StatusCode::from_u16(failure.code).unwrap();
                answer
            })
        }

        fn now(&self) -> Timestamp {
            let passed = SignedDuration::try_from(self.begun.elapsed()).unwrap();
            Timestamp::UNIX_EPOCH + passed
        }

        fn resources(&self) -> Vec<crate::Resource> {
            Vec::new()
        }
    }

    fn recorder(api: Arc<dyn Transport>) -> Recorder {
        Recorder::new(Client::new(api, UserInfo::admin("test")), "tests")
    }

    fn node(name: &str) -> Node {
        Node {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            ..Node::default()
        }
    }

    fn seen(message: &str) -> NewEvent<'static> {
        NewEvent {
            severity: Severity::Normal,
            reason: "Seen",
            action: "See",
            message: message.to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_has_no_room_or_no_answer_is_tried_again_and_its_caller_does_not_wait() {
        for reason in [
            Reason::TooManyRequests,
            Reason::ServerTimeout,
            Reason::ServiceUnavailable,
            Reason::Timeout,
        ] {
            let api = Scripted::failing(&[reason]);
            let recorder = recorder(api.clone());
            let begun = Instant::now();
            recorder.record(&node("n"), &seen("once")).await;
            assert_eq!(begun.elapsed(), Duration::ZERO, "{reason:?}");
            let first = api.calls();
            sleep(2 * FIRST_PAUSE).await;
            assert_eq!((first.len(), api.calls()), (1, first), "{reason:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_occurs_while_an_event_is_tried_again_is_counted_with_it() {
        let api = Scripted::failing(&[Reason::ServiceUnavailable, Reason::NotFound]);
        let recorder = recorder(api.clone());
        for _ in 0..3 {
            recorder.record(&node("n"), &seen("often")).await;
        }
        assert_eq!(api.counts(), [(Method::POST, 1)]);
        sleep(2 * FIRST_PAUSE).await;
        // The event does not exist yet, so the count is written by creating it.
        assert_eq!(api.counts(), [(Method::PATCH, 3), (Method::POST, 3)]);
        sleep(Duration::from_secs(60)).await;
        recorder.record(&node("n"), &seen("often")).await;
        assert_eq!(api.counts(), [(Method::PATCH, 4)]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_was_made_without_an_answer_is_not_made_again() {
        let api = Scripted::failing(&[Reason::Timeout, Reason::AlreadyExists]);
        let recorder = recorder(api.clone());
        recorder.record(&node("n"), &seen("once")).await;
        sleep(Duration::from_secs(60)).await;
        assert_eq!(api.counts(), [(Method::POST, 1), (Method::POST, 1)]);
        recorder.record(&node("n"), &seen("once")).await;
        assert_eq!(api.counts(), [(Method::PATCH, 2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_cannot_be_written_is_dropped_after_a_while() {
        let api = Scripted::failing(&[Reason::ServiceUnavailable; 20]);
        let recorder = recorder(api.clone());
        recorder.record(&node("n"), &seen("once")).await;
        sleep(LONGEST_TRY).await;
        let tries = api.calls();
        assert!((6..=12).contains(&tries.len()), "{}", tries.len());
        sleep(LONGEST_TRY).await;
        assert!(api.calls().is_empty());
        // A dropped event does not exist, so its repetition is a new event.
        recorder.record(&node("n"), &seen("once")).await;
        let next = api.calls();
        assert_eq!(
            (&next[0].0, &next[0].1["count"]),
            (&Method::POST, &json!(1))
        );
        assert_ne!(
            next[0].1["metadata"]["name"],
            tries[0].1["metadata"]["name"]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_the_api_refuses_is_not_tried_again() {
        for reason in [
            Reason::Forbidden,
            Reason::NotFound,
            Reason::Invalid,
            Reason::InternalError,
        ] {
            let api = Scripted::failing(&[reason]);
            let recorder = recorder(api.clone());
            recorder.record(&node("n"), &seen("once")).await;
            sleep(LONGEST_TRY).await;
            assert_eq!(api.counts(), [(Method::POST, 1)], "{reason:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_bounded_number_of_events_is_tried_again_at_once() {
        let api = Scripted::failing(&[Reason::TooManyRequests; MAX_WAITING + 10]);
        let recorder = recorder(api.clone());
        for number in 0..MAX_WAITING + 10 {
            let event = seen(&number.to_string());
            recorder.record(&node("n"), &event).await;
        }
        assert_eq!(api.calls().len(), MAX_WAITING + 10);
        sleep(2 * FIRST_PAUSE).await;
        assert_eq!(api.calls().len(), MAX_WAITING);
        let last = seen(&(MAX_WAITING + 9).to_string());
        recorder.record(&node("n"), &last).await;
        assert_eq!(api.counts(), [(Method::POST, 1)], "it was dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_about_an_object_with_the_longest_name_has_a_name_that_fits() {
        let api = Scripted::failing(&[]);
        let recorder = recorder(api.clone());
        let about = node(&"n".repeat(253));
        recorder.record(&about, &seen("once")).await;
        let calls = api.calls();
        let sent = &calls[0].1;
        assert!(
            sent["metadata"]["name"].as_str().unwrap().len() <= 253,
            "{sent}"
        );
        assert_eq!(sent["involvedObject"]["name"], about.metadata.name.unwrap());
    }

    #[tokio::test]
    async fn an_event_that_is_gone_is_made_anew_and_counts_on() {
        let api = Arc::new(Forgetful::default());
        let recorder = recorder(api.clone());
        for _ in 0..2 {
            recorder.record(&node("n"), &seen("again")).await;
        }
        let calls = std::mem::take(&mut *api.0.lock().unwrap());
        let [
            (Method::POST, at, first),
            (Method::PATCH, own, _),
            (Method::POST, again, anew),
        ] = &calls[..]
        else {
            panic!("{calls:?}");
        };
        assert_eq!(at, again);
        let name = anew["metadata"]["name"].as_str().unwrap();
        assert_eq!(*own, format!("{at}/{name}"));
        assert_eq!((&first["count"], &anew["count"]), (&json!(1), &json!(2)));
        assert_eq!(first["firstTimestamp"], anew["firstTimestamp"]);
        assert_ne!(first["lastTimestamp"], anew["lastTimestamp"]);
    }

    #[tokio::test]
    async fn no_more_of_a_message_is_remembered_than_is_written() {
        let recorder = recorder(Arc::new(Forgetful::default()));
        let long = "é".repeat(MAX_MESSAGE);
        recorder.record(&node("n"), &seen(&long)).await;
        let known = recorder.0.known();
        assert!(known.keys().map(|key| key.2.len()).eq([MAX_MESSAGE]));
    }

    #[test]
    fn a_clock_that_was_set_back_keeps_no_repetition_from_being_written() {
        let Recorder(writer) = recorder(Arc::new(Forgetful::default()));
        let key = ("uid".to_owned(), "Seen".to_owned(), "again".to_owned());
        let is_written = |second: i64| {
            let now = Timestamp::from_second(second).unwrap();
            writer.count(&key, "n", now).is_some()
        };
        let written = [1000, 1001, 100, 101, 140].map(is_written);
        assert_eq!(written, [true, false, true, false, true]);
    }

    #[test]
    fn the_older_half_is_forgotten_at_once() {
        let seen = |second: i64| {
            let known = Known {
                name: String::new(),
                count: 1,
                first: Timestamp::UNIX_EPOCH,
                written: Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second),
                waits: second == 1,
            };
            ((second.to_string(), String::new(), String::new()), known)
        };
        let mut known: HashMap<Key, Known> = (0..10).map(seen).collect();
        forget_older_half(&mut known);
        let mut left: Vec<&str> = known.keys().map(|(uid, ..)| uid.as_str()).collect();
        left.sort_unstable();
        assert_eq!(left, ["1", "6", "7", "8", "9"]);
        let mut same: HashMap<Key, Known> = (0..10).map(|_| seen(0)).collect();
        forget_older_half(&mut same);
        assert!(same.is_empty(), "there is room again in any case");
    }
}
