//! `OwnerReferencesPermissionEnforcement`: a caller may tie an object's deletion to an owner only
//! if it may delete the object, and may block an owner's deletion only if it may set the owner's
//! finalizers. Disabled by default, as upstream.

use super::{Admitted, Operation, Plugin, Request};
use crate::authorize::{self, Resource};
use crate::object::{meta_text, metadata, metadata_mut};
use crate::path::Verb;
use master_client::BoxFuture;
use master_schema::error::ApiError;
use master_schema::validate::{Fields, items, text};
use serde_json::Value;

/// The plugin.
#[derive(Debug)]
pub(super) struct OwnerReferencesPermissionEnforcement;

impl Plugin for OwnerReferencesPermissionEnforcement {
    fn name(&self) -> &'static str {
        "OwnerReferencesPermissionEnforcement"
    }

    fn concerns(&self, request: &Request<'_>) -> bool {
        request.operation != Operation::Delete && request.subresource.is_none()
    }

    fn check<'a>(
        &'a self,
        request: &'a Request<'a>,
        object: &'a Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let before = request
                .old
                .map_or(&[][..], |old| items(metadata(old), "ownerReferences"));
            let now = items(metadata(object), "ownerReferences");
            if now == before {
                return Ok(());
            }
            let (call, name) = (request.call, meta_text(object, "name"));
            let own = Resource {
                group: &call.kind.group,
                resource: &call.kind.plural,
                namespace: meta_text(object, "namespace"),
                name,
                ..Resource::default()
            };
            // The creator of a new object may set its owners.
            if request.old.is_some()
                && !authorize::may(&call.api, &call.user, "delete", own).await?
            {
                let text = "cannot set an ownerRef on a resource you can't delete: ";
                return Err(call.forbidden(name, text));
            }
            for owner in now
                .iter()
                .filter(|owner| blocks(owner) && !before.iter().any(|old| old == *owner))
            {
                let Some(owner) = owner.as_object() else {
                    continue;
                };
                if !may_block(request, owner, own.namespace).await? {
                    let text = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: ";
                    return Err(call.forbidden(name, text));
                }
            }
            Ok(())
        })
    }
}

/// Removes duplicate owners and warns the writer (upstream does so for every kind, with any
/// plugins).
pub(super) fn once(request: &Request<'_>, object: &mut Fields, warnings: &mut Vec<String>) {
    let Some(owners) = metadata_mut(object)
        .get_mut("ownerReferences")
        .and_then(Value::as_array_mut)
    else {
        return;
    };
    let mut twice = Vec::new();
    for (index, owner) in owners.iter().enumerate() {
        if owners[..index].contains(owner) {
            twice.push(
                owner
                    .get("uid")
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned(),
            );
        }
    }
    if twice.is_empty() {
        return;
    }
    let mut kept: Vec<Value> = Vec::new();
    for owner in std::mem::take(owners) {
        if !kept.contains(&owner) {
            kept.push(owner);
        }
    }
    *owners = kept;
    // Of a patch, only the result is checked.
    let when = if request.call.target.verb == Verb::Patch {
        " after mutating admission happens"
    } else {
        ""
    };
    warnings.push(format!(
        ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may \
         reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
        twice.join(", ")
    ));
}

fn blocks(owner: &Value) -> bool {
    owner.get("blockOwnerDeletion") == Some(&Value::Bool(true))
}

async fn may_block(
    request: &Request<'_>,
    owner: &Fields,
    namespace: &str,
) -> Result<bool, ApiError> {
    let call = request.call;
    let group = text(owner, "apiVersion")
        .rsplit_once('/')
        .map_or("", |(group, _)| group);
    let kinds = call.api.inner.registry.kinds();
    let Some(kind) = kinds
        .iter()
        .find(|kind| kind.group == group && kind.kind == text(owner, "kind"))
    else {
        return Ok(false);
    };
    let resource = Resource {
        group,
        resource: &kind.plural,
        subresource: "finalizers",
        namespace: if kind.namespaced { namespace } else { "" },
        name: text(owner, "name"),
    };
    authorize::may(&call.api, &call.user, "update", resource).await
}
