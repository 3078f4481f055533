//! Delete and delete collection.

mod collection;
mod options;

pub(super) use collection::collection;

use super::answer::{Answer, success};
use super::call::{Call, stored};
use super::create::warned;
use super::writer::ObjectWriter;
use http::StatusCode;
use master_client::Body;
use master_objects::deletion::{Options, Step, plan};
use master_objects::store_error;
use master_schema::error::ApiError;
use master_schema::object::meta_text;
use master_schema::registry::{Dependents, Kind};
use master_schema::validate::Fields;
use master_store::{Entry, Op, StoreError};
use serde_json::json;

/// Attempts, as other writers may change the object.
const TRIES: usize = 16;

/// The result of a deletion.
pub(super) enum Deleted {
    /// The object is deleted; its last state.
    Gone(Fields),
    /// The object waits for finalizers or its kubelet.
    Going(Entry),
}

/// Deletes an object.
pub(super) async fn delete(call: &Call, writer: &ObjectWriter<'_>, content: Body) -> Answer {
    let accept = call.accept()?;
    let options = options::read(call, content).await?;
    let mut warnings = Vec::new();
    if call.kind.kind == "Job" && defaults_to_orphan(&call.kind, &options) {
        warnings.push(
            "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove \
             them or set propagationPolicy=Orphan to suppress this warning"
                .to_owned(),
        );
    }
    let response = match remove(call, writer, &call.key(), &options, &mut warnings).await? {
        // Upstream answers 202 only if the deprecated option asks to wait for dependents.
        Deleted::Going(entry) if options.orphan == Some(false) => {
            call.object_answer(StatusCode::ACCEPTED, &entry)?
        }
        Deleted::Going(entry) => call.object_answer(StatusCode::OK, &entry)?,
        Deleted::Gone(fields) if call.kind.strategy.returns_deleted => {
            call.fields_answer(StatusCode::OK, fields)?
        }
        Deleted::Gone(fields) => {
            let mut details = json!({"name": call.target.name, "kind": call.kind.plural, "uid": meta_text(&fields, "uid")});
            if !call.kind.group.is_empty() {
                details["group"] = call.kind.group.clone().into();
            }
            success(StatusCode::OK, Some(details), accept)?
        }
    };
    Ok(warned(response, &warnings))
}

fn defaults_to_orphan(kind: &Kind, options: &Options) -> bool {
    kind.strategy.dependents == Dependents::Orphaned
        && options.policy.is_none()
        && options.orphan.is_none()
}

/// The operation of a deletion at this moment; `None` if the object is already being deleted.
pub(super) fn operation(
    call: &Call,
    entry: &Entry,
    fields: &Fields,
    options: &Options,
) -> Result<Option<Op>, ApiError> {
    Ok(match plan(&call.kind, fields, options, call.clock.now()) {
        Step::Pending => None,
        Step::Delete(_) => Some(Op::delete(&entry.key, entry.modified)),
        Step::Update(going) => Some(Op::update(
            &entry.key,
            entry.modified,
            master_objects::encode(&call.kind, going)?,
        )),
    })
}

/// Deletes one object, or starts its deletion.
pub(super) async fn remove(
    call: &Call,
    writer: &ObjectWriter<'_>,
    key: &str,
    options: &Options,
    warnings: &mut Vec<String>,
) -> Result<Deleted, ApiError> {
    // The caller's warnings are about the request, those of admission about one attempt.
    let own = warnings.len();
    for _ in 0..TRIES {
        let entry = stored(writer.reader, key)
            .await?
            .ok_or_else(|| call.not_found())?;
        let fields = master_objects::decode_for_update(&call.kind, &entry)?;
        writer.reach(call, &fields)?;
        preconditions(call, &entry, &fields, options)?;
        let admitted = writer.admit_delete(call, &fields).await?;
        warnings.extend(admitted.warnings);
        let (op, outcome) = match plan(&call.kind, &fields, options, call.clock.now()) {
            Step::Pending => return Ok(Deleted::Going(entry)),
            Step::Delete(last) => (Op::delete(key, entry.modified), Deleted::Gone(last)),
            Step::Update(going) => {
                let bytes = master_objects::encode(&call.kind, going)?;
                if entry.value == bytes {
                    return Ok(Deleted::Going(entry));
                }
                (
                    Op::update(key, entry.modified, bytes.clone()),
                    Deleted::Going(Entry {
                        value: bytes.into(),
                        ..entry
                    }),
                )
            }
        };
        if options.dry_run {
            return Ok(outcome);
        }
        let mut ops = vec![op];
        ops.extend(admitted.ops);
        if matches!(outcome, Deleted::Gone(_)) {
            ops.extend(writer.release(call, &fields).await?);
        }
        match writer.store.commit(ops).await {
            Ok(done) => return Ok(at(outcome, done.revision)),
            Err(StoreError::Conflict { .. }) => warnings.truncate(own),
            Err(error) => return Err(store_error(error)),
        }
    }
    Err(call.conflict("the object changes faster than it can be deleted, try again"))
}

/// The result with the revision at which it was written.
fn at(outcome: Deleted, revision: u64) -> Deleted {
    match outcome {
        Deleted::Going(entry) => Deleted::Going(Entry {
            modified: revision,
            ..entry
        }),
        Deleted::Gone(mut fields) => {
            let metadata = master_schema::object::metadata_mut(&mut fields);
            metadata.insert("resourceVersion".to_owned(), revision.to_string().into());
            Deleted::Gone(fields)
        }
    }
}

pub(super) fn preconditions(
    call: &Call,
    entry: &Entry,
    fields: &Fields,
    options: &Options,
) -> Result<(), ApiError> {
    let (own, name) = (meta_text(fields, "uid"), meta_text(fields, "name"));
    if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != own) {
        return Err(call.conflict_on(name, &format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({own}). The object might have been \
             deleted and then recreated"
        )));
    }
    if let Some(version) = options
        .version
        .as_deref()
        .filter(|version| *version != entry.modified.to_string())
    {
        return Err(call.conflict_on(name, &format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). \
             The object might have been modified",
            entry.modified
        )));
    }
    Ok(())
}
