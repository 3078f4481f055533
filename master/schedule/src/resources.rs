//! Quantities of named resources: pods' requests and nodes' allocatable.

use config_kube::Amount;
use config_kube::k8s_openapi::api::core::v1::{
    Container, ContainerStatus, Pod, PodSpec, ResourceRequirements,
};
use config_kube::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::{BTreeMap, HashMap};

/// Processor time, in cores.
pub(crate) const CPU: &str = "cpu";
/// Bytes of memory.
pub(crate) const MEMORY: &str = "memory";
/// Number of pods; nodes have it, pods do not request it.
pub(crate) const PODS: &str = "pods";

/// The assumed usage of a container without requests, for scores only: otherwise a hundred of them
/// would weigh nothing (upstream's values).
const SCORED_CPU: Amount = Amount::milli(100);
/// As [`SCORED_CPU`].
const SCORED_MEMORY: Amount = Amount::units(200 << 20);

/// Larger amounts of a resource count as this one. Sums saturate at the largest quantity, and then
/// subtracting what was added gives a wrong result: a pod that requests that much could spoil the
/// sums of a node for all others. A thousand times this amount is still below that limit.
const MAX_AMOUNT: Amount = Amount::units(1 << 52);

/// A resource by name, resolved once for many look-ups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResourceName<'a> {
    Cpu,
    Memory,
    Other(&'a str),
}

impl<'a> From<&'a str> for ResourceName<'a> {
    fn from(name: &'a str) -> Self {
        match name {
            CPU => Self::Cpu,
            MEMORY => Self::Memory,
            other => Self::Other(other),
        }
    }
}

impl<'a> ResourceName<'a> {
    /// The name in the API.
    pub(crate) fn text(self) -> &'a str {
        match self {
            Self::Cpu => CPU,
            Self::Memory => MEMORY,
            Self::Other(name) => name,
        }
    }
}

/// Quantities by resource name; absent ones are zero. CPU and memory have fields of their own, as
/// each decision reads them for hundreds of nodes. The others are a short sorted list, as there are
/// very many values of this type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    cpu: Amount,
    memory: Amount,
    others: Vec<(Box<str>, Amount)>,
}

impl Resources {
    /// Reads a list of the API. An unreadable quantity counts as zero: the API server validated it.
    pub fn of(list: Option<&BTreeMap<String, Quantity>>) -> Self {
        let mut read = Self::default();
        for (name, quantity) in list.into_iter().flatten() {
            if let Ok(amount) = Amount::try_from(quantity) {
                *read.entry(name) = amount.min(MAX_AMOUNT);
            }
        }
        read
    }

    fn place(&self, name: &str) -> Result<usize, usize> {
        let others = &self.others;
        others.binary_search_by(|(known, _)| (**known).cmp(name))
    }

    /// The quantity of a resource.
    pub fn get(&self, name: &str) -> Amount {
        self.amount(name.into())
    }

    /// The quantity of a resource: no names are compared for CPU and memory, which each decision
    /// reads for hundreds of nodes.
    #[inline]
    pub(crate) fn amount(&self, name: ResourceName<'_>) -> Amount {
        match name {
            ResourceName::Cpu => self.cpu,
            ResourceName::Memory => self.memory,
            ResourceName::Other(other) => self
                .place(other)
                .map_or_else(|_none| Amount::ZERO, |at| self.others[at].1),
        }
    }

    fn entry(&mut self, name: &str) -> &mut Amount {
        match name {
            CPU => &mut self.cpu,
            MEMORY => &mut self.memory,
            other => {
                let at = self.place(other).unwrap_or_else(|at| {
                    self.others.insert(at, (other.into(), Amount::ZERO));
                    at
                });
                &mut self.others[at].1
            }
        }
    }

    /// Sets the quantity of a resource.
    #[must_use]
    pub fn with(mut self, name: &str, amount: Amount) -> Self {
        *self.entry(name) = amount;
        self
    }

    /// All quantities but absent ones.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Amount)> {
        let own = [(CPU, self.cpu), (MEMORY, self.memory)];
        let own = own
            .into_iter()
            .filter(|(_, amount)| *amount != Amount::ZERO);
        let others = self.others.iter();
        own.chain(others.map(|(name, amount)| (&**name, *amount)))
    }

    /// Adds quantities.
    pub(crate) fn add(&mut self, other: &Self) {
        for (name, amount) in other.iter() {
            let own = self.entry(name);
            *own = *own + amount;
        }
    }

    /// Subtracts quantities.
    pub(crate) fn remove(&mut self, other: &Self) {
        for (name, amount) in other.iter() {
            let own = self.entry(name);
            *own = *own - amount;
        }
    }

    /// By how much each quantity exceeds that in `other`; `None` if none does.
    pub(crate) fn beyond(&self, other: &Self) -> Option<Self> {
        let mut beyond = Self::default();
        for (name, amount) in self.iter() {
            if amount > other.get(name) {
                *beyond.entry(name) = amount - other.get(name);
            }
        }
        (beyond != Self::default()).then_some(beyond)
    }

    /// The larger quantity of each resource.
    fn max(&mut self, other: &Self) {
        for (name, amount) in other.iter() {
            let own = self.entry(name);
            *own = (*own).max(amount);
        }
    }

    /// These quantities, replaced by those of `other` where it has any.
    fn overridden(mut self, other: &Self) -> Self {
        for (name, amount) in other.iter() {
            *self.entry(name) = amount;
        }
        self
    }
}

/// Tolerance for rounding errors, so that a share that is a whole per cent is not rounded down.
const EPSILON: f64 = 1e-9;

/// The free share of a quantity in whole per cent, rounded down; `None` if the quantity is zero.
pub(crate) fn free_percent(used: Amount, whole: Amount) -> Option<i64> {
    let free = (whole - used).max(Amount::ZERO);
    (whole > Amount::ZERO).then(|| whole_percent(free.share_of(whole)))
}

/// The used share of a quantity in whole per cent, rounded down; `None` if the quantity is zero.
pub(crate) fn used_percent(used: Amount, whole: Amount) -> Option<i64> {
    let used = used.min(whole);
    (whole > Amount::ZERO).then(|| whole_percent(used.share_of(whole)))
}

/// A share as whole per cent, rounded down.
#[allow(
    clippy::cast_possible_truncation,
    reason = "it is rounded down on purpose, and a share of one at most"
)]
pub(crate) fn whole_percent(share: f64) -> i64 {
    (share.clamp(0.0, 1.0) * 100.0 + EPSILON) as i64
}

/// A pod's peak requests: containers and sidecars, or one init container with the sidecars before
/// it if that is more; requests at pod level replace these; plus the overhead.
///
/// For a pod that is resized in place, the largest of its requested, allocated and actual resources
/// counts. A request that the node can never grant (`Infeasible`) does not count (upstream:
/// `PodRequests` with `UseStatusResources`).
pub fn needed(pod: &Pod) -> Resources {
    peak(pod, |own| own)
}

/// The same for scores, where a container without requests counts with assumed values.
pub(crate) fn scored(pod: &Pod) -> Resources {
    peak(pod, |own| {
        let [cpu, memory] = [(CPU, SCORED_CPU), (MEMORY, SCORED_MEMORY)].map(|(name, least)| {
            let needed = own.get(name);
            if needed == Amount::ZERO {
                least
            } else {
                needed
            }
        });
        Resources::default().with(CPU, cpu).with(MEMORY, memory)
    })
}

/// Quantities as the API lists them.
type List = BTreeMap<String, Quantity>;

fn requests(resources: Option<&ResourceRequirements>) -> Option<&List> {
    resources.and_then(|resources| resources.requests.as_ref())
}

fn peak(pod: &Pod, counted: impl Fn(Resources) -> Resources) -> Resources {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let there = There::of(pod);
    let sum =
        |of: &dyn Fn(&Container) -> Resources| sum_of(spec, |container| counted(of(container)));
    let asked = sum(&|container| Resources::of(requests(container.resources.as_ref())));
    let own = Resources::of(requests(spec.resources.as_ref()));
    let overhead = Resources::of(spec.overhead.as_ref());
    let (mut all, own) = if there.is_any() {
        let mut all = sum(&|container| there.granted(container));
        all.max(&sum(&|container| there.had(container)));
        if !there.never {
            all.max(&asked);
        }
        (all, there.of_pod(own))
    } else {
        (asked, own)
    };
    all = all.overridden(&own);
    all.add(&overhead);
    all
}

/// The sum of what containers need at the same time.
fn sum_of(spec: &PodSpec, of: impl Fn(&Container) -> Resources) -> Resources {
    let mut sidecars = Resources::default();
    let mut start = Resources::default();
    for container in spec.init_containers.iter().flatten() {
        let own = of(container);
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars.add(&own);
            start.max(&sidecars);
        } else {
            let mut with_sidecars = sidecars.clone();
            with_sidecars.add(&own);
            start.max(&with_sidecars);
        }
    }
    let mut all = sidecars;
    spec.containers
        .iter()
        .for_each(|container| all.add(&of(container)));
    all.max(&start);
    all
}

/// The resources that a pod has on its node, as its kubelet reports them.
struct There<'a> {
    containers: HashMap<&'a str, &'a ContainerStatus>,
    /// Allocated and actual requests of the pod itself.
    pod: [Option<&'a List>; 2],
    /// Whether its node can never grant the requested resize.
    never: bool,
}

impl<'a> There<'a> {
    fn of(pod: &'a Pod) -> Self {
        let status = pod.status.as_ref();
        let lists =
            status.map(|status| [&status.container_statuses, &status.init_container_statuses]);
        let containers = lists.into_iter().flatten().flatten().flatten();
        let reports =
            containers.filter(|one| one.allocated_resources.is_some() || one.resources.is_some());
        let mut conditions = status
            .into_iter()
            .flat_map(|status| status.conditions.iter().flatten());
        let pending = conditions.find(|condition| condition.type_ == "PodResizePending");
        Self {
            containers: reports.map(|one| (one.name.as_str(), one)).collect(),
            pod: [
                status.and_then(|status| status.allocated_resources.as_ref()),
                status.and_then(|status| requests(status.resources.as_ref())),
            ],
            never: pending.is_some_and(|one| one.reason.as_deref() == Some("Infeasible")),
        }
    }

    fn is_any(&self) -> bool {
        self.never || !self.containers.is_empty() || self.pod.iter().any(Option::is_some)
    }

    /// The allocated resources of a container; without a report its requests.
    fn granted(&self, container: &Container) -> Resources {
        let status = self.containers.get(container.name.as_str());
        let granted = status.and_then(|status| status.allocated_resources.as_ref());
        let asked = requests(container.resources.as_ref()).filter(|_| !self.never);
        Resources::of(granted.or(asked))
    }

    /// The actual resources of a container; without a report those that are allocated.
    fn had(&self, container: &Container) -> Resources {
        let status = self.containers.get(container.name.as_str());
        let has = status.and_then(|status| requests(status.resources.as_ref()));
        has.map_or_else(|| self.granted(container), |has| Resources::of(Some(has)))
    }

    /// The requests at pod level that count, without the overhead; empty if there are none.
    fn of_pod(&self, asked: Resources) -> Resources {
        let mut reports = self.pod.iter().flatten().peekable();
        if asked == Resources::default() || reports.peek().is_none() {
            return asked;
        }
        let mut all = if self.never {
            Resources::default()
        } else {
            asked
        };
        for report in reports {
            all.max(&Resources::of(Some(report)));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn spec(spec: Value) -> Pod {
        let mut pod = json!({"metadata": {}});
        pod["spec"] = spec;
        serde_json::from_value(pod).unwrap()
    }

    fn container(cpu: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu}}})
    }

    fn cpu(pod: Value) -> String {
        needed(&spec(pod)).get(CPU).to_string()
    }

    #[test]
    fn containers_add_up_and_init_containers_take_turns() {
        assert_eq!(
            cpu(json!({"containers": [container("1"), container("500m")]})),
            "1500m"
        );
        assert_eq!(
            cpu(
                json!({"containers": [container("1")], "initContainers": [container("2"), container("3")]})
            ),
            "3"
        );
    }

    #[test]
    fn what_asks_for_all_there_is_leaves_the_books_as_they_were() {
        let small = needed(&spec(json!({"containers": [container("3")]})));
        let large = needed(&spec(
            json!({"containers": [container("9E"), container("9E")]}),
        ));
        let mut sum = small.clone();
        sum.add(&large);
        sum.remove(&large);
        assert_eq!(sum, small);
    }

    #[test]
    fn a_sidecar_counts_beside_what_starts_after_it() {
        let mut sidecar = container("1");
        sidecar["restartPolicy"] = json!("Always");
        let after =
            json!({"containers": [container("1")], "initContainers": [sidecar, container("3")]});
        assert_eq!(cpu(after), "4");
        let before =
            json!({"containers": [container("1")], "initContainers": [container("3"), sidecar]});
        assert_eq!(cpu(before), "3");
    }

    #[test]
    fn requests_of_the_pod_itself_stand_instead_and_overhead_is_added() {
        let pod = json!({
            "containers": [container("1")],
            "resources": {"requests": {"cpu": "700m"}},
            "overhead": {"cpu": "100m"},
        });
        assert_eq!(cpu(pod), "800m");
    }

    #[test]
    fn of_a_pod_that_is_resized_the_largest_of_asked_granted_and_had_counts() {
        let cpu = |asked: &str, granted: &str, has: &str, reason: &str| {
            let list = |cpu: &str| json!({"cpu": cpu});
            let pod = json!({
                "metadata": {}, "spec": {"containers": [container(asked), container("1")]},
                "status": {
                    "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
                    "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                        "allocatedResources": list(granted), "resources": {"requests": list(has)}}],
                },
            });
            let mut pod: Pod = serde_json::from_value(pod).unwrap();
            let other = pod.spec.as_mut().unwrap().containers.last_mut();
            other.unwrap().name = "other".to_owned();
            needed(&pod).get(CPU).to_string()
        };
        assert_eq!(cpu("3", "1", "1", "Deferred"), "4", "it may still get it");
        assert_eq!(cpu("1", "3", "1", ""), "4", "it is about to get it");
        assert_eq!(cpu("1", "1", "3", ""), "4", "it has not given it back");
        assert_eq!(cpu("3", "2", "1", "Infeasible"), "2", "it never gets it");
    }

    #[test]
    fn of_a_pod_with_requests_of_its_own_these_are_resized() {
        let cpu = |asked: &str, granted: &str, has: &str| {
            let list = |cpu: &str| json!({"cpu": cpu});
            let pod = json!({
                "metadata": {}, "spec": {"containers": [container("1")], "resources": {"requests": list(asked)},
                    "overhead": list("100m")},
                "status": {"allocatedResources": list(granted), "resources": {"requests": list(has)}},
            });
            needed(&serde_json::from_value(pod).unwrap())
                .get(CPU)
                .to_string()
        };
        assert_eq!(cpu("2", "1", "1"), "2100m");
        assert_eq!(cpu("1", "2", "1"), "2100m");
        assert_eq!(cpu("1", "1", "2"), "2100m");
    }

    #[test]
    fn silence_weighs_something_in_scores_only() {
        let silent = spec(json!({"containers": [{"name": "a"}, {"name": "b"}]}));
        assert_eq!(needed(&silent).get(CPU), Amount::ZERO);
        assert_eq!(scored(&silent).get(CPU), Amount::milli(200));
    }
}
