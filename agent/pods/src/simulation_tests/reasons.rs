//! Tests of the reasons of containers that could not be started, and of those of whose end nothing
//! is known.

use super::{after, crashing, phase, plain, status_of, with_sidecars};
use crate::simulation::World;
use crate::simulation_story::{Behaviour, Fault};
use agent_runtime::{ContainerState, ExitCause};
use config_kube::k8s_openapi::api::core::v1::ContainerState as Shown;
use serde_json::{Value, json};

/// A pod whose container's program is missing, followed for some seconds.
fn without_program(policy: &'static str, seconds: u64) -> World {
    let mut world = crashing(policy, 128, seconds);
    for seen in &mut world.seen {
        if let ContainerState::Exited { cause, .. } = &mut seen.state {
            *cause = ExitCause::NotStarted("no such program".to_owned());
        }
    }
    world.settle().unwrap();
    world
}

fn reason(state: Option<Shown>) -> Value {
    let state = serde_json::to_value(state.unwrap_or_default()).unwrap();
    let [waiting, ended] = ["waiting", "terminated"].map(|name| state[name]["reason"].clone());
    if waiting.is_null() { ended } else { waiting }
}

/// The reasons of the state and of the last state.
fn reasons(world: &World, name: &str) -> [Value; 2] {
    let status = status_of(world, name);
    [status.state, status.last_state].map(reason)
}

#[test]
fn a_start_that_failed_is_shown_as_an_error_before_its_back_off() {
    let mut world = without_program("Always", 31);
    assert_eq!(world.starts["main0"], 4, "at 0, 0, 10 and 30 s");
    let failed = [json!("RunContainerError"), json!("StartError")];
    assert_eq!(reasons(&world, "main0"), failed);
    let waiting = status_of(&world, "main0").state.unwrap().waiting.unwrap();
    assert_eq!(waiting.message.as_deref(), Some("no such program"));
    after(&mut world, 1);
    assert_eq!(reasons(&world, "main0"), failed);
    after(&mut world, 1);
    let backs_off = [json!("CrashLoopBackOff"), json!("StartError")];
    assert_eq!(reasons(&world, "main0"), backs_off);

    let world = without_program("Never", 5);
    assert_eq!(phase(&world), "Failed");
    assert_eq!(reasons(&world, "main0"), [json!("StartError"), Value::Null]);
}

#[test]
fn a_container_that_ran_when_the_machine_went_down_ended_for_an_unknown_reason() {
    let mut story = plain("Always", Behaviour::plain(None));
    story.volumes = 1;
    let mut world = World::new(&story);
    after(&mut world, 15);
    world.fault(Fault::Reboot);
    world.volumes_come_after(25);
    after(&mut world, 5);
    assert_eq!(reasons(&world, "main0"), [json!("Unknown"), Value::Null]);
}

#[test]
fn what_a_pod_never_started_is_reported_as_unknown_where_its_turn_had_come() {
    let unknown = json!({"terminated": {
        "exitCode": 137, "reason": "ContainerStatusUnknown",
        "message": "The container could not be located when the pod was terminated",
    }});
    let shown = |world: &World, name: &str| {
        serde_json::to_value(status_of(world, name).state.unwrap()).unwrap()
    };
    for fault in [Fault::Delete, Fault::Evict] {
        let mut story = plain("Always", Behaviour::plain(None));
        story.volumes = 60;
        let mut world = World::new(&story);
        after(&mut world, 5);
        let creating = [json!("ContainerCreating"), Value::Null];
        assert_eq!(reasons(&world, "main0"), creating);
        world.fault(fault);
        after(&mut world, 1);
        assert_eq!(phase(&world), "Failed");
        assert_eq!(shown(&world, "main0"), unknown, "{fault:?}");
    }
    let mut story = with_sidecars("Always", Behaviour::plain(None));
    story.volumes = 60;
    let mut world = World::new(&story);
    after(&mut world, 5);
    world.fault(Fault::Evict);
    after(&mut world, 1);
    assert_eq!(shown(&world, "init0"), unknown);
    for name in ["init1", "init2", "main0"] {
        let initializing = [json!("PodInitializing"), Value::Null];
        assert_eq!(reasons(&world, name), initializing, "{name}");
    }
}
