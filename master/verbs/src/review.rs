//! Reviews (TokenReview, SubjectAccessReview and others): questions to authentication and
//! authorization, answered at once and never stored.

use super::answer::Answer;
use super::call::Call;
use http::StatusCode;
use master_auth::{Authenticator, Authorizer, Decision, Question, who};
use master_client::{Body, BoxFuture, UserInfo};
use master_rbac::{Request, Resource};
use master_schema::error::{ApiError, Reason};
use master_schema::object::meta_text;
use master_schema::registry::Review;
use master_schema::validate::limits::{self, at_most};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, object, text};
use master_wire::Form;
use master_wire::path::{Verb, not_allowed};
use serde_json::{Value, json};

/// Answers a review.
pub(super) fn run<'a>(
    call: &'a Call,
    authenticator: &'a Authenticator,
    authorizer: &'a Authorizer,
    review: Review,
    content: Body,
) -> BoxFuture<'a, Answer> {
    Box::pin(answer(call, authenticator, authorizer, review, content))
}

async fn answer(
    call: &Call,
    authenticator: &Authenticator,
    authorizer: &Authorizer,
    review: Review,
    content: Body,
) -> Answer {
    if call.target.verb != Verb::Create || !call.target.name.is_empty() {
        return Err(not_allowed());
    }
    let accept = call.accept()?;
    if accept.form != Form::Object {
        let text =
            "only the following media types are accepted: application/json, application/yaml";
        return Err(ApiError::new(Reason::NotAcceptable, text));
    }
    let (mut fields, warnings) = call.object(content).await?;
    let empty = Fields::new();
    let spec = object(&fields, "spec").unwrap_or(&empty);
    let status = match review {
        Review::SelfSubject => json!({ "userInfo": user_info(&call.user) }),
        Review::Token => token(authenticator, spec).await?,
        Review::SelfSubjectAccess => {
            valid_access(call, &fields, spec, true)?;
            access(authorizer, &call.user, spec).await?
        }
        Review::SubjectAccess | Review::LocalSubjectAccess => {
            valid_access(call, &fields, spec, false)?;
            for_node(call, spec)?;
            access(authorizer, &named(spec), spec).await?
        }
        Review::SelfSubjectRules => rules(authorizer, &call.user, spec).await?,
        // The deprecated binding and what is only read are handled in `run.rs`.
        Review::Binding | Review::Components | Review::Metrics | Review::Groups => {
            return Err(not_allowed());
        }
    };
    fields.insert("status".to_owned(), status);
    if !matches!(fields.get("metadata"), Some(Value::Object(_))) {
        fields.insert("metadata".to_owned(), json!({"creationTimestamp": null}));
    }
    let answer = call.fields_answer(StatusCode::CREATED, fields)?;
    Ok(super::create::warned(answer, &warnings))
}

/// A user as objects represent it (`UserInfo`).
fn user_info(user: &UserInfo) -> Value {
    let mut info = Fields::new();
    info.insert("username".to_owned(), user.name.clone().into());
    if !user.uid.is_empty() {
        info.insert("uid".to_owned(), user.uid.clone().into());
    }
    info.insert("groups".to_owned(), json!(user.groups));
    if !user.extra.is_empty() {
        info.insert("extra".to_owned(), json!(user.extra));
    }
    Value::Object(info)
}

fn texts(fields: &Fields, key: &str) -> Vec<String> {
    items(fields, key)
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

/// Answers a TokenReview.
async fn token(authenticator: &Authenticator, spec: &Fields) -> Result<Value, ApiError> {
    let token = text(spec, "token");
    if token.is_empty() {
        return Err(ApiError::new(
            Reason::BadRequest,
            "token is required for TokenReview in authentication",
        ));
    }
    let mut faults = Faults::default();
    let at = FieldPath::root("spec");
    at_most(spec, "audiences", limits::AUDIENCES, &at, &mut faults);
    faults.into_error("authentication.k8s.io", "TokenReview", "")?;
    let audiences = texts(spec, "audiences");
    match authenticator.token(token, &audiences).await {
        Ok(Some(found)) => {
            let mut status = json!({"authenticated": true, "user": user_info(&found.user)});
            if !audiences.is_empty() {
                status["audiences"] = json!(found.audiences);
            }
            Ok(status)
        }
        Ok(None) => Ok(json!({"authenticated": false, "user": {}})),
        Err(error) if error.reason == Reason::Unauthorized => {
            let text = format!("[invalid bearer token, {}]", error.message);
            Ok(json!({"authenticated": false, "user": {}, "error": text}))
        }
        Err(error) => Err(error),
    }
}

/// The user that a review asks about.
fn named(spec: &Fields) -> UserInfo {
    let extra = object(spec, "extra")
        .into_iter()
        .flatten()
        .map(|(key, values)| {
            let values = values
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect();
            (key.clone(), values)
        });
    UserInfo {
        name: text(spec, "user").to_owned(),
        uid: text(spec, "uid").to_owned(),
        groups: texts(spec, "groups"),
        extra: extra.collect(),
    }
}

/// Upstream's validation of access reviews.
fn valid_access(call: &Call, fields: &Fields, spec: &Fields, own: bool) -> Result<(), ApiError> {
    let mut faults = Faults::default();
    let at = FieldPath::root("spec");
    at_most(spec, "groups", limits::GROUPS, &at, &mut faults);
    let (resource, path) = (
        object(spec, "resourceAttributes"),
        object(spec, "nonResourceAttributes"),
    );
    match (resource, path) {
        (Some(_), Some(_)) => faults.invalid(
            &at.field("nonResourceAttributes"),
            get(spec, "nonResourceAttributes"),
            "cannot be specified in combination with resourceAttributes",
        ),
        (None, None) => faults.invalid(
            &at.field("resourceAttributes"),
            &Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        ),
        (Some(_), None) | (None, Some(_)) => {}
    }
    if !own && text(spec, "user").is_empty() && items(spec, "groups").is_empty() {
        faults.invalid(
            &at.field("user"),
            &"".into(),
            "at least one of user or group must be specified",
        );
    }
    if call.kind.namespaced {
        call.check_namespace(meta_text(fields, "namespace"))?;
        if let Some(resource) = resource
            && text(resource, "namespace") != call.target.namespace
        {
            let at = at.field("resourceAttributes");
            faults.invalid(
                &at.field("namespace"),
                get(resource, "namespace"),
                "must match metadata.namespace",
            );
        }
        if path.is_some() {
            let value = get(spec, "nonResourceAttributes");
            faults.invalid(
                &at.field("nonResourceAttributes"),
                value,
                "disallowed on this kind of request",
            );
        }
    }
    faults.into_error(&call.kind.group, &call.kind.kind, "")
}

/// A node may ask about other users only whether they may call its own kubelet.
fn for_node(call: &Call, spec: &Fields) -> Result<(), ApiError> {
    let Some(node) = call.user.node() else {
        return Ok(());
    };
    let own = object(spec, "resourceAttributes").is_some_and(|wanted| {
        text(wanted, "group").is_empty()
            && text(wanted, "resource") == "nodes"
            && text(wanted, "name") == node
    });
    if own {
        return Ok(());
    }
    let why = format!("node {node:?} can only review access to the Node of its own name");
    Err(call.kind.forbidden("", &why))
}

/// Whether a user may do what the review describes.
async fn access(
    authorizer: &Authorizer,
    user: &UserInfo,
    spec: &Fields,
) -> Result<Value, ApiError> {
    let empty = Fields::new();
    let resource = object(spec, "resourceAttributes");
    let path = object(spec, "nonResourceAttributes").unwrap_or(&empty);
    let request = match resource {
        Some(wanted) => Request::Resource(
            text(wanted, "verb"),
            Resource {
                group: text(wanted, "group"),
                resource: text(wanted, "resource"),
                subresource: text(wanted, "subresource"),
                namespace: text(wanted, "namespace"),
                name: text(wanted, "name"),
            },
        ),
        None => Request::Path(text(path, "verb"), text(path, "path")),
    };
    let of_node = resource.and_then(of_node);
    let question = Question {
        user,
        request,
        of_node: of_node.as_deref(),
        network_only: false,
    };
    Ok(match authorizer.decide(&question).await? {
        Decision::Allow(why) if why.is_empty() => json!({"allowed": true}),
        Decision::Allow(why) => json!({"allowed": true, "reason": why}),
        Decision::NoOpinion(why) if why.is_empty() => json!({"allowed": false}),
        Decision::NoOpinion(why) => json!({"allowed": false, "reason": why}),
    })
}

/// The node to which a review's field selector limits the request.
fn of_node(wanted: &Fields) -> Option<String> {
    let selector = object(wanted, "fieldSelector")?;
    let requirements = items(selector, "requirements")
        .iter()
        .filter_map(Value::as_object);
    let mut exact =
        requirements.filter(|one| matches!(text(one, "key"), "spec.nodeName" | "nodeName"));
    let found =
        exact.find(|one| text(one, "operator") == "In" && items(one, "values").len() == 1)?;
    texts(found, "values").pop()
}

/// The rules of a user in a namespace.
async fn rules(authorizer: &Authorizer, user: &UserInfo, spec: &Fields) -> Result<Value, ApiError> {
    let namespace = text(spec, "namespace");
    if namespace.is_empty() {
        return Err(ApiError::new(Reason::BadRequest, "no namespace on request"));
    }
    let who = who(user);
    let grants = authorizer.with_roles(|roles| roles.grants(&who, namespace));
    let grants = grants.await?;
    let mut resource_rules = Vec::new();
    let mut path_rules = Vec::new();
    if authorizer.is_open() {
        resource_rules.push(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        path_rules.push(json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
    }
    for rule in &grants.rules {
        if !rule.resources.is_empty() {
            let mut shown = json!({"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources});
            if !rule.resource_names.is_empty() {
                shown["resourceNames"] = json!(rule.resource_names);
            }
            resource_rules.push(shown);
        }
        if !rule.non_resource_urls.is_empty() {
            path_rules
                .push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
        }
    }
    let mut errors = grants.missing;
    if user.node().is_some() {
        errors.push("node authorizer does not support user rule resolution".to_owned());
    }
    let mut status = json!({
        "resourceRules": resource_rules, "nonResourceRules": path_rules, "incomplete": !errors.is_empty(),
    });
    if !errors.is_empty() {
        status["evaluationError"] = errors.join(", ").into();
    }
    Ok(status)
}
