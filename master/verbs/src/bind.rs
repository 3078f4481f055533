//! Binds pods to nodes: the binding subresource, and the deprecated `bindings` that name their pod
//! themselves.

use super::answer::{Answer, success};
use super::call::Call;
use bytes::Bytes;
use http::StatusCode;
use master_client::Body;
use master_objects::{Shallow, store_error};
use master_schema::error::{ApiError, Reason, no_resource};
use master_schema::validate::{Faults, FieldPath, Fields, get, meta, names, text};
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
    check(call, binding)?;
    let node = word(binding, "target", "name");
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

/// The fields of a binding's metadata that its pod gets.
const MARKS: [&str; 2] = ["annotations", "labels"];

/// Validates a binding. Its document has been read without a schema.
fn check(call: &Call, binding: &Value) -> Result<(), ApiError> {
    let nothing = Fields::new();
    let part = |key: &str| binding.get(key).and_then(Value::as_object);
    let metadata = part("metadata").unwrap_or(&nothing);
    for key in MARKS {
        let is_texts = match get(metadata, key) {
            Value::Null => true,
            Value::Object(all) => all.values().all(Value::is_string),
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => false,
        };
        if !is_texts {
            let text = format!(
                "Binding in version \"v1\" cannot be handled as a Binding: metadata.{key}: expected a map of strings"
            );
            return Err(ApiError::new(Reason::BadRequest, text));
        }
    }
    let mut faults = Faults::default();
    meta::labels_and_annotations(metadata, &mut faults);
    let at = FieldPath::root("target");
    let target = part("target").unwrap_or(&nothing);
    if text(target, "name").is_empty() {
        faults.required(&at.field("name"), "");
    } else if let Err(fault) = names::subdomain(text(target, "name")) {
        faults.invalid(&at.field("name"), get(target, "name"), fault);
    }
    if !matches!(text(target, "kind"), "" | "Node") {
        faults.unsupported(&at.field("kind"), get(target, "kind"), &["Node", "<empty>"]);
    }
    faults.into_error("", "Binding", &call.target.name)
}

/// Adds a binding's labels and annotations to its pod; whether there are any.
fn add_marks(call: &Call, pod: &mut Shallow<'_>, binding: &Value) -> Result<bool, ApiError> {
    let metadata = binding.get("metadata");
    let mut marks = Fields::new();
    for kind in MARKS {
        let Some(Value::Object(more)) = metadata.and_then(|metadata| metadata.get(kind)) else {
            continue;
        };
        if more.is_empty() {
            continue;
        }
        pod.change("metadata", |metadata| {
            let mut own: Fields = metadata.read(kind)?;
            own.extend(more.clone());
            metadata.set(kind, &own)?;
            marks.insert(kind.to_owned(), Value::Object(own));
            Ok(())
        })?;
    }
    // With those that the pod had: annotations are limited together.
    let mut faults = Faults::default();
    meta::labels_and_annotations(&marks, &mut faults);
    faults.into_error("", "Pod", &call.target.name)?;
    Ok(!marks.is_empty())
}

/// Whether a pod that got labels or annotations is still no larger than objects may be.
fn check_growth(entry: &Entry, bytes: &Bytes) -> Result<(), ApiError> {
    master_objects::check_size(bytes)?;
    let new = Entry {
        value: bytes.clone().into(),
        ..entry.clone()
    };
    let (new, old) = (
        master_objects::stored(&new)?,
        master_objects::stored(entry)?,
    );
    master_objects::check_growth(&new, Some(&old))
}

/// The stored pod, bound to its node.
fn bound(call: &Call, entry: &Entry, binding: &Value, node: &str) -> Result<Bytes, ApiError> {
    let bytes = entry.value.bytes();
    let mut pod = Shallow::stored(entry, &bytes)?;
    let version = word(binding, "metadata", "resourceVersion");
    if !version.is_empty() && version != entry.modified.to_string() {
        return Err(call.conflict(&format!(
            "Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta: {}",
            entry.modified
        )));
    }
    let generation: Value = {
        let metadata = pod.object("metadata")?;
        is_bindable(call, &metadata, word(binding, "metadata", "uid"))?;
        metadata.read("generation")?
    };
    pod.change("spec", |spec| {
        is_free(call, spec)?;
        spec.set("nodeName", &node)
    })?;
    let is_marked = add_marks(call, &mut pod, binding)?;
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
    let bound = pod.encode();
    if is_marked {
        check_growth(entry, &bound)?;
    }
    Ok(bound)
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
