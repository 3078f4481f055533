//! The pod machine driven through whole lives: random pods, and pods for one rule each.

mod changes;
mod reasons;
mod stories;
mod volumes;

use crate::backoff::later;
use crate::ending::LEAST;
use crate::machine::{PodFacts, plan};
use crate::notes::Eviction;
use crate::policy::RestartPolicy;
use crate::simulation::{EPOCH, World};
use crate::simulation_story::{Behaviour, Fault, Story, Traits};
use config_kube::k8s_openapi::api::core::v1::ContainerStatus;
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;
use stories::story;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_pod_lives_by_the_rules_and_ends_when_it_must(story in story()) {
        let mut world = World::new(&story);
        for &(at, fault) in &story.faults {
            world.live_until(Timestamp::from_second(EPOCH + i64::from(at)).unwrap())?;
            world.fault(fault);
        }
        world.live_until(later(world.now, Duration::from_secs(4000)))?;
        let replaces = [Fault::Image, Fault::Resize { anew: true }];
        let replaced = story.faults.iter().any(|(_, fault)| replaces.contains(fault));
        let mut all = story.inits.iter().chain(&story.mains);
        let anew = all.any(|traits| traits.restarts_all);
        if RestartPolicy::of(&world.pod) == RestartPolicy::Never && !anew {
            let once = |(name, count): (&String, &u32)| {
                let sidecar = name.strip_prefix("init").and_then(|number| number.parse().ok());
                *count == 1 || (replaced && name == "main0") || sidecar.is_some_and(|number: usize| story.inits[number].sidecar)
            };
            prop_assert!(world.starts.iter().all(once), "Never means once");
        }
        let mut debuggers = world.starts.iter().filter(|(name, _)| name.starts_with("debug"));
        prop_assert!(debuggers.all(|(_, count)| *count == 1), "a debugger is started once");
        world.fault(Fault::Delete);
        let longest = story.behaviours.iter().map(|one| one.takes).max().unwrap_or_default();
        let limit = Duration::from_secs(u64::from(story.grace.max(1)) + u64::from(longest)) + LEAST;
        world.live_until(later(world.now, limit))?;
        prop_assert!(world.finished, "a deleted pod is gone after its grace, and what was being started then");
    }
}

/// A pod of plain containers, all with one behaviour.
fn plain(policy: &'static str, behaviour: Behaviour) -> Story {
    Story {
        policy,
        inits: Vec::new(),
        mains: vec![Traits::default()],
        grace: 1,
        gate: false,
        volumes: 0,
        behaviours: vec![behaviour],
        faults: Vec::new(),
    }
}

/// A pod whose container ignores its stop signal, and is killed after thirty seconds.
fn stubborn() -> Story {
    let mut behaviour = Behaviour::plain(None);
    behaviour.obeys = false;
    let mut story = plain("Always", behaviour);
    story.grace = 30;
    story
}

/// A pod of one container that ends at once with this code, followed for some seconds.
fn crashing(policy: &'static str, code: i32, seconds: u64) -> World {
    let mut world = World::new(&plain(policy, Behaviour::plain(Some((0, code)))));
    after(&mut world, seconds);
    world
}

/// Lets the pod live for this number of seconds.
fn after(world: &mut World, seconds: u64) {
    world
        .live_until(later(world.now, Duration::from_secs(seconds)))
        .unwrap();
}

fn status_of(world: &World, name: &str) -> ContainerStatus {
    let status = world.written.as_ref().unwrap();
    let inits = status.init_container_statuses.iter().flatten();
    let mut all = inits.chain(status.container_statuses.iter().flatten());
    all.find(|status| status.name == name).unwrap().clone()
}

fn waiting_reason(world: &World, name: &str) -> Option<String> {
    status_of(world, name).state?.waiting?.reason
}

fn phase(world: &World) -> String {
    world.written.as_ref().unwrap().phase.clone().unwrap()
}

fn is_true(world: &World, name: &str) -> bool {
    let mut conditions = world
        .written
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == name && condition.status == "True")
}

#[test]
fn a_crashing_container_backs_off_and_its_status_shows_it() {
    let world = crashing("Always", 1, 35);
    assert_eq!(world.starts["main0"], 4, "at 0, 0, 10 and 30 s");
    assert_eq!(
        waiting_reason(&world, "main0").as_deref(),
        Some("CrashLoopBackOff")
    );
    let status = status_of(&world, "main0");
    assert_eq!(status.restart_count, 3);
    let last = status.last_state.unwrap().terminated.unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (1, Some("Error")));
}

#[test]
fn a_first_restart_comes_at_once_also_after_the_clock_was_set_back() {
    let mut world = World::new(&plain("Always", Behaviour::plain(None)));
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
    assert_eq!(waiting_reason(&world, "main0"), None);
}

#[test]
fn the_restart_policy_and_the_exit_code_decide_the_phase() {
    assert_eq!(phase(&crashing("Never", 1, 5)), "Failed");
    assert_eq!(phase(&crashing("Never", 0, 5)), "Succeeded");
    assert_eq!(phase(&crashing("OnFailure", 0, 5)), "Succeeded");
    assert_eq!(phase(&crashing("OnFailure", 1, 5)), "Running");
    assert_eq!(phase(&crashing("Always", 0, 5)), "Running");
}

#[test]
fn a_container_counts_as_running_when_its_hook_has_ended_and_the_next_waits_for_that() {
    let hooked = Traits {
        post_start: true,
        ..Traits::default()
    };
    let mut behaviour = Behaviour::plain(None);
    behaviour.hook = (20, true);
    let mut story = plain("Always", behaviour);
    story.mains = vec![hooked, Traits::default()];
    let mut world = World::new(&story);
    after(&mut world, 19);
    assert_eq!(phase(&world), "Pending");
    assert_eq!(
        waiting_reason(&world, "main0").as_deref(),
        Some("ContainerCreating")
    );
    assert!(!world.starts.contains_key("main1"));
    after(&mut world, 1);
    assert_eq!(phase(&world), "Running");
    assert!(status_of(&world, "main0").ready && is_true(&world, "Ready"));
}

#[test]
fn a_container_whose_hook_after_the_start_fails_is_ended_and_started_again() {
    let mut behaviour = Behaviour::plain(None);
    behaviour.hook = (5, false);
    behaviour.obeys = false;
    let mut story = plain("Always", behaviour);
    story.grace = 10;
    story.mains[0].post_start = true;
    let mut world = World::new(&story);
    after(&mut world, 6);
    assert_eq!(
        waiting_reason(&world, "main0").as_deref(),
        Some("PostStartHookError")
    );
    after(&mut world, 9);
    assert_eq!(
        world.starts["main0"], 2,
        "killed after its grace, 15 s after its start"
    );
}

#[test]
fn a_hook_before_the_stop_takes_of_the_grace_and_leaves_two_seconds() {
    let mut story = stubborn();
    story.mains[0].pre_stop = true;
    for (takes, asked, gone) in [(10, 10, 30), (29, 29, 31), (600, 30, 32)] {
        story.behaviours[0].hook = (takes, true);
        let mut world = World::new(&story);
        after(&mut world, 5);
        world.fault(Fault::Delete);
        after(&mut world, asked - 1);
        assert!(world.asked.is_empty(), "{takes}");
        after(&mut world, 1);
        assert_eq!(world.asked, ["main0"], "{takes}");
        after(&mut world, gone - asked - 1);
        assert!(!world.finished, "{takes}");
        after(&mut world, 1);
        assert!(world.finished, "{takes}");
    }
}

#[test]
fn a_container_without_a_grace_period_is_asked_to_end_and_has_two_seconds() {
    let mut story = stubborn();
    story.grace = 0;
    story.behaviours[0].hook = (600, true);
    // A pod that ends has a second for its hooks.
    for (hooked, asked) in [(false, 0), (true, 1)] {
        story.mains[0].pre_stop = hooked;
        let mut world = World::new(&story);
        after(&mut world, 5);
        world.fault(Fault::Delete);
        after(&mut world, asked);
        assert_eq!(world.asked, ["main0"], "{hooked}");
        after(&mut world, 1);
        assert!(!world.finished, "{hooked}");
        after(&mut world, 1);
        assert!(world.finished, "{hooked}");
    }
    story.behaviours[0].dies = Some(5);
    let mut world = World::new(&story);
    after(&mut world, 6);
    assert_eq!(world.asked, ["main0"], "a restart has no time for a hook");
    assert_eq!(world.starts["main0"], 1);
    after(&mut world, 1);
    assert_eq!(world.starts["main0"], 2);
}

#[test]
fn a_pod_that_is_deleted_is_ready_until_its_containers_end() {
    let story = stubborn();
    let mut world = World::new(&story);
    after(&mut world, 5);
    world.fault(Fault::Delete);
    after(&mut world, 29);
    assert_eq!(world.asked, ["main0"]);
    assert!(status_of(&world, "main0").ready && is_true(&world, "Ready"));
    after(&mut world, 1);
    assert!(world.finished);
    assert!(!status_of(&world, "main0").ready);
}

#[test]
fn a_pod_that_is_evicted_or_was_active_for_too_long_has_failed_when_its_containers_have_ended() {
    let story = stubborn();
    for (reason, lasts) in [("Evicted", 2), ("DeadlineExceeded", 30)] {
        let mut world = World::new(&story);
        after(&mut world, 5);
        if reason == "Evicted" {
            world.fault(Fault::Evict);
        } else {
            world.pod.status.clone_from(&world.written);
            world.pod.spec.as_mut().unwrap().active_deadline_seconds = Some(5);
        }
        after(&mut world, lasts - 1);
        assert_eq!(world.asked, ["main0"], "{reason}");
        let status = world.written.clone().unwrap();
        assert_eq!(phase(&world), "Running", "{reason}");
        assert_eq!((status.reason, status.message), (None, None), "{reason}");
        assert!(!is_true(&world, "DisruptionTarget"), "{reason}");
        after(&mut world, 1);
        let status = world.written.clone().unwrap();
        assert_eq!(phase(&world), "Failed");
        assert_eq!(status.reason.as_deref(), Some(reason));
        let disrupted = is_true(&world, "DisruptionTarget");
        assert_eq!(disrupted, reason == "Evicted");
    }
}

#[test]
fn a_pod_that_is_evicted_for_a_soft_threshold_has_its_grace_also_over_a_restart_of_the_agent() {
    let story = stubborn();
    let mut world = World::new(&story);
    after(&mut world, 5);
    world.notes.evicted = Some(Eviction {
        reason: Eviction::PRESSURE,
        message: "The node was low on resource: memory. ".to_owned(),
        annotations: BTreeMap::new(),
        grace: Duration::from_secs(10),
    });
    after(&mut world, 4);
    assert_eq!(world.asked, ["main0"]);
    world.fault(Fault::AgentRestart);
    // The new agent sends the stop signal again, and its grace period counts from then.
    after(&mut world, 9);
    assert_eq!(phase(&world), "Running");
    after(&mut world, 1);
    assert_eq!(phase(&world), "Failed");
    let status = world.written.clone().unwrap();
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
}

/// A pod whose containers are all restarted when its main container exits with 42.
fn restarting_all(policy: &'static str, behaviours: Vec<Behaviour>) -> World {
    let story = Story {
        behaviours,
        ..with_sidecars(policy, Behaviour::plain(None))
    };
    let mut world = World::new(&story);
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let main = &mut world.pod.spec.as_mut().unwrap().containers[0];
    main.restart_policy_rules = serde_json::from_value(rules).unwrap();
    world
}

#[test]
fn all_containers_are_started_anew_by_the_rule_of_one_and_nothing_is_asked_to_end() {
    let (lasts, init) = (Behaviour::plain(None), Behaviour::plain(Some((5, 0))));
    // Behaviours in the order of starts: sidecar, init container, other sidecar, main container.
    let ends = Behaviour::plain(Some((20, 42)));
    let mut slow = lasts;
    slow.takes = 3;
    let mut world = restarting_all("Never", vec![ends, lasts, init, slow]);
    after(&mut world, 27);
    assert_eq!(phase(&world), "Running");
    assert!(!is_true(&world, "AllContainersRestarting"));
    after(&mut world, 3);
    let counts = |world: &World| {
        let names = ["init0", "init1", "init2", "main0"];
        names.map(|name| world.starts[name])
    };
    assert_eq!(counts(&world), [2, 2, 1, 1], "in the order of a new pod");
    assert_eq!(phase(&world), "Pending");
    assert!(is_true(&world, "Initialized"), "once is for good");
    world.fault(Fault::AgentRestart);
    after(&mut world, 10);
    assert_eq!(counts(&world), [2, 2, 2, 2]);
    assert_eq!(phase(&world), "Running");
    assert_eq!(status_of(&world, "init0").restart_count, 1);
    assert!(world.asked.is_empty(), "there is no grace");
    // The main container exits with 42 again and again: each restart has a longer back-off.
    after(&mut world, 300);
    let count = world.starts["main0"];
    assert!((4..9).contains(&count), "{count}");
}

#[test]
fn a_sidecar_that_is_ended_with_its_pod_starts_nothing_anew() {
    let (mut lasts, ends) = (Behaviour::plain(None), Behaviour::plain(Some((20, 0))));
    lasts.obeys = false;
    let mut world = restarting_all(
        "Never",
        vec![ends, lasts, Behaviour::plain(Some((5, 0))), lasts],
    );
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}}]);
    let inits = world.pod.spec.as_mut().unwrap().init_containers.as_mut();
    inits.unwrap()[0].restart_policy_rules = serde_json::from_value(rules).unwrap();
    after(&mut world, 60);
    assert_eq!(world.asked, ["init2", "init0"]);
    assert_eq!(phase(&world), "Succeeded");
    assert_eq!(world.starts["main0"], 1);
    let killed = Behaviour::plain(Some((10, 1)));
    let mut world = restarting_all(
        "Never",
        vec![lasts, killed, Behaviour::plain(Some((5, 0))), lasts],
    );
    let rules =
        json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]);
    let inits = world.pod.spec.as_mut().unwrap().init_containers.as_mut();
    inits.unwrap()[0].restart_policy_rules = serde_json::from_value(rules).unwrap();
    after(&mut world, 60);
    assert!(world.starts["main0"] > 1, "while its pod goes on, it does");
}

/// A pod with an init container between two sidecars, and one main container.
fn with_sidecars(policy: &'static str, behaviour: Behaviour) -> Story {
    let sidecar = Traits {
        sidecar: true,
        ..Traits::default()
    };
    Story {
        inits: vec![sidecar, Traits::default(), sidecar],
        grace: 30,
        ..plain(policy, behaviour)
    }
}

#[test]
fn what_comes_after_a_sidecar_starts_when_the_sidecar_has_started() {
    let mut behaviour = Behaviour::plain(Some((50, 0)));
    behaviour.starts = 20;
    let mut story = with_sidecars("Always", behaviour);
    story.inits[0].startup = true;
    let mut world = World::new(&story);
    after(&mut world, 19);
    assert!(!world.starts.contains_key("init1"));
    assert_eq!(status_of(&world, "init0").started, Some(false));
    after(&mut world, 1);
    assert!(world.starts.contains_key("init1"));
    assert_eq!(status_of(&world, "init0").started, Some(true));
    // The first sidecar ends, and the init container goes on beside its next attempt.
    after(&mut world, 31);
    assert_eq!((world.starts["init0"], world.starts["init1"]), (2, 1));
    after(&mut world, 25);
    assert!(world.starts.contains_key("init2") && world.starts.contains_key("main0"));
    assert_eq!(phase(&world), "Running");
}

#[test]
fn sidecars_end_after_the_work_in_reverse_order_and_decide_no_phase() {
    for (code, ends) in [(0, "Succeeded"), (3, "Failed")] {
        let story = with_sidecars("Never", Behaviour::plain(None));
        let mut world = World::new(&story);
        world.settle().unwrap();
        let init = world.seen[1].id.clone();
        world.end(&init, 0);
        after(&mut world, 5);
        assert!(is_true(&world, "Ready") && is_true(&world, "Initialized"));
        let main = world.seen.last().unwrap().id.clone();
        world.end(&main, code);
        after(&mut world, 5);
        assert_eq!(world.asked, ["init2", "init0"]);
        assert_eq!(
            phase(&world),
            ends,
            "143 of a sidecar is no failure of the pod"
        );
    }
}

#[test]
fn a_sidecar_is_started_again_while_the_pod_runs_and_counts_for_ready() {
    let story = with_sidecars("Never", Behaviour::plain(None));
    let mut world = World::new(&story);
    world.settle().unwrap();
    let init = world.seen[1].id.clone();
    world.end(&init, 0);
    after(&mut world, 700);
    let sidecar = world.seen[0].id.clone();
    for _ in 0..2 {
        let newest = world.alive().find(|seen| seen.key.container == "init0");
        let id = newest.map_or(sidecar.clone(), |seen| seen.id.clone());
        world.end(&id, 0);
        world.settle().unwrap();
    }
    assert_eq!(world.starts["init0"], 2, "the second restart waits");
    assert_eq!(
        waiting_reason(&world, "init0").as_deref(),
        Some("CrashLoopBackOff")
    );
    assert!(!is_true(&world, "Ready") && is_true(&world, "Initialized"));
    assert_eq!(phase(&world), "Running");
}

#[test]
fn sidecars_of_a_pod_whose_init_container_failed_for_good_end_before_it_has_failed() {
    let mut behaviour = Behaviour::plain(None);
    behaviour.obeys = false;
    let mut world = World::new(&with_sidecars("Never", behaviour));
    world.settle().unwrap();
    let init = world.seen[1].id.clone();
    world.end(&init, 1);
    after(&mut world, 29);
    assert_eq!(phase(&world), "Pending");
    after(&mut world, 3);
    assert_eq!(phase(&world), "Failed");
    assert_eq!(world.starts.get("main0"), None);
}

#[test]
fn a_debugger_runs_beside_an_init_container_once_and_decides_nothing() {
    let mut story = plain("Always", Behaviour::plain(Some((20, 1))));
    story.inits = vec![Traits::default()];
    let mut world = World::new(&story);
    world.settle().unwrap();
    world.fault(Fault::Debug);
    after(&mut world, 15);
    assert_eq!(phase(&world), "Pending");
    let debugger_state = |world: &World| {
        let all = world
            .written
            .as_ref()
            .unwrap()
            .ephemeral_container_statuses
            .clone();
        all.unwrap()[0].state.clone().unwrap()
    };
    assert!(debugger_state(&world).running.is_some());
    after(&mut world, 15);
    assert_eq!(debugger_state(&world).terminated.unwrap().exit_code, 1);
    world.fault(Fault::Reboot);
    after(&mut world, 600);
    assert_eq!(world.starts["debug0"], 1);
}

/// A pod of three main containers, of which the first crashes every few seconds and the second
/// takes long to start. If `lives`, the second starts in the end, though no other container
/// waits for it.
fn with_a_slow_start(lives: bool) -> World {
    let crashes = Behaviour::plain(Some((5, 1)));
    let mut story = plain("Always", crashes);
    story.mains = vec![Traits::default(); 3];
    story.behaviours = vec![crashes; 8];
    story.behaviours[2] = Behaviour {
        takes: 300,
        obeys: false,
        hook: (0, lives),
        ..Behaviour::plain(None)
    };
    World::new(&story)
}

#[test]
fn a_slow_start_holds_up_the_first_start_of_those_after_it_and_nothing_else() {
    let mut world = with_a_slow_start(true);
    after(&mut world, 100);
    assert!(world.starts["main0"] >= 3, "{:?}", world.starts);
    assert_eq!(world.starts.len(), 1, "the others wait in their order");
    let restarts = status_of(&world, "main0").restart_count;
    assert_eq!(u32::try_from(restarts + 1), Ok(world.starts["main0"]));
    for name in ["main1", "main2"] {
        let reason = waiting_reason(&world, name);
        assert_eq!(reason.as_deref(), Some("ContainerCreating"), "{name}");
    }
    assert_eq!(phase(&world), "Pending");
    after(&mut world, 200);
    assert_eq!((world.starts["main1"], world.starts["main2"]), (1, 1));
}

#[test]
fn a_pod_that_is_deleted_during_a_start_waits_for_it_and_ends_what_came_of_it() {
    let mut world = with_a_slow_start(true);
    after(&mut world, 100);
    world.fault(Fault::Delete);
    after(&mut world, 199);
    assert!(!world.finished && !world.starts.contains_key("main1"));
    assert_eq!(phase(&world), "Pending");
    after(&mut world, 1);
    assert_eq!(world.asked.last().map(String::as_str), Some("main1"));
    assert!(!world.finished, "it may take its least time");
    after(&mut world, 2);
    assert!(world.finished && !world.starts.contains_key("main2"));
}

#[test]
fn an_agent_that_begins_during_a_start_clears_half_a_container_away_and_starts_it_again() {
    for lives in [false, true] {
        let mut world = with_a_slow_start(lives);
        after(&mut world, 100);
        world.fault(Fault::AgentRestart);
        after(&mut world, 1);
        assert_eq!(world.starts["main1"], 1, "{lives}");
        let ids = world.alive().filter(|seen| seen.key.container == "main1");
        assert_eq!(ids.map(|seen| seen.key.attempt).collect::<Vec<_>>(), [0]);
    }
}

#[test]
fn a_new_image_is_taken_at_once_whatever_the_policy_and_by_nothing_that_is_over() {
    for (policy, obeys) in [("Always", true), ("OnFailure", true), ("Never", false)] {
        let mut behaviour = Behaviour::plain(None);
        behaviour.obeys = obeys;
        let mut world = World::new(&plain(policy, behaviour));
        after(&mut world, 5);
        world.fault(Fault::Image);
        world.settle().unwrap();
        if !obeys {
            assert_eq!(world.starts["main0"], 1, "{policy}: it has its grace");
        }
        after(&mut world, 3);
        assert_eq!(
            (world.starts["main0"], &*phase(&world)),
            (2, "Running"),
            "{policy}"
        );
        let runs = world.alive().map(|seen| seen.image.clone());
        assert_eq!(
            runs.collect::<Vec<_>>(),
            ["registry.example/a:10"],
            "{policy}"
        );
    }
    let mut over = crashing("Never", 1, 5);
    over.fault(Fault::Image);
    after(&mut over, 5);
    assert_eq!((over.starts["main0"], &*phase(&over)), (1, "Failed"));
}

#[test]
fn a_container_that_waits_for_its_next_start_takes_a_new_image_at_once() {
    let mut world = crashing("Always", 1, 35);
    assert_eq!(
        waiting_reason(&world, "main0").as_deref(),
        Some("CrashLoopBackOff")
    );
    world.fault(Fault::Image);
    world.settle().unwrap();
    let before = world.starts["main0"];
    assert_eq!(before, 5, "at 0, 0, 10, 30 and 35 s");
    after(&mut world, 9);
    assert_eq!(world.starts["main0"], before);
    after(&mut world, 1);
    assert_eq!(world.starts["main0"], before + 1, "the waits begin anew");
}

#[test]
fn a_container_that_a_probe_ended_does_not_look_as_if_it_had_ended_for_good() {
    let mut behaviour = Behaviour::plain(None);
    behaviour.dies = Some(5);
    let mut world = World::new(&plain("Always", behaviour));
    after(&mut world, 4);
    world.reported.clear();
    after(&mut world, 3);
    assert_eq!(world.starts["main0"], 2);
    let terminated = world.reported.iter().any(|status| {
        let mut all = status.container_statuses.iter().flatten();
        all.any(|one| {
            one.state
                .as_ref()
                .is_some_and(|state| state.terminated.is_some())
        })
    });
    assert!(!terminated, "{:?}", world.reported);
}

#[test]
fn what_is_to_start_before_the_main_containers_waits_for_the_pod_to_initialize() {
    let mut slow = Behaviour::plain(None);
    slow.takes = 10;
    let mut story = plain("Never", slow);
    story.inits = vec![Traits::default(); 2];
    let mut world = World::new(&story);
    after(&mut world, 5);
    for name in ["init0", "init1", "main0"] {
        let reason = waiting_reason(&world, name);
        assert_eq!(reason.as_deref(), Some("PodInitializing"), "{name}");
    }
}

/// Its status says that it failed: a container would run beside that, on what the machine lacks.
#[test]
fn a_refused_pod_starts_nothing() {
    let world = World::new(&plain("Always", Behaviour::plain(None)));
    let planned = |refused| {
        let facts = PodFacts {
            refused,
            ..world.facts()
        };
        plan(facts).actions
    };
    assert!(planned(true).is_empty(), "{:?}", planned(true));
    assert!(!planned(false).is_empty(), "the negative control");
}
