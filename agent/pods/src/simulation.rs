//! Simulates a machine with one pod on it: containers, hooks and probes with any behaviour, an
//! agent that restarts, a machine that reboots. Time is simulated, so that hours pass in
//! microseconds. Every action of the plan is checked against the invariants as it is carried out.

mod faults;

use crate::backoff::later;
use crate::containers::{find, initial, kind_of_initial, latest, mains};
use crate::ending::LEAST;
use crate::failures::remember;
use crate::machine::{Action, PodFacts, initial_done, is_finished, main_started, plan};
use crate::notes::{Begun, Death, HookProgress, Notes, Verdict};
use crate::policy::{is_replaced, outdated, round};
use crate::resize::{is_resized, needs};
use crate::simulation_story::{Behaviour, GATE, OWN_GRACE, Story, Traits, described};
use crate::status::{Addresses, base, status};
use agent_runtime::{
    Container as Seen, ContainerKey, ContainerKind, ContainerState, Error, ErrorClass, ExitCause,
    PodRef, container_id,
};
use config_kube::k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What a running attempt does by itself, at a time in [`World::events`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Started,
    Ends(i32),
    Starts,
    Dies,
    PostStart(bool),
    PreStop,
}

/// A machine with one pod on it.
pub(crate) struct World {
    pub(crate) pod: Pod,
    pub(crate) seen: Vec<Seen>,
    /// Attempts whose start is under way, by id.
    half_started: BTreeMap<String, (Seen, Behaviour)>,
    pub(crate) notes: Notes,
    pub(crate) now: Timestamp,
    /// The latest time that the clock has shown.
    latest: Timestamp,
    grace: Duration,
    events: Vec<(Timestamp, String, Event)>,
    obeys: BTreeSet<String>,
    behaviours: Vec<Behaviour>,
    started: BTreeSet<String>,
    pub(crate) starts: BTreeMap<String, u32>,
    /// Names of containers in the order in which they got their stop signal.
    pub(crate) asked: Vec<String>,
    pub(crate) written: Option<PodStatus>,
    /// Every status that was written, in order.
    pub(crate) reported: Vec<PodStatus>,
    pub(crate) finished: bool,
    /// When the pod's volumes can be set up, and whether the agent has done that.
    volumes_at: Timestamp,
    mounted: bool,
}

pub(crate) const EPOCH: i64 = 1_800_000_000;

fn seconds(count: u16) -> Duration {
    Duration::from_secs(count.into())
}

impl World {
    pub(crate) fn new(story: &Story) -> Self {
        let named = |prefix: &str, all: &[Traits]| -> Vec<_> {
            let numbered = all.iter().enumerate();
            numbered
                .map(|(number, traits)| described(&format!("{prefix}{number}"), *traits))
                .collect()
        };
        let gates = [json!({"conditionType": GATE})];
        let gates = gates.get(usize::from(!story.gate)..);
        let now = Timestamp::from_second(EPOCH).unwrap();
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {
                "restartPolicy": story.policy, "hostNetwork": true, "terminationGracePeriodSeconds": story.grace,
                "initContainers": named("init", &story.inits), "containers": named("main", &story.mains),
                "readinessGates": gates,
            },
        }))
        .unwrap();
        Self {
            pod,
            seen: Vec::new(),
            half_started: BTreeMap::new(),
            notes: Notes::default(),
            now,
            latest: now,
            grace: seconds(story.grace),
            events: Vec::new(),
            obeys: BTreeSet::new(),
            behaviours: story.behaviours.clone(),
            started: BTreeSet::new(),
            starts: BTreeMap::new(),
            asked: Vec::new(),
            written: None,
            reported: Vec::new(),
            finished: false,
            volumes_at: later(now, seconds(story.volumes)),
            mounted: false,
        }
    }

    pub(crate) fn facts(&self) -> PodFacts<'_> {
        PodFacts {
            pod: &self.pod,
            seen: &self.seen,
            notes: &self.notes,
            refused: false,
            now: self.now,
        }
    }

    /// How long containers may take to end; those of a pod that ends have at least a second.
    fn grace(&self) -> Duration {
        let is_deleted = self.pod.metadata.deletion_timestamp.is_some();
        let grace = match &self.notes.evicted {
            Some(eviction) if is_deleted => eviction.grace.min(self.grace),
            Some(eviction) => eviction.grace,
            None => self.grace,
        };
        grace.max(seconds(self.facts().ends().into()))
    }

    /// The grace period of the probe that ends this container, where it has one of its own.
    fn own_grace(&self, id: &str) -> Option<Duration> {
        let verdict = self.notes.verdicts.get(id)?;
        verdict.dead.filter(|_| !self.facts().ends())?;
        let probe = self.container(id)?.liveness_probe?;
        probe.termination_grace_period_seconds.map(|_| OWN_GRACE)
    }

    /// The volumes could not be set up, and it is not yet time to try that again.
    fn waits_for_volumes(&self) -> bool {
        self.notes.unmounted.is_some_and(|again| again > self.now)
    }

    /// How long this container may take to end.
    fn grace_of(&self, id: &str) -> Duration {
        self.own_grace(id).unwrap_or_else(|| self.grace())
    }

    /// When nothing is left to do, no container outlives the grace period of its probe.
    fn check_own_graces(&self) -> Result<(), TestCaseError> {
        for seen in self.alive() {
            let (own, asked) = (self.own_grace(&seen.id), self.notes.asked.get(&seen.id));
            if let (Some(own), Some(asked)) = (own, asked) {
                let began = self
                    .notes
                    .pre_stop
                    .get(&seen.id)
                    .map_or(*asked, |hook| hook.at);
                let last = later(began, own).max(later(*asked, LEAST));
                prop_assert!(self.now < last, "{} outlives its probe's grace", seen.id);
            }
        }
        Ok(())
    }

    pub(crate) fn alive(&self) -> impl Iterator<Item = &Seen> {
        self.seen
            .iter()
            .filter(|seen| matches!(seen.state, ContainerState::Running { .. }))
    }

    fn runs(&self, name: &str) -> bool {
        self.alive().any(|seen| seen.key.container == name)
    }

    fn seen_of(&self, id: &str) -> Option<&Seen> {
        self.seen.iter().find(|seen| seen.id == id)
    }

    fn container(&self, id: &str) -> Option<Container> {
        let name = &self.seen_of(id)?.key.container;
        find(&self.pod, name).map(|(_, container)| container.into_owned())
    }

    fn has_pre_stop(&self, id: &str) -> bool {
        let lifecycle = self.container(id).and_then(|own| own.lifecycle);
        lifecycle.is_some_and(|lifecycle| lifecycle.pre_stop.is_some())
    }

    pub(crate) fn end(&mut self, id: &str, code: i32) {
        let now = self.now;
        for seen in self.seen.iter_mut().filter(|seen| seen.id == id) {
            if let ContainerState::Running { started_at } = seen.state {
                seen.state = ContainerState::Exited {
                    started_at,
                    finished_at: now,
                    code,
                    cause: ExitCause::Own,
                };
            }
        }
        self.events.retain(|(_, of, _)| of != id);
        self.notes.post_start.remove(id);
    }

    /// Whether the rules allow this start.
    fn check_start(&self, name: &str, kind: ContainerKind) -> Result<(), TestCaseError> {
        prop_assert!(
            self.facts().end().is_none(),
            "a pod that ends starts nothing"
        );
        prop_assert!(
            !is_finished(self.facts()),
            "a pod whose work is over starts nothing"
        );
        prop_assert!(!self.runs(name), "{name} already runs");
        prop_assert!(
            kind == ContainerKind::Ephemeral || outdated(&self.pod, &self.seen).next().is_none(),
            "{name} beside what is to be started anew"
        );
        prop_assert!(!self.starts(name), "{name} is being started");
        match kind {
            ContainerKind::Main => self.check_main_start(name),
            ContainerKind::Ephemeral => Ok(()),
            ContainerKind::Init | ContainerKind::Sidecar => self.check_initial_start(name, kind),
        }
    }

    /// Whether a container of this kind runs or is being started.
    fn has_alive(&self, kind: ContainerKind) -> bool {
        let starting = self.notes.starting.values();
        starting
            .chain(self.alive().map(|seen| &seen.key.kind))
            .any(|one| *one == kind)
    }

    /// A main container starts after all init containers, and after the main containers before it
    /// whose hooks run.
    fn check_main_start(&self, name: &str) -> Result<(), TestCaseError> {
        // A sidecar that has ended holds up nothing that comes after it: it is restarted meanwhile.
        let came = |init: &Container| {
            latest(&self.seen, &init.name).is_some_and(|seen| seen.this_boot)
                && kind_of_initial(init) == ContainerKind::Sidecar
        };
        let done = |init: &Container| came(init) || initial_done(self.facts(), init);
        prop_assert!(
            main_started(&self.pod, &self.seen) || initial(&self.pod).iter().all(done),
            "main before its init containers"
        );
        prop_assert!(
            !self.has_alive(ContainerKind::Init),
            "main beside an init container"
        );
        let before = mains(&self.pod).iter().take_while(|main| main.name != name);
        for main in before {
            let seen = latest(&self.seen, &main.name);
            let held =
                seen.is_some_and(|seen| self.runs(&main.name) && self.notes.is_held(&seen.id));
            let hooked = main
                .lifecycle
                .as_ref()
                .and_then(|own| own.post_start.as_ref());
            let held = held || (self.starts(&main.name) && hooked.is_some());
            prop_assert!(!held, "{name} before the hook of {}", main.name);
            let first = seen.is_none() && self.starts(&main.name);
            let new = latest(&self.seen, name).is_none();
            prop_assert!(!(first && new), "{name} before {} has started", main.name);
        }
        Ok(())
    }

    /// The first starts of a boot come in the order of the spec, and an init container that is no
    /// sidecar runs beside sidecars only.
    fn check_initial_start(&self, name: &str, kind: ContainerKind) -> Result<(), TestCaseError> {
        let main_alive = self.has_alive(ContainerKind::Main);
        let first = !self
            .seen
            .iter()
            .any(|seen| seen.key.container == name && seen.this_boot);
        if first && !main_alive {
            let before = initial(&self.pod)
                .iter()
                .take_while(|init| init.name != name);
            for init in before {
                let came = latest(&self.seen, &init.name);
                prop_assert!(came.is_some(), "{name} before {}", init.name);
            }
        }
        if kind == ContainerKind::Init {
            prop_assert!(
                !main_alive && !self.has_alive(ContainerKind::Init),
                "an init container runs beside sidecars alone"
            );
        }
        Ok(())
    }

    fn start(
        &mut self,
        name: &str,
        kind: ContainerKind,
        attempt: u32,
        backoff: Option<Duration>,
    ) -> Result<(), TestCaseError> {
        self.check_start(name, kind)?;
        if self.waits_for_volumes() {
            // Another container of this plan has just tried them.
            return Ok(());
        }
        if !self.mounted && self.now < self.volumes_at {
            let error = Error::new(ErrorClass::Volume, "configmap \"m\" not found");
            remember(&mut self.notes, name, "", &error, self.now);
            return Ok(());
        }
        self.mounted = true;
        (self.notes.unmounted, self.notes.mounts_failed) = (None, 0);
        let id = container_id("u", name, attempt);
        prop_assert!(
            self.started.insert(id.clone()),
            "attempt {attempt} of {name} is started twice"
        );
        let pod = PodRef {
            namespace: "n".into(),
            name: "p".into(),
            uid: "u".into(),
        };
        let key = ContainerKey {
            pod,
            container: name.to_owned(),
            kind,
            attempt,
        };
        let found = find(&self.pod, name);
        let seen = Seen {
            id: id.clone(),
            key,
            image: found.and_then(|(_, own)| own.image.clone()).unwrap(),
            image_id: "registry.example/a@sha256:0".into(),
            state: ContainerState::Created,
            backoff,
            round: round(&self.pod, &self.seen),
            this_boot: true,
            stop_signal: None,
            needs: find(&self.pod, name).and_then(|(_, own)| needs(&self.pod, &own)),
            user: None,
        };
        let behaviour = self.behaviours[self.started.len() % self.behaviours.len()];
        self.half_started.insert(id.clone(), (seen, behaviour));
        self.notes.starting.insert(name.to_owned(), kind);
        if behaviour.takes == 0 {
            self.finish_start(&id);
        } else {
            self.schedule(behaviour.takes, &id, Event::Started);
        }
        Ok(())
    }

    /// A start has ended, and the container runs.
    fn finish_start(&mut self, id: &str) {
        let Some((seen, behaviour)) = self.half_started.remove(id) else {
            return;
        };
        self.notes.starting.remove(&seen.key.container);
        self.run(seen, behaviour);
        self.begin_hooks_and_probes(id, behaviour);
    }

    fn run(&mut self, seen: Seen, behaviour: Behaviour) {
        let id = seen.id.clone();
        let count = self.starts.entry(seen.key.container.clone());
        *count.or_default() += 1;
        let state = ContainerState::Running {
            started_at: self.now,
        };
        self.seen.push(Seen { state, ..seen });
        if let Some((after, code)) = behaviour.ends {
            self.schedule(after, &id, Event::Ends(code));
        }
        if behaviour.obeys {
            self.obeys.insert(id);
        }
    }

    /// Whether a start of this container is under way.
    fn starts(&self, name: &str) -> bool {
        self.notes.starting.contains_key(name)
    }

    fn schedule(&mut self, after: u16, id: &str, event: Event) {
        let at = later(self.now, seconds(after));
        self.events.push((at, id.to_owned(), event));
    }

    fn begin_hooks_and_probes(&mut self, id: &str, behaviour: Behaviour) {
        let lifecycle = self.container(id).and_then(|own| own.lifecycle);
        if lifecycle.is_some_and(|lifecycle| lifecycle.post_start.is_some()) {
            self.notes
                .post_start
                .insert(id.to_owned(), HookProgress::Running);
            self.schedule(behaviour.hook.0, id, Event::PostStart(behaviour.hook.1));
        }
        self.begin_probes(id, behaviour);
    }

    fn begin_probes(&mut self, id: &str, behaviour: Behaviour) {
        let startup = self
            .container(id)
            .is_some_and(|own| own.startup_probe.is_some());
        if startup {
            let verdict = Verdict {
                started: false,
                ready: false,
                dead: None,
            };
            self.notes.verdicts.insert(id.to_owned(), verdict);
            self.schedule(behaviour.starts, id, Event::Starts);
        }
        if let Some(after) = behaviour.dies {
            self.schedule(after, id, Event::Dies);
        }
    }

    /// A container may get its stop signal when its hook has ended and its turn has come, or when
    /// its grace period is over.
    fn check_stop(&self, id: &str) -> Result<(), TestCaseError> {
        let hook = self.notes.pre_stop.get(id);
        let began = self.notes.ending.or(hook.map(|hook| hook.at));
        let grace = self.grace_of(id);
        let in_time = !grace.is_zero() && began.is_none_or(|began| self.now < later(began, grace));
        let seen = self.seen_of(id).unwrap();
        prop_assert!(
            self.runs(&seen.key.container),
            "what doesn't run is not asked to end"
        );
        if self.has_pre_stop(id) && in_time {
            prop_assert!(
                hook.is_some_and(|hook| hook.over),
                "asked before its hook has ended"
            );
        }
        if self.facts().ends() && seen.key.kind == ContainerKind::Sidecar && in_time {
            let starting = self.notes.starting.iter().map(|(name, kind)| (name, *kind));
            let alive = self
                .alive()
                .map(|other| (&other.key.container, other.key.kind));
            let all: Vec<_> = alive.chain(starting).collect();
            let mut others = all.iter().map(|(_, kind)| kind);
            prop_assert!(
                !others.any(|kind| matches!(kind, ContainerKind::Init | ContainerKind::Main)),
                "a sidecar is asked before those whom it serves"
            );
            let place = |name: &str| initial(&self.pod).iter().position(|init| init.name == name);
            let own = place(&seen.key.container);
            let last = all.iter().all(|(name, _)| place(name) <= own);
            prop_assert!(last, "sidecars are asked in reverse order");
        }
        Ok(())
    }

    fn note_replaced(&mut self, id: &str) {
        let seen = self.seen_of(id).unwrap();
        if self.notes.ending.is_none() && is_replaced(&self.pod, &self.notes, seen) {
            self.notes.replaced.insert(id.to_owned());
        }
    }

    /// Carries out a resize.
    fn resize(&mut self, id: &str) -> Result<(), TestCaseError> {
        prop_assert!(!self.facts().ends(), "what ends gets nothing more");
        let wanted = self.container(id).and_then(|own| needs(&self.pod, &own));
        let mut seen = self.seen.iter_mut();
        let seen = seen.find(|seen| seen.id == id).unwrap();
        let runs = matches!(seen.state, ContainerState::Running { .. });
        prop_assert!(runs && seen.needs != wanted, "{id} has what it needs");
        seen.needs = wanted;
        Ok(())
    }

    /// When nothing is left to do, every running container has the resources of the spec, unless it
    /// is being ended.
    fn check_resources(&self) -> Result<(), TestCaseError> {
        let ends =
            |id: &String| self.notes.asked.contains_key(id) || self.notes.pre_stop.contains_key(id);
        let mut alive = self.alive();
        let lacks = alive.find(|seen| is_resized(&self.pod, seen) && !ends(&seen.id));
        let lacks = lacks.filter(|_| !self.facts().ends());
        prop_assert!(lacks.is_none(), "{lacks:?} has not what its pod says");
        Ok(())
    }

    fn act(&mut self, action: Action) -> Result<(), TestCaseError> {
        match action {
            Action::Start {
                container,
                kind,
                attempt,
                backoff,
            } => self.start(&container, kind, attempt, backoff)?,
            Action::PreStop { id, limit } => {
                prop_assert!(self.has_pre_stop(&id) && limit <= self.grace_of(&id));
                prop_assert!(
                    !self.notes.asked.contains_key(&id),
                    "a hook before the stop comes before it"
                );
                let hook = Begun {
                    at: self.now,
                    over: false,
                };
                prop_assert!(
                    self.notes.pre_stop.insert(id.clone(), hook).is_none(),
                    "a hook runs once"
                );
                let behaviour = self.behaviours[self.started.len() % self.behaviours.len()];
                self.schedule(behaviour.hook.0, &id, Event::PreStop);
            }
            Action::Resize { id } => self.resize(&id)?,
            Action::Stop { id } => {
                self.check_stop(&id)?;
                self.note_replaced(&id);
                self.notes.asked.insert(id.clone(), self.now);
                self.asked
                    .push(self.seen_of(&id).unwrap().key.container.clone());
                if self.obeys.contains(&id) {
                    self.end(&id, 143);
                }
            }
            Action::Kill { id } => {
                self.note_replaced(&id);
                let asked = self.notes.asked.get(&id);
                let late = asked.is_some_and(|asked| self.now >= later(*asked, LEAST));
                let is_old = outdated(&self.pod, &self.seen).any(|seen| seen.id == id);
                prop_assert!(late || is_old, "killed without its least time");
                self.end(&id, 137);
            }
            Action::Remove { id } => {
                let running = self.alive().any(|seen| seen.id == id);
                prop_assert!(!running, "what runs is not removed");
                // A half-made attempt was removed: its number may be used again.
                if self
                    .seen_of(&id)
                    .is_some_and(|seen| seen.state == ContainerState::Created)
                {
                    self.started.remove(&id);
                }
                self.seen.retain(|seen| seen.id != id);
            }
            Action::Finish => {
                prop_assert!(
                    self.alive().next().is_none(),
                    "finished with something running"
                );
                prop_assert!(
                    self.half_started.is_empty(),
                    "finished with a start under way"
                );
                self.finished = true;
            }
        }
        Ok(())
    }

    /// Plans and acts until nothing is left to do at this moment; returns when to plan again.
    pub(crate) fn settle(&mut self) -> Result<Option<Timestamp>, TestCaseError> {
        for _ in 0..64 {
            if self.facts().ends() {
                self.notes.ending.get_or_insert(self.now);
            }
            let plan = plan(self.facts());
            prop_assert!(
                !self.waits_for_volumes() || plan.starts().next().is_none(),
                "a start while the next try of the volumes is awaited"
            );
            let old = base(&self.pod, self.written.as_ref());
            let status = status(self.facts(), &old, None, &Addresses::default(), &|_| None);
            self.check_status(&status)?;
            self.reported.push(status.clone());
            self.written = Some(status);
            if plan.actions.is_empty() || self.finished {
                self.check_resources()?;
                self.check_own_graces()?;
                return Ok(plan.wake);
            }
            for action in plan.actions {
                self.act(action)?;
            }
        }
        Err(TestCaseError::fail("the machine never comes to rest"))
    }

    fn check_status(&self, status: &PodStatus) -> Result<(), TestCaseError> {
        let phase = status.phase.as_deref().unwrap_or_default();
        let before = self
            .written
            .as_ref()
            .and_then(|written| written.phase.as_deref())
            .unwrap_or_default();
        let over = |phase: &str| matches!(phase, "Succeeded" | "Failed");
        prop_assert!(!over(before) || before == phase, "{before} becomes {phase}");
        prop_assert!(
            (self.alive().next().is_none() && self.half_started.is_empty()) || !over(phase),
            "{phase} while a container runs or is being started"
        );
        for condition in status.conditions.iter().flatten() {
            let changed = condition.last_transition_time.as_ref().map(|time| time.0);
            prop_assert!(changed.is_some_and(|changed| changed <= self.latest));
        }
        let is_true = |name: &str| {
            let mut conditions = status.conditions.iter().flatten();
            conditions.any(|condition| condition.type_ == name && condition.status == "True")
        };
        let ready = is_true("Ready");
        prop_assert_eq!(ready, is_true("ContainersReady") && self.is_open());
        let sidecars = initial(&self.pod)
            .iter()
            .filter(|init| kind_of_initial(init) == ContainerKind::Sidecar);
        let all_run = mains(&self.pod).iter().chain(sidecars).all(|one| {
            let held =
                latest(&self.seen, &one.name).is_some_and(|seen| self.notes.is_held(&seen.id));
            self.runs(&one.name) && !held
        });
        prop_assert!(!ready || all_run, "ready with a container that doesn't run");
        let inits = status.init_container_statuses.iter().flatten();
        for container in inits.chain(status.container_statuses.iter().flatten()) {
            let state = container.state.clone().unwrap_or_default();
            let kinds = [
                state.running.is_some(),
                state.waiting.is_some(),
                state.terminated.is_some(),
            ];
            let count = kinds.iter().filter(|there| **there).count();
            prop_assert_eq!(count, 1, "a container has one state");
        }
        Ok(())
    }

    fn happen(&mut self, id: &str, event: Event) {
        let verdict = self.notes.verdicts.entry(id.to_owned());
        let plain = Verdict {
            started: true,
            ready: true,
            dead: None,
        };
        match event {
            Event::Started => self.finish_start(id),
            Event::Ends(code) => self.end(id, code),
            Event::Starts => *verdict.or_insert(plain) = plain,
            Event::Dies => verdict.or_insert(plain).dead = Some(Death::Liveness),
            Event::PostStart(well) => {
                let progress = if well {
                    HookProgress::Done
                } else {
                    HookProgress::Failed
                };
                self.notes.post_start.insert(id.to_owned(), progress);
            }
            Event::PreStop => {
                if let Some(hook) = self.notes.pre_stop.get_mut(id) {
                    hook.over = true;
                }
            }
        }
    }

    /// Advances the time to the next event or wake-up, at most to `until`.
    fn advance(&mut self, wake: Option<Timestamp>, until: Timestamp) {
        let events = self.events.iter().map(|(at, ..)| *at);
        let next = events.chain(wake.filter(|at| *at > self.now)).min();
        self.now = next.unwrap_or(until).min(until).max(self.now);
        self.latest = self.latest.max(self.now);
        let now = self.now;
        let (due, rest) = std::mem::take(&mut self.events)
            .into_iter()
            .partition(|(at, ..)| *at <= now);
        self.events = rest;
        let due: Vec<(Timestamp, String, Event)> = due;
        for (_, id, event) in due {
            if self.half_started.contains_key(&id) || self.alive().any(|seen| seen.id == id) {
                self.happen(&id, event);
            }
        }
    }

    pub(crate) fn live_until(&mut self, until: Timestamp) -> Result<(), TestCaseError> {
        for _ in 0..20_000 {
            let wake = self.settle()?;
            if self.now >= until || self.finished {
                return Ok(());
            }
            self.advance(wake, until);
        }
        Err(TestCaseError::fail("time stands still"))
    }
}
