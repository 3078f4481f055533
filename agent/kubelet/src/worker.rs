//! One task for each pod: lists its containers, plans, reports and acts, until the pod is gone.
//!
//! Only this task writes the pod's status and changes its containers, so that no two actions on a
//! pod run at the same time. It is woken by a new version of the pod, by news from the engine or a
//! probe, at the time that the plan names, and at the latest after [`RESYNC`].

mod end;
mod evict;
mod report;
mod resize;
mod volumes;

use crate::config::RESYNC;
use crate::desired::DesiredPod;
use crate::handle::{Allocation, Chosen, FoundStatus, Released, TaskState};
use crate::preemption;
use crate::pull::{ContainerImages, Failed, Fetches, NeededImage};
use crate::sandbox::PodSandbox;
use crate::shared::Shared;
use crate::starts::{Ended, Order, Starts};
use crate::supplies::Supplies;
use agent_launch::volumes::Noted;
use agent_launch::{debug, refusals, storage};
use agent_pods::{
    Action, Addresses, Clocks, End, Ending, Notes, Plan, PodFacts, Refusal, as_given, between,
    end_of, find, later, named_as_static, plan, plan_orphan, quiet_until, recover, round,
};
use agent_probes::{Hooks, Probes};
use agent_resources::qos::pod_resources;
use agent_resources::{TimedWork, WorkerStep};
use agent_runtime::{Container as Seen, ContainerKind, Error, ErrorClass, PodRef, container_id};
use config_kube::k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use jiff::Timestamp;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use volumes::SetUp;

/// How long a step waits for the master to accept a status, before it continues with the
/// containers.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause after the engine or the master could not be reached.
const RETRY: Duration = Duration::from_secs(2);
/// How long a new pod waits for the resources of pods that end. Processes that survive even a kill
/// keep them longer: then the pod is refused, and its controller makes another one elsewhere.
const ROOM_PATIENCE: Duration = Duration::from_secs(30);

/// What follows a step.
enum Next {
    /// Wait for news, at most until then.
    Wait(Option<Timestamp>),
    /// The pod is gone.
    Done,
}

impl Next {
    /// Limits a wait to this time.
    fn at_latest(self, end: Timestamp) -> Self {
        match self {
            Self::Wait(at) => Self::Wait(Some(at.map_or(end, |at| at.min(end)))),
            Self::Done => Self::Done,
        }
    }
}

/// Whether the node has decided if it runs a pod.
#[derive(Debug, PartialEq, Eq)]
enum Admission {
    /// It runs the pod, or has refused it, or the pod has ended.
    Decided,
    /// Not yet: other pods end to make room for it.
    MakingRoom,
}

/// One pod's task: what it holds between two steps.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    pod: PodRef,
    wanted: watch::Receiver<DesiredPod>,
    news: Arc<Notify>,
    chosen: Chosen,
    /// Whether its eviction is recorded for the next agent, and the task that writes the record.
    record: evict::Record,
    writing: JoinSet<std::io::Result<evict::Record>>,
    notes: Notes,
    probes: Probes,
    hooks: Hooks,
    /// The last version of the pod: its hooks run also after the master has deleted it.
    known: Option<Arc<Pod>>,
    sandbox: PodSandbox,
    written: Option<PodStatus>,
    /// The UID of the API's object of the pod (a static pod's mirror), whether it has the last
    /// status, and when that was written.
    shown_as: Option<String>,
    is_reported: bool,
    reported_at: Option<Instant>,
    /// When this kubelet saw the pod first, until it runs.
    seen_at: Option<Instant>,
    refused: Option<Refusal>,
    /// Whether the node has admitted the pod, with which resources: later pods or pressure are no
    /// reason to refuse it then.
    allocation: Allocation,
    /// The pod's status as callers of the kubelet's API see it.
    found: FoundStatus,
    /// Whether the ended pod has released its resources, and how often in a row that has failed.
    released: Released,
    release_failures: u32,
    supplies: Supplies,
    set_up: SetUp,
    fetches: Fetches,
    starts: Starts,
    /// When the volumes were last updated, and how often in a row that has failed.
    refreshed: Instant,
    refresh_failures: u32,
    /// When this task started.
    begun: Instant,
    /// The labels and annotations that its volumes show.
    shown: Option<Noted>,
    /// Whether the pod has limits of disk usage, which is measured periodically then.
    limited: bool,
    measured: evict::Measured,
    /// Whether an in-place resize is under way.
    resizing: bool,
    /// The clocks at the last step.
    clocks: Clocks,
}

impl Worker {
    pub(crate) fn new(
        shared: Arc<Shared>,
        pod: PodRef,
        wanted: watch::Receiver<DesiredPod>,
        state: TaskState,
    ) -> Self {
        let TaskState {
            news,
            chosen,
            allocation,
            found,
            released,
        } = state;
        let (runtime, events) = (shared.runtime.clone(), shared.events.clone());
        let counted = shared.figures.probed();
        let probes = Probes::new(runtime.clone(), events.clone(), counted, news.clone());
        let hooks = Hooks::new(runtime, events, news.clone());
        let sandbox = PodSandbox::find(&shared, &pod.uid);
        let supplies = Supplies::new(shared.clone(), pod.clone(), news.clone());
        let evicted = evict::recorded(&shared.config, &pod.uid);
        let record = match &evicted {
            Some(eviction) => {
                chosen.set(eviction.clone());
                evict::Record::Readable
            }
            None => evict::Record::Missing,
        };
        let notes = Notes {
            evicted,
            ..Notes::default()
        };
        let starts = Starts::new(shared.clone(), news.clone(), supplies.clone());
        Self {
            shared,
            pod,
            wanted,
            news,
            chosen,
            record,
            writing: JoinSet::new(),
            notes,
            probes,
            hooks,
            known: None,
            sandbox,
            written: None,
            shown_as: None,
            is_reported: false,
            reported_at: None,
            seen_at: Some(Instant::now()),
            refused: None,
            allocation,
            found,
            released,
            release_failures: 0,
            supplies,
            set_up: SetUp::default(),
            fetches: Fetches::default(),
            starts,
            refreshed: Instant::now(),
            refresh_failures: 0,
            begun: Instant::now(),
            shown: None,
            limited: false,
            measured: evict::Measured::default(),
            resizing: false,
            clocks: Clocks::new(Timestamp::now(), Instant::now()),
        }
    }

    /// Runs until the pod is gone or the kubelet ends; containers outlive the latter.
    pub(crate) async fn run(mut self) {
        let mut step_kind = WorkerStep::Create;
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            let begun = Instant::now();
            let next = match &wanted {
                DesiredPod::Pod(pod) => self.step(pod).await,
                DesiredPod::Gone(grace) => self.step_orphan(*grace).await,
            };
            if self.notes.ending.is_some() {
                step_kind = WorkerStep::Kill;
            }
            let done = self.shared.figures.done();
            done.took(TimedWork::Step(step_kind), begun.elapsed());
            step_kind = WorkerStep::Sync;
            let wait = match next {
                Next::Done => return,
                Next::Wait(at) => {
                    let longest = if self.limited {
                        storage::PERIOD
                    } else {
                        RESYNC
                    };
                    at.map_or(longest, |at| between(Timestamp::now(), at).min(longest))
                }
            };
            tokio::select! {
                // Cancel-safe: each arm only means "run a step", and a step reads all state, so
                // that nothing is lost with a dropped arm.
                changed = self.wanted.changed() => match changed {
                    Ok(()) => step_kind = WorkerStep::Update,
                    Err(_ended) => return,
                },
                () = self.news.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn step_orphan(&mut self, grace: Duration) -> Next {
        self.record_ended_starts(true);
        let seen = match self.list_containers().await {
            Ok(seen) => seen,
            Err(error) => return self.unreachable(&error),
        };
        let now = self.look_at_clock();
        self.probes.stop_all();
        self.hooks.follow(&seen, true, &mut self.notes);
        self.notes.ending.get_or_insert(now);
        let plan = plan_orphan(Ending {
            pod: self.known.as_deref(),
            seen: &seen,
            notes: &self.notes,
            grace,
            now,
        });
        self.act(None, &seen, plan).await
    }

    async fn step(&mut self, pod: &Arc<Pod>) -> Next {
        // Before the list of containers, so that starts which have ended are in it.
        let ends = self.notes.evicted.is_some() || end_of(pod, Timestamp::now()).is_some();
        self.record_ended_starts(ends);
        let seen = match self.list_containers().await {
            Ok(seen) => seen,
            Err(error) => return self.unreachable(&error),
        };
        // Taken after the list, so that no time in it is later, unless the clock was set back.
        let now = self.look_at_clock();
        self.retry_volumes();
        let seen = recover(pod, seen, now);
        self.evict(pod, &seen, now).await;
        self.follow(pod, &seen, now);
        if self.decide_admission(pod, &seen).await == Admission::MakingRoom {
            return Next::Wait(Some(later(now, preemption::WAIT)));
        }
        self.decide_resize(pod, &seen);
        self.sandbox.publish(&self.shared, pod);
        self.follow_shown_object(pod);
        let facts = PodFacts {
            pod,
            seen: &seen,
            notes: &self.notes,
            refused: self.refused.is_some(),
            now,
        };
        let mut plan = plan(facts);
        if let Some(at) = self.rewrite_at(pod, now).filter(|at| *at > now) {
            plan.wake_at(at);
        }
        let report = if let Some(until) = quiet_until(facts) {
            plan.wake_at(until);
            None
        } else {
            Some(timeout(PATIENCE, self.report(pod, facts)))
        };
        let (is_reported, next) = match report {
            None => (true, self.carry_out(pod, &seen, plan, now).await),
            // The plan only starts containers: the report does not depend on that, nor the starts
            // on the report.
            Some(report) if plan.only_starts() => {
                let (outcome, next) = tokio::join!(report, self.carry_out(pod, &seen, plan, now));
                (self.note_report(pod, outcome), next)
            }
            Some(report) => {
                let outcome = report.await;
                let is_reported = self.note_report(pod, outcome);
                if !is_reported {
                    // Containers are managed also while the master is unreachable. Only the removal
                    // of the pod waits until the master has its last status.
                    plan.actions.retain(|action| *action != Action::Finish);
                }
                (is_reported, self.carry_out(pod, &seen, plan, now).await)
            }
        };
        if is_reported {
            next
        } else {
            next.at_latest(later(Timestamp::now(), RETRY))
        }
    }

    /// Updates the pod's volumes, carries out the plan, and releases the resources of a pod that
    /// has ended; a pod that is removed releases all.
    async fn carry_out(
        &mut self,
        pod: &Arc<Pod>,
        seen: &[Seen],
        plan: Plan,
        now: Timestamp,
    ) -> Next {
        self.refresh_volumes(pod, now).await;
        let next = match self.end_sandbox(seen).await {
            Ok(()) => self.act(Some(pod), seen, plan).await,
            Err(error) => {
                tracing::warn!(pod = self.pod.name, error = %error.chain(), "cannot remove the pod's sandbox; trying again");
                Next::Wait(Some(later(now, RETRY)))
            }
        };
        let next = match self.refresh_failures {
            0 => next,
            _ => next.at_latest(later(Timestamp::now(), self.refresh_pause())),
        };
        // Also if the sandbox could not be removed, or the removal of the pod has to wait.
        if matches!(next, Next::Done) || Box::pin(self.release(seen)).await {
            return next;
        }
        next.at_latest(later(Timestamp::now(), self.release_pause()))
    }

    /// Reads the clock. If it was set since the last step, shifts the times in the notes
    /// accordingly.
    fn look_at_clock(&mut self) -> Timestamp {
        let now = Timestamp::now();
        let by = self.clocks.set_by(now, Instant::now());
        self.notes.shift(by);
        now
    }

    /// The pod's containers in the engine, except those that are still being started.
    async fn list_containers(&self) -> Result<Vec<Seen>, Error> {
        let seen = self.shared.runtime.list(Some(&self.pod.uid)).await?;
        Ok(self.starts.without_unfinished(&self.pod, seen))
    }

    /// Records how starts ended, and starts the postStart hooks of containers that have started.
    fn record_ended_starts(&mut self, ends: bool) {
        for ended in self.starts.ended(ends) {
            let Ended { name, pod, .. } = &ended;
            let kind = self.notes.starting.remove(name);
            if let (Some(kind), Some(outcome)) = (kind, &ended.outcome) {
                let done = self.shared.figures.done();
                done.container(kind, outcome.is_ok());
                // Upstream's count of such pods' errors is of their containers, too.
                let own_users = pod.spec.as_ref().and_then(|spec| spec.host_users) == Some(false);
                if own_users && outcome.is_err() {
                    done.user_pod_failed();
                }
            }
            match &ended.outcome {
                Some(Ok(())) => {
                    self.notes.failures.remove(name);
                    // The engine creates and starts a container in one step; upstream records two
                    // events.
                    let events = self.shared.events.of(pod, name);
                    events.normal("Created", format!("Created container: {name}"));
                    events.normal("Started", format!("Started container {name}"));
                    let id = container_id(&self.pod.uid, name, ended.number);
                    let host = self.host(pod);
                    self.hooks.begin_post_start(pod, name, &id, host);
                }
                Some(Err(error)) if error.class == ErrorClass::Unavailable => {
                    tracing::debug!(pod = self.pod.name, error = %error.chain(), "start failed");
                }
                Some(Err(error)) => self.record_failed_start(pod, name, "", error),
                None => {}
            }
        }
    }

    /// Starts and stops probes and hooks to match the running containers, and records their
    /// results.
    fn follow(&mut self, pod: &Arc<Pod>, seen: &[Seen], now: Timestamp) {
        self.known = Some(pod.clone());
        let end = end_of(pod, now);
        let evicted = self.notes.evicted.is_some();
        self.hooks
            .follow(seen, end.is_some() || evicted, &mut self.notes);
        match end {
            None if !evicted => {
                let host = self.host(pod);
                self.probes.follow(pod, seen, &self.notes, host);
            }
            Some(End::Deleted) if !evicted => self.probes.end_all_but_readiness(seen),
            None | Some(_) => self.probes.stop_all(),
        }
        self.notes.verdicts = self.probes.verdicts(seen);
        let there = |id: &String| seen.iter().any(|seen| seen.id == *id);
        self.notes.asked.retain(|id, _| there(id));
        self.notes.replaced.retain(there);
        self.notes.unresized.retain(|id, _| there(id));
        let facts = PodFacts {
            pod,
            seen,
            notes: &self.notes,
            refused: self.refused.is_some(),
            now,
        };
        if facts.ends() {
            self.notes.ending.get_or_insert(now);
        }
    }

    /// Where probes and hooks reach the pod.
    fn host(&self, pod: &Pod) -> Option<IpAddr> {
        self.addresses(pod).pod.first().copied()
    }

    fn addresses(&self, pod: &Pod) -> Addresses {
        self.sandbox.addresses(&self.shared, pod)
    }

    /// Whether the pod has ended, and the master knows it.
    fn is_over(&self) -> bool {
        let status = self.written.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }

    fn unreachable(&self, error: &Error) -> Next {
        tracing::debug!(pod = self.pod.name, error = %error.chain(), "cannot list the pod's containers: containerd is unreachable; trying again");
        Next::Wait(Some(later(Timestamp::now(), RETRY)))
    }

    /// Decides whether this node can run the pod; one that already runs, or has ended, is not
    /// refused.
    async fn decide_admission(&mut self, pod: &Arc<Pod>, seen: &[Seen]) -> Admission {
        // A refusal is final: the pod has failed, and controllers may have acted on that.
        let decided = self.allocation.pod().is_some() || self.refused.is_some();
        if decided || end_of(pod, Timestamp::now()).is_some() {
            return Admission::Decided;
        }
        if !seen.is_empty() {
            // An earlier agent admitted it, with the resources that its containers have.
            self.allocation.set(Arc::new(as_given(pod, seen)));
            self.supplies.adopt();
            return Admission::Decided;
        }
        let ends = self.shared.while_ending();
        let config = &self.shared.config;
        let refusal = ends.or_else(|| named_as_static(pod, &config.static_pods));
        let refusal = refusal.or_else(|| refusals::refusal(pod, &config.machine));
        let refusal = refusal.or_else(|| self.shared.under_pressure(pod));
        let refusal = match refusal {
            None => self.shared.predicate_failure(pod).await,
            refused => refused,
        };
        let refusal = match refusal {
            None => {
                let lack = self.shared.admit(pod, &self.allocation);
                let waits = |lack| {
                    let leaves = self.begun.elapsed() < ROOM_PATIENCE && self.shared.fits_soon(pod);
                    leaves || self.shared.make_room(pod, lack)
                };
                if lack.as_ref().is_some_and(waits) {
                    return Admission::MakingRoom;
                }
                lack
            }
            refused => refused,
        };
        let events = &self.shared.events;
        if let Some(refusal) = &refusal {
            events.warning(pod, refusal.reason.clone(), refusal.message.clone());
        } else if refusals::has_selinux_label(pod) {
            let text = "seLinuxOptions have no effect: this machine does not use SELinux";
            events.normal(pod, "SELinuxNotInUse", text);
        }
        if refusal.is_none() {
            for text in agent_launch::narrowed(&config.machine, pod) {
                events.warning(pod, "HostPathReadOnly", text);
            }
        }
        self.refused = refusal;
        Admission::Decided
    }

    async fn act(&mut self, pod: Option<&Arc<Pod>>, seen: &[Seen], plan: Plan) -> Next {
        self.set_up.keep(plan.starts());
        self.fetches
            .keep(|name| plan.starts().any(|one| one == name));
        let mut acted = false;
        for action in plan.actions {
            let result = match action {
                Action::Start {
                    container,
                    kind,
                    attempt,
                    backoff,
                } => match pod {
                    Some(pod) => {
                        self.start(&pod.clone(), &container, kind, attempt, backoff, seen)
                            .await
                    }
                    None => Ok(false),
                },
                Action::PreStop { id, limit } => {
                    self.pre_stop(pod, seen, &id, limit);
                    Ok(true)
                }
                Action::Resize { id } => {
                    self.resize_container(pod, seen, &id).await;
                    Ok(true)
                }
                Action::Stop { id } => self.stop(pod, seen, id).await.map(|()| true),
                Action::Kill { id } => self.kill(pod, seen, &id).await.map(|()| true),
                Action::Remove { id } => self.remove(seen, &id).await.map(|()| true),
                Action::Finish => return self.finish(pod, seen).await,
            };
            match result {
                Ok(done) => acted |= done,
                Err(error) => {
                    tracing::debug!(pod = self.pod.name, error = %error.chain(), "a pod action failed; trying again");
                    return Next::Wait(Some(later(Timestamp::now(), RETRY)));
                }
            }
        }
        // The engine reports the end after a kill; a step at once would only see the same.
        if acted {
            Next::Wait(Some(later(Timestamp::now(), Duration::from_millis(50))))
        } else {
            Next::Wait(plan.wake)
        }
    }

    /// Starts an attempt in a task of its own, once its images are pulled. An obstacle becomes a
    /// note that the status shows. False if a task's end will wake this one.
    async fn start(
        &mut self,
        pod: &Arc<Pod>,
        name: &str,
        kind: ContainerKind,
        number: u32,
        backoff: Option<Duration>,
        seen: &[Seen],
    ) -> Result<bool, Error> {
        // While a resize is pending, the next attempt gets the resources of this one.
        let waits = self.notes.pending.is_some();
        let given = waits.then(|| Arc::new(as_given(pod, seen)));
        let pod = given.as_ref().unwrap_or(pod);
        let Some((_, container)) = find(pod, name) else {
            return Ok(true);
        };
        let target = match self.debug_target(pod, &container, kind, seen) {
            Ok(target) => target,
            Err(error) => {
                self.record_failed_start(pod, name, "", &error);
                return Ok(true);
            }
        };
        match self.has_volumes(pod).await {
            None => return Ok(false),
            Some(Ok(())) => {}
            Some(Err(error)) => {
                self.record_failed_start(pod, name, "", &error);
                return Ok(true);
            }
        }
        let sandbox = self.sandbox.make(&self.shared, pod).await?;
        let images = NeededImage::all(pod, &container);
        let needed = ContainerImages {
            pod,
            reference: &self.pod,
            container: name,
            wanted: &images,
        };
        let fetched = self.fetches.images(&self.shared, &self.news, &needed);
        match fetched.await {
            None => Ok(false),
            Some(Ok(fetched)) => {
                let digests = fetched.into_iter().map(|image| image.digest);
                self.notes.starting.insert(name.to_owned(), kind);
                self.starts.begin(Order {
                    pod: pod.clone(),
                    addresses: self.addresses(pod),
                    container: container.into_owned(),
                    kind,
                    number,
                    backoff,
                    round: round(pod, seen),
                    target,
                    limits: pod_resources(pod),
                    sandbox,
                    images: images.into_iter().zip(digests).collect(),
                });
                Ok(false)
            }
            Some(Err(failed)) if failed.error.class == ErrorClass::Unavailable => Err(failed.error),
            Some(Err(Failed { image, error })) => {
                self.record_failed_start(pod, name, &image, &error);
                Ok(true)
            }
        }
    }

    /// The id of the container that an ephemeral one debugs, whose processes it is to see, if it
    /// names one.
    fn debug_target(
        &self,
        pod: &Pod,
        container: &Container,
        kind: ContainerKind,
        seen: &[Seen],
    ) -> Result<Option<String>, Error> {
        if kind != ContainerKind::Ephemeral {
            return Ok(None);
        }
        let target = debug::target(pod, container, &self.shared.config.machine, seen)?;
        Ok(target.map(str::to_owned))
    }

    /// Writes the events of a start that failed, and remembers it. `image`: the one that could not
    /// be pulled, if that is the reason.
    fn record_failed_start(&mut self, pod: &Pod, name: &str, image: &str, error: &Error) {
        let events = &self.shared.events;
        if error.class == ErrorClass::Volume {
            events.warning(pod, "FailedMount", error.chain());
        } else {
            for (reason, text) in agent_pods::start_failed(image, error) {
                events.of(pod, name).warning(reason, text);
            }
        }
        agent_pods::remember(&mut self.notes, name, image, error, Timestamp::now());
    }
}

#[cfg(test)]
pub(crate) mod tests;
