//! Binds pods to nodes: the binding subresource, and the deprecated `bindings` that name their pod
//! themselves.

use super::Call;
use super::answer::success;
use http::{Response, StatusCode};
use master_client::Body;
use master_objects::store_error;
use master_schema::error::{ApiError, Reason, no_resource};
use master_schema::object::{metadata, metadata_mut};
use master_schema::validate::{Fields, items, object as inner, object_mut, text};
use master_store::{Op, StoreError};
use serde_json::{Value, json};

/// Attempts, as other writers may change the pod.
const TRIES: usize = 16;

/// Binds the pod that a `Binding` names.
pub(super) async fn bind_named(call: &Call, content: Body) -> Result<Response<Body>, ApiError> {
    let binding = call.document(content).await?.value;
    let name = binding
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    if name.is_empty() {
        return Err(ApiError::new(
            Reason::BadRequest,
            "name is required: metadata.name says which pod is bound",
        ));
    }
    let mut inner = call.plain();
    inner.kind = call
        .registry
        .find("", "v1", "pods")
        .ok_or_else(no_resource)?
        .clone();
    "pods".clone_into(&mut inner.target.plural);
    "binding".clone_into(&mut inner.target.subresource);
    inner.target.name = name;
    bind_to(&inner, &binding).await
}

/// Binds the pod that the path names.
pub(super) async fn bind(call: &Call, content: Body) -> Result<Response<Body>, ApiError> {
    let binding = call.document(content).await?.value;
    let name = binding
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if !name.is_empty() && name != call.target.name {
        return Err(ApiError::new(
            Reason::BadRequest,
            "name in URL does not match name in Binding object",
        ));
    }
    bind_to(call, &binding).await
}

/// Binds a pod to a node, once.
async fn bind_to(call: &Call, binding: &Value) -> Result<Response<Body>, ApiError> {
    let word = |pointer: &str| {
        binding
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let node = word("/target/name").to_owned();
    let invalid = |field: &str, text: &str| {
        let message = format!("Binding {:?} is invalid: {field}: {text}", call.target.name);
        Err(ApiError::new(Reason::Invalid, message).about("", "Binding", &call.target.name))
    };
    if node.is_empty() {
        return invalid("target.name", "Required value");
    }
    if !matches!(word("/target/kind"), "" | "Node") {
        return invalid(
            "target.kind",
            "Unsupported value: supported values: \"Node\", \"<empty>\"",
        );
    }
    let uid = word("/metadata/uid").to_owned();
    for _ in 0..TRIES {
        let entry = call.entry().await?;
        let old = master_objects::decode_kept(&call.kind, &entry)?;
        if !uid.is_empty() && uid != master_schema::object::meta_text(&old, "uid") {
            return Err(call.conflict(
                "Precondition failed: the pod is not the one that was to be bound (UID)",
            ));
        }
        let bound = bound(call, old, binding, &node)?;
        if call.dry_run()? {
            return success(StatusCode::CREATED, None, call.accept()?);
        }
        let bytes = master_objects::encode(&call.kind, bound)?;
        let op = Op::update(&entry.key, entry.modified, bytes);
        match call.api.inner.store.commit(vec![op]).await {
            Ok(_) => return success(StatusCode::CREATED, None, call.accept()?),
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(store_error(error)),
        }
    }
    Err(call.conflict("the pod changes faster than it can be bound, try again"))
}

/// The pod bound to its node.
fn bound(call: &Call, mut pod: Fields, binding: &Value, node: &str) -> Result<Fields, ApiError> {
    if !text(metadata(&pod), "deletionTimestamp").is_empty() {
        return Err(call.conflict(&format!(
            "pod {} is being deleted, cannot be assigned to a host",
            call.target.name
        )));
    }
    let empty = Fields::new();
    let spec = inner(&pod, "spec").unwrap_or(&empty);
    let own = text(spec, "nodeName");
    if !own.is_empty() {
        return Err(call.conflict(&format!(
            "pod {} is already assigned to node {own:?}",
            call.target.name
        )));
    }
    if !items(spec, "schedulingGates").is_empty() {
        return Err(call.conflict(&format!(
            "pod {} has non-empty .spec.schedulingGates",
            call.target.name
        )));
    }
    if let Some(spec) = object_mut(&mut pod, "spec") {
        spec.insert("nodeName".to_owned(), node.into());
    }
    for kind in ["annotations", "labels"] {
        let Some(Value::Object(more)) = binding
            .get("metadata")
            .and_then(|metadata| metadata.get(kind))
        else {
            continue;
        };
        if let Some(own) = object_mut(metadata_mut(&mut pod), kind) {
            own.extend(more.clone());
        }
    }
    if let Some(status) = object_mut(&mut pod, "status") {
        let scheduled = |condition: &Value| {
            condition
                .get("type")
                .is_some_and(|kind| kind == "PodScheduled")
        };
        let mut conditions: Vec<Value> = items(status, "conditions")
            .iter()
            .filter(|c| !scheduled(c))
            .cloned()
            .collect();
        conditions.push(json!({
            "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": master_schema::object::now(),
        }));
        status.insert("conditions".to_owned(), Value::Array(conditions));
    }
    Ok(pod)
}
