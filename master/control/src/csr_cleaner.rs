//! Certificate signing requests go when they are of no use: an hour after the decision, a day without one (upstream).

use crate::driver::{Controller, Now, Plan};
use crate::observe::{Key, Kind, Observed};
use crate::write::{Deletable, Write};
use std::time::Duration;

/// After the decision.
const DECIDED: Duration = Duration::from_secs(3600);
/// Without a decision.
const PENDING: Duration = Duration::from_secs(24 * 3600);
/// Between two looks.
const PERIOD: Duration = Duration::from_secs(60);

/// The controller.
#[derive(Debug, Default)]
pub(crate) struct CsrCleaner;

impl Controller for CsrCleaner {
    fn name(&self) -> &'static str {
        "csr-cleaner"
    }

    fn follows(&self) -> &'static [Kind] {
        &[]
    }

    fn plan(&mut self, observed: &Observed, now: Now) -> Plan {
        let lifetime = |decided| if decided { DECIDED } else { PENDING };
        let old = observed
            .requests
            .iter()
            .filter(|(_, request)| now.since(request.last) >= lifetime(request.decided));
        let writes = old.map(|(name, request)| Write::Delete {
            what: Deletable::Request,
            key: Key::new("", name),
            uid: request.uid.clone(),
        });
        Plan {
            writes: writes.collect(),
            again: Some(PERIOD),
        }
    }
}
