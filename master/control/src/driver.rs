//! The driver: observes, asks controllers for their plans, carries the writes out.

use crate::followers::Followers;
use crate::observe::{Key, Kind, Observed};
use crate::write::Write;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use jiff::Timestamp;
use master_client::{ApiError, Client, Recorder};
use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Writes that may be under way at once.
const IN_FLIGHT: usize = 64;
/// Least time between two plans: changes come in crowds.
const PACE: Duration = Duration::from_millis(50);
/// A controller that planned rests for so many times as long as that took: planning over a large cluster takes no more
/// than a part of the processor, whatever happens in it.
const REST: u32 = 30;
/// A key that was written rests for this long, so that the write can be seen before the next plan.
const SETTLE: Duration = Duration::from_millis(500);
/// First wait after a failed write.
const BACKOFF_FIRST: Duration = Duration::from_millis(500);
/// Longest wait after failed writes.
const BACKOFF_LAST: Duration = Duration::from_secs(60);
/// Between two looks at which kinds are served.
const LOOK: Duration = Duration::from_secs(30);
/// Name in events (upstream's, which people know).
const COMPONENT: &str = "controllermanager";

/// The time, on both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Monotonic, for what is measured here.
    pub instant: Instant,
    /// Wall clock, for what objects say.
    pub wall: Timestamp,
}

impl Now {
    /// Time that passed since an object's time; nothing where that is in the future.
    pub fn since(self, time: Timestamp) -> Duration {
        Duration::try_from(self.wall.duration_since(time)).unwrap_or_default()
    }
}

/// What a controller wants.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Writes, in the order of their importance.
    pub writes: Vec<Write>,
    /// Ask again after this time, even if nothing changes.
    pub again: Option<Duration>,
}

impl Plan {
    /// Ask again after this time at the latest.
    pub(crate) fn again_in(&mut self, time: Duration) {
        self.again = Some(self.again.map_or(time, |again| again.min(time)));
    }
}

/// A controller: a function of what is observed and the time. Each is the only writer of what it writes.
pub trait Controller: Send {
    /// Name, for logs.
    fn name(&self) -> &'static str;
    /// Kinds whose changes make a new plan necessary at once.
    fn follows(&self) -> &'static [Kind];
    /// What is to be written now.
    fn plan(&mut self, observed: &Observed, now: Now) -> Plan;
}

/// Something that a controller must be allowed to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Right {
    /// API group; `*` is all.
    pub group: &'static str,
    /// Resource, with a subresource as `pods/status`; `*` is all.
    pub resource: &'static str,
    /// Verbs.
    pub verbs: &'static [&'static str],
}

/// What the controllers that came with their rights need, by name; the others need what upstream's of their names do.
pub fn rights() -> Vec<(&'static str, &'static [Right])> {
    vec![
        ("garbage-collector", crate::garbage::RIGHTS),
        ("namespace-controller", crate::namespace::RIGHTS),
        ("root-ca-cert-publisher", crate::root_ca::RIGHTS),
        ("resourcequota-controller", crate::quota::RIGHTS),
        (
            "certificatesigningrequest-approving-controller",
            crate::approver::RIGHTS,
        ),
        (
            "clusterrole-aggregation-controller",
            crate::aggregation::RIGHTS,
        ),
        ("token-cleaner", crate::bootstrap_tokens::RIGHTS),
        ("bootstrap-signer", crate::bootstrap_signer::RIGHTS),
        ("service-cidrs-controller", crate::service_ranges::RIGHTS),
        ("storage-protection", crate::in_use::RIGHTS),
        ("tokens-controller", crate::account_tokens::RIGHTS),
    ]
}

/// Settings of the controllers.
#[derive(Debug, Clone)]
pub struct Options {
    /// Silence after which a node is not ready.
    pub node_grace: Duration,
    /// The roots' certificates (PEM) that are published in every namespace; others are published when they change.
    pub root_ca: Option<watch::Receiver<String>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            node_grace: crate::node_lifecycle::GRACE,
            root_ca: None,
        }
    }
}

/// All controllers.
pub fn controllers(options: &Options) -> Vec<Box<dyn Controller>> {
    vec![
        Box::new(crate::node_lifecycle::NodeLifecycle::new(
            options.node_grace,
        )),
        Box::new(crate::taint_eviction::TaintEviction),
        Box::new(crate::namespace::Namespaces),
        Box::new(crate::service_account::ServiceAccounts),
        Box::new(crate::pod_gc::PodGc::default()),
        Box::new(crate::event_ttl::EventTtl),
        Box::new(crate::csr_cleaner::CsrCleaner),
        Box::new(crate::root_ca::RootCa::new(options.root_ca.clone())),
        Box::new(crate::garbage::Garbage),
        Box::new(crate::quota::Quotas::default()),
        Box::new(crate::approver::Approver),
        Box::new(crate::aggregation::Aggregation),
        Box::new(crate::bootstrap_tokens::BootstrapTokens),
        Box::new(crate::bootstrap_signer::BootstrapSigner),
        Box::new(crate::service_ranges::ServiceRanges),
        Box::new(crate::in_use::InUse),
        Box::new(crate::account_tokens::AccountTokens::new(
            options.root_ca.clone(),
        )),
    ]
}

/// Runs all controllers until `shutdown` resolves. Writes under way are dropped then; what was not written is planned
/// again by whoever runs next.
pub async fn run(client: Client, options: Options, shutdown: impl Future<Output = ()> + Send) {
    let mut followers = Followers::new(client.clone());
    let mut driver = Driver::new(client.clone(), &options);
    followers.add(
        &driver.observed.serve(&client.resources()),
        &driver.observed.resources,
    );
    let mut writes: FuturesUnordered<BoxFuture<'static, Written>> = FuturesUnordered::new();
    let mut shutdown = std::pin::pin!(shutdown);
    let mut looked = Instant::now();
    let mut roots = options.root_ca.clone();
    loop {
        let sleep = tokio::time::sleep_until(driver.wake().min(looked + LOOK).into());
        // All arms are cancel-safe: followers and streams keep what they have not handed out.
        tokio::select! {
            () = &mut shutdown => return,
            Some((kind, change)) = followers.next() => {
                change(&mut driver.observed);
                // Every kind of object has a list of its own; the picture is whole with the last of them.
                if kind != Kind::Object || driver.observed.unlisted.is_empty() {
                    driver.changed(kind);
                }
            }
            Some(written) = writes.next() => driver.written(written),
            () = another(&mut roots) => [Kind::RootCa, Kind::AccountToken].into_iter().for_each(|kind| driver.due(kind)),
            () = sleep => {}
        }
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            followers.add(
                &driver.observed.serve(&client.resources()),
                &driver.observed.resources,
            );
        }
        let room = IN_FLIGHT.saturating_sub(writes.len());
        writes.extend(driver.plan(now(), room));
    }
}

/// Waits for other roots than were seen. Cancel-safe.
async fn another(roots: &mut Option<watch::Receiver<String>>) {
    let changed = match roots {
        Some(roots) => roots.changed().await.is_ok(),
        None => false,
    };
    if !changed {
        // Nobody changes them, or not any more.
        std::future::pending::<()>().await;
    }
}

fn now() -> Now {
    Now {
        instant: Instant::now(),
        wall: Timestamp::now(),
    }
}

type Subject = (&'static str, Key);

struct Written {
    controller: usize,
    subject: Subject,
    /// The namespace that was counted, and as of what was seen of it.
    recounted: Option<(String, u64)>,
    result: Result<(), ApiError>,
}

/// What is remembered of a key: nothing may be written before a time.
struct Rest {
    until: Instant,
    failures: u32,
    busy: bool,
}

struct Turn {
    controller: Box<dyn Controller>,
    due: Option<Instant>,
    rested: Instant,
}

impl Turn {
    /// When it is to plan.
    fn at(&self) -> Option<Instant> {
        self.due.map(|due| due.max(self.rested))
    }
}

struct Driver {
    client: Client,
    recorder: Arc<Recorder>,
    observed: Observed,
    unseen: BTreeSet<Kind>,
    turns: Vec<Turn>,
    rests: HashMap<Subject, Rest>,
    planned: Option<Instant>,
}

impl Driver {
    fn new(client: Client, options: &Options) -> Self {
        let turn = |controller| Turn {
            controller,
            due: None,
            rested: Instant::now(),
        };
        Self {
            recorder: Arc::new(Recorder::new(client.clone(), COMPONENT)),
            client,
            observed: Observed::default(),
            unseen: Kind::ALL.into(),
            turns: controllers(options).into_iter().map(turn).collect(),
            rests: HashMap::new(),
            planned: None,
        }
    }

    fn changed(&mut self, kind: Kind) {
        if self.unseen.remove(&kind) && self.unseen.is_empty() {
            self.turns
                .iter_mut()
                .for_each(|turn| turn.due = Some(Instant::now()));
        }
        self.due(kind);
    }

    /// Whoever follows this kind is to plan.
    fn due(&mut self, kind: Kind) {
        for turn in self
            .turns
            .iter_mut()
            .filter(|turn| turn.controller.follows().contains(&kind))
        {
            turn.due = Some(Instant::now());
        }
    }

    /// When the next plan is due.
    fn wake(&self) -> Instant {
        let due = self.turns.iter().filter_map(Turn::at).min();
        let far = Instant::now() + Duration::from_secs(3600);
        // Never on half a picture.
        let due = due.filter(|_| self.unseen.is_empty()).unwrap_or(far);
        self.planned.map_or(due, |planned| due.max(planned + PACE))
    }

    /// Asks the controllers whose turn it is; the writes that can start now.
    fn plan(&mut self, now: Now, mut room: usize) -> Vec<BoxFuture<'static, Written>> {
        let mut started = Vec::new();
        if self.wake() > now.instant {
            return started;
        }
        self.planned = Some(now.instant);
        for index in 0..self.turns.len() {
            let turn = &mut self.turns[index];
            if turn.at().is_none_or(|at| at > now.instant) {
                continue;
            }
            let began = Instant::now();
            let plan = turn.controller.plan(&self.observed, now);
            let took = began.elapsed();
            turn.rested = began + took * REST;
            tracing::trace!(
                controller = turn.controller.name(),
                writes = plan.writes.len(),
                ?took,
                "planned"
            );
            let mut due = plan.again.map(|again| now.instant + again);
            for write in plan.writes {
                let subject = write.subject();
                let wait = self
                    .rests
                    .get(&subject)
                    .filter(|rest| rest.busy || rest.until > now.instant);
                let later = match wait {
                    None if room > 0 => {
                        room -= 1;
                        started.push(self.start(index, subject, write));
                        continue;
                    }
                    None => now.instant + PACE,
                    // When the write under way is done, the controller is asked again.
                    Some(rest) if rest.busy => continue,
                    Some(rest) => rest.until,
                };
                due = Some(due.map_or(later, |due| due.min(later)));
            }
            self.turns[index].due = due;
        }
        // A failure is remembered until a second one would come late.
        self.rests
            .retain(|_, rest| rest.busy || rest.until + BACKOFF_LAST > now.instant);
        started
    }

    fn start(
        &mut self,
        controller: usize,
        subject: Subject,
        write: Write,
    ) -> BoxFuture<'static, Written> {
        let failures = self.rests.get(&subject).map_or(0, |rest| rest.failures);
        self.rests.insert(
            subject.clone(),
            Rest {
                until: Instant::now(),
                failures,
                busy: true,
            },
        );
        let (client, recorder) = (self.client.clone(), Arc::clone(&self.recorder));
        let recounted = if let Write::Recount {
            namespace, seen, ..
        } = &write
        {
            Some((namespace.clone(), *seen))
        } else {
            None
        };
        Box::pin(async move {
            let result = write.apply(&client, &recorder).await;
            Written {
                controller,
                subject,
                recounted,
                result,
            }
        })
    }

    fn written(&mut self, written: Written) {
        let Written {
            controller,
            subject,
            recounted,
            result,
        } = written;
        if let (Ok(()), Some((namespace, seen))) = (&result, recounted) {
            self.observed.recounted(&namespace, seen);
        }
        let turn = &mut self.turns[controller];
        let failures = self.rests.get(&subject).map_or(0, |rest| rest.failures);
        let (failures, wait) = match &result {
            Ok(()) => (0, SETTLE),
            Err(error) => {
                let wait = BACKOFF_FIRST
                    .saturating_mul(1 << failures.min(10))
                    .min(BACKOFF_LAST);
                tracing::warn!(
                    controller = turn.controller.name(), what = subject.0, namespace = subject.1.namespace,
                    name = subject.1.name, %error, "a write failed; trying again"
                );
                (failures.saturating_add(1), wait)
            }
        };
        let until = Instant::now() + wait;
        self.rests.insert(
            subject,
            Rest {
                until,
                failures,
                busy: false,
            },
        );
        turn.due = Some(turn.due.map_or(until, |due| due.min(until)));
    }
}
