//! Resources of pods: service class, limits of containers, and which container the kernel kills
//! first when memory runs out.

use agent_pressure::is_critical;
use agent_runtime::Resources;
use config_kube::k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use config_kube::quantity::Amount;

/// Upstream's OOM scores: guaranteed containers are killed last, best-effort ones first.
const GUARANTEED_SCORE: i32 = -997;
const BEST_EFFORT_SCORE: i32 = 1000;
/// The PriorityClass of pods without which a node does not work, such as its network's and its
/// storage's (upstream's `SystemNodeCritical`).
const NODE_CRITICAL: &str = "system-node-critical";
/// More CPU than any machine has. A pod may name up to 2^63 millicores, and what is reckoned with
/// them must stay within 64 bits: an overflow ends the agent.
const MOST_MILLIS: u64 = 1 << 40;
const RESOURCES: [&str; 2] = ["cpu", "memory"];
/// The control group above those of all pods.
pub const ALL_PODS: &str = "/kubepods";
/// The control groups above those of the pods of a class; guaranteed pods have none.
pub(crate) const BURSTABLE: &str = "/kubepods/burstable";
pub(crate) const BEST_EFFORT: &str = "/kubepods/besteffort";

/// An amount of a container's requests or limits; a limit without a request is also the request.
pub fn request(container: &Container, resource: &str) -> Option<Amount> {
    requested(container.resources.as_ref()?, resource)
}

/// The limit, if there is one above zero.
pub fn limit(container: &Container, resource: &str) -> Option<Amount> {
    limited(container.resources.as_ref()?, resource)
}

/// The limit of the pod as a whole, if it has one (KEP-2837).
pub fn pod_limit(pod: &Pod, resource: &str) -> Option<Amount> {
    limited(whole(pod)?, resource)
}

/// The resources that a pod names for all of its containers together (KEP-2837).
fn whole(pod: &Pod) -> Option<&ResourceRequirements> {
    pod.spec.as_ref()?.resources.as_ref()
}

fn requested(resources: &ResourceRequirements, resource: &str) -> Option<Amount> {
    let requests = resources.requests.as_ref();
    let quantity = requests.and_then(|map| map.get(resource));
    quantity
        .and_then(|quantity| Amount::try_from(quantity).ok())
        .or_else(|| limited(resources, resource))
}

fn limited(resources: &ResourceRequirements, resource: &str) -> Option<Amount> {
    let quantity = resources.limits.as_ref()?.get(resource)?;
    Amount::try_from(quantity)
        .ok()
        .filter(|amount| *amount > Amount::ZERO)
}

/// A pod's request: its own, or that of its containers.
pub fn pod_request(pod: &Pod, resource: &str) -> Amount {
    let own = whole(pod).and_then(|whole| requested(whole, resource));
    own.unwrap_or_else(|| containers_request(pod, resource))
}

/// What a pod's runtime takes beside it.
pub fn overhead(pod: &Pod, resource: &str) -> Option<Amount> {
    let overhead = pod.spec.as_ref()?.overhead.as_ref()?;
    Amount::try_from(overhead.get(resource)?).ok()
}

/// The request of the containers that run together, or of an init container with the sidecars
/// before it if that is more (KEP-753).
fn containers_request(pod: &Pod, resource: &str) -> Amount {
    at_once(pod, |container| request(container, resource))
}

/// The limit of the containers that run together, if each has one.
fn containers_limit(pod: &Pod, resource: &str) -> Option<Amount> {
    let spec = pod.spec.iter();
    let mut all = spec.flat_map(|spec| {
        let inits = spec.init_containers.iter().flatten();
        spec.containers.iter().chain(inits)
    });
    all.all(|container| limit(container, resource).is_some())
        .then(|| at_once(pod, |container| limit(container, resource)))
}

/// An amount of the containers that run together, or of an init container with the sidecars before
/// it if that is more.
fn at_once(pod: &Pod, amount: impl Fn(&Container) -> Option<Amount>) -> Amount {
    let of = |container: &Container| amount(container).unwrap_or(Amount::ZERO);
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

/// `Guaranteed`, `Burstable` or `BestEffort`: by the resources of the pod as a whole where it has
/// such, or else by those of its containers.
pub fn class(pod: &Pod) -> &'static str {
    let nothing = ResourceRequirements::default();
    let spec = pod.spec.iter();
    let containers = spec.flat_map(|spec| {
        let inits = spec.init_containers.iter().flatten();
        spec.containers.iter().chain(inits)
    });
    let all: Vec<&ResourceRequirements> = match whole(pod) {
        Some(whole) => vec![whole],
        None => containers
            .map(|container| container.resources.as_ref().unwrap_or(&nothing))
            .collect(),
    };
    let positive = |amount: Option<Amount>| amount.is_some_and(|amount| amount > Amount::ZERO);
    // A limit counts, too, beside a request of nothing. The master reckons so when it compares the
    // class before a resize with that after it: the control group depends on it.
    let asks = |one: &ResourceRequirements| {
        let mut names = RESOURCES.iter();
        names.any(|name| limited(one, name).is_some() || positive(requested(one, name)))
    };
    if !all.iter().any(|one| asks(one)) {
        return "BestEffort";
    }
    let exact = |one: &ResourceRequirements| {
        RESOURCES
            .iter()
            .all(|name| limited(one, name).is_some() && requested(one, name) == limited(one, name))
    };
    if all.iter().all(|one| exact(one)) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// The resources of a container as the engine takes them. One without a limit has its pod's.
pub fn resources(pod: &Pod, container: &Container) -> Resources {
    let limit = |name: &str| limit(container, name).or_else(|| pod_limit(pod, name));
    Resources {
        cpu_request_millis: request(container, "cpu").map_or(0, millis),
        cpu_limit_millis: limit("cpu").map(millis),
        memory_limit: limit("memory").and_then(bytes),
        pids_limit: None,
    }
}

/// The resources of all containers of a pod together: what it names as a whole, or else what its
/// containers do. One container without a limit leaves the pod without.
pub fn pod_resources(pod: &Pod) -> Resources {
    // One that names nothing as a whole (`resources: {}`) may have containers with limits.
    if class(pod) == "BestEffort" && whole(pod).is_none() {
        return Resources::default();
    }
    let beside = |resource: &str| overhead(pod, resource).unwrap_or(Amount::ZERO);
    let limit = |resource: &str| {
        let limit = pod_limit(pod, resource).or_else(|| containers_limit(pod, resource));
        limit.map(|limit| limit + beside(resource))
    };
    Resources {
        cpu_request_millis: millis(pod_request(pod, "cpu") + beside("cpu")),
        cpu_limit_millis: limit("cpu").map(millis),
        memory_limit: limit("memory").and_then(bytes),
        pids_limit: None,
    }
}

fn millis(amount: Amount) -> u64 {
    let millis = u64::try_from(amount.ceil_milli()).unwrap_or_default();
    millis.min(MOST_MILLIS)
}

fn bytes(amount: Amount) -> Option<u64> {
    u64::try_from(amount.ceil_units()).ok()
}

/// What a pod requests as a whole beyond its containers' requests, in equal parts for each
/// container.
fn part_of_rest(pod: &Pod, resource: &str) -> i64 {
    let rest =
        pod_request(pod, resource).ceil_units() - containers_request(pod, resource).ceil_units();
    let spec = pod.spec.iter();
    let count =
        spec.map(|spec| spec.containers.len() + spec.init_containers.iter().flatten().count());
    let count = i64::try_from(count.sum::<usize>()).unwrap_or(i64::MAX);
    rest.max(0) / count.max(1)
}

/// Whether a node does not work without a pod (upstream's `IsNodeCriticalPod`).
fn is_node_critical(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let class = spec.and_then(|spec| spec.priority_class_name.as_deref());
    class == Some(NODE_CRITICAL) && is_critical(pod)
}

/// `oom_score_adj` of a container: the less memory it requests, the earlier it is killed; a sidecar
/// no earlier than the first of the main containers, which it serves (KEP-753); one that the node
/// needs as late as guaranteed ones, whatever it requests.
pub fn oom_score(pod: &Pod, container: &Container, machine_memory: u64) -> i32 {
    if is_node_critical(pod) {
        return GUARANTEED_SCORE;
    }
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
            let asked =
                memory(container).max(least.unwrap_or_default()) + part_of_rest(pod, "memory");
            let score = 1000 - i128::from(asked) * 1000 / i128::from(machine_memory.max(1));
            i32::try_from(score.clamp(3, 999)).unwrap_or(999)
        }
    }
}

/// The cgroup above a pod's containers.
pub fn cgroup(pod: &Pod, uid: &str) -> String {
    match class(pod) {
        "Guaranteed" => format!("{ALL_PODS}/pod{uid}"),
        "BestEffort" => format!("{BEST_EFFORT}/pod{uid}"),
        _ => format!("{BURSTABLE}/pod{uid}"),
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
    fn no_amount_of_cpu_overflows_what_is_reckoned_with_it() {
        let amount = |text: &str| {
            let pod = pod(&json!({"limits": {"cpu": text}}));
            limit(&pod.spec.unwrap().containers[0], "cpu").unwrap()
        };
        for most in ["9E", "9223372036854775807"] {
            let millis = millis(amount(most));
            assert!(millis.checked_mul(100_000).is_some(), "{most}: {millis}");
        }
        assert_eq!(millis(amount("1500m")), 1500);
    }

    #[test]
    fn what_a_pod_names_as_a_whole_stands_for_what_its_containers_name() {
        let with = |whole: serde_json::Value| -> Pod {
            let own =
                json!({"requests": {"cpu": "100m", "memory": "100"}, "limits": {"memory": "200"}});
            let containers = json!([{"name": "a", "resources": own}, {"name": "b"}]);
            let mut spec = json!({"containers": containers});
            if !whole.is_null() {
                spec["resources"] = whole;
            }
            serde_json::from_value(json!({"spec": spec})).unwrap()
        };
        let limits = json!({"cpu": "2", "memory": "1000"});
        let pod = with(json!({"limits": limits, "requests": limits}));
        assert_eq!(class(&pod), "Guaranteed");
        assert_eq!(pod_request(&pod, "cpu"), Amount::units(2));
        let all = pod_resources(&pod);
        assert_eq!(
            (all.cpu_limit_millis, all.memory_limit),
            (Some(2000), Some(1000))
        );
        let [a, b] =
            [0, 1].map(|number| resources(&pod, &pod.spec.as_ref().unwrap().containers[number]));
        assert_eq!((a.cpu_request_millis, b.cpu_request_millis), (100, 0));
        assert_eq!((a.memory_limit, b.memory_limit), (Some(200), Some(1000)));

        let pod = with(json!({"requests": {"memory": "500"}}));
        assert_eq!(class(&pod), "Burstable");
        assert_eq!(pod_request(&pod, "memory"), Amount::units(500));
        assert_eq!(pod_request(&pod, "cpu"), Amount::milli(100));
        // 400 that no container names, in two parts.
        let score =
            |number: usize| oom_score(&pod, &pod.spec.as_ref().unwrap().containers[number], 1000);
        assert_eq!([score(0), score(1)], [700, 800]);

        let plain = with(serde_json::Value::Null);
        assert_eq!(class(&plain), "Burstable");
        let all = pod_resources(&plain);
        assert_eq!((all.cpu_request_millis, all.memory_limit), (100, None));
    }

    #[test]
    fn a_pod_is_limited_to_what_its_containers_are_if_each_is() {
        let with = |second: serde_json::Value| -> Resources {
            let limits = |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory});
            let first = json!({"limits": limits("50m", "70Mi"), "requests": {"cpu": "20m"}});
            let init = json!({"limits": limits("100m", "1Mi")});
            let spec = json!({
                "initContainers": [{"name": "i", "resources": init}],
                "containers": [{"name": "a", "resources": first}, {"name": "b", "resources": second}],
                "overhead": {"memory": "1Mi"},
            });
            pod_resources(&serde_json::from_value(json!({"spec": spec})).unwrap())
        };
        let all = with(json!({"limits": {"cpu": "70m", "memory": "50Mi"}}));
        let amounts = (
            all.cpu_request_millis,
            all.cpu_limit_millis,
            all.memory_limit,
        );
        assert_eq!(amounts, (100, Some(120), Some(121 << 20)));
        let all = with(json!({"limits": {"memory": "50Mi"}}));
        assert_eq!(
            (all.cpu_limit_millis, all.memory_limit),
            (None, Some(121 << 20))
        );
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
    fn a_pod_that_requests_nothing_has_the_class_and_the_limits_of_its_containers_limits() {
        let limits = json!({"cpu": "1", "memory": "1Gi"});
        let nothing = json!({"cpu": "0", "memory": "0"});
        let own = json!({"requests": nothing, "limits": limits});
        let before = pod(&own);
        assert_eq!(class(&before), "Burstable");
        assert_eq!(pod_resources(&before).memory_limit, Some(1 << 30));
        // A resize leaves it in its control group.
        let more = json!({"requests": {"cpu": "100m", "memory": "0"}, "limits": limits});
        assert_eq!(cgroup(&pod(&more), "u"), cgroup(&before, "u"));

        let containers = json!([{"name": "a", "resources": own}]);
        let spec = json!({"resources": {}, "containers": containers});
        let whole: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        assert_eq!(class(&whole), "BestEffort");
        assert_eq!(pod_resources(&whole).memory_limit, Some(1 << 30));
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
        assert_eq!(score("8Gi"), 3);
        assert_eq!(score("1"), 999);
    }

    #[test]
    fn a_container_that_the_node_needs_is_killed_last_whatever_it_requests() {
        let score = |class: &str, priority: i32, requests: serde_json::Value| {
            let containers = json!([{"name": "a", "resources": {"requests": requests}}]);
            let spec = json!({
                "priorityClassName": class, "priority": priority, "containers": containers,
            });
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            oom_score(&pod, &pod.spec.as_ref().unwrap().containers[0], 4 << 30)
        };
        let node = "system-node-critical";
        for requests in [json!({}), json!({"memory": "1Gi"})] {
            assert_eq!(score(node, 2_000_001_000, requests), GUARANTEED_SCORE);
        }
        let cluster = score("system-cluster-critical", 2_000_000_000, json!({}));
        assert_eq!(cluster, BEST_EFFORT_SCORE);
        assert_eq!(score(node, 7, json!({})), BEST_EFFORT_SCORE, "no priority");
    }
}
