//! Adoption and release: an owner's selector says which objects it wants, their controller reference who has them.
//!
//! Guarantees: an object that another owner controls is never touched; an orphan is adopted only by an owner that the API
//! itself says is there and is not being deleted.

use super::kept::is_leaving;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use master_client::{ApiError, Key, Object, Patch, Reason};
use master_control::writer::Writer;
use serde_json::json;

/// How an object stands to an owner that may want it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// It belongs to the owner.
    Own,
    /// It is an orphan that the owner takes.
    Adopt,
    /// It belongs to the owner, which doesn't want it any more.
    Release,
    /// It is none of the owner's business.
    Foreign,
}

/// The claim on an object by its controller's UID, by whether the owner's selector wants it, and by whether owner and
/// object are being deleted.
pub fn claim(
    controller: Option<&str>,
    own: &str,
    wanted: bool,
    owner_leaves: bool,
    object_leaves: bool,
) -> Claim {
    match controller {
        Some(uid) if uid != own => Claim::Foreign,
        Some(_) if wanted => Claim::Own,
        Some(_) if owner_leaves => Claim::Foreign,
        Some(_) => Claim::Release,
        None if owner_leaves || object_leaves || !wanted => Claim::Foreign,
        None => Claim::Adopt,
    }
}

/// Makes an owner the controller of an orphan.
///
/// # Errors
/// As the API answers; a conflict where the owner is another or is being deleted.
pub async fn adopt<O: Object, T: Object>(
    writer: &Writer,
    owner: &OwnerReference,
    orphan: &Key,
    uid: &str,
) -> Result<(), ApiError> {
    let known: O = writer.client().get(orphan.namespace(), &owner.name).await?;
    let meta = known.metadata();
    if meta.uid.as_deref() != Some(&owner.uid) || is_leaving(meta) {
        let text = format!("{} {} is gone or is being deleted", O::KIND, owner.name);
        return Err(ApiError::new(Reason::Conflict, text));
    }
    let patch = json!({"metadata": {"uid": uid, "ownerReferences": [owner]}});
    writer
        .patch::<T>(orphan, &Patch::Strategic(patch))
        .await
        .map(drop)
}

/// Ends an owner's control of an object.
///
/// # Errors
/// As the API answers; none where the object is gone.
pub async fn release<T: Object>(
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

    #[test]
    fn only_matching_orphans_are_adopted_and_only_own_objects_released() {
        for (wanted, owner, object) in (0..8).map(|n| (n & 1 != 0, n & 2 != 0, n & 4 != 0)) {
            let claims = |controller| claim(controller, "me", wanted, owner, object);
            assert_eq!(claims(Some("other")), Claim::Foreign);
            let expected = match (wanted, owner) {
                (true, _) => Claim::Own,
                (false, true) => Claim::Foreign,
                (false, false) => Claim::Release,
            };
            assert_eq!(claims(Some("me")), expected);
            let adopts = wanted && !owner && !object;
            assert_eq!(claims(None) == Claim::Adopt, adopts);
            assert!(adopts || claims(None) == Claim::Foreign);
        }
    }
}
