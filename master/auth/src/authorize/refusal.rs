//! The error for a request that is not allowed.

use super::question::Question;
use master_rbac::{Request, Resource};
use master_schema::error::{ApiError, Reason, shown};

/// Upstream's words for a refusal. Texts of the request are shortened, as an unauthenticated sender
/// may choose them; the user's name is not, as authentication has set it.
pub(super) fn of(question: &Question<'_>, why: &str) -> ApiError {
    let user = &question.user.name;
    let why = if why.is_empty() {
        String::new()
    } else {
        format!(": {why}")
    };
    let wanted = match question.request {
        Request::Path(verb, path) => {
            let (verb, path) = (shown(verb), shown(path));
            return ApiError::new(
                Reason::Forbidden,
                format!("forbidden: User {user:?} cannot {verb} path {path:?}{why}"),
            );
        }
        Request::Resource(verb, wanted) => (verb, wanted),
    };
    let (
        verb,
        Resource {
            group,
            resource,
            subresource,
            namespace,
            name,
        },
    ) = wanted;
    let [group, resource, subresource] = [group, resource, subresource].map(shown);
    let (namespace, name) = (shown(namespace), shown(name));
    let qualified = if group.is_empty() {
        resource.to_string()
    } else {
        format!("{resource}.{group}")
    };
    let full = if subresource.is_empty() {
        resource.to_string()
    } else {
        format!("{resource}/{subresource}")
    };
    let scope = match &*namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let named = if name.is_empty() {
        String::new()
    } else {
        format!(" {name:?}")
    };
    let text = format!(
        "{qualified}{named} is forbidden: User {user:?} cannot {verb} resource {full:?} in API group {group:?} {scope}{why}"
    );
    ApiError::new(Reason::Forbidden, text).about(&group, &resource, &name)
}
