//! Tests of changes while a pod runs: a clock that is set, a resize, another grace period, a
//! readiness gate.

use super::{after, crashing, is_true, phase, plain, stubborn};
use crate::simulation::World;
use crate::simulation_story::{Behaviour, Fault};

#[test]
fn a_clock_that_is_set_back_keeps_no_container_waiting() {
    let mut world = crashing("Always", 1, 35);
    assert_eq!(world.starts["main0"], 4, "at 0, 0, 10 and 30 s");
    world.fault(Fault::Clock(-3600));
    after(&mut world, 40);
    assert!(world.starts["main0"] > 4, "forty seconds are its wait");
}

#[test]
fn grace_keeps_its_length_when_somebody_sets_the_clock() {
    for by in [-3600, 3600] {
        let mut world = World::new(&stubborn());
        after(&mut world, 5);
        world.fault(Fault::Delete);
        after(&mut world, 10);
        assert_eq!(world.asked, ["main0"]);
        world.fault(Fault::Clock(by));
        after(&mut world, 19);
        assert!(!world.finished, "{by}");
        after(&mut world, 1);
        assert!(world.finished, "{by}");
    }
}

#[test]
fn a_pod_that_is_deleted_again_has_the_shorter_grace() {
    let mut world = World::new(&stubborn());
    after(&mut world, 5);
    world.fault(Fault::Delete);
    after(&mut world, 10);
    world.fault(Fault::ShorterGrace);
    world.settle().unwrap();
    assert!(world.finished, "its second is over");
}

#[test]
fn other_processors_are_given_to_what_runs_and_other_memory_by_a_restart() {
    let mut world = World::new(&plain("Always", Behaviour::plain(None)));
    after(&mut world, 5);
    world.fault(Fault::Resize { anew: false });
    after(&mut world, 5);
    assert_eq!(world.starts["main0"], 1);
    assert!(world.asked.is_empty());
    let needs = world.seen[0].needs.clone().unwrap();
    assert!(needs.contains("\"11m\""), "{needs}");
    world.fault(Fault::Resize { anew: true });
    after(&mut world, 5);
    assert_eq!((world.starts["main0"], world.asked.len()), (2, 1));
}

#[test]
fn a_pod_is_ready_when_its_containers_are_and_others_have_opened_its_gate() {
    let mut story = plain("Always", Behaviour::plain(None));
    story.gate = true;
    let mut world = World::new(&story);
    after(&mut world, 5);
    assert!(is_true(&world, "ContainersReady") && !is_true(&world, "Ready"));
    let conditions = world.written.as_ref().unwrap().conditions.clone().unwrap();
    let ready = conditions.iter().find(|one| one.type_ == "Ready").unwrap();
    assert_eq!(ready.reason.as_deref(), Some("ReadinessGatesNotReady"));
    assert_eq!(
        ready.message.as_deref(),
        Some("corresponding conditions of pod readiness gates [example.com/gate] are not true")
    );
    world.fault(Fault::Gate);
    after(&mut world, 1);
    assert!(is_true(&world, "Ready"));
    world.fault(Fault::AgentRestart);
    after(&mut world, 1);
    assert!(is_true(&world, "Ready"), "what others have set stays");
    world.fault(Fault::Gate);
    after(&mut world, 1);
    assert!(is_true(&world, "ContainersReady") && !is_true(&world, "Ready"));
}

#[test]
fn a_container_that_fails_its_liveness_probe_has_the_grace_of_the_probe() {
    for (own_grace, killed) in [(true, 8), (false, 35)] {
        let mut story = stubborn();
        story.mains[0].own_grace = own_grace;
        story.behaviours[0].dies = Some(5);
        let mut world = World::new(&story);
        after(&mut world, killed - 1);
        assert_eq!(world.asked, ["main0"], "{own_grace}");
        assert_eq!(world.starts["main0"], 1, "{own_grace}");
        after(&mut world, 1);
        assert_eq!(world.starts["main0"], 2, "{own_grace}");
    }
    let mut story = stubborn();
    story.mains[0].own_grace = true;
    let mut world = World::new(&story);
    after(&mut world, 5);
    world.fault(Fault::Delete);
    after(&mut world, 29);
    assert!(!world.finished, "the deletion has the pod's");
    after(&mut world, 1);
    assert!(world.finished);
}

#[test]
fn a_pod_that_was_evicted_has_failed_also_when_it_is_deleted() {
    let mut world = crashing("Always", 0, 35);
    world.fault(Fault::Evict);
    after(&mut world, 5);
    assert_eq!(phase(&world), "Failed");
    world.fault(Fault::Delete);
    after(&mut world, 5);
    assert!(world.finished);
    assert_eq!(phase(&world), "Failed");
    let status = world.written.unwrap();
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
}
