//! Who may do what: the admin everything, parts of the master by their role, a node what is its own, everybody
//! health and the version; an authenticated caller discovery too.

mod node;
mod roles;

use crate::error::{ApiError, Reason};
use crate::path::Target;
use crate::selector::Selector;
use crate::server::ApiServer;
use crate::user::UserInfo;
use config_kube::identity;

/// A request, as authorization sees it.
#[derive(Debug)]
pub(crate) struct Question<'a> {
    pub(crate) user: &'a UserInfo,
    pub(crate) target: &'a Target,
    pub(crate) selector: &'a Selector,
}

/// Paths that everybody may read.
const PUBLIC: &[&str] = &["/healthz", "/livez", "/readyz", "/version"];
/// Paths that tell what is served; for authenticated callers.
const DISCOVERY: &[&str] = &["/api", "/apis", "/openapi"];

fn below(path: &str, roots: &[&str]) -> bool {
    roots.iter().any(|root| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// Whether a caller may read a path that is no resource.
pub(crate) fn path(user: &UserInfo, verb: &str, path: &str) -> Result<(), ApiError> {
    let reads = matches!(verb, "get" | "head");
    let allowed = user.in_group(identity::MASTERS_GROUP)
        || reads && below(path, PUBLIC)
        || reads && below(path, DISCOVERY) && user.in_group(identity::AUTHENTICATED_GROUP);
    if allowed {
        return Ok(());
    }
    Err(ApiError::new(Reason::Forbidden, format!("forbidden: User {:?} cannot {verb} path {path:?}", user.name)))
}

/// Whether a caller may do what it asks of a resource.
pub(crate) async fn resource(api: &ApiServer, question: &Question<'_>) -> Result<(), ApiError> {
    let user = question.user;
    if user.in_group(identity::MASTERS_GROUP) || roles::allow(user, question.target) {
        return Ok(());
    }
    let why = match user.node() {
        Some(node) => match node::allow(api, node, question).await? {
            None => return Ok(()),
            Some(why) => why,
        },
        None => String::new(),
    };
    Err(refusal(question, &why))
}

/// Upstream's words for a refusal.
fn refusal(question: &Question<'_>, why: &str) -> ApiError {
    let target = question.target;
    let plural = match (target.group.as_str(), target.subresource.as_str()) {
        ("", "") => target.plural.clone(),
        ("", sub) => format!("{}/{sub}", target.plural),
        (group, "") => format!("{}.{group}", target.plural),
        (group, sub) => format!("{}.{group}/{sub}", target.plural),
    };
    let resource = match target.subresource.as_str() {
        "" => target.plural.clone(),
        sub => format!("{}/{sub}", target.plural),
    };
    let scope = match target.namespace.as_str() {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let name = if target.name.is_empty() { String::new() } else { format!(" {:?}", target.name) };
    let mut text = format!(
        "{plural}{name} is forbidden: User {:?} cannot {} resource {resource:?} in API group {:?} {scope}",
        question.user.name,
        target.verb.as_str(),
        target.group,
    );
    if !why.is_empty() {
        text = format!("{text}: {why}");
    }
    ApiError::new(Reason::Forbidden, text).about(&target.group, &target.plural, &target.name)
}
