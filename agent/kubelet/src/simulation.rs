//! The pod machine driven through whole lives: random pods, containers that behave as they like, an agent that
//! loses its memory, a machine that reboots. Time is simulated, so that hours pass in microseconds.

use crate::backoff::later;
use crate::machine::{Action, Notes, RestartPolicy, View, containers, end_of, initialized, plan};
use crate::network::Addresses;
use crate::status::{base, status};
use agent_runtime::{Container as Seen, ContainerKey, ContainerState, Kind, PodRef, container_id};
use config_kube::k8s_openapi::api::core::v1::{Pod, PodStatus};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How one attempt behaves: after so many seconds it ends with a code, or it runs until it is ended.
#[derive(Debug, Clone, Copy)]
struct Nature {
    ends: Option<(u16, i32)>,
    /// It ends when asked.
    obeys: bool,
}

/// What happens from outside, at a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blow {
    Delete,
    AgentRestart,
    Reboot,
}

#[derive(Debug, Clone)]
struct Story {
    policy: &'static str,
    inits: usize,
    mains: usize,
    grace: u16,
    natures: Vec<Nature>,
    blows: Vec<(u16, Blow)>,
}

fn story() -> impl Strategy<Value = Story> {
    let ends =
        proptest::option::weighted(0.8, (0_u16..900, prop_oneof![Just(0), Just(1), Just(137)]));
    let nature = (ends, any::<bool>()).prop_map(|(ends, obeys)| Nature { ends, obeys });
    let blow = (
        0_u16..3000,
        prop_oneof![
            Just(Blow::Delete),
            Just(Blow::AgentRestart),
            Just(Blow::Reboot)
        ],
    );
    (
        prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")],
        0_usize..3,
        1_usize..4,
        0_u16..60,
        proptest::collection::vec(nature, 1..12),
        proptest::collection::vec(blow, 0..5),
    )
        .prop_map(|(policy, inits, mains, grace, natures, mut blows)| {
            blows.sort_unstable_by_key(|(at, _)| *at);
            Story {
                policy,
                inits,
                mains,
                grace,
                natures,
                blows,
            }
        })
}

/// A machine with one pod on it.
struct World {
    pod: Pod,
    seen: Vec<Seen>,
    notes: Notes,
    now: Timestamp,
    /// When each running attempt ends by itself, and how.
    fates: BTreeMap<String, (Timestamp, i32)>,
    obeys: BTreeSet<String>,
    natures: Vec<Nature>,
    started: BTreeSet<String>,
    starts: BTreeMap<String, u32>,
    written: Option<PodStatus>,
    finished: bool,
}

const EPOCH: i64 = 1_800_000_000;

impl World {
    fn new(story: &Story) -> Self {
        let named = |prefix: &str, count: usize| -> Vec<_> {
            (0..count)
                .map(|number| json!({"name": format!("{prefix}{number}"), "image": "registry.example/a:1"}))
                .collect()
        };
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {
                "restartPolicy": story.policy, "hostNetwork": true, "terminationGracePeriodSeconds": story.grace,
                "initContainers": named("init", story.inits), "containers": named("main", story.mains),
            },
        }))
        .unwrap();
        Self {
            pod,
            seen: Vec::new(),
            notes: Notes::default(),
            now: Timestamp::from_second(EPOCH).unwrap(),
            fates: BTreeMap::new(),
            obeys: BTreeSet::new(),
            natures: story.natures.clone(),
            started: BTreeSet::new(),
            starts: BTreeMap::new(),
            written: None,
            finished: false,
        }
    }

    fn alive(&self) -> impl Iterator<Item = &Seen> {
        self.seen
            .iter()
            .filter(|seen| matches!(seen.state, ContainerState::Running { .. }))
    }

    fn end(&mut self, id: &str, code: i32) {
        let now = self.now;
        for seen in self.seen.iter_mut().filter(|seen| seen.id == id) {
            if let ContainerState::Running { started_at } = seen.state {
                seen.state = ContainerState::Exited {
                    started_at,
                    finished_at: now,
                    code,
                    oom_killed: false,
                    start_error: None,
                };
            }
        }
        self.fates.remove(id);
    }

    fn start(
        &mut self,
        name: &str,
        kind: Kind,
        attempt: u32,
        backoff: Option<Duration>,
    ) -> Result<(), TestCaseError> {
        let id = container_id("u", name, attempt);
        prop_assert!(
            end_of(&self.pod, self.now).is_none(),
            "a pod that ends starts nothing"
        );
        prop_assert!(
            self.started.insert(id.clone()),
            "attempt {attempt} of {name} is started twice"
        );
        prop_assert!(
            !self.alive().any(|seen| seen.key.container == name),
            "{name} already runs"
        );
        if kind == Kind::Main {
            prop_assert!(
                initialized(&self.pod, &self.seen),
                "main before its init containers"
            );
            prop_assert!(
                !self.alive().any(|seen| seen.key.kind == Kind::Init),
                "main beside an init container"
            );
        } else {
            prop_assert!(
                self.alive().next().is_none(),
                "an init container runs alone"
            );
        }
        *self.starts.entry(name.to_owned()).or_default() += 1;
        let nature = self.natures[self.started.len() % self.natures.len()];
        if let Some((after, code)) = nature.ends {
            self.fates.insert(
                id.clone(),
                (later(self.now, Duration::from_secs(u64::from(after))), code),
            );
        }
        if nature.obeys {
            self.obeys.insert(id.clone());
        }
        let pod = PodRef {
            namespace: "n".into(),
            name: "p".into(),
            uid: "u".into(),
        };
        self.seen.push(Seen {
            id,
            key: ContainerKey {
                pod,
                container: name.to_owned(),
                kind,
                attempt,
            },
            image: "registry.example/a:1".into(),
            image_id: "registry.example/a@sha256:0".into(),
            state: ContainerState::Running {
                started_at: self.now,
            },
            backoff,
            this_boot: true,
        });
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
            Action::Stop { id } => {
                self.notes.asked.insert(id.clone(), self.now);
                if self.obeys.contains(&id) {
                    self.end(&id, 143);
                }
            }
            Action::Kill { id } => self.end(&id, 137),
            Action::Remove { id } => {
                let running = self.alive().any(|seen| seen.id == id);
                prop_assert!(!running, "what runs is not removed");
                self.seen.retain(|seen| seen.id != id);
            }
            Action::Finish => {
                prop_assert!(
                    self.alive().next().is_none(),
                    "finished with something running"
                );
                self.finished = true;
            }
        }
        Ok(())
    }

    /// Looks and acts until nothing is left to do at this moment; returns when to look again.
    fn settle(&mut self) -> Result<Option<Timestamp>, TestCaseError> {
        for _ in 0..64 {
            if end_of(&self.pod, self.now).is_some() {
                self.notes.ending.get_or_insert(self.now);
            }
            let view = View {
                pod: &self.pod,
                seen: &self.seen,
                notes: &self.notes,
                refused: false,
                now: self.now,
            };
            let plan = plan(view);
            let old = base(&self.pod, self.written.as_ref());
            let status = status(view, &old, None, &Addresses::default(), &|_| None);
            self.check_status(&status)?;
            self.written = Some(status);
            if plan.actions.is_empty() || self.finished {
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
        let mains_alive = self.alive().any(|seen| seen.key.kind == Kind::Main);
        prop_assert!(
            !(mains_alive && over(phase)),
            "{phase} while a container runs"
        );
        for condition in status.conditions.iter().flatten() {
            let changed = condition.last_transition_time.as_ref().map(|time| time.0);
            prop_assert!(changed.is_some_and(|changed| changed <= self.now));
        }
        let ready = status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        let all_run = containers(&self.pod, Kind::Main)
            .iter()
            .all(|main| self.alive().any(|seen| seen.key.container == main.name));
        prop_assert!(!ready || all_run, "ready with a container that doesn't run");
        for container in status.container_statuses.iter().flatten() {
            let state = container.state.clone().unwrap_or_default();
            let kinds = [
                state.running.is_some(),
                state.waiting.is_some(),
                state.terminated.is_some(),
            ];
            prop_assert_eq!(
                kinds.iter().filter(|there| **there).count(),
                1,
                "a container has one state"
            );
        }
        Ok(())
    }

    fn blow(&mut self, blow: Blow) {
        match blow {
            Blow::Delete => self.pod.metadata.deletion_timestamp = Some(Time(self.now)),
            Blow::AgentRestart => {
                self.notes = Notes::default();
                self.pod.status.clone_from(&self.written);
                self.written = None;
            }
            Blow::Reboot => {
                let ids: Vec<String> = self.alive().map(|seen| seen.id.clone()).collect();
                for id in ids {
                    self.end(&id, 255);
                }
                self.seen.iter_mut().for_each(|seen| seen.this_boot = false);
                self.notes = Notes::default();
                self.pod.status.clone_from(&self.written);
                self.written = None;
            }
        }
    }

    /// Advances to the next thing that happens, at most to `until`.
    fn advance(&mut self, wake: Option<Timestamp>, until: Timestamp) {
        let next = self
            .fates
            .values()
            .map(|(at, _)| *at)
            .chain(wake.filter(|at| *at > self.now))
            .min();
        self.now = next.unwrap_or(until).min(until).max(self.now);
        let due: Vec<(String, i32)> = self
            .fates
            .iter()
            .filter(|(_, (at, _))| *at <= self.now)
            .map(|(id, (_, code))| (id.clone(), *code))
            .collect();
        for (id, code) in due {
            self.end(&id, code);
        }
    }

    fn live_until(&mut self, until: Timestamp) -> Result<(), TestCaseError> {
        for _ in 0..10_000 {
            let wake = self.settle()?;
            if self.now >= until || self.finished {
                return Ok(());
            }
            self.advance(wake, until);
        }
        Err(TestCaseError::fail("time stands still"))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_pod_lives_by_the_rules_and_ends_when_it_must(story in story()) {
        let mut world = World::new(&story);
        for &(at, blow) in &story.blows {
            world.live_until(Timestamp::from_second(EPOCH + i64::from(at)).unwrap())?;
            world.blow(blow);
        }
        world.live_until(later(world.now, Duration::from_secs(4000)))?;
        if RestartPolicy::of(&world.pod) == RestartPolicy::Never {
            prop_assert!(world.starts.values().all(|count| *count == 1), "Never means once");
        }
        world.blow(Blow::Delete);
        let limit = later(world.now, Duration::from_secs(u64::from(story.grace) + 1));
        world.live_until(limit)?;
        prop_assert!(world.finished, "a deleted pod is gone after its grace");
    }
}

/// A pod of one container that ends at once with this code, followed for some seconds.
fn crashing(policy: &'static str, code: i32, seconds: u64) -> World {
    let natures = vec![Nature {
        ends: Some((0, code)),
        obeys: true,
    }];
    let mut world = World::new(&Story {
        policy,
        inits: 0,
        mains: 1,
        grace: 1,
        natures,
        blows: Vec::new(),
    });
    world
        .live_until(later(world.now, Duration::from_secs(seconds)))
        .unwrap();
    world
}

fn waiting_reason(world: &World) -> Option<String> {
    let status = world
        .written
        .as_ref()?
        .container_statuses
        .as_ref()?
        .first()?
        .clone();
    status.state?.waiting?.reason
}

#[test]
fn a_crashing_container_is_restarted_ever_more_slowly_and_says_so() {
    let world = crashing("Always", 1, 35);
    assert_eq!(world.starts["main0"], 4, "at 0, 0, 10 and 30 s");
    assert_eq!(waiting_reason(&world).as_deref(), Some("CrashLoopBackOff"));
    let status = &world
        .written
        .as_ref()
        .unwrap()
        .container_statuses
        .as_ref()
        .unwrap()[0];
    assert_eq!(status.restart_count, 3);
    let last = status
        .last_state
        .as_ref()
        .unwrap()
        .terminated
        .as_ref()
        .unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (1, Some("Error")));
}

#[test]
fn a_first_restart_waits_for_no_clock() {
    let natures = vec![Nature {
        ends: None,
        obeys: true,
    }];
    let mut world = World::new(&Story {
        policy: "Always",
        inits: 0,
        mains: 1,
        grace: 1,
        natures,
        blows: Vec::new(),
    });
    world.settle().unwrap();
    let set_back = world.now;
    world.now = later(world.now, Duration::from_secs(3600));
    let id = world.seen[0].id.clone();
    world.end(&id, 1);
    world.now = set_back;
    world.settle().unwrap();
    assert_eq!(
        world.starts["main0"], 2,
        "an end dated later than now is followed at once"
    );
    assert_eq!(waiting_reason(&world), None);
}

#[test]
fn policies_decide_what_an_end_means() {
    let phase = |world: &World| world.written.as_ref().unwrap().phase.clone().unwrap();
    assert_eq!(phase(&crashing("Never", 1, 5)), "Failed");
    assert_eq!(phase(&crashing("Never", 0, 5)), "Succeeded");
    assert_eq!(phase(&crashing("OnFailure", 0, 5)), "Succeeded");
    assert_eq!(phase(&crashing("OnFailure", 1, 5)), "Running");
    assert_eq!(phase(&crashing("Always", 0, 5)), "Running");
}
