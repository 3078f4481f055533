//! Counts of pods by labels and node, so that affinity and spread need not look at each pod.

use crate::node::NodeId;
use crate::request::Demand;
use crate::terms::{Affinity, Labels, is_own_label};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// Pods on one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) all: usize,
    /// Of these, those that are being deleted.
    pub(crate) leaving: usize,
}

impl Count {
    /// Those that are not being deleted.
    pub(crate) fn staying(self) -> usize {
        self.all - self.leaving
    }
}

/// Pods by node.
type ByNode = HashMap<NodeId, Count, BuildHasherDefault<NumberHasher>>;
/// Pods by their labels and node.
type ByLabels = HashMap<Arc<Labels>, ByNode>;

/// Hashes numbers of nodes by one multiplication: each decision looks up hundreds. No client
/// chooses the numbers, so the hash need not resist collisions made on purpose.
#[derive(Debug, Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_usize(usize::from(*byte));
        }
    }

    fn write_usize(&mut self, number: usize) {
        // 2^64 by the golden ratio: numbers in sequence are spread over the whole range.
        self.0 = (self.0 ^ number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// Pods that differ only in labels for which [`is_own_label`] holds.
#[derive(Debug, Clone, Default)]
struct Numbered {
    /// All of them.
    nodes: ByNode,
    /// The same by all their labels.
    each: ByLabels,
}

/// Pods by labels and node.
#[derive(Debug, Clone, Default)]
struct Groups {
    /// Pods without labels of their own.
    by_labels: ByLabels,
    /// The others by the labels that they share: most selectors read only these, and are compared
    /// once with all pods of a StatefulSet.
    numbered: HashMap<Labels, Numbered>,
}

impl Groups {
    fn add(&mut self, labels: &Arc<Labels>, node: NodeId, leaving: bool) {
        let Some(shared) = shared_labels(labels) else {
            return enter(&mut self.by_labels, labels, node, leaving);
        };
        let numbered = self.numbered.entry(shared).or_default();
        put(&mut numbered.nodes, node, leaving);
        enter(&mut numbered.each, labels, node, leaving);
    }

    /// Removes a pod; returns whether there are none left.
    fn remove(&mut self, labels: &Labels, node: NodeId, leaving: bool) -> bool {
        match shared_labels(labels) {
            None => leave(&mut self.by_labels, labels, node, leaving),
            Some(shared) => {
                if let Some(numbered) = self.numbered.get_mut(&shared) {
                    leave(&mut numbered.each, labels, node, leaving);
                    if take(&mut numbered.nodes, node, leaving) {
                        self.numbered.remove(&shared);
                    }
                }
            }
        }
        self.by_labels.is_empty() && self.numbered.is_empty()
    }

    /// Pods whose labels are selected, in groups; `reads_own` as in [`PodGroups::selected`].
    fn selected(
        &self,
        reads_own: bool,
        selects: impl Fn(&Labels) -> bool,
    ) -> impl Iterator<Item = &ByNode> {
        let plain = self.by_labels.iter();
        let plain = plain.map(|(labels, nodes)| (&**labels, nodes));
        let numbered = self.numbered.iter().filter(move |_| !reads_own);
        let numbered = numbered.map(|(labels, numbered)| (labels, &numbered.nodes));
        let each = self.numbered.values().filter(move |_| reads_own);
        let each = each.flat_map(|numbered| &numbered.each);
        let each = each.map(|(labels, nodes)| (&**labels, nodes));
        let all = plain.chain(numbered).chain(each);
        all.filter(move |(labels, _)| selects(labels))
            .map(|(_, nodes)| nodes)
    }
}

/// The labels of a pod without those that are its own; `None` if it has no such labels.
fn shared_labels(labels: &Labels) -> Option<Labels> {
    let has_own = labels.keys().any(|key| is_own_label(key));
    has_own.then(|| {
        let shared = labels.iter().filter(|(key, _)| !is_own_label(key));
        let shared = shared.map(|(key, value)| (key.clone(), value.clone()));
        shared.collect()
    })
}

/// Pods by namespace, labels and node; replicas also by owner, and pods with affinity or
/// anti-affinity also by their terms. Invariant: it holds the placed pods, each once.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodGroups {
    by_labels: HashMap<Box<str>, Groups>,
    /// Replicas, by their owner's UID.
    by_owner: HashMap<String, Groups>,
    /// Pods with affinity or anti-affinity, by their terms: replicas have the same terms, even
    /// where each has a label of its own.
    asking: HashMap<Affinity, ByNode>,
}

/// Pods with the same affinity terms.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AffinityGroup<'a> {
    pub(crate) affinity: &'a Affinity,
    nodes: &'a ByNode,
}

impl<'a> AffinityGroup<'a> {
    /// Nodes on which they are, and how many on each.
    pub(crate) fn nodes(self) -> impl Iterator<Item = (NodeId, Count)> + 'a {
        self.nodes.iter().map(|(node, count)| (*node, *count))
    }
}

/// Similar pods, counted by node. Those that are being deleted do not count.
#[derive(Debug, Clone)]
pub(crate) struct AlikePods<'a>(Cow<'a, ByNode>);

impl AlikePods<'_> {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many are on a node.
    pub(crate) fn on(&self, node: NodeId) -> usize {
        self.0.get(&node).copied().unwrap_or_default().staying()
    }

    /// Nodes on which they are, and how many on each.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (NodeId, usize)> {
        self.0.iter().map(|(node, count)| (*node, count.staying()))
    }
}

/// Adds a pod to its node.
fn put(nodes: &mut ByNode, node: NodeId, leaving: bool) {
    let count = nodes.entry(node).or_default();
    count.all += 1;
    count.leaving += usize::from(leaving);
}

/// Adds a pod to the group of its labels.
fn enter(groups: &mut ByLabels, labels: &Arc<Labels>, node: NodeId, leaving: bool) {
    match groups.get_mut(labels) {
        Some(nodes) => put(nodes, node, leaving),
        None => put(groups.entry(Arc::clone(labels)).or_default(), node, leaving),
    }
}

/// Removes a pod from its node; returns whether the group is empty.
fn take(nodes: &mut ByNode, node: NodeId, leaving: bool) -> bool {
    if let Some(count) = nodes.get_mut(&node) {
        count.all = count.all.saturating_sub(1);
        count.leaving = count.leaving.saturating_sub(usize::from(leaving));
        if count.all == 0 {
            nodes.remove(&node);
        }
    }
    nodes.is_empty()
}

/// Removes a pod from the group of its labels.
fn leave(groups: &mut ByLabels, labels: &Labels, node: NodeId, leaving: bool) {
    if let Some(nodes) = groups.get_mut(labels)
        && take(nodes, node, leaving)
    {
        groups.remove(labels);
    }
}

impl PodGroups {
    pub(crate) fn add(&mut self, demand: &Demand, node: NodeId, leaving: bool) {
        let namespace = match self.by_labels.get_mut(&*demand.namespace) {
            Some(namespace) => namespace,
            None => self.by_labels.entry(demand.namespace.clone()).or_default(),
        };
        namespace.add(&demand.labels, node, leaving);
        if let Some(owner) = &demand.owner {
            let own = match self.by_owner.get_mut(owner) {
                Some(own) => own,
                None => self.by_owner.entry(owner.clone()).or_default(),
            };
            own.add(&demand.labels, node, leaving);
        }
        if !demand.affinity.is_empty() {
            let asking = match self.asking.get_mut(&demand.affinity) {
                Some(asking) => asking,
                None => self.asking.entry(demand.affinity.clone()).or_default(),
            };
            put(asking, node, leaving);
        }
    }

    pub(crate) fn remove(&mut self, demand: &Demand, node: NodeId, leaving: bool) {
        if let Some(namespace) = self.by_labels.get_mut(&*demand.namespace)
            && namespace.remove(&demand.labels, node, leaving)
        {
            self.by_labels.remove(&*demand.namespace);
        }
        if let Some(owner) = &demand.owner
            && let Some(own) = self.by_owner.get_mut(owner)
            && own.remove(&demand.labels, node, leaving)
        {
            self.by_owner.remove(owner);
        }
        if !demand.affinity.is_empty()
            && let Some(nodes) = self.asking.get_mut(&demand.affinity)
            && take(nodes, node, leaving)
        {
            self.asking.remove(&demand.affinity);
        }
    }

    /// Pods of a namespace whose labels are selected, by node. `reads_own` says whether `selects`
    /// reads labels for which [`is_own_label`] holds; without this it sees none of them.
    pub(crate) fn selected<'a>(
        &'a self,
        namespace: &str,
        reads_own: bool,
        selects: impl Fn(&Labels) -> bool + 'a,
    ) -> impl Iterator<Item = (NodeId, Count)> {
        let groups = self.by_labels.get(namespace);
        let selected = groups.map(|groups| groups.selected(reads_own, selects));
        let nodes = selected.into_iter().flatten().flatten();
        nodes.map(|(node, count)| (*node, *count))
    }

    /// Pods that have the `wanted` labels: those of the pod's owner, or if it has none, of its
    /// namespace. Pods of a ReplicaSet have the same labels, so usually there is one group and
    /// nothing to add up.
    pub(crate) fn alike(&self, pod: &Demand, wanted: &BTreeMap<&str, &str>) -> AlikePods<'_> {
        let groups = match &pod.owner {
            Some(owner) => self.by_owner.get(owner),
            None => self.by_labels.get(&*pod.namespace),
        };
        let has = |labels: &Labels| {
            let mut wanted = wanted.iter();
            wanted.all(|(key, value)| labels.get(*key).is_some_and(|own| own == value))
        };
        let Some(groups) = groups else {
            return AlikePods(Cow::default());
        };
        let reads_own = wanted.keys().any(|key| is_own_label(key));
        let mut alike = groups.selected(reads_own, has);
        let mut all = match alike.next() {
            Some(nodes) => Cow::Borrowed(nodes),
            None => Cow::default(),
        };
        for (node, count) in alike.flatten() {
            let sum = all.to_mut().entry(*node).or_default();
            sum.all += count.all;
            sum.leaving += count.leaving;
        }
        AlikePods(all)
    }

    /// All namespaces with pods.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.by_labels.keys().map(|name| &**name)
    }

    /// Pods with affinity or anti-affinity, by their terms.
    pub(crate) fn asking(&self) -> impl Iterator<Item = AffinityGroup<'_>> {
        let asking = self.asking.iter();
        asking.map(|(affinity, nodes)| AffinityGroup { affinity, nodes })
    }

    /// Whether there are no such pods.
    pub(crate) fn nobody_asks(&self) -> bool {
        self.asking.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::PodRequest;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use std::cell::Cell;

    const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";

    /// A pod of a StatefulSet; with a number, it has a label of its own.
    fn pod(app: &str, number: Option<usize>, terms: &[Value]) -> Arc<Demand> {
        let mut labels = json!({"app": app});
        if let Some(number) = number {
            labels[POD_NAME] = number.to_string().into();
        }
        let owner = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": app, "uid": app, "controller": true}]);
        let metadata =
            json!({"namespace": "d", "name": "p", "labels": labels, "ownerReferences": owner});
        let affinity =
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
        let spec = json!({"containers": [], "affinity": affinity});
        let pod = json!({"metadata": metadata, "spec": spec});
        PodRequest::of(&serde_json::from_value(pod).expect("a pod")).demand
    }

    /// Pods by node.
    fn sums(pods: impl Iterator<Item = (NodeId, Count)>) -> BTreeMap<usize, (usize, usize)> {
        let mut sums: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for (node, count) in pods {
            let sum = sums.entry(node.0).or_default();
            *sum = (sum.0 + count.all, sum.1 + count.leaving);
        }
        sums
    }

    fn term(key: &str, operator: &str, values: &[&str]) -> Value {
        let need = json!({"key": key, "operator": operator, "values": values});
        json!({"topologyKey": "zone", "labelSelector": {"matchExpressions": [need]}})
    }

    proptest! {
        /// Whether or not they are counted by labels that they share.
        #[test]
        fn selected_pods_are_those_whose_labels_are_selected(
            pods in proptest::collection::vec(
                (0..2_usize, proptest::option::of(0..3_usize), 0..3_usize, any::<bool>(), any::<bool>()), 0..20),
        ) {
            let mut groups = PodGroups::default();
            let apps = ["a", "b"];
            for (app, number, node, leaving, _) in &pods {
                groups.add(&pod(apps[*app], *number, &[]), NodeId(*node), *leaving);
            }
            for (app, number, node, leaving, stays) in &pods {
                if !stays {
                    groups.remove(&pod(apps[*app], *number, &[]), NodeId(*node), *leaving);
                }
            }
            let terms = [term("app", "In", &["a"]), term(POD_NAME, "NotIn", &["1"]),
                term(POD_NAME, "Exists", &[]), term("app", "Exists", &[])];
            for term in &pod("a", None, &terms).affinity.refused {
                let selects = |labels: &Labels| term.selects_labels(labels);
                let found = groups.selected("d", term.reads_own_labels(), selects);
                let one_by_one = pods.iter().filter_map(|(app, number, node, leaving, stays)| {
                    let pod = pod(apps[*app], *number, &[]);
                    let count = Count { all: 1, leaving: usize::from(*leaving) };
                    (*stays && term.selects_labels(&pod.labels)).then_some((NodeId(*node), count))
                });
                prop_assert_eq!(sums(found), sums(one_by_one));
            }
            if !pods.iter().any(|(.., stays)| *stays) {
                prop_assert!(groups.by_labels.is_empty() && groups.by_owner.is_empty());
            }
        }
    }

    /// With thousands of replicas, one comparison for each took most of a decision.
    #[test]
    fn a_selector_is_compared_once_with_all_pods_of_a_stateful_set() {
        let mut groups = PodGroups::default();
        for number in 0..100 {
            groups.add(&pod("a", Some(number), &[]), NodeId(number), false);
        }
        let compared = Cell::new(0);
        let selects = |labels: &Labels| {
            compared.set(compared.get() + 1);
            labels.contains_key("app")
        };
        let found = sums(groups.selected("d", false, selects));
        assert_eq!((found.len(), compared.get()), (100, 1));
        let alike = groups.alike(&pod("a", Some(7), &[]), &BTreeMap::new());
        assert_eq!(alike.nodes().count(), 100);
        assert!(matches!(alike.0, Cow::Borrowed(_)), "nothing is added up");
    }
}
