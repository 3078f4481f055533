//! Server-side apply: an object, who owns what in it, and a configuration to an object and new owners.

mod last_applied;
mod prune;

use crate::extract::extract;
use crate::join::join;
use crate::managed::{Manager, Managers};
use crate::path::Element;
use crate::set::Set;
use crate::typed::check;
use crate::write::{Conflict, Write, pass_on, stripped, take};
use master_kinds::error::{ApiError, Cause, Reason};
use master_kinds::object::{meta_text, metadata};
use master_kinds::validate::Fields;
use std::borrow::Cow;
use std::fmt::Write as _;

/// Who owns what was there before the first apply.
const BEFORE: &str = "before-first-apply";
/// The manager for whom the annotation of client-side apply counts.
const KUBECTL: &str = "kubectl";

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// The object, without managed fields.
    pub object: Fields,
    /// The managed fields' text.
    pub managed: Option<String>,
}

/// A fault that upstream answers without a reason.
fn failed(text: String) -> ApiError {
    ApiError::new(Reason::Unknown, text)
}

/// Applies a configuration. `live` is the object without managed fields, and empty where there is none yet;
/// `managed` are its managed fields.
pub fn apply(
    live: &Fields,
    managed: Option<&str>,
    config: &Fields,
    force: bool,
    write: &Write<'_>,
) -> Result<Applied, ApiError> {
    if metadata(config)
        .get("managedFields")
        .is_some_and(|list| !list.is_null())
    {
        return Err(ApiError::new(
            Reason::BadRequest,
            "metadata.managedFields must be nil",
        ));
    }
    let place = write.place().map_err(failed)?;
    check(config, place).map_err(|fault| {
        failed(format!(
            "failed to create typed patch object ({}): {fault}",
            label(config, write)
        ))
    })?;
    let mut managers = Managers::decode(managed.unwrap_or("[]"))
        .map_err(|fault| failed(format!("failed to decode managed fields: {fault}")))?;
    let nothing = Fields::new();
    if managers.0.is_empty() {
        take(
            &mut managers,
            &nothing,
            live,
            &Write {
                manager: BEFORE,
                ..*write
            },
        )
        .map_err(|fault| {
            failed(format!(
                "failed to create manager for existing fields: {fault}"
            ))
        })?;
    }
    let mut object = merge(live, config, &managers, write).map_err(failed)?;
    let before = managers.clone();
    if let Err(conflicts) = own(&mut managers, live, &object, config, force, write)? {
        let allowed = if write.manager == KUBECTL {
            last_applied::allowed(live, write)
        } else {
            None
        };
        let Some(allowed) = allowed else {
            return Err(refusal(&conflicts));
        };
        let left = last_applied::beyond(conflicts, &allowed);
        if !left.is_empty() {
            return Err(refusal(&left));
        }
        managers = before;
        drop(own(&mut managers, live, &object, config, true, write)?);
    }
    let changed = object != *live;
    if changed && let Some(own) = applier(&mut managers, write) {
        own.time = Some(Cow::Borrowed(write.now));
    }
    let managed = managers.encode();
    if write.manager == KUBECTL {
        last_applied::renew(&mut object, config);
    }
    Ok(Applied { object, managed })
}

/// The object with the configuration in it, and without what was applied before and is no longer.
fn merge(
    live: &Fields,
    config: &Fields,
    managers: &Managers<'_>,
    write: &Write<'_>,
) -> Result<Fields, String> {
    let place = write.place()?;
    let mut object = live.clone();
    join(&mut object, config, place).map_err(|fault| format!("failed to merge config: {fault}"))?;
    let entry = write.entry(true, Set::default());
    let Some(last) = managers.find(&entry) else {
        return Ok(object);
    };
    let set = extract(config, place).difference_below(&Set::of(write.reset));
    Ok(prune::prune(
        object,
        &managers.0[last],
        set,
        managers,
        write,
    ))
}

/// Makes whoever applies the owner of what the configuration holds; the conflicts, where that is not for the taking.
fn own<'a>(
    managers: &mut Managers<'a>,
    live: &'a Fields,
    object: &'a Fields,
    config: &'a Fields,
    force: bool,
    write: &Write<'a>,
) -> Result<Result<(), Vec<Conflict<'a>>>, ApiError> {
    let place = write.place().map_err(failed)?;
    let set = extract(config, place).difference_below(&Set::of(write.reset));
    let mut entry = write.entry(true, Set::default());
    let (conflicts, _) = pass_on(managers, live, object, write, Some(&entry)).map_err(failed)?;
    if !force && !conflicts.is_empty() {
        return Ok(Err(conflicts));
    }
    entry.set = stripped(set);
    match managers.find(&entry) {
        Some(index) => {
            entry.time.clone_from(&managers.0[index].time);
            managers.0[index] = entry;
        }
        None => managers.0.push(entry),
    }
    managers.drop_empty();
    Ok(Ok(()))
}

fn applier<'m, 'a>(
    managers: &'m mut Managers<'a>,
    write: &Write<'a>,
) -> Option<&'m mut Manager<'a>> {
    let index = managers.find(&write.entry(true, Set::default()))?;
    managers.0.get_mut(index)
}

/// An object as faults name it.
fn label(config: &Fields, write: &Write<'_>) -> String {
    let kind = config
        .get("kind")
        .and_then(serde_json::Value::as_str)
        .unwrap_or_default();
    let (namespace, name) = (meta_text(config, "namespace"), meta_text(config, "name"));
    format!("{namespace}/{name}; {}, Kind={kind}", write.api_version)
}

/// Upstream's refusal.
fn refusal(conflicts: &[Conflict<'_>]) -> ApiError {
    let mut sorted: Vec<&Conflict<'_>> = conflicts.iter().collect();
    sorted.sort_by(|left, right| left.manager.cmp(&right.manager));
    let mut causes = Vec::new();
    let mut text = String::new();
    for conflict in sorted {
        let before = if text.is_empty() { "" } else { "\n" };
        // Writing to a String doesn't fail.
        let _infallible = write!(text, "{before}conflicts with {}:", conflict.manager);
        conflict.set.paths(&mut |path: &[&Element<'_>]| {
            let field: String = path.iter().map(ToString::to_string).collect();
            let _infallible = write!(text, "\n- {field}");
            let message = format!("conflict with {}", conflict.manager);
            causes.push(Cause {
                reason: "FieldManagerConflict".into(),
                message,
                field,
            });
        });
    }
    let message = match causes.as_slice() {
        [only] => format!(
            "Apply failed with 1 conflict: {}: {}",
            only.message, only.field
        ),
        several => format!("Apply failed with {} conflicts: {text}", several.len()),
    };
    let mut error = ApiError::new(Reason::Conflict, message);
    error.details.causes = causes;
    error
}
