//! `RoleEscalation`: a writer of roles and bindings can only grant rights that it has
//! (or may escalate, or bind).
//!
//! Always enabled. Runs after other plugins changed the object and before validation.

use crate::plugin::{Admitted, Operation, Plugin, Request};
use crate::plugin_services::PluginServices;
use config_kube::identity;
use master_auth::{Authorizer, who};
use master_client::BoxFuture;
use master_rbac::cover::escalation;
use master_rbac::{Binding, Resource, Role, RoleRef, Rule};
use master_schema::error::{ApiError, Reason};
use master_schema::object::{meta_text, metadata};
use master_schema::validate::{Fields, get};
use serde_json::Value;
use std::sync::Arc;

const GROUP: &str = "rbac.authorization.k8s.io";

/// The plugin.
#[derive(Debug)]
pub(crate) struct RoleEscalation {
    authorizer: Arc<Authorizer>,
}

impl RoleEscalation {
    pub(crate) fn new(parts: &PluginServices) -> Self {
        Self {
            authorizer: parts.authorizer.clone(),
        }
    }
}

impl Plugin for RoleEscalation {
    fn concerns(&self, request: &Request<'_>) -> bool {
        request.kind.group == GROUP
            && request.operation != Operation::Delete
            && !request.user.in_group(identity::MASTERS_GROUP)
            && !self.authorizer.is_open()
    }

    fn admit<'a>(
        &'a self,
        request: &'a Request<'a>,
        object: &'a mut Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(self.check(request, object))
    }
}

/// Whether an update changes only owner references and finalizers (upstream:
/// `IsOnlyMutatingGCFields`): the garbage collector needs none of the rights that the role grants.
fn only_changes_gc_fields(new: &Fields, old: &Fields) -> bool {
    let rest = |fields: &Fields| {
        let mut rest = fields.clone();
        if let Some(metadata) = rest.get_mut("metadata").and_then(Value::as_object_mut) {
            for key in [
                "ownerReferences",
                "finalizers",
                "managedFields",
                "resourceVersion",
                "generation",
            ] {
                metadata.remove(key);
            }
        }
        rest
    };
    let differs = |key: &str| get(metadata(new), key) != get(metadata(old), key);
    (differs("ownerReferences") || differs("finalizers")) && rest(new) == rest(old)
}

fn read<T: serde::de::DeserializeOwned + Default>(fields: &Fields) -> T {
    // The schema refuses an object of the wrong form later.
    serde_json::from_value(Value::Object(fields.clone())).unwrap_or_default()
}

impl RoleEscalation {
    async fn check(&self, request: &Request<'_>, new: &Fields) -> Result<(), ApiError> {
        if request
            .old
            .is_some_and(|old| only_changes_gc_fields(new, old))
        {
            return Ok(());
        }
        match request.kind.plural.as_str() {
            "roles" | "clusterroles" => self.role(request, new).await,
            "rolebindings" | "clusterrolebindings" => self.binding(request, new).await,
            _ => Ok(()),
        }
    }

    async fn role(&self, request: &Request<'_>, new: &Fields) -> Result<(), ApiError> {
        let own = Resource {
            group: GROUP,
            resource: &request.kind.plural,
            subresource: "",
            namespace: request.namespace,
            name: request.name,
        };
        if self.authorizer.may(request.user, "escalate", own).await? {
            return Ok(());
        }
        let wanted: Role = read(new);
        self.covered(request, &wanted.rules, meta_text(new, "name"))
            .await?;
        let gathers = |fields: &Fields| !get(fields, "aggregationRule").is_null();
        if gathers(new) || request.old.is_some_and(gathers) {
            // An aggregation rule can collect any rights.
            let everything = [
                master_rbac::defaults::on("*", "*", "*"),
                master_rbac::defaults::paths("*", "*"),
            ];
            if self.covered(request, &everything, "").await.is_err() {
                let text = "must have cluster-admin privileges to use an aggregationRule";
                return Err(request.forbidden(meta_text(new, "name"), text));
            }
        }
        Ok(())
    }

    /// Refuses rules that the caller does not have in the namespace (or cluster) that it writes to.
    async fn covered(
        &self,
        request: &Request<'_>,
        wanted: &[Rule],
        name: &str,
    ) -> Result<(), ApiError> {
        let who = who(request.user);
        let found = self.authorizer.with_roles(|roles| {
            let own = roles.grants(&who, request.namespace);
            escalation(&who, &own.rules, &own.missing, wanted)
        });
        match found.await? {
            None => Ok(()),
            Some(text) => Err(request.forbidden(name, &text)),
        }
    }

    async fn binding(&self, request: &Request<'_>, new: &Fields) -> Result<(), ApiError> {
        let Binding { role_ref, .. } = read(new);
        let namespace = request.namespace;
        let resource = if role_ref.kind == "Role" {
            "roles"
        } else {
            "clusterroles"
        };
        let bound = Resource {
            group: &role_ref.api_group,
            resource,
            subresource: "",
            namespace,
            name: &role_ref.name,
        };
        if self.authorizer.may(request.user, "bind", bound).await? {
            return Ok(());
        }
        let rules = self
            .authorizer
            .with_roles(|roles| roles.referred(&role_ref, namespace).map(<[Rule]>::to_vec))
            .await?;
        let Ok(rules) = rules else {
            return Err(missing(&role_ref, resource));
        };
        self.covered(request, &rules, meta_text(new, "name")).await
    }
}

fn missing(role: &RoleRef, resource: &str) -> ApiError {
    let text = format!("{resource}.{GROUP} {:?} not found", role.name);
    ApiError::new(Reason::NotFound, text).about(GROUP, resource, &role.name)
}
