//! Quantities of named resources: pods' requests and nodes' allocatable.

use config_kube::Amount;
use config_kube::k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use config_kube::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

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

/// The most of a resource that counts. Sums end at the largest quantity, and what is taken from
/// such a sum is no longer what was added: a pod that asks for that much could take the books of a
/// node from others. A thousand times this is still below it.
const MAX_AMOUNT: Amount = Amount::units(1 << 52);

/// Quantities by resource name; absent ones are zero. Processors and memory have fields of their
/// own, as each decision reads them of hundreds of nodes; the others are a sorted list, as it is
/// short and there are very many of them.
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
    #[inline]
    pub fn get(&self, name: &str) -> Amount {
        match name {
            CPU => self.cpu,
            MEMORY => self.memory,
            other => self
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

/// Room for errors of the floating point, so that what is a whole number by its quantities is one.
const EPSILON: f64 = 1e-9;

/// What is left of a quantity and what is used of it, each in whole per cent rounded down; none
/// where there is nothing to begin with.
pub(crate) fn percents(used: Amount, whole: Amount) -> Option<(i64, i64)> {
    if whole <= Amount::ZERO {
        return None;
    }
    let free = (whole - used).max(Amount::ZERO).share_of(whole);
    let used = used.min(whole).share_of(whole);
    Some((whole_percent(free), whole_percent(used)))
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
pub fn needed(spec: &PodSpec) -> Resources {
    peak(spec, |container| {
        Resources::of(requests(container.resources.as_ref()))
    })
}

/// The same for scores, where a container without requests counts with assumed values.
pub(crate) fn scored(spec: &PodSpec) -> Resources {
    peak(spec, |container| {
        let own = Resources::of(requests(container.resources.as_ref()));
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

fn requests(resources: Option<&ResourceRequirements>) -> Option<&BTreeMap<String, Quantity>> {
    resources.and_then(|resources| resources.requests.as_ref())
}

fn peak(spec: &PodSpec, of: impl Fn(&Container) -> Resources) -> Resources {
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
    let mut all = all.overridden(&Resources::of(requests(spec.resources.as_ref())));
    all.add(&Resources::of(spec.overhead.as_ref()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn spec(spec: Value) -> PodSpec {
        serde_json::from_value(spec).unwrap()
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
    fn silence_weighs_something_in_scores_only() {
        let silent = spec(json!({"containers": [{"name": "a"}, {"name": "b"}]}));
        assert_eq!(needed(&silent).get(CPU), Amount::ZERO);
        assert_eq!(scored(&silent).get(CPU), Amount::milli(200));
    }
}
