//! The kinds that take part, and how the stores of a controller are shown their objects.

use config_kube::FromJson;
use config_kube::k8s_openapi::Resource as _;
use config_kube::k8s_openapi::api::apps::v1::{
    ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet,
};
use config_kube::k8s_openapi::api::batch::v1::Job;
use config_kube::k8s_openapi::api::coordination::v1::Lease;
use config_kube::k8s_openapi::api::core::v1::{Node, Pod};
use config_kube::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    ListMeta, ObjectMeta, OwnerReference,
};
use http::Request;
use http_body_util::BodyExt;
use master_client::{Change, Client, Gone, Key, Meta, OwnerRef, Partial, body};
use master_control::setup::Stand;
use master_control::views::node::NodeView;
use master_control::views::pod::PodView;
use master_control_nodes::node_lifecycle::LeaseView;
use master_control_workloads::disruption_budget::Budget;
use master_control_workloads::workload::kept::Kept;
use master_control_workloads::workload::node_facts::NodeFacts;
use master_control_workloads::workload::pod::OwnedPod;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::sync::Arc;

/// Those that the controllers of workloads follow: the first of [`KINDS`].
pub(crate) const OF_WORKLOADS: usize = 9;

macro_rules! kinds {
    ($($name:ident $plural:literal $group:literal $kind:ty => $($view:ty),+;)+) => {
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

            /// Shows that it came or changed, or that it is gone since a resource version; the keys
            /// that this concerns.
            pub(crate) fn show(&self, stand: &mut Stand, gone: Option<u64>) -> Vec<Key> {
                let mut keys = Vec::new();
                match self {
                    $(Self::$name(object) => {
                        $(if stand.follows::<$view>() {
                            keys.extend(match gone {
                                None => stand.see::<$view>((**object).clone()),
                                Some(revision) => stand.miss::<$view>(object, revision),
                            });
                        })+
                        if stand.follows_every_kind() {
                            let change = match gone {
                                None => Change::Set(partial(&object.metadata)),
                                Some(_) => Change::Deleted(Gone::of(&object.metadata)),
                            };
                            keys.extend(stand.meet(($group, <$kind>::KIND), &change));
                        }
                    })+
                }
                keys
            }
        }

        /// Restarts the follower of a kind with a list: it never sees the changes that it missed.
        pub(crate) fn relist(stand: &mut Stand, plural: &str, objects: &[Any], revision: u64) -> Vec<Key> {
            let mut keys = Vec::new();
            match plural {
                $($plural => {
                    let all = || objects.iter().filter_map(|any| {
                        if let Any::$name(object) = any { Some(&**object) } else { None }
                    });
                    $(if stand.follows::<$view>() {
                        keys.extend(stand.list::<$view>(all().cloned().collect(), revision));
                    })+
                    if stand.follows_every_kind() {
                        let change = Change::Listed(all().map(|one| partial(&one.metadata)).collect());
                        keys.extend(stand.meet(($group, <$kind>::KIND), &change));
                    }
                })+
                _ => unreachable!("{plural}"),
            }
            keys
        }

        /// An object of a kind, from an item of its list.
        fn read(plural: &str, item: &str) -> Any {
            match plural {
                $($plural => Any::$name(Arc::new(<$kind>::from_json(item.as_bytes()).unwrap())),)+
                _ => unreachable!("{plural}"),
            }
        }

        /// Where objects of a kind are served.
        fn path(plural: &str) -> String {
            match plural {
                $($plural => {
                    let root = if $group.is_empty() { "api" } else { "apis" };
                    format!("/{root}/{}/{plural}", <$kind>::API_VERSION)
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
}

/// An object's metadata, as those see it who follow every kind.
fn partial(meta: &ObjectMeta) -> Partial {
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
    Partial { metadata }
}

/// A list as the API answers it, its items as they are written.
#[derive(Deserialize)]
struct List<'a> {
    metadata: ListMeta,
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

/// Objects by what was written of them: few change between two lists, and the others are not read
/// again.
pub(crate) type Read = HashMap<Box<str>, Any>;

/// All objects of a kind, and at which resource version.
pub(crate) async fn list(api: &Client, plural: &str, read_before: &mut Read) -> (u64, Vec<Any>) {
    let request = Request::get(path(plural)).body(body("")).unwrap();
    let answer = api.call(request).await.into_body().collect().await.unwrap();
    let answer = answer.to_bytes();
    let list: List<'_> = serde_json::from_slice(&answer).unwrap();
    let known = std::mem::take(read_before);
    for item in &list.items {
        let any = known.get(item.get()).cloned();
        let any = any.unwrap_or_else(|| read(plural, item.get()));
        read_before.insert(item.get().into(), any);
    }
    let items = list
        .items
        .iter()
        .map(|item| read_before[item.get()].clone());
    let revision = list.metadata.resource_version.unwrap_or_default();
    (revision.parse().unwrap(), items.collect())
}

pub(crate) fn version(meta: &ObjectMeta) -> u64 {
    let version = meta.resource_version.as_deref();
    version.unwrap_or_default().parse().unwrap()
}
