//! The graph of the Node authorizer: which objects belong to which node, by bound pods, their
//! volumes, and objects that name the node.
//!
//! An index from each object to the nodes that reach it, so that a question costs one or two
//! look-ups however many pods there are. Of each bound pod it holds the node and the names that the
//! pod references, nothing else.

use super::feed::{Change, Follow};
use super::references;
use master_store::{Entry, Revision};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The followed tables, in the order of the functions below.
pub(super) const TABLES: &[&str] = &[
    "pods/",
    "persistentvolumes/",
    "volumeattachments.storage.k8s.io/",
    "resourceslices.resource.k8s.io/",
];
const PODS: usize = 0;
const VOLUMES: usize = 1;
const ATTACHMENTS: usize = 2;

/// Kinds of objects that pods reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    Secret,
    ConfigMap,
    ServiceAccount,
    Claim,
    ResourceClaim,
}

/// An object in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ref {
    kind: Kind,
    /// `namespace/name`.
    path: Arc<str>,
}

impl Ref {
    pub(super) fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self {
            kind,
            path: format!("{namespace}/{name}").into(),
        }
    }
}

#[derive(Debug)]
struct Pod {
    node: Arc<str>,
    /// The revision at which the pod was created: another revision is another pod of the same name.
    created: Revision,
    moves: bool,
    refs: Box<[Ref]>,
}

#[derive(Debug)]
struct Volume {
    claim: Ref,
    secrets: BTreeSet<Ref>,
}

/// Which objects belong to which node.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pods: HashMap<Box<str>, Pod>,
    /// For each object, how many pods of each node reference it.
    reach: HashMap<Ref, HashMap<Arc<str>, u32>>,
    nodes: HashMap<Arc<str>, u32>,
    volumes: HashMap<Box<str>, Volume>,
    /// The volumes that need a secret.
    volumes_of: HashMap<Ref, BTreeSet<Box<str>>>,
    attachments: HashMap<Box<str>, String>,
    slices: HashMap<Box<str>, String>,
}

impl Graph {
    /// Whether a pod is bound to a node.
    pub(super) fn has_pod(&self, node: &str, namespace: &str, name: &str) -> bool {
        self.pods
            .get(format!("{namespace}/{name}").as_str())
            .is_some_and(|pod| &*pod.node == node)
    }

    /// Whether a pod on a node references an object, directly or through a volume.
    pub(super) fn reaches(&self, node: &str, kind: Kind, namespace: &str, name: &str) -> bool {
        let wanted = Ref::new(kind, namespace, name);
        self.direct(node, &wanted)
            || self
                .volumes_of
                .get(&wanted)
                .into_iter()
                .flatten()
                .any(|volume| self.has_volume(node, volume))
    }

    /// Whether a pod on a node uses a persistent volume.
    pub(super) fn has_volume(&self, node: &str, name: &str) -> bool {
        self.volumes
            .get(name)
            .is_some_and(|volume| self.direct(node, &volume.claim))
    }

    /// Whether a volume attachment belongs to a node.
    pub(super) fn has_attachment(&self, node: &str, name: &str) -> bool {
        self.attachments.get(name).is_some_and(|own| own == node)
    }

    /// Whether a resource slice belongs to a node.
    pub(super) fn has_slice(&self, node: &str, name: &str) -> bool {
        self.slices.get(name).is_some_and(|own| own == node)
    }

    fn direct(&self, node: &str, wanted: &Ref) -> bool {
        self.reach
            .get(wanted)
            .is_some_and(|nodes| nodes.contains_key(node))
    }

    fn set_pod(&mut self, path: &str, entry: &Entry) {
        let is_settled = |pod: &Pod| pod.created == entry.created && !pod.moves;
        if self.pods.get(path).is_some_and(is_settled)
            && !references::may_have_ephemeral_containers(&entry.value.bytes())
        {
            return;
        }
        self.remove_pod(path);
        let Some(bound) = references::of_pod(&entry.value.bytes()) else {
            return;
        };
        let known = self
            .nodes
            .get_key_value(bound.node.as_str())
            .map(|(node, _)| node.clone());
        let node: Arc<str> = known.unwrap_or_else(|| bound.node.as_str().into());
        *self.nodes.entry(node.clone()).or_default() += 1;
        let mut refs = Vec::with_capacity(bound.refs.len());
        for wanted in bound.refs {
            let shared = self
                .reach
                .get_key_value(&wanted)
                .map_or(wanted, |(known, _)| known.clone());
            *self
                .reach
                .entry(shared.clone())
                .or_default()
                .entry(node.clone())
                .or_default() += 1;
            refs.push(shared);
        }
        let pod = Pod {
            node,
            created: entry.created,
            moves: bound.moves,
            refs: refs.into_boxed_slice(),
        };
        self.pods.insert(path.into(), pod);
    }

    fn remove_pod(&mut self, path: &str) {
        let Some(pod) = self.pods.remove(path) else {
            return;
        };
        for wanted in &pod.refs {
            if let Some(nodes) = self.reach.get_mut(wanted) {
                less(nodes, &pod.node);
                if nodes.is_empty() {
                    self.reach.remove(wanted);
                }
            }
        }
        less(&mut self.nodes, &pod.node);
    }

    fn set_volume(&mut self, name: &str, value: &[u8]) {
        self.remove_volume(name);
        let Some((claim, secrets)) = references::of_persistent_volume(value) else {
            return;
        };
        for secret in &secrets {
            self.volumes_of
                .entry(secret.clone())
                .or_default()
                .insert(name.into());
        }
        self.volumes.insert(name.into(), Volume { claim, secrets });
    }

    fn remove_volume(&mut self, name: &str) {
        let Some(volume) = self.volumes.remove(name) else {
            return;
        };
        for secret in &volume.secrets {
            if let Some(names) = self.volumes_of.get_mut(secret) {
                names.remove(name);
                if names.is_empty() {
                    self.volumes_of.remove(secret);
                }
            }
        }
    }

    /// Objects that are looked up by name alone.
    fn named(&mut self, table: usize) -> &mut HashMap<Box<str>, String> {
        if table == ATTACHMENTS {
            &mut self.attachments
        } else {
            &mut self.slices
        }
    }
}

fn less(counts: &mut HashMap<Arc<str>, u32>, node: &Arc<str>) {
    if let Some(count) = counts.get_mut(node) {
        *count -= 1;
        if *count == 0 {
            counts.remove(node);
        }
    }
}

impl Follow for Graph {
    fn apply(&mut self, change: Change) {
        let path = |table: usize, key: &Arc<str>| {
            key.strip_prefix(TABLES[table])
                .unwrap_or_default()
                .to_owned()
        };
        match change {
            Change::Reset => *self = Self::default(),
            Change::Set(PODS, entry) => self.set_pod(&path(PODS, &entry.key), &entry),
            Change::Deleted(PODS, key) => self.remove_pod(&path(PODS, &key)),
            Change::Set(VOLUMES, entry) => {
                self.set_volume(&path(VOLUMES, &entry.key), &entry.value.bytes());
            }
            Change::Deleted(VOLUMES, key) => self.remove_volume(&path(VOLUMES, &key)),
            Change::Set(table, entry) => {
                let name = path(table, &entry.key);
                match references::node_of(&entry.value.bytes()) {
                    Some(node) => drop(self.named(table).insert(name.into(), node)),
                    None => drop(self.named(table).remove(name.as_str())),
                }
            }
            Change::Deleted(table, key) => {
                drop(self.named(table).remove(path(table, &key).as_str()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(graph: &mut Graph, spec: &serde_json::Value) {
        let pod = json!({"metadata": {"name": "p", "namespace": "default"}, "spec": spec});
        graph.apply(Change::Set(
            PODS,
            Entry {
                key: "pods/default/p".into(),
                value: pod.to_string().into(),
                created: 1,
                modified: 1,
            },
        ));
    }

    #[test]
    fn a_node_reaches_the_secrets_of_ephemeral_containers_that_are_added_later() {
        let mut graph = Graph::default();
        let mut spec = json!({"nodeName": "n1", "containers": [{"name": "c"}]});
        set(&mut graph, &spec);
        let reaches =
            |graph: &Graph, node: &str| graph.reaches(node, Kind::Secret, "default", "debug");
        assert!(!reaches(&graph, "n1"));
        let from = json!([{"secretRef": {"name": "debug"}}]);
        spec["ephemeralContainers"] = json!([{"name": "e", "envFrom": from}]);
        set(&mut graph, &spec);
        assert!(reaches(&graph, "n1") && !reaches(&graph, "n2"));
    }
}
