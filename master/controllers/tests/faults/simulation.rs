//! Controllers over the real API server and store, driven step by step: a seed decides what each
//! has seen, which of them runs, which calls fail and when the process restarts. Time is simulated,
//! so there are no waits.
//!
//! Each controller has stores of its own that lag behind the API, kind by kind; runs, queues and
//! expectations are the real ones. A store never goes back, and a restarted process begins with the
//! current state, as with real watches.

use config_kube::k8s_openapi::api::apps::v1::{
    ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet,
};
use config_kube::k8s_openapi::api::batch::v1::Job;
use config_kube::k8s_openapi::api::core::v1::{Node, Pod};
use config_kube::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use futures_util::future::LocalBoxFuture;
use http::{Method, Request, Response};
use jiff::SignedDuration;
use master_client::{
    Body, BoxFuture, Client, ListParams, Object, Resource, Transport, UserInfo, body,
};
use master_control::controller::{Controller, Now};
use master_control::options::Options;
use master_control::queue::WorkQueue;
use master_control::setup::{Setup, Stand};
use master_control_workloads::disruption_budget::Budget;
use master_control_workloads::workload::kept::Kept;
use master_control_workloads::workload::place::Place;
use master_control_workloads::workload::pod::OwnedPod;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Numbers by a seed (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below another.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap().max(1);
        usize::try_from(self.next() % end).unwrap()
    }

    pub(crate) fn pick<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        let at = self.below(all.len());
        all.get(at)
    }
}

/// Which calls fail, in per cent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// Refused: a conflict or an error of the server.
    pub(crate) refused: usize,
    /// Done, and its answer is lost.
    pub(crate) lost: usize,
}

/// The API, some calls of which fail.
#[derive(Debug)]
pub(crate) struct Faulty {
    api: Arc<dyn Transport>,
    state: Mutex<FaultyState>,
}

#[derive(Debug)]
struct FaultyState {
    dice: Dice,
    faults: Faults,
    /// Calls until the process ends; none: it does not.
    left: Option<usize>,
    /// Kinds that were written, by their plurals.
    written: BTreeSet<&'static str>,
}

impl Faulty {
    pub(crate) fn new(api: Arc<dyn Transport>, seed: u64, faults: Faults) -> Arc<Self> {
        let state = FaultyState {
            dice: Dice(seed),
            faults,
            left: None,
            written: BTreeSet::new(),
        };
        let state = Mutex::new(state);
        Arc::new(Self { api, state })
    }

    /// From now on no call fails.
    pub(crate) fn mend(&self) {
        let mut state = self.state.lock().unwrap();
        state.faults = Faults::default();
        state.left = None;
    }

    /// After so many calls every call fails, as its process has ended.
    fn end_after(&self, calls: Option<usize>) {
        self.state.lock().unwrap().left = calls;
    }

    fn draw(&self, method: &Method, path: &str) -> Fate {
        let mut state = self.state.lock().unwrap();
        if let Some(left) = &mut state.left {
            let Some(fewer) = left.checked_sub(1) else {
                return Fate::Refused(503, "ServiceUnavailable");
            };
            *left = fewer;
        }
        let (number, kind) = (state.dice.below(100), state.dice.below(2));
        let Faults { refused, lost } = state.faults;
        if number < refused {
            return if kind == 0 {
                Fate::Refused(409, "Conflict")
            } else {
                Fate::Refused(500, "InternalError")
            };
        }
        if *method != Method::GET {
            let plurals = KINDS
                .iter()
                .filter(|kind| path.split('/').any(|part| part == **kind));
            state.written.extend(plurals);
        }
        if number < refused + lost {
            Fate::Lost
        } else {
            Fate::Done
        }
    }
}

enum Fate {
    Done,
    Lost,
    Refused(u16, &'static str),
}

fn refusal(code: u16, reason: &str) -> Response<Body> {
    let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "a fault"});
    let mut response = Response::new(body(status.to_string()));
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
    response
}

impl Transport for Faulty {
    fn call(&self, request: Request<Body>, user: UserInfo) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            match self.draw(request.method(), request.uri().path()) {
                Fate::Refused(code, reason) => refusal(code, reason),
                Fate::Done => self.api.call(request, user).await,
                Fate::Lost => {
                    drop(self.api.call(request, user).await);
                    refusal(504, "Timeout")
                }
            }
        })
    }

    fn resources(&self) -> Vec<Resource> {
        self.api.resources()
    }
}

macro_rules! kinds {
    ($($name:ident $plural:literal $kind:ty => $view:ty),+ $(,)?) => {
        /// The kinds that are followed, by their plurals.
        pub(crate) const KINDS: &[&str] = &[$($plural),+];

        /// An object of any of them.
        #[derive(Debug, Clone)]
        pub(crate) enum Any { $($name(Box<$kind>)),+ }

        impl Any {
            pub(crate) fn meta(&self) -> &ObjectMeta {
                match self { $(Self::$name(object) => &object.metadata),+ }
            }

            fn show(&self, stand: &mut Stand, gone: Option<u64>) -> Vec<master_client::Key> {
                match self {
                    $(Self::$name(object) => {
                        match gone {
                            None => stand.see::<$view>((**object).clone()),
                            Some(revision) => stand.miss::<$view>(object, revision),
                        }
                    })+
                }
            }
        }

        /// A follower of a kind begins anew with a list: it never sees what it has missed.
        fn relist(stand: &mut Stand, plural: &str, objects: Vec<&Any>, revision: u64) -> Vec<master_client::Key> {
            match plural {
                $($plural => {
                    let objects = objects.into_iter().filter_map(|any| {
                        if let Any::$name(object) = any { Some((**object).clone()) } else { None }
                    });
                    stand.list::<$view>(objects.collect(), revision)
                })+
                _ => unreachable!("{plural}"),
            }
        }

        /// All objects of a kind in a namespace; nodes are in none.
        async fn list(api: &Client, plural: &str) -> (u64, Vec<Any>) {
            match plural {
                $($plural => {
                    let (revision, items) = all::<$kind>(api).await;
                    let items = items.into_iter().map(|item| Any::$name(Box::new(item)));
                    (revision, items.collect())
                })+
                _ => unreachable!("{plural}"),
            }
        }
    };
}

kinds! {
    Pod "pods" Pod => OwnedPod,
    ReplicaSet "replicasets" ReplicaSet => Kept<ReplicaSet>,
    Deployment "deployments" Deployment => Kept<Deployment>,
    StatefulSet "statefulsets" StatefulSet => Kept<StatefulSet>,
    DaemonSet "daemonsets" DaemonSet => Kept<DaemonSet>,
    Revision "controllerrevisions" ControllerRevision => Kept<ControllerRevision>,
    Job "jobs" Job => Kept<Job>,
    Budget "poddisruptionbudgets" PodDisruptionBudget => Budget,
    Node "nodes" Node => Place,
}

async fn all<T: Object>(api: &Client) -> (u64, Vec<T>) {
    let list = api.list::<T>(None, &ListParams::default()).await.unwrap();
    (list.resource_version.parse().unwrap(), list.items)
}

fn version(meta: &ObjectMeta) -> u64 {
    let version = meta.resource_version.as_deref();
    version.unwrap_or_default().parse().unwrap()
}

/// A change, as a watch shows it.
#[derive(Debug, Clone)]
struct Event {
    object: Any,
    /// The resource version at which it went.
    gone: Option<u64>,
}

/// The API's objects, and their history.
pub(crate) struct History {
    /// Reads and writes of people, nodes and tests: nothing of it fails.
    pub(crate) admin: Client,
    api: Arc<Faulty>,
    logs: BTreeMap<&'static str, Vec<Event>>,
    /// The resource version up to which each kind is known.
    revisions: BTreeMap<&'static str, u64>,
    now: BTreeMap<(&'static str, String), Any>,
    /// When an object was seen first, by its UID: an order that no random name changes.
    pub(crate) since: HashMap<String, u64>,
}

impl History {
    pub(crate) async fn begin(admin: Client, api: Arc<Faulty>) -> Self {
        let mut history = Self {
            admin,
            api,
            logs: KINDS.iter().map(|kind| (*kind, Vec::new())).collect(),
            revisions: BTreeMap::new(),
            now: BTreeMap::new(),
            since: HashMap::new(),
        };
        history.look(KINDS).await;
        history
    }

    /// Looks at what controllers wrote, and at these kinds.
    pub(crate) async fn look(&mut self, more: &[&'static str]) {
        let mut kinds = std::mem::take(&mut self.api.state.lock().unwrap().written);
        kinds.extend(more);
        if kinds.contains("pods") {
            // An eviction pays from a budget.
            kinds.insert("poddisruptionbudgets");
        }
        for kind in kinds {
            let (revision, items) = list(&self.admin, kind).await;
            self.note(kind, revision, items);
        }
    }

    fn note(&mut self, kind: &'static str, revision: u64, items: Vec<Any>) {
        let name = |any: &Any| any.meta().name.clone().unwrap_or_default();
        let there: BTreeMap<String, Any> = items.into_iter().map(|any| (name(&any), any)).collect();
        let known = self.now.iter().filter(|((own, _), _)| *own == kind);
        let same = |any: &Any, name: &str| {
            let found = there.get(name);
            found.is_some_and(|found| found.meta().uid == any.meta().uid)
        };
        let gone = known.filter(|((_, name), any)| !same(any, name));
        let gone: Vec<Any> = gone.map(|(_, any)| any.clone()).collect();
        let mut changed: Vec<Any> = Vec::new();
        for (name, any) in there {
            let known = self.now.get(&(kind, name));
            let before = known.map(|known| known.meta().resource_version.clone());
            if before.as_ref() != Some(&any.meta().resource_version) {
                changed.push(any);
            }
        }
        changed.sort_by_key(|any| version(any.meta()));
        self.revisions.insert(kind, revision);
        let log = self.logs.get_mut(kind).unwrap();
        for any in gone {
            self.now.remove(&(kind, name(&any)));
            let gone = Some(revision);
            log.push(Event { object: any, gone });
        }
        for any in changed {
            let uid = any.meta().uid.clone().unwrap_or_default();
            self.since.entry(uid).or_insert_with(|| version(any.meta()));
            self.now.insert((kind, name(&any)), any.clone());
            log.push(Event {
                object: any,
                gone: None,
            });
        }
    }

    /// Objects of a kind as they are, in the order in which they came.
    pub(crate) fn objects(&self, kind: &'static str) -> Vec<&Any> {
        let all = self.now.iter().filter(|((own, _), _)| *own == kind);
        let mut all: Vec<&Any> = all.map(|(_, any)| any).collect();
        all.sort_by_key(|any| self.since[any.meta().uid.as_deref().unwrap_or_default()]);
        all
    }

    pub(crate) fn pods(&self) -> Vec<&Pod> {
        let all = self.objects("pods").into_iter();
        all.filter_map(|any| {
            if let Any::Pod(pod) = any {
                Some(&**pod)
            } else {
                None
            }
        })
        .collect()
    }
}

/// A controller in its process.
pub(crate) trait Process {
    fn name(&self) -> &'static str;
    /// Restarts the process: it forgets everything and lists again.
    fn restart(&mut self, history: &History, now: Now);
    /// It sees so many more changes of a kind; whether there were any.
    fn see(&mut self, history: &History, kind: &'static str, most: usize, now: Now) -> bool;
    /// Its watch of a kind ends, and what happened meanwhile is too old: it lists again.
    fn lose_watch(&mut self, history: &History, kind: &'static str, now: Now);
    /// It runs the next key that is due; whether there was one.
    fn run<'a>(&'a mut self, api: &'a Client, now: Now) -> LocalBoxFuture<'a, bool>;
    /// When something is due.
    fn wake(&self, now: Now) -> Option<std::time::Instant>;
}

pub(crate) struct Worker<C> {
    controller: C,
    stand: Stand,
    queue: WorkQueue,
    seen: BTreeMap<&'static str, usize>,
}

impl<C: Controller> Worker<C> {
    pub(crate) fn boxed() -> Box<dyn Process> {
        Box::new(Self::new())
    }

    fn new() -> Self {
        let (controller, stand) = Setup::alone::<C>(&Options::default());
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
        *self = Self::new();
        for kind in KINDS {
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

    fn wake(&self, now: Now) -> Option<std::time::Instant> {
        self.queue.wake(now.instant)
    }
}

/// All controllers with their simulated clock.
pub(crate) struct Processes {
    pub(crate) all: Vec<Box<dyn Process>>,
    pub(crate) api: Arc<Faulty>,
    client: Client,
    pub(crate) now: Now,
}

impl Processes {
    pub(crate) fn new(all: Vec<Box<dyn Process>>, api: Arc<Faulty>) -> Self {
        let reader = UserInfo::authenticated("controllers", Vec::<String>::new());
        Self {
            all,
            client: Client::new(Arc::clone(&api) as Arc<dyn Transport>, reader),
            api,
            now: Now::read(),
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = Now {
            instant: self.now.instant + time,
            wall: self.now.wall + SignedDuration::try_from(time).unwrap(),
        };
    }

    /// The clock of the day is set; time that has passed is not changed by it.
    pub(crate) fn set_clock(&mut self, by: SignedDuration) {
        self.now.wall += by;
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

    /// Time goes on to the next thing that is due; whether there is any.
    pub(crate) fn wait(&mut self) -> bool {
        let due = self.all.iter().filter_map(|one| one.wake(self.now)).min();
        let Some(due) = due else { return false };
        self.pass(due.saturating_duration_since(self.now.instant));
        true
    }
}
