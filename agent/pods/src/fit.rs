//! Whether the node has room for a pod beside its other pods: the kubelet checks once more, as a
//! pod can be bound without the scheduler. Rules, reasons and messages are upstream's.

use crate::containers::{all, is_on_host};
use crate::status::Refusal;
use agent_resources::qos;
use agent_runtime::ContainerKind;
use config_kube::k8s_openapi::api::core::v1::{ContainerPort, Node, Pod};
use config_kube::quantity::Amount;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// The resources that every machine has, in the order in which they are checked: a refusal names
/// the first that is short.
pub(crate) const RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// Prefix of huge pages, which no node offers yet.
const PAGES: &str = "hugepages-";
/// The domain of Kubernetes' own resources. A name with another domain is an extended resource,
/// such as a device.
const OWN_DOMAIN: &str = "kubernetes.io/";

/// Why a pod does not fit beside `others`, if it doesn't. `allocatable` is what the node has for
/// all of them together, by resource.
pub fn misfit(
    pod: &Pod,
    others: &[Arc<Pod>],
    allocatable: &BTreeMap<&'static str, Amount>,
) -> Option<Refusal> {
    let of = |resource: &str| allocatable.get(resource).copied();
    let (used, most) = (others.len(), of("pods").map(Amount::ceil_units));
    if most.is_some_and(|most| i64::try_from(used).is_ok_and(|used| used >= most)) {
        let most = most.unwrap_or_default();
        return Some(lack("pods", 1, used, most));
    }
    let mut counted = RESOURCES.into_iter();
    let lacking = counted.find_map(|resource| short(pod, others, resource, of(resource)?));
    let names = names(pod).into_iter();
    let mut pages = names.filter(|name| name.starts_with(PAGES));
    // `allocatable` does not list huge pages, so that any request of them is refused.
    let lacking = lacking.or_else(|| {
        pages.find_map(|name| short(pod, others, name, of(name).unwrap_or(Amount::ZERO)))
    });
    lacking.or_else(|| {
        let taken: Vec<_> = others.iter().flat_map(|other| ports(other)).collect();
        let conflicts = |port: &ContainerPort| taken.iter().any(|other| conflict(port, other));
        ports(pod).any(conflicts).then(|| Refusal {
            reason: "NodePorts".into(),
            message: "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports".to_owned(),
        })
    })
}

/// Why the node is short of an extended resource (a device, say) that a pod asks for, by
/// `status.allocatable` of its Node: no device plug-in serves this node, but an admin may set a
/// count there. Upstream's kubelet runs a pod without a resource that its Node does not list; here
/// the pod is refused.
pub fn missing(pod: &Pod, others: &[Arc<Pod>], node: &Node) -> Option<Refusal> {
    let has = node.status.as_ref();
    let has = has.and_then(|status| status.allocatable.as_ref());
    let amount = |name: &str| Amount::try_from(has?.get(name)?).ok();
    let names = names(pod).into_iter();
    let mut foreign = names.filter(|name| name.contains('/') && !name.contains(OWN_DOMAIN));
    foreign.find_map(|name| short(pod, others, name, amount(name).unwrap_or(Amount::ZERO)))
}

/// The names of all resources in the requests and limits of a pod, sorted.
fn names(pod: &Pod) -> Vec<&str> {
    let spec = pod.spec.iter();
    let own = spec.flat_map(|spec| {
        let inits = spec.init_containers.iter().flatten();
        let all = inits.chain(&spec.containers).map(|one| &one.resources);
        all.chain([&spec.resources]).flatten()
    });
    let maps = own.flat_map(|own| own.requests.iter().chain(&own.limits));
    let mut names: Vec<&str> = maps
        .flat_map(|map| map.keys().map(String::as_str))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Why the pod's request of a resource does not fit beside those of the others; `most` is the
/// node's allocatable amount.
fn short(pod: &Pod, others: &[Arc<Pod>], resource: &str, most: Amount) -> Option<Refusal> {
    let asked = asks(pod, resource);
    let used = others.iter().map(|other| asks(other, resource)).sum();
    let number = |amount| number(resource, amount);
    (asked > Amount::ZERO && asked + used > most)
        .then(|| lack(resource, number(asked), number(used), number(most)))
}

/// A pod that the node has admitted.
#[derive(Debug, Clone)]
pub struct AllocatedPod {
    /// The pod with the resources that it has now.
    pub has: Arc<Pod>,
    /// Its resize that waits for room.
    pub waits: Option<Waiting>,
}

/// A resize for which the node had no room.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The pod with the resources that it asks for.
    pub pod: Arc<Pod>,
    /// Since when.
    pub since: Instant,
}

impl Waiting {
    /// The order in which resizes are served, first is least: higher priority, then the better QoS
    /// class, then the longer wait (upstream's order).
    fn turn(&self) -> impl Ord + use<> {
        let spec = self.pod.spec.as_ref();
        let priority = spec.and_then(|spec| spec.priority).unwrap_or_default();
        let class = match qos::class(&self.pod) {
            "Guaranteed" => 0,
            "Burstable" => 1,
            _ => 2,
        };
        (Reverse(priority), class, self.since)
    }
}

/// Why the resources that a pod `waits` for do not fit beside the `others`, if they don't; `has` is
/// the pod with its present ones. Resizes that come before it in turn and fit get their room first;
/// the second result has their indexes in `others`.
pub fn misfit_in_turn(
    has: &Arc<Pod>,
    waits: &Waiting,
    others: &[AllocatedPod],
    allocatable: &BTreeMap<&'static str, Amount>,
) -> (Option<Refusal>, Vec<usize>) {
    let waiting = others.iter().enumerate();
    let waiting = waiting.filter_map(|(number, one)| Some((number, one.waits.as_ref()?)));
    let mut before: Vec<_> = waiting
        .filter(|(_, one)| one.turn() < waits.turn())
        .collect();
    before.sort_by_key(|(_, one)| one.turn());
    let mut room: Vec<Arc<Pod>> = others.iter().map(|one| one.has.clone()).collect();
    let mut served = Vec::new();
    for (number, one) in before {
        // Beside `one` are all others and the pod itself. The pod takes the slot of `one`, whose
        // present resources must not count twice.
        let mut beside = room.clone();
        beside[number] = has.clone();
        if misfit(&one.pod, &beside, allocatable).is_none() {
            room[number] = one.pod.clone();
            served.push(number);
        }
    }
    (misfit(&waits.pod, &room, allocatable), served)
}

/// Why a resize can never fit, if it can't: it asks for more than the whole node has. The message
/// is upstream's.
pub fn beyond(pod: &Pod, allocatable: &BTreeMap<&'static str, Amount>) -> Option<String> {
    // Upstream's message names one resource: memory, where both are too much.
    ["memory", "cpu"].into_iter().find_map(|resource| {
        let (asked, most) = (asks(pod, resource), *allocatable.get(resource)?);
        let (ask, has) = (number(resource, asked), number(resource, most));
        (asked > most).then(|| {
            format!(
                "Node didn't have enough capacity: {resource}, requested: {ask}, capacity: {has}"
            )
        })
    })
}

/// An amount as upstream's messages write it, rounded up: CPU in thousandths, all else in units.
fn number(resource: &str, amount: Amount) -> i64 {
    match resource {
        "cpu" => amount.ceil_milli(),
        _ => amount.ceil_units(),
    }
}

fn lack(resource: &str, asked: i64, used: impl std::fmt::Display, most: i64) -> Refusal {
    Refusal {
        reason: format!("OutOf{resource}").into(),
        message: format!(
            "Node didn't have enough resource: {resource}, requested: {asked}, used: {used}, capacity: {most}"
        ),
    }
}

/// A pod's request of a resource with its overhead (`spec.overhead`).
pub(crate) fn asks(pod: &Pod, resource: &str) -> Amount {
    let overhead = qos::overhead(pod, resource);
    qos::pod_request(pod, resource) + overhead.unwrap_or(Amount::ZERO)
}

/// The ports of the node that a pod occupies. Ports of init containers do not count, except those
/// of sidecars.
fn ports(pod: &Pod) -> impl Iterator<Item = &ContainerPort> {
    let on_host = is_on_host(pod);
    let lasting = all(pod).filter(|(kind, _)| *kind != ContainerKind::Init);
    let ports = lasting.flat_map(|(_, container)| container.ports.iter().flatten());
    ports.filter(move |port| host_port(port).is_some() || on_host)
}

fn host_port(port: &ContainerPort) -> Option<i32> {
    port.host_port.filter(|port| *port > 0)
}

fn protocol(port: &ContainerPort) -> &str {
    port.protocol.as_deref().unwrap_or("TCP")
}

/// The host address of a port; without one it is every address of the node.
fn address(port: &ContainerPort) -> &str {
    let address = port.host_ip.as_deref().unwrap_or_default();
    // Upstream's `HostPortInfo` knows this wildcard alone; `::` is an address like any other.
    if address.is_empty() {
        "0.0.0.0"
    } else {
        address
    }
}

/// Whether two ports conflict, so that their pods can't run on one node.
fn conflict(one: &ContainerPort, other: &ContainerPort) -> bool {
    // Without a host port it is a port of a pod on the host's network ([`ports`] yields no others),
    // whose container port is the node's.
    let own = |port: &ContainerPort| host_port(port).unwrap_or(port.container_port);
    let (a, b) = (address(one), address(other));
    own(one) == own(other)
        && protocol(one) == protocol(other)
        && (a == b || [a, b].contains(&"0.0.0.0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::slice::from_ref;

    fn pod(container: Value) -> Arc<Pod> {
        let mut container = container;
        container["name"] = json!("a");
        let pod = serde_json::from_value(json!({"spec": {"containers": [container]}}));
        Arc::new(pod.unwrap())
    }

    fn fault(pod: &Pod, others: &[Arc<Pod>]) -> Option<(String, String)> {
        let allocatable = BTreeMap::from([
            ("cpu", Amount::units(2)),
            ("memory", Amount::units(1 << 30)),
            ("pods", Amount::units(3)),
        ]);
        let refusal = misfit(pod, others, &allocatable);
        refusal.map(|refusal| (refusal.reason.into_owned(), refusal.message))
    }

    #[test]
    fn what_is_asked_for_has_to_be_there_beside_what_others_have() {
        let asks = |resource: &str, amount: &str| {
            pod(json!({"resources": {"requests": {resource: amount}}}))
        };
        let (half, more) = (asks("cpu", "1"), asks("cpu", "1001m"));
        assert_eq!(fault(&half, from_ref(&half)), None);
        let words =
            "Node didn't have enough resource: cpu, requested: 1001, used: 1000, capacity: 2000";
        assert_eq!(
            fault(&more, from_ref(&half)),
            Some(("OutOfcpu".to_owned(), words.to_owned()))
        );
        let all = asks("memory", "1Gi");
        assert_eq!(fault(&all, from_ref(&half)), None);
        assert_eq!(
            fault(&all, &[asks("memory", "1")]).unwrap().0,
            "OutOfmemory"
        );
        let plain = pod(json!({}));
        assert_eq!(
            fault(&plain, &[asks("cpu", "9")]),
            None,
            "who asks for nothing lacks nothing"
        );
        let pages = asks("hugepages-2Mi", "4Mi");
        let words = "Node didn't have enough resource: hugepages-2Mi, requested: 4194304, used: 0, capacity: 0";
        assert_eq!(
            fault(&pages, &[]),
            Some(("OutOfhugepages-2Mi".to_owned(), words.to_owned()))
        );
        let words = "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3";
        let three = [plain.clone(), plain.clone(), plain.clone()];
        assert_eq!(
            fault(&plain, &three),
            Some(("OutOfpods".to_owned(), words.to_owned()))
        );
    }

    #[test]
    fn devices_are_counted_as_the_node_says_and_none_where_it_says_nothing() {
        let asks = |name: &str| pod(json!({"resources": {"limits": {name: "1", "cpu": "1"}}}));
        let device = asks("example.com/device");
        let with = |has: Value| -> Node {
            serde_json::from_value(json!({"status": {"allocatable": has}})).unwrap()
        };
        let reason = |pod: &Pod, others: &[Arc<Pod>], node: &Node| {
            Some(missing(pod, others, node)?.reason.into_owned())
        };
        let lacks = Some("OutOfexample.com/device".to_owned());
        let (none, one) = (with(json!({})), with(json!({"example.com/device": "1"})));
        assert_eq!(reason(&device, &[], &none), lacks);
        assert_eq!(reason(&device, &[], &Node::default()), lacks);
        assert_eq!(reason(&device, &[], &one), None);
        assert_eq!(reason(&device, from_ref(&device), &one), lacks);
        assert_eq!(reason(&asks("kubernetes.io/own"), &[], &none), None);
        assert_eq!(reason(&asks("memory"), &[], &none), None);
    }

    #[test]
    fn a_resize_beyond_the_whole_node_never_fits() {
        let gib = |count: i64| Amount::units(count << 30);
        let allocatable = BTreeMap::from([("cpu", Amount::units(2)), ("memory", gib(1))]);
        let asks = |cpu: &str, memory: &str| {
            pod(json!({"resources": {"requests": {"cpu": cpu, "memory": memory}}}))
        };
        let message = |cpu, memory| beyond(&asks(cpu, memory), &allocatable);
        let words = |what| Some(format!("Node didn't have enough capacity: {what}"));
        assert_eq!(message("2", "1Gi"), None);
        assert_eq!(
            message("2001m", "1Gi"),
            words("cpu, requested: 2001, capacity: 2000")
        );
        assert_eq!(
            message("2001m", "2Gi"),
            words("memory, requested: 2147483648, capacity: 1073741824")
        );
    }

    #[test]
    fn pods_that_wait_for_room_get_it_in_turn() {
        let allocatable = BTreeMap::from([("cpu", Amount::units(4))]);
        let start = Instant::now();
        let sized = |cpu: &str, priority: i32| {
            let mut pod = pod(json!({"resources": {"requests": {"cpu": cpu}}}));
            Arc::make_mut(&mut pod).spec.as_mut().unwrap().priority = Some(priority);
            pod
        };
        let waits = |cpu: &str, priority: i32, seconds: u64| Waiting {
            pod: sized(cpu, priority),
            since: start + std::time::Duration::from_secs(seconds),
        };
        let tenant = |waits: Waiting| AllocatedPod {
            has: sized("500m", 0),
            waits: Some(waits),
        };
        let plain = |cpu: &str| AllocatedPod {
            has: sized(cpu, 0),
            waits: None,
        };
        let judged = |own: &Waiting, others: &[AllocatedPod]| {
            let (lack, served) = misfit_in_turn(&sized("500m", 0), own, others, &allocatable);
            (lack.is_none(), served)
        };
        let own = waits("2", 5, 5);
        // The other has a higher priority, or the same and waits for longer: its resize comes first
        // and leaves too little room.
        for other in [waits("2500m", 6, 9), waits("2500m", 5, 4)] {
            assert_eq!(judged(&own, &[plain("1"), tenant(other)]), (false, vec![1]));
        }
        for other in [waits("2500m", 4, 1), waits("2500m", 5, 6)] {
            assert_eq!(judged(&own, &[plain("1"), tenant(other)]), (true, vec![]));
        }
        // A resize that comes first and does not fit takes no room.
        let large = tenant(waits("3500m", 6, 1));
        assert_eq!(judged(&own, &[plain("1"), large.clone()]), (true, vec![]));
        // A resize to less than the pod has always fits.
        assert_eq!(
            judged(&waits("100m", 0, 9), &[plain("3"), large]),
            (true, vec![])
        );
    }

    #[test]
    fn no_two_pods_have_the_same_port_of_the_node() {
        let port = |port: Value| pod(json!({"ports": [port]}));
        let any = port(json!({"containerPort": 80, "hostPort": 8080}));
        let one = port(
            json!({"containerPort": 81, "hostPort": 8080, "hostIP": "192.0.2.7", "protocol": "TCP"}),
        );
        let two = port(json!({"containerPort": 81, "hostPort": 8080, "hostIP": "192.0.2.8"}));
        for (a, b) in [(&any, &any), (&any, &one), (&one, &any), (&one, &one)] {
            assert_eq!(
                fault(a, from_ref(b)).map(|(reason, _)| reason).as_deref(),
                Some("NodePorts")
            );
        }
        assert_eq!(fault(&one, &[two]), None);
        let udp = port(json!({"containerPort": 80, "hostPort": 8080, "protocol": "UDP"}));
        assert_eq!(fault(&udp, from_ref(&any)), None);
        let own = port(json!({"containerPort": 80}));
        assert_eq!(
            fault(&own, from_ref(&own)),
            None,
            "ports of a pod's own network"
        );
        let mut on_host = port(json!({"containerPort": 8080}));
        Arc::make_mut(&mut on_host)
            .spec
            .as_mut()
            .unwrap()
            .host_network = Some(true);
        assert!(fault(&on_host, &[any]).is_some());
    }
}
