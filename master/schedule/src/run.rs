//! The loop: follows pods, nodes and other objects through the API, and passes their changes to the
//! scheduler.

use crate::node::NodeInfo;
use crate::preempt::Budget;
use crate::profile::Profile;
use crate::scheduler::{ClusterChange, Scheduler, Write, storage};
use config_kube::k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use config_kube::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use futures_util::stream::{FuturesUnordered, StreamExt};
use master_client::{Client, Follower, ListParams};
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

/// Settings of the loop.
#[derive(Debug, Clone)]
pub struct Options {
    /// Concurrent writes (binds, conditions).
    pub in_flight: usize,
    /// The profiles, each with a name of its own. Pods that name none of them are another
    /// scheduler's.
    pub profiles: Vec<Arc<Profile>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            in_flight: 64,
            profiles: vec![Profile::default_profile()],
        }
    }
}

/// Schedules until `shutdown` resolves, and then drops writes in progress: each is a single request
/// that was executed or was not.
pub async fn run(client: Client, options: Options, shutdown: impl Future<Output = ()> + Send) {
    let mut scheduler = Scheduler::new(client.clone(), options.profiles);
    let reader = scheduler.reader();
    let read = move |pod: Pod| reader.read(&pod);
    let mut pods = Follower::reading(client.clone(), None, ListParams::default(), read);
    let mut nodes = Follower::reading(client.clone(), None, ListParams::default(), |node: Node| {
        NodeInfo::of(&node)
    });
    let mut namespaces = Follower::reading(
        client.clone(),
        None,
        ListParams::default(),
        |one: Namespace| {
            let labels = one.metadata.labels.unwrap_or_default();
            (one.metadata.name.unwrap_or_default(), labels)
        },
    );
    let mut budgets = Follower::reading(
        client.clone(),
        None,
        ListParams::default(),
        |budget: PodDisruptionBudget| Budget::of(&budget),
    );
    let mut services = storage::follow(&client);
    let mut claims = storage::follow(&client);
    let mut volumes = storage::follow(&client);
    let mut classes = storage::follow(&client);
    let mut limits = storage::follow(&client);
    let mut drivers = storage::follow(&client);
    let mut capacities = storage::follow(&client);
    let mut writes: FuturesUnordered<Write> = FuturesUnordered::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let wake = scheduler.wake(Instant::now());
        let sleep = tokio::time::sleep_until(wake.unwrap_or_else(far).into());
        let ready = scheduler.ready() && writes.len() < options.in_flight;
        // All arms are cancel-safe: followers and streams keep what they have not returned, the
        // others hold nothing.
        let change = tokio::select! {
            () = &mut shutdown => return,
            change = nodes.next() => Some(ClusterChange::Nodes(change)),
            change = budgets.next() => Some(ClusterChange::Budgets(change)),
            change = services.next() => Some(ClusterChange::Services(change)),
            change = claims.next() => Some(ClusterChange::Claims(change)),
            change = volumes.next() => Some(ClusterChange::Volumes(change)),
            change = classes.next() => Some(ClusterChange::Classes(change)),
            change = limits.next() => Some(ClusterChange::Limits(change)),
            change = drivers.next() => Some(ClusterChange::Drivers(change)),
            change = capacities.next() => Some(ClusterChange::Capacities(change)),
            change = namespaces.next() => Some(ClusterChange::Namespaces(change)),
            change = pods.next() => Some(ClusterChange::Pods(change)),
            Some(written) = writes.next() => {
                scheduler.written(written, Instant::now());
                None
            }
            () = sleep => None,
            () = std::future::ready(()), if ready => {
                writes.extend(scheduler.decide(Instant::now()));
                None
            }
        };
        if let Some(change) = change {
            scheduler.see(change, Instant::now());
        }
        if scheduler.must_relist(Instant::now()) {
            pods.relist();
        }
    }
}

fn far() -> Instant {
    Instant::now() + std::time::Duration::from_secs(3600)
}
