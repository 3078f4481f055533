//! Managed fields of the number of replicas, for the scale subresource (upstream: `ScaleHandler`).
//! The Scale is another object than the stored one, so that owners have to be translated both ways.

use crate::managed::{Manager, Managers};
use crate::path::Element;
use crate::set::Set;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The version of Scale.
pub const SCALE: &str = "autoscaling/v1";
const REPLICAS: [&str; 2] = ["spec", "replicas"];

fn path(steps: &[impl AsRef<str>]) -> Set<'static> {
    let mut set = Set::default();
    set.insert(
        steps
            .iter()
            .map(|step| Element::Field(Cow::Owned(step.as_ref().to_owned()))),
    );
    set
}

/// The managed fields of an object's scale: the managers that own the replicas. `replicas` gives
/// the path of the field in a version.
///
/// # Errors
/// The managed fields cannot be decoded.
pub fn to_scale(
    managed: Option<&str>,
    replicas: impl Fn(&str) -> Option<Vec<String>>,
) -> Result<Option<String>, String> {
    let managers = Managers::decode(managed.unwrap_or("[]"))?.0.into_iter();
    let owners = managers.filter(|manager| {
        replicas(&manager.api_version).is_some_and(|path| manager.set.has(&path))
    });
    let owners = owners.map(|manager| Manager {
        api_version: Cow::Borrowed(SCALE),
        set: path(&REPLICAS),
        ..manager
    });
    Ok(Managers(owners.collect()).encode())
}

/// The managed fields of an object after its scale was written. `api_version` is the object's.
///
/// # Errors
/// The managed fields cannot be decoded.
pub fn from_scale(
    list: Option<&str>,
    scale: Option<&str>,
    api_version: &str,
    replicas: impl Fn(&str) -> Option<Vec<String>>,
) -> Result<Option<String>, String> {
    let owners = Managers::decode(scale.unwrap_or("[]"))?.0.into_iter();
    let mut owners: BTreeMap<_, _> = owners.map(|owner| (owner.identity(), owner)).collect();
    let mut all = Managers::default();
    for mut manager in Managers::decode(list.unwrap_or("[]"))?.0 {
        // A version that is not served any more has no path to the replicas; its entry goes, as by
        // every other write.
        let Some(steps) = replicas(&manager.api_version) else {
            continue;
        };
        if manager.set.has(&steps) {
            let seen = manager.identity_in(Cow::Borrowed(SCALE));
            // A manager that is still among the owners of the scale keeps the replicas; from any
            // other the write took them.
            if owners.remove(&seen).is_none() {
                manager.set = manager.set.difference(&path(&steps));
            }
        }
        all.0.push(manager);
    }
    let Some(steps) = replicas(api_version) else {
        return Ok(all.encode());
    };
    for owner in owners.into_values() {
        if owner.set.has(&REPLICAS) {
            let manager = Manager {
                api_version: Cow::Borrowed(api_version),
                set: path(&steps),
                ..owner
            };
            match all.find(&manager) {
                Some(index) => {
                    let known = &mut all.0[index];
                    known.set = std::mem::take(&mut known.set).union(manager.set);
                    known.time = manager.time;
                }
                None => all.0.push(manager),
            }
        }
    }
    all.drop_empty();
    Ok(all.encode())
}
