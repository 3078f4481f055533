//! The scheduler as a simulated process: it decides while its writes are in progress, and sees the
//! cluster late.

use super::dice::Dice;
use super::history::{Event, History};
use super::kinds::Any;
use super::simulation::Process;
use config_kube::identity::SCHEDULER_USER;
use config_kube::k8s_openapi::Metadata as _;
use futures_util::future::LocalBoxFuture;
use master_client::{Change, Client, Gone, Key, UserInfo, View};
use master_control::controller::Now;
use master_schedule::{Budget, ClusterChange, NodeInfo, PodReader, Profile, Scheduler, Write};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Concurrent writes.
const IN_FLIGHT: usize = 4;

/// Converts each object of a kind for the scheduler.
macro_rules! each {
    ($objects:expr, $kind:ident, |$one:ident| $read:expr) => {
        $objects
            .filter_map(|any| {
                if let Any::$kind($one) = any {
                    Some($read)
                } else {
                    None
                }
            })
            .collect()
    };
}

pub(crate) struct Scheduling {
    profile: Arc<Profile>,
    client: Client,
    scheduler: Scheduler,
    reader: PodReader,
    writes: Vec<Write>,
    /// Decides which of its writes ends first.
    dice: Dice,
    seen: BTreeMap<&'static str, usize>,
}

impl Scheduling {
    /// The scheduler with a name, for pods with that `schedulerName`.
    pub(crate) fn boxed(
        name: &str,
        api: &Client,
        history: &History,
        seed: u64,
        now: Now,
    ) -> Box<dyn Process> {
        let profile = Arc::new(Profile {
            name: name.to_owned(),
            ..(*Profile::default_profile()).clone()
        });
        let user = UserInfo::authenticated(SCHEDULER_USER, Vec::<String>::new());
        let client = api.acting_as(user);
        let scheduler = Scheduler::new(client.clone(), vec![Arc::clone(&profile)]);
        let mut begun = Self {
            profile,
            client,
            reader: scheduler.reader(),
            scheduler,
            writes: Vec::new(),
            dice: Dice(seed),
            seen: BTreeMap::new(),
        };
        begun.restart(history, now);
        Box::new(begun)
    }

    /// The changes of these events that the scheduler follows.
    fn change(&self, events: &[Event]) -> Vec<ClusterChange> {
        let each = events.iter().filter_map(|event| {
            let gone = || Gone::of(event.object.meta());
            Some(match (&event.object, event.gone) {
                (Any::Pod(_), Some(_)) => ClusterChange::Pods(Change::Deleted(gone())),
                (Any::Node(_), Some(_)) => ClusterChange::Nodes(Change::Deleted(gone())),
                (Any::Budget(_), Some(_)) => ClusterChange::Budgets(Change::Deleted(gone())),
                (Any::Pod(pod), None) => ClusterChange::Pods(Change::Set(self.reader.read(pod))),
                (Any::Node(node), None) => ClusterChange::Nodes(Change::Set(NodeInfo::of(node))),
                (Any::Budget(one), None) => ClusterChange::Budgets(Change::Set(Budget::of(one))),
                (Any::Claim(_), Some(_)) => ClusterChange::Claims(Change::Deleted(gone())),
                (Any::Volume(_), Some(_)) => ClusterChange::Volumes(Change::Deleted(gone())),
                (Any::Class(_), Some(_)) => ClusterChange::Classes(Change::Deleted(gone())),
                (Any::Claim(one), None) => ClusterChange::Claims(Change::Set(keyed(one))),
                (Any::Volume(one), None) => ClusterChange::Volumes(Change::Set(keyed(one))),
                (Any::Class(one), None) => ClusterChange::Classes(Change::Set(keyed(one))),
                (_, _) => return None,
            })
        });
        each.collect()
    }

    /// A list of a kind.
    fn listed(&self, kind: &str, objects: &[Any]) -> Option<ClusterChange> {
        let objects = || objects.iter();
        Some(match kind {
            "pods" => ClusterChange::Pods(Change::Listed(each!(objects(), Pod, |pod| self
                .reader
                .read(pod)))),
            "nodes" => {
                ClusterChange::Nodes(Change::Listed(each!(objects(), Node, |node| NodeInfo::of(
                    node
                ))))
            }
            "poddisruptionbudgets" => {
                ClusterChange::Budgets(Change::Listed(each!(objects(), Budget, |one| Budget::of(
                    one
                ))))
            }
            "persistentvolumeclaims" => {
                ClusterChange::Claims(Change::Listed(each!(objects(), Claim, |one| keyed(one))))
            }
            "persistentvolumes" => {
                ClusterChange::Volumes(Change::Listed(each!(objects(), Volume, |one| keyed(one))))
            }
            "storageclasses" => {
                ClusterChange::Classes(Change::Listed(each!(objects(), Class, |one| keyed(one))))
            }
            _ => return None,
        })
    }
}

/// An object as the scheduler sees it, with its key.
fn keyed<V: View>(object: &Arc<V::Object>) -> (Key, V)
where
    V::Object: Clone,
{
    (Key::of(object.metadata()), V::read((**object).clone()))
}

impl Process for Scheduling {
    fn name(&self) -> &'static str {
        "scheduler"
    }

    fn restart(&mut self, history: &History, now: Now) {
        self.scheduler = Scheduler::new(self.client.clone(), vec![Arc::clone(&self.profile)]);
        self.reader = self.scheduler.reader();
        // Writes in progress are not carried out.
        self.writes.clear();
        let none = [
            ClusterChange::Namespaces(Change::Listed(Vec::new())),
            ClusterChange::Claims(Change::Listed(Vec::new())),
            ClusterChange::Volumes(Change::Listed(Vec::new())),
            ClusterChange::Classes(Change::Listed(Vec::new())),
            ClusterChange::Limits(Change::Listed(Vec::new())),
            ClusterChange::Drivers(Change::Listed(Vec::new())),
            ClusterChange::Capacities(Change::Listed(Vec::new())),
            ClusterChange::Services(Change::Listed(Vec::new())),
        ];
        for change in none {
            self.scheduler.see(change, now.instant);
        }
        for kind in history.kinds {
            self.lose_watch(history, kind, now);
        }
    }

    fn see(&mut self, history: &History, kind: &'static str, most: usize, now: Now) -> bool {
        let (seen, log) = (self.seen[kind], &history.logs[kind]);
        let until = seen.saturating_add(most).min(log.len());
        for change in self.change(&log[seen..until]) {
            self.scheduler.see(change, now.instant);
        }
        self.seen.insert(kind, until);
        if self.scheduler.must_relist(now.instant) {
            self.lose_watch(history, "pods", now);
        }
        seen < until
    }

    fn lose_watch(&mut self, history: &History, kind: &'static str, now: Now) {
        if let Some(change) = self.listed(kind, history.objects(kind)) {
            self.scheduler.see(change, now.instant);
        }
        self.seen.insert(kind, history.logs[kind].len());
    }

    /// Makes a decision, or finishes one of its writes.
    fn run<'a>(&'a mut self, _: &'a Client, now: Now) -> LocalBoxFuture<'a, bool> {
        Box::pin(async move {
            self.scheduler.wake(now.instant);
            let may_decide = self.scheduler.ready() && self.writes.len() < IN_FLIGHT;
            if may_decide && (self.writes.is_empty() || self.dice.below(2) == 0) {
                self.writes.extend(self.scheduler.decide(now.instant));
                return true;
            }
            if self.writes.is_empty() {
                return false;
            }
            let write = self.writes.remove(self.dice.below(self.writes.len()));
            let written = write.await;
            self.scheduler.written(written, now.instant);
            true
        })
    }

    fn wake(&mut self, now: Now) -> Option<Instant> {
        let next = self.scheduler.wake(now.instant);
        if self.scheduler.ready() || !self.writes.is_empty() {
            return Some(now.instant);
        }
        next
    }
}
