//! Update, of objects and of subresources that have the object's form.

use super::answer::Answer;
use super::call::{Call, stored};
use super::create::{make, refused, warned};
use super::managed::{Ownership, same_but_times};
use super::scale;
use super::writer::ObjectWriter;
use http::{Response, StatusCode};
use master_admission::{Admitted, Operation};
use master_client::Body;
use master_objects::store_error;
use master_schema::error::{ApiError, Reason};
use master_schema::object::{meta_text, metadata, metadata_mut};
use master_schema::registry::{Kind, Subresource};
use master_schema::validate::{Faults, Fields, get, items, meta, object as inner, text};
use master_store::{Entry, Op, StoreError};
use serde_json::Value;

/// Attempts of a write without a resource version, as other writers may change the object.
pub(super) const TRIES: usize = 16;

pub(super) const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// Replaces an object or a subresource.
pub(super) async fn update(
    call: &Call,
    writer: &ObjectWriter<'_>,
    subresource: Option<Subresource>,
    content: Body,
) -> Answer {
    let (fields, warnings) = call.object(content).await?;
    let answer = replace(call, writer, subresource, fields).await;
    answer
        .map(|response| warned(response, &warnings))
        .or_else(|error| refused(error, &warnings))
}

/// Replaces an object or a subresource with a decoded one.
async fn replace(
    call: &Call,
    writer: &ObjectWriter<'_>,
    subresource: Option<Subresource>,
    mut fields: Fields,
) -> Answer {
    let ownership = Ownership::of(call, &mut fields);
    call.check_name(meta_text(&fields, "name"))?;
    let namespace = meta_text(&fields, "namespace");
    if call.kind.namespaced && !namespace.is_empty() && namespace != call.target.namespace {
        let text = format!(
            "the namespace of the object ({namespace}) does not match the namespace on the URL ({})",
            call.target.namespace
        );
        return Err(ApiError::new(Reason::BadRequest, text));
    }
    let demanded = meta_text(&fields, "resourceVersion").to_owned();
    let uid = meta_text(&fields, "uid").to_owned();
    for _ in 0..TRIES {
        let Some(entry) = stored(writer.reader, &call.key()).await? else {
            if !(call.kind.strategy.made_by_update && subresource.is_none()) {
                return Err(call.not_found());
            }
            call.may_create(writer.authorizer).await?;
            let again = || Ok(fields.clone());
            let first = fields.clone();
            match make(call, writer, first, again, &ownership, Vec::new()).await {
                // Another writer created it meanwhile.
                Err(error) if error.reason == Reason::AlreadyExists => continue,
                answer => return answer,
            }
        };
        let old = master_objects::decode_for_update(&call.kind, &entry)?;
        writer.reach(call, &old)?;
        check_preconditions(call, &entry, &old, &demanded, &uid)?;
        let new = fields.clone();
        match write(call, writer, subresource, &entry, old, new, &ownership).await? {
            Some(response) => return Ok(response),
            None if matches!(&*demanded, "" | "0") => {}
            None => return Err(call.conflict(MODIFIED)),
        }
    }
    Err(call.conflict(MODIFIED))
}

/// Checks the resource version and UID that a write demands.
pub(super) fn check_preconditions(
    call: &Call,
    entry: &Entry,
    old: &Fields,
    version: &str,
    uid: &str,
) -> Result<(), ApiError> {
    if !version.is_empty() && version != "0" && version != entry.modified.to_string() {
        return Err(call.conflict(MODIFIED));
    }
    let own = meta_text(old, "uid");
    if !uid.is_empty() && uid != own {
        return Err(call.conflict(&format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {own}"
        )));
    }
    Ok(())
}

/// Writes a new version of an object; `None` if another writer was first.
pub(super) async fn write(
    call: &Call,
    writer: &ObjectWriter<'_>,
    subresource: Option<Subresource>,
    entry: &Entry,
    mut old: Fields,
    mut new: Fields,
    ownership: &Ownership,
) -> Result<Option<Response<Body>>, ApiError> {
    let live = master_objects::take_managed(&mut old);
    let (draft, managed) = if subresource.is_none() {
        (call.kind.strategy.defaults)(&mut new);
        let managed = call.managed_fields(&old, &new, live.as_deref(), ownership);
        (compose(&call.kind, None, &old, new), managed)
    } else {
        let draft = compose(&call.kind, subresource, &old, new);
        let managed = call.managed_fields(&old, &draft, live.as_deref(), ownership);
        (draft, managed)
    };
    for _ in 0..TRIES {
        let (new, admitted) = admit(call, writer, subresource, draft.clone(), &old).await?;
        let warnings = admitted.warnings;
        let ends = may_end(&call.kind, &new);
        let new = with_managed_fields(&call.kind, entry, new, live.as_ref(), managed.as_ref())?;
        if call.dry_run()? {
            return call
                .fields_answer(StatusCode::OK, new)
                .map(|answer| Some(warned(answer, &warnings)));
        }
        let bytes = master_objects::encode(&call.kind, new)?;
        if entry.value == bytes && !ends {
            return call
                .object_answer(StatusCode::OK, entry)
                .map(|answer| Some(warned(answer, &warnings)));
        }
        let op = if ends {
            Op::delete(&entry.key, entry.modified)
        } else {
            Op::update(&entry.key, entry.modified, bytes.clone())
        };
        let mut ops = vec![op];
        ops.extend(admitted.ops);
        if ends {
            ops.extend(writer.release(call, &old).await?);
        }
        match writer.store.commit(ops).await {
            Ok(done) => {
                let (key, created, modified) = (entry.key.clone(), entry.created, done.revision);
                let entry = Entry {
                    key,
                    value: bytes.into(),
                    created,
                    modified,
                };
                return call
                    .object_answer(StatusCode::OK, &entry)
                    .map(|answer| Some(warned(answer, &warnings)));
            }
            Err(StoreError::Conflict { key, .. }) if *key == *entry.key => return Ok(None),
            // What admission read has changed, not the object.
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(store_error(error)),
        }
    }
    Err(ApiError::new(
        Reason::ServerTimeout,
        "other writers interfered with each attempt to write the object; try again",
    )
    .retry_after(1))
}

/// The draft of a new version after admission and validation, with its generation, and what
/// admission adds to the write.
async fn admit(
    call: &Call,
    writer: &ObjectWriter<'_>,
    subresource: Option<Subresource>,
    mut new: Fields,
    old: &Fields,
) -> Result<(Fields, Admitted), ApiError> {
    let request = writer.request(call, Operation::Update, subresource, Some(old));
    let mut admitted = writer.admission.admit(&request, &mut new).await?;
    validate(call, subresource, &new, old)?;
    let check = writer.admission.check(&request, &new, &mut admitted);
    check.await?;
    master_objects::check_growth(&new, Some(old))?;
    if call.kind.strategy.generation && spec_changed(&new, old) {
        let generation = get(metadata(old), "generation")
            .as_i64()
            .unwrap_or_default();
        metadata_mut(&mut new).insert("generation".to_owned(), (generation + 1).into());
    }
    if subresource.is_none() {
        admitted.warnings.extend(writer.own_warnings(call, &new));
    }
    Ok((new, admitted))
}

/// The object with its managed fields. If only their times would change, the old times are kept.
fn with_managed_fields(
    kind: &Kind,
    entry: &Entry,
    mut new: Fields,
    live: Option<&String>,
    managed: Option<&String>,
) -> Result<Fields, ApiError> {
    if let (Some(live), Some(managed)) = (live, managed)
        && live != managed
        && same_but_times(live, managed)
    {
        master_objects::put_managed(&mut new, Some(live.clone()));
        if entry.value == master_objects::encode(kind, new.clone())? {
            return Ok(new);
        }
    }
    master_objects::put_managed(&mut new, managed.cloned());
    Ok(new)
}

/// The object as it would be stored: the fields that the subresource may change from the new one,
/// the rest from the old.
fn compose(kind: &Kind, subresource: Option<Subresource>, old: &Fields, mut new: Fields) -> Fields {
    let strategy = &kind.strategy;
    let mut result = match subresource {
        None => {
            if kind.has_status() {
                take(&mut new, old, "status");
            }
            (strategy.update)(&mut new, old);
            new
        }
        Some(Subresource::Finalize) => {
            let mut result = old.clone();
            take(&mut result, &new, "spec");
            result
        }
        Some(Subresource::Scale) => scale::compose(kind, old, &new),
        Some(subresource) => {
            let mut result = old.clone();
            take(&mut result, &new, "status");
            if strategy.status_carries_metadata {
                let (labels, annotations) = (
                    get(metadata(&new), "labels").clone(),
                    get(metadata(&new), "annotations").clone(),
                );
                for (key, value) in [("labels", labels), ("annotations", annotations)] {
                    if value.is_null() {
                        metadata_mut(&mut result).remove(key);
                    } else {
                        metadata_mut(&mut result).insert(key.to_owned(), value);
                    }
                }
            }
            (strategy.through)(subresource, &mut result, &new, old);
            result
        }
    };
    let before = metadata(old).clone();
    let metadata = metadata_mut(&mut result);
    let kept = [
        "uid",
        "namespace",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
    ];
    for key in kept {
        take(metadata, &before, key);
    }
    metadata.remove("selfLink");
    result
}

/// Copies a field from `from`, or removes it.
fn take(into: &mut Fields, from: &Fields, key: &str) {
    match from.get(key) {
        Some(value) => drop(into.insert(key.to_owned(), value.clone())),
        None => drop(into.remove(key)),
    }
}

fn validate(
    call: &Call,
    subresource: Option<Subresource>,
    new: &Fields,
    old: &Fields,
) -> Result<(), ApiError> {
    let mut faults = Faults::default();
    let strategy = &call.kind.strategy;
    let judge = |fields: &Fields, faults: &mut Faults| {
        meta::validate(
            metadata(fields),
            call.kind.namespaced,
            strategy.names,
            faults,
        );
        if subresource.is_none() {
            (strategy.validate)(fields, faults);
        }
    };
    judge(new, &mut faults);
    if !faults.is_empty() {
        // Invalid values that were stored before there was a rule may stay.
        let mut known = Faults::default();
        judge(old, &mut known);
        faults.forgive(&known);
    }
    meta::validate_update(metadata(new), metadata(old), &mut faults);
    if !matches!(
        subresource,
        Some(Subresource::EphemeralContainers | Subresource::Resize)
    ) {
        (strategy.validate_update)(new, old, &mut faults);
    }
    if let Some(subresource) = subresource {
        (strategy.validate_through)(subresource, new, old, &mut faults);
        if !faults.is_empty() {
            let mut known = Faults::default();
            (strategy.validate_through)(subresource, old, old, &mut known);
            faults.forgive_forms(&known);
            faults.forgive_long(&known);
        }
    }
    faults.into_error(&call.kind.group, &call.kind.kind, &call.target.name)
}

/// Whether anything but metadata and status changed.
fn spec_changed(new: &Fields, old: &Fields) -> bool {
    let kept = |(key, _): &(&String, &Value)| {
        !matches!(key.as_str(), "metadata" | "status" | "kind" | "apiVersion")
    };
    let [new, old] = [new, old].map(|fields| fields.iter().filter(kept));
    !new.eq(old)
}

/// Whether an object that is being deleted has no finalizers left.
fn may_end(kind: &Kind, new: &Fields) -> bool {
    let metadata = metadata(new);
    if text(metadata, "deletionTimestamp").is_empty() || !items(metadata, "finalizers").is_empty() {
        return false;
    }
    if kind.strategy.graceful && get(metadata, "deletionGracePeriodSeconds").as_i64() != Some(0) {
        return false;
    }
    let held = inner(new, "spec").is_some_and(|spec| !items(spec, "finalizers").is_empty());
    !(kind.kind == "Namespace" && held)
}
