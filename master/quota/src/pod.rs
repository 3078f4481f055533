//! Quota usage of a pod: the sum of its containers, or one init container if that is more, plus
//! overhead.

use jiff::{SignedDuration, Timestamp};
use master_schema::quantity::{Quantities, Quantity};
use master_schema::validate::{Fields, get, items, object, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Resources of pods and their names in quotas.
const NAMES: &[&str] = &[
    "pods",
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];

/// Resources that every container must request if a quota limits them. Upstream demands these only.
const DEMANDED: &[&str] = &[
    "cpu",
    "memory",
    "requests.cpu",
    "requests.memory",
    "limits.cpu",
    "limits.memory",
];

pub(crate) fn tracks(resource: &str) -> bool {
    NAMES.contains(&resource)
        || resource.starts_with("hugepages-")
        || resource
            .strip_prefix("requests.")
            .is_some_and(|rest| rest.starts_with("hugepages-") || is_extended(rest))
}

/// Whether a resource is an extended resource of a vendor.
fn is_extended(name: &str) -> bool {
    name.split_once('/')
        .is_some_and(|(domain, _)| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
}

/// A pod whose containers ended, or whose grace period has elapsed, only counts as an object.
pub(crate) fn usage(fields: &Fields, now: Timestamp) -> Quantities {
    let empty = Fields::new();
    let spec = object(fields, "spec").unwrap_or(&empty);
    if ended(fields, now) {
        return Quantities::default();
    }
    named(&pod_requests(spec), &pod_limits(spec))
}

fn ended(fields: &Fields, now: Timestamp) -> bool {
    let phase = object(fields, "status").map_or("", |status| text(status, "phase"));
    if matches!(phase, "Succeeded" | "Failed") {
        return true;
    }
    let metadata = master_schema::object::metadata(fields);
    let Ok(deleted) = text(metadata, "deletionTimestamp").parse::<Timestamp>() else {
        return false;
    };
    let grace = get(metadata, "deletionGracePeriodSeconds").as_i64();
    grace.is_some_and(|grace| {
        deleted
            .checked_add(SignedDuration::from_secs(grace))
            .is_ok_and(|end| now > end)
    })
}

/// Requests and limits under the names of quotas.
fn named(requests: &Quantities, limits: &Quantities) -> Quantities {
    let mut used = Quantities::default();
    used.set("pods", Quantity::count(1));
    for (name, amount) in &requests.0 {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage")
            || name.starts_with("hugepages-")
        {
            used.set(name.as_str(), *amount);
            used.set(format!("requests.{name}"), *amount);
        } else if is_extended(name) {
            used.set(format!("requests.{name}"), *amount);
        }
    }
    for (name, amount) in &limits.0 {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            used.set(format!("limits.{name}"), *amount);
        }
    }
    used
}

/// A pod's requests, overhead included.
pub fn pod_requests(spec: &Fields) -> Quantities {
    with_overhead(spec, "requests")
}

/// A pod's limits, overhead included; containers without a limit for a resource count as zero.
pub fn pod_limits(spec: &Fields) -> Quantities {
    with_overhead(spec, "limits")
}

/// The peak of what a pod's containers request; `list` is `requests` or `limits`.
pub fn peak(spec: &Fields, list: &str) -> Quantities {
    let own = |container: &Value| {
        let resources = container.get("resources").and_then(Value::as_object);
        Quantities::read(resources.and_then(|resources| object(resources, list)))
    };
    let mut sum = Quantities::default();
    for container in items(spec, "containers") {
        sum.add(&own(container));
    }
    // Sidecars run beside all containers that start after them.
    let (mut sidecars, mut peak) = (Quantities::default(), Quantities::default());
    for container in items(spec, "initContainers") {
        let mut needed = own(container);
        if container
            .get("restartPolicy")
            .is_some_and(|policy| policy == "Always")
        {
            sum.add(&needed);
            sidecars.add(&needed);
            needed = sidecars.clone();
        } else {
            needed.add(&sidecars);
        }
        peak.max(&needed);
    }
    sum.max(&peak);
    for (name, amount) in
        Quantities::read(object(spec, "resources").and_then(|pod| object(pod, list))).0
    {
        sum.set(name, amount);
    }
    sum
}

fn with_overhead(spec: &Fields, list: &str) -> Quantities {
    let mut sum = peak(spec, list);
    let overhead = Quantities::read(object(spec, "overhead"));
    for (name, amount) in &overhead.0 {
        if list == "requests" || sum.get(name).is_some_and(|limit| !limit.is_zero()) {
            let now = sum.get(name).unwrap_or_default();
            sum.set(name.as_str(), now.plus(*amount));
        }
    }
    sum
}

/// Limited resources that containers must request and do not: upstream's text; `None` if nothing is
/// missing.
pub fn missing(spec: &Fields, limited: &[&str]) -> Option<String> {
    let of_pod = object(spec, "resources");
    let pod = named(
        &Quantities::read(of_pod.and_then(|pod| object(pod, "requests"))),
        &Quantities::read(of_pod.and_then(|pod| object(pod, "limits"))),
    );
    let demanded: BTreeSet<&str> = limited
        .iter()
        .copied()
        .filter(|name| DEMANDED.contains(name))
        .collect();
    let mut lacking: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let containers = items(spec, "containers")
        .iter()
        .chain(items(spec, "initContainers"));
    for container in containers.filter_map(Value::as_object) {
        let resources = object(container, "resources");
        let list = |name| Quantities::read(resources.and_then(|resources| object(resources, name)));
        let used = named(&list("requests"), &list("limits"));
        for name in demanded
            .iter()
            .filter(|name| used.get(name).is_none() && pod.get(name).is_none())
        {
            lacking
                .entry(name)
                .or_default()
                .insert(text(container, "name"));
        }
    }
    if lacking.is_empty() {
        return None;
    }
    let texts = lacking.into_iter().map(|(resource, containers)| {
        format!(
            "{resource} for: {}",
            containers.into_iter().collect::<Vec<_>>().join(",")
        )
    });
    Some(format!(
        "must specify {}",
        texts.collect::<Vec<_>>().join("; ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: &Value) -> Fields {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn the_larger_of_init_and_running_containers_counts() {
        let pod = fields(&json!({"spec": {
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}}}],
            "initContainers": [
                {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "50m"}}},
                {"name": "i", "resources": {"requests": {"cpu": "1"}}},
            ],
            "overhead": {"cpu": "10m"},
        }}));
        let used = usage(&pod, Timestamp::UNIX_EPOCH);
        assert_eq!(used.get("requests.cpu").unwrap().to_string(), "1060m");
        assert_eq!(used.get("memory").unwrap().to_string(), "1Gi");
        assert_eq!(used.get("limits.cpu"), None);
    }

    #[test]
    fn ended_pods_use_nothing() {
        let pod = fields(
            &json!({"spec": {"containers": [{"name": "a"}]}, "status": {"phase": "Failed"}}),
        );
        assert!(usage(&pod, Timestamp::UNIX_EPOCH).is_empty());
    }

    #[test]
    fn containers_that_do_not_ask_are_named() {
        let spec = fields(&json!({"containers": [{"name": "b"}, {"name": "a",
            "resources": {"limits": {"memory": "1Gi"}}}]}));
        let text = missing(&spec, &["pods", "limits.memory", "limits.cpu"]).unwrap();
        assert_eq!(
            text,
            "must specify limits.cpu for: a,b; limits.memory for: b"
        );
        assert_eq!(
            missing(&spec, &["pods", "requests.ephemeral-storage"]),
            None
        );
    }
}
