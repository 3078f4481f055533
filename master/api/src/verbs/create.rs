//! Create.

use super::{Call, store_error};
use crate::admit;
use crate::error::{ApiError, Reason};
use crate::object::{self, meta_text, metadata, metadata_mut};
use crate::path::Verb;
use crate::server::Body;
use crate::validate::{Faults, Fields, meta};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};
use master_store::{Action, Entry, Expect, Op, StoreError};
use serde_json::Value;

/// Tries against a namespace that changes at the same time, or a generated name that is taken.
const TRIES: usize = 8;
/// Length that a generated name's base is cut to.
const BASE: usize = 58;
/// Characters of generated names: no vowels, nothing that reads like something else.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Creates an object.
pub(super) async fn create(call: &Call, content: Body) -> Result<Response<Body>, ApiError> {
    let (mut fields, warnings) = call.object(content).await?;
    let dry_run = call.dry_run()?;
    place(call, &mut fields)?;
    let generated = meta_text(&fields, "name").is_empty() && !meta_text(&fields, "generateName").is_empty();
    stamp(call, &mut fields);
    (call.kind.strategy.defaults)(&mut fields);
    if call.kind.has_status() && !call.kind.strategy.status_at_creation {
        fields.remove("status");
    }
    (call.kind.strategy.create)(&mut fields);
    admit::create(call, &mut fields)?;
    for _ in 0..TRIES {
        if generated {
            let base = meta_text(&fields, "generateName");
            let name = generate(base);
            metadata_mut(&mut fields).insert("name".to_owned(), name.into());
        }
        validate(call, &fields)?;
        let namespace = namespace(call, &fields).await?;
        if dry_run {
            return Ok(warned(call.fields_answer(StatusCode::CREATED, fields)?, &warnings));
        }
        let key = call.kind.key(meta_text(&fields, "namespace"), meta_text(&fields, "name"));
        let bytes = object::encode(&call.kind, fields.clone())?;
        match commit(call, namespace.as_ref(), &key, bytes.clone()).await {
            Ok(revision) => {
                let entry = Entry { key: key.into(), value: bytes, created: revision, modified: revision };
                return Ok(warned(call.object_answer(StatusCode::CREATED, &entry)?, &warnings));
            }
            Err(StoreError::Conflict { key: taken, .. }) if taken == key && !generated => {
                return Err(exists(call, meta_text(&fields, "name")));
            }
            // Another try: the namespace changed, or the generated name was taken.
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(store_error(error)),
        }
    }
    Err(ApiError::new(Reason::ServerTimeout, "the object could not be created against other writers, try again")
        .retry_after(1))
}

/// Commits the object, if its namespace is still as it was.
async fn commit(call: &Call, namespace: Option<&Entry>, key: &str, bytes: Bytes) -> Result<u64, StoreError> {
    let mut ops = vec![Op::create(key, bytes)];
    if let Some(namespace) = namespace {
        let expect = Expect::Revision(namespace.modified);
        ops.push(Op { key: namespace.key.clone(), expect, action: Action::Check });
    }
    Ok(call.api.inner.store.commit(ops).await?.revision)
}

fn exists(call: &Call, name: &str) -> ApiError {
    let plural = call.kind.qualified();
    ApiError::new(Reason::AlreadyExists, format!("{plural} {name:?} already exists")).about(
        &call.kind.group,
        &call.kind.plural,
        name,
    )
}

/// Puts the object into the path's namespace.
fn place(call: &Call, fields: &mut Fields) -> Result<(), ApiError> {
    if !meta_text(fields, "resourceVersion").is_empty() {
        return Err(ApiError::new(Reason::BadRequest, "resourceVersion should not be set on objects to be created"));
    }
    let namespace = meta_text(fields, "namespace");
    if !call.kind.namespaced {
        return Ok(());
    }
    if !namespace.is_empty() && namespace != call.target.namespace {
        let text = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(ApiError::new(Reason::BadRequest, text));
    }
    metadata_mut(fields).insert("namespace".to_owned(), call.target.namespace.clone().into());
    Ok(())
}

/// What the server says of every new object.
fn stamp(call: &Call, fields: &mut Fields) {
    let metadata = metadata_mut(fields);
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields", "generation"] {
        metadata.remove(key);
    }
    metadata.insert("uid".to_owned(), uuid::Uuid::new_v4().to_string().into());
    metadata.insert("creationTimestamp".to_owned(), object::now().into());
    if call.kind.strategy.generation {
        metadata.insert("generation".to_owned(), 1.into());
    }
}

fn generate(base: &str) -> String {
    let mut end = base.len().min(BASE);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    let random = uuid::Uuid::new_v4();
    let suffix = random.as_bytes().iter().take(5).map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]));
    base[..end].chars().chain(suffix).collect()
}

/// Checks a new object, all faults at once.
pub(super) fn validate(call: &Call, fields: &Fields) -> Result<(), ApiError> {
    let mut faults = Faults::default();
    let strategy = &call.kind.strategy;
    meta::validate(metadata(fields), call.kind.namespaced, strategy.names, &mut faults);
    (strategy.validate)(fields, &mut faults);
    let name = match meta_text(fields, "name") {
        "" => meta_text(fields, "generateName"),
        name => name,
    };
    faults.into_error(&call.kind.group, &call.kind.kind, name)
}

/// The object's namespace, which must exist and not be going.
async fn namespace(call: &Call, fields: &Fields) -> Result<Option<Entry>, ApiError> {
    if !call.kind.namespaced || call.target.verb != Verb::Create {
        return Ok(None);
    }
    let name = meta_text(fields, "namespace");
    let fetched = call.api.inner.store.get(&format!("namespaces/{name}")).await.map_err(store_error)?;
    let Some(entry) = fetched.entry else {
        return Err(ApiError::new(Reason::NotFound, format!("namespaces {name:?} not found")).about(
            "",
            "namespaces",
            name,
        ));
    };
    let namespace: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
    if namespace.pointer("/metadata/deletionTimestamp").is_some() {
        let own = meta_text(fields, "name");
        let text = format!("unable to create new content in namespace {name} because it is being terminated");
        return Err(call.forbidden(own, &text));
    }
    Ok(Some(entry))
}

/// Adds warnings to an answer (RFC 7234, 5.5).
pub(super) fn warned(mut response: Response<Body>, warnings: &[String]) -> Response<Body> {
    for warning in warnings.iter().take(20) {
        let escaped = warning.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{escaped}\"")) {
            response.headers_mut().append("warning", value);
        }
    }
    response
}
