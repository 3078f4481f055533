//! The input of a simulation: a pod's spec, the behaviour of its containers, and faults from
//! outside.

use serde_json::{Value, json};
use std::time::Duration;

/// How one attempt behaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Behaviour {
    /// Seconds from the order to start it until it runs.
    pub(crate) takes: u16,
    /// Seconds until it exits by itself, and its code; `None`: it runs until it is ended.
    pub(crate) ends: Option<(u16, i32)>,
    /// It ends at its stop signal.
    pub(crate) obeys: bool,
    /// Seconds that each of its hooks takes, and whether the postStart hook succeeds.
    pub(crate) hook: (u16, bool),
    /// Seconds until its startup probe passes, if it has one.
    pub(crate) starts: u16,
    /// Seconds until its liveness probe has failed too often, if it does.
    pub(crate) dies: Option<u16>,
}

impl Behaviour {
    /// A container that starts at once, exits as `ends` says, and ends at its stop signal.
    pub(crate) fn plain(ends: Option<(u16, i32)>) -> Self {
        Self {
            takes: 0,
            ends,
            obeys: true,
            hook: (0, true),
            starts: 0,
            dies: None,
        }
    }
}

/// What the pod's spec has for a container.
#[derive(Debug, Clone, Copy, Default)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is one field of a container's description, there or not"
)]
pub(crate) struct Traits {
    pub(crate) sidecar: bool,
    pub(crate) post_start: bool,
    pub(crate) pre_stop: bool,
    pub(crate) startup: bool,
    /// A rule restarts all containers when it exits with 1.
    pub(crate) restarts_all: bool,
    /// Its liveness probe has a grace period of its own, [`OWN_GRACE`].
    pub(crate) own_grace: bool,
}

/// The grace period of liveness probes that have one of their own.
pub(crate) const OWN_GRACE: Duration = Duration::from_secs(3);

/// What happens from outside, at a second of the story.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Delete,
    /// An ephemeral container is added (kubectl debug).
    Debug,
    /// The first main container gets another image.
    Image,
    /// The node is under pressure and has chosen the pod.
    Evict,
    AgentRestart,
    Reboot,
    /// The clock is set by this number of seconds.
    Clock(i16),
    /// The first main container gets other resources: CPU, which needs no restart, or memory, which
    /// does.
    Resize {
        anew: bool,
    },
    /// A pod that is being deleted is deleted again, with a second of grace.
    ShorterGrace,
    /// The pod's readiness gate opens or closes.
    Gate,
}

/// The condition type of the pod's readiness gate, which other writers set.
pub(crate) const GATE: &str = "example.com/gate";

#[derive(Debug, Clone)]
pub(crate) struct Story {
    pub(crate) policy: &'static str,
    pub(crate) inits: Vec<Traits>,
    pub(crate) mains: Vec<Traits>,
    pub(crate) grace: u16,
    /// It has a readiness gate.
    pub(crate) gate: bool,
    /// Seconds until its volumes can be set up.
    pub(crate) volumes: u16,
    pub(crate) behaviours: Vec<Behaviour>,
    pub(crate) faults: Vec<(u16, Fault)>,
}

/// A container in the form of the API.
pub(crate) fn described(name: &str, traits: Traits) -> Value {
    let exec = json!({"exec": {"command": ["true"]}});
    let mut container = json!({
        "name": name, "image": "registry.example/a:1", "lifecycle": {},
        "resources": {"requests": {"cpu": "1m", "memory": "1"}},
        "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}],
    });
    if traits.sidecar {
        container["restartPolicy"] = json!("Always");
    }
    if traits.post_start {
        container["lifecycle"]["postStart"] = exec.clone();
    }
    if traits.pre_stop {
        container["lifecycle"]["preStop"] = exec.clone();
    }
    if traits.restarts_all {
        let codes = json!({"operator": "In", "values": [1]});
        container["restartPolicyRules"] =
            json!([{"action": "RestartAllContainers", "exitCodes": codes}]);
    }
    if traits.own_grace {
        container["livenessProbe"] = exec.clone();
        container["livenessProbe"]["terminationGracePeriodSeconds"] = json!(OWN_GRACE.as_secs());
    }
    if traits.startup {
        container["startupProbe"] = exec;
    }
    container
}
