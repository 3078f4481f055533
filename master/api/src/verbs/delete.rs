//! Delete and delete collection.

use super::{Call, store_error, value_answer};
use crate::admit;
use crate::error::{ApiError, Reason};
use crate::kinds::pod_grace;
use crate::object::{self, meta_text, metadata, metadata_mut};
use crate::server::Body;
use crate::validate::{Fields, get, items, object as inner, text};
use http::{Response, StatusCode};
use jiff::{SignedDuration, Timestamp};
use master_store::{Entry, Op, StoreError};
use serde_json::{Value, json};

/// Tries against other writers.
const TRIES: usize = 16;

/// How to delete: the body's `DeleteOptions`, or the query's.
#[derive(Debug, Default)]
struct Options {
    grace: Option<i64>,
    uid: Option<String>,
    version: Option<String>,
    dry_run: bool,
}

/// What became of an object.
enum Deleted {
    /// It is gone.
    Gone(Fields),
    /// It waits for finalizers or its kubelet.
    Going(Entry),
}

/// Deletes an object.
pub(super) async fn delete(call: &Call, content: Body) -> Result<Response<Body>, ApiError> {
    let options = options(call, content).await?;
    match remove(call, &call.key(), &options).await? {
        Deleted::Going(entry) => call.object_answer(StatusCode::OK, &entry),
        Deleted::Gone(fields) => {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                "details": {
                    "name": call.target.name, "group": call.kind.group, "kind": call.kind.plural,
                    "uid": meta_text(&fields, "uid"),
                },
            });
            value_answer(
                StatusCode::OK,
                &status,
                crate::accept::Accept { form: crate::accept::Form::Object, ..call.accept()? },
            )
        }
    }
}

/// Deletes every object that the selectors choose.
pub(super) async fn collection(call: &Call, content: Body) -> Result<Response<Body>, ApiError> {
    let options = options(call, content).await?;
    let page = call.page(&call.selector()?).await?;
    let mut items = Vec::with_capacity(page.entries.len());
    for entry in &page.entries {
        items.push(Value::Object(object::decode(&call.kind, entry)?));
        match remove(call, &entry.key, &options).await {
            Ok(_) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    let list = json!({
        "kind": format!("{}List", call.kind.kind), "apiVersion": call.kind.api_version(),
        "metadata": {"resourceVersion": page.revision.to_string()}, "items": items,
    });
    value_answer(StatusCode::OK, &list, crate::accept::Accept { form: crate::accept::Form::Object, ..call.accept()? })
}

async fn options(call: &Call, content: Body) -> Result<Options, ApiError> {
    let document = call.document(content).await;
    // An empty body is a request without options.
    let value = match document {
        Ok(decoded) => decoded.value,
        Err(error) if error.message.contains("EOF while parsing a value at line 1 column 0") => Value::Null,
        Err(error) => return Err(error),
    };
    let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_i64);
    let word = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    match word("/kind").as_deref() {
        None | Some("DeleteOptions") => {}
        Some(other) => {
            return Err(ApiError::new(Reason::BadRequest, format!("the body must be DeleteOptions, not {other}")));
        }
    }
    if let Some(policy) = word("/propagationPolicy")
        && !matches!(policy.as_str(), "Orphan" | "Background" | "Foreground")
    {
        return Err(ApiError::new(
            Reason::Invalid,
            format!(
                "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: {policy:?}: supported values: \"Background\", \"Foreground\", \"Orphan\""
            ),
        ));
    }
    let dry_run = match value.get("dryRun").and_then(Value::as_array).map_or(&[][..], Vec::as_slice) {
        [] => false,
        [only] if only == "All" => true,
        _ => {
            let text = "DeleteOptions: dryRun: Unsupported value: supported values: \"All\"";
            return Err(ApiError::new(Reason::BadRequest, text));
        }
    };
    Ok(Options {
        grace: match number(&value, "gracePeriodSeconds") {
            Some(grace) => Some(grace),
            None => call.query.number("gracePeriodSeconds")?,
        },
        uid: word("/preconditions/uid"),
        version: word("/preconditions/resourceVersion"),
        dry_run: dry_run || call.dry_run()?,
    })
}

/// Deletes one object, or starts its deletion.
async fn remove(call: &Call, key: &str, options: &Options) -> Result<Deleted, ApiError> {
    for _ in 0..TRIES {
        let fetched = call.api.inner.store.get(key).await.map_err(store_error)?;
        let entry = fetched.entry.ok_or_else(|| call.not_found())?;
        let fields = object::decode(&call.kind, &entry)?;
        preconditions(call, &entry, &fields, options)?;
        let admitted = admit::delete(call, &fields).await?;
        let Some(going) = going(call, &fields, options) else {
            if options.dry_run {
                return Ok(Deleted::Gone(fields));
            }
            let mut ops = vec![Op::delete(key, entry.modified)];
            ops.extend(admitted.ops);
            match call.api.inner.store.commit(ops).await {
                Ok(_) => return Ok(Deleted::Gone(fields)),
                Err(StoreError::Conflict { .. }) => continue,
                Err(error) => return Err(store_error(error)),
            }
        };
        let bytes = object::encode(&call.kind, going)?;
        if options.dry_run || bytes == entry.value {
            return Ok(Deleted::Going(Entry { value: bytes, ..entry }));
        }
        let mut ops = vec![Op::update(key, entry.modified, bytes.clone())];
        ops.extend(admitted.ops);
        match call.api.inner.store.commit(ops).await {
            Ok(done) => return Ok(Deleted::Going(Entry { value: bytes, modified: done.revision, ..entry })),
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(store_error(error)),
        }
    }
    Err(call.conflict("the object changes faster than it can be deleted, try again"))
}

fn preconditions(call: &Call, entry: &Entry, fields: &Fields, options: &Options) -> Result<(), ApiError> {
    let own = meta_text(fields, "uid");
    if let Some(uid) = &options.uid
        && uid != own
    {
        return Err(
            call.conflict(&format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {own}"))
        );
    }
    if let Some(version) = &options.version
        && *version != entry.modified.to_string()
    {
        return Err(call.conflict(&format!(
            "Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta: {}",
            entry.modified
        )));
    }
    Ok(())
}

/// The object while its deletion waits for others; none where nothing holds it.
fn going(call: &Call, fields: &Fields, options: &Options) -> Option<Fields> {
    let before = metadata(fields);
    let grace = if call.kind.strategy.graceful { pod_grace(fields, options.grace) } else { 0 };
    let namespace = call.kind.kind == "Namespace";
    let held = namespace && inner(fields, "spec").is_some_and(|spec| !items(spec, "finalizers").is_empty());
    if grace == 0 && items(before, "finalizers").is_empty() && !held {
        return None;
    }
    let mut going = fields.clone();
    let running = get(before, "deletionGracePeriodSeconds").as_i64();
    if text(before, "deletionTimestamp").is_empty() || running.is_some_and(|running| grace < running) {
        let since = match (text(before, "deletionTimestamp").parse::<Timestamp>(), running) {
            // Shortened: the shorter time counts from when deletion began.
            (Ok(end), Some(running)) => end.checked_sub(SignedDuration::from_secs(running)).unwrap_or(end),
            _ => Timestamp::now(),
        };
        let end = since.checked_add(SignedDuration::from_secs(grace)).unwrap_or(since);
        let metadata = metadata_mut(&mut going);
        metadata.insert("deletionTimestamp".to_owned(), end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into());
        metadata.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
    }
    if namespace && let Some(status) = crate::validate::object_mut(&mut going, "status") {
        status.insert("phase".to_owned(), "Terminating".into());
    }
    Some(going)
}
