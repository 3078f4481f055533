//! Preemption: chooses the pods of lower priority that are deleted so that a pod finds a node
//! (upstream: `DefaultPreemption`).

use crate::groups::NumberHasher;
use crate::key::PodKey;
use crate::node::NodeId;
use crate::nodes::{Candidate, Load};
use crate::plugins::{Plugins, PodMove, Prepared};
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

/// The best node is chosen among this many nodes with victims, or a tenth of the nodes where
/// preemption may help if that is more (upstream: `GetOffsetAndNumCandidates`).
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
    fn violates(&self, asked: &mut HashMap<&'b PodKey, i32>, lower: &PreemptiblePod<'_>) -> bool {
        let mut violates = false;
        for budget in self.protecting(lower.demand) {
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
/// number, and how long those of the highest priority have run, the shortest first.
///
/// # Errors
/// No node has victims whose deletion makes room, or the pod may not preempt.
pub fn preempt(
    pod: &PodRequest,
    snapshot: &Snapshot,
    budgets: &Budgets,
) -> Result<Preemption, NoPreemption> {
    if !pod.may_preempt {
        return Err(NoPreemption::Never);
    }
    let mut filters = Prepared::of(pod, snapshot);
    let (nodes, hopeful) = hopeful(&filters, snapshot);
    let nowhere = NoPreemption::Nowhere {
        nodes,
        helpless: nodes - hopeful.len(),
    };
    if snapshot.lowest_priority() >= Some(pod.priority) || hopeful.is_empty() {
        return Err(nowhere);
    }
    let budget_index = BudgetIndex::of(budgets);
    let enough = LEAST_CANDIDATES.max(hopeful.len() / SHARE_OF_NODES);
    // In two parts, as the pods of the first nodes are usually all that is needed.
    let (first, others) = hopeful.split_at(enough.min(hopeful.len()));
    let parts = [first, others].into_iter();
    let lower = parts.flat_map(|nodes| lower_on(nodes, pod.priority, snapshot));
    let found = lower.filter_map(|(node, lower)| {
        let node = snapshot.candidate(node)?;
        let mut dry_run = DryRun {
            filters: &mut filters,
            node,
            load: node.load.clone(),
        };
        dry_run.victims(&budget_index, lower)
    });
    let mut best: Option<(Cost, Preemption)> = None;
    for (at, (cost, preemption)) in found.enumerate() {
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, preemption));
        }
        // As upstream, the search goes on while each node has victims that violate a budget.
        let spares_budgets = best.as_ref().is_some_and(|(_, best)| best.violating == 0);
        if at + 1 >= enough && spares_budgets {
            break;
        }
    }
    best.map(|(_, preemption)| preemption).ok_or(nowhere)
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

/// Those of these nodes that have pods of a lower priority, with these pods.
fn lower_on<'s>(
    nodes: &[NodeId],
    priority: i32,
    snapshot: &'s Snapshot,
) -> Vec<(NodeId, Vec<PreemptiblePod<'s>>)> {
    if nodes.is_empty() {
        return Vec::new();
    }
    let mut found: ByNode<'s> = nodes.iter().map(|node| (*node, Vec::new())).collect();
    for (key, placed) in snapshot.lower_than(priority) {
        if let Some(pods) = found.get_mut(&placed.node()) {
            pods.push(placed.lower(key));
        }
    }
    let found = nodes.iter().map(|node| {
        let pods = found.remove(node).unwrap_or_default();
        (*node, pods)
    });
    found.filter(|(_, pods)| !pods.is_empty()).collect()
}

/// Pods by node.
type ByNode<'s> = HashMap<NodeId, Vec<PreemptiblePod<'s>>, BuildHasherDefault<NumberHasher>>;

/// The number of nodes, and those on which every obstacle could be removed by ending pods.
fn hopeful(filters: &Prepared<'_>, snapshot: &Snapshot) -> (usize, Vec<NodeId>) {
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

/// The cost of a preemption, the most important part first.
type Cost = (usize, i32, i64, usize, Reverse<i64>);

/// Preemption tried on one node, without the snapshot: on a copy of the node's load, and with
/// filters that follow each pod which is taken off or put back. So its cost grows with the pods of
/// this node only.
struct DryRun<'r, 's> {
    filters: &'r mut Prepared<'s>,
    node: Candidate<'s>,
    /// The node's load without the pods that are off.
    load: Load,
}

impl DryRun<'_, '_> {
    /// Whether the preemptor fits now.
    fn fits(&self) -> bool {
        let node = Candidate {
            id: self.node.id,
            info: self.node.info,
            load: &self.load,
        };
        let mut refusing = Plugins::default();
        self.filters.first_obstacle(&node, &mut refusing).is_empty()
    }

    fn take(&mut self, lower: &PreemptiblePod<'_>) {
        self.load.remove(lower.demand);
        self.follow(lower, -1);
    }

    fn put_back(&mut self, lower: &PreemptiblePod<'_>) {
        self.load.add(lower.demand);
        self.follow(lower, 1);
    }

    fn follow(&mut self, lower: &PreemptiblePod<'_>, change: i64) {
        self.filters.follow(&PodMove {
            node: self.node.id,
            pod: lower.demand,
            leaving: lower.leaving,
            change,
        });
    }

    /// The victims: the pods of lower priority that must end so that the pod fits. Pods that a
    /// budget protects are spared first, then those of higher priority, then the older ones.
    /// Afterwards the filters count all pods again.
    fn victims(
        &mut self,
        budget_index: &BudgetIndex<'_>,
        mut lower: Vec<PreemptiblePod<'_>>,
    ) -> Option<(Cost, Preemption)> {
        lower.sort_by(|one, other| {
            (Reverse(one.priority), one.since, one.key).cmp(&(
                Reverse(other.priority),
                other.since,
                other.key,
            ))
        });
        let mut asked = HashMap::new();
        let mut sorted: Vec<(bool, PreemptiblePod<'_>)> = lower
            .into_iter()
            .map(|lower| (budget_index.violates(&mut asked, &lower), lower))
            .collect();
        sorted.sort_by_key(|(violates, _)| !violates);
        for (_, lower) in &sorted {
            self.take(lower);
        }
        let helps = self.fits();
        let mut ending = Vec::new();
        // All lower pods are off the node now. Each is put back, and taken off again only if the
        // pod would not fit beside it: the order of `sorted` decides which pods are spared.
        for (violates, lower) in sorted {
            self.put_back(&lower);
            if helps && !self.fits() {
                self.take(&lower);
                ending.push((violates, lower));
            }
        }
        for (_, lower) in &ending {
            self.put_back(lower);
        }
        if !helps || ending.is_empty() {
            return None;
        }
        let violating = ending.iter().filter(|(violates, _)| *violates).count();
        let ending: Vec<PreemptiblePod<'_>> = ending.into_iter().map(|(_, lower)| lower).collect();
        let victims = ending.iter().map(|lower| Victim {
            key: lower.key.clone(),
            uid: lower.uid.to_owned(),
            generation: lower.generation,
        });
        let preemption = Preemption {
            node: self.node.info.name.clone(),
            violating,
            victims: victims.collect(),
        };
        Some((cost(&ending, violating), preemption))
    }
}

fn cost(ending: &[PreemptiblePod<'_>], violating: usize) -> Cost {
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
