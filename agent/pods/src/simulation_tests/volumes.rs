//! Tests of pods whose volumes can't be set up yet.

use super::{after, is_true, phase, plain, status_of, waiting_reason, with_sidecars};
use crate::backoff::later;
use crate::simulation::World;
use crate::simulation_story::{Behaviour, Fault};
use std::time::Duration;

#[test]
fn a_pod_whose_volumes_are_missing_waits_to_be_created_and_starts_when_they_are_there() {
    let mut story = plain("Always", Behaviour::plain(None));
    story.volumes = 25;
    let mut world = World::new(&story);
    after(&mut world, 29);
    let reason = waiting_reason(&world, "main0");
    assert_eq!(reason.as_deref(), Some("ContainerCreating"));
    assert!(!is_true(&world, "PodReadyToStartContainers"));
    assert_eq!(phase(&world), "Pending");
    assert!(world.starts.is_empty());
    after(&mut world, 1);
    assert_eq!(world.starts["main0"], 1, "tried at 0, 10 and 30 s");
    assert_eq!(phase(&world), "Running");
}

#[test]
fn nothing_of_a_pod_starts_before_its_volumes_are_there_nor_a_debugger() {
    let mut story = with_sidecars("Always", Behaviour::plain(None));
    story.volumes = 60;
    let mut world = World::new(&story);
    world.fault(Fault::Debug);
    after(&mut world, 55);
    for name in ["init0", "init1", "main0"] {
        let reason = waiting_reason(&world, name);
        assert_eq!(reason.as_deref(), Some("PodInitializing"), "{name}");
    }
    assert!(world.starts.is_empty());
    world.fault(Fault::Delete);
    after(&mut world, 1);
    assert!(world.finished, "nothing is left to end");
}

#[test]
fn a_container_that_ended_looks_so_while_the_next_waits_for_the_volumes() {
    let mut story = plain("Always", Behaviour::plain(None));
    story.volumes = 1;
    let mut world = World::new(&story);
    after(&mut world, 15);
    assert_eq!(phase(&world), "Running");
    world.fault(Fault::Reboot);
    world.volumes_come_after(25);
    after(&mut world, 20);
    let state = status_of(&world, "main0").state.unwrap();
    assert!(state.terminated.is_some(), "{state:?}");
    assert_eq!(world.starts["main0"], 1);
    after(&mut world, 15);
    assert_eq!(world.starts["main0"], 2);
}

#[test]
fn volumes_that_are_never_there_are_tried_less_and_less_often_up_to_a_limit() {
    let mut story = plain("Always", Behaviour::plain(None));
    story.volumes = 1000;
    let mut world = World::new(&story);
    let begun = world.now;
    let mut tries = Vec::new();
    for second in 0..200_u64 {
        let failed = world.notes.mounts_failed;
        world
            .live_until(later(begun, Duration::from_secs(second)))
            .unwrap();
        if world.notes.mounts_failed > failed {
            tries.push(second);
        }
    }
    assert_eq!(tries, [0, 10, 30, 70, 110, 150, 190]);
    // They are there at last, and missing again.
    world.volumes_come_after(0);
    after(&mut world, 40);
    assert_eq!(world.notes.mounts_failed, 0);
}
