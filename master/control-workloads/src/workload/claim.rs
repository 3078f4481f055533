//! Adoption and release of objects: a workload controls the objects that its selector matches, by
//! their controller reference.
//!
//! Guarantees: an object that another owner controls is never changed; an orphan is adopted only by
//! an owner that exists in the API at that moment and is not being deleted.

use super::kept::{Kept, Selects, controller, is_leaving};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use master_client::{ApiError, Key, Object, Patch, Reason};
use master_control::writer::Writer;
use serde_json::json;

/// An object that a workload may control.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Its key.
    pub key: &'a Key,
    /// Its UID.
    pub uid: &'a str,
    /// UID of its controller; `None` for an orphan.
    pub controller: Option<&'a str>,
    /// Whether it is being deleted.
    pub leaves: bool,
}

/// A change of an object's controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnerChange {
    /// The owner adopts an orphan with this UID.
    Adopt(Key, String),
    /// The owner releases an object with this UID.
    Release(Key, String),
}

impl OwnerChange {
    /// The change that an object needs, if any. `wanted`: whether the owner's selector matches it.
    pub fn of(owner: &ObjectMeta, object: Candidate<'_>, wanted: bool) -> Option<Self> {
        let about = || (object.key.clone(), object.uid.to_owned());
        if is_leaving(owner) {
            return None;
        }
        match object.controller {
            None if wanted && !object.leaves => {
                let (key, uid) = about();
                Some(Self::Adopt(key, uid))
            }
            Some(uid) if owner.uid.as_deref() == Some(uid) && !wanted => {
                let (key, uid) = about();
                Some(Self::Release(key, uid))
            }
            Some(_) | None => None,
        }
    }

    /// The change that a kept object needs, for a workload.
    pub fn of_kept<T: Object + Selects, C: Object>(
        owner: &T,
        key: &Key,
        object: &Kept<C>,
    ) -> Option<Self> {
        let meta = object.0.metadata();
        let candidate = Candidate {
            key,
            uid: meta.uid.as_deref().unwrap_or_default(),
            controller: controller(meta).map(|owner| owner.uid.as_str()),
            leaves: is_leaving(meta),
        };
        let wanted = owner.wants(&meta.labels.clone().unwrap_or_default());
        Self::of(owner.metadata(), candidate, wanted)
    }

    /// Carries out the change of an object of kind `T` for an owner of kind `O`.
    ///
    /// # Errors
    /// As the API answers; a conflict where the owner is another by now or is being deleted.
    pub async fn carry_out<O: Object, T: Object>(
        &self,
        writer: &Writer,
        owner: &OwnerReference,
    ) -> Result<(), ApiError> {
        self.carry_out_with::<O, T>(writer, owner, &[]).await
    }

    /// As [`Self::carry_out`]; an adopted object gets these finalizers in the same write.
    ///
    /// # Errors
    /// As [`Self::carry_out`].
    pub async fn carry_out_with<O: Object, T: Object>(
        &self,
        writer: &Writer,
        owner: &OwnerReference,
        finalizers: &[&str],
    ) -> Result<(), ApiError> {
        match self {
            Self::Adopt(object, uid) => adopt::<O, T>(writer, owner, object, uid, finalizers).await,
            Self::Release(object, uid) => release::<T>(writer, &owner.uid, object, uid).await,
        }
    }
}

/// Makes an owner the controller of an orphan with this UID.
async fn adopt<O: Object, T: Object>(
    writer: &Writer,
    owner: &OwnerReference,
    orphan: &Key,
    uid: &str,
    finalizers: &[&str],
) -> Result<(), ApiError> {
    let known: O = writer.client().get(orphan.namespace(), &owner.name).await?;
    let meta = known.metadata();
    if meta.uid.as_deref() != Some(&owner.uid) || is_leaving(meta) {
        let text = format!("{} {} is gone or is being deleted", O::KIND, owner.name);
        return Err(ApiError::new(Reason::Conflict, text));
    }
    let mut patch = json!({"metadata": {"uid": uid, "ownerReferences": [owner]}});
    if !finalizers.is_empty() {
        patch["metadata"]["finalizers"] = json!(finalizers);
    }
    writer
        .patch::<T>(orphan, &Patch::Strategic(patch))
        .await
        .map(drop)
}

/// Ends an owner's control of an object; a missing object is no error.
async fn release<T: Object>(
    writer: &Writer,
    owner: &str,
    object: &Key,
    uid: &str,
) -> Result<(), ApiError> {
    let reference = json!({"$patch": "delete", "uid": owner});
    let patch = json!({"metadata": {"uid": uid, "ownerReferences": [reference]}});
    match writer.patch::<T>(object, &Patch::Strategic(patch)).await {
        Err(error) if error.is_not_found() => Ok(()),
        other => other.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use jiff::Timestamp;

    #[test]
    fn only_matching_orphans_are_adopted_and_only_own_objects_released() {
        let key = Key::new("default", "object");
        for (wanted, owner_leaves, leaves) in (0..8).map(|n| (n & 1 != 0, n & 2 != 0, n & 4 != 0)) {
            let owner = ObjectMeta {
                uid: Some("me".to_owned()),
                deletion_timestamp: owner_leaves.then_some(Time(Timestamp::UNIX_EPOCH)),
                ..ObjectMeta::default()
            };
            let change = |controller| {
                let object = Candidate {
                    key: &key,
                    uid: "o",
                    controller,
                    leaves,
                };
                OwnerChange::of(&owner, object, wanted)
            };
            assert_eq!(change(Some("other")), None);
            let release = OwnerChange::Release(key.clone(), "o".to_owned());
            let released = !wanted && !owner_leaves;
            assert_eq!(change(Some("me")), released.then_some(release));
            let adopt = OwnerChange::Adopt(key.clone(), "o".to_owned());
            let adopted = wanted && !owner_leaves && !leaves;
            assert_eq!(change(None), adopted.then_some(adopt));
        }
    }
}
