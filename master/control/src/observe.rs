//! What the controllers see: of each object as much as they need, so that memory stays small in a large cluster.

pub use crate::bootstrap_signer::{ClusterInfo, SigningToken};
use crate::garbage::{Graph, ResourceId};
pub use crate::service_ranges::RangeFacts;
use config_kube::identity::NODE_LEASE_NAMESPACE;
use config_kube::k8s_openapi::api::core::v1::{NodeCondition, Taint, Toleration};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use jiff::Timestamp;
use master_client::{Change, Meta, Partial, Resource};
use master_rbac::Role;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The kinds that are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Nodes.
    Node,
    /// Leases of nodes.
    Lease,
    /// Pods.
    Pod,
    /// Namespaces.
    Namespace,
    /// Service accounts.
    ServiceAccount,
    /// Events.
    Event,
    /// Certificate signing requests.
    Request,
    /// Config maps with the root's certificate.
    RootCa,
    /// Bootstrap tokens.
    BootstrapToken,
    /// Secrets with tokens of service accounts.
    AccountToken,
    /// Resource quotas.
    Quota,
    /// Cluster roles.
    ClusterRole,
    /// The public kubeconfig of the cluster.
    ClusterInfo,
    /// Ranges of services' addresses.
    ServiceRange,
    /// The metadata of objects of every kind.
    Object,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Node,
        Self::Lease,
        Self::Pod,
        Self::Namespace,
        Self::ServiceAccount,
        Self::Event,
        Self::Request,
        Self::RootCa,
        Self::BootstrapToken,
        Self::AccountToken,
        Self::Quota,
        Self::ClusterRole,
        Self::ClusterInfo,
        Self::ServiceRange,
        Self::Object,
    ];
}

/// Namespace (empty for cluster-scoped kinds) and name.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// A key.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    pub(crate) fn of(meta: &ObjectMeta) -> Self {
        Self::new(
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        )
    }
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeFacts {
    /// UID.
    pub uid: String,
    /// Resource version, for writes that must not be lost on a change.
    pub version: String,
    /// When it came.
    pub created: Option<Timestamp>,
    /// Whether it is cordoned.
    pub cordoned: bool,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// Its conditions.
    pub conditions: Vec<NodeCondition>,
}

impl NodeFacts {
    /// A condition by its type.
    pub fn condition(&self, kind: &str) -> Option<&NodeCondition> {
        self.conditions
            .iter()
            .find(|condition| condition.type_ == kind)
    }

    /// Status of a condition; `Unknown` where there is none.
    pub fn status(&self, kind: &str) -> &str {
        self.condition(kind)
            .map_or("Unknown", |condition| condition.status.as_str())
    }
}

/// A pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodFacts {
    /// UID.
    pub uid: String,
    /// When it came.
    pub created: Option<Timestamp>,
    /// When it is to be gone, where it is being deleted.
    pub deleted: Option<Timestamp>,
    /// The node that it is bound to; empty where it is not.
    pub node: Arc<str>,
    /// Phase; `Pending` where there is none yet.
    pub phase: Arc<str>,
    /// Whether it counts as ready.
    pub ready: bool,
    /// Whether it is of the kubelet's own making.
    pub mirror: bool,
    /// Its tolerations of taints that drive pods out.
    pub tolerations: Arc<[Toleration]>,
    /// Names of the volume claims that it uses.
    pub claims: Vec<String>,
}

impl PodFacts {
    /// Whether its containers will never run again.
    pub fn ended(&self) -> bool {
        matches!(&*self.phase, "Succeeded" | "Failed")
    }
}

/// A namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamespaceFacts {
    /// UID.
    pub uid: String,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// Whether the content is still to be deleted.
    pub unfinished: bool,
}

/// An object that goes at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expiring {
    /// UID.
    pub uid: String,
    /// When it last mattered.
    pub last: Timestamp,
}

/// A certificate signing request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestFacts {
    /// UID.
    pub uid: String,
    /// When it came or was decided.
    pub last: Timestamp,
    /// Whether it is decided.
    pub decided: bool,
    /// Whether it asks for a kubelet's client certificate.
    pub kubelet: bool,
}

/// A bootstrap token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFacts {
    /// UID of its secret.
    pub uid: String,
    /// When its time is over; never where none.
    pub expires: Option<Timestamp>,
    /// What it signs with, where it may.
    pub signing: Option<SigningToken>,
}

/// A secret with the token of a service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountTokenFacts {
    /// UID of the secret.
    pub uid: String,
    /// Name of the account.
    pub account: String,
    /// Whether the token is there.
    pub filled: bool,
    /// Fingerprint of the certificate that is there.
    pub root: u64,
}

/// A resource quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaFacts {
    /// Whether its status tells of what its spec allows.
    pub settled: bool,
}

/// Everything that is seen.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// Nodes by name.
    pub nodes: BTreeMap<String, NodeFacts>,
    /// Renew times of node leases, by node.
    pub leases: BTreeMap<String, Option<Timestamp>>,
    /// Namespaces by name.
    pub namespaces: BTreeMap<String, NamespaceFacts>,
    /// Service accounts.
    pub service_accounts: BTreeSet<Key>,
    /// Events.
    pub events: BTreeMap<Key, Expiring>,
    /// Certificate signing requests by name.
    pub requests: BTreeMap<String, RequestFacts>,
    /// Fingerprints of the published root certificate, by namespace.
    pub root_cas: BTreeMap<String, u64>,
    /// Bootstrap tokens.
    pub bootstrap_tokens: BTreeMap<Key, TokenFacts>,
    /// Secrets with tokens of service accounts.
    pub account_tokens: BTreeMap<Key, AccountTokenFacts>,
    /// Resource quotas.
    pub quotas: BTreeMap<Key, QuotaFacts>,
    /// The public kubeconfig of the cluster, where there is one.
    pub cluster_info: Option<ClusterInfo>,
    /// Ranges of services' addresses by name.
    pub service_ranges: BTreeMap<String, RangeFacts>,
    /// Cluster roles by name, with their resource versions.
    pub cluster_roles: BTreeMap<String, (Role, String)>,
    /// The kinds that are served; a number in this list is a [`ResourceId`].
    pub resources: Arc<Vec<Resource>>,
    /// Kinds whose objects have not been listed yet.
    pub unlisted: BTreeSet<ResourceId>,
    /// Who owns whom.
    pub graph: Graph,
    /// UIDs of volume claims whose deletion waits for the pods that use them.
    pub claims_going: BTreeMap<Key, String>,
    /// UIDs of volumes whose deletion waits for the claims that are bound to them.
    pub volumes_going: BTreeMap<String, String>,
    /// Namespaces in which something that a quota counts may have become free, and how often it did.
    pub released: BTreeMap<String, u64>,
    pods: BTreeMap<Arc<Key>, PodFacts>,
    by_node: HashMap<Arc<str>, BTreeSet<Arc<Key>>>,
}

impl Observed {
    /// All pods.
    pub fn pods(&self) -> impl Iterator<Item = (&Key, &PodFacts)> {
        self.pods.iter().map(|(key, pod)| (&**key, pod))
    }

    /// The pods that are bound to a node.
    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = (&Key, &PodFacts)> {
        let keys = self.by_node.get(node).into_iter().flatten();
        keys.filter_map(|key| self.pods.get(key).map(|pod| (&**key, pod)))
    }

    /// Sets what is known of a pod, or that it is gone.
    pub fn set_pod(&mut self, key: Key, pod: Option<PodFacts>) {
        let before = self.pods.remove(&key);
        if before.as_ref().is_some_and(|before| !before.ended())
            && pod.as_ref().is_none_or(PodFacts::ended)
        {
            self.release(&key.namespace);
        }
        if let Some(before) = before
            && let Some(keys) = self.by_node.get_mut(&before.node)
        {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_node.remove(&before.node);
            }
        }
        if let Some(mut pod) = pod {
            let key = Arc::new(key);
            if !pod.node.is_empty() {
                let known = self
                    .by_node
                    .get_key_value(&pod.node)
                    .map(|(node, _)| Arc::clone(node));
                pod.node = known.unwrap_or(pod.node);
                self.by_node
                    .entry(Arc::clone(&pod.node))
                    .or_default()
                    .insert(Arc::clone(&key));
            }
            self.pods.insert(key, pod);
        }
    }

    /// Something that a quota counts may have become free. Nothing is remembered where there is no quota.
    fn release(&mut self, namespace: &str) {
        let first = Key::new(namespace, "");
        if self
            .quotas
            .range(first..)
            .next()
            .is_some_and(|(key, _)| key.namespace == namespace)
        {
            *self.released.entry(namespace.to_owned()).or_default() += 1;
        }
    }

    /// A namespace was counted as of what was seen then.
    pub(crate) fn recounted(&mut self, namespace: &str, seen: u64) {
        if self.released.get(namespace) == Some(&seen) {
            self.released.remove(namespace);
        }
    }

    /// Further kinds are served; the numbers of the new ones.
    pub(crate) fn serve(&mut self, resources: &[Resource]) -> Vec<ResourceId> {
        let known = Arc::clone(&self.resources);
        let new = resources
            .iter()
            .filter(|resource| !known.contains(resource));
        // Events own nothing, nobody owns them, and there are many.
        let new: Vec<&Resource> = new.filter(|resource| resource.plural != "events").collect();
        if new.is_empty() {
            return Vec::new();
        }
        let all: Vec<Resource> = known.iter().chain(new).cloned().collect();
        let numbers =
            (known.len()..all.len()).filter_map(|number| ResourceId::try_from(number).ok());
        let numbers: Vec<ResourceId> = numbers.collect();
        self.unlisted.extend(&numbers);
        self.resources = Arc::new(all);
        numbers
    }

    /// Objects of any kind changed.
    pub(crate) fn object(&mut self, resource: ResourceId, change: Change<Partial>) {
        match change {
            Change::Listed(all) => {
                let all: Vec<Meta> = all.into_iter().map(|object| object.metadata).collect();
                self.graph.listed(resource, &all);
                self.unlisted.remove(&resource);
                for namespace in self
                    .quotas
                    .keys()
                    .map(|key| key.namespace.clone())
                    .collect::<Vec<_>>()
                {
                    self.release(&namespace);
                }
                self.forget_going(resource);
                for meta in &all {
                    self.holds(resource, meta);
                }
            }
            Change::Set(object) => {
                self.graph.set(resource, &object.metadata);
                self.holds(resource, &object.metadata);
                // These may come to use less without going.
                if matches!(
                    self.plural(resource),
                    ("", "services" | "persistentvolumeclaims")
                ) {
                    self.release(&object.metadata.namespace);
                }
            }
            Change::Gone(object) => {
                let meta = object.metadata;
                self.graph.gone(&meta);
                self.release(&meta.namespace);
                self.holds(
                    resource,
                    &Meta {
                        deletion_timestamp: None,
                        ..meta
                    },
                );
            }
        }
    }

    fn plural(&self, resource: ResourceId) -> (&str, &str) {
        let found = self.resources.get(usize::from(resource));
        found.map_or(("", ""), |resource| {
            (resource.group.as_str(), resource.plural.as_str())
        })
    }

    fn forget_going(&mut self, resource: ResourceId) {
        match self.plural(resource) {
            ("", "persistentvolumeclaims") => self.claims_going.clear(),
            ("", "persistentvolumes") => self.volumes_going.clear(),
            _ => {}
        }
    }

    /// Remembers of volumes and claims whether their deletion waits for their users.
    fn holds(&mut self, resource: ResourceId, meta: &Meta) {
        let waits = |finalizer: &str| {
            meta.deletion_timestamp.is_some() && meta.finalizers.iter().any(|own| own == finalizer)
        };
        match self.plural(resource) {
            ("", "persistentvolumeclaims") => {
                let key = Key::new(&meta.namespace, &meta.name);
                if waits(crate::in_use::CLAIM) {
                    self.claims_going.insert(key, meta.uid.clone());
                } else {
                    self.claims_going.remove(&key);
                }
            }
            ("", "persistentvolumes") if waits(crate::in_use::VOLUME) => {
                self.volumes_going
                    .insert(meta.name.clone(), meta.uid.clone());
            }
            ("", "persistentvolumes") => {
                self.volumes_going.remove(&meta.name);
            }
            _ => {}
        }
    }

    pub(crate) fn cluster_info(&mut self, change: Change<ClusterInfo>) {
        self.cluster_info = match change {
            Change::Listed(all) => all.into_iter().next(),
            Change::Set(info) => Some(info),
            Change::Gone(_) => None,
        };
    }

    pub(crate) fn pod(&mut self, change: Change<(Key, PodFacts)>) {
        match change {
            Change::Listed(pods) => {
                (self.pods, self.by_node) = Default::default();
                for (key, pod) in pods {
                    self.set_pod(key, Some(pod));
                }
            }
            Change::Set((key, pod)) => self.set_pod(key, Some(pod)),
            Change::Gone((key, _)) => self.set_pod(key, None),
        }
    }

    pub(crate) fn service_account(&mut self, change: Change<Key>) {
        match change {
            Change::Listed(all) => self.service_accounts = all.into_iter().collect(),
            Change::Set(key) => {
                self.service_accounts.insert(key);
            }
            Change::Gone(key) => {
                self.service_accounts.remove(&key);
            }
        }
    }
}

/// The namespace whose leases are followed.
pub(crate) const LEASES: &str = NODE_LEASE_NAMESPACE;

/// A text, small enough to be kept for every namespace.
pub(crate) fn fingerprint(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Takes a change into a map.
pub(crate) fn apply<K: Ord, V>(change: Change<(K, V)>, map: &mut BTreeMap<K, V>) {
    match change {
        Change::Listed(all) => *map = all.into_iter().collect(),
        Change::Set((key, value)) => drop(map.insert(key, value)),
        Change::Gone((key, _)) => drop(map.remove(&key)),
    }
}
