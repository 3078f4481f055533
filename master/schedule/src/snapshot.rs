//! The scheduler's view of the cluster: nodes, and the pods on them or assumed there.

use crate::node::{HostPort, NodeInfo};
use crate::request::{Demand, PodRequest};
use crate::resources::Resources;
use config_kube::k8s_openapi::api::core::v1::Pod;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

/// A pod's namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl PodKey {
    /// The key of a pod.
    pub fn of(pod: &Pod) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Self {
            namespace: text(&pod.metadata.namespace),
            name: text(&pod.metadata.name),
        }
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The sum of what the pods of one node use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) pods: usize,
    pub(crate) needed: Resources,
    pub(crate) scored: Resources,
    pub(crate) ports: Vec<HostPort>,
    /// Replicas by owner.
    pub(crate) replicas: HashMap<String, usize>,
}

impl Load {
    fn add(&mut self, pod: &Demand) {
        self.pods += 1;
        self.needed.add(&pod.needed);
        self.scored.add(&pod.scored);
        self.ports.extend(pod.ports.iter().cloned());
        if let Some(owner) = &pod.owner {
            *self.replicas.entry(owner.clone()).or_default() += 1;
        }
    }

    fn remove(&mut self, pod: &Demand) {
        self.pods = self.pods.saturating_sub(1);
        self.needed.remove(&pod.needed);
        self.scored.remove(&pod.scored);
        for port in &pod.ports {
            if let Some(at) = self.ports.iter().position(|taken| taken == port) {
                self.ports.swap_remove(at);
            }
        }
        if let Some(owner) = &pod.owner
            && let Some(count) = self.replicas.get_mut(owner)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.replicas.remove(owner);
            }
        }
    }
}

/// A node and its load. The load may arrive before its node: pods and nodes are followed
/// separately.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NodeSlot {
    pub(crate) info: Option<NodeInfo>,
    pub(crate) load: Load,
}

#[derive(Debug, Clone, PartialEq)]
struct Placed {
    node: Arc<str>,
    uid: Box<str>,
    demand: Arc<Demand>,
    assumed: bool,
}

/// Nodes and placed pods. Invariant: the load of each node is the sum of the placed pods on it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    nodes_with_load: BTreeMap<Arc<str>, NodeSlot>,
    placed: HashMap<PodKey, Placed>,
}

impl Snapshot {
    /// Adds or updates a node; returns whether pods may fit now that did not before.
    pub fn set_node(&mut self, info: NodeInfo) -> bool {
        let slot = self
            .nodes_with_load
            .entry(info.name.as_str().into())
            .or_default();
        let changed = slot.info.as_ref() != Some(&info);
        slot.info = Some(info);
        changed
    }

    /// Removes a node. Its pods count until they are removed too.
    pub fn remove_node(&mut self, name: &str) {
        if let Some(slot) = self.nodes_with_load.get_mut(name) {
            slot.info = None;
            self.drop_empty(name);
        }
    }

    /// The names of all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes_with_load
            .values()
            .filter_map(|slot| slot.info.as_ref())
            .map(|info| info.name.as_str())
    }

    /// Places a pod on a node, as the API shows it.
    pub fn place(&mut self, request: PodRequest, node: &str) {
        self.put(request, node, false);
    }

    /// Assumes a pod on a node: it counts there from now on.
    pub fn assume(&mut self, request: PodRequest, node: &str) {
        self.put(request, node, true);
    }

    /// The bind of an assumed pod failed: it no longer counts, unless the API has shown it on a
    /// node meanwhile.
    pub fn forget(&mut self, key: &PodKey, uid: &str) {
        if self
            .placed
            .get(key)
            .is_some_and(|placed| placed.assumed && *placed.uid == *uid)
        {
            self.remove(key);
        }
    }

    /// Removes a pod that was deleted or has ended; returns whether it used a node's resources.
    pub fn remove(&mut self, key: &PodKey) -> bool {
        let Some(placed) = self.placed.remove(key) else {
            return false;
        };
        if let Some(slot) = self.nodes_with_load.get_mut(&placed.node) {
            slot.load.remove(&placed.demand);
            self.drop_empty(&placed.node);
        }
        true
    }

    /// Whether a pod counts on a node.
    pub fn holds(&self, key: &PodKey, uid: &str) -> bool {
        self.placed
            .get(key)
            .is_some_and(|placed| *placed.uid == *uid)
    }

    /// Keys of the pods that the API shows on a node.
    pub(crate) fn settled(&self) -> Vec<PodKey> {
        self.placed
            .iter()
            .filter(|(_, placed)| !placed.assumed)
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Nodes with their loads.
    pub(crate) fn nodes_with_load(&self) -> impl Iterator<Item = (&NodeInfo, &Load)> {
        self.nodes_with_load
            .values()
            .filter_map(|slot| Some((slot.info.as_ref()?, &slot.load)))
    }

    fn put(&mut self, request: PodRequest, node: &str, assumed: bool) {
        self.remove(&request.key);
        let PodRequest {
            key, uid, demand, ..
        } = request;
        let known = self
            .nodes_with_load
            .get_key_value(node)
            .map(|(name, _)| Arc::clone(name));
        let node = known.unwrap_or_else(|| node.into());
        self.nodes_with_load
            .entry(Arc::clone(&node))
            .or_default()
            .load
            .add(&demand);
        self.placed.insert(
            key,
            Placed {
                node,
                uid: uid.into(),
                demand,
                assumed,
            },
        );
    }

    fn drop_empty(&mut self, node: &str) {
        if self
            .nodes_with_load
            .get(node)
            .is_some_and(|slot| slot.info.is_none() && slot.load.pods == 0)
        {
            self.nodes_with_load.remove(node);
        }
    }
}
