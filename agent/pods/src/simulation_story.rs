//! What a simulated pod is, how its containers behave, and what befalls it.

use serde_json::{Value, json};

/// How one attempt behaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nature {
    /// So many seconds pass from the order to start it until it runs.
    pub(crate) takes: u16,
    /// After so many seconds it ends with a code, or it runs until it is ended.
    pub(crate) ends: Option<(u16, i32)>,
    /// It ends when asked.
    pub(crate) obeys: bool,
    /// How many seconds each of its hooks takes, and whether the one after the start ends well.
    pub(crate) hook: (u16, bool),
    /// After so many seconds its startup probe passes, if it has one.
    pub(crate) starts: u16,
    /// After so many seconds its liveness probe has failed too often.
    pub(crate) dies: Option<u16>,
}

impl Nature {
    /// Ends so, obeys, and is started at once.
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

/// What the pod says of a container.
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
    /// All containers are started anew when it ends with 1.
    pub(crate) for_all: bool,
}

/// What happens from outside, at a second.
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
    /// Somebody sets the clock, by so many seconds.
    Clock(i16),
    /// The first main container gets other resources: CPU, which it is given as it runs, or memory,
    /// for which it is started anew.
    Resize {
        anew: bool,
    },
    /// A pod that is being deleted is deleted again, with a second of grace.
    ShorterGrace,
    /// The pod's readiness gate opens or closes.
    Gate,
}

/// The condition of the pod's readiness gate, which others set.
pub(crate) const GATE: &str = "example.com/gate";

#[derive(Debug, Clone)]
pub(crate) struct Story {
    pub(crate) policy: &'static str,
    pub(crate) inits: Vec<Traits>,
    pub(crate) mains: Vec<Traits>,
    pub(crate) grace: u16,
    /// It has a readiness gate.
    pub(crate) gate: bool,
    pub(crate) natures: Vec<Nature>,
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
    if traits.for_all {
        let codes = json!({"operator": "In", "values": [1]});
        container["restartPolicyRules"] =
            json!([{"action": "RestartAllContainers", "exitCodes": codes}]);
    }
    if traits.startup {
        container["startupProbe"] = exec;
    }
    container
}
