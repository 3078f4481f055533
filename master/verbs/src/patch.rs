//! Patch and apply, of objects and of subresources that have the object's form.

use super::answer::Answer;
use super::body::Validation;
use super::call::{Call, stored};
use super::create::{make, warned};
use super::managed::{Ownership, named_other};
use super::update::{MODIFIED, TRIES, check_preconditions, write};
use super::writer::ObjectWriter;
use bytes::Bytes;
use master_client::Body;
use master_merge::apply::Applied;
use master_merge::patch::Patch;
use master_schema::decode::{self, Decoded};
use master_schema::error::{ApiError, Reason};
use master_schema::object::meta_text;
use master_schema::registry::Subresource;
use master_schema::schema::Wrong;
use master_schema::validate::{Faults, FieldPath, Fields};
use serde_json::Value;

/// Server-side apply.
pub(super) const APPLY: &str = "application/apply-patch+yaml";

/// Patches an object or a subresource.
pub(super) async fn patch(
    call: &Call,
    writer: &ObjectWriter<'_>,
    subresource: Option<Subresource>,
    content: Body,
) -> Answer {
    let bytes = call.bytes(content).await?;
    if call.content_type() == APPLY {
        return apply(call, writer, subresource, &bytes).await;
    }
    // Kinds of this project, like upstream's custom resources, have no merge keys for lists.
    let strategic = call.kind.group != config_kube::identity::GROUP;
    let (patch, duplicates) = Patch::parse(call.content_type(), &bytes, strategic)?;
    let place = call.registry.schemas().place(call.kind.source.name());
    let demanded = patch.resource_version().unwrap_or_default().to_owned();
    for _ in 0..TRIES {
        let entry = call.entry(writer.reader).await?;
        let old = master_objects::decode_for_update(&call.kind, &entry)?;
        writer.reach(call, &old)?;
        check_preconditions(call, &entry, &old, &demanded, "")?;
        let mut before = old.clone();
        if patch.touches(&["metadata", master_objects::MANAGED]) {
            master_objects::expand_managed(&mut before);
        }
        let mut fields = patch.apply(before, place)?;
        let ownership = Ownership::of(call, &mut fields);
        let checked = call.compare(&mut fields);
        if let Some(wrong) = checked.wrong.first() {
            return Err(misshapen(&patch, &Value::Object(fields), wrong));
        }
        let warnings = call.judge(&checked, &duplicates)?;
        call.check_name(meta_text(&fields, "name"))?;
        check_preconditions(
            call,
            &entry,
            &old,
            meta_text(&fields, "resourceVersion"),
            meta_text(&fields, "uid"),
        )?;
        match write(call, writer, subresource, &entry, old, fields, &ownership).await? {
            Some(response) => return Ok(warned(response, &warnings)),
            None if matches!(&*demanded, "" | "0") => {}
            None => return Err(call.conflict(MODIFIED)),
        }
    }
    Err(call.conflict(MODIFIED))
}

/// The error for a patch whose result is not an object of the kind: it names the patch as invalid,
/// or, where upstream only has the bytes of the result, the result.
fn misshapen(patch: &Patch, patched: &Value, wrong: &Wrong) -> ApiError {
    let (value, why) = match patch {
        Patch::Strategic(patch) => (Patch::shown(patch), wrong.restored()),
        Patch::Merge(_) | Patch::Json(_) => (patched.to_string(), wrong.to_string()),
    };
    let mut faults = Faults::default();
    faults.invalid(&FieldPath::root("patch"), &Value::String(value), &why);
    faults
        .into_error("", "", "")
        .err()
        .unwrap_or_else(|| ApiError::new(Reason::BadRequest, why))
}

/// Applies a configuration: server-side apply.
async fn apply(
    call: &Call,
    writer: &ObjectWriter<'_>,
    subresource: Option<Subresource>,
    bytes: &Bytes,
) -> Answer {
    if call.user.node().is_some() {
        // Each manager that it names would stay in the object, which is more than a node may write.
        let why = "a node may not use server-side apply; send a merge patch";
        return Err(call.kind.forbidden(&call.target.name, why));
    }
    let (mut config, warnings) =
        configuration(call, bytes, &call.kind.api_version(), &call.kind.kind)?;
    // In stored form, so that a quantity in another notation is neither a change nor a conflict.
    call.registry
        .schemas()
        .canonical(call.kind.source.name(), &mut config);
    let demanded = meta_text(&config, "resourceVersion").to_owned();
    for _ in 0..TRIES {
        let Some(entry) = stored(writer.reader, &call.key()).await? else {
            if subresource.is_some() {
                return Err(call.not_found());
            }
            match begin(call, writer, &config, &warnings).await {
                // Another writer created it meanwhile.
                Err(error) if error.reason == Reason::AlreadyExists => continue,
                answer => return answer,
            }
        };
        let mut old = master_objects::decode_for_update(&call.kind, &entry)?;
        writer.reach(call, &old)?;
        let live = master_objects::take_managed(&mut old);
        let done = call.applied(&old, live.as_deref(), &config)?;
        let mut fields = done.object;
        call.check(&mut fields, &[])?;
        call.check_name(meta_text(&fields, "name"))?;
        call.check_namespace(meta_text(&config, "namespace"))?;
        check_preconditions(call, &entry, &old, &demanded, meta_text(&config, "uid"))?;
        master_objects::put_managed(&mut old, live);
        let ownership = Ownership::Applied(done.managed);
        match write(call, writer, subresource, &entry, old, fields, &ownership).await? {
            Some(response) => return Ok(warned(response, &warnings)),
            None if matches!(&*demanded, "" | "0") => {}
            None => return Err(call.conflict(MODIFIED)),
        }
    }
    Err(call.conflict(MODIFIED))
}

/// Creates the object that a configuration describes.
async fn begin(
    call: &Call,
    writer: &ObjectWriter<'_>,
    config: &Fields,
    warnings: &[String],
) -> Answer {
    let applied = || -> Result<Applied, ApiError> {
        let mut done = call.applied(&Fields::new(), None, config)?;
        named_other(config, call)?;
        call.check(&mut done.object, &[])?;
        Ok(done)
    };
    let done = applied()?;
    let name = meta_text(&done.object, "name");
    if !name.is_empty() {
        call.check_name(name)?;
    }
    call.check_namespace(meta_text(config, "namespace"))?;
    call.may_create(writer.authorizer).await?;
    make(
        call,
        writer,
        done.object,
        || Ok(applied()?.object),
        &Ownership::Applied(done.managed),
        warnings.to_vec(),
    )
    .await
}

/// Parses a configuration, YAML or JSON, of a kind in a version.
pub(super) fn configuration(
    call: &Call,
    bytes: &[u8],
    version: &str,
    kind: &str,
) -> Result<(Fields, Vec<String>), ApiError> {
    let json = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    let read = if json {
        // It may be YAML in braces. Where it is neither, JSON was meant.
        decode::json(bytes).or_else(|error| decode::yaml(bytes).map_err(|_not_yaml| error))
    } else {
        decode::yaml(bytes)
    };
    let bad = |text: String| ApiError::new(Reason::BadRequest, text);
    let Decoded { value, duplicates } =
        read.map_err(|error| bad(format!("error decoding YAML: {}", error.message)))?;
    let Value::Object(config) = value else {
        return Err(bad(
            "error decoding YAML: the configuration must be an object".to_owned(),
        ));
    };
    let text = |key: &str| config.get(key).and_then(Value::as_str).unwrap_or_default();
    if text("apiVersion") != version || text("kind") != kind {
        return Err(bad(format!(
            "invalid object type: {}, Kind={}",
            text("apiVersion"),
            text("kind")
        )));
    }
    let duplicates: Vec<String> = duplicates
        .iter()
        .map(|path| format!("duplicate field {path:?}"))
        .collect();
    match call.validation() {
        Validation::Ignore => Ok((config, Vec::new())),
        Validation::Warn => Ok((config, duplicates)),
        Validation::Strict if duplicates.is_empty() => Ok((config, duplicates)),
        Validation::Strict => Err(bad(format!(
            "error strict decoding YAML: {}",
            duplicates.join(", ")
        ))),
    }
}
