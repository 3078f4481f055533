//! Deletes events an hour after they were last seen. When that was the reporter says; what lies in
//! the future was not seen yet, or else an event could stay for ever.

use config_kube::k8s_openapi::api::core::v1::Event;
use jiff::Timestamp;
use master_client::{ApiError, DeleteParams, Key, Store, View};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::{created, uid};
use master_control::writer::Writer;
use std::sync::Arc;
use std::time::Duration;

/// How long an event is kept after it was last seen (upstream's default).
const LIFETIME: Duration = Duration::from_secs(3600);

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventView {
    /// UID.
    pub uid: String,
    /// When it was made, and when it was seen, as far as its reporter says.
    pub times: Vec<Timestamp>,
}

impl View for EventView {
    type Object = Event;

    fn read(event: Event) -> Self {
        let series = event.series.and_then(|series| series.last_observed_time);
        let times = [
            created(&event.metadata),
            event.last_timestamp.map(|time| time.0),
            event.event_time.map(|time| time.0),
            series.map(|time| time.0),
        ];
        Self {
            uid: uid(&event.metadata),
            times: times.into_iter().flatten().collect(),
        }
    }
}

/// The controller. Its keys are events.
#[derive(Debug)]
pub struct EventTtl {
    events: Store<EventView>,
}

/// An event and what is known of it.
#[derive(Debug)]
pub struct Facts {
    key: Key,
    event: Arc<EventView>,
}

/// The action: delete the event.
#[derive(Debug, PartialEq, Eq)]
pub struct Delete {
    /// The object's key.
    pub key: Key,
    /// Its UID.
    pub uid: String,
}

impl Controller for EventTtl {
    const NAME: &'static str = "event-ttl";
    const RIGHTS: &'static [Right] = &[right("", "events", &["list", "watch", "delete"])];
    type Facts = Facts;
    type Action = Delete;

    fn new(setup: &mut Setup<'_>) -> Self {
        let events = setup.follow_keys();
        Self { events }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let (key, event) = (key.clone(), self.events.get(key)?);
        Some(Facts { key, event })
    }

    fn plan(facts: &Facts, now: Now) -> Plan<Delete> {
        let times = facts.event.times.iter();
        let past = times.filter(|time| **time <= now.wall).max();
        let last = past.copied().unwrap_or(Timestamp::UNIX_EPOCH);
        let left = LIFETIME.saturating_sub(now.since(last));
        if left.is_zero() {
            let (key, uid) = (facts.key.clone(), facts.event.uid.clone());
            Plan::act(Delete { key, uid })
        } else {
            Plan::wait(left)
        }
    }

    async fn carry_out(&self, event: Delete, writer: &Writer) -> Result<(), ApiError> {
        let params = DeleteParams::of(event.uid);
        writer.delete::<Event>(&event.key, &params).await
    }
}
