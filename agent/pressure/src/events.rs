//! The events about changes of a Node's status, in upstream's words.

use config_kube::k8s_openapi::api::core::v1::NodeStatus;

/// An event about the Node.
#[derive(Debug, PartialEq, Eq)]
pub struct NodeEvent {
    /// Whether its type is `Warning`.
    pub is_warning: bool,
    /// Why it was written, as `Rebooted`.
    pub reason: &'static str,
    /// What a person reads.
    pub message: String,
}

/// The conditions whose changes are events, with the reasons for false and true.
const REPORTED: [(&str, &str, &str); 4] = [
    (
        "MemoryPressure",
        "NodeHasSufficientMemory",
        "NodeHasInsufficientMemory",
    ),
    (
        "DiskPressure",
        "NodeHasNoDiskPressure",
        "NodeHasDiskPressure",
    ),
    (
        "PIDPressure",
        "NodeHasSufficientPID",
        "NodeHasInsufficientPID",
    ),
    ("Ready", "NodeNotReady", "NodeReady"),
];

/// The events of a Node whose status was `old` and is `new`. A node that is not ready from
/// its beginning was never ready, which is no event.
#[must_use]
pub fn node_events(node: &str, old: &NodeStatus, new: &NodeStatus) -> Vec<NodeEvent> {
    let boot = |status: &NodeStatus| status.node_info.as_ref().map(|info| info.boot_id.clone());
    let rebooted = boot(new).filter(|now| {
        let before = boot(old).filter(|before| !before.is_empty());
        before.is_some_and(|before| before != *now)
    });
    let rebooted = rebooted.map(|boot| NodeEvent {
        is_warning: true,
        reason: "Rebooted",
        message: format!("Node {node} has been rebooted, boot id: {boot}"),
    });
    let says = |status: &NodeStatus, name: &str| {
        let mut all = status.conditions.iter().flatten();
        let found = all.find(|one| one.type_ == name);
        found.map(|one| one.status.clone())
    };
    let conditions = REPORTED.iter().filter_map(|(name, no, yes)| {
        let (before, now) = (says(old, name), says(new, name)?);
        let reason = match now.as_str() {
            "True" => yes,
            "False" if *name == "Ready" && before.is_none() => return None,
            "False" => no,
            _ => return None,
        };
        (before.as_deref() != Some(&now)).then(|| NodeEvent {
            is_warning: false,
            reason,
            message: format!("Node {node} status is now: {reason}"),
        })
    });
    rebooted.into_iter().chain(conditions).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(boot: &str, memory: &str, ready: &str) -> NodeStatus {
        let conditions = [("MemoryPressure", memory), ("Ready", ready)];
        let conditions = conditions.map(|(name, status)| json!({"type": name, "status": status}));
        let mut info = json!({"bootID": boot});
        for name in [
            "architecture",
            "containerRuntimeVersion",
            "kernelVersion",
            "kubeProxyVersion",
            "kubeletVersion",
            "machineID",
            "operatingSystem",
            "osImage",
            "systemUUID",
        ] {
            info[name] = json!("");
        }
        serde_json::from_value(json!({"conditions": conditions, "nodeInfo": info})).unwrap()
    }

    fn reasons(old: &NodeStatus, new: &NodeStatus) -> Vec<&'static str> {
        let events = node_events("n", old, new).into_iter();
        events.map(|event| event.reason).collect()
    }

    #[test]
    fn each_condition_that_changes_is_one_event() {
        let fine = status("a", "False", "True");
        let none = NodeStatus::default();
        assert_eq!(
            reasons(&none, &fine),
            ["NodeHasSufficientMemory", "NodeReady"]
        );
        assert!(reasons(&fine, &fine).is_empty());
        let low = status("a", "True", "False");
        assert_eq!(
            reasons(&fine, &low),
            ["NodeHasInsufficientMemory", "NodeNotReady"]
        );
        assert_eq!(
            reasons(&low, &fine),
            ["NodeHasSufficientMemory", "NodeReady"]
        );
        // The master has given it up meanwhile.
        assert_eq!(
            reasons(&status("a", "Unknown", "Unknown"), &low),
            ["NodeHasInsufficientMemory", "NodeNotReady"]
        );
        assert_eq!(
            reasons(&none, &status("a", "False", "False")),
            ["NodeHasSufficientMemory"]
        );
    }

    #[test]
    fn another_boot_is_an_event_with_its_id() {
        let (first, second) = (status("a", "False", "True"), status("b", "False", "True"));
        let rebooted = NodeEvent {
            is_warning: true,
            reason: "Rebooted",
            message: "Node n has been rebooted, boot id: b".to_owned(),
        };
        assert_eq!(node_events("n", &first, &second), [rebooted]);
        assert!(reasons(&status("", "False", "True"), &second).is_empty());
    }
}
