//! Ownership in writes other than apply: the writer owns the fields that it changed.

use crate::compare::{Changes, compare};
use crate::managed::{Manager, Managers};
use crate::set::Set;
use master_schema::schema::SchemaPosition;
use master_schema::validate::Fields;
use serde_json::Value;
use std::borrow::Cow;

/// `Update` managers kept apart (upstream: 10); older ones are merged into one entry per version.
const MAX_UPDATERS: usize = 10;
/// The name of the merged entry (upstream's).
const MERGED_MANAGER: &str = "ancient-changes";

/// The versions in which a kind is served.
pub trait Versions {
    /// The schema of a version; `None` if it is not served.
    fn place(&self, api_version: &str) -> Option<SchemaPosition<'_>>;
    /// The object in a served version.
    fn convert(&self, object: &Fields, api_version: &str) -> Option<Fields>;
}

/// A write: everything but the object.
#[derive(Clone, Copy)]
pub struct Write<'a> {
    /// The manager that writes.
    pub manager: &'a str,
    /// The version of the written object.
    pub api_version: &'a str,
    /// The subresource, or an empty string.
    pub subresource: &'a str,
    /// The time of the write (RFC 3339).
    pub now: &'a str,
    /// Dotted paths that this write leaves as they are stored, such as `status` in a write of the
    /// object itself: its manager does not own them.
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

/// The managed fields in the object that a client sent.
#[derive(Debug, Clone, Copy)]
pub enum Given<'a> {
    /// None: the stored ones are kept.
    Nothing,
    /// This list replaces the stored one.
    List(&'a Value),
}

/// Fields that the server sets or that name the object: no manager owns them (upstream:
/// `stripSet`).
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
    /// The entry of the writing manager.
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
    pub(crate) fn place(&self) -> Result<SchemaPosition<'a>, String> {
        self.versions
            .place(self.api_version)
            .ok_or_else(|| format!("{} is not served", self.api_version))
    }
}

/// The managed fields of an object after a write, as JSON; `None` if there are none or ownership is
/// not tracked. `old` is empty for a new object. Neither object contains `managedFields`.
///
/// # Errors
/// The version is not served.
pub fn update<'a>(
    old: &'a Fields,
    new: &'a Fields,
    live: Option<&'a str>,
    given: Given<'a>,
    write: &Write<'a>,
) -> Result<Option<String>, String> {
    let mut managers = managers_before(live, given, write);
    let exists = old
        .get("metadata")
        .is_some_and(|metadata| metadata.get("uid").is_some());
    // An object that was made without managed fields gets them by its first apply, which gives what
    // is there to one manager. An update that began the list would own the few fields that it
    // happened to change, and all others would stay without an owner.
    if managers.0.is_empty() && exists {
        return Ok(None);
    }
    take_ownership(&mut managers, old, new, write)?;
    Ok(managers.encode())
}

/// The managers before the write: the client's list if it is valid, else the object's.
fn managers_before<'a>(live: Option<&'a str>, given: Given<'a>, write: &Write<'_>) -> Managers<'a> {
    let live = || {
        live.and_then(|text| Managers::decode(text).ok())
            .unwrap_or_default()
    };
    match given {
        // A write through a subresource cannot change the list.
        Given::List(value) if write.subresource.is_empty() => {
            if is_reset(value) {
                return Managers::default();
            }
            match Managers::from_value(value) {
                // A client that does not understand the list may send back a broken one; it must
                // not wipe out who owns what.
                Ok(managers) if !managers.0.is_empty() => managers,
                Ok(_) | Err(_) => live(),
            }
        }
        Given::List(_) | Given::Nothing => live(),
    }
}

/// Whether a client clears the managed fields: by an empty list or a single empty entry.
fn is_reset(value: &Value) -> bool {
    match value.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([only]) => only.as_object().is_some_and(serde_json::Map::is_empty),
        Some(_) | None => false,
    }
}

/// Gives the changed fields to the writer.
pub(crate) fn take_ownership<'a>(
    managers: &mut Managers<'a>,
    old: &'a Fields,
    new: &'a Fields,
    write: &Write<'a>,
) -> Result<(), String> {
    // An update takes changed fields from their managers, and meets no conflicts.
    let changes = release_changed(managers, old, new, write, None)?.1;
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
    merge_oldest(managers);
    Ok(())
}

/// The changed fields that another manager owns.
#[derive(Debug)]
pub(crate) struct Conflict<'a> {
    pub(crate) manager: String,
    pub(crate) set: Set<'a>,
}

/// Removes changed and removed fields from all managers but the applier, and returns the changed
/// ones as conflicts. If the caller refuses the write because of them, it drops `managers`.
///
/// A manager whose version is no longer served, or into whose version the object cannot be
/// converted, loses its entry: its field names have no meaning any more.
pub(crate) fn release_changed<'a>(
    managers: &mut Managers<'a>,
    old: &'a Fields,
    new: &'a Fields,
    write: &Write<'a>,
    applying: Option<&Manager<'_>>,
) -> Result<(Vec<Conflict<'a>>, Changes<'a>), String> {
    let place = write.place()?;
    let reset = Set::of(write.reset);
    let own = compare(old, new, place).without(&reset);
    let mut others: Vec<VersionChanges> = Vec::new();
    let mut conflicts = Vec::new();
    managers.0.retain_mut(|manager| {
        let inner = write.versions.place(&manager.api_version);
        let Some(inner) = inner else { return false };
        // A later schema may have made a field atomic: a path into it then names nothing that a
        // comparison finds, and would stay owned for all time.
        manager.set.cut_at_atomic(inner);
        if applying.is_some_and(|applying| applying.is(manager)) {
            return true;
        }
        let changes = if manager.api_version == write.api_version {
            &own
        } else {
            match changes_in_version(
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
        // A removed field is no conflict: there is no value left that two managers could want to
        // differ.
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

/// The differences in a version other than that of the write.
struct VersionChanges {
    version: String,
    /// None where the object cannot be converted into it.
    changes: Option<Changes<'static>>,
}

/// The differences in another version: managers record paths under that version's field names.
fn changes_in_version<'c>(
    known: &'c mut Vec<VersionChanges>,
    version: &str,
    old: &Fields,
    new: &Fields,
    write: &Write<'_>,
    place: SchemaPosition<'_>,
    reset: &Set<'_>,
) -> Option<&'c Changes<'static>> {
    // Many managers share few versions, and to convert and compare costs the size of the object.
    let index = known
        .iter()
        .position(|known| known.version == version)
        .unwrap_or_else(|| {
            let versions = write.versions;
            let convert = |object: &Fields| {
                // A new object is compared with nothing, and nothing has no version to convert
                // from.
                if object.is_empty() {
                    Some(Fields::new())
                } else {
                    versions.convert(object, version)
                }
            };
            let both = convert(old).zip(convert(new));
            let changes =
                both.map(|(old, new)| compare(&old, &new, place).without(reset).into_owned());
            known.push(VersionChanges {
                version: version.to_owned(),
                changes,
            });
            known.len() - 1
        });
    known[index].changes.as_ref()
}

/// The oldest `Update` entries of a version, which become one.
struct Bucket<'a> {
    version: String,
    /// The entry into which the others are merged.
    index: usize,
    /// The fields of the others.
    sets: Vec<Set<'a>>,
}

/// Merges the oldest `Update` entries of each version if there are too many: controllers with
/// changing names would otherwise let the list grow without limit.
fn merge_oldest(managers: &mut Managers<'_>) {
    let updaters = managers.0.iter().filter(|manager| !manager.applies).count();
    if updaters <= MAX_UPDATERS {
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
    // Names decide between equal times, so that the result does not depend on the list's order.
    order.sort_by_cached_key(|index| key(&managers.0[*index]));
    let mut left = updaters;
    let mut buckets: Vec<Bucket<'_>> = Vec::new();
    for index in order {
        if left <= MAX_UPDATERS {
            break;
        }
        let version = managers.0[index].api_version.clone().into_owned();
        let Some(bucket) = buckets.iter_mut().find(|known| known.version == version) else {
            // The first of a version is only remembered: an entry that nothing is merged with keeps
            // its name.
            buckets.push(Bucket {
                version,
                index,
                sets: Vec::new(),
            });
            continue;
        };
        if bucket.sets.is_empty() {
            let ancient = |manager: &Manager<'_>| {
                !manager.applies
                    && manager.name == MERGED_MANAGER
                    && manager.api_version == version
                    && manager.subresource.is_empty()
            };
            // Two entries of one name, version and subresource would be one manager to every
            // reader, so the entry of an earlier write takes in the others.
            let known = managers.0.iter().position(ancient);
            bucket.index = known.unwrap_or(bucket.index);
        }
        if bucket.index == index {
            continue;
        }
        let merged = &mut managers.0[index];
        bucket.sets.push(std::mem::take(&mut merged.set));
        let time = merged.time.clone();
        let into = &mut managers.0[bucket.index];
        // Entries come by their times, so this one's is the newest in the bucket.
        (into.time, into.name, into.subresource) =
            (time, Cow::Borrowed(MERGED_MANAGER), Cow::Borrowed(""));
        left -= 1;
    }
    for bucket in buckets {
        let set = &mut managers.0[bucket.index].set;
        let own = std::mem::take(set);
        *set = Set::union_all(std::iter::once(own).chain(bucket.sets));
    }
    managers.drop_empty();
}
