//! Issues service account tokens on request (`serviceaccounts/NAME/token`, TokenRequest).

use super::answer::{Answer, value_answer};
use super::call::{Call, stored};
use config_kube::k8s_openapi::api::authentication::v1::TokenRequest;
use http::StatusCode;
use jiff::Timestamp;
use master_auth::{Authorizer, Claims, Private, Reference, TokenIssuer};
use master_client::{Body, BoxFuture};
use master_rbac::Resource;
use master_schema::error::{ApiError, Reason, no_resource};
use master_schema::object::{meta_text, metadata};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, limits, object, text};
use master_store::Reader;
use master_wire::path::Target;
use serde_json::{Map, Value, json};
use std::sync::Arc;

const KIND: &str = "TokenRequest";
const GROUP: &str = "authentication.k8s.io";
/// Lifetime in seconds if the request names none.
const DEFAULT_SECONDS: i64 = 3600;
/// Minimum lifetime in seconds.
const MIN_SECONDS: i64 = 600;
/// The lifetime with which kubelets request tokens for pods; such tokens may be extended.
const POD_SECONDS: i64 = 3607;
/// Extended lifetime in seconds of such a token, for applications that never reload it
/// (upstream's).
const EXTENDED_SECONDS: i64 = 365 * 24 * 3600;

/// The objects that a token is bound to.
#[derive(Debug, Default)]
struct Bound {
    pod: Option<Reference>,
    node: Option<Reference>,
    secret: Option<Reference>,
    uid: String,
}

/// Issues a token.
pub(super) fn create<'a>(
    call: &'a Call,
    reader: &'a dyn Reader,
    issuer: Option<&'a Arc<TokenIssuer>>,
    authorizer: &'a Authorizer,
    content: Body,
) -> BoxFuture<'a, Answer> {
    Box::pin(make(call, reader, issuer, authorizer, content))
}

async fn make(
    call: &Call,
    reader: &dyn Reader,
    issuer: Option<&Arc<TokenIssuer>>,
    authorizer: &Authorizer,
    content: Body,
) -> Answer {
    let issuer = issuer.ok_or_else(no_resource)?;
    let account = fields_of(reader, &call.key())
        .await?
        .ok_or_else(|| call.not_found())?;
    let mut request = read(call, content).await?;
    let spec = object(&request, "spec").cloned().unwrap_or_default();
    let lifetime = get(&spec, "expirationSeconds")
        .as_i64()
        .unwrap_or(DEFAULT_SECONDS);
    check(&call.target, &request, lifetime)?;
    let mut audiences: Vec<String> = items(&spec, "audiences")
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    if let Some(node) = call.user.node() {
        for_node(call, reader, authorizer, node, &spec, &audiences).await?;
    }
    if audiences.is_empty() {
        audiences = issuer.audiences().to_vec();
    }
    let bound = match object(&spec, "boundObjectRef") {
        Some(reference) => bind(call, reader, reference).await?,
        None => Bound::default(),
    };
    let now = Timestamp::now().as_second();
    let shown = Timestamp::from_second(now.saturating_add(lifetime)).unwrap_or(Timestamp::MAX);
    let claims = claims(
        &call.target,
        issuer,
        &account,
        audiences.clone(),
        lifetime,
        now,
        bound,
    );
    let token = issuer.issue(&claims)?;
    let mut spec = spec;
    spec.insert("audiences".to_owned(), json!(audiences));
    spec.insert("expirationSeconds".to_owned(), lifetime.into());
    request.insert("spec".to_owned(), Value::Object(spec));
    request.insert("kind".to_owned(), KIND.into());
    request.insert("apiVersion".to_owned(), format!("{GROUP}/v1").into());
    request.insert(
        "metadata".to_owned(),
        json!({
            "name": call.target.name, "namespace": call.target.namespace, "creationTimestamp": master_schema::object::now(),
        }),
    );
    request.insert(
        "status".to_owned(),
        json!({"token": token, "expirationTimestamp": shown.to_string()}),
    );
    // A table, or metadata alone, would show no token.
    let accept = call.accept()?.plain();
    value_answer(StatusCode::CREATED, &Value::Object(request), accept)
}

async fn read(call: &Call, content: Body) -> Result<Fields, ApiError> {
    let wrong = |text: String| ApiError::new(Reason::BadRequest, text);
    let Value::Object(request) = call.document(content).await?.value else {
        return Err(wrong(format!(
            "the body is not a {KIND}: expected an object"
        )));
    };
    for (key, expected) in [("kind", KIND), ("apiVersion", "authentication.k8s.io/v1")] {
        let found = text(&request, key);
        if !found.is_empty() && found != expected {
            return Err(wrong(format!(
                "the {key} in the data ({found}) does not match the expected one ({expected})"
            )));
        }
    }
    // Types are checked against the kind's schema; absent fields are filled in.
    let mut typed = request.clone();
    let spec = typed.entry("spec").or_insert_with(|| json!({}));
    if let Some(spec) = spec.as_object_mut()
        && get(spec, "audiences").is_null()
    {
        spec.insert("audiences".to_owned(), json!([]));
    }
    typed.remove("status");
    match serde_json::from_value::<TokenRequest>(Value::Object(typed)) {
        Ok(_) => Ok(request),
        Err(error) => Err(wrong(format!(
            "{KIND} in version \"v1\" cannot be handled as a {KIND}: {error}"
        ))),
    }
}

fn check(target: &Target, request: &Fields, lifetime: i64) -> Result<(), ApiError> {
    let mut faults = Faults::default();
    let at = FieldPath::root("metadata");
    for (key, own, what) in [
        ("name", &target.name, "name"),
        ("namespace", &target.namespace, "namespace"),
    ] {
        let given = meta_text(request, key);
        if !given.is_empty() && given != own {
            let detail = format!("must match the service account {what} if specified");
            faults.invalid(&at.field(key), &given.into(), detail);
        }
    }
    let at = FieldPath::root("spec");
    if let Some(spec) = object(request, "spec") {
        limits::at_most(spec, "audiences", limits::AUDIENCES, &at, &mut faults);
    }
    let at = at.field("expirationSeconds");
    if lifetime < MIN_SECONDS {
        faults.invalid(
            &at,
            &lifetime.into(),
            "may not specify a duration less than 10 minutes",
        );
    }
    if lifetime > 1 << 32 {
        faults.invalid(
            &at,
            &lifetime.into(),
            "may not specify a duration larger than 2^32 seconds",
        );
    }
    faults.into_error(GROUP, KIND, "")
}

async fn fields_of(reader: &dyn Reader, key: &str) -> Result<Option<Fields>, ApiError> {
    let entry = stored(reader, key).await?;
    Ok(entry.map(|entry| serde_json::from_slice(&entry.value.bytes()).unwrap_or_default()))
}

fn reference(fields: &Fields) -> Reference {
    Reference {
        name: meta_text(fields, "name").to_owned(),
        uid: text(metadata(fields), "uid").to_owned(),
    }
}

fn missing(plural: &str, name: &str) -> ApiError {
    ApiError::new(Reason::NotFound, format!("{plural} {name:?} not found")).about("", plural, name)
}

/// Finds the objects that a token is to be bound to.
async fn bind(call: &Call, reader: &dyn Reader, wanted: &Fields) -> Result<Bound, ApiError> {
    let (name, namespace) = (text(wanted, "name"), &call.target.namespace);
    let (version, kind) = (text(wanted, "apiVersion"), text(wanted, "kind"));
    let bound = match (version, kind) {
        ("v1", "Pod") => {
            let pod = fields_of(reader, &format!("pods/{namespace}/{name}")).await?;
            let pod = pod.ok_or_else(|| missing("pods", name))?;
            of_pod(call, reader, &pod).await?
        }
        ("v1", "Node") => {
            let node = fields_of(reader, &format!("nodes/{name}"))
                .await?
                .ok_or_else(|| missing("nodes", name))?;
            let node = reference(&node);
            Bound {
                uid: node.uid.clone(),
                node: Some(node),
                ..Bound::default()
            }
        }
        ("v1", "Secret") => {
            let secret = fields_of(reader, &format!("secrets/{namespace}/{name}")).await?;
            let secret = reference(&secret.ok_or_else(|| missing("secrets", name))?);
            Bound {
                uid: secret.uid.clone(),
                secret: Some(secret),
                ..Bound::default()
            }
        }
        _ => {
            let text = format!("cannot bind token to object of type {version}, Kind={kind}");
            return Err(ApiError::new(Reason::BadRequest, text));
        }
    };
    let wanted_uid = text(wanted, "uid");
    if wanted_uid.is_empty() || wanted_uid == bound.uid {
        return Ok(bound);
    }
    let text = format!(
        "Operation cannot be fulfilled on {kind} {name:?}: the UID in the bound object reference ({wanted_uid}) does not match \
         the UID in record. The object might have been deleted and then recreated"
    );
    Err(ApiError::new(Reason::Conflict, text).about("", kind, name))
}

async fn of_pod(call: &Call, reader: &dyn Reader, pod: &Fields) -> Result<Bound, ApiError> {
    let empty = Map::new();
    let spec = object(pod, "spec").unwrap_or(&empty);
    if text(spec, "serviceAccountName") != call.target.name {
        let name = &call.target.name;
        let text = format!(
            "cannot bind token for serviceaccount {name:?} to pod running with different serviceaccount name."
        );
        return Err(ApiError::new(Reason::BadRequest, text));
    }
    let pod = reference(pod);
    let node = match text(spec, "nodeName") {
        "" => None,
        name => {
            let found = fields_of(reader, &format!("nodes/{name}")).await?;
            Some(found.map_or_else(
                || Reference {
                    name: name.to_owned(),
                    uid: String::new(),
                },
                |node| reference(&node),
            ))
        }
    };
    Ok(Bound {
        uid: pod.uid.clone(),
        pod: Some(pod),
        node,
        secret: None,
    })
}

fn refuse(call: &Call, why: &str) -> Result<(), ApiError> {
    Err(call.kind.forbidden(&call.target.name, why))
}

/// A node may request tokens for pods that it runs, for audiences that volumes of those name
/// (upstream: `NodeRestriction`).
async fn for_node(
    call: &Call,
    reader: &dyn Reader,
    authorizer: &Authorizer,
    node: &str,
    spec: &Fields,
    audiences: &[String],
) -> Result<(), ApiError> {
    let empty = Map::new();
    let wanted = object(spec, "boundObjectRef").unwrap_or(&empty);
    let name = text(wanted, "name");
    if text(wanted, "apiVersion") != "v1" || text(wanted, "kind") != "Pod" || name.is_empty() {
        return refuse(call, "node requested token not bound to a pod");
    }
    if text(wanted, "uid").is_empty() {
        return refuse(
            call,
            "node requested token with a pod binding without a uid",
        );
    }
    let key = format!("pods/{}/{name}", call.target.namespace);
    let pod = fields_of(reader, &key)
        .await?
        .ok_or_else(|| missing("pods", name))?;
    let pod_spec = object(&pod, "spec").unwrap_or(&empty);
    if text(pod_spec, "nodeName") != node {
        return refuse(
            call,
            "node requested token bound to a pod scheduled on a different node",
        );
    }
    // A request without an audience is for the API, like a volume without one. So the node gets no
    // token for the API if the pod has no such volume.
    let audience = match audiences {
        [] => "",
        [audience] => audience.as_str(),
        _ => return refuse(call, "node may only request 0 or 1 audiences"),
    };
    if master_pods::podspec::requests_token_for(pod_spec, audience) {
        return Ok(());
    }
    let audience_resource = Resource {
        resource: audience,
        namespace: &call.target.namespace,
        name: &call.target.name,
        ..Resource::default()
    };
    if authorizer
        .may(
            &call.user,
            "request-serviceaccounts-token-audience",
            audience_resource,
        )
        .await?
    {
        return Ok(());
    }
    refuse(
        call,
        &format!("audience {audience:?} not found in pod spec volume"),
    )
}

fn claims(
    target: &Target,
    issuer: &TokenIssuer,
    account: &Fields,
    audiences: Vec<String>,
    lifetime: i64,
    now: i64,
    bound: Bound,
) -> Claims {
    let (namespace, name) = (&target.namespace, &target.name);
    let own = audiences
        .iter()
        .all(|audience| issuer.audiences().contains(audience));
    let extended = bound.pod.is_some() && lifetime == POD_SECONDS && own;
    Claims {
        exp: now.saturating_add(if extended { EXTENDED_SECONDS } else { lifetime }),
        iat: now,
        nbf: now,
        iss: issuer.url().to_owned(),
        jti: uuid::Uuid::new_v4().to_string(),
        sub: format!("system:serviceaccount:{namespace}:{name}"),
        aud: audiences,
        kubernetes: Private {
            namespace: namespace.clone(),
            node: bound.node,
            pod: bound.pod,
            secret: bound.secret,
            serviceaccount: reference(account),
            warnafter: extended.then(|| now.saturating_add(lifetime)),
        },
    }
}
