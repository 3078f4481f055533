//! Preemption: which pods of lower priority would have to end so that a pod finds a node (upstream:
//! `DefaultPreemption`).

use crate::key::PodKey;
use crate::node::NodeId;
use crate::plugins::{Plugins, Prepared};
use crate::request::PodRequest;
use crate::snapshot::{Lower, Snapshot};
use crate::terms::Labels;
use config_kube::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use config_kube::label_selector;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// Nodes with victims among which the best is chosen (upstream: 100, or a tenth of all).
const LEAST_CANDIDATES: usize = 100;
/// See [`LEAST_CANDIDATES`].
const SHARE_OF_NODES: usize = 10;

/// A disruption budget.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    pub(crate) key: PodKey,
    selector: Option<LabelSelector>,
    allowed: i32,
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
        }
    }

    fn protects(&self, namespace: &str, labels: &Labels) -> bool {
        let selector = self.selector.as_ref();
        self.key.namespace == namespace
            && selector.is_some_and(|selector| label_selector::selects(selector, labels))
    }
}

/// Disruption budgets by their names.
pub type Budgets = BTreeMap<PodKey, Budget>;

/// Pods that are to end for another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preemption {
    /// The node on which they are.
    pub node: String,
    /// The pods.
    pub victims: Vec<Victim>,
    /// How many of them their budgets protect.
    pub violating: usize,
}

/// A pod that is to end for another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victim {
    /// Which pod.
    pub key: PodKey,
    /// Its UID.
    pub uid: String,
    /// Its `metadata.generation`, for the `observedGeneration` of its condition.
    pub(crate) generation: Option<i64>,
}

/// Why no pods are to end, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPreemption {
    /// The pod may not preempt.
    Never,
    /// It has a node already, and waits for pods that are ending there.
    Waits,
    /// Preemption makes no node feasible: on `helpless` nodes the pod would not fit whichever pods
    /// ended, and on the others there are no pods that may be ended for it.
    Nowhere {
        /// All nodes.
        nodes: usize,
        /// Nodes on which it does not help.
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
/// On no node are there victims that make room, or the pod may not preempt.
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
    let mut lower: HashMap<NodeId, Vec<Lower>> = HashMap::new();
    for pod in snapshot.lower_than(pod.priority) {
        lower.entry(pod.node).or_default().push(pod);
    }
    let most = LEAST_CANDIDATES.max(nodes / SHARE_OF_NODES);
    let found = hopeful.into_iter().filter_map(|node| {
        let lower = lower.remove(&node)?;
        victims(pod, snapshot, budgets, node, lower)
    });
    let best = found.take(most).min_by_key(|(cost, _)| *cost);
    best.map(|(_, preemption)| preemption).ok_or(none)
}

/// The number of nodes, and those on which every obstacle could be removed by ending pods.
fn hopeful(pod: &PodRequest, snapshot: &Snapshot) -> (usize, Vec<NodeId>) {
    let filters = Prepared::of(pod, snapshot);
    let mut refusing = Plugins::default();
    let (mut nodes, mut hopeful) = (0, Vec::new());
    for node in snapshot.candidates() {
        nodes += 1;
        let against = filters.against(&node, &mut refusing);
        if against.iter().all(|obstacle| !obstacle.lasting) {
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
    let against = filters.against(&node, &mut Plugins::default());
    against.is_empty()
}

/// The cost of a preemption, the most important part first.
type Cost = (usize, i32, i64, usize, Reverse<i64>);

/// The victims on one node: the pods of lower priority that must end so that the pod fits. Pods
/// that a budget protects are spared first, then those of higher priority, then the older ones.
fn victims(
    pod: &PodRequest,
    snapshot: &mut Snapshot,
    budgets: &Budgets,
    node: NodeId,
    mut lower: Vec<Lower>,
) -> Option<(Cost, Preemption)> {
    lower.sort_by(|one, other| {
        (Reverse(one.priority), one.since, &one.key).cmp(&(
            Reverse(other.priority),
            other.since,
            &other.key,
        ))
    });
    let mut left: Budgets = budgets.clone();
    let mut sorted: Vec<(bool, Lower)> = lower
        .into_iter()
        .map(|lower| (violates(&mut left, &lower), lower))
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
    let ending: Vec<Lower> = ending.into_iter().map(|(_, lower, _)| lower).collect();
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

fn cost(ending: &[Lower], violating: usize) -> Cost {
    let highest = ending.iter().map(|lower| lower.priority).max();
    let highest = highest.unwrap_or(i32::MIN);
    // Each pod counts, also where its priority is below nought.
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

/// Whether a pod's end violates one of its budgets, with those counted that were asked for before.
fn violates(left: &mut Budgets, lower: &Lower) -> bool {
    let demand = &lower.demand;
    let mut violates = false;
    for budget in left.values_mut() {
        if budget.protects(&demand.namespace, &demand.labels) {
            budget.allowed -= 1;
            violates |= budget.allowed < 0;
        }
    }
    violates
}
