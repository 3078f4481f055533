//! Impersonation: the `Impersonate-*` headers; the caller needs the right to impersonate each part.

use crate::authorize::{Authorizer, Question};
use config_http::percent;
use config_kube::identity;
use http::HeaderMap;
use master_client::{BoxFuture, UserInfo};
use master_rbac::{Request, Resource};
use master_schema::error::{ApiError, Reason, shown};
use std::collections::BTreeMap;

const PREFIX: &str = "impersonate-";
const EXTRA: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// The user to impersonate.
#[derive(Debug, Default)]
struct Wanted {
    user: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// The caller, or the user that it impersonates; the headers are removed.
///
/// # Errors
/// The caller may not impersonate that user, the headers are malformed, or roles cannot be read.
pub fn impersonate<'a>(
    authorizer: &'a Authorizer,
    user: UserInfo,
    headers: &'a mut HeaderMap,
) -> BoxFuture<'a, Result<UserInfo, ApiError>> {
    if headers.keys().any(|name| name.as_str().starts_with(PREFIX)) {
        return Box::pin(act(authorizer, user, headers));
    }
    Box::pin(std::future::ready(Ok(user)))
}

async fn act(
    authorizer: &Authorizer,
    user: UserInfo,
    headers: &mut HeaderMap,
) -> Result<UserInfo, ApiError> {
    let wanted = read(headers)?;
    let named: Vec<_> = headers
        .keys()
        .filter(|name| name.as_str().starts_with(PREFIX))
        .cloned()
        .collect();
    for name in named {
        headers.remove(name);
    }
    permit(authorizer, &user, &wanted).await?;
    Ok(acted(wanted))
}

fn read(headers: &HeaderMap) -> Result<Wanted, ApiError> {
    let mut wanted = Wanted::default();
    for (name, value) in headers {
        let name = name.as_str();
        if !name.starts_with(PREFIX) {
            continue;
        }
        let text = value.to_str().map_err(|_not_text| {
            ApiError::new(
                Reason::BadRequest,
                format!("the header {} is not plain text", shown(name)),
            )
        })?;
        match name {
            "impersonate-user" => text.clone_into(&mut wanted.user),
            "impersonate-uid" => text.clone_into(&mut wanted.uid),
            "impersonate-group" => wanted.groups.push(text.to_owned()),
            _ => {
                if let Some(key) = name.strip_prefix(EXTRA) {
                    wanted
                        .extra
                        .entry(decoded(key))
                        .or_default()
                        .push(text.to_owned());
                }
            }
        }
    }
    if wanted.user.is_empty() {
        let text = "requested impersonation of groups, uid or extra without impersonating a user";
        return Err(ApiError::new(Reason::InternalError, text));
    }
    Ok(wanted)
}

/// Keys are percent-encoded, as header names cannot hold every character, capitals among them; what
/// does not decode stays as it is.
fn decoded(key: &str) -> String {
    percent::decode_segment(key).unwrap_or_else(|| key.to_owned())
}

/// Namespace and name of a service account's user name.
fn account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user
        .strip_prefix("system:serviceaccount:")?
        .split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

async fn permit(authorizer: &Authorizer, user: &UserInfo, wanted: &Wanted) -> Result<(), ApiError> {
    let mut parts = Vec::new();
    match account(&wanted.user) {
        Some((namespace, name)) => {
            parts.push(Resource {
                resource: "serviceaccounts",
                namespace,
                name,
                ..Resource::default()
            });
        }
        None => parts.push(Resource {
            resource: "users",
            name: &wanted.user,
            ..Resource::default()
        }),
    }
    parts.extend(wanted.groups.iter().map(|name| Resource {
        resource: "groups",
        name,
        ..Resource::default()
    }));
    let authentication = Resource {
        group: AUTHENTICATION,
        ..Resource::default()
    };
    for (key, values) in &wanted.extra {
        let extra = Resource {
            resource: "userextras",
            subresource: key,
            ..authentication
        };
        parts.extend(values.iter().map(|name| Resource { name, ..extra }));
    }
    if !wanted.uid.is_empty() {
        parts.push(Resource {
            resource: "uids",
            name: &wanted.uid,
            ..authentication
        });
    }
    for part in parts {
        let question = Question {
            user,
            request: Request::Resource("impersonate", part),
            of_node: None,
            network_only: false,
        };
        authorizer.require(&question).await?;
    }
    Ok(())
}

/// The impersonated user, with the groups that this user always has.
fn acted(wanted: Wanted) -> UserInfo {
    let Wanted {
        user,
        uid,
        mut groups,
        extra,
    } = wanted;
    if groups.is_empty()
        && let Some((namespace, _)) = account(&user)
    {
        groups = vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
        ];
    }
    let always = if user == identity::ANONYMOUS_USER {
        identity::UNAUTHENTICATED_GROUP
    } else {
        identity::AUTHENTICATED_GROUP
    };
    let is_implied = |group: &String| {
        group == identity::AUTHENTICATED_GROUP || group == identity::UNAUTHENTICATED_GROUP
    };
    if !groups.iter().any(is_implied) {
        groups.push(always.to_owned());
    }
    UserInfo {
        name: user,
        uid,
        groups,
        extra,
    }
}
