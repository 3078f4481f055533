//! Steps of the workload controllers, each for one object: a step is carried out only if the object
//! still has the UID that was planned for.

use super::claim::OwnerChange;
use super::kept::Kept;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use master_client::{Key, Object, Store};
use master_control::controller::Plan;
use std::sync::Arc;

/// A step for an object with a UID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action<S> {
    /// The object.
    pub key: Key,
    /// Its UID.
    pub uid: String,
    /// The action.
    pub step: S,
}

impl<S> Action<S> {
    /// The plan of a workload: adoptions and releases first, as all counts depend on them; without
    /// any, what `plan` returns.
    pub fn after_owners(
        key: &Key,
        meta: &ObjectMeta,
        changes: &[OwnerChange],
        step: impl Fn(OwnerChange) -> S,
        plan: impl FnOnce() -> Plan<S>,
    ) -> Plan<Self> {
        let steps = if changes.is_empty() {
            plan()
        } else {
            Plan::all(changes.iter().cloned().map(step).collect())
        };
        Self::plan(key, meta, steps)
    }

    /// The same plan, with each step for the object with this metadata.
    pub fn plan(key: &Key, meta: &ObjectMeta, steps: Plan<S>) -> Plan<Self> {
        let uid = meta.uid.clone().unwrap_or_default();
        let action = |step| Self {
            key: key.clone(),
            uid: uid.clone(),
            step,
        };
        Plan {
            actions: steps.actions.into_iter().map(action).collect(),
            requeue: steps.requeue,
        }
    }
}

/// The object with this key and UID; `None` if it is gone, or if another object has its name by
/// now.
pub fn current<T: Object>(store: &Store<Kept<T>>, key: &Key, uid: &str) -> Option<Arc<Kept<T>>> {
    let object = store.get(key)?;
    (object.metadata().uid.as_deref() == Some(uid)).then_some(object)
}
