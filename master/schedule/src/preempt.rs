//! Preemption: chooses the pods of lower priority that are deleted so that a pod finds a node
//! (upstream: `DefaultPreemption`).

use crate::groups::NumberHasher;
use crate::key::PodKey;
use crate::node::NodeId;
use crate::plugins::{Plugins, Prepared};
use crate::request::{Demand, PodRequest};
use crate::snapshot::{PreemptiblePod, Snapshot};
use crate::terms::Labels;
use config_kube::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use config_kube::label_selector;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::BuildHasherDefault;

/// The best node is chosen among this many nodes with victims, or a tenth of all nodes if that is
/// more (as upstream).
const LEAST_CANDIDATES: usize = 100;
/// See [`LEAST_CANDIDATES`].
const SHARE_OF_NODES: usize = 10;

/// A disruption budget.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    pub(crate) key: PodKey,
    selector: Option<LabelSelector>,
    allowed: i32,
    /// Names of pods whose eviction it has already granted: they do not count again.
    disrupted: BTreeSet<String>,
}

impl Budget {
    /// Reads a budget.
    pub fn of(budget: &PodDisruptionBudget) -> Self {
        let spec = budget.spec.as_ref();
        let status = budget.status.as_ref();
        Self {
            key: PodKey::named(&budget.metadata),
            selector: spec.and_then(|spec| spec.selector.clone()),
            allowed: status
                .and_then(|status| status.disruptions_allowed)
                .unwrap_or_default(),
            disrupted: status
                .and_then(|status| status.disrupted_pods.as_ref())
                .map(|pods| pods.keys().cloned().collect())
                .unwrap_or_default(),
        }
    }

    /// The labels and values in its `matchLabels`.
    fn wanted(&self) -> impl Iterator<Item = Wanted<'_>> {
        let labels = self.selector.as_ref();
        let labels = labels.and_then(|selector| selector.match_labels.as_ref());
        labels.into_iter().flatten().map(|(key, value)| Wanted {
            namespace: &self.key.namespace,
            key,
            value,
        })
    }

    fn protects(&self, namespace: &str, labels: &Labels) -> bool {
        let selector = self.selector.as_ref();
        self.key.namespace == namespace
            && selector.is_some_and(|selector| label_selector::selects(selector, labels))
    }
}

/// Disruption budgets by their names.
pub type Budgets = BTreeMap<PodKey, Budget>;

/// An index of the cluster's budgets by which those of a pod are found from its labels.
#[derive(Default)]
struct BudgetIndex<'b> {
    /// Each budget under one of its `matchLabels`: the one that the fewest budgets have.
    by_label: HashMap<Wanted<'b>, Vec<&'b Budget>>,
    /// Budgets without `matchLabels`, by namespace.
    others: HashMap<&'b str, Vec<&'b Budget>>,
}

/// A label and its value in a namespace, as in a budget's `matchLabels`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Wanted<'b> {
    namespace: &'b str,
    key: &'b str,
    value: &'b str,
}

impl<'b> BudgetIndex<'b> {
    fn of(budgets: &'b Budgets) -> Self {
        let mut counts: HashMap<Wanted<'_>, usize> = HashMap::new();
        for wanted in budgets.values().flat_map(Budget::wanted) {
            *counts.entry(wanted).or_default() += 1;
        }
        let mut budget_index = Self::default();
        for budget in budgets.values() {
            let rarest = budget.wanted().min_by_key(|wanted| counts[wanted]);
            let alike = match rarest {
                Some(wanted) => budget_index.by_label.entry(wanted).or_default(),
                None => budget_index
                    .others
                    .entry(&budget.key.namespace)
                    .or_default(),
            };
            alike.push(budget);
        }
        budget_index
    }

    /// The budgets that protect a pod.
    fn protecting<'a>(&'a self, pod: &'a Demand) -> impl Iterator<Item = &'b Budget> + 'a {
        let namespace = &*pod.namespace;
        let by_label = pod.labels.iter().filter_map(move |(key, value)| {
            self.by_label.get(&Wanted {
                namespace,
                key,
                value,
            })
        });
        let all = by_label
            .chain(self.others.get(namespace))
            .flatten()
            .copied();
        all.filter(move |budget| budget.protects(namespace, &pod.labels))
    }

    /// Whether deleting a pod violates one of its budgets, together with the deletions in `asked`.
    fn violates(&self, asked: &mut HashMap<&'b PodKey, i32>, lower: &PreemptiblePod) -> bool {
        let mut violates = false;
        for budget in self.protecting(&lower.demand) {
            if !budget.disrupted.contains(&lower.key.name) {
                let asked = asked.entry(&budget.key).or_default();
                *asked += 1;
                violates |= *asked > budget.allowed;
            }
        }
        violates
    }
}

/// A decision to delete pods to make room for another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preemption {
    /// The node of the pods.
    pub node: String,
    /// The pods.
    pub victims: Vec<Victim>,
    /// How many of the deletions violate a budget.
    pub violating: usize,
}

/// A pod that is deleted to make room for another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victim {
    /// Namespace and name.
    pub key: PodKey,
    /// Its UID.
    pub uid: String,
    /// Its `metadata.generation`, for the `observedGeneration` of its condition.
    pub(crate) generation: Option<i64>,
}

/// Why no pods are deleted, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPreemption {
    /// The pod may not preempt.
    Never,
    /// It has a nominated node, and waits for pods that are being deleted there.
    Waits,
    /// Preemption makes no node feasible: on `helpless` nodes the pod would not fit even without
    /// all other pods, and on the others there are no suitable victims.
    Nowhere {
        /// All nodes.
        nodes: usize,
        /// Nodes on which preemption does not help.
        helpless: usize,
    },
}

impl fmt::Display for NoPreemption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("not eligible due to preemptionPolicy=Never."),
            Self::Waits => {
                f.write_str("not eligible due to a terminating pod on the nominated node.")
            }
            Self::Nowhere { nodes, helpless } => {
                let without = nodes - helpless;
                let mut phrases = vec![
                    (without, "No preemption victims found for incoming pod"),
                    (*helpless, "Preemption is not helpful for scheduling"),
                ];
                phrases.retain(|(count, _)| *count > 0);
                let phrases = phrases
                    .iter()
                    .map(|(count, text)| format!("{count} {text}"));
                let mut phrases: Vec<String> = phrases.collect();
                phrases.sort();
                write!(f, "0/{nodes} nodes are available: {}.", phrases.join(", "))
            }
        }
    }
}

/// Finds, for a pod that fits on no node, the node where preemption costs least, and its victims:
/// pods of a lower priority. The cost is compared by the number of victims that their
/// PodDisruptionBudgets protect, then by their highest priority, the sum of their priorities, their
/// number, and how long those of the highest priority have run, the shortest first. Afterwards the
/// snapshot is as before.
///
/// # Errors
/// No node has victims whose deletion makes room, or the pod may not preempt.
pub fn preempt(
    pod: &PodRequest,
    snapshot: &mut Snapshot,
    budgets: &Budgets,
) -> Result<Preemption, NoPreemption> {
    if !pod.may_preempt {
        return Err(NoPreemption::Never);
    }
    let (nodes, hopeful) = hopeful(pod, snapshot);
    let none = NoPreemption::Nowhere {
        nodes,
        helpless: nodes - hopeful.len(),
    };
    if snapshot.lowest_priority() >= Some(pod.priority) || hopeful.is_empty() {
        return Err(none);
    }
    let budget_index = BudgetIndex::of(budgets);
    let most = LEAST_CANDIDATES.max(nodes / SHARE_OF_NODES);
    let mut found = Vec::new();
    // In chunks, so that pods are not collected for more nodes than needed.
    for nodes in hopeful.chunks(most) {
        if found.len() == most {
            break;
        }
        let mut lower = lower_on(nodes, pod.priority, snapshot);
        for node in nodes {
            let lower = lower.remove(node).filter(|pods| !pods.is_empty());
            if found.len() < most
                && let Some(lower) = lower
            {
                found.extend(victims(pod, snapshot, &budget_index, *node, lower));
            }
        }
    }
    let best = found.into_iter().min_by_key(|(cost, _)| *cost);
    best.map(|(_, preemption)| preemption).ok_or(none)
}

/// Whether pods of lower priority are being deleted on the node where a place is kept for a pod, so
/// that it must not preempt others (upstream: `PodEligibleToPreemptOthers`). False if the node
/// cannot take the pod any more, even without all other pods.
pub(crate) fn awaits_victims(pod: &PodRequest, snapshot: &Snapshot, node: NodeId) -> bool {
    let Some(candidate) = snapshot.candidate(node) else {
        return false;
    };
    if !pod.may_preempt || !snapshot.has_victims(node, pod.priority) {
        return false;
    }
    let filters = Prepared::of(pod, snapshot);
    let first_obstacle = filters.first_obstacle(&candidate, &mut Plugins::default());
    first_obstacle.iter().all(|obstacle| !obstacle.lasting)
}

/// The pods of a lower priority on these nodes, by node.
fn lower_on(nodes: &[NodeId], priority: i32, snapshot: &Snapshot) -> ByNode {
    let mut found: ByNode = nodes.iter().map(|node| (*node, Vec::new())).collect();
    for (key, placed) in snapshot.lower_than(priority) {
        if let Some(pods) = found.get_mut(&placed.node()) {
            pods.push(placed.lower(key));
        }
    }
    found
}

/// Pods by node.
type ByNode = HashMap<NodeId, Vec<PreemptiblePod>, BuildHasherDefault<NumberHasher>>;

/// The number of nodes, and those on which every obstacle could be removed by ending pods.
fn hopeful(pod: &PodRequest, snapshot: &Snapshot) -> (usize, Vec<NodeId>) {
    let filters = Prepared::of(pod, snapshot);
    let mut refusing = Plugins::default();
    let (mut nodes, mut hopeful) = (0, Vec::new());
    for node in snapshot.candidates() {
        nodes += 1;
        let first_obstacle = filters.first_obstacle(&node, &mut refusing);
        if first_obstacle.iter().all(|obstacle| !obstacle.lasting) {
            hopeful.push(node.id);
        }
    }
    (nodes, hopeful)
}

fn fits(pod: &PodRequest, snapshot: &Snapshot, node: NodeId) -> bool {
    let Some(node) = snapshot.candidate(node) else {
        return false;
    };
    let filters = Prepared::of(pod, snapshot);
    let first_obstacle = filters.first_obstacle(&node, &mut Plugins::default());
    first_obstacle.is_empty()
}

/// The cost of a preemption, the most important part first.
type Cost = (usize, i32, i64, usize, Reverse<i64>);

/// The victims on one node: the pods of lower priority that must end so that the pod fits. Pods
/// that a budget protects are spared first, then those of higher priority, then the older ones.
fn victims(
    pod: &PodRequest,
    snapshot: &mut Snapshot,
    budget_index: &BudgetIndex<'_>,
    node: NodeId,
    mut lower: Vec<PreemptiblePod>,
) -> Option<(Cost, Preemption)> {
    lower.sort_by(|one, other| {
        (Reverse(one.priority), one.since, &one.key).cmp(&(
            Reverse(other.priority),
            other.since,
            &other.key,
        ))
    });
    let mut asked = HashMap::new();
    let mut sorted: Vec<(bool, PreemptiblePod)> = lower
        .into_iter()
        .map(|lower| (budget_index.violates(&mut asked, &lower), lower))
        .collect();
    sorted.sort_by_key(|(violates, _)| !violates);
    let off: Vec<_> = sorted
        .into_iter()
        .filter_map(|(violates, lower)| {
            let placed = snapshot.take(&lower.key)?;
            Some((violates, lower, placed))
        })
        .collect();
    let helps = fits(pod, snapshot, node);
    let mut ending = Vec::new();
    // All lower pods are off the node now. Each is put back, and taken off again only if the pod
    // would not fit beside it: the order of `sorted` decides which pods are spared.
    for (violates, lower, placed) in off {
        snapshot.restore(&lower.key, placed.clone());
        if helps && !fits(pod, snapshot, node) {
            snapshot.take(&lower.key);
            ending.push((violates, lower, placed));
        }
    }
    for (_, lower, placed) in &ending {
        snapshot.restore(&lower.key, placed.clone());
    }
    if !helps || ending.is_empty() {
        return None;
    }
    let violating = ending.iter().filter(|(violates, ..)| *violates).count();
    let ending: Vec<PreemptiblePod> = ending.into_iter().map(|(_, lower, _)| lower).collect();
    let preemption = Preemption {
        node: snapshot.name(node).to_owned(),
        violating,
        victims: ending
            .iter()
            .map(|lower| Victim {
                key: lower.key.clone(),
                uid: lower.uid.clone(),
                generation: lower.generation,
            })
            .collect(),
    };
    Some((cost(&ending, violating), preemption))
}

fn cost(ending: &[PreemptiblePod], violating: usize) -> Cost {
    let highest = ending.iter().map(|lower| lower.priority).max();
    let highest = highest.unwrap_or(i32::MIN);
    // Each pod counts, also where its priority is below zero.
    let weights = ending
        .iter()
        .map(|lower| i64::from(lower.priority) - i64::from(i32::MIN));
    let important = ending.iter().filter(|lower| lower.priority == highest);
    let oldest = important.map(|lower| lower.since).min().unwrap_or_default();
    (
        violating,
        highest,
        weights.sum(),
        ending.len(),
        Reverse(oldest),
    )
}
