//! Authorization: the configured modes are asked in order; what none of them allows is refused.
//!
//! `Node` limits nodes to their own objects, `RBAC` evaluates roles and bindings. Both use indexes
//! that are brought up to the newest revision at each question ([`feed`]), so that a new role
//! applies to the very next request. Members of `system:masters` may do everything, even without
//! any role: the server itself starts with that right.

pub(crate) mod bootstrap;
pub(crate) mod escalation;
mod feed;
mod graph;
mod node;
mod references;
mod roles;

use crate::path::{Target, Verb};
use crate::server::ApiServer;
use crate::verbs::store_error;
use config_kube::identity;
use feed::View;
use graph::Graph;
use master_client::{BoxFuture, UserInfo};
pub(crate) use master_rbac::{Request, Resource};
use master_rbac::{Snapshot, Verdict, Who};
use master_schema::error::{ApiError, Reason};
use master_schema::selector::Selector;

/// An authorization mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Nodes may use their own objects.
    Node,
    /// Roles and bindings.
    Rbac,
    /// Every caller may do everything.
    AlwaysAllow,
}

/// The modes and their indexes.
#[derive(Debug)]
pub(crate) struct Authorizer {
    modes: Vec<Mode>,
    roles: View<Snapshot>,
    graph: View<Graph>,
}

/// A decision, with the reason that reviews show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    Allow(String),
    NoOpinion(String),
}

/// A request, as authorization reads it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question<'a> {
    pub(crate) user: &'a UserInfo,
    pub(crate) request: Request<'a>,
    /// The node to which a field selector limits a list, if one does.
    pub(crate) of_node: Option<&'a str>,
}

/// A caller, as RBAC reads it.
pub(crate) fn who(user: &UserInfo) -> Who<'_> {
    Who {
        name: &user.name,
        groups: &user.groups,
    }
}

impl Authorizer {
    pub(crate) fn new(modes: &[Mode]) -> Self {
        Self {
            modes: modes.to_vec(),
            roles: View::new(roles::TABLES),
            graph: View::new(graph::TABLES),
        }
    }

    /// Whether every caller may do everything.
    pub(crate) fn is_open(&self) -> bool {
        self.modes.contains(&Mode::AlwaysAllow)
    }
}

/// The resource of a request, as RBAC reads it. A namespace object counts as inside itself, so that
/// a role in the namespace can allow reading it.
pub(crate) fn resource_of<'a>(target: &'a Target, selector: &'a Selector) -> Resource<'a> {
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

/// Decides one question.
pub(crate) fn decide<'a>(
    api: &'a ApiServer,
    question: &'a Question<'a>,
) -> BoxFuture<'a, Result<Decision, ApiError>> {
    Box::pin(by_modes(api, question))
}

async fn by_modes(api: &ApiServer, question: &Question<'_>) -> Result<Decision, ApiError> {
    if question.user.in_group(identity::MASTERS_GROUP) {
        return Ok(Decision::Allow(String::new()));
    }
    let authorizer = &api.inner.authorizer;
    let mut reasons = Vec::new();
    for mode in &authorizer.modes {
        let decision = match mode {
            Mode::AlwaysAllow => Decision::Allow(String::new()),
            Mode::Node => match question.user.node() {
                None => continue,
                Some(node) => node::decide(api, node, question).await?,
            },
            Mode::Rbac => by_roles(api, question).await?,
        };
        match decision {
            Decision::Allow(why) => return Ok(Decision::Allow(why)),
            Decision::NoOpinion(why) if why.is_empty() => {}
            Decision::NoOpinion(why) => reasons.push(why),
        }
    }
    Ok(Decision::NoOpinion(reasons.join("\n")))
}

async fn by_roles(api: &ApiServer, question: &Question<'_>) -> Result<Decision, ApiError> {
    let verdict = with_roles(api, |roles| {
        roles.decide(&who(question.user), &question.request)
    })
    .await?;
    Ok(match verdict {
        Verdict::Allowed(why) => Decision::Allow(why),
        Verdict::NoOpinion(why) => Decision::NoOpinion(why),
    })
}

/// Calls a function with all roles and bindings at the newest revision.
pub(crate) async fn with_roles<T>(
    api: &ApiServer,
    look: impl FnOnce(&Snapshot) -> T,
) -> Result<T, ApiError> {
    api.inner
        .authorizer
        .roles
        .with(&*api.inner.store, look)
        .await
        .map_err(store_error)
}

/// Refuses a request that is not allowed.
pub(crate) async fn require(api: &ApiServer, question: &Question<'_>) -> Result<(), ApiError> {
    match decide(api, question).await? {
        Decision::Allow(_) => Ok(()),
        Decision::NoOpinion(why) => Err(refusal(question, &why)),
    }
}

/// Whether a user may do something to a resource; for checks beyond the request itself.
pub(crate) async fn may(
    api: &ApiServer,
    user: &UserInfo,
    verb: &str,
    resource: Resource<'_>,
) -> Result<bool, ApiError> {
    let question = Question {
        user,
        request: Request::Resource(verb, resource),
        of_node: None,
    };
    Ok(matches!(decide(api, &question).await?, Decision::Allow(_)))
}

/// Authorizes a path that is not a resource.
pub(crate) async fn path(
    api: &ApiServer,
    user: &UserInfo,
    verb: &str,
    path: &str,
) -> Result<(), ApiError> {
    require(
        api,
        &Question {
            user,
            request: Request::Path(verb, path),
            of_node: None,
        },
    )
    .await
}

/// Authorizes a request for a resource.
pub(crate) async fn resource(
    api: &ApiServer,
    user: &UserInfo,
    target: &Target,
    selector: &Selector,
) -> Result<(), ApiError> {
    let request = Request::Resource(target.verb.as_str(), resource_of(target, selector));
    let of_node = selector
        .exact("spec.nodeName")
        .or_else(|| selector.exact("nodeName"));
    require(
        api,
        &Question {
            user,
            request,
            of_node,
        },
    )
    .await
}

/// Upstream's words for a refusal.
fn refusal(question: &Question<'_>, why: &str) -> ApiError {
    let user = &question.user.name;
    let why = if why.is_empty() {
        String::new()
    } else {
        format!(": {why}")
    };
    let wanted = match question.request {
        Request::Path(verb, path) => {
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
    let qualified = if group.is_empty() {
        resource.to_owned()
    } else {
        format!("{resource}.{group}")
    };
    let full = if subresource.is_empty() {
        resource.to_owned()
    } else {
        format!("{resource}/{subresource}")
    };
    let scope = match namespace {
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
    ApiError::new(Reason::Forbidden, text).about(group, resource, name)
}
