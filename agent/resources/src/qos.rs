//! Resources of pods: service class, limits of containers, and which container the kernel kills
//! first when memory runs out.

use agent_runtime::Resources;
use config_kube::k8s_openapi::api::core::v1::{Container, Pod};
use config_kube::quantity::Amount;

/// Upstream's OOM scores: guaranteed containers are killed last, best-effort ones first.
const GUARANTEED_SCORE: i32 = -997;
const BEST_EFFORT_SCORE: i32 = 1000;
const RESOURCES: [&str; 2] = ["cpu", "memory"];

/// An amount of a container's requests or limits; a limit without a request is also the request.
pub fn request(container: &Container, resource: &str) -> Option<Amount> {
    let resources = container.resources.as_ref()?;
    let quantity = resources
        .requests
        .as_ref()
        .and_then(|map| map.get(resource));
    quantity
        .and_then(|quantity| Amount::try_from(quantity).ok())
        .or_else(|| limit(container, resource))
}

/// The limit, if there is one above zero.
pub fn limit(container: &Container, resource: &str) -> Option<Amount> {
    let quantity = container
        .resources
        .as_ref()?
        .limits
        .as_ref()?
        .get(resource)?;
    Amount::try_from(quantity)
        .ok()
        .filter(|amount| *amount > Amount::ZERO)
}

/// A pod's request: that of the containers that run together, or of an init container with the
/// sidecars before it if that is more (KEP-753).
pub fn pod_request(pod: &Pod, resource: &str) -> Amount {
    let of = |container: &Container| request(container, resource).unwrap_or(Amount::ZERO);
    let spec = pod.spec.iter();
    let (mut sidecars, mut most) = (Amount::ZERO, Amount::ZERO);
    for init in spec
        .clone()
        .flat_map(|spec| spec.init_containers.iter().flatten())
    {
        if init.restart_policy.as_deref() == Some("Always") {
            sidecars = sidecars + of(init);
            most = most.max(sidecars);
        } else {
            most = most.max(sidecars + of(init));
        }
    }
    let mains = spec.flat_map(|spec| &spec.containers).map(of);
    most.max(mains.fold(sidecars, |sum, one| sum + one))
}

/// `Guaranteed`, `Burstable` or `BestEffort`.
pub fn class(pod: &Pod) -> &'static str {
    let Some(spec) = &pod.spec else {
        return "BestEffort";
    };
    let all = || {
        spec.containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
    };
    let positive = |amount: Option<Amount>| amount.is_some_and(|amount| amount > Amount::ZERO);
    if !all().any(|container| {
        RESOURCES
            .iter()
            .any(|resource| positive(request(container, resource)))
    }) {
        return "BestEffort";
    }
    let exact = |container: &Container| {
        RESOURCES.iter().all(|name| {
            limit(container, name).is_some() && request(container, name) == limit(container, name)
        })
    };
    if all().all(exact) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// The resources of a container as the engine takes them.
pub fn resources(container: &Container) -> Resources {
    let millis = |amount: Amount| u64::try_from(amount.ceil_milli()).unwrap_or_default();
    Resources {
        cpu_request_millis: request(container, "cpu").map_or(0, millis),
        cpu_limit_millis: limit(container, "cpu").map(millis),
        memory_limit: limit(container, "memory")
            .and_then(|amount| u64::try_from(amount.ceil_units()).ok()),
        pids_limit: None,
    }
}

/// `oom_score_adj` of a container: the less memory it requests, the earlier it is killed; a sidecar
/// no earlier than the first of the main containers, which it serves (KEP-753).
pub fn oom_score(pod: &Pod, container: &Container, machine_memory: u64) -> i32 {
    match class(pod) {
        "Guaranteed" => GUARANTEED_SCORE,
        "BestEffort" => BEST_EFFORT_SCORE,
        _ => {
            let memory = |container: &Container| {
                request(container, "memory").map_or(0, |amount| amount.ceil_units().max(0))
            };
            let mut spec = pod.spec.iter();
            let sidecar = spec.any(|spec| {
                let mut inits = spec.init_containers.iter().flatten();
                inits.any(|init| {
                    init.name == container.name && init.restart_policy.as_deref() == Some("Always")
                })
            });
            let mains = pod.spec.iter().flat_map(|spec| &spec.containers);
            let least = mains.map(memory).min().filter(|_| sidecar);
            let asked = memory(container).max(least.unwrap_or_default());
            let score = 1000 - i128::from(asked) * 1000 / i128::from(machine_memory.max(1));
            i32::try_from(score.clamp(2, 999)).unwrap_or(999)
        }
    }
}

/// The cgroup above a pod's containers.
pub fn cgroup(pod: &Pod, uid: &str) -> String {
    match class(pod) {
        "Guaranteed" => format!("/kubepods/pod{uid}"),
        "BestEffort" => format!("/kubepods/besteffort/pod{uid}"),
        _ => format!("/kubepods/burstable/pod{uid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(resources: &serde_json::Value) -> Pod {
        serde_json::from_value(
            json!({"spec": {"containers": [{"name": "a", "resources": resources}]}}),
        )
        .unwrap()
    }

    #[test]
    fn classes_follow_upstream() {
        assert_eq!(class(&pod(&json!({}))), "BestEffort");
        assert_eq!(class(&pod(&json!({"requests": {"cpu": "1"}}))), "Burstable");
        assert_eq!(class(&pod(&json!({"limits": {"cpu": "1"}}))), "Burstable");
        assert_eq!(
            class(&pod(&json!({"limits": {"cpu": "1", "memory": "1Gi"}}))),
            "Guaranteed"
        );
        assert_eq!(
            class(&pod(
                &json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}})
            )),
            "Burstable"
        );
    }

    #[test]
    fn a_sidecar_is_killed_no_earlier_than_the_main_containers() {
        let asks = |memory: &str| json!({"requests": {"memory": memory}});
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "initContainers": [
                {"name": "sidecar", "restartPolicy": "Always", "resources": asks("1Mi")},
                {"name": "init", "resources": asks("1Mi")},
            ],
            "containers": [{"name": "a", "resources": asks("2Gi")}, {"name": "b", "resources": asks("1Gi")}],
        }}))
        .unwrap();
        let spec = pod.spec.as_ref().unwrap();
        let inits = spec.init_containers.as_ref().unwrap();
        let score = |container| oom_score(&pod, container, 4 << 30);
        assert_eq!(score(&inits[0]), score(&spec.containers[1]));
        assert!(score(&inits[1]) > score(&inits[0]));
    }

    #[test]
    fn a_pods_request_is_that_of_the_containers_that_run_together() {
        let asks = |memory: &str| json!({"requests": {"memory": memory}});
        let asked = |inits: serde_json::Value| {
            let containers = json!([
                {"name": "a", "resources": asks("3Mi")},
                {"name": "b", "resources": {"limits": {"memory": "4Mi"}}},
                {"name": "c"},
            ]);
            let spec = json!({"initContainers": inits, "containers": containers});
            let pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            pod_request(&pod, "memory").ceil_units() >> 20
        };
        let init = |memory: &str| json!({"name": "i", "resources": asks(memory)});
        let sidecar = json!({"name": "s", "restartPolicy": "Always", "resources": asks("2Mi")});
        assert_eq!(asked(json!([])), 7);
        assert_eq!(asked(json!([init("6Mi")])), 7);
        assert_eq!(asked(json!([init("9Mi"), sidecar])), 9);
        assert_eq!(asked(json!([sidecar, init("9Mi")])), 11);
        assert_eq!(pod_request(&Pod::default(), "memory"), Amount::ZERO);
    }

    #[test]
    fn the_container_with_the_smaller_request_is_killed_first() {
        let score = |memory: &str| {
            let pod = pod(&json!({"requests": {"memory": memory}}));
            oom_score(&pod, &pod.spec.as_ref().unwrap().containers[0], 4 << 30)
        };
        assert_eq!(score("1Gi"), 750);
        assert_eq!(score("8Gi"), 2);
        assert_eq!(score("1"), 999);
    }
}
