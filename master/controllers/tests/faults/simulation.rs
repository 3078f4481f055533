//! Controllers over the real API server and store, driven step by step: a seed decides what each
//! has seen, which of them runs, which calls fail and when the process restarts. Time is simulated,
//! so there are no waits.
//!
//! Each controller has stores of its own that lag behind the API, kind by kind; runs, queues and
//! expectations are the real ones. A store never goes back, and a restarted process begins with the
//! current state, as with real watches.

use super::api::{Deletion, Faulty};
use super::kinds::{Any, Read, list, relist, version};
use config_kube::k8s_openapi::api::core::v1::Pod;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use futures_util::future::LocalBoxFuture;
use jiff::{SignedDuration, Timestamp};
use master_client::{Client, Transport, UserInfo};
use master_control::controller::{Controller, Now};
use master_control::options::Options;
use master_control::queue::WorkQueue;
use master_control::setup::{Setup, Stand};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// When each life begins: the first of January 2026.
const FIRST: Timestamp = Timestamp::constant(1_767_225_600, 0);

/// A change, as a watch shows it.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) object: Any,
    /// The resource version at which it went.
    pub(crate) gone: Option<u64>,
}

/// The API's objects, and their history.
pub(crate) struct History {
    /// Reads and writes of people, nodes and tests: nothing of it fails.
    pub(crate) admin: Client,
    /// What takes part, by plurals.
    pub(crate) kinds: &'static [&'static str],
    api: Arc<Faulty>,
    pub(crate) logs: BTreeMap<&'static str, Vec<Event>>,
    /// The resource version up to which each kind is known.
    revisions: BTreeMap<&'static str, u64>,
    /// The objects of each kind, in the order in which they came: one that no random name changes.
    now: BTreeMap<&'static str, Vec<Any>>,
    read: BTreeMap<&'static str, Read>,
    /// How many changes there were.
    pub(crate) changes: usize,
    /// What processes have deleted since it was looked at, and how it was then.
    pub(crate) deleted: Vec<(Deletion, Any)>,
}

impl History {
    pub(crate) async fn begin(
        admin: Client,
        api: Arc<Faulty>,
        kinds: &'static [&'static str],
    ) -> Self {
        let mut history = Self {
            admin,
            kinds,
            api,
            logs: kinds.iter().map(|kind| (*kind, Vec::new())).collect(),
            revisions: BTreeMap::new(),
            now: kinds.iter().map(|kind| (*kind, Vec::new())).collect(),
            read: BTreeMap::new(),
            changes: 0,
            deleted: Vec::new(),
        };
        history.look(kinds).await;
        history
    }

    /// Looks at what controllers wrote, and at these kinds.
    pub(crate) async fn look(&mut self, more: &[&'static str]) {
        for deletion in self.api.deletions() {
            let mut all = self.now.get(deletion.kind).into_iter().flatten();
            let known = all.find(|any| any.name() == deletion.name);
            if let Some(object) = known.cloned() {
                self.check_owners(&deletion, &object);
                self.deleted.push((deletion, object));
            }
        }
        let mut kinds = self.api.written();
        kinds.extend(more);
        if kinds.contains("pods") {
            // An eviction pays from a budget.
            kinds.insert("poddisruptionbudgets");
        }
        for kind in kinds {
            let read = self.read.entry(kind).or_default();
            let (revision, items) = list(&self.admin, kind, read).await;
            self.note(kind, revision, items);
        }
    }

    /// The garbage collector deletes nothing that has an owner, except for one that waits for it.
    fn check_owners(&self, deletion: &Deletion, object: &Any) {
        if deletion.by != "system:controller:garbage-collector" {
            return;
        }
        for owner in object.meta().owner_references.iter().flatten() {
            let mut all = self.now.values().flatten();
            let found = all.find(|any| any.meta().uid.as_ref() == Some(&owner.uid));
            let waits = |meta: &ObjectMeta| {
                let mut finalizers = meta.finalizers.iter().flatten();
                meta.deletion_timestamp.is_some()
                    && finalizers.any(|one| one == "foregroundDeletion")
            };
            assert!(
                found.is_none_or(|owner| waits(owner.meta())),
                "{deletion:?}: it is garbage to the collector, and has its owner"
            );
        }
    }

    fn note(&mut self, kind: &'static str, revision: u64, items: Vec<Any>) {
        self.revisions.insert(kind, revision);
        let (now, log) = (
            self.now.get_mut(kind).unwrap(),
            self.logs.get_mut(kind).unwrap(),
        );
        let before = log.len();
        // Deletions are shown first, so they must carry no revision as new as the list's: the
        // process would believe that it has seen its own concurrent creations, and repeat them.
        let first_change = |known: &[Any]| {
            let before: HashMap<&str, u64> = known
                .iter()
                .map(|any| (any.uid(), version(any.meta())))
                .collect();
            let versions = items.iter().map(|any| (any.uid(), version(any.meta())));
            let changed = versions.filter(|(uid, version)| before.get(uid) != Some(version));
            changed.map(|(_, version)| version).min()
        };
        let gone = first_change(now).map_or(revision, |first| revision.min(first - 1));
        let there: HashMap<&str, &Any> = items.iter().map(|any| (any.uid(), any)).collect();
        now.retain(|any| {
            let stays = there.contains_key(any.uid());
            if !stays {
                log.push(Event {
                    object: any.clone(),
                    gone: Some(gone),
                });
            }
            stays
        });
        let mut changed = Vec::new();
        for any in now.iter_mut() {
            let new = there[any.uid()];
            if new.meta().resource_version != any.meta().resource_version {
                *any = new.clone();
                changed.push(new.clone());
            }
        }
        let known: HashSet<&str> = now.iter().map(Any::uid).collect();
        let new = items.iter().filter(|any| !known.contains(any.uid()));
        let mut new: Vec<Any> = new.cloned().collect();
        new.sort_by_key(|any| version(any.meta()));
        changed.extend(new.iter().cloned());
        changed.sort_by_key(|any| version(any.meta()));
        now.extend(new);
        log.extend(
            changed
                .into_iter()
                .map(|object| Event { object, gone: None }),
        );
        self.changes += log.len() - before;
    }

    /// Objects of a kind as they are, in the order in which they came.
    pub(crate) fn objects(&self, kind: &'static str) -> &[Any] {
        &self.now[kind]
    }

    pub(crate) fn pods(&self) -> Vec<&Pod> {
        self.each_pod().map(|pod| &**pod).collect()
    }

    /// Pods as they are now, while they change.
    pub(crate) fn pods_now(&self) -> Vec<Arc<Pod>> {
        self.each_pod().cloned().collect()
    }

    fn each_pod(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let all = self.objects("pods").iter();
        all.filter_map(|any| {
            if let Any::Pod(pod) = any {
                Some(pod)
            } else {
                None
            }
        })
    }
}

/// A controller in its process.
pub(crate) trait Process {
    fn name(&self) -> &'static str;
    /// Restarts the process: it forgets everything and lists again.
    fn restart(&mut self, history: &History, now: Now);
    /// Shows it `most` more changes of a kind at most; whether there were any.
    fn see(&mut self, history: &History, kind: &'static str, most: usize, now: Now) -> bool;
    /// Its watch of a kind ends, and what happened meanwhile is too old: it lists again.
    fn lose_watch(&mut self, history: &History, kind: &'static str, now: Now);
    /// It runs the next key that is due; whether there was one.
    fn run<'a>(&'a mut self, api: &'a Client, now: Now) -> LocalBoxFuture<'a, bool>;
    /// When something is due.
    fn wake(&mut self, now: Now) -> Option<Instant>;
}

pub(crate) struct Worker<C> {
    controller: C,
    stand: Stand,
    queue: WorkQueue,
    seen: BTreeMap<&'static str, usize>,
}

impl<C: Controller> Worker<C> {
    pub(crate) fn boxed(history: &History) -> Box<dyn Process> {
        Box::new(Self::new(history))
    }

    fn new(history: &History) -> Self {
        let (controller, mut stand) = Setup::alone::<C>(&Options::default());
        stand.serve(&history.admin.resources());
        Self {
            controller,
            stand,
            queue: WorkQueue::default(),
            seen: BTreeMap::new(),
        }
    }
}

impl<C: Controller> Process for Worker<C> {
    fn name(&self) -> &'static str {
        C::NAME
    }

    fn restart(&mut self, history: &History, now: Now) {
        *self = Self::new(history);
        for kind in history.kinds {
            for any in history.objects(kind) {
                for key in any.show(&mut self.stand, None) {
                    self.queue.add(Arc::new(key), now.instant);
                }
            }
            self.seen.insert(kind, history.logs[kind].len());
        }
    }

    fn see(&mut self, history: &History, kind: &'static str, most: usize, now: Now) -> bool {
        let seen = self.seen.entry(kind).or_default();
        let log = &history.logs[kind];
        let until = seen.saturating_add(most).min(log.len());
        let some = *seen < until;
        for event in &log[*seen..until] {
            for key in event.object.show(&mut self.stand, event.gone) {
                self.queue.add(Arc::new(key), now.instant);
            }
        }
        *seen = until;
        self.queue.observe(now.instant);
        some
    }

    fn lose_watch(&mut self, history: &History, kind: &'static str, now: Now) {
        let (objects, revision) = (history.objects(kind), history.revisions[kind]);
        for key in relist(&mut self.stand, kind, objects, revision) {
            self.queue.add(Arc::new(key), now.instant);
        }
        self.seen.insert(kind, history.logs[kind].len());
        self.queue.observe(now.instant);
    }

    fn run<'a>(&'a mut self, api: &'a Client, now: Now) -> LocalBoxFuture<'a, bool> {
        Box::pin(async move {
            let Some(taken) = self.queue.take(now.instant) else {
                return false;
            };
            let run = self.stand.run(&self.controller, &taken.key, now, api);
            let outcome = run.await;
            self.queue.finish(&taken.key, outcome, now.instant);
            true
        })
    }

    fn wake(&mut self, now: Now) -> Option<Instant> {
        self.queue.wake(now.instant)
    }
}

/// The clock of the day of all processes, and of the API.
#[derive(Debug, Clone)]
pub(crate) struct Day(Arc<Mutex<Timestamp>>);

impl Day {
    /// The same in every run, so that a seed repeats itself.
    pub(crate) fn first() -> Self {
        Self(Arc::new(Mutex::new(FIRST)))
    }

    pub(crate) fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }

    fn set(&self, time: Timestamp) {
        *self.0.lock().unwrap() = time;
    }
}

/// All controllers with their simulated clock.
pub(crate) struct Processes {
    pub(crate) all: Vec<Box<dyn Process>>,
    pub(crate) api: Arc<Faulty>,
    pub(crate) client: Client,
    pub(crate) now: Now,
    day: Day,
}

impl Processes {
    pub(crate) fn new(all: Vec<Box<dyn Process>>, api: Arc<Faulty>, day: Day) -> Self {
        let reader = UserInfo::authenticated("controllers", Vec::<String>::new());
        Self {
            all,
            client: Client::new(Arc::clone(&api) as Arc<dyn Transport>, reader),
            api,
            now: Now {
                instant: Instant::now(),
                wall: day.now(),
            },
            day,
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = Now {
            instant: self.now.instant + time,
            wall: self.now.wall + SignedDuration::try_from(time).unwrap(),
        };
        self.day.set(self.now.wall);
    }

    /// The clock of the day is set; time that has passed is not changed by it.
    pub(crate) fn set_clock(&mut self, by: SignedDuration) {
        self.now.wall += by;
        self.day.set(self.now.wall);
    }

    /// One of them runs a key; if it has to end in the middle, it restarts afterwards.
    pub(crate) async fn run(
        &mut self,
        number: usize,
        history: &mut History,
        ends_after: Option<usize>,
    ) -> bool {
        self.api.end_after(ends_after);
        let ran = self.all[number].run(&self.client, self.now).await;
        self.api.end_after(None);
        history.look(&[]).await;
        if ends_after.is_some() {
            self.all[number].restart(history, self.now);
        }
        ran
    }

    fn due(&mut self) -> Option<Instant> {
        let all = self.all.iter_mut();
        all.filter_map(|one| one.wake(self.now)).min()
    }

    /// Time goes on to the next thing that is due; whether there is any.
    pub(crate) fn wait(&mut self) -> bool {
        let Some(due) = self.due() else { return false };
        self.pass(due.saturating_duration_since(self.now.instant));
        true
    }
}
