//! Prevents privilege escalation: a writer of roles and bindings can only grant rights that it has
//! (or may escalate, or bind).
//!
//! Not an admission plugin, as it cannot be disabled. Runs after plugins changed the object and
//! before validation.

use super::{Resource, may, with_roles};
use crate::object::{meta_text, metadata};
use crate::verbs::Call;
use config_kube::identity;
use master_rbac::cover::escalation;
use master_rbac::{Binding, Role, RoleRef, Rule};
use master_schema::error::{ApiError, Reason};
use master_schema::validate::{Fields, get};
use serde_json::Value;

const GROUP: &str = "rbac.authorization.k8s.io";

/// Checks a new object (`old` is `None`) or a changed one.
pub(crate) async fn check(call: &Call, new: &Fields, old: Option<&Fields>) -> Result<(), ApiError> {
    let kind = &call.kind;
    if kind.group != GROUP
        || call.user.in_group(identity::MASTERS_GROUP)
        || call.api.inner.authorizer.is_open()
    {
        return Ok(());
    }
    if old.is_some_and(|old| only_lets_go(new, old)) {
        return Ok(());
    }
    match kind.plural.as_str() {
        "roles" | "clusterroles" => role(call, new, old).await,
        "rolebindings" | "clusterrolebindings" => binding(call, new).await,
        _ => Ok(()),
    }
}

/// Whether an update only removes owners and finalizers: the garbage collector needs no rights of
/// the role's own.
fn only_lets_go(new: &Fields, old: &Fields) -> bool {
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
    let kept = |key: &str| get(metadata(new), key) != get(metadata(old), key);
    (kept("ownerReferences") || kept("finalizers")) && rest(new) == rest(old)
}

fn read<T: serde::de::DeserializeOwned + Default>(fields: &Fields) -> T {
    // The schema refuses an object of the wrong form later.
    serde_json::from_value(Value::Object(fields.clone())).unwrap_or_default()
}

async fn role(call: &Call, new: &Fields, old: Option<&Fields>) -> Result<(), ApiError> {
    let target = &call.target;
    let own = Resource {
        group: GROUP,
        resource: &target.plural,
        subresource: "",
        namespace: &target.namespace,
        name: &target.name,
    };
    if may(&call.api, &call.user, "escalate", own).await? {
        return Ok(());
    }
    let wanted: Role = read(new);
    covered(call, &wanted.rules, meta_text(new, "name")).await?;
    let gathers = |fields: &Fields| !get(fields, "aggregationRule").is_null();
    if gathers(new) || old.is_some_and(gathers) {
        // An aggregation rule can collect any rights.
        let everything = [
            master_rbac::defaults::on("*", "*", "*"),
            master_rbac::defaults::paths("*", "*"),
        ];
        if covered(call, &everything, "").await.is_err() {
            let text = "must have cluster-admin privileges to use an aggregationRule";
            return Err(call.forbidden(meta_text(new, "name"), text));
        }
    }
    Ok(())
}

/// Refuses rules that the caller does not have in the namespace (or cluster) that it writes to.
async fn covered(call: &Call, wanted: &[Rule], name: &str) -> Result<(), ApiError> {
    let who = crate::authorize::who(&call.user);
    let found = with_roles(&call.api, |roles| {
        let own = roles.grants(&who, &call.target.namespace);
        escalation(&who, &own.rules, &own.missing, wanted)
    });
    match found.await? {
        None => Ok(()),
        Some(text) => Err(call.forbidden(name, &text)),
    }
}

async fn binding(call: &Call, new: &Fields) -> Result<(), ApiError> {
    let Binding { role_ref, .. } = read(new);
    let namespace = call.target.namespace.as_str();
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
    if may(&call.api, &call.user, "bind", bound).await? {
        return Ok(());
    }
    let rules = with_roles(&call.api, |roles| {
        roles.referred(&role_ref, namespace).map(<[Rule]>::to_vec)
    })
    .await?;
    let Ok(rules) = rules else {
        return Err(missing(&role_ref, resource));
    };
    covered(call, &rules, meta_text(new, "name")).await
}

fn missing(role: &RoleRef, resource: &str) -> ApiError {
    let text = format!("{resource}.{GROUP} {:?} not found", role.name);
    ApiError::new(Reason::NotFound, text).about(GROUP, resource, &role.name)
}
