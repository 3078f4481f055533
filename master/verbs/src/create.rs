//! Create.

use super::answer::Answer;
use super::call::Call;
use super::managed::Ownership;
use super::writer::ObjectWriter;
use http::{HeaderValue, Response, StatusCode};
use master_admission::Operation;
use master_client::Body;
use master_objects::{Identities, store_error};
use master_schema::error::{ApiError, Reason};
use master_schema::object::{meta_text, metadata, metadata_mut};
use master_schema::registry::Kind;
use master_schema::validate::{Faults, Fields, meta};
use master_store::{Entry, Op, StoreError};

/// Attempts, as others may change what admission read (a namespace, a quota), or a generated name
/// may be in use.
const TRIES: usize = 32;

/// Creates an object.
pub(super) async fn create(call: &Call, writer: &ObjectWriter<'_>, content: Body) -> Answer {
    let bytes = call.bytes(content).await?;
    let (mut fields, warnings) = call.read_object(&bytes)?;
    let ownership = Ownership::of(call, &mut fields);
    let again = || Ok(call.read_object(&bytes)?.0);
    let made = make(call, writer, fields, again, &ownership, warnings.clone());
    made.await.or_else(|error| refused(error, &warnings))
}

/// A refusal after the body was read carries the warnings too.
pub(super) fn refused(error: ApiError, warnings: &[String]) -> Answer {
    if warnings.is_empty() {
        Err(error)
    } else {
        Ok(warned(master_wire::respond::respond(&error), warnings))
    }
}

/// Creates an object from a decoded body or an applied configuration. A second attempt, which few
/// writes need, starts with the object that `again` returns: otherwise every object would have to
/// be copied for it.
pub(super) async fn make(
    call: &Call,
    writer: &ObjectWriter<'_>,
    first: Fields,
    again: impl Fn() -> Result<Fields, ApiError>,
    ownership: &Ownership,
    mut warnings: Vec<String>,
) -> Answer {
    let kept = warnings.len();
    let dry_run = call.dry_run()?;
    let mut first = Some(first);
    for _ in 0..TRIES {
        let mut fields = first.take().map_or_else(&again, Ok)?;
        let managed = prepare(call, writer.identities, &mut fields, ownership)?;
        let generated = generate_name(writer.identities, &mut fields);
        // The kind's strategy may depend on the name.
        (call.kind.strategy.create)(&mut fields);
        if let Some(blank) = &call.kind.blank {
            fields.entry("status").or_insert_with(|| blank.clone());
        }
        let request = writer.request(call, Operation::Create, None, None);
        let mut admitted = writer.admission.admit(&request, &mut fields).await?;
        validate(&call.kind, &fields)?;
        let check = writer.admission.check(&request, &fields, &mut admitted);
        check.await?;
        master_objects::check_growth(&fields, None)?;
        warnings.append(&mut admitted.warnings);
        warnings.extend(writer.own_warnings(call, &fields));
        master_objects::put_managed(&mut fields, managed);
        if dry_run {
            return Ok(warned(
                call.fields_answer(StatusCode::CREATED, fields)?,
                &warnings,
            ));
        }
        let name = meta_text(&fields, "name").to_owned();
        let key = call.kind.key(meta_text(&fields, "namespace"), &name);
        let bytes = master_objects::encode(&call.kind, fields)?;
        admitted.ops.insert(0, Op::create(&key, bytes.clone()));
        match writer.store.commit(admitted.ops).await {
            Ok(done) => {
                let entry = Entry {
                    key: key.into(),
                    value: bytes.into(),
                    created: done.revision,
                    modified: done.revision,
                };
                return Ok(warned(
                    call.object_answer(StatusCode::CREATED, &entry)?,
                    &warnings,
                ));
            }
            Err(StoreError::Conflict { key: taken, .. }) if taken == key && !generated => {
                return Err(exists(&call.kind, &name));
            }
            // Repeat: what admission read has changed, or the generated name is taken.
            Err(StoreError::Conflict { .. }) => warnings.truncate(kept),
            Err(error) => return Err(store_error(error)),
        }
    }
    Err(ApiError::new(
        Reason::ServerTimeout,
        "other writers interfered with each attempt to create the object; try again",
    )
    .retry_after(1))
}

/// Names an object without a name that asks for a generated one; whether it did.
fn generate_name(identities: &Identities, fields: &mut Fields) -> bool {
    let base = meta_text(fields, "generateName");
    if base.is_empty() || !meta_text(fields, "name").is_empty() {
        return false;
    }
    let name = identities.name(base);
    metadata_mut(fields).insert("name".to_owned(), name.into());
    true
}

fn exists(kind: &Kind, name: &str) -> ApiError {
    let plural = kind.qualified();
    ApiError::new(
        Reason::AlreadyExists,
        format!("{plural} {name:?} already exists"),
    )
    .about(&kind.group, &kind.plural, name)
}

/// Sets what the server sets in every new object, and the kind's defaults; returns the managed
/// fields.
fn prepare(
    call: &Call,
    identities: &Identities,
    fields: &mut Fields,
    ownership: &Ownership,
) -> Result<Option<String>, ApiError> {
    place(call, fields)?;
    stamp(call, identities, fields);
    (call.kind.strategy.defaults)(fields);
    let managed = call.managed_fields(&Fields::new(), fields, None, ownership);
    if call.kind.has_status() && !call.kind.strategy.status_at_creation {
        fields.remove("status");
    }
    Ok(managed)
}

/// Sets the path's namespace in the object.
fn place(call: &Call, fields: &mut Fields) -> Result<(), ApiError> {
    if !meta_text(fields, "resourceVersion").is_empty() {
        return Err(ApiError::new(
            Reason::BadRequest,
            "resourceVersion should not be set on objects to be created",
        ));
    }
    if call.kind.namespaced {
        call.check_namespace(meta_text(fields, "namespace"))?;
        let own = call.target.namespace.clone();
        metadata_mut(fields).insert("namespace".to_owned(), own.into());
    }
    Ok(())
}

/// Sets the fields that the server sets on every new object.
fn stamp(call: &Call, identities: &Identities, fields: &mut Fields) {
    let metadata = metadata_mut(fields);
    for key in [
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "managedFields",
        "generation",
    ] {
        metadata.remove(key);
    }
    metadata.insert("uid".to_owned(), identities.uid().into());
    metadata.insert("creationTimestamp".to_owned(), call.clock.text().into());
    if call.kind.strategy.generation {
        metadata.insert("generation".to_owned(), 1.into());
    }
}

/// Validates a new object and reports all faults at once.
fn validate(kind: &Kind, fields: &Fields) -> Result<(), ApiError> {
    let mut faults = Faults::default();
    let strategy = &kind.strategy;
    meta::validate(
        metadata(fields),
        kind.namespaced,
        strategy.names,
        &mut faults,
    );
    (strategy.validate)(fields, &mut faults);
    (strategy.validate_create)(fields, &mut faults);
    let name = match meta_text(fields, "name") {
        "" => meta_text(fields, "generateName"),
        name => name,
    };
    faults.into_error(&kind.group, &kind.kind, name)
}

/// Adds warnings to an answer (RFC 7234, 5.5).
pub fn warned(mut response: Response<Body>, warnings: &[String]) -> Response<Body> {
    for warning in warnings.iter().take(20) {
        let escaped = warning.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{escaped}\"")) {
            response.headers_mut().append("warning", value);
        }
    }
    response
}
