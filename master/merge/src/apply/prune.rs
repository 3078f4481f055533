//! Removes fields that the manager applied before and no longer applies, unless another manager
//! owns them.

use crate::extract::extract;
use crate::managed::{Manager, Managers};
use crate::remove::remove;
use crate::set::Set;
use crate::write::Write;
use master_schema::schema::SchemaPosition;
use master_schema::validate::Fields;

/// The merged object without the fields that only the last configuration contained. `set` are the
/// fields of the new one.
///
/// Fields are removed in the version of the last configuration, as its set has that version's field
/// names; other managers' fields are then put back in their versions.
pub(super) fn prune(
    merged: Fields,
    last: &Manager<'_>,
    set: Set<'_>,
    managers: &Managers<'_>,
    write: &Write<'_>,
) -> Fields {
    if last.set.is_empty() {
        return merged;
    }
    let version = &*last.api_version;
    // The names in a set of a version that is not served any more mean nothing. To keep a field too
    // long is the mistake that an apply can mend; to remove another's field is not.
    let Some(place) = write.versions.place(version) else {
        return merged;
    };
    let converted = if version == write.api_version {
        Some(merged.clone())
    } else {
        write.versions.convert(&merged, version)
    };
    let Some(object) = converted else {
        return merged;
    };
    let declared = last.set.with_declared(place);
    let mut pruned = remove(&object, &declared, place);
    for (owned_in, owned) in owned(last, set, managers, write) {
        pruned = restore_owned(&object, pruned, version, &owned_in, &owned, write);
    }
    // Conversions there and back can lose what a version does not have. Only what the last
    // configuration contained may go by this apply.
    let gone = all(&object, place)
        .difference(&all(&pruned, place))
        .intersection(&declared);
    let pruned = remove(&object, &gone, place);
    if version == write.api_version {
        return pruned;
    }
    write
        .versions
        .convert(&pruned, write.api_version)
        .unwrap_or(merged)
}

/// Every field of an object.
fn all<'a>(object: &'a Fields, place: SchemaPosition<'a>) -> Set<'a> {
    extract(object, place).with_declared(place)
}

/// The owned fields by version, with the new configuration instead of the last one; the last one's
/// version comes first.
fn owned<'s>(
    last: &Manager<'_>,
    set: Set<'s>,
    managers: &'s Managers<'s>,
    write: &'s Write<'_>,
) -> Vec<(String, Set<'s>)> {
    // The last one's version first, as upstream: it needs no conversion, and a conversion to
    // another version can fail without a field that was pruned and is required there.
    let mut versions: Vec<(String, Vec<Set<'s>>)> =
        vec![(last.api_version.clone().into_owned(), Vec::new())];
    // The names in a set of a version that is not served mean nothing.
    let is_served = |version: &str| write.versions.place(version).is_some();
    let others = managers
        .0
        .iter()
        .filter(|manager| !manager.is(last) && is_served(&manager.api_version));
    let others = others.map(|manager| (&*manager.api_version, manager.set.clone()));
    for (version, set) in others.chain([(write.api_version, set)]) {
        match versions.iter_mut().find(|(known, _)| known == version) {
            Some((_, known)) => known.push(set),
            None => versions.push((version.to_owned(), vec![set])),
        }
    }
    let versions = versions.into_iter();
    versions
        .map(|(version, sets)| (version, Set::union_all(sets)))
        .collect()
}

/// Puts back the fields that managers own in a version. Both objects are in `version`.
fn restore_owned(
    merged: &Fields,
    pruned: Fields,
    version: &str,
    owned_in: &str,
    owned: &Set<'_>,
    write: &Write<'_>,
) -> Fields {
    let Some(place) = write.versions.place(owned_in) else {
        return pruned;
    };
    let within = |whole: &Fields, rest: &Fields| {
        let kept = all(rest, place).union(owned.with_declared(place).into_owned());
        let gone = all(whole, place).difference(&kept);
        remove(whole, &gone, place)
    };
    // In the version's own names: `owned` has no meaning in those of another one.
    if owned_in == version {
        return within(merged, &pruned);
    }
    let convert = |object: &Fields, to: &str| write.versions.convert(object, to);
    let back = convert(merged, owned_in)
        .zip(convert(&pruned, owned_in))
        .and_then(|(whole, rest)| convert(&within(&whole, &rest), version));
    back.unwrap_or(pruned)
}
