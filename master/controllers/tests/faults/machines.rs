//! Machines with hollow kubelets: they renew their leases, take pods for which they have room, run
//! and end them, fall silent, lose power, and come back.

use config_kube::k8s_openapi::api::core::v1::Pod;
use config_kube::quantity::Amount;
use master_control::controller::Now;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

/// What pods can use of each machine, in thousandths of a CPU.
pub(crate) const ROOM: i64 = 1000;
const ZONES: [&str; 2] = ["a", "b"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Up,
    /// It is cut off from the network, and its pods run.
    Silent,
    /// It has no power, and nothing runs on it.
    Off,
}

#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) zone: &'static str,
    pub(crate) state: State,
    /// When it last renewed its lease.
    pub(crate) heard: Instant,
    /// When its Node was deleted, if it has none.
    pub(crate) removed: Option<Instant>,
    /// Whether people have marked it as out of service.
    pub(crate) given_up: bool,
    /// The pods that run on it, by UID.
    pub(crate) runs: BTreeMap<String, Pod>,
}

impl Machine {
    pub(crate) fn new(number: usize, now: Now) -> Self {
        Self {
            name: format!("n{number}"),
            zone: ZONES[number % ZONES.len()],
            state: State::Off,
            heard: now.instant,
            removed: Some(now.instant),
            given_up: false,
            runs: BTreeMap::new(),
        }
    }

    /// Whether there is room for a pod beside those that run.
    pub(crate) fn has_room(&self, pod: &Pod) -> bool {
        let used: i64 = self.runs.values().map(asks).sum();
        used + asks(pod) <= ROOM
    }

    /// Its Node, as it registers.
    pub(crate) fn node(&self) -> Value {
        let labels =
            json!({"topology.kubernetes.io/zone": self.zone, "kubernetes.io/hostname": self.name});
        json!({"metadata": {"name": self.name, "labels": labels}})
    }
}

/// The Node status of a machine that is up.
pub(crate) fn ready(now: Now) -> Value {
    let now = now.wall.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let room = json!({"cpu": format!("{ROOM}m"), "memory": "8Gi", "pods": "20"});
    json!({"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True",
        "lastHeartbeatTime": now, "lastTransitionTime": now}]})
}

/// What a pod asks for, in thousandths of a CPU.
pub(crate) fn asks(pod: &Pod) -> i64 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let asked = containers.filter_map(|container| {
        let requests = container.resources.as_ref()?.requests.as_ref()?;
        Amount::try_from(requests.get("cpu")?).ok()
    });
    asked.map(Amount::ceil_milli).sum()
}

/// The node of a pod; empty where it has none.
pub(crate) fn node_of(pod: &Pod) -> &str {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

/// The mirror of a static pod of a machine.
pub(crate) fn mirror(machine: &str, node_uid: &str, cpu: i64) -> Value {
    let name = format!("static-{machine}");
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": machine, "uid": node_uid, "controller": true});
    let container = json!({"name": "c", "image": "registry.example/c:0", "resources": {"requests": {"cpu": format!("{cpu}m")}}});
    json!({"metadata": {"namespace": "default", "name": name, "labels": {"app": "static"}, "ownerReferences": [owner],
            "annotations": {"kubernetes.io/config.mirror": name, "kubernetes.io/config.source": "file"}},
        "spec": {"nodeName": machine, "containers": [container],
            "tolerations": [{"operator": "Exists", "effect": "NoExecute"}]}})
}
