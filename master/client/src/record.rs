//! Events for people: what a component did to an object and why, repeated ones counted instead of piled up.

use crate::client::{Client, Object, Patch};
use config_kube::k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use jiff::{SignedDuration, Timestamp};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// How many different events are remembered for counting.
const REMEMBERED: usize = 4096;
/// A repetition within this time is counted, but not written: nobody reads faster.
const QUIET: SignedDuration = SignedDuration::from_secs(30);
/// Longest message in bytes (upstream's limit).
const LONGEST: usize = 1024;

/// Whether an event is worth attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// All is well.
    Normal,
    /// Somebody should look.
    Warning,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Happening<'a> {
    /// Whether it is worth attention.
    pub severity: Severity,
    /// Why, in one CamelCase word.
    pub reason: &'a str,
    /// What the component was doing, in one CamelCase word.
    pub action: &'a str,
    /// For a person.
    pub message: String,
}

/// Writes events in the name of one component.
#[derive(Debug)]
pub struct Recorder {
    client: Client,
    component: &'static str,
    known: Mutex<HashMap<Key, Known>>,
}

type Key = (String, String, String);

#[derive(Debug, Clone)]
struct Known {
    name: String,
    count: i32,
    written: Timestamp,
}

enum Step {
    Create(String),
    Count(String, i32),
    Nothing,
}

impl Recorder {
    /// A recorder in the name of a component, such as `default-scheduler`.
    pub fn new(client: Client, component: &'static str) -> Self {
        Self {
            client,
            component,
            known: Mutex::default(),
        }
    }

    /// Writes an event about an object. Failures are logged and forgotten: an event is no promise.
    pub async fn record<T: Object>(&self, about: &T, happening: &Happening<'_>) {
        self.record_of(reference(about), happening).await;
    }

    /// As [`Recorder::record`], about an object of any kind.
    pub async fn record_of(&self, about: ObjectReference, happening: &Happening<'_>) {
        let now = Timestamp::now();
        let key = (
            about.uid.clone().unwrap_or_default(),
            happening.reason.to_owned(),
            happening.message.clone(),
        );
        let namespace = about
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned());
        let written = match self.step(key.clone(), about.name.as_deref().unwrap_or_default(), now) {
            Step::Nothing => return,
            Step::Create(name) => {
                self.client
                    .create(&self.event(&name, &namespace, about, happening, now))
                    .await
            }
            Step::Count(name, count) => {
                let change = serde_json::json!({"count": count, "lastTimestamp": Time(now)});
                self.client
                    .patch(Some(&namespace), &name, &Patch::Merge(change))
                    .await
            }
        };
        let written: Result<Event, _> = written;
        if let Err(error) = written {
            self.known
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&key);
            tracing::debug!(reason = happening.reason, %error, "an event could not be written");
        }
    }

    fn step(&self, key: Key, object: &str, now: Timestamp) -> Step {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = known.get_mut(&key) {
            before.count = before.count.saturating_add(1);
            if now.duration_since(before.written) < QUIET {
                return Step::Nothing;
            }
            before.written = now;
            return Step::Count(before.name.clone(), before.count);
        }
        if known.len() >= REMEMBERED {
            let oldest = known
                .iter()
                .min_by_key(|(_, known)| known.written)
                .map(|(key, _)| key.clone());
            oldest.and_then(|key| known.remove(&key));
        }
        let name = format!("{object}.{:x}", now.as_nanosecond());
        known.insert(
            key,
            Known {
                name: name.clone(),
                count: 1,
                written: now,
            },
        );
        Step::Create(name)
    }

    fn event(
        &self,
        name: &str,
        namespace: &str,
        about: ObjectReference,
        it: &Happening<'_>,
        now: Timestamp,
    ) -> Event {
        let mut message = it.message.clone();
        message.truncate(
            (0..=LONGEST)
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
                name: Some(name.to_owned()),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: about,
            type_: Some(severity.to_owned()),
            reason: Some(it.reason.to_owned()),
            action: Some(it.action.to_owned()),
            message: Some(message),
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            event_time: Some(MicroTime(now)),
            reporting_component: Some(self.component.to_owned()),
            reporting_instance: Some(self.component.to_owned()),
            source: Some(EventSource {
                component: Some(self.component.to_owned()),
                host: None,
            }),
            ..Event::default()
        }
    }
}

/// A reference to an object, as events carry it.
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
