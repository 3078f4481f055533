//! Server-side apply: from an object, its managed fields and a configuration to the new object and
//! its managed fields.

mod last_applied;
mod prune;

use crate::extract::extract;
use crate::join::join;
use crate::managed::{Manager, Managers};
use crate::path::{Element, Path};
use crate::set::Set;
use crate::typed::check;
use crate::write::{Conflict, Write, release_changed, stripped, take_ownership};
use master_schema::error::{ApiError, Cause, Reason, beginning};
use master_schema::object::{meta_text, metadata};
use master_schema::validate::Fields;
use std::borrow::Cow;
use std::fmt::Write as _;

/// The manager of the fields that existed before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// The manager whose client-side apply annotation is read and kept up to date.
const KUBECTL: &str = "kubectl";

/// The result of an apply.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// The object, without managed fields.
    pub object: Fields,
    /// The managed fields as JSON; `None` if there are none.
    pub managed: Option<String>,
}

/// An error that upstream returns without a reason (500).
fn failed(text: String) -> ApiError {
    ApiError::new(Reason::Unknown, text)
}

/// Applies a configuration. `live` is the object without managed fields, empty if it does not
/// exist; `managed` are its managed fields.
///
/// # Errors
/// The configuration contains managed fields (400), conflicts with other managers and `force` is
/// off (409), or it or the stored managed fields do not fit the schema (500, as upstream).
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
    // Only the configuration: the live object may be older than the schema.
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
    // The fields have no owners yet. They get one, so that an apply that changes them meets a
    // conflict.
    if managers.0.is_empty() {
        let before_first = Write {
            manager: BEFORE_FIRST_APPLY,
            ..*write
        };
        take_ownership(&mut managers, &nothing, live, &before_first).map_err(|fault| {
            failed(format!(
                "failed to create manager for existing fields: {fault}"
            ))
        })?;
    }
    let mut object = merge(live, config, &managers, write).map_err(failed)?;
    let merged = Merged {
        live,
        config,
        object: &object,
        write,
    };
    own_or_take_over(&mut managers, &merged, force)?;
    // An apply without a change is no write, and must not change the list of managers either: the
    // time moves only with the object.
    let changed = object != *live;
    if changed && let Some(own) = applier(&mut managers, write) {
        own.time = Some(Cow::Borrowed(write.now));
    }
    let managed = managers.encode();
    if write.manager == KUBECTL {
        last_applied::update_annotation(&mut object, config);
    }
    Ok(Applied { object, managed })
}

/// An applied configuration, before its manager owns the fields.
struct Merged<'w, 'a> {
    /// The object as it was.
    live: &'a Fields,
    config: &'a Fields,
    /// The object with the configuration merged into it.
    object: &'a Fields,
    write: &'w Write<'a>,
}

/// Gives the fields of the configuration to its manager. Those that `kubectl apply` set without
/// server-side apply, as the object's last-applied annotation tells, are no conflict for kubectl.
fn own_or_take_over<'a>(
    managers: &mut Managers<'a>,
    merged: &Merged<'_, 'a>,
    force: bool,
) -> Result<(), ApiError> {
    let before = managers.clone();
    let Err(conflicts) = own_config(managers, merged, force)? else {
        return Ok(());
    };
    let write = merged.write;
    let own = (write.manager == KUBECTL).then(|| last_applied::allowed(merged.live, write));
    let Some(allowed) = own.flatten() else {
        return Err(refusal(&conflicts));
    };
    let left = last_applied::not_allowed(conflicts, &allowed);
    if !left.is_empty() {
        return Err(refusal(&left));
    }
    // The attempt above may have taken fields from their managers before it met the conflict.
    *managers = before;
    // What is left of the conflicts is kubectl's own, so this takes nothing from another manager.
    drop(own_config(managers, merged, true)?);
    Ok(())
}

/// Merges the configuration into the object and removes what only the previous configuration
/// contained.
fn merge(
    live: &Fields,
    config: &Fields,
    managers: &Managers<'_>,
    write: &Write<'_>,
) -> Result<Fields, String> {
    let place = write.place()?;
    let mut object = live.clone();
    join(&mut object, config, place).map_err(|fault| format!("failed to merge config: {fault}"))?;
    // Nothing was applied before by this manager: there is nothing to prune.
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

/// Makes the applier the owner of all fields of the configuration, also of those that it leaves
/// unchanged: fields are then shared. Only changed fields of other managers are conflicts; without
/// `force` they are returned.
fn own_config<'a>(
    managers: &mut Managers<'a>,
    merged: &Merged<'_, 'a>,
    force: bool,
) -> Result<Result<(), Vec<Conflict<'a>>>, ApiError> {
    let (live, write) = (merged.live, merged.write);
    let place = write.place().map_err(failed)?;
    // Fields that the strategy resets (such as `status` in a write of the object itself) never
    // reach the object, so their sender does not own them.
    let set = extract(merged.config, place).difference_below(&Set::of(write.reset));
    let mut entry = write.entry(true, Set::default());
    let (conflicts, _) =
        release_changed(managers, live, merged.object, write, Some(&entry)).map_err(failed)?;
    if !force && !conflicts.is_empty() {
        return Ok(Err(conflicts));
    }
    entry.set = stripped(set);
    match managers.find(&entry) {
        Some(index) => {
            // An apply that changes nothing must leave the object as it is, its managed fields too:
            // it is then no write.
            entry.time.clone_from(&managers.0[index].time);
            managers.0[index] = entry;
        }
        None => managers.0.push(entry),
    }
    managers.drop_empty();
    Ok(Ok(()))
}

/// The entry of the applying manager.
fn applier<'m, 'a>(
    managers: &'m mut Managers<'a>,
    write: &Write<'a>,
) -> Option<&'m mut Manager<'a>> {
    let index = managers.find(&write.entry(true, Set::default()))?;
    managers.0.get_mut(index)
}

/// The object, as error messages name it.
fn label(config: &Fields, write: &Write<'_>) -> String {
    let kind = config
        .get("kind")
        .and_then(serde_json::Value::as_str)
        .unwrap_or_default();
    let (namespace, name) = (meta_text(config, "namespace"), meta_text(config, "name"));
    format!("{namespace}/{name}; {}, Kind={kind}", write.api_version)
}

/// Conflicts that an answer names at most: a configuration can have a hundred thousand.
const MAX_CONFLICTS: usize = 100;

/// Upstream's error for conflicts.
fn refusal(conflicts: &[Conflict<'_>]) -> ApiError {
    // By manager: the text must not depend on the order of the list.
    let mut sorted: Vec<&Conflict<'_>> = conflicts.iter().collect();
    sorted.sort_by(|left, right| left.manager.cmp(&right.manager));
    let (mut causes, mut count) = (Vec::new(), 0_usize);
    let mut text = String::new();
    for conflict in sorted {
        if causes.len() < MAX_CONFLICTS {
            let before = if text.is_empty() { "" } else { "\n" };
            // Writing to a String does not fail.
            let _infallible = write!(text, "{before}conflicts with {}:", conflict.manager);
        }
        conflict.set.paths(&mut |path: &[&Element<'_>]| {
            count += 1;
            if count > MAX_CONFLICTS {
                return;
            }
            let field = beginning(&Path(path));
            let _infallible = write!(text, "\n- {field}");
            let message = format!("conflict with {}", conflict.manager);
            causes.push(Cause {
                reason: "FieldManagerConflict".into(),
                message,
                field,
            });
        });
    }
    if count > MAX_CONFLICTS {
        text.push_str("\n- …");
    }
    let message = match causes.as_slice() {
        [only] => format!(
            "Apply failed with 1 conflict: {}: {}",
            only.message, only.field
        ),
        [] | [_, _, ..] => format!("Apply failed with {count} conflicts: {text}"),
    };
    let mut error = ApiError::new(Reason::Conflict, message);
    error.details.causes = causes;
    error
}
