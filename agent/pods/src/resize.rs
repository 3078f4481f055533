//! Resize of CPU and memory of running containers (KEP-1287) and of their pod as a whole
//! (KEP-5419): compares the pod's spec with what its attempts were given.
//!
//! What an attempt was given is kept with it in containerd, as the JSON of its `resources` and
//! those of its pod, so that the status shows it unchanged. A resize of the pod thus is one of each
//! of its containers, which may have limits of it. A resize for which the node has no room waits
//! until there is room; [`Notes::pending`] has the reason.

use crate::containers::{all, find};
use crate::machine::PodFacts;
use crate::notes::Notes;
use agent_resources::qos;
use agent_runtime::{Container as Seen, ContainerKind, ContainerState};
use config_kube::k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use config_kube::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use config_kube::quantity::Amount;
use serde_json::Value;
use std::collections::BTreeMap;

/// The resources of which a running container can be given more or less.
const RESIZED: [&str; 2] = ["cpu", "memory"];
/// Longest text that is kept with an attempt, in bytes. containerd limits a label to 4096 bytes,
/// key included.
const LONGEST: usize = 3 << 10;
/// The field of what an attempt was given that has its pod's resources.
const POD: &str = "pod";

/// Why a resize waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Upstream's reason: `Deferred`, or `Infeasible` where the node will never have room.
    pub reason: &'static str,
    /// For a person.
    pub message: String,
}

/// A container's `resources`, and its pod's, as the JSON that is kept with an attempt; `None` if it
/// is too long, so that such a container is never resized.
pub fn needs(pod: &Pod, container: &Container) -> Option<String> {
    let mut record = serde_json::to_value(container.resources.clone().unwrap_or_default()).ok()?;
    if let (Some(whole), Some(record)) = (whole(pod), record.as_object_mut()) {
        record.insert(POD.to_owned(), serde_json::to_value(whole).ok()?);
    }
    Some(record.to_string()).filter(|text| text.len() <= LONGEST)
}

/// What an attempt was given.
pub fn given(seen: &Seen) -> Option<ResourceRequirements> {
    serde_json::from_str(seen.needs.as_deref()?).ok()
}

/// The resources of a pod as a whole, if it names some.
#[derive(Debug, Default, PartialEq)]
struct Whole(Option<ResourceRequirements>);

impl Whole {
    /// Those that the pod's spec names.
    fn named(pod: &Pod) -> Self {
        Self(whole(pod).cloned())
    }

    /// Those that an attempt's pod had when it was given its own; `None` if that is not known.
    fn given(seen: &Seen) -> Option<Self> {
        let mut record: Value = serde_json::from_str(seen.needs.as_deref()?).ok()?;
        let own = record.get_mut(POD).map(Value::take);
        let own = own.map(serde_json::from_value).transpose();
        own.ok().map(Self)
    }

    /// Those by these attempts, if any is there. They are the new ones as soon as one attempt has
    /// those: its pod's group was given them with it.
    fn of<'a>(pod: &Pod, seen: impl Iterator<Item = &'a Seen>) -> Option<Self> {
        let (running, others): (Vec<&Seen>, Vec<&Seen>) = seen
            .filter(|seen| seen.key.kind != ContainerKind::Ephemeral)
            .partition(|seen| is_running(seen));
        let counted = if running.is_empty() { others } else { running };
        let mut known: Vec<Self> = counted.into_iter().filter_map(Self::given).collect();
        let new = known.iter().position(|one| one.0.as_ref() == whole(pod));
        (!known.is_empty()).then(|| known.swap_remove(new.unwrap_or_default()))
    }
}

/// The resources that a pod names for all of its containers together.
fn whole(pod: &Pod) -> Option<&ResourceRequirements> {
    pod.spec.as_ref()?.resources.as_ref()
}

/// Whether a container, or the pod as a whole, has other `resources` than in another version of the
/// pod.
pub fn has_other_needs(pod: &Pod, other: &Pod) -> bool {
    let mut all = all(pod);
    let differs = all.any(|(_, container)| {
        let before = find(other, &container.name);
        before.is_some_and(|(_, before)| before.resources != container.resources)
    });
    differs || whole(pod) != whole(other)
}

/// Whether a running attempt was given something else than its pod says now.
pub fn is_resized(pod: &Pod, seen: &Seen) -> bool {
    let runs = matches!(seen.state, ContainerState::Running { .. });
    // Debuggers have no resources of their own, the API refuses them (KEP-277).
    let grows = matches!(
        seen.key.kind,
        ContainerKind::Main | ContainerKind::Sidecar | ContainerKind::Init
    );
    let found = find(pod, &seen.key.container);
    let wanted = found.and_then(|(_, container)| needs(pod, &container));
    // Without a record of what it was given, nothing can be compared: no resize.
    runs && grows && seen.needs.is_some() && wanted.is_some() && seen.needs != wanted
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
    let before = Whole::given(seen).unwrap_or_default();
    let policies = container.resize_policy.iter().flatten();
    let mut restarts = policies.filter(|policy| policy.restart_policy == "RestartContainer");
    // By amounts: `1000m` and `1` are other texts and the same CPU. A container without a limit has
    // its pod's.
    restarts.any(|policy| {
        let name = &policy.resource_name;
        let of = |list: &Option<BTreeMap<String, Quantity>>| {
            let quantity = list.as_ref()?.get(name)?;
            Amount::try_from(quantity).ok()
        };
        let amounts = |own: &ResourceRequirements, whole: Option<&ResourceRequirements>| {
            let limit = of(&own.limits).or_else(|| of(&whole?.limits));
            [of(&own.requests), limit]
        };
        let changes = amounts(&wanted, whole(pod)) != amounts(&given, before.0.as_ref());
        RESIZED.contains(&name.as_str()) && changes
    })
}

/// The pod with the resources that it has while a resize waits: those of its attempts, or else of
/// its status.
pub fn as_given(pod: &Pod, seen: &[Seen]) -> Pod {
    let status = pod.status.as_ref();
    let of_status = |name: &str| {
        let inits = status.and_then(|status| status.init_container_statuses.as_ref());
        let mains = status.and_then(|status| status.container_statuses.as_ref());
        let mut all = inits.into_iter().chain(mains).flatten();
        all.find(|one| one.name == name)?.resources.clone()
    };
    let reported = || status.and_then(|status| status.resources.clone());
    let before = Whole::of(pod, seen.iter());
    let before = before
        .unwrap_or_else(|| reported().map_or(Whole::named(pod), |reported| Whole(Some(reported))));
    with(pod, before, |name| {
        let latest = crate::containers::latest(seen, name);
        latest.and_then(given).or_else(|| of_status(name))
    })
}

/// The pod with the resources that its running attempts have; what does not run has those that its
/// next attempt gets.
pub fn as_running(pod: &Pod, seen: &[Seen]) -> Pod {
    let running = || seen.iter().filter(|seen| is_running(seen));
    let before = Whole::of(pod, running()).unwrap_or_else(|| Whole::named(pod));
    with(pod, before, |name| {
        let mut own = running().filter(|seen| seen.key.container == name);
        own.find_map(given)
    })
}

fn is_running(seen: &Seen) -> bool {
    matches!(seen.state, ContainerState::Running { .. })
}

/// The pod with other resources as a whole, and of each container for which there are some.
fn with(pod: &Pod, whole: Whole, of: impl Fn(&str) -> Option<ResourceRequirements>) -> Pod {
    let mut pod = pod.clone();
    let Some(spec) = &mut pod.spec else {
        return pod;
    };
    spec.resources = whole.0;
    let inits = spec.init_containers.iter_mut().flatten();
    for container in inits.chain(&mut spec.containers) {
        if let Some(resources) = of(&container.name) {
            container.resources = Some(resources);
        }
    }
    pod
}

/// The pod's `status.resources`: those that it has as a whole, if it names some.
pub(crate) fn applied(facts: PodFacts<'_>) -> Option<ResourceRequirements> {
    let named = whole(facts.pod)?;
    let running = facts.seen.iter().filter(|seen| is_running(seen));
    Whole::of(facts.pod, running).map_or_else(|| Some(named.clone()), |has| has.0)
}

/// The pod's `status.allocatedResources`: what the node has admitted it with, which is what it
/// requests as a whole, or else its containers together.
pub(crate) fn allocated(facts: PodFacts<'_>) -> Option<BTreeMap<String, Quantity>> {
    let waits = facts.notes.pending.is_some();
    let before = waits.then(|| as_given(facts.pod, facts.seen));
    let pod = before.as_ref().unwrap_or(facts.pod);
    if let Some(whole) = whole(pod) {
        return whole.requests.clone();
    }
    let requests = || all(pod).filter_map(|(_, one)| one.resources.as_ref()?.requests.as_ref());
    let mut total = BTreeMap::new();
    for (name, quantity) in requests().flatten() {
        if !total.contains_key(name) {
            let sum = qos::pod_request(pod, name);
            // As it was written, where one container alone asks for it.
            let is_own = Amount::try_from(quantity).is_ok_and(|own| own == sum);
            let sum = if is_own {
                quantity.clone()
            } else {
                sum.to_quantity()
            };
            total.insert(name.clone(), sum);
        }
    }
    (!total.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempts::{attempt, exited};
    use agent_runtime::ExitCause;
    use jiff::Timestamp;
    use serde_json::{Value, json};

    fn pod(resources: &Value, policy: &Value) -> Pod {
        let container =
            json!({"name": "a", "image": "i", "resources": resources, "resizePolicy": policy});
        serde_json::from_value(json!({"spec": {"containers": [container]}})).unwrap()
    }

    fn running(pod: &Pod) -> Seen {
        let state = ContainerState::Running {
            started_at: Timestamp::UNIX_EPOCH,
        };
        Seen {
            image: "i".into(),
            needs: needs(pod, &pod.spec.as_ref().unwrap().containers[0]),
            ..attempt("a", ContainerKind::Main, state)
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
        let mut reported = new.clone();
        reported.status = serde_json::from_value(json!({"containerStatuses": [{
            "name": "a", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "resources": with("1"),
        }]}))
        .unwrap();
        assert_eq!(cpu(&as_given(&reported, &[])), cpu(&old));
        assert_eq!(cpu(&as_given(&new, &[])), cpu(&new));
    }

    #[test]
    fn a_resize_of_the_pod_is_one_of_its_containers_and_restarts_those_with_its_limit() {
        let with = |own: &Value, whole: &Value| -> Pod {
            let policy = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
            let container =
                json!({"name": "a", "image": "i", "resources": own, "resizePolicy": policy});
            let mut spec = json!({"containers": [container]});
            if !whole.is_null() {
                spec["resources"] = whole.clone();
            }
            serde_json::from_value(json!({"spec": spec})).unwrap()
        };
        let limits = |cpu: &str| json!({"requests": {"cpu": "1"}, "limits": {"cpu": cpu}});
        let (none, own) = (json!({}), json!({"limits": {"cpu": "1"}}));
        let notes = Notes::default();
        for (container, before, after, resized, restarts) in [
            (&none, limits("2"), limits("3"), true, true),
            (&own, limits("2"), limits("3"), true, false),
            (&none, limits("2"), limits("2"), false, false),
            (&own, Value::Null, limits("2"), true, false),
            (
                &none,
                json!({"requests": {"cpu": "1"}}),
                json!({"requests": {"cpu": "2"}}),
                true,
                false,
            ),
        ] {
            let (old, new) = (with(container, &before), with(container, &after));
            let seen = running(&old);
            assert_eq!(is_resized(&new, &seen), resized, "{before} {after}");
            assert_eq!(has_other_needs(&new, &old), resized, "{before} {after}");
            assert_eq!(
                needs_restart(&new, &notes, &seen),
                restarts,
                "{before} {after}"
            );
            let waits = as_given(&new, std::slice::from_ref(&seen));
            assert_eq!(whole(&waits), whole(&old), "{before} {after}");
            // One of two has the new ones: the group has them, too.
            let mut second = running(&new);
            second.key.container = "b".into();
            assert_eq!(whole(&as_running(&new, &[seen, second])), whole(&new));
        }
    }

    #[test]
    fn an_init_container_that_runs_is_resized_and_never_restarted_for_it() {
        let with = |cpu: &str| -> Pod {
            let policy = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
            let resources = json!({"requests": {"cpu": cpu}});
            let init =
                json!({"name": "a", "image": "i", "resources": resources, "resizePolicy": policy});
            let spec =
                json!({"initContainers": [init], "containers": [{"name": "b", "image": "i"}]});
            serde_json::from_value(json!({"spec": spec})).unwrap()
        };
        let (old, new) = (with("1"), with("2"));
        let mut seen = running(&pod(&json!({"requests": {"cpu": "1"}}), &json!([])));
        seen.key.kind = ContainerKind::Init;
        assert!(!is_resized(&old, &seen));
        assert!(is_resized(&new, &seen));
        assert!(!crate::policy::is_replaced(&new, &Notes::default(), &seen));
        let cpu = |pod: &Pod| qos::pod_request(pod, "cpu");
        assert_eq!(
            cpu(&as_running(&new, std::slice::from_ref(&seen))),
            Amount::units(1)
        );
        seen.state = exited(Timestamp::UNIX_EPOCH, 0, ExitCause::Own);
        assert!(!is_resized(&new, &seen));
        assert_eq!(cpu(&as_running(&new, &[seen])), Amount::units(2));
    }
}
