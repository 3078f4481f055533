//! Binds pods to nodes: the binding subresource, and the deprecated `bindings` that name their pod
//! themselves.

use super::answer::{Answer, success};
use super::call::Call;
use bytes::Bytes;
use http::StatusCode;
use master_client::Body;
use master_objects::{Shallow, store_error};
use master_schema::error::{ApiError, Reason, no_resource};
use master_schema::validate::Fields;
use master_store::{Entry, Op, Reader, Store, StoreError};
use serde_json::{Value, json};

/// Attempts, as other writers may change the pod.
const TRIES: usize = 16;

/// Binds the pod that a `Binding` names.
pub(super) async fn bind_named(
    call: &Call,
    reader: &dyn Reader,
    store: &dyn Store,
    content: Body,
) -> Answer {
    let binding = call.document(content).await?.value;
    let name = word(&binding, "metadata", "name").to_owned();
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
    bind_to(&inner, reader, store, &binding).await
}

/// Binds the pod that the path names.
pub(super) async fn bind(
    call: &Call,
    reader: &dyn Reader,
    store: &dyn Store,
    content: Body,
) -> Answer {
    let binding = call.document(content).await?.value;
    let name = word(&binding, "metadata", "name");
    if !name.is_empty() && name != call.target.name {
        return Err(ApiError::new(
            Reason::BadRequest,
            "name in URL does not match name in Binding object",
        ));
    }
    bind_to(call, reader, store, &binding).await
}

/// A text of one of the binding's two parts; empty if it has none.
fn word<'a>(binding: &'a Value, part: &str, key: &str) -> &'a str {
    let value = binding.get(part).and_then(|part| part.get(key));
    value.and_then(Value::as_str).unwrap_or_default()
}

/// Binds a pod to a node, once.
async fn bind_to(call: &Call, reader: &dyn Reader, store: &dyn Store, binding: &Value) -> Answer {
    let node = word(binding, "target", "name");
    let invalid = |field: &str, text: &str| {
        let message = format!("Binding {:?} is invalid: {field}: {text}", call.target.name);
        Err(ApiError::new(Reason::Invalid, message).about("", "Binding", &call.target.name))
    };
    if node.is_empty() {
        return invalid("target.name", "Required value");
    }
    if !matches!(word(binding, "target", "kind"), "" | "Node") {
        return invalid(
            "target.kind",
            "Unsupported value: supported values: \"Node\", \"<empty>\"",
        );
    }
    for _ in 0..TRIES {
        let entry = call.entry(reader).await?;
        let bytes = bound(call, &entry, binding, node)?;
        if call.dry_run()? {
            return success(StatusCode::CREATED, None, call.accept()?);
        }
        let op = Op::update(&entry.key, entry.modified, bytes);
        match store.commit(vec![op]).await {
            Ok(_) => return success(StatusCode::CREATED, None, call.accept()?),
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(store_error(error)),
        }
    }
    Err(call.conflict("the pod changes faster than it can be bound, try again"))
}

/// The stored pod, bound to its node.
fn bound(call: &Call, entry: &Entry, binding: &Value, node: &str) -> Result<Bytes, ApiError> {
    let bytes = entry.value.bytes();
    let mut pod = Shallow::stored(entry, &bytes)?;
    is_bindable(
        call,
        &pod.object("metadata")?,
        word(binding, "metadata", "uid"),
    )?;
    pod.change("spec", |spec| {
        is_free(call, spec)?;
        spec.set("nodeName", &node)
    })?;
    let metadata = binding.get("metadata");
    for kind in ["annotations", "labels"] {
        let Some(Value::Object(more)) = metadata.and_then(|metadata| metadata.get(kind)) else {
            continue;
        };
        pod.change("metadata", |metadata| {
            let mut own: Fields = metadata.read(kind)?;
            own.extend(more.clone());
            metadata.set(kind, &own)
        })?;
    }
    let generation: Value = pod.object("metadata")?.read("generation")?;
    pod.change("status", |status| {
        let mut conditions: Vec<Value> = status.read("conditions")?;
        conditions.retain(|condition| {
            let kind = condition.get("type");
            kind.is_none_or(|kind| kind != "PodScheduled")
        });
        conditions.push(json!({
            "type": "PodScheduled", "status": "True", "observedGeneration": generation,
            "lastProbeTime": null, "lastTransitionTime": call.clock.text(),
        }));
        status.set("conditions", &conditions)
    })?;
    Ok(pod.encode())
}

/// Refuses a pod that is not the one to be bound, or that is being deleted.
fn is_bindable(call: &Call, metadata: &Shallow<'_>, uid: &str) -> Result<(), ApiError> {
    if !uid.is_empty() && uid != metadata.read::<String>("uid")? {
        return Err(
            call.conflict("Precondition failed: the pod is not the one that was to be bound (UID)")
        );
    }
    if !metadata.read::<String>("deletionTimestamp")?.is_empty() {
        let name = &call.target.name;
        return Err(call.conflict(&format!(
            "pod {name} is being deleted, cannot be assigned to a host"
        )));
    }
    Ok(())
}

/// Refuses a pod that has a node, or must not get one yet.
fn is_free(call: &Call, spec: &Shallow<'_>) -> Result<(), ApiError> {
    let name = &call.target.name;
    let own: String = spec.read("nodeName")?;
    if !own.is_empty() {
        return Err(call.conflict(&format!("pod {name} is already assigned to node {own:?}")));
    }
    if !spec.read::<Vec<Value>>("schedulingGates")?.is_empty() {
        return Err(call.conflict(&format!("pod {name} has non-empty .spec.schedulingGates")));
    }
    Ok(())
}
