//! Objects of workload kinds as stores keep them, with indexes by namespace and controller.

use config_kube::k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, ObjectMeta, OwnerReference,
};
use config_kube::label_selector;
use master_client::{Delta, Index, Key, Lookup, Object, View};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Deref;

/// Labels by key.
pub type Labels = BTreeMap<String, String>;

/// A whole object without the fields that every write changes (resource version, managed fields),
/// so that only changes that matter lead to plans.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kept<T>(pub T);

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Object + PartialEq + Debug + Sync> View for Kept<T> {
    type Object = T;

    fn read(mut object: T) -> Self {
        let meta = object.metadata_mut();
        meta.managed_fields = None;
        meta.resource_version = None;
        Self(object)
    }
}

/// Objects by namespace.
pub const fn by_namespace<T>() -> Index<Kept<T>> {
    Index::new("namespace", |key, _| vec![key.namespace.clone()])
}

/// Objects by the UID of their controller; orphans under [`orphans_of`] their namespace.
pub const fn by_controller<T: Object>() -> Index<Kept<T>> {
    Index::new("controller", |key, object| {
        let owner = controller(object.metadata());
        vec![owner.map_or_else(|| orphans_of(&key.namespace), |owner| owner.uid.clone())]
    })
}

/// The key under which a namespace's objects without a controller are found. No UID has this form.
pub fn orphans_of(namespace: &str) -> String {
    format!("{namespace}/")
}

/// The controller reference of an object.
pub fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    let owners = meta.owner_references.iter().flatten();
    owners
        .into_iter()
        .find(|owner| owner.controller == Some(true))
}

/// The reference by which an object controls others.
pub fn controls<T: Object>(object: &T) -> OwnerReference {
    let meta = object.metadata();
    OwnerReference {
        api_version: T::API_VERSION.to_owned(),
        kind: T::KIND.to_owned(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Whether an object is being deleted.
pub fn is_leaving(meta: &ObjectMeta) -> bool {
    meta.deletion_timestamp.is_some()
}

/// The key of an owner in the namespace of its object.
pub(crate) fn owner_key(namespace: &str, owner: &str) -> Key {
    Key::new(namespace, owner)
}

/// Whether a selector selects labels. Unlike elsewhere, an empty selector selects nothing: no
/// workload owns all pods.
pub fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
    !label_selector::is_empty(selector) && label_selector::selects(selector, labels)
}

/// A workload whose selector says which pods are its own.
pub trait Selects {
    /// Whether it wants pods with these labels.
    fn wants(&self, labels: &Labels) -> bool;
}

/// Implements [`Selects`] for kinds with a label selector in `spec.selector`: the types of
/// k8s-openapi share no trait for that.
macro_rules! select_by_spec {
    ($($kind:ty),+) => {
        $(impl Selects for $kind {
            fn wants(&self, labels: &Labels) -> bool {
                let spec = self.spec.as_ref();
                spec.is_some_and(|spec| selects(&spec.selector, labels))
            }
        })+
    };
}

select_by_spec!(DaemonSet, Deployment, ReplicaSet, StatefulSet);

/// Adds the workloads of a kind that a changed object concerns: its controller, or if it has none,
/// those whose selector matches.
pub fn concerned<T, C>(near: &Lookup<Kept<T>>, delta: &Delta<Kept<C>>, keys: &mut Vec<Key>)
where
    T: Object + Selects + PartialEq + Debug + Sync,
    C: Object + PartialEq + Debug + Sync,
{
    for object in [&delta.before, &delta.after].into_iter().flatten() {
        let meta = object.metadata();
        match controller(meta) {
            Some(owner) if owner.kind == T::KIND && owner.api_version == T::API_VERSION => {
                keys.push(owner_key(&delta.key.namespace, &owner.name));
            }
            Some(_) => {}
            None => {
                let labels = meta.labels.clone().unwrap_or_default();
                let all = near.get(&delta.key.namespace);
                let wanting = all.iter().filter(|(_, one)| one.wants(&labels));
                keys.extend(wanting.map(|(key, _)| (**key).clone()));
            }
        }
    }
    keys.dedup();
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn wanted(selector: Value) -> bool {
        let labels = [("app", "web"), ("tier", "front")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        selects(&serde_json::from_value(selector).unwrap(), &labels.into())
    }

    #[test]
    fn every_requirement_counts_and_none_selects_nothing() {
        assert!(!wanted(json!({})));
        assert!(wanted(json!({"matchLabels": {"app": "web"}})));
        assert!(!wanted(json!({"matchLabels": {"app": "web", "x": "y"}})));
        let need = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        assert!(wanted(need("app", "In", &["db", "web"])));
        assert!(!wanted(need("x", "In", &["db"])));
        assert!(wanted(need("x", "NotIn", &["db"])));
        assert!(!wanted(need("app", "NotIn", &["web"])));
        assert!(wanted(need("tier", "Exists", &[])));
        assert!(wanted(need("x", "DoesNotExist", &[])));
        assert!(!wanted(need("app", "DoesNotExist", &[])));
        assert!(!wanted(need("app", "Like", &["web"])));
    }
}
