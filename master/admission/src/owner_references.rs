//! `OwnerReferencesPermissionEnforcement`: a caller may tie an object's deletion to an owner only
//! if it may delete the object, and may block an owner's deletion only if it may set the owner's
//! finalizers. Disabled by default, as upstream.

use crate::plugin::{Admitted, Operation, Plugin, Request};
use crate::plugin_services::PluginServices;
use master_auth::Authorizer;
use master_client::BoxFuture;
use master_rbac::Resource;
use master_schema::error::ApiError;
use master_schema::object::{meta_text, metadata};
use master_schema::served::Kinds;
use master_schema::validate::{Fields, items, text};
use serde_json::Value;
use std::collections::HashSet;
use std::sync::Arc;

/// The plugin.
#[derive(Debug)]
pub(crate) struct OwnerReferencesPermissionEnforcement {
    authorizer: Arc<Authorizer>,
    kinds: Arc<Kinds>,
}

impl OwnerReferencesPermissionEnforcement {
    pub(crate) fn new(parts: &PluginServices) -> Self {
        Self {
            authorizer: parts.authorizer.clone(),
            kinds: parts.kinds.clone(),
        }
    }
}

impl Plugin for OwnerReferencesPermissionEnforcement {
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
            let name = meta_text(object, "name");
            let own = Resource {
                group: &request.kind.group,
                resource: &request.kind.plural,
                namespace: meta_text(object, "namespace"),
                name,
                ..Resource::default()
            };
            // The creator of a new object may set its owners.
            if request.old.is_some() && !self.authorizer.may(request.user, "delete", own).await? {
                let text = "cannot set an ownerRef on a resource you can't delete: ";
                return Err(request.forbidden(name, text));
            }
            let known: HashSet<&Value> = before.iter().collect();
            for owner in now
                .iter()
                .filter(|owner| blocks(owner) && !known.contains(owner))
            {
                let Some(owner) = owner.as_object() else {
                    continue;
                };
                if !self.may_block(request, owner, own.namespace).await? {
                    let text = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: ";
                    return Err(request.forbidden(name, text));
                }
            }
            Ok(())
        })
    }
}

fn blocks(owner: &Value) -> bool {
    owner.get("blockOwnerDeletion") == Some(&Value::Bool(true))
}

impl OwnerReferencesPermissionEnforcement {
    async fn may_block(
        &self,
        request: &Request<'_>,
        owner: &Fields,
        namespace: &str,
    ) -> Result<bool, ApiError> {
        let group = text(owner, "apiVersion")
            .rsplit_once('/')
            .map_or("", |(group, _)| group);
        let registry = self.kinds.now();
        let Some(kind) = registry
            .kinds()
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
        self.authorizer.may(request.user, "update", resource).await
    }
}
