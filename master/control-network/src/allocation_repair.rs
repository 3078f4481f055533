//! Repairs the allocations of service addresses and node ports: each is allocated to the service
//! that has it, whatever was done to the store.
//!
//! The API writes a service and its allocations in one transaction, so there is something to repair
//! only after the store was restored or changed by other means, or the ranges were configured
//! differently. No watch event shows that, so everything is checked at the start and then every
//! [`PERIOD`].

use master_client::{ApiError, Key, Recorder};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::options::Allocations;
use master_control::setup::Setup;
use master_control::writer::Writer;
use std::sync::Arc;
use std::time::Duration;

/// Time between two checks (upstream's).
pub const PERIOD: Duration = Duration::from_secs(180);

/// The controller. It has one key. Without [`Allocations`] it does nothing.
#[derive(Debug)]
pub struct AllocationRepair {
    allocations: Option<Arc<dyn Allocations>>,
}

/// Checks and repairs everything.
#[derive(Debug, PartialEq)]
pub struct Repair;

impl Controller for AllocationRepair {
    const NAME: &'static str = "service-allocation-repair";
    /// The repair itself is the API server's own transaction.
    const RIGHTS: &'static [Right] = &[right("", "events", &["create", "patch"])];
    /// None: the repair reads everything itself.
    type Facts = ();
    type Action = Repair;

    fn new(setup: &mut Setup<'_>) -> Self {
        setup.always([Key::cluster("allocations")]);
        Self {
            allocations: setup.options().allocations.clone(),
        }
    }

    fn facts(&self, _: &Key, _: Now) -> Option<()> {
        self.allocations.as_ref().map(|_| ())
    }

    fn plan((): &(), _: Now) -> Plan<Repair> {
        let mut plan = Plan::act(Repair);
        plan.requeue_in(PERIOD);
        plan
    }

    async fn carry_out(&self, Repair: Repair, writer: &Writer) -> Result<(), ApiError> {
        let Some(allocations) = &self.allocations else {
            return Ok(());
        };
        for event in allocations.repair().await? {
            // The event has upstream's name of the component that repairs.
            Recorder::new(writer.client().clone(), event.component)
                .record_of(event.about, &event.event)
                .await;
        }
        Ok(())
    }
}
