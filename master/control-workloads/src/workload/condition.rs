//! Conditions whose times change only with their status.

use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::Timestamp;
use serde_json::{Value, json};

/// A condition of a workload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Condition {
    /// Its type.
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, in one CamelCase word.
    pub reason: String,
    /// For a person.
    pub message: String,
    /// Since when it has its status.
    pub since: Option<Timestamp>,
    /// When it was written last; only Deployments have this field.
    pub updated: Option<Timestamp>,
}

impl Condition {
    /// A condition that has this status from now on.
    pub fn new(kind: &str, status: &str, reason: &str, message: &str, now: Timestamp) -> Self {
        Self {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            since: Some(second(now)),
            updated: Some(second(now)),
        }
    }

    /// A condition as an object's status contains it: type, status, reason, message, time of the
    /// last transition.
    pub fn read(
        kind: String,
        status: String,
        reason: Option<String>,
        message: Option<String>,
        since: Option<Time>,
    ) -> Self {
        Self {
            kind,
            status,
            reason: reason.unwrap_or_default(),
            message: message.unwrap_or_default(),
            since: since.map(|time| time.0),
            updated: None,
        }
    }

    /// As JSON for an object's status; `updated` is the name of the field for that time, if the
    /// kind has one.
    pub fn json(&self, updated: Option<&str>) -> Value {
        let mut value = json!({"type": self.kind, "status": self.status});
        for (key, text) in [("reason", &self.reason), ("message", &self.message)] {
            if !text.is_empty() {
                value[key] = text.as_str().into();
            }
        }
        if let Some(since) = self.since {
            value["lastTransitionTime"] = since.to_string().into();
        }
        if let (Some(key), Some(time)) = (updated, self.updated) {
            value[key] = time.to_string().into();
        }
        value
    }
}

/// A time in whole seconds, as objects store it.
pub fn second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The condition of a type.
pub fn find<'a>(all: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    all.iter().find(|condition| condition.kind == kind)
}

/// Sets a condition. If the present one has the same status and reason, it is not changed; with the
/// same status it keeps its time.
pub fn set(all: &mut Vec<Condition>, mut new: Condition) {
    if let Some(old) = find(all, &new.kind) {
        if old.status == new.status && old.reason == new.reason {
            return;
        }
        if old.status == new.status {
            new.since = old.since;
        }
    }
    all.retain(|condition| condition.kind != new.kind);
    all.push(new);
}

/// Removes a condition.
pub fn unset(all: &mut Vec<Condition>, kind: &str) {
    all.retain(|condition| condition.kind != kind);
}
