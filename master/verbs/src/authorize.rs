//! Asks the authorizer for the right to make a request.

use master_auth::{Authorizer, Question};
use master_client::UserInfo;
use master_rbac::{Request, Resource};
use master_schema::error::ApiError;
use master_schema::selector::Selector;
use master_wire::path::{Target, Verb};

/// Authorizes a path that is not a resource.
///
/// # Errors
/// The caller may not ask for it, or its rights cannot be read.
pub async fn path(
    authorizer: &Authorizer,
    user: &UserInfo,
    verb: &str,
    path: &str,
) -> Result<(), ApiError> {
    let question = Question {
        user,
        request: Request::Path(verb, path),
        of_node: None,
        network_only: false,
    };
    authorizer.require(&question).await
}

/// Authorizes reading all that is stored: a list of every resource of every group, which only a
/// rule with `*` for both allows.
///
/// # Errors
/// The caller may not, or its rights cannot be read.
pub async fn every_object(authorizer: &Authorizer, user: &UserInfo) -> Result<(), ApiError> {
    let every = Resource {
        group: "*",
        resource: "*",
        ..Resource::default()
    };
    let question = Question {
        user,
        request: Request::Resource("list", every),
        of_node: None,
        network_only: false,
    };
    authorizer.require(&question).await
}

/// Authorizes a request for a resource.
///
/// # Errors
/// The caller may not make it, or its rights cannot be read.
pub async fn resource(
    authorizer: &Authorizer,
    user: &UserInfo,
    target: &Target,
    selector: &Selector,
) -> Result<(), ApiError> {
    let of_node = selector
        .exact("spec.nodeName")
        .or_else(|| selector.exact("nodeName"));
    let question = Question {
        user,
        request: Request::Resource(target.verb.as_str(), resource_of(target, selector)),
        of_node,
        network_only: is_network_only(user, target, selector),
    };
    authorizer.require(&question).await
}

/// Whether a node lists or watches all pods: it then gets only the fields that packet filters need.
/// A selector is not allowed there, as it would reveal the other fields.
pub(crate) fn is_network_only(user: &UserInfo, target: &Target, selector: &Selector) -> bool {
    user.node().is_some()
        && matches!(target.verb, Verb::List | Verb::Watch)
        && target.group.is_empty()
        && target.plural == "pods"
        && [&target.subresource, &target.namespace, &target.name]
            .iter()
            .all(|part| part.is_empty())
        && selector.is_empty()
}

/// The resource of a request, as RBAC reads it. A namespace object counts as inside itself, so that
/// a role in the namespace can allow reading it.
fn resource_of<'a>(target: &'a Target, selector: &'a Selector) -> Resource<'a> {
    let listed = matches!(target.verb, Verb::List | Verb::Watch);
    let named = if listed {
        selector.exact("metadata.name").unwrap_or_default()
    } else {
        ""
    };
    let name = if target.name.is_empty() {
        named
    } else {
        &target.name
    };
    let own = target.group.is_empty() && target.plural == "namespaces";
    let namespace = if own { &target.name } else { &target.namespace };
    Resource {
        group: &target.group,
        resource: &target.plural,
        subresource: &target.subresource,
        namespace,
        name,
    }
}
