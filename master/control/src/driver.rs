//! The driver: feeds work queues with the keys that changes concern, plans keys, and carries out
//! actions.
//!
//! One future, without tasks and channels. Controllers take turns, each plans one key per turn, and
//! none may have more than its share of the writes in progress. Within a controller namespaces take
//! turns, and a namespace has a share of its runs ([`crate::queue`]). What a single plan or a step
//! of a run computes without awaiting still delays all: controllers must bound it.

use crate::controller::{Controller, Now, Plan, Right};
use crate::figures::{End, Figures};
use crate::options::Options;
use crate::queue::{MAX_PER_NAMESPACE, Outcome, Taken, WorkQueue};
use crate::rights;
use crate::setup::{Changed, Declaration, Setup, Sources};
use crate::writer::{Stores, Writer};
use config_errors::chain;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use master_client::{ApiError, Client, Key, Recorder};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs with writes that may be under way at once.
const MAX_IN_FLIGHT: usize = 64;
/// Of these, the share of one controller. A namespace has [`MAX_PER_NAMESPACE`] of it.
const MAX_PER_CONTROLLER: usize = 16;
const _: () = assert!(MAX_PER_NAMESPACE < MAX_PER_CONTROLLER);
/// Keys that are planned before changes are read again.
const PLANS_PER_ROUND: usize = 64;
/// What a controller's runs need: the API with its own user.
struct RunContext {
    client: Client,
    recorder: Arc<Recorder>,
}

impl RunContext {
    fn of(worker: &Worker, shared: &Client) -> Self {
        let client = shared.acting_as(rights::user(worker.name));
        Self {
            recorder: Arc::new(Recorder::new(client.clone(), worker.component)),
            client,
        }
    }
}

/// A run that was planned.
struct Run {
    actions: usize,
    /// The remaining work of a run, and its result.
    work: Option<BoxFuture<'static, (End, Outcome)>>,
    requeue: Option<Duration>,
}

/// A controller behind a trait object: its facts and actions have types of their own.
trait Reconcile: Send {
    fn plan(&self, key: &Key, now: Now, context: &RunContext, stores: &Stores) -> Run;
}

impl<C: Controller> Reconcile for Arc<C> {
    fn plan(&self, key: &Key, now: Now, context: &RunContext, stores: &Stores) -> Run {
        let facts = self.facts(key, now);
        let plan = facts.map_or_else(Plan::nothing, |facts| C::plan(&facts, now));
        let (requeue, actions) = (plan.requeue, plan.actions.len());
        if plan.actions.is_empty() {
            return Run {
                actions,
                work: None,
                requeue,
            };
        }
        tracing::trace!(controller = C::NAME, %key, actions = ?plan.actions, "planned");
        let writer = Writer::new(
            context.client.clone(),
            Arc::clone(&context.recorder),
            Arc::clone(stores),
            now,
        );
        let (controller, key) = (Arc::clone(self), key.clone());
        let work = async move { carry_out(&*controller, &key, plan, writer).await };
        Run {
            actions,
            work: Some(Box::pin(work)),
            requeue,
        }
    }
}

/// Carries a plan out, one action after another; the first that fails ends the run.
pub(crate) async fn carry_out<C: Controller>(
    controller: &C,
    key: &Key,
    plan: Plan<C::Action>,
    writer: Writer,
) -> (End, Outcome) {
    for action in plan.actions {
        if let Err(error) = controller.carry_out(action, &writer).await {
            // The next plan must know about the earlier writes.
            let expectations = writer.into_expectations();
            return (
                failed(C::NAME, key, &error),
                Outcome::Retry { expectations },
            );
        }
    }
    let done = Outcome::Done {
        requeue: plan.requeue,
        expectations: writer.into_expectations(),
    };
    (End::Done, done)
}

fn failed(controller: &str, key: &Key, error: &ApiError) -> End {
    let stale = error.is_not_found() || error.is_conflict() || error.is_already_exists();
    if stale {
        tracing::debug!(controller, %key, error = chain(error), "write rejected: the cache was stale; planning again");
        End::Stale
    } else {
        tracing::warn!(
            controller,
            namespace = key.namespace,
            name = key.name,
            error = chain(error),
            "a controller's action failed; trying again"
        );
        End::Error
    }
}

/// A controller with its queue.
struct Worker {
    name: &'static str,
    /// Name in events.
    component: &'static str,
    reconcile: Box<dyn Reconcile>,
    queue: WorkQueue,
    stores: Stores,
    /// Sources that must be listed before anything is planned.
    sources: Vec<usize>,
    /// Whether all of these sources are listed.
    informed: bool,
    running: usize,
}

impl Worker {
    /// Whether it may plan: every source is listed, as a plan on half of the objects would do harm,
    /// and its share of the runs is not used up.
    fn may_plan(&self) -> bool {
        self.informed && self.running < MAX_PER_CONTROLLER
    }
}

/// A controller as the list of all names it.
#[derive(Debug, Clone, Copy)]
pub struct Registration {
    /// Name in logs and metrics.
    pub name: &'static str,
    /// The rights that it needs.
    pub rights: &'static [Right],
    add: fn(Controllers) -> Controllers,
}

impl Registration {
    /// The registration of a controller.
    pub const fn of<C: Controller>() -> Self {
        Self {
            name: C::NAME,
            rights: C::RIGHTS,
            add: Controllers::with::<C>,
        }
    }
}

/// All controllers of a process, which share followers and stores.
pub struct Controllers {
    options: Options,
    sources: Sources,
    workers: Vec<Worker>,
    figures: Arc<Figures>,
}

impl std::fmt::Debug for Controllers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.workers.iter().map(|worker| worker.name);
        f.debug_list().entries(names).finish()
    }
}

impl Controllers {
    /// No controllers yet.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            sources: Sources::default(),
            workers: Vec::new(),
            figures: Arc::default(),
        }
    }

    /// The controllers of the list.
    pub fn of(list: &[Registration], options: Options) -> Self {
        let list = list.iter();
        list.fold(Self::new(options), |all, registration| {
            (registration.add)(all)
        })
    }

    /// Adds a controller.
    #[must_use]
    pub fn with<C: Controller>(self) -> Self {
        self.with_made(C::new)
    }

    /// Adds a controller that needs more than [`Controller::new`] gives it.
    #[must_use]
    pub fn with_made<C: Controller>(mut self, make: impl FnOnce(&mut Setup<'_>) -> C) -> Self {
        let number = self.workers.len();
        let (controller, declared) = Setup::make(&mut self.sources, &self.options, number, make);
        self.workers.push(worker(controller, declared));
        self
    }

    /// Metrics of the work queues.
    pub fn figures(&self) -> Arc<Figures> {
        Arc::clone(&self.figures)
    }

    /// Runs all controllers until `shutdown` resolves. Writes under way are dropped then: what was
    /// not written is planned again by the next process.
    ///
    /// `client` reads what is followed; each controller acts as a user of its own
    /// ([`crate::roles`]).
    pub async fn run(self, client: Client, shutdown: impl Future<Output = ()> + Send) {
        let mut events = self.sources.start(&client);
        let context = self.workers.iter();
        let context = context.map(|worker| RunContext::of(worker, &client));
        let mut driver = Driver {
            context: context.collect(),
            readers: readers(&self.workers),
            workers: self.workers,
            figures: self.figures,
            whole: BTreeSet::new(),
            turn: 0,
            in_flight: FuturesUnordered::new(),
        };
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            driver.start(Now::read());
            let wake = driver.wake(Instant::now());
            // All arms are cancel-safe: streams keep what they have not handed out.
            tokio::select! {
                () = &mut shutdown => return,
                Some(changed) = events.next() => driver.changed(changed, Instant::now()),
                Some(ended) = driver.in_flight.next() => driver.ended(ended, Instant::now()),
                () = wait(wake) => {}
            }
            // With many due keys nothing here awaits; yield to the other tasks of the process.
            tokio::task::yield_now().await;
        }
    }
}

async fn wait(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

fn worker<C: Controller>(controller: C, declared: Declaration) -> Worker {
    let mut queue = WorkQueue::default();
    let now = Instant::now();
    let stores = declared.stores();
    for key in declared.keys {
        queue.add(Arc::new(key), now);
    }
    Worker {
        name: C::NAME,
        component: C::COMPONENT,
        reconcile: Box::new(Arc::new(controller)),
        queue,
        stores,
        informed: declared.sources.is_empty(),
        sources: declared.sources,
        running: 0,
    }
}

/// The numbers of the workers that depend on each source.
fn readers(workers: &[Worker]) -> BTreeMap<usize, Vec<usize>> {
    let mut readers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (number, worker) in workers.iter().enumerate() {
        for source in &worker.sources {
            readers.entry(*source).or_default().push(number);
        }
    }
    readers
}

struct Ended {
    worker: usize,
    key: Arc<Key>,
    began: Instant,
    end: End,
    outcome: Outcome,
}

struct Driver {
    workers: Vec<Worker>,
    /// By the workers' numbers.
    context: Vec<RunContext>,
    /// The workers that depend on a source.
    readers: BTreeMap<usize, Vec<usize>>,
    figures: Arc<Figures>,
    /// Sources of which everything is known.
    whole: BTreeSet<usize>,
    /// The index of the worker that plans next (round robin).
    turn: usize,
    in_flight: FuturesUnordered<BoxFuture<'static, Ended>>,
}

impl Driver {
    /// When something is due, if nothing changes.
    fn wake(&self, now: Instant) -> Option<Instant> {
        if self.in_flight.len() >= MAX_IN_FLIGHT {
            return None;
        }
        let ready = self.workers.iter().filter(|worker| worker.may_plan());
        ready.filter_map(|worker| worker.queue.wake(now)).min()
    }

    /// Plans keys that are due, the controllers in turn.
    fn start(&mut self, now: Now) {
        let mut idle = 0;
        let mut planned = 0;
        while idle < self.workers.len()
            && planned < PLANS_PER_ROUND
            && self.in_flight.len() < MAX_IN_FLIGHT
        {
            let number = self.turn % self.workers.len();
            self.turn = number + 1;
            let worker = &mut self.workers[number];
            let taken = if worker.may_plan() {
                worker.queue.take(now.instant)
            } else {
                None
            };
            match taken {
                None => idle += 1,
                Some(taken) => {
                    idle = 0;
                    planned += 1;
                    self.plan(number, taken, now);
                }
            }
        }
    }

    fn plan(&mut self, number: usize, taken: Taken, now: Now) {
        let worker = &mut self.workers[number];
        let run = worker
            .reconcile
            .plan(&taken.key, now, &self.context[number], &worker.stores);
        self.figures
            .planned(worker.name, taken.waited, run.actions, worker.queue.depth());
        let Some(work) = run.work else {
            let outcome = Outcome::Done {
                requeue: run.requeue,
                expectations: Vec::new(),
            };
            worker.queue.finish(&taken.key, outcome, now.instant);
            return;
        };
        worker.running += 1;
        let key = taken.key;
        self.in_flight.push(Box::pin(async move {
            let (end, outcome) = work.await;
            Ended {
                worker: number,
                key,
                began: now.instant,
                end,
                outcome,
            }
        }));
    }

    fn ended(&mut self, ended: Ended, now: Instant) {
        let worker = &mut self.workers[ended.worker];
        worker.running = worker.running.saturating_sub(1);
        worker.queue.finish(&ended.key, ended.outcome, now);
        let took = now.saturating_duration_since(ended.began);
        self.figures.ended(worker.name, took, ended.end);
    }

    /// Takes a change. Changes and workers are many, and a change concerns few workers: nothing
    /// here may loop over all of them.
    fn changed(&mut self, changed: Changed, now: Instant) {
        let readers = self
            .readers
            .get(&changed.source)
            .map_or(&[][..], Vec::as_slice);
        let differs = if changed.whole {
            self.whole.insert(changed.source)
        } else {
            self.whole.remove(&changed.source)
        };
        if differs {
            for number in readers {
                let worker = &mut self.workers[*number];
                let mut sources = worker.sources.iter();
                worker.informed = sources.all(|source| self.whole.contains(source));
            }
        }
        let mut added: BTreeMap<usize, _> = BTreeMap::new();
        for (number, key) in changed.keys {
            *added.entry(number).or_default() += 1;
            self.workers[number].queue.add(Arc::new(key), now);
        }
        for number in readers {
            self.workers[*number].queue.observe(now);
        }
        for (number, added) in added {
            let worker = &self.workers[number];
            self.figures.added(worker.name, added, worker.queue.depth());
        }
    }
}
