//! Events go an hour after they were seen last.

use crate::driver::{Controller, Now, Plan};
use crate::observe::{Kind, Observed};
use crate::write::{Deletable, Write};
use std::time::Duration;

/// Upstream's default.
pub(crate) const LIFETIME: Duration = Duration::from_secs(3600);
/// Between two looks: an event may stay this much longer.
const PERIOD: Duration = Duration::from_secs(30);

/// The controller.
#[derive(Debug, Default)]
pub(crate) struct EventTtl;

impl Controller for EventTtl {
    fn name(&self) -> &'static str {
        "event-ttl"
    }

    fn follows(&self) -> &'static [Kind] {
        &[]
    }

    fn plan(&mut self, observed: &Observed, now: Now) -> Plan {
        let old = observed
            .events
            .iter()
            .filter(|(_, event)| now.since(event.last) >= LIFETIME);
        let delete =
            |(key, event): (&crate::observe::Key, &crate::observe::Expiring)| Write::Delete {
                what: Deletable::Event,
                key: key.clone(),
                uid: event.uid.clone(),
            };
        Plan {
            writes: old.map(delete).collect(),
            again: Some(PERIOD),
        }
    }
}
