//! Writes that are no apply: who wrote a field owns it from then on.

use crate::compare::{Changes, compare};
use crate::managed::{Manager, Managers};
use crate::set::Set;
use master_kinds::schema::Place;
use master_kinds::validate::Fields;
use serde_json::Value;
use std::borrow::Cow;

/// Managers that update, kept apart at most; the oldest beyond are put together.
const UPDATERS: usize = 10;
/// Who the oldest are together.
const ANCIENT: &str = "ancient-changes";

/// The versions in which a kind is served.
pub trait Versions {
    /// The schema of a version; none, if it is not served.
    fn place(&self, api_version: &str) -> Option<Place<'_>>;
    /// The object, in a version that is served.
    fn convert(&self, object: &Fields, api_version: &str) -> Option<Fields>;
}

/// What a write is, beside the object.
#[derive(Clone, Copy)]
pub struct Write<'a> {
    /// Who writes.
    pub manager: &'a str,
    /// The version in which it is written.
    pub api_version: &'a str,
    /// By which subresource.
    pub subresource: &'a str,
    /// When.
    pub now: &'a str,
    /// Dotted paths that this write resets, so that nobody comes to own them by it.
    pub reset: &'a [&'a str],
    /// The kind's versions.
    pub versions: &'a dyn Versions,
}

impl std::fmt::Debug for Write<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Write")
            .field("manager", &self.manager)
            .finish_non_exhaustive()
    }
}

/// What a client says of managers in the object that it writes.
#[derive(Debug, Clone, Copy)]
pub enum Given<'a> {
    /// Nothing: what is known stays.
    Nothing,
    /// This list instead.
    List(&'a Value),
}

/// System fields that nobody owns.
pub(crate) const STRIPPED: &[&str] = &[
    "apiVersion",
    "kind",
    "metadata",
    "metadata.name",
    "metadata.namespace",
    "metadata.creationTimestamp",
    "metadata.selfLink",
    "metadata.uid",
    "metadata.clusterName",
    "metadata.generation",
    "metadata.managedFields",
    "metadata.resourceVersion",
];

pub(crate) fn stripped(set: Set<'_>) -> Set<'_> {
    static STRIP: std::sync::LazyLock<Set<'static>> = std::sync::LazyLock::new(|| {
        let sets = STRIPPED.iter().map(|path| Set::of(&[path]));
        sets.fold(Set::default(), Set::union)
    });
    set.difference(&STRIP)
}

impl<'a> Write<'a> {
    /// The entry of whoever writes.
    pub(crate) fn entry(&self, applies: bool, set: Set<'a>) -> Manager<'a> {
        Manager {
            name: Cow::Borrowed(if self.manager.is_empty() {
                "unknown"
            } else {
                self.manager
            }),
            applies,
            api_version: Cow::Borrowed(self.api_version),
            subresource: Cow::Borrowed(self.subresource),
            time: None,
            set,
        }
    }

    /// The kind's schema in this version.
    pub(crate) fn place(&self) -> Result<Place<'a>, String> {
        self.versions
            .place(self.api_version)
            .ok_or_else(|| format!("{} is not served", self.api_version))
    }
}

/// The managed fields of an object after a write, as text; none, where nobody owns anything or ownership is not
/// tracked. `old` is empty where the object is made. Neither object has `managedFields` in it.
pub fn update<'a>(
    old: &'a Fields,
    new: &'a Fields,
    live: Option<&'a str>,
    given: Given<'a>,
    write: &Write<'a>,
) -> Result<Option<String>, String> {
    let mut managers = known(live, given, write);
    let exists = old
        .get("metadata")
        .is_some_and(|metadata| metadata.get("uid").is_some());
    if managers.0.is_empty() && exists {
        return Ok(None);
    }
    take(&mut managers, old, new, write)?;
    Ok(managers.encode())
}

/// The managers before the write: the client's where it names any that can be read, else the object's.
fn known<'a>(live: Option<&'a str>, given: Given<'a>, write: &Write<'_>) -> Managers<'a> {
    let live = || {
        live.and_then(|text| Managers::decode(text).ok())
            .unwrap_or_default()
    };
    match given {
        // By a subresource nobody changes managers.
        Given::List(value) if write.subresource.is_empty() => {
            if is_reset(value) {
                return Managers::default();
            }
            match Managers::from_value(value) {
                Ok(managers) if !managers.0.is_empty() => managers,
                Ok(_) | Err(_) => live(),
            }
        }
        Given::List(_) | Given::Nothing => live(),
    }
}

/// Whether a client asks to forget all managers: by an empty list or one empty entry.
fn is_reset(value: &Value) -> bool {
    match value.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([only]) => only.as_object().is_some_and(serde_json::Map::is_empty),
        Some(_) | None => false,
    }
}

/// Gives what changed to whoever writes.
pub(crate) fn take<'a>(
    managers: &mut Managers<'a>,
    old: &'a Fields,
    new: &'a Fields,
    write: &Write<'a>,
) -> Result<(), String> {
    let changes = pass_on(managers, old, new, write, None)?.1;
    let own = stripped(changes.modified.union(changes.added));
    if !own.is_empty() {
        let entry = write.entry(false, own);
        let time = Some(Cow::Borrowed(write.now));
        match managers.find(&entry) {
            Some(index) => {
                let known = &mut managers.0[index];
                known.set = std::mem::take(&mut known.set).union(entry.set);
                known.time = time;
            }
            None => managers.0.push(Manager { time, ..entry }),
        }
    }
    cap(managers);
    Ok(())
}

/// What another manager than the one who writes owns of what changed.
#[derive(Debug)]
pub(crate) struct Conflict<'a> {
    pub(crate) manager: String,
    pub(crate) set: Set<'a>,
}

/// Takes from all but the one who applies what was changed or removed; tells what was changed of theirs. The
/// caller, who refuses because of conflicts, drops the managers.
pub(crate) fn pass_on<'a>(
    managers: &mut Managers<'a>,
    old: &'a Fields,
    new: &'a Fields,
    write: &Write<'a>,
    applying: Option<&Manager<'_>>,
) -> Result<(Vec<Conflict<'a>>, Changes<'a>), String> {
    let place = write.place()?;
    let reset = Set::of(write.reset);
    let own = compare(old, new, place).without(&reset);
    let mut others: Vec<(String, Option<Changes<'static>>)> = Vec::new();
    let mut conflicts = Vec::new();
    managers.0.retain_mut(|manager| {
        let inner = write.versions.place(&manager.api_version);
        let Some(inner) = inner else { return false };
        manager.set.settle(inner);
        if applying.is_some_and(|applying| applying.is(manager)) {
            return true;
        }
        let changes = if manager.api_version == write.api_version {
            &own
        } else {
            match elsewhere(
                &mut others,
                &manager.api_version,
                old,
                new,
                write,
                inner,
                &reset,
            ) {
                Some(changes) => changes,
                None => return false,
            }
        };
        if changes.is_empty() {
            return true;
        }
        let taken = manager
            .set
            .intersection(&changes.modified)
            .union(manager.set.intersection(&changes.added));
        manager.set = std::mem::take(&mut manager.set)
            .difference(&taken)
            .difference(&changes.removed);
        if !taken.is_empty() {
            conflicts.push(Conflict {
                manager: manager.label(),
                set: taken,
            });
        }
        !manager.set.is_empty()
    });
    managers.drop_empty();
    Ok((conflicts, own))
}

/// What changed, in the eyes of another version.
fn elsewhere<'c>(
    known: &'c mut Vec<(String, Option<Changes<'static>>)>,
    version: &str,
    old: &Fields,
    new: &Fields,
    write: &Write<'_>,
    place: Place<'_>,
    reset: &Set<'_>,
) -> Option<&'c Changes<'static>> {
    let index = known
        .iter()
        .position(|(name, _)| name == version)
        .unwrap_or_else(|| {
            let versions = write.versions;
            let convert = |object: &Fields| {
                if object.is_empty() {
                    Some(Fields::new())
                } else {
                    versions.convert(object, version)
                }
            };
            let both = convert(old).zip(convert(new));
            let changes =
                both.map(|(old, new)| compare(&old, &new, place).without(reset).into_owned());
            known.push((version.to_owned(), changes));
            known.len() - 1
        });
    known[index].1.as_ref()
}

/// Puts the oldest updates of each version together, where there are too many.
fn cap(managers: &mut Managers<'_>) {
    let updaters = managers.0.iter().filter(|manager| !manager.applies).count();
    if updaters <= UPDATERS {
        return;
    }
    let mut order: Vec<usize> = (0..managers.0.len())
        .filter(|index| !managers.0[*index].applies)
        .collect();
    let key = |manager: &Manager<'_>| {
        (
            manager
                .time
                .as_deref()
                .and_then(|time| time.parse::<jiff::Timestamp>().ok()),
            manager.name.clone().into_owned(),
        )
    };
    order.sort_by_cached_key(|index| key(&managers.0[*index]));
    let mut left = updaters;
    // By version: the entry that takes the others in.
    let mut buckets: Vec<(String, usize)> = Vec::new();
    for index in order {
        if left <= UPDATERS {
            break;
        }
        let version = managers.0[index].api_version.clone().into_owned();
        let Some((_, bucket)) = buckets.iter().find(|(known, _)| *known == version) else {
            buckets.push((version, index));
            continue;
        };
        let ancient = |manager: &Manager<'_>| {
            !manager.applies
                && manager.name == ANCIENT
                && manager.api_version == version
                && manager.subresource.is_empty()
        };
        let bucket = managers.0.iter().position(ancient).unwrap_or(*bucket);
        if bucket == index {
            continue;
        }
        let set = std::mem::take(&mut managers.0[index].set);
        let time = managers.0[index].time.clone();
        let bucket = &mut managers.0[bucket];
        bucket.set = std::mem::take(&mut bucket.set).union(set);
        (bucket.time, bucket.name, bucket.subresource) =
            (time, Cow::Borrowed(ANCIENT), Cow::Borrowed(""));
        left -= 1;
    }
    managers.drop_empty();
}
