//! What objects use of quotas, for admission and for the controller that recounts.
//!
//! Start at [`Quota`], a quota as it is counted, and [`usage`], what one object uses. Every kind
//! counts as `count/<plural>.<group>`; pods, claims of volumes and devices, and services also by
//! the resources that they request.
//!
//! No tasks, no channels, no I/O.

mod claim;
mod device;
mod pod;
mod scope;
mod service;

pub use pod::{missing, peak, pod_limits, pod_requests};
pub use scope::{Scope, moves};

use jiff::Timestamp;
use master_schema::quantity::{Quantities, Quantity};
use master_schema::validate::{Fields, items, object, text};
use serde_json::Value;
use std::collections::BTreeSet;

/// Kinds that no quota counts, as the cluster itself creates them.
const IGNORED: &[(&str, &str)] = &[("", "events"), ("events.k8s.io", "events")];

/// Older names of counts, beside `count/…`.
const COUNTED: &[&str] = &[
    "configmaps",
    "secrets",
    "replicationcontrollers",
    "resourcequotas",
];

/// Whether a quota can count objects of a kind.
pub fn counts(group: &str, plural: &str) -> bool {
    !IGNORED.contains(&(group, plural))
}

/// `count/pods`, `count/deployments.apps`.
pub fn count_name(group: &str, plural: &str) -> String {
    if group.is_empty() {
        format!("count/{plural}")
    } else {
        format!("count/{plural}.{group}")
    }
}

/// The usage of an object.
pub fn usage(group: &str, plural: &str, fields: &Fields, now: Timestamp) -> Quantities {
    let mut used = match (group, plural) {
        ("", "pods") => pod::usage(fields, now),
        ("", "persistentvolumeclaims") => claim::usage(fields),
        ("", "services") => service::usage(fields),
        ("resource.k8s.io", "resourceclaims") => device::usage(fields),
        _ => Quantities::default(),
    };
    used.set(count_name(group, plural), Quantity::count(1));
    if group.is_empty() && COUNTED.contains(&plural) {
        used.set(plural, Quantity::count(1));
    }
    used
}

/// Whether objects of a kind can use a resource that a quota limits.
pub fn tracks(group: &str, plural: &str, resource: &str) -> bool {
    if resource == count_name(group, plural)
        || group.is_empty() && COUNTED.contains(&plural) && resource == plural
    {
        return true;
    }
    match (group, plural) {
        ("", "pods") => pod::tracks(resource),
        ("", "persistentvolumeclaims") => claim::tracks(resource),
        ("", "services") => service::tracks(resource),
        ("resource.k8s.io", "resourceclaims") => device::tracks(resource),
        _ => false,
    }
}

/// A quota, as admission and the controller read it.
#[derive(Debug, Clone, Default)]
pub struct Quota {
    /// Its name.
    pub name: String,
    /// `spec.hard`.
    pub wanted: Quantities,
    /// `status.hard`.
    pub hard: Quantities,
    /// `status.used`.
    pub used: Quantities,
    /// The scopes that select objects; without scopes the quota applies to all.
    pub scopes: Vec<Scope>,
}

impl Quota {
    /// Reads a `ResourceQuota`.
    pub fn read(fields: &Fields) -> Self {
        let empty = Fields::new();
        let spec = object(fields, "spec").unwrap_or(&empty);
        let status = object(fields, "status").unwrap_or(&empty);
        let plain = items(spec, "scopes")
            .iter()
            .filter_map(Value::as_str)
            .map(Scope::exists);
        let selector =
            object(spec, "scopeSelector").map_or(&[][..], |found| items(found, "matchExpressions"));
        Self {
            name: text(master_schema::object::metadata(fields), "name").to_owned(),
            wanted: Quantities::read(object(spec, "hard")),
            hard: Quantities::read(object(status, "hard")),
            used: Quantities::read(object(status, "used")),
            scopes: plain
                .chain(
                    selector
                        .iter()
                        .filter_map(Value::as_object)
                        .map(Scope::read),
                )
                .collect(),
        }
    }

    /// Names of the limits that objects of a kind may use: those in the status, and those in the
    /// spec that have not been counted yet.
    pub fn concerned(&self, group: &str, plural: &str) -> Vec<&str> {
        let names: BTreeSet<&str> = self.hard.names().chain(self.wanted.names()).collect();
        names
            .into_iter()
            .filter(|name| tracks(group, plural, name))
            .collect()
    }

    /// The limits whose usage is unknown: no object may be created under them until they are
    /// counted.
    pub fn uncounted<'a>(&self, limits: &[&'a str]) -> Vec<&'a str> {
        let known = |name: &str| self.hard.get(name).is_some() && self.used.get(name).is_some();
        limits.iter().copied().filter(|name| !known(name)).collect()
    }

    /// Whether the quota's scopes select an object.
    pub fn covers(&self, group: &str, plural: &str, fields: &Fields) -> bool {
        self.scopes
            .iter()
            .all(|scope| scope.covers(group, plural, fields))
    }

    /// Whether an object uses anything that the quota limits.
    pub fn matches(&self, group: &str, plural: &str, fields: &Fields) -> bool {
        !self.concerned(group, plural).is_empty() && self.covers(group, plural, fields)
    }
}
