//! Events: what a component did to an object and why; repetitions are counted instead of written
//! again.

use crate::client::{Client, Object, Patch};
use config_errors::chain;
use config_kube::k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use jiff::{SignedDuration, Timestamp};
use master_schema::error::Reason;
use serde_json::json;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Number of different events that are remembered for counting. The older half is forgotten when it
/// is reached.
const MAX_REMEMBERED: usize = 4096;
/// A repetition within this time is counted and not written: no one reads faster, and each write
/// costs a commit.
const REPEAT_INTERVAL: SignedDuration = SignedDuration::from_secs(30);
/// Longest message in bytes (upstream's limit).
const MAX_MESSAGE: usize = 1024;

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
pub struct Recorder {
    client: Client,
    component: Cow<'static, str>,
    known: Mutex<HashMap<Key, Known>>,
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
}

enum Step {
    Create(Known),
    Count(Known),
    Nothing,
}

impl Recorder {
    /// A recorder for a component, such as `default-scheduler`.
    pub fn new(client: Client, component: impl Into<Cow<'static, str>>) -> Self {
        Self {
            client,
            component: component.into(),
            known: Mutex::default(),
        }
    }

    /// The component in whose name it writes.
    pub fn component(&self) -> &str {
        &self.component
    }

    /// Writes an event about an object. Failures are logged and ignored: events are best effort.
    pub async fn record<T: Object>(&self, about: &T, event: &NewEvent<'_>) {
        self.record_of(reference(about), event).await;
    }

    /// As [`Recorder::record`], with another object that the event has to do with.
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
        let now = self.client.now();
        let key = (
            about.uid.clone().unwrap_or_default(),
            event.reason.to_owned(),
            event.message.clone(),
        );
        let namespace = about
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned());
        let written = match self.step(key.clone(), about.name.as_deref().unwrap_or_default(), now) {
            Step::Nothing => return,
            Step::Create(known) => {
                let event = Event {
                    related,
                    ..self.event(&known, &namespace, about, event)
                };
                self.client.add(&event).await
            }
            Step::Count(known) => {
                let change = json!({"count": known.count, "lastTimestamp": Time(now)});
                let change = Patch::Merge(change);
                let client = &self.client;
                let counted = client.patch::<Event>(Some(&namespace), &known.name, &change);
                match counted.await {
                    // It was deleted, as events are after a while: made anew, it counts on
                    // (upstream's rule).
                    Err(error) if error.is_not_found() => {
                        let event = Event {
                            related,
                            ..self.event(&known, &namespace, about, event)
                        };
                        client.add(&event).await
                    }
                    counted => counted.map(drop),
                }
            }
        };
        if let Err(error) = written {
            self.known
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&key);
            if error.reason == Reason::Invalid {
                tracing::warn!(
                    reason = event.reason,
                    error = chain(&error),
                    "dropped an invalid event: its component made it wrongly"
                );
            } else {
                tracing::debug!(
                    reason = event.reason,
                    error = chain(&error),
                    "cannot write an event"
                );
            }
        }
    }

    fn step(&self, key: Key, object: &str, now: Timestamp) -> Step {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = known.get_mut(&key) {
            before.count = before.count.saturating_add(1);
            if now.duration_since(before.written) < REPEAT_INTERVAL {
                return Step::Nothing;
            }
            before.written = now;
            return Step::Count(before.clone());
        }
        if known.len() >= MAX_REMEMBERED {
            forget_older_half(&mut known);
        }
        let new = Known {
            name: format!("{object}.{:x}", now.as_nanosecond()),
            count: 1,
            first: now,
            written: now,
        };
        known.insert(key, new.clone());
        Step::Create(new)
    }

    fn event(
        &self,
        known: &Known,
        namespace: &str,
        about: ObjectReference,
        it: &NewEvent<'_>,
    ) -> Event {
        let mut message = it.message.clone();
        message.truncate(
            (0..=MAX_MESSAGE)
                .rev()
                .find(|at| message.is_char_boundary(*at))
                .unwrap_or(0),
        );
        let severity = match it.severity {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        };
        Event {
            metadata: ObjectMeta {
                name: Some(known.name.clone()),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: about,
            type_: Some(severity.to_owned()),
            reason: Some(it.reason.to_owned()),
            action: Some(it.action.to_owned()),
            message: Some(message),
            count: Some(known.count),
            first_timestamp: Some(Time(known.first)),
            last_timestamp: Some(Time(known.written)),
            event_time: Some(MicroTime(known.written)),
            reporting_component: Some(self.component.clone().into_owned()),
            reporting_instance: Some(self.component.clone().into_owned()),
            source: Some(EventSource {
                component: Some(self.component.clone().into_owned()),
                host: None,
            }),
            ..Event::default()
        }
    }
}

/// Half of them at once, so that the search for the oldest is not made for each new one.
fn forget_older_half(known: &mut HashMap<Key, Known>) {
    let mut times: Vec<Timestamp> = known.values().map(|known| known.written).collect();
    let middle = times.len() / 2;
    let (_, middle, _) = times.select_nth_unstable(middle);
    let middle = *middle;
    known.retain(|_, known| known.written > middle);
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
    use std::sync::Arc;

    /// An API whose events are gone before they are counted, and a clock that a minute passes by at
    /// each request.
    #[derive(Debug, Default)]
    struct Forgetful(Mutex<Vec<(Method, String, Value)>>);

    impl Transport for Forgetful {
        fn call(
            &self,
            request: Request<Body>,
            _user: UserInfo,
        ) -> crate::BoxFuture<'_, Response<Body>> {
            Box::pin(async move {
                let (head, sent) = request.into_parts();
                let sent = sent.collect().await.unwrap().to_bytes();
                let gone = head.method == Method::PATCH;
                let (method, path) = (head.method, head.uri.path().to_owned());
                let sent = serde_json::from_slice(&sent).unwrap();
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

    #[tokio::test]
    async fn an_event_that_is_gone_is_made_anew_and_counts_on() {
        let api = Arc::new(Forgetful::default());
        let recorder = Recorder::new(Client::new(api.clone(), UserInfo::admin("test")), "tests");
        let node = Node {
            metadata: ObjectMeta {
                name: Some("n".to_owned()),
                ..ObjectMeta::default()
            },
            ..Node::default()
        };
        let event = NewEvent {
            severity: Severity::Normal,
            reason: "Seen",
            action: "See",
            message: "again".to_owned(),
        };
        for _ in 0..2 {
            recorder.record(&node, &event).await;
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

    #[test]
    fn the_older_half_is_forgotten_at_once() {
        let seen = |second: i64| {
            let known = Known {
                name: String::new(),
                count: 1,
                first: Timestamp::UNIX_EPOCH,
                written: Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second),
            };
            ((second.to_string(), String::new(), String::new()), known)
        };
        let mut known: HashMap<Key, Known> = (0..10).map(seen).collect();
        forget_older_half(&mut known);
        let mut left: Vec<&str> = known.keys().map(|(uid, ..)| uid.as_str()).collect();
        left.sort_unstable();
        assert_eq!(left, ["6", "7", "8", "9"]);
        let mut same: HashMap<Key, Known> = (0..10).map(|_| seen(0)).collect();
        forget_older_half(&mut same);
        assert!(same.is_empty(), "there is room again in any case");
    }
}
