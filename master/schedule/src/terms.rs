//! A pod's terms of affinity to other pods, and its topology spread constraints.

use config_kube::k8s_openapi::api::core::v1::{
    PodAffinityTerm, PodSpec, TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, LabelSelectorRequirement,
};
use config_kube::label_selector;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};

/// Labels of a pod, a node or a namespace.
pub(crate) type Labels = BTreeMap<String, String>;
/// Labels of namespaces.
pub(crate) type Namespaces = HashMap<String, Labels>;

/// Labels of which each pod of a StatefulSet or of an indexed Job has a value of its own (as
/// upstream).
const OWN_LABELS: [&str; 3] = [
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/job-completion-index",
];

/// Whether each pod of a StatefulSet or of an indexed Job has a value of its own of a label.
pub(crate) fn is_own_label(key: &str) -> bool {
    OWN_LABELS.contains(&key)
}

fn reads_own_labels(selector: Option<&LabelSelector>) -> bool {
    selector.is_some_and(|selector| {
        let equal = selector.match_labels.iter().flatten().map(|(key, _)| key);
        let needs = selector.match_expressions.iter().flatten();
        let mut keys = equal.chain(needs.map(|need| &need.key));
        keys.any(|key| is_own_label(key))
    })
}

/// A term of affinity or anti-affinity.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Term {
    /// Namespaces by name.
    namespaces: BTreeSet<String>,
    /// Namespaces by label.
    by_label: Option<LabelSelector>,
    /// Selects pods; `None` selects nothing.
    selector: Option<LabelSelector>,
    /// The topology key: nodes with the same value of this label are one domain.
    pub(crate) topology: String,
}

impl Eq for Term {}

/// Hashes all fields, so that no client can make a map of terms slow by terms of one hash.
impl Hash for Term {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.namespaces, &self.topology).hash(state);
        for selector in [&self.by_label, &self.selector] {
            let Some(selector) = selector else {
                state.write_u8(0);
                continue;
            };
            state.write_u8(1);
            selector.match_labels.hash(state);
            for need in selector.match_expressions.iter().flatten() {
                (&need.key, &need.operator, &need.values).hash(state);
            }
        }
    }
}

impl Term {
    fn of(term: &PodAffinityTerm, namespace: &str, labels: &Labels) -> Self {
        let mut selector = term.label_selector.clone();
        let equal = term.match_label_keys.iter().flatten();
        merge(&mut selector, equal, "In", labels);
        let unequal = term.mismatch_label_keys.iter().flatten();
        merge(&mut selector, unequal, "NotIn", labels);
        let named = term.namespaces.iter().flatten();
        let mut namespaces: BTreeSet<String> = named.cloned().collect();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.insert(namespace.to_owned());
        }
        Self {
            namespaces,
            by_label: term.namespace_selector.clone(),
            selector,
            topology: term.topology_key.clone(),
        }
    }

    /// Whether it selects a pod.
    pub(crate) fn selects(
        &self,
        namespaces: &Namespaces,
        namespace: &str,
        labels: &Labels,
    ) -> bool {
        self.selects_namespace(namespaces, namespace) && self.selects_labels(labels)
    }

    pub(crate) fn selects_namespace(&self, namespaces: &Namespaces, namespace: &str) -> bool {
        let by_label = || {
            let selector = self.by_label.as_ref()?;
            let none = Labels::new();
            let labels = namespaces.get(namespace).unwrap_or(&none);
            Some(label_selector::selects(selector, labels))
        };
        self.namespaces.contains(namespace) || by_label() == Some(true)
    }

    pub(crate) fn selects_labels(&self, labels: &Labels) -> bool {
        let selector = self.selector.as_ref();
        selector.is_some_and(|selector| label_selector::selects(selector, labels))
    }

    /// Whether it reads a label for which [`is_own_label`] holds.
    pub(crate) fn reads_own_labels(&self) -> bool {
        reads_own_labels(self.selector.as_ref())
    }
}

/// Adds to a selector the values of the pod's own labels under these keys (`matchLabelKeys`).
fn merge<'k>(
    selector: &mut Option<LabelSelector>,
    keys: impl IntoIterator<Item = &'k String>,
    operator: &str,
    labels: &Labels,
) {
    let Some(selector) = selector else { return };
    for key in keys {
        if let Some(value) = labels.get(key) {
            let needs = selector.match_expressions.get_or_insert_default();
            needs.push(LabelSelectorRequirement {
                key: key.clone(),
                operator: operator.to_owned(),
                values: Some(vec![value.clone()]),
            });
        }
    }
}

/// A pod's terms of affinity and anti-affinity. Equal terms are merged, preferred ones with the sum
/// of their weights, as each later decision about another pod looks at them, too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Affinity {
    /// Required affinity.
    pub(crate) required: Vec<Term>,
    /// Required anti-affinity.
    pub(crate) refused: Vec<Term>,
    /// Preferred affinity with positive weights, and preferred anti-affinity with negative ones.
    pub(crate) preferred: Vec<(i64, Term)>,
}

impl Affinity {
    pub(crate) fn of(spec: &PodSpec, namespace: &str, labels: &Labels) -> Self {
        let affinity = spec.affinity.as_ref();
        let near = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
        let far = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
        let terms = |terms: Option<&Vec<PodAffinityTerm>>| -> Vec<Term> {
            let terms = terms.into_iter().flatten();
            let mut known = HashSet::new();
            terms
                .map(|term| Term::of(term, namespace, labels))
                .filter(|term| known.insert(term.clone()))
                .collect()
        };
        let weighed =
            |terms: Option<&Vec<WeightedPodAffinityTerm>>, sign: i64| -> Vec<(i64, Term)> {
                let terms = terms.into_iter().flatten();
                let read = |one: &WeightedPodAffinityTerm| {
                    let term = Term::of(&one.pod_affinity_term, namespace, labels);
                    (sign * i64::from(one.weight), term)
                };
                terms.map(read).collect()
            };
        let near_wishes = near.and_then(|near| {
            near.preferred_during_scheduling_ignored_during_execution
                .as_ref()
        });
        let far_wishes = far.and_then(|far| {
            far.preferred_during_scheduling_ignored_during_execution
                .as_ref()
        });
        let mut preferred = weighed(near_wishes, 1);
        preferred.extend(weighed(far_wishes, -1));
        Self {
            required: terms(near.and_then(|near| {
                near.required_during_scheduling_ignored_during_execution
                    .as_ref()
            })),
            refused: terms(far.and_then(|far| {
                far.required_during_scheduling_ignored_during_execution
                    .as_ref()
            })),
            preferred: weighed_once(preferred),
        }
    }

    /// Whether there are no terms.
    pub(crate) fn is_empty(&self) -> bool {
        self.required.is_empty() && self.refused.is_empty() && self.preferred.is_empty()
    }
}

/// Merges equal terms, with the sum of their weights.
fn weighed_once(terms: Vec<(i64, Term)>) -> Vec<(i64, Term)> {
    let mut places: HashMap<Term, usize> = HashMap::new();
    let mut once: Vec<(i64, Term)> = Vec::new();
    for (weight, term) in terms {
        if let Some((sum, _)) = places.get(&term).and_then(|place| once.get_mut(*place)) {
            *sum += weight;
            continue;
        }
        places.insert(term.clone(), once.len());
        once.push((weight, term));
    }
    once
}

/// A topology spread constraint.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Spread {
    /// How many more pods a domain may have than the emptiest one (`maxSkew`).
    pub(crate) skew: i64,
    /// The topology key.
    pub(crate) topology: String,
    /// Whether nodes that violate it are refused (`DoNotSchedule`), and not only scored lower.
    pub(crate) hard: bool,
    /// With fewer domains than this, the emptiest one counts as having no pods (`minDomains`).
    pub(crate) min_domains: usize,
    /// Whether only nodes that the pod's node selector and affinity allow count
    /// (`nodeAffinityPolicy`).
    pub(crate) by_selectors: bool,
    /// Whether only nodes whose taints the pod tolerates count (`nodeTaintsPolicy`).
    pub(crate) by_taints: bool,
    selector: Option<LabelSelector>,
}

impl Spread {
    pub(crate) fn of(spec: &PodSpec, labels: &Labels) -> Vec<Self> {
        let all = spec.topology_spread_constraints.iter().flatten();
        all.map(|one| Self::read(one, labels)).collect()
    }

    fn read(one: &TopologySpreadConstraint, labels: &Labels) -> Self {
        let mut selector = one.label_selector.clone();
        merge(
            &mut selector,
            one.match_label_keys.iter().flatten(),
            "In",
            labels,
        );
        let honored =
            |policy: Option<&String>, usual: &str| policy.map_or(usual, String::as_str) == "Honor";
        Self {
            skew: i64::from(one.max_skew),
            topology: one.topology_key.clone(),
            hard: one.when_unsatisfiable == "DoNotSchedule",
            min_domains: one
                .min_domains
                .map_or(1, |least| usize::try_from(least).unwrap_or(1)),
            by_selectors: honored(one.node_affinity_policy.as_ref(), "Honor"),
            by_taints: honored(one.node_taints_policy.as_ref(), "Ignore"),
            selector,
        }
    }

    /// Whether it reads a label for which [`is_own_label`] holds.
    pub(crate) fn reads_own_labels(&self) -> bool {
        reads_own_labels(self.selector.as_ref())
    }

    /// Whether it selects a pod of its namespace with these labels.
    pub(crate) fn selects(&self, labels: &Labels) -> bool {
        let selector = self.selector.as_ref();
        selector.is_some_and(|selector| label_selector::selects(selector, labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn affinity(spec: Value) -> Affinity {
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        Affinity::of(&spec, "default", &Labels::new())
    }

    #[test]
    fn equal_terms_are_one_with_the_sum_of_their_weights() {
        let term = |app: &str| {
            json!({"topologyKey": "zone", "labelSelector": {"matchExpressions": [
            {"key": "app", "operator": "In", "values": [app]}]}})
        };
        let many = |app: &str| vec![term(app); 10_000];
        let weighed = |weight: i32| json!({"weight": weight, "podAffinityTerm": term("a")});
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        let both = [many("a"), many("b")].concat();
        let found = affinity(json!({"containers": [], "affinity": {
            "podAffinity": {required: both, preferred: vec![weighed(7); 1000]},
            "podAntiAffinity": {required: many("c"), preferred: [weighed(100)]},
        }}));
        let lengths = (found.required.len(), found.refused.len());
        assert_eq!(lengths, (2, 1), "each would cost every later decision");
        let weights: Vec<i64> = found.preferred.iter().map(|(weight, _)| *weight).collect();
        assert_eq!(weights, [6900]);
    }

    /// A map of terms whose hashes are equal compares each with each.
    #[test]
    fn terms_that_differ_in_one_value_have_different_hashes() {
        let hash = |number: usize| {
            let term = json!([{"topologyKey": "zone", "labelSelector": {"matchExpressions": [
                {"key": "app", "operator": "NotIn", "values": [number.to_string()]}]}}]);
            let found = affinity(json!({"containers": [], "affinity": {
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}));
            let mut state = std::hash::DefaultHasher::new();
            found.hash(&mut state);
            state.finish()
        };
        let hashes: HashSet<u64> = (0..100).map(hash).collect();
        assert_eq!(hashes.len(), 100);
    }
}
