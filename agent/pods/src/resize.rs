//! Resize of CPU and memory of running containers (KEP-1287): compares the pod's spec with what its
//! attempts were given.
//!
//! What an attempt was given is kept with it in containerd, as the JSON of the spec's `resources`,
//! so that the status shows it unchanged. A resize for which the node has no room waits until there
//! is room; [`Notes::pending`] has the reason.

use crate::containers::{all, find};
use crate::notes::Notes;
use agent_runtime::{Container as Seen, ContainerState, Kind};
use config_kube::k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use config_kube::quantity::Amount;

/// The resources of which a running container can be given more or less.
const RESIZED: [&str; 2] = ["cpu", "memory"];
/// Longest text that is kept with an attempt, in bytes. containerd limits a label to 4096 bytes,
/// key included.
const LONGEST: usize = 3 << 10;

/// Why a resize waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Upstream's reason: `Deferred`, or `Infeasible` where the node will never have room.
    pub reason: &'static str,
    /// For a person.
    pub message: String,
}

/// A container's `resources` as the JSON that is kept with an attempt; `None` if it is too long, so
/// that such a container is never resized.
pub fn needs(container: &Container) -> Option<String> {
    let text = serde_json::to_string(&container.resources.clone().unwrap_or_default()).ok()?;
    Some(text).filter(|text| text.len() <= LONGEST)
}

/// What an attempt was given.
pub fn given(seen: &Seen) -> Option<ResourceRequirements> {
    serde_json::from_str(seen.needs.as_deref()?).ok()
}

/// Whether a container has other `resources` in the pod than in another version of it.
pub fn has_other_needs(pod: &Pod, other: &Pod) -> bool {
    all(pod).any(|(_, container)| {
        let before = find(other, &container.name);
        before.is_some_and(|(_, before)| before.resources != container.resources)
    })
}

/// Whether a running attempt was given something else than its pod says now.
pub fn is_resized(pod: &Pod, seen: &Seen) -> bool {
    let runs = matches!(seen.state, ContainerState::Running { .. });
    let lasts = matches!(seen.key.kind, Kind::Main | Kind::Sidecar);
    let wanted = find(pod, &seen.key.container).and_then(|(_, container)| needs(&container));
    // Without a record of what it was given, nothing can be compared: no resize.
    runs && lasts && seen.needs.is_some() && wanted.is_some() && seen.needs != wanted
}

/// Whether a running attempt has to be restarted for its resize, by the container's `resizePolicy`.
pub(crate) fn needs_restart(pod: &Pod, notes: &Notes, seen: &Seen) -> bool {
    if notes.pending.is_some() || !is_resized(pod, seen) {
        return false;
    }
    let (Some((_, container)), Some(given)) = (find(pod, &seen.key.container), given(seen)) else {
        return false;
    };
    let wanted = container.resources.clone().unwrap_or_default();
    let policies = container.resize_policy.iter().flatten();
    let mut restarts = policies.filter(|policy| policy.restart_policy == "RestartContainer");
    // By amounts: `1000m` and `1` are other texts and the same CPU.
    restarts.any(|policy| {
        let amounts = |needs: &ResourceRequirements| {
            [&needs.requests, &needs.limits].map(|list| {
                let quantity = list.as_ref()?.get(&policy.resource_name)?;
                Amount::try_from(quantity).ok()
            })
        };
        RESIZED.contains(&&*policy.resource_name) && amounts(&wanted) != amounts(&given)
    })
}

/// The pod with the resources that its containers have while a resize waits: those of their
/// attempts, or else of their statuses.
pub fn as_given(pod: &Pod, seen: &[Seen]) -> Pod {
    let mut pod = pod.clone();
    let status = pod.status.clone().unwrap_or_default();
    let of_status = |name: &str| {
        let inits = status.init_container_statuses.iter().flatten();
        let mut all = inits.chain(status.container_statuses.iter().flatten());
        all.find(|one| one.name == name)?.resources.clone()
    };
    let names: Vec<String> = all(&pod).map(|(_, one)| one.name.clone()).collect();
    for name in names {
        let attempt = crate::containers::latest(seen, &name).and_then(given);
        let Some(resources) = attempt.or_else(|| of_status(&name)) else {
            continue;
        };
        let spec = pod.spec.iter_mut();
        let mut own = spec.flat_map(|spec| {
            let inits = spec.init_containers.iter_mut().flatten();
            inits.chain(&mut spec.containers)
        });
        if let Some(container) = own.find(|one| one.name == name) {
            container.resources = Some(resources);
        }
    }
    pod
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_runtime::{ContainerKey, PodRef};
    use jiff::Timestamp;
    use serde_json::{Value, json};

    fn pod(resources: &Value, policy: &Value) -> Pod {
        let container =
            json!({"name": "a", "image": "i", "resources": resources, "resizePolicy": policy});
        serde_json::from_value(json!({"spec": {"containers": [container]}})).unwrap()
    }

    fn running(pod: &Pod) -> Seen {
        let pod_ref = PodRef {
            namespace: "n".into(),
            name: "p".into(),
            uid: "u".into(),
        };
        Seen {
            id: "1".into(),
            key: ContainerKey {
                pod: pod_ref,
                container: "a".into(),
                kind: Kind::Main,
                attempt: 0,
            },
            image: "i".into(),
            image_id: String::new(),
            state: ContainerState::Running {
                started_at: Timestamp::UNIX_EPOCH,
            },
            backoff: None,
            round: 0,
            this_boot: true,
            stop_signal: None,
            needs: needs(&pod.spec.as_ref().unwrap().containers[0]),
            user: None,
        }
    }

    #[test]
    fn a_resize_restarts_a_container_where_the_policy_of_what_changes_says_so() {
        let with = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}});
        let policy = json!([
            {"resourceName": "cpu", "restartPolicy": "NotRequired"},
            {"resourceName": "memory", "restartPolicy": "RestartContainer"},
        ]);
        let notes = Notes::default();
        let seen = running(&pod(&with("1", "1Mi"), &policy));
        for (cpu, memory, resized, restarts) in [
            ("1", "1Mi", false, false),
            ("2", "1Mi", true, false),
            ("1", "2Mi", true, true),
            ("1000m", "1024Ki", true, false),
        ] {
            let pod = pod(&with(cpu, memory), &policy);
            assert_eq!(is_resized(&pod, &seen), resized, "{cpu} {memory}");
            assert_eq!(
                needs_restart(&pod, &notes, &seen),
                restarts,
                "{cpu} {memory}"
            );
        }
        let waits = Notes {
            pending: Some(Pending {
                reason: "Deferred",
                message: String::new(),
            }),
            ..Notes::default()
        };
        assert!(!needs_restart(
            &pod(&with("1", "2Mi"), &policy),
            &waits,
            &seen
        ));
    }

    #[test]
    fn while_a_resize_waits_a_pod_has_what_its_attempts_were_given() {
        let with = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let (old, new) = (pod(&with("1"), &json!([])), pod(&with("9"), &json!([])));
        let cpu = |pod: &Pod| pod.spec.as_ref().unwrap().containers[0].resources.clone();
        assert_eq!(cpu(&as_given(&new, &[running(&old)])), cpu(&old));
        let mut told = new.clone();
        told.status = serde_json::from_value(json!({"containerStatuses": [{
            "name": "a", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "resources": with("1"),
        }]}))
        .unwrap();
        assert_eq!(cpu(&as_given(&told, &[])), cpu(&old));
        assert_eq!(cpu(&as_given(&new, &[])), cpu(&new));
    }
}
