//! Controllers over the real API server and store, driven step by step: a seed decides what each
//! has seen, which of them runs, which calls fail and when the process restarts. Time is simulated,
//! so there are no waits.
//!
//! Each controller has stores of its own that lag behind the API, kind by kind; runs, queues and
//! expectations are the real ones. As with real watches, a store never goes back in time, and a
//! restarted process starts with the current state.

use super::api::{End, Faulty};
use super::history::History;
use super::kinds::relist;
use futures_util::future::LocalBoxFuture;
use jiff::{SignedDuration, Timestamp};
use master_client::{Client, Transport, UserInfo};
use master_control::controller::{Controller, Now};
use master_control::options::Options;
use master_control::queue::WorkQueue;
use master_control::setup::{Setup, TestStores};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

/// The time at which each case starts: the first of January 2026.
const FIRST: Timestamp = Timestamp::constant(1_767_225_600, 0);

/// A controller or scheduler as a simulated process.
pub(crate) trait Process {
    fn name(&self) -> &'static str;
    /// Restarts the process: it forgets everything and lists again.
    fn restart(&mut self, history: &History, now: Now);
    /// Passes it at most `most` more changes of a kind; returns whether there were any.
    fn see(&mut self, history: &History, kind: &'static str, most: usize, now: Now) -> bool;
    /// Its watch of a kind ends and the history is too old: it lists again.
    fn lose_watch(&mut self, history: &History, kind: &'static str, now: Now);
    /// Runs the next key that is due; returns whether there was one.
    fn run<'a>(&'a mut self, api: &'a Client, now: Now) -> LocalBoxFuture<'a, bool>;
    /// When something is due.
    fn wake(&mut self, now: Now) -> Option<Instant>;
}

pub(crate) struct Worker<C> {
    controller: C,
    stand: TestStores,
    queue: WorkQueue,
    seen: BTreeMap<&'static str, usize>,
}

impl<C: Controller> Worker<C> {
    pub(crate) fn boxed(history: &History) -> Box<dyn Process> {
        Box::new(Self::new(history))
    }

    fn new(history: &History) -> Self {
        let (controller, mut stand) = Setup::for_test::<C>(&Options::default());
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
        let (objects, revision) = (history.objects(kind), history.revision);
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

/// The wall clock of all processes and the API.
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
    /// How often each has restarted, by name.
    restarts: BTreeMap<&'static str, usize>,
}

impl Processes {
    pub(crate) fn new(api: Arc<Faulty>, day: Day) -> Self {
        let reader = UserInfo::authenticated("controllers", Vec::<String>::new());
        Self {
            all: Vec::new(),
            client: Client::new(Arc::clone(&api) as Arc<dyn Transport>, reader),
            api,
            now: Now {
                instant: Instant::now(),
                wall: day.now(),
            },
            day,
            restarts: BTreeMap::new(),
        }
    }

    /// Restarts one of them.
    pub(crate) fn restart(&mut self, number: usize, history: &History) {
        let one = &mut self.all[number];
        *self.restarts.entry(one.name()).or_default() += 1;
        one.restart(history, self.now);
    }

    /// How often one has restarted.
    pub(crate) fn restarts(&self, name: &str) -> usize {
        self.restarts.get(name).copied().unwrap_or_default()
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = Now {
            instant: self.now.instant + time,
            wall: self.now.wall + SignedDuration::try_from(time).unwrap(),
        };
        self.day.set(self.now.wall);
    }

    /// Sets the wall clock; the monotonic clock does not change.
    pub(crate) fn set_clock(&mut self, by: SignedDuration) {
        self.now.wall += by;
        self.day.set(self.now.wall);
    }

    /// One of them runs a key, or ends in the middle of that and does nothing any more.
    pub(crate) async fn run(&mut self, number: usize, end: Option<End>) -> bool {
        self.api.begin(end);
        let mut run = self.all[number].run(&self.client, self.now);
        let ran = poll_fn(|context| match run.as_mut().poll(context) {
            Poll::Ready(ran) => Poll::Ready(ran),
            Poll::Pending if self.api.has_ended() => Poll::Ready(true),
            Poll::Pending => Poll::Pending,
        });
        let ran = ran.await;
        drop(run);
        self.api.finish();
        ran
    }

    fn due(&mut self) -> Option<Instant> {
        let all = self.all.iter_mut();
        all.filter_map(|one| one.wake(self.now)).min()
    }

    /// Lets time pass until something is due; returns whether anything is.
    pub(crate) fn wait(&mut self) -> bool {
        let Some(due) = self.due() else { return false };
        self.pass(due.saturating_duration_since(self.now.instant));
        true
    }
}
