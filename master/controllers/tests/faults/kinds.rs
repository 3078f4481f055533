//! The kinds that take part, and how their objects are passed to the stores of a controller.

use config_kube::FromJson;
use config_kube::k8s_openapi::Resource as _;
use config_kube::k8s_openapi::api::apps::v1::{
    ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet,
};
use config_kube::k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use config_kube::k8s_openapi::api::batch::v1::{CronJob, Job};
use config_kube::k8s_openapi::api::coordination::v1::Lease;
use config_kube::k8s_openapi::api::core::v1::{
    Node, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota,
};
use config_kube::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use config_kube::k8s_openapi::api::scheduling::v1::PriorityClass;
use config_kube::k8s_openapi::api::storage::v1::StorageClass;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use master_claims::{Claim, Class, Volume};
use master_client::{Change, Gone, Key, Meta, OwnerRef, PartialObject};
use master_control::setup::TestStores;
use master_control::views::node::NodeView;
use master_control::views::pod::PodView;
use master_control_cluster::in_use::{ClaimView, VolumeView};
use master_control_cluster::quota::QuotaView;
use master_control_nodes::node_lifecycle::LeaseView;
use master_control_workloads::disruption_budget::Budget;
use master_control_workloads::stateful_set::OwnedClaim;
use master_control_workloads::workload::kept::Kept;
use master_control_workloads::workload::node_facts::NodeFacts;
use master_control_workloads::workload::pod::OwnedPod;
use std::sync::Arc;

/// Those that the controllers of workloads follow: the first of [`KINDS`].
pub(crate) const OF_WORKLOADS: usize = 9;
/// Those that the control plane of these workloads follows.
pub(crate) const OF_MACHINES: usize = 10;

macro_rules! kinds {
    ($($name:ident $plural:literal $group:literal $kind:ty => $($view:ty),*;)+) => {
        /// The kinds that are followed, by their plurals.
        pub(crate) const KINDS: &[&str] = &[$($plural),+];

        /// An object of any of them.
        #[derive(Debug, Clone)]
        pub(crate) enum Any { $($name(Arc<$kind>)),+ }

        impl Any {
            pub(crate) fn meta(&self) -> &ObjectMeta {
                match self { $(Self::$name(object) => &object.metadata),+ }
            }

            pub(crate) fn uid(&self) -> &str {
                self.meta().uid.as_deref().unwrap_or_default()
            }

            pub(crate) fn name(&self) -> &str {
                self.meta().name.as_deref().unwrap_or_default()
            }

            /// Namespace and name, as the store's keys have them.
            pub(crate) fn place(&self) -> String {
                let meta = self.meta();
                let namespace = meta.namespace.iter();
                let parts: Vec<&str> = namespace.chain(&meta.name).map(String::as_str).collect();
                parts.join("/")
            }

            /// Passes on that it was added or changed, or `gone`: deleted at a resource version.
            /// Returns the keys that this concerns.
            pub(crate) fn show(&self, stand: &mut TestStores, gone: Option<u64>) -> Vec<Key> {
                let mut keys = Vec::new();
                match self {
                    $(Self::$name(object) => {
                        $(if stand.follows::<$view>() {
                            keys.extend(match gone {
                                None => stand.see::<$view>((**object).clone()),
                                Some(revision) => stand.miss::<$view>(object, revision),
                            });
                        })*
                        if stand.follows_every_kind() {
                            let change = match gone {
                                None => Change::Set(partial(&object.metadata)),
                                Some(_) => Change::Deleted(Gone::of(&object.metadata)),
                            };
                            keys.extend(stand.meet($group, <$kind>::KIND, &change));
                        }
                    })+
                }
                keys
            }
        }

        /// Restarts the follower of a kind with a list: it never sees the missed changes.
        pub(crate) fn relist(stand: &mut TestStores, plural: &str, objects: &[Any], revision: u64) -> Vec<Key> {
            let mut keys = Vec::new();
            match plural {
                $($plural => {
                    let all = || objects.iter().filter_map(|any| {
                        if let Any::$name(object) = any { Some(&**object) } else { None }
                    });
                    $(if stand.follows::<$view>() {
                        keys.extend(stand.list::<$view>(all().cloned().collect(), revision));
                    })*
                    if stand.follows_every_kind() {
                        let change = Change::Listed(all().map(|one| partial(&one.metadata)).collect());
                        keys.extend(stand.meet($group, <$kind>::KIND, &change));
                    }
                })+
                _ => unreachable!("{plural}"),
            }
            keys
        }

        /// An object of a kind, from its stored form at a revision.
        pub(crate) fn read(plural: &str, stored: &[u8], revision: u64) -> Any {
            match plural {
                $($plural => {
                    let head = format!(r#"{{"kind":"{}","apiVersion":"{}","#, <$kind>::KIND, <$kind>::API_VERSION);
                    let whole = [head.as_bytes(), &stored[1..]].concat();
                    let mut object = <$kind>::from_json(&whole).unwrap();
                    object.metadata.resource_version = Some(revision.to_string());
                    object.metadata.managed_fields = None;
                    Any::$name(Arc::new(object))
                })+
                _ => unreachable!("{plural}"),
            }
        }

        /// The kind in a table of the store.
        pub(crate) fn of_table(table: &str) -> Option<&'static str> {
            let (plural, group) = table.split_once('.').unwrap_or((table, ""));
            match (plural, group) {
                $(($plural, $group) => Some($plural),)+
                _ => None,
            }
        }

        /// The path of objects of a kind; for namespaced kinds in `default`.
        pub(crate) fn path(plural: &str) -> String {
            match plural {
                $($plural => {
                    let root = if $group.is_empty() { "api" } else { "apis" };
                    let place = if OF_NO_NAMESPACE.contains(&plural) { "" } else { "namespaces/default/" };
                    format!("/{root}/{}/{place}{plural}", <$kind>::API_VERSION)
                })+
                _ => unreachable!("{plural}"),
            }
        }
    };
}

kinds! {
    Pod "pods" "" Pod => OwnedPod, PodView;
    ReplicaSet "replicasets" "apps" ReplicaSet => Kept<ReplicaSet>;
    Deployment "deployments" "apps" Deployment => Kept<Deployment>;
    StatefulSet "statefulsets" "apps" StatefulSet => Kept<StatefulSet>;
    DaemonSet "daemonsets" "apps" DaemonSet => Kept<DaemonSet>;
    Revision "controllerrevisions" "apps" ControllerRevision => Kept<ControllerRevision>;
    Job "jobs" "batch" Job => Kept<Job>;
    Budget "poddisruptionbudgets" "policy" PodDisruptionBudget => Budget;
    Node "nodes" "" Node => NodeFacts, NodeView;
    Lease "leases" "coordination.k8s.io" Lease => LeaseView;
    CronJob "cronjobs" "batch" CronJob => Kept<CronJob>;
    Claim "persistentvolumeclaims" "" PersistentVolumeClaim => Claim, OwnedClaim, ClaimView;
    Volume "persistentvolumes" "" PersistentVolume => Volume, VolumeView;
    Class "storageclasses" "storage.k8s.io" StorageClass => Class;
    Quota "resourcequotas" "" ResourceQuota => QuotaView;
    Scaler "horizontalpodautoscalers" "autoscaling" HorizontalPodAutoscaler => Kept<HorizontalPodAutoscaler>;
    Priority "priorityclasses" "scheduling.k8s.io" PriorityClass => ;
}

/// Kinds whose objects have no namespace.
const OF_NO_NAMESPACE: &[&str] = &[
    "nodes",
    "persistentvolumes",
    "storageclasses",
    "priorityclasses",
];

/// An object's metadata, for controllers that follow all kinds.
fn partial(meta: &ObjectMeta) -> PartialObject {
    let owner = |owner: &OwnerReference| OwnerRef {
        api_version: owner.api_version.clone(),
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
        block: owner.block_owner_deletion.unwrap_or_default(),
    };
    let owners = meta.owner_references.iter().flatten();
    let metadata = Meta {
        name: meta.name.clone().unwrap_or_default(),
        namespace: meta.namespace.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
        deletion_timestamp: meta
            .deletion_timestamp
            .as_ref()
            .map(|time| time.0.to_string()),
        finalizers: meta.finalizers.clone().unwrap_or_default(),
        owner_references: owners.map(owner).collect(),
    };
    PartialObject { metadata }
}
