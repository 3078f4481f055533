//! Containers that are added to a pod which runs already (`kubectl debug`): what they may be, and
//! what they look into.

use crate::machine::Machine;
use crate::refusals::debugger_fault;
use agent_pods::{latest, target_of};
use agent_runtime::{Container as Seen, ContainerState, Error, ErrorClass};
use config_kube::k8s_openapi::api::core::v1::{Container, Pod};

/// The id of the container whose processes a debugger is to see; none where it names none. A pod is
/// refused before it starts; what is added later goes through the same rules here, and keeps the
/// container alone from starting.
///
/// # Errors
/// The node does not run such a container, or what it is to look into does not run.
pub fn target<'a>(
    pod: &Pod,
    container: &Container,
    machine: &Machine,
    seen: &'a [Seen],
) -> Result<Option<&'a str>, Error> {
    if let Some(fault) = debugger_fault(pod, container, machine) {
        return Err(Error::new(ErrorClass::Config, fault));
    }
    let Some(name) = target_of(pod, &container.name) else {
        return Ok(None);
    };
    let running = latest(seen, name)
        .filter(|seen| matches!(seen.state, ContainerState::Running { .. }))
        .ok_or_else(|| {
            // Upstream's words.
            let text = format!("unable to find target container {name}");
            Error::new(ErrorClass::Config, text)
        })?;
    Ok(Some(&running.id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;
    use serde_json::{Value, json};

    fn asked(debugger: Value) -> Result<Option<String>, String> {
        let mut debugger = debugger;
        debugger["name"] = json!("d");
        debugger["image"] = json!("i");
        let volumes = json!([{"name": "v", "hostPath": {"path": "/listed/read"}}]);
        let spec = json!({"containers": [{"name": "a"}], "ephemeralContainers": [debugger], "volumes": volumes});
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        let container = agent_pods::ephemeral(&pod).next().unwrap();
        let machine = machine(std::path::Path::new("/nowhere"));
        let target = target(&pod, &container, &machine, &[]);
        target
            .map(|id| id.map(str::to_owned))
            .map_err(|error| error.message)
    }

    #[test]
    fn what_is_added_later_has_no_more_rights_than_what_a_pod_begins_with() {
        assert_eq!(asked(json!({})), Ok(None));
        let refused = |debugger: Value, words: &str| {
            let message = asked(debugger).unwrap_err();
            assert!(message.contains(words), "{message}");
        };
        refused(
            json!({"securityContext": {"privileged": true}}),
            "privileged",
        );
        let added = json!({"securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}});
        refused(added, "SYS_PTRACE is never given");
        let confined = json!({"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}});
        refused(confined, "Cannot enforce AppArmor");
        let mount = |read_only: bool| json!({"volumeMounts": [{"name": "v", "mountPath": "/m", "readOnly": read_only}]});
        assert_eq!(asked(mount(true)), Ok(None));
        let text = "it is mounted read-only, as a pod's is";
        assert_eq!(asked(mount(false)), Ok(None), "{text}");
        refused(
            json!({"targetContainerName": "a"}),
            "unable to find target container a",
        );
    }
}
