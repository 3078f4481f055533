//! The scheduler without its loop: takes changes, decides, and returns the writes. The time is
//! passed in.

mod pod_info;
pub(crate) mod storage;
mod writes;

pub use pod_info::{PodInfo, PodReader};
pub use writes::{Write, Written};

use crate::capacity::{Capacity, Driver};
use crate::choose::{Placement, choose, choose_on};
use crate::event::{ClusterEvent, PodChange, PodUsage};
use crate::key::PodKey;
use crate::node::NodeInfo;
use crate::plugins::Plugins;
use crate::preempt::{Budget, Budgets, NoPreemption, Preemption, awaits_victims, preempt};
use crate::profile::Profile;
use crate::queue::{Queue, Waiting};
use crate::request::PodRequest;
use crate::services::ServiceSelector;
use crate::snapshot::{KeptPlace, Snapshot};
use crate::storage::Limits;
use crate::terms::Labels;
use crate::unschedulable::Unschedulable;
use config_errors::chain;
use master_claims::{Claim, Class, Volume};
use master_client::{Change, Client, Key, Recorder};
use pod_info::State;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use writes::{Outcome, Unbound};

/// The kinds that a scheduler follows: one for each variant of [`ClusterChange`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Followed {
    Pods,
    Nodes,
    Namespaces,
    Services,
    Budgets,
    Claims,
    Volumes,
    Classes,
    Limits,
    Drivers,
    Capacities,
}

impl Followed {
    /// All kinds; each must be listed completely before decisions are made.
    const ALL: [Self; 11] = [
        Self::Pods,
        Self::Nodes,
        Self::Namespaces,
        Self::Services,
        Self::Budgets,
        Self::Claims,
        Self::Volumes,
        Self::Classes,
        Self::Limits,
        Self::Drivers,
        Self::Capacities,
    ];
}

/// The scheduler without its loop: its view of the cluster, the queue and its assumptions. It
/// follows nothing and has no clock; [`run`](crate::run) drives it, and so does a simulation.
pub struct Scheduler {
    client: Client,
    reader: PodReader,
    /// Recorders of events, by the name of the profile.
    recorders: BTreeMap<String, Arc<Recorder>>,
    snapshot: Snapshot,
    budgets: Budgets,
    queue: Queue,
    /// The kinds that have been listed at least once.
    listed: BTreeSet<Followed>,
    /// Whether the log has reported that the queue is full.
    overflowed: bool,
}

/// A change of objects that a scheduler follows. Nothing is decided before each kind was listed
/// once.
#[derive(Debug)]
pub enum ClusterChange {
    /// Changes of pods, as [`PodReader::read`] sees them.
    Pods(Change<PodInfo>),
    /// Changes of nodes.
    Nodes(Change<NodeInfo>),
    /// Changes of namespaces: name and labels.
    Namespaces(Change<(String, Labels)>),
    /// Changes of Services.
    Services(Change<(Key, ServiceSelector)>),
    /// Changes of disruption budgets.
    Budgets(Change<Budget>),
    /// Changes of volume claims.
    Claims(Change<(Key, Claim)>),
    /// Changes of volumes.
    Volumes(Change<(Key, Volume)>),
    /// Changes of storage classes.
    Classes(Change<(Key, Class)>),
    /// Changes of the nodes' limits of volumes.
    Limits(Change<(Key, Limits)>),
    /// Changes of CSI drivers.
    Drivers(Change<(Key, Driver)>),
    /// Changes of the free storage that CSI drivers report.
    Capacities(Change<(Key, Capacity)>),
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler")
            .field("listed", &self.listed)
            .field("waiting", &self.queue.len())
            .finish_non_exhaustive()
    }
}

impl Scheduler {
    /// A scheduler that has seen nothing yet. Pods that name none of its profiles are left to other
    /// schedulers.
    pub fn new(client: Client, profiles: Vec<Arc<Profile>>) -> Self {
        Self {
            client,
            reader: PodReader::new(profiles),
            recorders: BTreeMap::new(),
            snapshot: Snapshot::default(),
            budgets: Budgets::new(),
            queue: Queue::default(),
            listed: BTreeSet::new(),
            overflowed: false,
        }
    }

    /// The same with a queue of at most this many pods that wait.
    #[must_use]
    pub fn with_queue_limit(mut self, most: usize) -> Self {
        self.queue = Queue::with_limit(most);
        self
    }

    /// The recorder that writes a pod's events in the name of its profile.
    fn recorder(&mut self, pod: &PodRequest) -> Arc<Recorder> {
        let name = &pod.profile.name;
        if let Some(known) = self.recorders.get(name) {
            return Arc::clone(known);
        }
        let recorder = Arc::new(Recorder::new(self.client.clone(), name.clone()));
        self.recorders.insert(name.clone(), Arc::clone(&recorder));
        recorder
    }

    /// The reader of pods for this scheduler.
    pub fn reader(&self) -> PodReader {
        self.reader.clone()
    }

    /// Takes a change.
    pub fn see(&mut self, change: ClusterChange, now: Instant) {
        match change {
            ClusterChange::Pods(change) => self.pod_changed(change, now),
            ClusterChange::Nodes(change) => self.node_changed(change, now),
            ClusterChange::Namespaces(change) => self.namespace_changed(change, now),
            ClusterChange::Services(change) => self.service_changed(change),
            ClusterChange::Budgets(change) => self.budget_changed(change),
            ClusterChange::Claims(change) => self.claim_changed(change, now),
            ClusterChange::Volumes(change) => self.volume_changed(change, now),
            ClusterChange::Classes(change) => self.class_changed(change, now),
            ClusterChange::Limits(change) => self.limits_changed(change, now),
            ClusterChange::Drivers(change) => self.driver_changed(change, now),
            ClusterChange::Capacities(change) => self.capacity_changed(change, now),
        }
    }

    /// When the next waiting pod is due, if nothing changes.
    pub fn wake(&mut self, now: Instant) -> Option<Instant> {
        self.queue.wake(now)
    }

    /// Whether pods must be listed again, because some had no room in the queue and there is room
    /// now. Returns true once.
    pub fn must_relist(&mut self, now: Instant) -> bool {
        self.queue.must_relist(now)
    }

    /// Whether a pod is ready and all followed kinds are listed completely.
    pub fn ready(&self) -> bool {
        let all_listed = Followed::ALL.iter().all(|one| self.listed.contains(one));
        all_listed && self.queue.is_ready()
    }

    /// Wakes the pods that an event helps.
    fn help(&mut self, event: &ClusterEvent, now: Instant) {
        let snapshot = &self.snapshot;
        let concerned_by = Plugins::concerned_by(event.kind());
        self.queue
            .cluster_changed(now, concerned_by, |pod, refusing| {
                refusing.wake(pod, event, snapshot)
            });
    }

    fn budget_changed(&mut self, change: Change<Budget>) {
        match change {
            Change::Listed(all) => {
                let all = all.into_iter().map(|budget| (budget.key.clone(), budget));
                self.budgets = all.collect();
                self.listed.insert(Followed::Budgets);
            }
            Change::Set(budget) => drop(self.budgets.insert(budget.key.clone(), budget)),
            Change::Deleted(gone) => drop(self.budgets.remove(&PodKey::from(gone.key))),
        }
    }

    /// No node is refused because of Services, so that no pod waits for a change of them.
    fn service_changed(&mut self, change: Change<(Key, ServiceSelector)>) {
        match change {
            Change::Listed(all) => {
                self.snapshot.clear_services();
                for (key, selector) in all {
                    self.snapshot.set_service(key, selector);
                }
                self.listed.insert(Followed::Services);
            }
            Change::Set((key, selector)) => self.snapshot.set_service(key, selector),
            Change::Deleted(gone) => self.snapshot.remove_service(&gone.key),
        }
    }

    fn namespace_changed(&mut self, change: Change<(String, Labels)>, now: Instant) {
        let changed = match change {
            Change::Listed(all) => {
                let names: BTreeSet<String> = all.iter().map(|(name, _)| name.clone()).collect();
                self.snapshot.retain_namespaces(|name| names.contains(name));
                for (name, labels) in all {
                    self.snapshot.set_namespace(name, labels);
                }
                self.listed.insert(Followed::Namespaces);
                true
            }
            Change::Set((name, labels)) => self.snapshot.set_namespace(name, labels),
            Change::Deleted(gone) => {
                self.snapshot.remove_namespace(&gone.key.name);
                false
            }
        };
        if changed {
            self.help(&ClusterEvent::Namespace, now);
        }
    }

    fn node_changed(&mut self, change: Change<NodeInfo>, now: Instant) {
        match change {
            Change::Listed(nodes) => {
                let names: BTreeSet<_> = nodes.iter().map(NodeInfo::name).collect();
                let gone: Vec<_> = self
                    .snapshot
                    .nodes()
                    .filter(|name| !names.contains(*name))
                    .map(str::to_owned)
                    .collect();
                for name in &gone {
                    self.snapshot.remove_node(name);
                }
                for node in nodes {
                    self.snapshot.set_node(node);
                }
                self.listed.insert(Followed::Nodes);
                self.help(&ClusterEvent::Anything, now);
            }
            Change::Set(node) => {
                if let Some(change) = self.snapshot.change_node(node) {
                    self.help(&ClusterEvent::Node(Box::new(change)), now);
                }
            }
            Change::Deleted(gone) => {
                if let Some(node) = self.snapshot.remove_node(&gone.key.name) {
                    self.help(&ClusterEvent::NodeGone(node), now);
                }
            }
        }
    }

    fn pod_changed(&mut self, change: Change<PodInfo>, now: Instant) {
        let events = match change {
            Change::Listed(mut pods) => {
                let keys: BTreeSet<PodKey> = pods.iter().map(|pod| pod.key.clone()).collect();
                let gone = self
                    .snapshot
                    .placed()
                    .into_iter()
                    .filter(|key| !keys.contains(key));
                for key in gone {
                    self.snapshot.remove(&key);
                }
                self.queue.retain(&keys);
                self.snapshot.retain_reserved(|key| keys.contains(key));
                // The list is sorted by name: some of the pods that were left out would never get a
                // place while new ones of their priority keep coming.
                pods.sort_by_key(PodInfo::turn);
                for pod in pods {
                    self.pod_set(pod, now);
                }
                self.overflowed &= self.queue.left_out() > 0;
                self.listed.insert(Followed::Pods);
                vec![ClusterEvent::Anything]
            }
            Change::Set(pod) => self.pod_set(pod, now),
            Change::Deleted(gone) => self.pod_gone(&PodKey::from(gone.key)),
        };
        self.warn_if_full();
        for event in events {
            self.help(&event, now);
        }
    }

    /// Logs once that pods have no room in the queue; again after a list of all pods had room.
    fn warn_if_full(&mut self) {
        let pods = self.queue.left_out();
        if pods == 0 || self.overflowed {
            return;
        }
        self.overflowed = true;
        tracing::warn!(
            pods,
            waiting = self.queue.len(),
            "the scheduler's queue is full: pods without room in it are listed again as others leave it"
        );
    }

    fn pod_gone(&mut self, key: &PodKey) -> Vec<ClusterEvent> {
        self.queue.remove(key);
        let kept = self.snapshot.release(key).map(ClusterEvent::from);
        let held = self.snapshot.remove(key).map(ClusterEvent::from);
        kept.into_iter().chain(held).collect()
    }

    /// Applies a pod's state; returns the events that may help others.
    fn pod_set(&mut self, pod: PodInfo, now: Instant) -> Vec<ClusterEvent> {
        let PodInfo { key, state } = pod;
        match state {
            State::Ended => return self.pod_gone(&key),
            State::On(node, request) => {
                self.queue.remove(&key);
                let kept = self.snapshot.release(&key);
                let left = kept.filter(|place| *place.node != *node);
                let demand = Arc::clone(&request.demand);
                let before = self.snapshot.demand(&key);
                let mut events: Vec<ClusterEvent> = left.into_iter().map(Into::into).collect();
                if self.snapshot.place(*request, &node) {
                    let needed = before.as_ref().map(|before| &before.needed);
                    let freed = needed.and_then(|needed| needed.beyond(&demand.needed));
                    events.extend(freed.map(ClusterEvent::Freed));
                    let before = before.filter(|before| before.labels != demand.labels);
                    events.push(ClusterEvent::Placed(PodChange {
                        before: before.map(PodUsage),
                        now: PodUsage(demand),
                    }));
                }
                return events;
            }
            State::NotOurs(uid) if !self.snapshot.holds(&key, &uid) => {
                self.queue.remove(&key);
                return self
                    .snapshot
                    .release(&key)
                    .map(Into::into)
                    .into_iter()
                    .collect();
            }
            State::Waits(request, nominated) if !self.snapshot.holds(&key, &request.uid) => {
                let left = self.nominated(&request, nominated.as_deref());
                let left_out = self.queue.push(*request, now);
                // The pod that is left out is not tried until it is listed again, which may take
                // long.
                let given_up = left_out.and_then(|key| self.snapshot.release(&key));
                let places = left.into_iter().chain(given_up);
                return places.map(ClusterEvent::from).collect();
            }
            // It is about to appear on the node where it was assumed.
            State::NotOurs(_) | State::Waits(..) => {}
        }
        Vec::new()
    }

    /// Keeps the place of a new pod on its nominated node: this process may have started after the
    /// preemption. From then on its own decisions count. Returns the place that was kept on another
    /// node for an earlier pod of this name.
    fn nominated(&mut self, request: &PodRequest, node: Option<&str>) -> Option<KeptPlace> {
        if self.queue.knows(&request.key, &request.uid) {
            return None;
        }
        let before = self.snapshot.release(&request.key);
        if let Some(node) = node {
            self.snapshot.reserve(request.clone(), node);
        }
        before.filter(|place| Some(&*place.node) != node)
    }

    /// Decides for the next pod and returns the write that follows.
    pub fn decide(&mut self, now: Instant) -> Option<Write> {
        let (waiting, seen) = self.queue.take()?;
        let PodRequest { key, uid, .. } = &waiting.request;
        if let Some(node) = self.snapshot.assumed_on(key, uid) {
            return Some(self.bind(waiting, node));
        }
        let kept = self.snapshot.kept_place(key);
        let node = self.snapshot.reserved_for(key);
        let reserved = self.snapshot.take_reserved(&waiting.request);
        let there = node.and_then(|node| choose_on(&waiting.request, &self.snapshot, node));
        let decision = there.map_or_else(|| choose(&waiting.request, &self.snapshot), Ok);
        self.snapshot.restore_reserved(reserved);
        let write = match decision {
            Ok(placement) => self.settle(waiting, placement, seen, now),
            Err(why) => Some(self.refuse(waiting, &why, seen, now)),
        };
        let counts_on = |place: &KeptPlace| self.snapshot.counts_on(&place.key);
        if let Some(left) = kept.filter(|place| counts_on(place) != Some(&*place.node)) {
            self.help(&left.into(), now);
        }
        write
    }

    /// Binds a pod to its node, or has its claims bound first. `seen` is the number that the queue
    /// returned with the pod: it shows whether the cluster has changed since.
    fn settle(
        &mut self,
        waiting: Waiting,
        placement: Placement,
        seen: u64,
        now: Instant,
    ) -> Option<Write> {
        if let Some(bindings) = self.snapshot.bindings(&waiting.request, &placement.node) {
            return self.claim(&waiting, &placement.node, bindings, seen, now);
        }
        tracing::debug!(
            pod = %waiting.request.key, node = placement.node, feasible = placement.feasible,
            waited_ms = waiting.age(now).as_millis(), "binding"
        );
        self.snapshot.release(&waiting.request.key);
        placement.assume(waiting.request.clone(), &mut self.snapshot);
        // When the API later shows the pod there, that causes no event.
        let placed = PodChange::new(Arc::clone(&waiting.request.demand));
        self.help(&ClusterEvent::Placed(placed), now);
        Some(self.bind(waiting, placement.node))
    }

    /// Reports why a pod fits nowhere, and preempts pods of lower priority for it; `seen` as in
    /// [`Self::settle`].
    fn refuse(&mut self, waiting: Waiting, why: &Unschedulable, seen: u64, now: Instant) -> Write {
        let PodRequest { key, priority, .. } = &waiting.request;
        let had_place = self.snapshot.reserved_for(key).is_some();
        let preemption = self.preempt(&waiting.request, why);
        // Pods for which this place was kept must find another one (upstream).
        let displaced = match &preemption {
            Some(Ok(found)) => self.snapshot.displace(&found.node, *priority),
            Some(Err(_)) | None => Vec::new(),
        };
        let lost_place = had_place && self.snapshot.reserved_for(key).is_none();
        self.queue.unschedulable(key, why.refusing(), seen, now);
        for place in &displaced {
            self.help(&place.clone().into(), now);
        }
        self.report(waiting, why, preemption, lost_place, displaced)
    }

    /// The preemption for a pod that fits nowhere; `None` if preemption does not apply to the
    /// reason.
    fn preempt(
        &mut self,
        pod: &PodRequest,
        why: &Unschedulable,
    ) -> Option<Result<Preemption, NoPreemption>> {
        match why {
            Unschedulable::NotYet(_) | Unschedulable::NoNodes => return None,
            Unschedulable::Nowhere { .. } if !pod.may_preempt => {
                return Some(Err(NoPreemption::Never));
            }
            Unschedulable::Nowhere { nodes, .. } => {
                let (nodes, helpless) = (*nodes, *nodes);
                return Some(Err(NoPreemption::Nowhere { nodes, helpless }));
            }
            Unschedulable::NoneFits { .. } => {}
        }
        let kept = self.snapshot.reserved_for(&pod.key);
        let reserved = self.snapshot.take_reserved(pod);
        let found = if kept.is_some_and(|node| awaits_victims(pod, &self.snapshot, node)) {
            Err(NoPreemption::Waits)
        } else {
            preempt(pod, &self.snapshot, &self.budgets)
        };
        self.snapshot.restore_reserved(reserved);
        match &found {
            // Pods of lower priority must not take the place while the victims end.
            Ok(preemption) => self.snapshot.reserve(pod.clone(), &preemption.node),
            Err(NoPreemption::Waits) => {}
            Err(NoPreemption::Never | NoPreemption::Nowhere { .. }) => {
                self.snapshot.release(&pod.key);
            }
        }
        Some(found)
    }

    /// Takes the result of a write.
    pub fn written(&mut self, Written(outcome): Written, now: Instant) {
        let (key, uid, result) = match outcome {
            Outcome::Bind { key, uid, result } => (key, uid, result),
            Outcome::Claimed { result, bindings } => return self.claimed(result, &bindings, now),
            Outcome::ConditionWritten { again } => {
                for key in &again {
                    self.queue.retry(key, now);
                }
                return;
            }
        };
        match result {
            Ok(()) => self.queue.bound(&key, &uid),
            // It counts on its node, and the bind is repeated, until it is known whether the pod is
            // there.
            Err(Unbound::Unclear(error)) => {
                tracing::warn!(pod = %key, error = chain(&error), "a pod may be bound; trying again");
                self.queue.unclear(&key, now);
            }
            Err(Unbound::Refused(error)) => {
                if let Some(held) = self.snapshot.forget(&key, &uid) {
                    self.help(&held.into(), now);
                }
                if error.is_not_found() {
                    tracing::debug!(pod = %key, "pod was deleted before it was bound");
                } else {
                    tracing::warn!(pod = %key, error = chain(&error), "cannot bind; trying again");
                }
                // A deleted pod leaves the queue when its deletion is seen.
                self.queue.failed(&key, now);
            }
        }
    }
}
