//! Tests of pods whose volumes can't be set up yet.

use super::{after, is_true, phase, plain, status_of, waiting_reason, with_sidecars};
use crate::simulation::World;
use crate::simulation_story::{Behaviour, Fault};

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
    assert_eq!(world.starts["main0"], 1, "tried at 0, 10, 20 and 30 s");
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
